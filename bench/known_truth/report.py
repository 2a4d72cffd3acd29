"""Tables of known truth, in markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.known_truth.scoring import COST_CLASSES, Found
from whyformer.evidence import spread

HEADS = {"auroc": "AUROC", "mass": "mass", "pointing": "pointing"}
NO_CHOICE = {"random"}  # the floor


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean over inputs with its 95 % bootstrap limits."""
    mean, low, high = spread(np.asarray(values, dtype=float)[:, None])
    return {"mean": float(mean[0]), "low": float(low[0]), "high": float(high[0])}


def pooled(found: Sequence[Found]) -> dict[str, list[float]]:
    """The inputs of several models (or tasks) together."""
    return {k: [v for f in found for v in f.values[k]] for k in found[0].values if all(k in f.values for f in found)}


def evenly(parts: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and limits over several models or tasks, each of which weighs the same however many inputs it has.

    Deviations are stretched so that the bootstrap of all inputs together has the variance of a stratified one.
    """
    means = [float(np.mean(p)) for p in parts]
    count = sum(map(len, parts))
    stretched = [
        np.mean(means) + (np.asarray(p, dtype=float) - m) * count / (len(parts) * len(p))
        for p, m in zip(parts, means, strict=True)
    ]
    return interval(np.concatenate(stretched).tolist())


def summary(runs: Sequence[dict[str, Found]]) -> dict[str, dict[str, Any]]:
    """Per method: mean and limits of each measure over the inputs of all models, cost, AUROC per model."""
    result: dict[str, dict[str, Any]] = {}
    for name in runs[0]:
        own = [run[name] for run in runs]
        refused = [f.not_offered for f in own if f.not_offered]
        if refused:
            result[name] = {"not_offered": refused[0]}
            continue
        result[name] = {k: interval(v) for k, v in pooled(own).items()} | {
            "forwards": float(np.mean([f.forwards for f in own])),
            "backwards": float(np.mean([f.backwards for f in own])),
            "seconds": float(np.mean([f.seconds for f in own])),
            "cost_class": own[0].cost_class,
            "auroc_per_model": [float(np.mean(f.values["auroc"])) for f in own],
        }
    return result


def shown(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def passes(row: dict[str, Any]) -> str:
    forwards, backwards = (f"{row[k]:.0f}" if row[k] >= 10 else f"{row[k]:.3g}" for k in ("forwards", "backwards"))
    return forwards if backwards == "0" else f"{forwards} + {backwards}"


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """One task: methods from the highest AUROC down, then those that are not offered."""
    offered = {n: row for n, row in found.items() if "not_offered" not in row}
    measures = [m for m in HEADS if any(m in row for row in offered.values())]
    several = max(len(row["auroc_per_model"]) for row in offered.values()) > 1
    heads = ["method", "passes", *(HEADS[m] for m in measures), *(["AUROC per model"] if several else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, row in sorted(offered.items(), key=lambda item: -item[1]["auroc"]["mean"]):
        cells = [name, passes(row), *(shown(row.get(m)) for m in measures)]
        if several:
            cells.append(" ".join(f"{v:.2f}" for v in row["auroc_per_model"]))
        lines.append("| " + " | ".join(cells) + " |")
    refused = {n: row["not_offered"] for n, row in found.items() if "not_offered" in row}
    if refused:
        lines += ["", "Not offered: " + "; ".join(f"{n} ({why.split('.')[0]})" for n, why in refused.items()) + "."]
    return lines


def best(per_task: Mapping[str, Sequence[dict[str, Found]]], modality_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """Per modality and cost class: methods by AUROC over all tasks and models of the modality."""
    rows = []
    for modality in dict.fromkeys(modality_of[t] for t in per_task):
        runs = [run for task, own in per_task.items() if modality_of[task] == modality for run in own]
        for cost_class in COST_CLASSES:
            ranked = []
            for name in runs[0]:
                own = [run[name] for run in runs]
                if name in NO_CHOICE or any(f.not_offered for f in own) or own[0].cost_class != cost_class:
                    continue
                ranked.append((name, evenly([f.values["auroc"] for f in own])))
            ranked.sort(key=lambda item: -item[1]["mean"])
            if ranked:
                name, value = ranked[0]
                level = [n for n, v in ranked[1:] if v["high"] >= value["low"]]
                rows.append(
                    {"modality": modality, "cost_class": cost_class, "best": name, "auroc": value, "level_with": level}
                )
    return rows


def best_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| modality | cost | best by AUROC | AUROC | intervals overlap with |", "|---|---|---|---|---|"]
    for row in rows:
        others = ", ".join(row["level_with"]) or "none"
        lines.append(f"| {row['modality']} | {row['cost_class']} | {row['best']} | {shown(row['auroc'])} | {others} |")
    return lines


def overall_table(summaries: Mapping[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Methods that every task offers: mean AUROC over tasks, and the task on which it is worst."""
    rows = []
    for name in next(iter(summaries.values()), {}):
        own = {task: found[name] for task, found in summaries.items()}
        if any("not_offered" in row for row in own.values()):
            continue
        scores = {task: row["auroc"]["mean"] for task, row in own.items()}
        worst = min(scores, key=lambda task: scores[task])
        rows.append((name, next(iter(own.values()))["cost_class"], float(np.mean([*scores.values()])), worst, scores))
    lines = ["| method | cost | AUROC, mean of tasks | worst |", "|---" * 4 + "|"]
    for name, cost_class, mean, worst, scores in sorted(rows, key=lambda row: -row[2]):
        lines.append(f"| {name} | {cost_class} | {mean:.2f} | {scores[worst]:.2f} ({worst}) |")
    return lines


def gate_table(gates: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Per task and model: is the cause used, and nothing else?"""
    lines = [
        "| task | model | right | changing the cause flips | changing distractors flips | gate |",
        "|---" * 6 + "|",
    ]
    for task, own in gates.items():
        for g in own:
            flips = ", ".join(f"{part} {share:.1%}" for part, share in g["flipped"].items())
            lines.append(
                f"| {task} | {g['seed']} ({g['steps']} steps) | {g['right']:.1%} | {flips} | {g['disturbed']:.2%} "
                f"| {'passed' if g['passed'] else 'NOT PASSED'} |"
            )
    return lines
