"""Do the scores of one forward and one backward agree with Shapley values, on a model that learns in context?

``python -m bench.in_context --device cuda --out FOLDER`` trains a small model of alternating attention (columns of a
row, rows of a column) on made-up tasks, explains one row of each of some new tasks, and compares:

columns: with the exact Shapley values of the row's columns, where an absent column holds what each training row has
there (mean over all of them);
training rows: with their Shapley values (sampled orders and their reverses), an absent row being left out of the
context, and with leaving out one row at a time.

Printed are means over tasks of the rank correlation with 95 % intervals, signed scores with signed values, and sizes
with sizes. ``--show FILE …`` prints the tables of earlier runs, together; ``--weights FILE`` explains without training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.in_context_model import COLUMNS, InContext, tasks, trained
from bench.ranks import interval, spearman
from whyformer.tables import explain_in_context

Array = np.ndarray[Any, Any]
BATCH = 4096  # rows that are asked about at once


def logit_gap(logits: Tensor, target: int) -> Tensor:
    """The target's logit less the other's."""
    return logits[..., target] - logits[..., 1 - target]


@torch.no_grad()
def column_values(model: InContext, x: Tensor, y: Tensor, row: Tensor, target: int) -> Array:
    """(U,) exact Shapley values: 2^U sets of columns, each filled up from every training row."""
    columns, known = x.shape[1], len(x)
    present = torch.tensor(list(itertools.product([False, True], repeat=columns)), device=x.device)
    filled = torch.where(present[:, None], row, x[None]).flatten(0, 1)
    parts = [model(x[None], y[None], part[None])[0] for part in filled.split(BATCH)]
    worth = logit_gap(torch.cat(parts), target).view(-1, known).mean(1).double().cpu().numpy()
    sets = present.cpu().numpy()
    values = np.zeros(columns)
    for column in range(columns):
        without = np.flatnonzero(~sets[:, column])
        beside = without + 2 ** (columns - 1 - column)  # the same set with the column, as product() counts
        sizes = sets[without].sum(1)
        weights = [math.factorial(s) * math.factorial(columns - 1 - s) / math.factorial(columns) for s in sizes]
        values[column] = float(np.dot(weights, worth[beside] - worth[without]))
    return values


@torch.no_grad()
def row_values(
    model: InContext, x: Tensor, y: Tensor, row: Tensor, target: int, orders: int, seed: int
) -> tuple[Array, Array]:
    """(2, R) Shapley values of training rows by sampled orders, each half of the orders by itself; (R,) leave-one-out.

    Without any training row the two classes are alike: the worth of nothing is 0.
    """
    known = len(x)
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.permutation(known) for _ in range(orders // 2)])
    drawn = np.concatenate([drawn, drawn[:, ::-1]])  # each with its reverse
    drawn = drawn.reshape(2, orders // 2, known).transpose(1, 0, 2).reshape(orders, known)  # side by side
    worth = np.zeros((orders, known + 1))
    for size in range(1, known + 1):
        members = torch.as_tensor(np.sort(drawn[:, :size], 1), device=x.device)
        logits = model(x[members], y[members], row.expand(orders, 1, -1))[:, 0]
        worth[:, size] = logit_gap(logits, target).double().cpu().numpy()
    gains = np.zeros((orders, known))
    np.put_along_axis(gains, drawn, np.diff(worth, axis=1), 1)
    halves = gains.reshape(2, orders // 2, known).mean(1)
    others = torch.tensor([[j for j in range(known) if j != i] for i in range(known)], device=x.device)
    logits = model(x[others], y[others], row.expand(known, 1, -1))[:, 0]
    whole = logit_gap(model(x[None], y[None], row[None, None])[0, 0], target)
    return halves, (whole - logit_gap(logits, target)).cpu().numpy()


def one_pass(model: InContext, x: Tensor, y: Tensor, row: Tensor, target: int) -> dict[str, dict[str, Array]]:
    """Scores of columns and of training rows by each method."""

    def explained(**how: Any) -> Any:
        given = {"context": x.cpu().numpy(), "answers": y.cpu().numpy(), "target": (target, 1 - target)}
        return explain_in_context(model, row[None].cpu().numpy(), progress=False, **given, **how)[0]

    weight, cells = explained(), explained(rows="cells")
    zero, attention = explained(baseline="zero"), explained(method="generic_attention")
    chance = np.random.default_rng(int(abs(float(row[0])) * 1e6))
    return {
        "columns": {
            "(input − mean) × gradient": weight.scores,
            "input × gradient": zero.scores,
            "generic attention": attention.scores,
            "random": chance.normal(size=len(weight.scores)),
        },
        "rows": {
            "weight gradient": weight.row_scores,
            "(cells − mean) × gradient, sum": cells.row_scores,
            "size of (cells − mean) × gradient": np.abs(weight.cells).sum(1),
            "generic attention": attention.row_scores,
            "random": chance.normal(size=len(weight.row_scores)),
        },
    }


def measured(model: InContext, options: argparse.Namespace, until: float) -> list[dict[str, Any]]:
    """One entry per task: every score beside its reference; the clock may say that it is enough."""
    generator = torch.Generator(options.device).manual_seed(10_000 + options.seed)
    drawn_x, drawn_y = tasks(options.tasks, options.known + 1, generator, options.device)
    results = []
    for number, (x, y) in enumerate(zip(drawn_x, drawn_y, strict=True)):
        if time.perf_counter() > until and len(results) > 1:
            break
        known, told, row = x[:-1], y[:-1], x[-1]
        with torch.no_grad():
            target = int(model(known[None], told[None], row[None, None])[0, 0].argmax())
        started = time.perf_counter()
        scores = one_pass(model, known, told, row, target)
        seconds = time.perf_counter() - started
        columns = column_values(model, known, told, row, target)
        halves, left_out = row_values(model, known, told, row, target, options.orders, number)
        result: dict[str, Any] = {"task": "tree" if number % 2 else "linear", "four_explanations_s": seconds}
        references = {"columns": {"Shapley": columns}, "rows": {"Shapley": halves.mean(0), "leave-one-out": left_out}}
        scores["rows"]["leave-one-out (as many passes as rows)"] = left_out
        for part, by_name in scores.items():
            result[part] = {n: _agreement(s, references[part]) for n, s in by_name.items()}
        result["halves"] = _agreement(halves[0], {"Shapley": halves[1]})
        results.append(result)
    return results


def _agreement(scores: Array, references: dict[str, Array]) -> dict[str, float]:
    made = {}
    for name, values in references.items():
        made[f"{name}, signed"] = float(spearman(scores[None], values[None])[0])
        made[f"{name}, size"] = float(spearman(np.abs(scores)[None], np.abs(values)[None])[0])
        made[f"{name}, first"] = float(np.abs(scores).argmax() == np.abs(values).argmax())
    return made


@torch.no_grad()
def accuracies(model: InContext, options: argparse.Namespace) -> dict[str, list[float]]:
    """Per task, of 32 new rows: the model, the nearest training row, and a linear fit to the training rows."""
    generator = torch.Generator(options.device).manual_seed(20_000 + options.seed)
    x, y = tasks(512, options.known + 32, generator, options.device)
    known, told, asked, truth = (
        x[:, : options.known],
        y[:, : options.known],
        x[:, options.known :],
        y[:, options.known :],
    )
    ours = model(known, told, asked).argmax(-1)
    nearest = told.gather(1, torch.cdist(asked, known).argmin(-1))
    design, goal = torch.cat([known, torch.ones_like(known[..., :1])], -1), (2.0 * told - 1)[..., None]
    normal = design.mT @ design + torch.eye(COLUMNS + 1, device=x.device)
    fit = torch.linalg.solve(normal, design.mT @ goal)
    linear = ((torch.cat([asked, torch.ones_like(asked[..., :1])], -1) @ fit)[..., 0] > 0).long()
    return {
        name: (guess == truth).float().mean(1).tolist()
        for name, guess in (("model", ours), ("nearest training row", nearest), ("ridge regression", linear))
    }


def tables(run: dict[str, Any]) -> str:
    lines = ["| accuracy on new rows of new tasks | |", "|---|---|"]
    for name, values in run["accuracy"].items():
        lines.append(f"| {name} | {_cell(values)} |")
    for part, title in (("columns", "columns of the row"), ("rows", "training rows")):
        results = run["results"]
        keys = list(next(iter(results[0][part].values())))
        lines += ["", f"| {title} | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
        for name in results[0][part]:
            cells = [_cell([r[part][name][key] for r in results]) for key in keys]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        if part == "rows":
            halves = [_cell([r["halves"][key] for r in results]) for key in keys[:3]]
            lines.append(f"| one half of the sampled orders, with the other | {' | '.join(halves)} |" + " – |" * 3)
    for kind in ("linear", "tree"):
        chosen = [r for r in run["results"] if r["task"] == kind]
        for part in ("columns", "rows"):
            first = next(iter(chosen[0][part]))
            agreement = _cell([r[part][first]["Shapley, signed"] for r in chosen])
            lines.append(f"\n{kind} tasks, {part}, {first}: Shapley, signed {agreement}")
    lines.append(f"\n{run['machine']}")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def parsed(arguments: Sequence[object] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=16_000, help="of training")
    parser.add_argument("--batch", type=int, default=64, help="tasks per step")
    parser.add_argument("--minutes", type=float, default=60, help="after which no further task is explained")
    parser.add_argument("--tasks", type=int, default=200, help="explained, one row each")
    parser.add_argument("--known", type=int, default=32, help="training rows of an explained task")
    parser.add_argument("--orders", type=int, default=256, help="of joining, for Shapley values of rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help="of an earlier run: nothing is trained")
    parser.add_argument("--out", type=Path, help="folder for in_context.json, in_context.pt and the printed tables")
    parser.add_argument(
        "--show", type=Path, nargs="+", help="in_context.json of earlier runs: print their tables together"
    )
    return parser.parse_args(None if arguments is None else [str(a) for a in arguments])


def run(options: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    if options.weights is not None:
        model = InContext().to(options.device)
        model.load_state_dict(torch.load(options.weights, map_location=options.device, weights_only=True))
        model.eval()
    else:
        model = trained(options.steps, options.seed, options.device, options.batch)
    trained_s = time.perf_counter() - started
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), options.out / "in_context.pt")
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    made: dict[str, Any] = {"accuracy": accuracies(model, options)}
    made |= {"results": measured(model, options, started + 60 * options.minutes)}
    asked = {k: v for k, v in vars(options).items() if isinstance(v, (int, str))} | {"explained": len(made["results"])}
    whole = time.perf_counter() - started
    made["machine"] = (
        f"{device}, torch {torch.__version__}, Python {platform.python_version()}: trained in {trained_s:.0f} s, all "
        f"in {whole:.0f} s ({', '.join(f'{k} {v}' for k, v in asked.items())})"
    )
    return made


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The tasks of several runs (seeds) as one."""
    names = runs[0]["accuracy"]
    return {
        "accuracy": {name: [value for run in runs for value in run["accuracy"][name]] for name in names},
        "results": [result for run in runs for result in run["results"]],
        "machine": "\n\n".join(run["machine"] for run in runs),
    }


def main() -> None:
    options = parsed()
    shown = [json.loads(path.read_text(encoding="utf-8")) for path in options.show or []]
    made = merged(shown) if shown else run(options)
    printed = tables(made)
    print(printed)
    if options.out is not None and not options.show:
        (options.out / "in_context.json").write_text(json.dumps(made), encoding="utf-8")
        (options.out / "in_context.md").write_text(printed + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
