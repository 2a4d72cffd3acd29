"""One task and one model, from training to the judged methods.

Apart from __main__, which other processes cannot import from.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.jobs import Job
from bench.known_truth.columns import Columns
from bench.known_truth.facts import Facts
from bench.known_truth.scoring import Found, contenders, judged, selected
from bench.known_truth.stamps import Stamps
from bench.known_truth.task import Task
from bench.known_truth.training import gate, kept
from bench.known_truth.words import Words

DEEP = 6  # layers
NAMES = ("words", "columns", "deep_words", "deep_columns", "stamps", "facts")
GATE_INPUTS = 2000


def task_of(name: str, photos: str | None) -> Task:
    made: dict[str, Task] = {
        "words": Words(),
        "columns": Columns(),
        "deep_words": Words(layers=DEEP, name="deep_words"),
        "deep_columns": Columns(blocks=DEEP, name="deep_columns"),
        "stamps": Stamps(photos, layers=DEEP),
        "facts": Facts(layers=DEEP),
    }
    return made[name]


def work(job: Job, given: argparse.Namespace) -> dict[str, Any]:
    """One task and one model: train or load it, check the gate, judge every method."""
    torch.set_num_threads(1)
    name, seed = job
    task = task_of(name, given.photos)
    started = time.perf_counter()
    kind = "quick" if given.quick else "photos" if given.photos and task.modality == "image" else "plain"
    model, training = kept(task, seed, given.device, given.cache, kind, 5 if given.quick else None)
    trained_s = time.perf_counter() - started
    held_out = task.held_out(np.random.default_rng([seed, 3]), 64 if given.quick else GATE_INPUTS)
    passed = gate(task, model, held_out, given.device)
    print(f"{name}, model {seed}: {passed}", flush=True)
    rows = np.arange(given.inputs) if given.quick else selected(task, model, held_out, given.device)[: given.inputs]
    notes = None if given.cache is None else given.cache / f"{name}-{kind}-{seed}-{given.inputs}.json"
    found = _noted(notes) if given.resume else {}
    # What a model does that did not learn the task has no truth to be held against.
    wanted = list(given.methods or contenders()) if passed.passed() or given.quick else []
    for contender in wanted:
        if contender not in found:
            found[contender] = judged(task, model, held_out, rows, contender, given.device)
            if notes is not None:
                notes.write_text(json.dumps({k: asdict(f) for k, f in found.items()}), encoding="utf-8")
    shown = asdict(passed) | training | {"seed": seed, "passed": passed.passed(), "trained_s": trained_s}
    shown |= {"explained": len(rows), "explained_s": time.perf_counter() - started - trained_s}
    return {"gate": shown, "found": {n: found[n] for n in wanted}}


def _noted(path: Path | None) -> dict[str, Found]:
    """What an interrupted run had found already."""
    if path is None or not path.exists():
        return {}
    return {k: Found(**v) for k, v in json.loads(path.read_text(encoding="utf-8")).items()}
