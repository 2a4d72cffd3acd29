"""The guide's page on Grad-SAM and SHAP says what its command prints, and what must hold by construction does."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import gradsam_vs_shap as guide

PAGE = Path(guide.__file__).parent / "reports" / "gradsam_vs_shap.md"


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    share, found = guide.shares()
    assert guide.table(share, found) in PAGE.read_text(encoding="utf-8")
    assert all(s[0] == 0 and s[-1] == 0 for s in share["|SHAP|"]), "always there: no share"
    assert all(s[0] > 0.4 and s.argmax() == 0 for s in share["Grad-SAM"])
    guide.draw(share, found, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_the_top_layer_of_grad_sam_is_all_cls() -> None:
    assert guide.top_layer() == pytest.approx([1.0] * len(guide.SENTENCES), abs=1e-6)
