"""Shapley values by their definition: every set of players, or every order of joining; Owen values over a tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.references.differentiable import double, tokens
from tests.references.twin import TARGET, Twin, each

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


MASK = 7


def first_tokens(name: str, length: int = 5) -> dict[str, Tensor]:
    """The beginning of a case's first text."""
    ids = tokens(name, 0)[:length]
    return {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}


def value_of_tokens(name: str, length: int = 5) -> Value:
    """The logit when only some of the first tokens are there; float64, one run per set."""
    ids = tokens(name, 0)[:length]

    @cache
    def value(present: frozenset[int]) -> float:
        kept = torch.tensor([int(t) if i in present else MASK for i, t in enumerate(ids)])
        with torch.no_grad():
            logits = double(name)(input_ids=kept[None]).logits[0]
        return float(logits[TARGET] if logits.ndim == 1 else logits[-1, TARGET])

    return value


def expected(name: str, row: int, replace: int, keep_special: bool) -> dict[str, Any]:
    assert row == 0 and replace == MASK and not keep_special
    value = value_of_tokens(name)
    return {"scores": shap(value, 5), "base": pytest.approx(value(frozenset()), abs=1e-5)}


TWIN = Twin(expected, each(("bert", "gpt2", "llama"), [{"replace": MASK, "keep_special": False}], inputs=first_tokens))
