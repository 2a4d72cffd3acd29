"""Results as plain data and back, by the annotations of their dataclasses. JSON has no NaN: it becomes null."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from whyformer.io import from_dict, to_dict
from whyformer.types import Explanation


def to_plain(value: Any) -> Any:
    if isinstance(value, Explanation):
        return to_dict(value)
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_plain(hint: Any, data: Any) -> Any:
    """``data`` as what ``hint`` says."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        present = [h for h in inner if h is not type(None)]
        return None if data is None else from_plain(present[0], data)
    if hint is Explanation:
        return from_dict(data)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{f.name: from_plain(hints[f.name], data[f.name]) for f in dataclasses.fields(hint)})  # type: ignore[operator]
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(kind, part) for kind, part in zip(kinds, data, strict=True))
    if origin is dict:
        return {k: from_plain(inner[1], v) for k, v in data.items()}
    if hint is float:
        return math.nan if data is None else float(data)
    return data
