"""Do readings of a tabular transformer's attention rank columns as other evidence does?

``python -m bench.tabular_study --data FOLDER --seeds 5`` trains FT-Transformer, TabTransformer and SAINT on adult
census, bank marketing and California housing, reads them in every way, and prints Spearman's rank correlation with
feature permutation and with integrated gradients, per row and over all rows: the mean over seeds, its 95 % interval.
TabTransformer is judged on its categorical columns, the only ones that its attention sees. SHAP is the regression of
whyformer itself, which needs no other package; it asks the model at most ``--evaluations`` times per row. What the
machine lacks is said before anything is computed.

With ``--out FILE`` every finished job is kept at once, and a second run with the same file does what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.ranks import interval, spearman
from bench.tabular_data import FILES, Data, load
from bench.tabular_models import MODELS, NEEDS, encoded, losses, predicted, quality, train
from whyformer.errors import WhyformerError
from whyformer.tables import feature_permutation

Array = np.ndarray[Any, Any]
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention, first layer": ("raw_attention", {"layers": 0}),
    "attention, last layer": ("raw_attention", {"layers": "last"}),
    "attention, mean of layers (Gorishniy)": ("raw_attention", {"layers": "mean"}),
    "diagonal, first layer (Borisov)": ("raw_attention", {"layers": 0, "read": "diagonal"}),
    "column sum, first layer (Borisov)": ("raw_attention", {"layers": 0, "read": "column_sum"}),
    "column sum, mean of layers": ("raw_attention", {"layers": "mean", "read": "column_sum"}),
    "attention rollout": ("attention_rollout", {}),
    "generic attention": ("generic_attention", {}),
    "gradient rollout": ("gradient_rollout", {}),
    "Grad-SAM, by query": ("grad_sam", {"reduce": "query"}),
    "Grad-SAM, by key": ("grad_sam", {"reduce": "key"}),
    "value norms": ("value_norms", {}),
    "saliency": ("saliency", {}),
    "input × gradient": ("input_x_gradient", {}),
}
SHAP = "SHAP"
AGAINST = ("permutation, per row", "permutation, global", "IG, per row", "IG, global")
# FT-Transformer's averaged attention and integrated gradients against permutation, as published (Gorishniy 2021).
PUBLISHED = {
    "CA": (0.81, 0.84), "HE": (0.77, 0.74), "AL": (0.84, 0.89), "JA": (0.78, 0.75),
    "HI": (0.91, 0.72), "YE": (0.92, 0.50), "CO": (0.84, 0.90), "MI": (0.86, 0.56),
}  # fmt: skip


def study(name: str, model_name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One data set, model and seed."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    data = load(name, options.data, seed, options.rows)
    found: dict[str, Any] = {"data": name, "model": model_name, "seed": seed}
    seen = [*data.table.categorical] if model_name == "TabTransformer" else list(data.table.columns)
    if len(seen) < 3:
        return {**found, "skipped": f"attention sees {len(seen)} column(s): there is nothing to rank"}
    model = train(model_name, data, seed, options.device)
    test = encoded(data, data.test, options.device)
    found["quality"] = quality(data, predicted(model, test), data.test.truth)
    found["trained_s"] = time.perf_counter() - started
    rows = np.arange(min(options.explained if model_name != "SAINT" else options.explained // 4, len(data.test.truth)))
    part = {k: v[: len(rows)] for k, v in test.items()}
    gradients = np.abs(_scores(model, data, part, seen, "integrated_gradients", _ig(options)))
    evidence = {"permutation": _permutation(model, data, seen, seed, options), "IG": (gradients, gradients.mean(0))}
    found["readings"] = {}
    for reading, (method, settings) in (READINGS | _shap(len(seen), model_name, options)).items():
        try:
            scores = np.abs(_scores(model, data, part, seen, method, settings))
        except WhyformerError as error:
            found["readings"][reading] = {"not offered": str(error)[:200]}
            continue
        found["readings"][reading] = _agreement(scores, evidence, len(rows))
    chance = np.random.default_rng(seed).random(gradients.shape)
    found["readings"]["random"] = _agreement(chance, evidence, len(rows))
    found["readings"]["integrated gradients"] = _agreement(gradients, evidence, len(rows))
    for key in AGAINST[2:]:
        found["readings"]["integrated gradients"].pop(key)
    found["seconds"] = time.perf_counter() - started
    return found


def _ig(options: argparse.Namespace) -> dict[str, Any]:
    return {"steps": options.steps, "baseline": "mean", "at": "embeddings"}


def _shap(columns: int, model: str, options: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """Absent columns hold the mean, or the most frequent value, of the reference rows.

    2^n - 2 evaluations are all sets but none and all of the columns, which the regression asks for besides.
    """
    most = options.evaluations if model != "SAINT" else options.evaluations // 4
    evaluations = min(most, 2**columns - 2)
    return {SHAP: ("shap", {"replace": "mean", "algorithm": "regression", "evaluations": evaluations})}


def _permutation(
    model: torch.nn.Module, data: Data, seen: list[str], seed: int, options: argparse.Namespace
) -> tuple[Array, Array]:
    """(rows, columns) how far each row's loss moves when a column is shuffled, and (columns,) how much it rises."""
    count = min(options.shuffled, len(data.test.truth))
    row_losses: list[Array] = []

    def metric(truth: Array, logits: Array) -> float:
        row_losses.append(losses(data, logits, truth))
        return -float(row_losses[-1].mean())

    part = {k: v[:count] for k, v in data.test.columns.items()}
    moves, rises = [], []
    for repeat in range(options.repeats):  # one by one: limits over repeats, which need scipy, are not asked for
        row_losses.clear()
        result = feature_permutation(
            model, part, data.test.truth[:count], processor=data.table, metric=metric, repeats=1,
            seed=options.repeats * seed + repeat, batch_size=512, progress=False,
        )  # fmt: skip
        base, *shuffled = row_losses
        where = [result.labels.index(c) for c in seen]
        moves.append(np.abs(np.stack(shuffled) - base)[where].T)
        rises.append(result.mean[where])
    return np.mean(moves, 0), np.mean(rises, 0)


