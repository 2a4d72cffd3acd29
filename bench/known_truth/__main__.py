"""Known truth: which methods point at the cause, where the cause is known by construction?

    python -m bench.known_truth [--photos FOLDER_OR_TAR] [--models 3] [--inputs 100] [--cache known_truth]
                                [--processes 2] [--device cuda] [--out known_truth.json] [--quick]

Two tasks for models of two layers: trigger words with negation (BERT), sums of columns with unused ones
(FT-Transformer). Four for models of six layers: words and columns again, stamps across patches (ViT, on textured noise
or on photos), facts said once or twice (Llama). Tiny models are trained on them and shown to use the cause: changing
it flips the output, changing distractors does not. Then every method explains held-out inputs, and is judged by where
its scores lie. Prints tables with 95 % limits over inputs, writes everything as JSON. With --cache, trained models are
kept and a second run only explains; with --resume, it also goes on where the first was interrupted.

Needs torch, numpy, scipy, transformers, tokenizers, rtdl_revisiting_models, shap; Pillow for photos.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import whyformer as wf
from bench.jobs import Job, done_jobs
from bench.known_truth.job import NAMES, task_of, work
from bench.known_truth.report import best, best_table, gate_table, overall_table, summary, table
from bench.known_truth.scoring import Found, contenders


def collected(done: dict[Job, dict[str, Any]], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Everything for the JSON, and the page."""
    per_task: dict[str, list[dict[str, Found]]] = {}
    gates: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        models = [done[job] for job in sorted(done) if job[0] == name]
        if models:
            gates[name] = [model["gate"] for model in models]
        judged = [model["found"] for model in models if model["found"]]  # none of one that did not pass the gate
        if judged:
            per_task[name] = judged
    summaries = {name: summary(runs) for name, runs in per_task.items()}
    choice = best(per_task, {name: task_of(name, None).modality for name in per_task})
    lines = ["## The gate", "", *gate_table(gates)]
    for name, found in summaries.items():
        lines += ["", f"## {name}", "", *table(found)]
    lines += ["", "## The best of each cost", "", *best_table(choice)]
    lines += ["", "## Over all tasks", "", *overall_table(summaries)]
    everything = {
        "gates": gates,
        "summary": summaries,
        "best": choice,
        "values": {n: [{m: f.values for m, f in run.items()} for run in runs] for n, runs in per_task.items()},
    }
    return everything, lines


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.known_truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--methods", nargs="+", help="instead of all")
    parser.add_argument("--models", type=int, default=1, help="trained per task, each with a seed of its own")
    parser.add_argument("--inputs", type=int, default=100, help="explained per model")
    parser.add_argument("--photos", help="folder or tar file of photos, instead of textured noise")
    parser.add_argument("--cache", type=Path, help="folder where trained models are kept")
    parser.add_argument("--resume", action="store_true", help="go on where a run with the same --cache was interrupted")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every number as JSON")
    parser.add_argument("--quick", action="store_true", help="a smoke test: hardly trained, few inputs")
    options = parser.parse_args(given)
    if options.resume and options.cache is None:
        parser.error("--resume needs the --cache of the run that was interrupted")
    if options.quick:
        options.inputs = min(options.inputs, 4)
    unknown = set(options.methods or ()) - set(contenders())
    if unknown:
        parser.error(f"unknown method {', '.join(sorted(unknown))}; known: {', '.join(contenders())}")
    return options


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    started = time.perf_counter()
    jobs = [(name, seed) for seed in range(options.models) for name in options.tasks]
    done: dict[Job, dict[str, Any]] = {}
    lines: list[str] = []
    for job, found in done_jobs(jobs, options.processes, partial(work, given=options)):
        done[job] = found
        everything, lines = collected(done, options.tasks)
        settings = {"inputs": options.inputs, "models": options.models, "photos": options.photos is not None}
        settings |= {"torch": str(torch.__version__), "whyformer": wf.__version__, "device": options.device}
        settings["seconds"] = round(time.perf_counter() - started)
        if options.out is not None:  # an interrupted run keeps this
            options.out.write_text(json.dumps({"settings": settings} | everything, indent=1), encoding="utf-8")
    print("\n".join(["", *lines, "", str(settings)]))
    return 0 if options.quick or all(found["gate"]["passed"] for found in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
