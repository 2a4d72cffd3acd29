"""What makes a reference a twin: a function that is called, and the models and options on which it is called.

Every ``tests/references/x.py`` of a method exports ``TWIN``; ``tests/methods/test_twins.py`` compares all of them with
the library. Nothing here knows about whyformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FAMILY = ("bert", "vit", "gpt2", "llama")  # post-norm, pre-norm, causal, causal with RMSNorm and shared key heads
TARGET = 1
Compare = Callable[[np.ndarray, np.ndarray], None]


def relative(got: np.ndarray, want: np.ndarray) -> None:
    """max|got - want| <= 1e-5·max|want|."""
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-12)
    assert error <= 1e-5, f"off by {error:.2e} of the largest value"


def relative_to_one(got: np.ndarray, want: np.ndarray) -> None:
    """The same where values are large; small ones may be off by 1e-5."""
    scale = max(1.0, np.abs(want).max())
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=1e-5)


def absolute(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, atol=1e-5)


def vanishing(got: np.ndarray, want: np.ndarray) -> None:
    """Zero on paper: both are rounding errors."""
    assert np.abs(got).max() < 1e-12
    assert np.abs(want).max() < 1e-12


@dataclass(frozen=True)
class Setting:
    """One model with options of the method. ``double``: the library runs in float64 too, so that no noise is left."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[str], Any] | None = None  # of the model's name; its case's own where None
    double: bool = True
    compare: Compare = relative
    layers: bool = False  # whether the maps of the layers are asked for

    def __str__(self) -> str:
        return "-".join([self.model, *(f"{k}={_said(v)}" for k, v in self.options.items())])


def _said(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float | list | None) else "given"


@dataclass(frozen=True)
class Twin:
    """``expected(model, row, **options)``: fields of the explanation of one input by name, ``scores`` among them."""

    expected: Callable[..., Mapping[str, Any]]
    settings: Sequence[Setting]


def each(models: Sequence[str], options: Sequence[Mapping[str, Any]] = ({},), **how: Any) -> list[Setting]:
    """Every model with every choice of options."""
    return [Setting(model, chosen, **how) for chosen in options for model in models]
