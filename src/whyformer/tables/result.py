"""What is known about columns over many rows: frozen, saved and reloaded without the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from whyformer.result import Float64, Result, dataframe
from whyformer.views.table import global_view, permutation_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class GlobalExplanation(Result):
    """Scores of many rows, averaged per column, with 95 % limits of the mean.

    Columns that no unit stands for (a TabTransformer's numbers) are in ``unseen``, not among the scores. ``mean_size``
    is the mean of absolute scores, the usual summary of signed ones. ``samples`` are the scores of some rows, drawn
    evenly, with the values that stood there, for pictures.
    """

    what: ClassVar[str] = "global explanation"
    axes: ClassVar[Mapping[str, str]] = {
        "labels": "U",
        "special": "U",
        **dict.fromkeys(("mean", "low", "high", "mean_size", "size_low", "size_high"), "U"),
        "samples": "SU",
    }

    labels: tuple[str, ...]
    special: tuple[bool, ...]
    mean: Float64
    low: Float64
    high: Float64
    mean_size: Float64
    size_low: Float64
    size_high: Float64
    rows: int
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    unseen: tuple[str, ...] = ()
    matrix: Float64 | None = None  # the mean map (position × position), where the method has one
    samples: Float64 | None = None  # (S, U)
    sample_values: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""

    @property
    def importance(self) -> Array:
        """(U,) what columns are ranked by: the mean, or the mean size of signed scores."""
        return self.mean_size if self.signed else self.mean

    def ranked(self, specials: bool = False) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        order = np.argsort(-self.importance, kind="stable")
        return [(self.labels[i], float(self.importance[i])) for i in order if specials or not self.special[i]]

    def to_frame(self) -> pd.DataFrame:
        """One row per column; what attention does not explain has no score (NaN)."""
        names = ("mean", "low", "high", "mean_size", "size_low", "size_high")
        rows = [
            {"column": label, "explained": True, "special": self.special[i], **{n: getattr(self, n)[i] for n in names}}
            for i, label in enumerate(self.labels)
        ]
        rows += [
            {"column": c, "explained": False, "special": False, **dict.fromkeys(names, np.nan)} for c in self.unseen
        ]
        return dataframe(rows)


@dataclass(frozen=True, eq=False)
class FeaturePermutation(Result):
    """How much a metric falls when a column is shuffled: the mean over repeats, with 95 % limits over them."""

    what: ClassVar[str] = "feature permutation"
    axes: ClassVar[Mapping[str, str]] = {"labels": "U", "drops": "UR", "mean": "U", "low": "U", "high": "U"}

    labels: tuple[str, ...]
    drops: Float64  # (columns or groups, repeats): metric on the table, less the metric with the column shuffled
    score: float  # the metric on the table itself
    metric: str
    rows: int
    mean: Float64
    low: Float64  # NaN for a single repeat, which shows no spread
    high: Float64
    seed: int = 0
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    model: str = ""

    def ranked(self) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        return [(self.labels[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per column or group."""
        return dataframe(
            [
                {"column": label, "mean": self.mean[i], "low": self.low[i], "high": self.high[i]}
                for i, label in enumerate(self.labels)
            ]
        )


view_of.register(GlobalExplanation, global_view)
view_of.register(FeaturePermutation, permutation_view)
