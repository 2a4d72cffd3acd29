"""Results as tables of pandas and as objects of shap."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.result import EXPLANATION, Result

if TYPE_CHECKING:
    import pandas as pd


def dataframe(data: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """From rows (one dict each, or tuples with ``columns``) or from columns by name; pandas is an extra."""
    require("pandas", why="to_frame()")
    import pandas as pd

    return pd.DataFrame(data, columns=columns)


def to_shap(explanations: Any) -> Any:
    """A ``shap.Explanation`` of one explanation, or of several as its rows, for shap's plots.

    values: the scores; base_values: the value at the background, 0 where the method has none; data and feature_names:
    the units' labels, for tables the values of the columns and their names. Rows may differ in length.
    """
    shap = shap_package("to_shap")
    if _is_explanation(explanations):
        return shap.Explanation(
            values=explanations.scores.astype(np.float64),
            base_values=_base(explanations),
            data=_data(explanations),
            feature_names=_labels(explanations),
            output_names=None,
        )
    rows = list(explanations) if isinstance(explanations, Iterable) else []
    if not rows or not all(map(_is_explanation, rows)):
        raise BadInput("to_shap takes an Explanation or a list of them, and at least one.")
    one_table = all(e.units.values is not None for e in rows) and len({e.units.labels for e in rows}) == 1
    return shap.Explanation(
        values=_ragged([e.scores.astype(np.float64) for e in rows]),
        base_values=np.array([_base(e) for e in rows]),
        data=_ragged([_data(e) for e in rows]),
        feature_names=_labels(rows[0]) if one_table else [_labels(e) for e in rows],
    )


def shap_package(why: str) -> Any:
    """The shap library; its import warns about deprecated calls of its own, which no user can help.

    Some of what it imports draws random numbers, or seeds them: the caller's go on as if nothing had happened.
    """
    require("shap", why=why)
    if "shap" in sys.modules:
        return sys.modules["shap"]
    drawn, numbers = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import shap
    finally:
        random.setstate(drawn)
        np.random.set_state(numbers)
    return shap


def _is_explanation(value: Any) -> bool:
    return isinstance(value, Result) and value.what == EXPLANATION


def _base(explanation: Any) -> float:
    return 0.0 if explanation.base is None else float(explanation.base)


def _data(explanation: Any) -> Any:
    """What stood at each unit: the token itself, or the value of a column, as a number where it is one."""
    values = explanation.units.values
    return np.array(_labels(explanation) if values is None else [_number(v) for v in values], dtype=object)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _labels(explanation: Any) -> list[str]:
    """Tokens with the space that stood before them, so that shap's text plot reads as the text did."""
    units = explanation.units
    if units.spans is None or units.text is None:
        return [str(label) for label in units.labels]
    labels = []
    for label, special, (start, end) in zip(units.labels, units.special, units.spans, strict=True):
        if special or end <= start:
            labels.append(label)
            continue
        space = " " if start > 0 and units.text[start - 1].isspace() else ""
        labels.append(space + units.text[start:end])
    return labels


def _ragged(rows: list[Any]) -> Any:
    if len({len(r) for r in rows}) == 1:
        return np.stack(rows)
    result = np.empty(len(rows), dtype=object)
    result[:] = rows
    return result
