"""Agreement of an explanation with permutation importance: rank correlations over all rows, per class and per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from whyformer.errors import BadInput
from whyformer.evidence import DRAWS, LEVEL
from whyformer.results.codec import Float64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.table_marks import agreement_view
from whyformer.views.view import view_of

FEWEST = 3  # columns that can be ranked: two are in one of two orders


@dataclass(frozen=True, eq=False)
class Agreement(Result):
    """Spearman correlation of column scores with permutation importance (or scores passed), with a 95 % interval.

    Scores are means of absolute scores over rows. The interval draws rows, and repeats of the permutation, with
    replacement. ``classes`` compares the rows predicted as each class, ``per_row`` each row with the changes of its own
    prediction; a row without different scores has NaN.
    """

    what: ClassVar[str] = "agreement"
    axes: ClassVar[Mapping[str, str]] = {"labels": "U", "scores": "U", "importance": "U", "per_row": "R"}
    finite: ClassVar[tuple[str, ...]] = ("scores", "importance")

    labels: tuple[str, ...]
    scores: Float64
    importance: Float64  # the fall of the metric when the column is shuffled, or the scores passed
    spearman: float  # NaN where all scores, or all falls, are equal
    low: float  # NaN where neither rows nor repeats are known
    high: float
    method: str
    metric: str = ""  # of the permutation; "" where scores were passed
    classes: dict[str, float] = field(default_factory=dict)
    per_row: Float64 | None = None  # of rows whose predictions were recorded
    rows: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""

    def to_frame(self) -> DataFrame:
        """Return one row per column."""
        return dataframe({"column": self.labels, "score": self.scores, "importance": self.importance})


def rank_correlation(first_RU: Array, second_RU: Array) -> Array:
    """(R,) Spearman correlation of each row with the row of the other; ties share a rank; NaN where all are equal."""
    from scipy.stats import rankdata

    away = [ranks - ranks.mean(1, keepdims=True) for ranks in (rankdata(x, axis=1) for x in (first_RU, second_RU))]
    with np.errstate(invalid="ignore", divide="ignore"):
        return (away[0] * away[1]).sum(1) / np.sqrt((away[0] ** 2).sum(1) * (away[1] ** 2).sum(1))


class Ranked(NamedTuple):
    """Absolute scores of columns, without special tokens: of each row where they are known, and their mean."""

    labels: tuple[str, ...]
    scores_RU: Array  # (0, U) where only the mean is known
    mean_U: Array
    method: str
    predicted: Sequence[str] = ()  # class of each row


def ranked_rows(explanations: Any) -> Ranked:
    """Return what is compared of an explanation, or of a list of them."""
    rows = [explanations] if isinstance(explanations, Explanation) else explanations
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Explanation) for row in rows):
        raise BadInput(
            "agreement takes what wf.explain or wf.explain_global returned for one method: an explanation, a list of "
            f"them, or a GlobalExplanation, not a {type(explanations).__name__}."
        )
    first = rows[0]
    if any(row.units.labels != first.units.labels for row in rows):
        raise BadInput("the rows have different units: agreement is for tables, whose columns stay the same.")
    plain = [i for i, special in enumerate(first.units.special) if not special]
    scores_RU = np.stack([np.abs(row.scores[plain]).astype(float) for row in rows])
    predicted = [row.prediction.label or str(row.prediction.index) for row in rows]
    return Ranked(tuple(first.units.labels[i] for i in plain), scores_RU, scores_RU.mean(0), first.method, predicted)


def agreement_of(
    ranked: Ranked, labels: Sequence[str], drops_UK: Array, changes_RU: Array | None, rows: int, seed: int, **facts: Any
) -> Agreement:
    """Compare scores with the falls of a metric (columns, repeats) and the changes of single predictions.

    rows: that were shuffled; per row, only scores of as many rows are compared. facts: fields of the result.
    """
    common = [label for label in labels if label in ranked.labels]
    if len(common) < FEWEST:
        raise BadInput(
            f"the explanation and the permutation have {len(common)} columns in common: at least {FEWEST} are needed. "
            "Pass groups= to feature_permutation if columns were explained in groups."
        )
    ours, theirs = [ranked.labels.index(c) for c in common], [list(labels).index(c) for c in common]
    scores_RU, mean_U, drops_UK = ranked.scores_RU[:, ours], ranked.mean_U[ours], drops_UK[theirs]
    low, high = _interval(scores_RU, mean_U, drops_UK, seed)
    left_out = [label for label in (*labels, *ranked.labels) if label not in common]
    warnings = [f"columns in only one of the two are left out: {', '.join(left_out)}."] if left_out else []
    per_row, classes = None, {}
    if changes_RU is not None and len(scores_RU) == rows > 1:
        changes_RU = changes_RU[:, theirs].astype(float)
        per_row = rank_correlation(scores_RU[: len(changes_RU)], changes_RU)
        predicted = np.array(ranked.predicted[: len(changes_RU)])
        for name in dict.fromkeys(predicted.tolist()):
            of_class = (x[np.flatnonzero(predicted == name)].mean(0)[None] for x in (scores_RU, changes_RU))
            classes[name] = float(rank_correlation(*of_class)[0])
    return Agreement(
        labels=tuple(common),
        scores=mean_U,
        importance=drops_UK.mean(1),
        spearman=float(rank_correlation(mean_U[None], drops_UK.mean(1)[None])[0]),
        low=low,
        high=high,
        method=ranked.method,
        classes=classes,
        per_row=per_row,
        rows=len(scores_RU),
        warnings=tuple(warnings),
        **facts,
    )


def _interval(scores_RU: Array, mean_U: Array, drops_UK: Array, seed: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the correlation (percentile bootstrap over rows and over repeats)."""
    rows, repeats = len(scores_RU), drops_UK.shape[1]
    if max(rows, repeats) < 2:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    scores_DU = np.repeat(mean_U[None], DRAWS, 0)
    if rows > 1:
        scores_DU = generator.multinomial(rows, np.full(rows, 1 / rows), size=DRAWS) @ scores_RU / rows
    drops_DU = generator.multinomial(repeats, np.full(repeats, 1 / repeats), size=DRAWS) @ drops_UK.T / repeats
    drawn = rank_correlation(scores_DU, drops_DU)
    drawn = drawn[~np.isnan(drawn)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]) if len(drawn) else (np.nan, np.nan)
    return float(low), float(high)


view_of.register(Agreement, agreement_view)
