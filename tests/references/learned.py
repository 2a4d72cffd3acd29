"""The loss of learned explanations and its efficiency step, written set by set and feature by feature."""

from __future__ import annotations

from collections.abc import Sequence


def with_efficiency(phi: Sequence[float], whole: float, none: float) -> list[float]:
    """φ_j + (f(N) - f(∅) - Σφ) / n"""
    missing = whole - none - sum(phi)
    return [one + missing / len(phi) for one in phi]


def loss(
    inputs: Sequence[tuple[Sequence[float], Sequence[tuple[frozenset[int], float]], float, float]], sparse: float = 0.0
) -> float:
    """Inputs: φ, sets with what the model says of them, f(N) and f(∅)."""
    errors, sizes = [], []
    for phi, answers, whole, none in inputs:
        efficient = with_efficiency(phi, whole, none)
        sizes.append(sum(abs(one) for one in efficient))
        for present, said in answers:
            errors.append((none + sum(efficient[j] for j in present) - said) ** 2)
    return sum(errors) / len(errors) + sparse * sum(sizes) / len(sizes)
