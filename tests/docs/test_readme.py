"""The first example of the README prints what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found is not None
    *before, last = found.group(1).strip().splitlines()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    assert (tmp_path / "why.html").is_file()
    call, said = last.split("  # ")
    promised = ast.literal_eval(said.replace(", …", ""))
    printed = eval(call, names)[: len(promised)]
    assert [(label, round(score, 3)) for label, score in printed] == promised
