"""Which axes of an attention map and of the values a product contracts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contraction:
    """Axes of the attention operand (query, key) and of the value operand (key, width, and the shared lead axes)."""

    query: int
    key: int
    value_key: int
    value_width: int
    value_lead: tuple[int, ...]  # the value's batch and head axes, in the order of the attention operand's


def matmul_contraction(weights_ndim: int, value_ndim: int, key: tuple[int, bool]) -> Contraction | None:
    """matmul/bmm sum over the last axis of the left and the second-last of the right operand."""
    axis, first = key
    if weights_ndim < 2 or value_ndim < 2:
        return None
    if first and axis == weights_ndim - 1:
        return Contraction(weights_ndim - 2, axis, value_ndim - 2, value_ndim - 1, tuple(range(value_ndim - 2)))
    if not first and axis == weights_ndim - 2:  # valuesᵀ · mapᵀ
        return Contraction(weights_ndim - 1, axis, value_ndim - 1, value_ndim - 2, tuple(range(value_ndim - 2)))
    return None


def einsum_contraction(equation: str, weights_ndim: int, value_ndim: int, key: tuple[int, bool]) -> Contraction | None:
    """The letters say it: keys are in both operands and not in the result; queries are in the map and the result."""
    axis, first = key
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or "." in equation:
        return None
    weights, value = terms if first else terms[::-1]
    if len(weights) != weights_ndim or len(value) != value_ndim:
        return None
    summed = weights[axis]
    queries = [c for c in weights if c in result and c not in value]
    widths = [c for c in value if c in result and c not in weights]
    if summed in result or summed not in value or len(queries) != 1 or len(widths) != 1:
        return None
    lead = [c for c in weights if c not in (summed, queries[0])]
    if any(c not in value for c in lead):
        return None
    return Contraction(
        weights.index(queries[0]),
        axis,
        value.index(summed),
        value.index(widths[0]),
        tuple(value.index(c) for c in lead),
    )
