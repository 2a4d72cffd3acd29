"""What the pages for those who know other libraries say of ours is true: every call in their right column runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs.code_blocks import blocks_of

FOLDER = Path(__file__).parents[2] / "docs" / "coming_from"
PAGES = sorted(p.stem for p in FOLDER.glob("*.md") if p.stem != "index")


def calls(page: Path) -> list[str]:
    """The code in the last cell of every row, links and words aside."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [row.rstrip(" |").rpartition(" | ")[2] for row in rows[1:]]
    return [cell.strip("`") for cell in cells if re.fullmatch(r"`[^`]+`", cell)]


@pytest.mark.parametrize("name", PAGES)
def test_every_call_of_ours_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = FOLDER / f"{name}.md"
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        exec(block.code, names)
    ours = calls(page)
    assert len(ours) >= 4
    for call in ours:
        eval(call, names)


def test_every_library_has_a_page() -> None:
    assert PAGES == ["bertviz", "captum", "inseq", "lxt", "pytorch_grad_cam", "shap"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_for_which_version_the_other_calls_were_checked(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert re.search(r"\nThe calls on the left (ran with|are those of) [\w-]+ \d+\.\d+", text)
