"""How many heads does the shipped sentiment model need? Accuracy against heads kept, by the order in which they go.

    python -m bench.heads_pruning --data SST

SST holds train.tsv and dev.tsv, one "sentence<TAB>label" per line. Orders and gates are found on a part of train and
measured on dev. Prints a table; ``--plot FILE`` draws the curves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.timing import machine
from whyformer.demo import load_sentiment
from whyformer.heads import PruningCurve, gate_curve, head_importance, pruning_curve
from whyformer.heads.importance import normalized

POINTS = 5
PENALTIES = (0.01, 0.05, 0.2)


def sentences(path: Path, count: int | None = None, seed: int = 0) -> tuple[list[str], list[int]]:
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    chosen = range(len(rows))
    if count is not None:
        chosen = np.random.default_rng(seed).permutation(len(rows))[:count].tolist()
    return [rows[i][0] for i in chosen], [int(rows[i][1]) for i in chosen]


def row(name: str, values: Iterable[float], form: str = "{:.3f}") -> None:
    print(f"| {name} | " + " | ".join(form.format(v) for v in values) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--train", type=int, default=512, help="training sentences that orders and gates are found on")
    parser.add_argument("--steps", type=int, default=150, help="training steps of the gates")
    parser.add_argument("--plot", type=Path, help="draw the curves")
    arguments = parser.parse_args()
    started = time.perf_counter()
    model, tokenizer = load_sentiment()
    train, labels = sentences(arguments.data / "train.tsv", arguments.train)
    dev, truth = sentences(arguments.data / "dev.tsv")
    how = {"processor": tokenizer, "batch_size": 64, "progress": False}
    by_loss = {"labels": labels, "scalar": "loss"}
    gradient = head_importance(model, train, **by_loss, **how)
    first = {"labels": labels[:128], "scalar": "loss"}
    orders: dict[str, object] = {
        "gradient of the loss": gradient,
        "the same, L2 per layer": normalized(gradient.scores, "l2"),
        "ablation, loss": head_importance(model, train[:128], kind="ablation", **first, **how),
        "relevance (LRP)": head_importance(model, train, kind="relevance", **how),
        "confidence": head_importance(model, train, kind="confidence", **how),
        "random (mean of 3)": "random",
    }
    curves: dict[str, PruningCurve] = {}
    for name, order in orders.items():
        seeds = range(3) if isinstance(order, str) else range(1)
        found = [pruning_curve(model, dev, truth, order=order, points=POINTS, seed=seed, **how) for seed in seeds]
        if not curves:
            row("heads kept", found[0].kept, "{:.0f}")
            print("|---" * (POINTS + 1) + "|")
        values, low, high = (np.mean([getattr(c, part) for c in found], 0) for part in ("values", "low", "high"))
        curves[name] = replace(found[0], name=name, values=values, low=low, high=high)
        row(name, values)
    whole = curves["gradient of the loss"]
    limits = f"{whole.low[0]:.3f} to {whole.high[0]:.3f}"
    print(f"\n{len(dev)} dev sentences; 95 % limits of the whole model: {limits}")
    how["batch_size"] = 32
    gates = gate_curve(model, train, labels, test=(dev, truth), penalties=PENALTIES, steps=arguments.steps, **how)
    print()
    row("learned gates: heads kept", gates.kept, "{:.0f}")
    print("|---" * (len(gates.kept) + 1) + "|")
    row("accuracy", gates.values)
    print(f"\n{time.perf_counter() - started:.0f} s; {machine()}")
    if arguments.plot:
        whole.save(arguments.plot, beside=[*list(curves.values())[1:], gates])


if __name__ == "__main__":
    main()
