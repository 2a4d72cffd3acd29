"""examples/first_look.ipynb, executed by a kernel on few inputs, and its page opened in a browser."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_look.ipynb"
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
        return NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=300, kernel_name="python3").execute()


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
