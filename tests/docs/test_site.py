"""The site in a browser, opened from its folder: it can be searched, needs no network, and everyone can read it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs import notebook, reference
from tests.support.browser import Browser
from tests.views.test_accessible import axe

CALL, NOTEBOOK = "api/generated/whyformer.explain.html", "start/first_look.html"
METHOD, NAME = "methods/attention_rollout.html", "api/generated/whyformer.Explanation.html"
SERIOUS = (  # frames are pages of ours, which tests/views looks at
    "axe.run(document, {iframes: false, resultTypes: ['violations']}).then(r => r.violations"
    ".filter(v => ['serious', 'critical'].includes(v.impact))"
    ".map(v => `${v.impact} ${v.id}: ${v.nodes.length} ${v.nodes[0].html.slice(0, 160)}`))"
)
SETTLED = (  # colours fade in as the theme is chosen: halfway there, contrast is low
    "new Promise(r => { document.getAnimations().forEach(a => a.finish());"
    "requestAnimationFrame(() => requestAnimationFrame(() => r(document.getAnimations().length))); })"
)
LINKS = (
    "new Promise(r => { const t = setInterval(() => { const l = [...document.querySelectorAll('#search-results li a')];"
    "if (l.length && !document.querySelector('.search-summary')?.textContent.includes('Searching')) "
    "{ clearInterval(t); r(l.map(a => a.getAttribute('href'))); } }, 50); setTimeout(() => { clearInterval(t); r([]); }"
    ", 20000); })"
)
FETCHED = "performance.getEntriesByType('resource').map(e => e.name).filter(n => !/^(file|data|blob):/.test(n))"


@pytest.mark.parametrize(
    ("page", "dark"), [("index.html", False), (METHOD, False), (NOTEBOOK, False), (CALL, True), ("glossary.html", True)]
)
def test_no_serious_rule_of_accessibility_is_broken(site: Path, browser: Browser, page: str, dark: bool) -> None:
    browser.open(site / page, dark=dark)
    assert browser.does(SETTLED) == 0
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(SERIOUS) == []


@pytest.mark.parametrize(("words", "page"), [("rollout", METHOD), ("heatmap", NAME)])
def test_it_is_searched_from_its_folder(site: Path, browser: Browser, words: str, page: str) -> None:
    browser.open(f"{(site / 'search.html').as_uri()}?q={words}")
    assert any(page in (link or "") for link in browser.does(LINKS))


@pytest.mark.parametrize("page", ["index.html", METHOD, NAME, NOTEBOOK])
def test_it_needs_no_network_and_fits_a_phone(site: Path, browser: Browser, page: str) -> None:
    browser.open(site / page, width=400)
    assert browser.does(FETCHED) == []
    assert browser.does("document.documentElement.scrollWidth") <= 400
    if page == METHOD:  # a formula is drawn by the browser alone
        assert browser.does("document.querySelector('div.math math').getBoundingClientRect().height") > 15
    assert browser.errors == []


def test_a_name_is_told_with_its_fields_and_verbs(site: Path) -> None:
    text = (site / NAME).read_text(encoding="utf-8")
    assert all(f"whyformer.Explanation.{verb}" in text for verb in ("ranked", "show", "save", "heatmap"))
    assert "standard error of each score" in text  # the comment behind a field


def test_every_public_name_has_a_place() -> None:
    pages = "\n".join(reference.pages().values())
    listed = {f"whyformer.{name}" for name in re.findall(r"^   ([A-Za-z_.]+)$", pages, flags=re.MULTILINE)}
    assert set(reference.public_names()) <= listed
    assert not reference.undocumented()


# examples/first_look.ipynb, executed by a kernel on few inputs, and its page opened in a browser.

EXAMPLE = Path(__file__).parents[2] / "examples" / "first_look.ipynb"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
INNER = "[...document.querySelectorAll('iframe')].map(f => f.contentDocument)"
READY = (
    "new Promise(r => { const t = setInterval(() => { if (" + INNER + ".every(d => "
    "d.documentElement.classList.contains('wf-started'))) { clearInterval(t); setTimeout(r, 300); } }, 50); })"
)


@pytest.fixture(scope="module")
def executed() -> Any:
    import nbformat
    from nbclient import NotebookClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYFORMER_FEW", "1")
        return NotebookClient(nbformat.read(EXAMPLE, as_version=4), timeout=300, kernel_name="python3").execute()


@pytest.fixture(scope="module")
def exported(executed: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    from nbconvert import HTMLExporter

    folder = tmp_path_factory.mktemp("exported")

    @cache
    def page(theme: str) -> Path:
        words, _ = HTMLExporter(require_js_url="", mathjax_url="", theme=theme).from_notebook_node(executed)
        path = folder / f"{theme}.html"
        path.write_text(words, encoding="utf-8")
        return path

    return page


def test_every_result_is_a_picture_and_nothing_else_is_printed(executed: Any) -> None:
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert {output.output_type for output in outputs} == {"execute_result"}  # no progress bars, no warnings
    assert sorted(next(k for k in output.data if k != "text/plain") for output in outputs) == (
        ["image/png"] + ["text/html"] * (len(outputs) - 1)
    )
    assert max(len(output.data["text/plain"]) for output in outputs) < 3000  # words, not arrays
    assert [cell for cell in executed.cells if cell.cell_type == "code"][1].source.splitlines()[-1] == "ask()"


def test_saved_outputs_are_those_of_today(executed: Any) -> None:
    """Predictions, tokens, columns and scores, in cells that do not depend on the number of inputs."""
    saved = {cell["id"]: cell["outputs"] for cell in json.loads(EXAMPLE.read_text())["cells"] if cell.get("outputs")}
    fresh, stored = notebook.pages(executed)["shown"], notebook.stored()["shown"]
    cells = [cell for cell in executed.cells if cell.get("outputs") and "FEW" not in cell.source]
    assert len(saved) == len(stored) > len(cells) > 4
    assert all({"image/png", "text/plain"} == set(output["data"]) for (output,) in saved.values())
    for cell in cells:
        shown = [pages[notebook.digest(cell.source)].get("page", "") for pages in (fresh, stored)]
        texts = [notebook.words(page) for page in shown]
        assert (len(texts[0]) > 40) == (len(shown[0]) > 0)
        assert NUMBER.sub("0", texts[0]) == NUMBER.sub("0", texts[1]), "run `python -m docs.notebook`"
        numbers = [list(map(float, NUMBER.findall(text))) for text in texts]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.02), "run `python -m docs.notebook`"


@pytest.mark.parametrize(("width", "theme"), [(420, "light"), (1300, "dark")])
def test_its_page_opens_without_errors(
    exported: Callable[[str], Path], browser: Browser, width: int, theme: str
) -> None:
    browser.open(exported(theme), width=width, dark=theme == "dark")
    browser.does(READY)
    heights = browser.does(
        "[...document.querySelectorAll('iframe')].map(f => [f.clientHeight, f.contentDocument.body.scrollHeight])"
    )
    assert len(heights) >= 8 and all(frame == pytest.approx(page, abs=2) for frame, page in heights)
    grounds = browser.does(f"{INNER}.map(d => getComputedStyle(d.body).backgroundColor)")
    assert set(grounds) == {"rgb(13, 17, 23)" if theme == "dark" else "rgb(255, 255, 255)"}
    widths = browser.does(f"{INNER}.map(d => d.documentElement.scrollWidth - d.documentElement.clientWidth)")
    assert set(widths) == {0}
    assert browser.does("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


def test_its_frames_can_be_asked(exported: Callable[[str], Path], browser: Browser) -> None:
    browser.open(exported("light"))
    browser.does(READY)
    over = "dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
    browser.does(f"{INNER}[0].querySelector('.wf-maps .wf-token').{over}")
    assert browser.does(f"{INNER}[0].querySelectorAll('.wf-here').length") == 2
    browser.does(f"{INNER}[2].querySelector('.wf-asks').click()")
    assert "Why positive rather than negative?" in browser.does(f"{INNER}[2].querySelector('.wf-why').textContent")
    pictures = browser.does(f"{INNER}.map(d => d.querySelectorAll('.wf-stage img').length)")
    assert max(pictures) == 2  # the photo, under two methods
    assert browser.errors == []
