"""Every block of Python in the README and the docs runs as it stands: those of a page in order, in one namespace.

A block that this cannot be asked of says so where readers see it: ```` ```python notest: needs a download ````.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from docs.code_blocks import blocks_of, run
from tests.support.demo_models import shared_models
from whyformer.checks.jain_wallace import jain_wallace
from whyformer.heads.pruning import gate_curve

ROOT = Path(__file__).parents[2]
PAGES = {
    str(p.relative_to(ROOT)): p
    for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if p.parent.name != "coming_from"  # run below, with the calls of their tables
}
# How many blocks of a page are marked so; a new one is worth a second thought.
NOT_RUN = {"docs/guide/compiled.md": 1, "docs/guide/in_context_tables.md": 1}
WRITTEN = re.compile(r'(?:save\(|savefig\(|out=)"([\w.-]+)"')  # what running a page leaves behind, and nothing else
FEWER = [  # of the longest searches, whose numbers no page shows
    (jain_wallace, {"permutations": 10, "steps": 8}),
    (gate_curve, {"penalties": (0.01, 0.1)}),
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
    "docs/guide/batch.md": says(r"3 rows, generic_attention, attn_lrp, 1 errors[\s\S]*the text is empty"),
    "docs/guide/citations.md": says("She liked tea . (True|False)"),
    "docs/guide/checks.md": warnings_of_the_check_up,
    "docs/guide/concepts.md": says(r"striped \| dotted +1\.00"),
    "docs/reports/gradsam_vs_shap.md": says(r"'\[CLS\]'"),
    "docs/guide/language_models.md": says("Why 'paris' rather than 'rome'"),
    "docs/guide/servers.md": says(r"\('Bob has a blue bike\.', [0-9.]+\) 5 requests"),
    "docs/guide/patch_grid.md": numbers_before_and_after_smoothing,
    "docs/guide/tables.md": says("Feature permutation"),
    "docs/start/language_model.md": says(r"rome \('italy', [\s\S]*is oslo"),
    "docs/methods/grad_cam.md": a_picture,
    "docs/methods/vit_cx.md": a_picture,
}
RUN = {name: blocks for name, page in PAGES.items() if (blocks := [b for b in blocks_of(page) if b.excuse is None])}


@pytest.mark.parametrize("page", RUN)
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
    assert {p.name for p in tmp_path.iterdir()} == {name for b in RUN[page] for name in WRITTEN.findall(b.code)}
    if page in SHOWS:
        SHOWS[page](capsys.readouterr().out, tmp_path)


def test_few_blocks_are_left_out() -> None:
    left_out = {name: sum(b.excuse is not None for b in blocks_of(page)) for name, page in PAGES.items()}
    assert {name: count for name, count in left_out.items() if count} == NOT_RUN


def test_every_method_page_has_an_example() -> None:
    pages = {name for name in PAGES if name.startswith("docs/methods/") and not name.endswith("README.md")}
    assert len(pages) > 20
    assert pages <= set(RUN)


def test_what_is_expected_belongs_to_pages_that_are_run() -> None:
    assert set(SHOWS) <= set(RUN)


# Pages for those who know other libraries: every call in the right column of their tables runs.


COMING_FROM = Path(__file__).parents[2] / "docs" / "coming_from"
LIBRARIES = sorted(p.stem for p in COMING_FROM.glob("*.md") if p.stem != "index")


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
        exec(block.code, names)
    ours = calls(page)
    assert len(ours) >= 4
    for call in ours:
        eval(call, names)


def test_every_library_has_a_page() -> None:
    assert LIBRARIES == ["bertviz", "captum", "inseq", "lxt", "pytorch_grad_cam", "shap"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_page_says_for_which_version_the_other_calls_were_checked(name: str) -> None:
    text = (COMING_FROM / f"{name}.md").read_text(encoding="utf-8")
    assert re.search(r"\nThe calls on the left (ran with|are those of) [\w-]+ \d+\.\d+", text)
