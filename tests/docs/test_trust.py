"""The examples of the guide run as they stand, and its table is that of the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import whyformer as wf

DOCS = Path(__file__).parents[2] / "docs"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "guide" / "trust.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec("\n".join(blocks), {})
    assert {p.name for p in tmp_path.iterdir()} == {"compare.html", "compare.json", "choice.html"}


def test_every_metric_is_in_the_table() -> None:
    text = (DOCS / "guide" / "trust.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in wf.metrics())


def test_the_example_of_attention_x_gradient_runs() -> None:
    text = (DOCS / "methods" / "attention_x_gradient.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), {})
