"""What the jobs of the tests explain, and what is compared of two folders; processes that are killed use it, too.

Those that are started for a test explain the shipped model of a table: it needs no transformers, whose import takes
longer than all the rest.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import whyformer as wf
from tests.support.folders import WORDS
from whyformer.demo.census import adult_rows


def sentences(count: int) -> list[str]:
    """Texts of one to nine words, each once."""
    return [" ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(1 + i % 9)) for i in range(count)]


def census() -> list[dict[str, Any]]:
    """Forty rows of a table."""
    return adult_rows()


def census_explainer(processes: Path | None = None) -> wf.Explainer:
    """The model of that table; each process that runs it leaves a file in ``processes``."""
    model, table = wf.demo.load_adult()
    if processes is not None:
        model.register_forward_pre_hook(partial(_note, processes))
    return wf.Explainer(model, table)


def _note(folder: Path, module: Any, args: Any) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(0.02)  # slow enough to be killed at work


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    """What has to be the same to the last bit, in the order of the rows."""
    return [
        (place["row_id"], place["place"], e.method, e.target, e.value, e.units.labels, e.scores.tobytes())
        for place, e in wf.jobs.ExplainedDataset(folder).entries()
    ]
