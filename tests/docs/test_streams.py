"""The pictures of the guide to several streams are small, and the script that makes them runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "streams.md"


def test_pictures_are_there_and_small() -> None:
    shown = re.findall(r"\(\.\./images/([^)]+)\)", GUIDE.read_text(encoding="utf-8"))
    assert len(shown) == 6
    assert all((ROOT / "docs" / "images" / name).stat().st_size < 60_000 for name in shown)


@pytest.mark.parametrize("kind", ["boxes", "clip", "detection", "translation", "sound"])
def test_the_script_that_makes_them_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import streams

    streams.main(tmp_path, [kind])
    assert (tmp_path / f"streams_{kind}.png").stat().st_size < 60_000
    del sys.modules["streams"]
