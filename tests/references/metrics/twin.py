"""What makes a reference of a metric a twin: a function of plain facts about one input, and the options to ask it.

Every module here exports ``TWINS``, by the names of the metrics; ``tests/evaluate/test_metrics.py`` compares all
of them with the library. Nothing here knows about whyformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Predict = Callable[[set[int]], float]
Pixel = tuple[int, int]


@dataclass(frozen=True)
class Facts:
    """One input with the scores of its parts, and all that the twins may ask about it."""

    scores: list[float]
    signed: bool
    says: Mapping[str, Predict]  # "probability", "logit", "decides": when only these parts are there
    drawn: Callable[[float | None], list[set[int]]]  # the random sets that go, of this share of the parts
    uniform: Callable[[int], list[list[float]]]  # so many draws of a number from 0 to 1 for every part
    value: float  # what the method explained
    base: float | None  # and its value at the method's own background
    again: Callable[[int, float], list[float]]  # (draw, radius): scores of the input with a little noise
    marked: set[int]  # by people
    grid: tuple[int, int]  # the parts as patches of an image
    size: tuple[int, int]  # of the image
    object: set[Pixel]


@dataclass(frozen=True)
class MetricTwin:
    """``expected(facts, **options)`` within the tolerance that pytest.approx is given."""

    expected: Callable[..., float]
    options: Sequence[Mapping[str, Any]] = ({},)
    within: Mapping[str, float] = field(default_factory=dict)
    at_least: int = 1  # parts for which it is defined