def _scores(
    model: torch.nn.Module, data: Data, part: dict[str, torch.Tensor], seen: list[str], method: str,
    settings: dict[str, Any],
) -> Array:  # fmt: skip
    """(rows, columns) of one reading, the model's own token left out."""
    rows = len(part["numerical"])
    explained = wf.explain(
        model, part, processor=data.table, method=method, batch_size=rows, progress=False, **settings
    )
    where = [explained[0].units.labels.index(c) for c in seen]
    return np.stack([e.scores[where] for e in explained])


def _agreement(scores_RU: Array, evidence: dict[str, tuple[Array, Array]], rows: int) -> dict[str, float]:
    found = {}
    for name, (per_row, overall) in evidence.items():
        found[f"{name}, per row"] = float(np.nanmean(spearman(scores_RU, per_row[:rows])))
        found[f"{name}, global"] = float(spearman(scores_RU.mean(0)[None], overall[None])[0])
    return found


# Tables


def summary(results: list[dict[str, Any]], key: str) -> list[str]:
    """Return the means over data sets for one entry of AGAINST: one row per reading, one column per model."""
    own: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if "readings" in result:
            own.setdefault(result["model"], []).append(result)
    lines = [f"| {key} | {' | '.join(own)} |", "|---" * (len(own) + 1) + "|"]
    for reading in next(iter(own.values()))[0]["readings"]:
        cells = [_cell(_means(some, reading, key), 2) for some in own.values()]
        lines.append(f"| {reading} | {' | '.join(cells)} |")
    return lines


