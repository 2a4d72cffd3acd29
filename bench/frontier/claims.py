"""Tables in markdown, and what is held of the rows, each with its figures and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bench.frontier.contenders import FEW, REFERENCE
from bench.frontier.subject import BETTER, FALLS, Array, Row
from whyformer.evidence import spread

Holds = Callable[[Array, Array], Array]


# The methods of one pass that came first on some set of inputs.
ONE_PASS = ("generic_attention", "value_x_gradient", "attn_lrp", "cp_lrp", "decompx", "alti")
NOTHING = 5e-4  # what a table rounds to zero is no difference, however sure


def above(low: Array, high: Array) -> Array:
    return low > NOTHING


def not_below(low: Array, high: Array) -> Array:
    return high >= -NOTHING


CLAIMS: tuple[tuple[str, str, Holds, str], ...] = (
    *(("auto", name, not_below, "is not behind") for name in ONE_PASS),
    ("two_ended", "occlusion", above, "is above"),
    ("two_ended", "integrated_gradients", above, "is above"),
    ("shap 64, guided", "shap 64, regression", above, "is above"),
    ("shap 64, guided", "shap 128", not_below, "is level with"),
    ("shap 64, guided", "shap 128, regression", not_below, "is level with"),
    ("integrated_gradients", "integrated_gradients, [PAD]", above, "is above"),
    ("integrated_gradients", "integrated_gradients, [CLS] stays", not_below, "is level with"),
    ("two ends by gradient", "two_ended", not_below, "is level with"),
)


def table(rows: Sequence[Row]) -> list[str]:
    """Means with 95 % limits."""
    marks = {measure: "↑" if sign > 0 else "↓" for measure, sign in BETTER.items()}
    heads = ["scores", "forwards + backwards", *(f"{m} {marks[m]}" for m in rows[0].measures)]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        mean, low, high = spread(row.values_IM)
        said = [f"{m:.3f} ({a:.3f} to {b:.3f})" for m, a, b in zip(mean, low, high, strict=True)]
        passes = f"{row.forwards:.3g}" + (f" + {row.backwards:.3g}" if row.backwards else "")
        lines.append(f"| {row.name} | {passes} | {' | '.join(said)} |")
    return lines


def difference(one: Row, other: Row) -> tuple[Array, Array, Array]:
    """How much better the one is than the other, in comprehensiveness and sufficiency; above zero is better in both."""
    signs = [BETTER[measure] for measure in FALLS]
    return spread((one.part(len(FALLS)) - other.part(len(FALLS))) * signs)


def said(one: Row, other: Row) -> list[str]:
    return [f"{m:+.3f} ({a:+.3f} to {b:+.3f})" for m, a, b in zip(*difference(one, other), strict=True)]


def claims(rows: dict[str, Row]) -> list[tuple[str, bool]]:
    result = []
    for one, other, holds, words in CLAIMS:
        if one in rows and other in rows:
            _, low, high = difference(rows[one], rows[other])
            figures = ", ".join(f"{m} {f}" for m, f in zip(FALLS, said(rows[one], rows[other]), strict=True))
            result.append((f"{one} {words} {other}: {figures}", bool(holds(low, high).all())))
    return result


def ahead_of_reference(rows: dict[str, Row]) -> list[str]:
    """Every method of one pass against the one that all of them are compared with: is it ahead in both?"""
    if REFERENCE not in rows:
        return []
    lines = [f"| against {REFERENCE} | {' | '.join(FALLS)} | |", "|---" * (len(FALLS) + 2) + "|"]
    others = [r for n, r in rows.items() if n not in (REFERENCE, "random") and max(r.forwards, r.backwards) <= FEW]
    for row in sorted(others, key=lambda row: -difference(row, rows[REFERENCE])[0].sum()):
        _, low, high = difference(row, rows[REFERENCE])
        lines.append(f"| {row.name} | {' | '.join(said(row, rows[REFERENCE]))} | {verdict(low, high)} |")
    return lines


def learned_over(rows: dict[str, Row]) -> list[str]:
    """Every learned row against the best that need no learning, paired."""
    others = [name for name in ("attn_lrp", "two_ended", "shap 64, guided") if name in rows]
    lines = []
    for row in (row for name, row in rows.items() if "learned" in name):
        for other in others:
            _, low, high = difference(row, rows[other])
            figures = ", ".join(f"{m} {f}" for m, f in zip(FALLS, said(row, rows[other]), strict=True))
            lines.append(f"{row.name} over {other}: {figures}: {verdict(low, high)}")
    return lines


def verdict(low: Array, high: Array) -> str:
    ahead, behind = above(low, high), ~not_below(low, high)
    if ahead.all() or behind.all():
        return "ahead in both" if ahead.all() else "behind in both"
    words = [f"ahead in {m}" if a else f"behind in {m}" for m, a, b in zip(FALLS, ahead, behind, strict=True) if a or b]
    return ", ".join(words) or "level"


def from_saved(saved: Iterable[dict[str, object]]) -> dict[str, Row]:
    """Rows as ``--out`` wrote them."""
    rows = {}
    for entry in saved:
        measures = tuple(str(m) for m in np.atleast_1d(np.asarray(entry["measures"])))
        forwards, backwards = float(str(entry["forwards"])), float(str(entry["backwards"]))
        name = str(entry["name"])
        rows[name] = Row(name, forwards, backwards, np.asarray(entry["values"], dtype=float), measures)
    return rows
