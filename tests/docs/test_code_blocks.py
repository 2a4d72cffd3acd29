"""Every block of Python in the README, the docs and docstrings runs: those of a page in order, in one namespace.

Blocks of README, start pages and guides run after the install line of their page: in an environment that holds what the
line names and what that depends on, in a process and a folder of their own.
A block that this cannot be asked of says so where readers see it: ```` ```python notest: needs a download ````.
"""

from __future__ import annotations

import doctest
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import whyformer as wf
from docs.code_blocks import Block, Environment, blocks_of, environments_of, run
from tests.support import language
from tests.support.demo_models import shared_models
from tests.support.pages import Runner
from training import shapes, translation
from whyformer.checks.jain_wallace import jain_wallace
from whyformer.errors import LIBRARIES as OPTIONAL

ROOT = Path(__file__).parents[2]
PAGES = {
    str(p.relative_to(ROOT)): p
    for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if p.parent.name != "coming_from"  # run below, with the calls of their tables
}
# How many blocks of a page are marked so; a new one is worth a second thought.
NOT_RUN = {"docs/guide/compiled.md": 1, "docs/guide/in_context_tables.md": 1}
WRITTEN = re.compile(r'(?:save\(|savefig\(|out=)"([\w.-]+)"')  # what running a page leaves behind, and nothing else
FEWER = [  # steps of the longest searches and trainings; their numbers are not compared with the page
    (jain_wallace, {"permutations": 30, "steps": 8}),
    (translation.train, {"steps": 5, "width": 16}),
    (shapes.train, {"steps": 3}),
]


def numbers_before_and_after_smoothing(printed: str, folder: Path) -> None:
    plain, smooth = (float(line.split()[1]) for line in printed.splitlines())
    assert plain > 2, "the grid of a trained model"
    assert smooth < 1.5


def says(pattern: str) -> Callable[[str, Path], None]:
    def check(printed: str, folder: Path) -> None:
        assert re.search(pattern, printed)

    return check


def a_picture(printed: str, folder: Path) -> None:
    (picture,) = folder.iterdir()
    assert picture.stat().st_size > 10_000


def warnings_of_the_check_up(printed: str, folder: Path) -> None:
    assert "check-up: " in (folder / "why.html").read_text(encoding="utf-8")


SHOWS: dict[str, Callable[[str, Path], None]] = {
    "docs/guide/citations.md": says(r"She liked tea\. influenced: (True|False)"),
    "docs/guide/checks.md": warnings_of_the_check_up,
    "docs/guide/in_context_tables.md": says(r"\[\(.dose., "),
    "docs/guide/concepts.md": says(r"striped \| dotted: 1\.00"),
    "docs/guide/language_models.md": says(r"\('Norway', -?[0-9.]+\)[\s\S]*user: What does Bob have\?"),
    "docs/guide/patch_grid.md": numbers_before_and_after_smoothing,
    "docs/guide/tables.md": says("Feature permutation"),
    "docs/start/image.md": says(r"\(16, 16\)[\s\S]*0\.85 -0\.85"),
    "docs/start/language_model.md": says(r"rome \('italy', [\s\S]*is oslo"),
    "docs/start/table.md": says(r"'marital-status', 0\.30[\s\S]*\['marital-status', 'capital-gain', 'age'\]"),
    "docs/start/text.md": says(r"'wonderful', 3\.28[\s\S]*'thin', -2\.50[\s\S]*n \['but', 'wonderful'\]"),
    "docs/methods/grad_cam.md": a_picture,
    "docs/methods/vit_cx.md": a_picture,
}
QUOTED = [  # pages whose ```text blocks are what their code prints, all of it
    f"docs/guide/{name}.md"
    for name in (
        *("trust", "batch", "checks", "budget", "which_method", "report", "page", "pictures", "parameters"),
        *("servers", "interop", "long", "patch_grid", "learn"),
    )
] + ["docs/start/lecture.md"]
RUN = {name: blocks for name, page in PAGES.items() if (blocks := [b for b in blocks_of(page) if b.excuse is None])}


INSTALLED = [name for name in RUN if re.match(r"README|docs/(start|guide)/", name)]