def qualities(results: list[dict[str, Any]]) -> list[str]:
    """Test accuracy or R² of every model on every data set."""
    models = list(dict.fromkeys(r["model"] for r in results))
    lines = [f"| test | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for name in dict.fromkeys(r["data"] for r in results):
        found = [
            [r["quality"] for r in results if (r["data"], r["model"]) == (name, m) and "quality" in r] for m in models
        ]
        cells = [_cell(each, 3) if each else "–" for each in found]
        lines.append(f"| {name}, {_measure(name)} | {' | '.join(cells)} |")
    return lines


def _means(own: list[dict[str, Any]], reading: str, key: str) -> list[float]:
    """The mean over data sets, for each seed that has all of them."""
    count = len({r["data"] for r in own})
    seeds = [s for s in dict.fromkeys(r["seed"] for r in own) if count == _tables_of(own, s)]
    return [
        float(np.mean([r["readings"][reading].get(key, np.nan) for r in own if r["seed"] == seed])) for seed in seeds
    ]


def _cell(values: list[float], digits: int) -> str:
    mean, half = interval(values)
    return "–" if np.isnan(mean) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def _measure(name: str) -> str:
    return "R²" if name == "california" else "accuracy"


def _tables_of(results: list[dict[str, Any]], seed: int) -> int:
    """How many data sets a seed was run on: of fewer than all, its mean would be of other tables than the rest's."""
    return len({r["data"] for r in results if r["seed"] == seed})


def tables(results: list[dict[str, Any]]) -> str:
    lines = [line for key in AGAINST for line in (*summary(results, key), "")] + qualities(results)
    for name in dict.fromkeys(r["data"] for r in results):
        for model in dict.fromkeys(r["model"] for r in results):
            own = [r for r in results if (r["data"], r["model"]) == (name, model)]
            if own:
                lines += ["", *_table(name, model, own)]
    lines += [
        "",
        "Published for FT-Transformer, against permutation, global (averaged attention / integrated gradients):",
    ]
    lines += [", ".join(f"{k} {a:.2f} / {b:.2f}" for k, (a, b) in PUBLISHED.items())]
    return "\n".join(lines)


def _table(name: str, model: str, own: list[dict[str, Any]]) -> list[str]:
    if "skipped" in own[0]:
        return [f"### {name}, {model}", "", f"Left out: {own[0]['skipped']}."]
    quality = _cell([r["quality"] for r in own], 3)
    lines = [f"### {name}, {model}", "", f"{len(own)} seeds, test {_measure(name)} {quality}", ""]
    lines += [f"| reading | {' | '.join(AGAINST)} |", "|---" * (len(AGAINST) + 1) + "|"]
    for reading in own[0]["readings"]:
        cells = [_cell([r["readings"][reading].get(key, float("nan")) for r in own], 2) for key in AGAINST]
        lines.append(f"| {reading} | {' | '.join(cells)} |")
    return lines


def parsed(arguments: Sequence[object] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the three .csv.gz files")
    parser.add_argument("--show", type=Path, help="print the tables of an earlier --out, and do nothing else")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=None, help="rows per table (default: all)")
    parser.add_argument("--explained", type=int, default=256, help="test rows that are explained (SAINT: a quarter)")
    parser.add_argument("--shuffled", type=int, default=4096, help="test rows for permutation")
    parser.add_argument("--repeats", type=int, default=5, help="shuffles per column")
    parser.add_argument("--steps", type=int, default=32, help="steps of integrated gradients")
    parser.add_argument("--evaluations", type=int, default=512, help="passes of SHAP per row (SAINT: a quarter)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--datasets", nargs="+", default=list(FILES))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=None, help="every number as JSON; what is there is not redone")
    options = parser.parse_args(None if arguments is None else [str(a) for a in arguments])
    if options.data is None and options.show is None:
        parser.error("--data FOLDER is needed")
    return options


def main() -> None:
    options = parsed()
    if options.show is not None:
        print(tables(json.loads(options.show.read_text(encoding="utf-8"))))
        return
    models = [m for m in options.models if not lacking(m)]
    for model in options.models:
        if model not in models:
            print(f"{model} is left out: it needs {' and '.join(lacking(model))} (pip install).", flush=True)
    results = _earlier(options.out)
    done = {(r["data"], r["model"], r["seed"]) for r in results}
    # the slowest first, so that no process is left with one at the end
    order = sorted(models, key=("SAINT", "FT-Transformer", "TabTransformer").index)
    wanted = [(d, m, s) for m in order for d in options.datasets for s in range(options.seeds)]
    jobs = [(*job, options) for job in wanted if job not in done]
    if done:
        print(f"{len(done)} jobs are in {options.out} already, {len(jobs)} are left.", flush=True)
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        finished: Iterator[dict[str, Any]] = map(_job, jobs)
        if options.processes > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options.processes))
            finished = pool.imap_unordered(_job, jobs)
        for result in finished:
            results.append(result)
            print(
                json.dumps({k: result.get(k) for k in ("data", "model", "seed", "quality", "seconds", "error")}),
                flush=True,
            )
            if options.out is not None:  # what is there already survives an interruption
                options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    results.sort(key=lambda r: (list(FILES).index(r["data"]), MODELS.index(r["model"]), r["seed"]))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(tables([r for r in results if "error" not in r]))
    print(f"\n{time.perf_counter() - started:.0f} s on {machine(options)}")


def lacking(model: str) -> list[str]:
    """Packages that a model of the study comes from and that are not installed."""
    return [name for name in NEEDS[model] if importlib.util.find_spec(name) is None]


def machine(options: argparse.Namespace) -> str:
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "the CPU"
    cores = f"{os.cpu_count()} cores, {options.processes} processes"
    return f"{device} ({cores}), torch {torch.__version__}, Python {platform.python_version()}"


def _earlier(path: Path | None) -> list[dict[str, Any]]:
    """What an earlier run has written; jobs that failed are done again."""
    if path is None or not path.exists():
        return []
    return [r for r in json.loads(path.read_text(encoding="utf-8")) if "error" not in r]


def _job(job: tuple[str, str, int, argparse.Namespace]) -> dict[str, Any]:
    try:
        return study(*job)
    except Exception as error:  # one job must not end the others; its error is in the table of results
        return {"data": job[0], "model": job[1], "seed": job[2], "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
