"""Put head scores on a common scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.errors import one_of

Array = np.ndarray[Any, Any]

NORMALIZATIONS = (None, "l2", "minmax", "l2_minmax", "share")


def normalized(scores_LH: Array, how: str | None) -> Array:
    """``"l2"``: each layer to length 1 (Michel's code); ``"minmax"``: all heads to 0…1; ``"l2_minmax"``: both, in
    that order (Hugging Face's bertology script); ``"share"``: all heads to absolute sum 1. Missing heads stay NaN.
    """
    one_of("normalize", how, NORMALIZATIONS)
    if how in {"l2", "l2_minmax"}:
        length = np.sqrt(np.nansum(scores_LH**2, axis=1, keepdims=True))
        scores_LH = scores_LH / np.where(length == 0, 1, length)
    if how in {"minmax", "l2_minmax"}:
        low, high = np.nanmin(scores_LH), np.nanmax(scores_LH)
        scores_LH = (scores_LH - low) / (high - low if high > low else 1)
    if how == "share":
        total = np.nansum(np.abs(scores_LH))
        scores_LH = scores_LH / (total if total else 1)
    return scores_LH
