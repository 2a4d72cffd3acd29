"""What the jobs of the tests explain, and what is compared of two folders; processes that are killed use it, too.

Those that are started for a test explain the shipped model of a table: it needs no transformers, whose import takes
longer than all the rest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import whyformer as wf
from tests.support.folders import WORDS
from whyformer.jobs.folder import COMMITS

HOW: dict[str, Any] = {"method": ["generic_attention", "grad_sam"], "part_rows": 4, "top": 0}
# A driver: the folder, and the address of a cluster where there is one.
KILLED = """
import sys, time
import whyformer as wf
from tests.jobs.sentences import HOW, census_explainer
from whyformer.demo.census import adult_rows

def slowly():
    for i, row in enumerate(adult_rows()):
        if i == 16:
            time.sleep(3600)  # it is killed here
        yield row

ray = {"engine": "ray", "workers": 1, "address": sys.argv[2]} if sys.argv[2:] else {}
wf.explain_dataset(census_explainer(), slowly(), out=sys.argv[1], **HOW, **ray)
"""


def sentences(count: int) -> list[str]:
    """Texts of one to nine words, each once."""
    return [" ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(1 + i % 9)) for i in range(count)]


@contextmanager
def killed_driver(out: Path, *address: str) -> Iterator[None]:
    """A process that has committed some parts, and is killed in the end."""
    driver = subprocess.Popen([sys.executable, "-c", KILLED, str(out), *address])
    try:
        until = time.monotonic() + 300  # a busy machine takes its time to start another Python
        while not (out / COMMITS).is_file() or len((out / COMMITS).read_bytes().splitlines()) < 2:
            assert driver.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        yield
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()


def census_explainer(processes: Path | None = None) -> wf.Explainer:
    """A model of a table; each process that runs it leaves a file in ``processes``."""
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
