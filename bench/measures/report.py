"""The tables of bench/measures, from rows of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measures.eraser import iou_f1
from bench.measures.games import PAIR
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
    """Mean and standard deviation over seeds of each unit's metric, by method."""
    units = list(dict.fromkeys(row["unit"] for row in rows))
    values = {(row["by"], row["method"], row["unit"]): row["values"] for row in rows}
    lines = []
    for by, method in dict.fromkeys(key[:2] for key in values):
        found = [values[by, method, unit] for unit in units]
        lines.append([f"{by}: {method}", *(f"{np.mean(one):.3f}±{np.std(one, ddof=1):.3f}" for one in found)])
    return table(["method", *(NAMES[unit] for unit in units)], lines)


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
    return "\n\n".join([table(head, lines), *right])


def reviews_table(rows: list[Row]) -> str:
    """AUC against marked words, by length and method."""
    lines = []
    for row in rows:
        if "values" in row:
            cells = [
                bounded(row["values"][key]) if key in row["values"] else "" for key in ("person", "consensus", "union")
            ]
            lines.append([str(row["words"]), str(len(row["values"]["person"])), row["method"], *cells])
    return table(["words", "reviews", "method", "AUC, one person", "AUC, consensus", "AUC, union"], lines)


def games_table(rows: list[Row]) -> str:
    """Relative errors against exact values, by game and estimator: of features at several budgets, and of pairs."""
    single, pairs = ([row for row in rows if (row["index"] == PAIR) == two] for two in (False, True))
    budgets = sorted({row["budget"] for row in single})
    means = {(row["game"], row["by"], row["method"], row["budget"]): np.mean(row["errors"]) for row in single}
    lines = []
    for game, by, method in dict.fromkeys(key[:3] for key in means):
        cells = [f"{means[key]:.3f}" if (key := (game, by, method, budget)) in means else "" for budget in budgets]
        lines.append([game, f"{by}: {method}", *cells])
    tables = [table(["game", "Shapley values by", *map(str, budgets)], lines)] if single else []
    games = list(dict.fromkeys(row["game"] for row in pairs))
    lines = []
    for by, method in dict.fromkeys((row["by"], row["method"]) for row in pairs):
        chosen = {row["game"]: np.mean(row["errors"]) for row in pairs if (row["by"], row["method"]) == (by, method)}
        lines.append([f"{by}: {method}", *(f"{chosen[game]:.3f}" for game in games)])
    counts = {row["game"]: row["budget"] for row in pairs}
    tables += [table(["pairs by", *(f"{game} ({counts[game]})" for game in games)], lines)] if pairs else []
    return "\n\n".join(tables)


def report(rows: list[Row]) -> str:
    """Return the tables of all parts that have rows."""
    tables = {
        "xai_units": units_table,
        "hatexplain": posts_table,
        "yelp_hat": reviews_table,
        "shapiq_games": games_table,
    }
    found = {part: [row for row in rows if row["part"] == part] for part in tables}
    return "\n\n".join(tables[part](some) for part, some in found.items() if some)
