"""Shapley values by their definition: every set of players, or every order of joining; Owen values over a tree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import factorial

import numpy as np

Value = Callable[[frozenset[int]], float]
Tree = int | tuple["Tree", "Tree"]


def shap(value: Value, players: int) -> np.ndarray:
    scores = np.zeros(players)
    for i in range(players):
        others = [j for j in range(players) if j != i]
        for size in range(players):
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            for chosen in combinations(others, size):
                without = frozenset(chosen)
                scores[i] += weight * (value(without | {i}) - value(without))
    return scores


def owen(value: Value, tree: Tree, players: int) -> np.ndarray:
    """Each join shares out among its two sides, once as if the one came first and once the other."""
    scores = np.zeros(players)

    def share(node: Tree, before: frozenset[int], weight: float) -> None:
        if isinstance(node, int):
            scores[node] += weight * (value(before | {node}) - value(before))
            return
        left, right = node
        for side, other in ((left, right), (right, left)):
            share(side, before, weight / 2)
            share(side, before | members(other), weight / 2)

    share(tree, frozenset(), 1.0)
    return scores


def members(node: Tree) -> frozenset[int]:
    return frozenset({node}) if isinstance(node, int) else members(node[0]) | members(node[1])
