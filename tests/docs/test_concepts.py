"""The examples of the guide run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "concepts.md"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec("\n".join(blocks), {})
    assert {p.name for p in tmp_path.iterdir()} == {"concepts.png", "zebra.png"}
    assert re.search(r"striped \| dotted +1\.00", capsys.readouterr().out)