def named(page: str) -> Environment:
    """The environment of a page: what its first install line names, or that of docs/guide/index.md."""
    return (environments_of(PAGES[page]) or environments_of(PAGES["docs/guide/index.md"]))[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="pages run in forks of one process")
@pytest.mark.parametrize("page", INSTALLED)
def test_the_page_runs_after_its_install_line(
    page: str, runner: Callable[[Environment], Runner], tmp_path: Path
) -> None:
    folder, installed = tmp_path / "empty", named(page)
    folder.mkdir()
    given = set()
    if '"smol"' in (text := PAGES[page].read_text(encoding="utf-8")):  # readers have SmolLM2 there, 93 MB to download
        language.save(folder / "smol", text)
        given.add("smol")
    if installed.in_clone:
        (folder / "training").symlink_to(ROOT / "training")
        given.add("training")
    fewer = {f"{verb.__module__}:{verb.__name__}": options for verb, options in FEWER}
    ran = runner(installed).run(page, folder, RUN[page], fewer)
    assert ran.well, f"{page} after pip install {installed}:\n{ran.error}"
    compare(page, ran.printed, folder, given)


@pytest.mark.parametrize("page", sorted(set(RUN) - set(INSTALLED)))
def test_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb, options in FEWER:
        for option, few in options.items():
            monkeypatch.setitem(inspect.unwrap(verb).__kwdefaults__, option, few)
    torch.manual_seed(0)
    with shared_models(monkeypatch):
        run(Path(page), RUN[page])
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    compare(page, capsys.readouterr().out, tmp_path)


def compare(page: str, printed: str, folder: Path, given: Collection[str] = ()) -> None:
    """Compare what a page printed and wrote with what it says; ``given``: what was in its folder before."""
    written = {p.name for p in folder.iterdir()} - set(given)
    assert written == {name for b in RUN[page] for name in WRITTEN.findall(b.code)}
    if page.startswith("docs/methods/") or page in QUOTED:
        compare_output(PAGES[page].read_text(encoding="utf-8"), printed)
    if page in SHOWS:
        SHOWS[page](printed, folder)


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w])")


