"""What an in-context prediction came from: columns of the row, and training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from whyformer.codec import Float32
from whyformer.interop import dataframe
from whyformer.result import Result
from whyformer.views.context import context_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class ContextExplanation(Result):
    """Scores of the columns of one row and of the training rows beside it, for one prediction.

    ``cells`` are the training rows' own numbers, (R, U). ``scores`` and ``cells`` are NaN where a row is one token and
    the method reads attention, which then says nothing about columns.
    """

    what: ClassVar[str] = "in-context explanation"
    axes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("columns", "values", "scores"), "U"), **dict.fromkeys(("answers", "row_scores"), "R"),
        "cells": "RU",
    }  # fmt: skip

    columns: tuple[str, ...]
    values: tuple[str, ...]  # what the row holds
    scores: Float32
    answers: tuple[str, ...]  # of the training rows, as the model was told
    row_scores: Float32
    cells: Float32
    method: str
    target: str
    value: float  # what is explained
    scalar: str = "logit"
    options: dict[str, Any] = field(default_factory=dict)
    signed: bool = True
    rows_signed: bool = True
    forwards: int = 1
    backwards: int = 1
    setup_forwards: int = 0  # of the study of the model, where it was made now
    warnings: tuple[str, ...] = ()
    model: str = ""

    def ranked(self) -> list[tuple[str, float]]:
        """Columns from the highest score to the lowest; ties keep their order."""
        return [(self.columns[i], float(self.scores[i])) for i in np.argsort(-self.scores, kind="stable")]

    def ranked_rows(self) -> list[tuple[int, float]]:
        """Numbers of training rows from the highest score to the lowest; ties keep their order."""
        return [(int(i), float(self.row_scores[i])) for i in np.argsort(-self.row_scores, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per column, then one per training row."""
        listed = [
            {"kind": "column", "name": name, "value": value, "score": float(score)}
            for name, value, score in zip(self.columns, self.values, self.scores, strict=True)
        ]
        listed += [
            {"kind": "training row", "name": str(i), "value": answer, "score": float(score)}
            for i, (answer, score) in enumerate(zip(self.answers, self.row_scores, strict=True))
        ]
        return dataframe(listed)


view_of.register(ContextExplanation, context_view)
