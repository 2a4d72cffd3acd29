"""A setting that is a list, a dict or a set may be written to in place: the model is then another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from whyformer.loan.borrow import _loan

IDS = {"input_ids": torch.tensor([[3, 4, 5, 6, 7]])}


class Picky(nn.Module):
    """Its head reads the row that a setting names; an activation is a setting, too."""

    def __init__(
        self, setting: Any, row: Callable[[Any], int], activation: Callable[[Tensor], Tensor] = F.gelu
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.setting, self.row, self.activation = setting, row, activation
        self.words, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.activation(x[:, self.row(self.setting)]))


def of_list(setting: list[int]) -> int:
    return setting[0]


def of_dict(setting: dict[str, int]) -> int:
    return setting["row"]


def of_first_key(setting: dict[int, int]) -> int:
    return next(iter(setting))


def of_set(setting: set[int]) -> int:
    return min(setting)


def reordered(setting: dict[int, int]) -> None:
    setting[1] = setting.pop(1)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], int], Callable[[Any], object]]] = {
    "list": (lambda: [1, 9], of_list, lambda s: s.__setitem__(0, 3)),
    "dict": (lambda: {"row": 1}, of_dict, lambda s: s.update(row=3)),
    "order": (lambda: {1: 0, 3: 0}, of_first_key, reordered),
    "set": (lambda: {2, 3}, of_set, lambda s: s.remove(2)),
}


def scores(model: nn.Module) -> np.ndarray[Any, Any]:
    (one,) = wf.explain(model, IDS, method="generic_attention", target=1)
    return np.asarray(one.scores)


@pytest.mark.parametrize("case", CASES)
def test_a_setting_that_is_written_to_is_noticed(case: str) -> None:
    setting, row, write = CASES[case]
    known = Picky(setting(), row).eval()
    before = [scores(known) for _ in range(3)]
    changes = _loan(known).changes
    write(known.setting)
    fresh = Picky(setting(), row).eval()
    write(fresh.setting)
    np.testing.assert_allclose(scores(known), scores(fresh), rtol=1e-5, atol=1e-6)
    assert _loan(known).changes == changes + 1
    assert not np.allclose(scores(known), before[0], atol=1e-3), "the case tells the two apart"


def test_another_activation_is_noticed() -> None:
    known = Picky([1], of_list).eval()
    for _ in range(3):
        scores(known)
    changes = _loan(known).changes
    known.activation = torch.tanh
    np.testing.assert_allclose(scores(known), scores(Picky([1], of_list, torch.tanh).eval()), rtol=1e-5, atol=1e-6)
    assert _loan(known).changes == changes + 1
