"""What the jobs of the tests explain, and what is compared of two folders; processes that are killed use it, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import whyformer as wf
from tests.support.folders import WORDS


def sentences(count: int) -> list[str]:
    """Texts of one to nine words, each once."""
    return [" ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(1 + i % 9)) for i in range(count)]


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    """What has to be the same to the last bit, in the order of the rows."""
    return [
        (place["row_id"], place["place"], e.method, e.target, e.value, e.units.labels, e.scores.tobytes())
        for place, e in wf.jobs.ExplainedDataset(folder).entries()
    ]