def compare_output(page: str, printed: str) -> None:
    """Compare the page's text blocks with what its code printed: numbers to 3 %, in any order, since scores may tie."""
    shown = "\n".join(re.findall(r"^```text\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    assert shown, "the page does not quote what its code prints"
    assert sorted(NUMBER.sub("0", printed).split()) == sorted(NUMBER.sub("0", shown).split())
    numbers = [sorted(float(number) for number in NUMBER.findall(text)) for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.03, abs=0.002)


def test_few_blocks_are_left_out_and_every_method_has_some() -> None:
    assert {name for name in PAGES if name.startswith("docs/methods/") and not name.endswith("README.md")} <= set(RUN)
    assert set(SHOWS) <= set(RUN)
    left_out = {name: sum(b.excuse is not None for b in blocks_of(page)) for name, page in PAGES.items()}
    assert {name: count for name, count in left_out.items() if count} == NOT_RUN


# Install lines


def test_readme_start_pages_and_guides_name_their_environment() -> None:
    assert not [page for page in INSTALLED if "guide" not in page and not environments_of(PAGES[page])]
    assert environments_of(PAGES["docs/guide/index.md"]) == [Environment("all")]
    rows = re.findall(r"\]\((\w+\.md)\).*\| `(pip install [^`]+)` \|", PAGES["docs/start/index.md"].read_text())
    assert len(rows) >= 5
    for page, line in rows:
        assert f"\n{line}\n" in PAGES[f"docs/start/{page}"].read_text(encoding="utf-8"), page


@pytest.mark.skipif(not hasattr(os, "fork"), reason="pages run in forks of one process")
def test_the_first_block_of_readme_runs_after_what_a_clone_installs(
    runner: Callable[[Environment], Runner], tmp_path: Path
) -> None:
    (clone,) = [line for line in environments_of(PAGES["README.md"]) if line.in_clone]
    (tmp_path / "empty").mkdir()
    ran = runner(clone).run("README.md", tmp_path / "empty", RUN["README.md"][:1])
    assert ran.well and "wonderful" in ran.printed, ran.error


BROUGHT = {"plot": {"PIL"}, "shap": {"sklearn", "pandas"}}  # by what an extra depends on


@pytest.mark.skipif(not hasattr(os, "fork"), reason="pages run in forks of one process")
@pytest.mark.parametrize("environment", {str(named(page)): named(page) for page in INSTALLED}.values(), ids=str)
def test_what_an_install_line_does_not_name_is_missing(
    environment: Environment, runner: Callable[[Environment], Runner], tmp_path: Path
) -> None:
    """Otherwise a page could use what developers alone have, and its test would pass."""
    of_extra: dict[str, set[str]] = {name: set(BROUGHT.get(name, set())) for name in environment.extras.split(",")}
    if "all" in of_extra:
        of_extra |= {extra: set() for _, extra in OPTIONAL.values() if extra not in {"", "ray", "notebook"}}
    there = set().union(*of_extra.values(), {name for name, (_, extra) in OPTIONAL.items() if extra in of_extra})
    (tmp_path / "empty").mkdir()
    for module in OPTIONAL:
        code = [Block(f"import importlib.util\nassert importlib.util.find_spec({module!r})", 7, None)]
        ran = runner(environment).run("a page", tmp_path / "empty", code)
        assert ran.well == (module in there), module
        assert ran.well or 'File "a page", line 8' in ran.error


# Pages for those who know other libraries: every call in the right column of their tables runs.


COMING_FROM = ROOT / "docs" / "coming_from"
LIBRARIES = ("bertviz", "captum", "inseq", "lxt", "pytorch_grad_cam", "shap")


def calls(page: Path) -> list[str]:
    """The code in the last cell of every row, links and words aside."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [row.rstrip(" |").rpartition(" | ")[2] for row in rows[1:]]
    return [cell.strip("`") for cell in cells if re.fullmatch(r"`[^`]+`", cell)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_call_of_ours_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = COMING_FROM / f"{name}.md"
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        exec(compile(block.code, "page", "exec", dont_inherit=True), names)
    ours = calls(page)
    assert len(ours) >= 4
    for call in ours:
        eval(call, names)
    text = page.read_text(encoding="utf-8")
    assert re.search(r"\nThe calls on the left (ran with|are those of) [\w-]+ \d+\.\d+", text)


# What help() says of a public name: a sentence, and an example that runs as it stands.


NAMES = [name for name in wf.__all__ if name != "__version__"]
ELSEWHERE = {"extend"}  # its example is a method of one's own, which tests/explainer/test_surface.py registers


class Server:
    """A server that finds every answer likely, in place of one that has to be started."""

    def __init__(self, url: str, samples: int = 0) -> None:
        assert url.startswith("http://")
        self.samples = samples

    def __call__(self, prompts: list[Any], answers: list[Any]) -> list[float]:
        return [-0.1 * len(str(prompt)) for prompt in prompts]

    def generate(self, prompt: str, tokens: int) -> str:
        return "It is Paris."


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the examples name."""
    folder = tmp_path_factory.mktemp("desk")
    language.model("gpt2").save_pretrained(folder / "language-model")
    language.tokenizer().save_pretrained(folder / "language-model")
    (folder / "reviews.csv").write_text("text\nI like the movie\nThis is so boring\n", encoding="utf-8")
    matplotlib.use("agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for loader in ("load_sentiment", "load_pets", "load_adult"):  # once for all examples
            patch.setattr(wf.demo, loader, cache(getattr(wf.demo, loader)))
        yield folder


def test_help_begins_with_a_sentence() -> None:
    first = {name: (inspect.getdoc(getattr(wf, name)) or "").partition("\n")[0] for name in NAMES}
    assert {name: words for name, words in first.items() if len(words) > 120 or not words.endswith((".", "?"))} == {}


@pytest.mark.parametrize("name", sorted(set(NAMES) - ELSEWHERE))
def test_its_example_runs(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(wf, name)) or "")
    assert examples, f"help(wf.{name}) shows no example"
    assert f"wf.{name}(" in "".join(example.source for example in examples) or not inspect.isfunction(getattr(wf, name))
    if name in {"CompletionServer", "ChatServer"}:
        monkeypatch.setattr(wf, name, Server)
    scope: dict[str, Any] = {"wf": wf, "torch": torch, "np": np}
    for example in examples:
        exec(compile(example.source, f"help(wf.{name})", "single", dont_inherit=True), scope)
