"""The values that one-pass scores are compared with, on models whose answer is known; and the tables of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import in_context
from bench.in_context_model import COLUMNS, InContext, tasks, trained


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


def test_shapley_values_share_out_the_whole_difference() -> None:
    torch.manual_seed(0)
    model = InContext(width=8, layers=1, heads=2).eval()
    x, y, row = one_task()
    with torch.no_grad():
        whole = float(in_context.logit_gap(model(x[None], y[None], row[None, None])[0, 0], 1))
        typical = float(in_context.logit_gap(model(x[None], y[None], x[None])[0], 1).mean())
    assert np.isclose(in_context.column_values(model, x, y, row, 1).sum(), whole - typical, atol=1e-5)
    halves, _ = in_context.row_values(model, x, y, row, 1, 6, 0)
    np.testing.assert_allclose(halves.sum(1), whole, atol=1e-5)


def test_tasks_are_balanced_and_the_same_each_time() -> None:
    first, again = (tasks(6, 200, torch.Generator().manual_seed(3), "cpu") for _ in range(2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert (first[1].float().mean(1) - 0.5).abs().max() < 0.06
    assert first[0].mean(1).abs().max() < 1e-5


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
