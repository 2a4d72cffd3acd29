"""The values that one-pass scores are compared with, on models whose answer is known; and the tables of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import in_context
from bench.in_context_model import COLUMNS, tasks, trained


class Additive(nn.Module):
    """The gap between the classes is a sum over columns; training rows count by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, COLUMNS + 1))

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        gap = (x_test * self.weight).sum(-1) + (2.0 * y_train - 1).sum(1, keepdim=True)
        return torch.stack([torch.zeros_like(gap), gap], -1)


def one_task(rows: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    x, y = tasks(2, rows + 1, torch.Generator().manual_seed(0), "cpu")
    return x[1, :-1], y[1, :-1], x[1, -1]


def test_shapley_values_of_an_additive_model() -> None:
    model: Any = Additive()
    x, y, row = one_task()
    columns = in_context.column_values(model, x, y, row, 1)
    np.testing.assert_allclose(columns, ((row - x.mean(0)) * model.weight).detach().numpy(), atol=1e-5)
    halves, left_out = in_context.row_values(model, x, y, row, 1, 4, 0)
    others = float((row * model.weight.detach()).sum())  # joins with whichever row is first
    votes = (2 * y - 1).numpy()
    np.testing.assert_allclose(left_out, votes, atol=1e-5)
    np.testing.assert_allclose(halves.sum(1), votes.sum() + others, atol=1e-4)


def test_a_run_in_small() -> None:
    torch.manual_seed(0)
    options = in_context.parsed(["--device", "cpu", "--tasks", 2, "--known", 5, "--orders", 4])
    model = trained(1, 0, "cpu", batch=2, log=0)
    results = in_context.measured(model, options, float("inf"))
    printed = in_context.tables({"accuracy": {"model": [0.5, 0.7]}, "results": results, "machine": "here"})
    assert "| weight gradient |" in printed and "linear tasks, columns" in printed and printed.endswith("here")
    assert len(in_context.measured(model, options, 0.0)) == 2  # of fewer there is no interval
    one = {"accuracy": {"model": [0.5]}, "results": results, "machine": "here"}
    both = in_context.merged([one, one | {"machine": "there"}])
    assert (
        len(both["results"]) == 4 and both["accuracy"] == {"model": [0.5, 0.5]} and both["machine"] == "here\n\nthere"
    )
