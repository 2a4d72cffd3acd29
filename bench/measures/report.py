"""The tables of bench/measures, from rows of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measures.eraser import iou_f1
from whyformer.evidence import interval
from whyformer.shapes import Array

Row = dict[str, Any]
# Table 5 of Mathew et al. 2021 (arXiv:2012.10289): a BERT-base whose attention was trained on rationales
PUBLISHED = {
    "published: attention of BERT-HateXplain": (0.120, 0.411, 0.626, 0.424, 0.160),
    "published: LIME of BERT-HateXplain": (0.112, 0.452, 0.722, 0.500, 0.004),
}
NAMES = {"WeightedFeatures": "weighted", "InteractingFeature": "interacting", "UncertaintyAware": "uncertain",
         "ShatteredGradients": "shattered", "PertinentNegatives": "negatives", "BooleanAnd": "AND",
         "BooleanOr": "OR", "Conflicting": "conflicting"}  # fmt: skip


def table(head: list[str], lines: list[list[str]]) -> str:
    """Return a table of Markdown, narrow enough for a terminal."""
    return "\n".join("|" + "|".join(line) + "|" for line in (head, ["---"] * len(head), *lines))


def bounded(values: Any, after: Callable[[Array], Array] | None = None) -> str:
    """Return the mean and half of the width of its 95 % confidence interval over inputs; nan is left out."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known.reshape(len(known), -1)).any(1)]
    low, high = interval(known, after=after)
    mean = known.mean(0) if after is None else after(known.mean(0))
    return f"{float(mean):.3f}±{float(high - low) / 2:.3f}"


def units_table(rows: list[Row]) -> str:
    """Mean and standard deviation over seeds of each unit's metric, for models by hand and trained."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.get("model", "method"), []).append(row)
    return "\n\n".join(unit_group(head, some) for head, some in groups.items())


def unit_group(head: str, rows: list[Row]) -> str:
    """One table: a row per method, a column per unit."""
    units = list(dict.fromkeys(row["unit"] for row in rows))
    values = {(row["by"], row["method"], row["unit"]): row["values"] for row in rows}
    lines = []
    for by, method in dict.fromkeys(key[:2] for key in values):
        found = [values[by, method, unit] for unit in units]
        lines.append([f"{by}: {method}", *(f"{np.mean(one):.3f}±{np.std(one, ddof=1):.3f}" for one in found)])
    return table([head, *(NAMES[unit] for unit in units)], lines)


def posts_table(rows: list[Row]) -> str:
    """ERASER metrics by method, beside the published ones; accuracy of the model below."""
    lines = []
    for row in rows:
        if "values" in row:
            values = row["values"]
            parts = np.stack([values["iou_precision"], values["iou_recall"]], 1)
            cells = [bounded(parts, after=lambda mean: np.array(iou_f1(mean[None])))]
            cells += [bounded(values[key]) for key in ("token_f1", "auprc", "comprehensiveness", "sufficiency")]
            lines.append([row["method"], *cells])
    lines += [[name, *(f"{value:.3f}" for value in values)] for name, values in PUBLISHED.items()]
    head = ["method", "IOU F1 ↑", "token F1 ↑", "AUPRC ↑", "comprehensiveness ↑", "sufficiency ↓"]
    right = [f"accuracy {row['accuracy']:.3f} on {row['tested']} posts" for row in rows if "accuracy" in row]
    values = {row["method"]: row["values"] for row in rows if "values" in row}
    pairs = []
    if {"raw_attention", "attn_lrp"} <= values.keys():
        for name in ("auprc", "comprehensiveness"):
            difference = bounded(np.subtract(values["raw_attention"][name], values["attn_lrp"][name]))
            pairs.append(f"raw_attention minus attn_lrp, {name}: {difference}")
    return "\n\n".join([table(head, lines), *right, *pairs])


def report(rows: list[Row]) -> str:
    """Return the tables of all parts that have rows."""
    tables = {
        "xai_units": units_table,
        "hatexplain": posts_table,
    }
    found = {part: [row for row in rows if row["part"] == part] for part in tables}
    return "\n\n".join(tables[part](some) for part, some in found.items() if some)
