"""Comparing output with what was stored: run with WHYFORMER_SNAPSHOTS=write to store what comes out now."""

from __future__ import annotations

import os
from pathlib import Path


def compare(text: str, path: Path) -> None:
    """Fail where ``text`` differs from the file."""
    if os.environ.get("WHYFORMER_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no snapshot at {path}: look at the output, then store it with WHYFORMER_SNAPSHOTS=write"
    assert text == path.read_text(encoding="utf-8")
