"""Rows that attend to rows the model learns from (TabPFN): a row is one token, and its columns are explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded
from whyformer.errors import NotOverUnits

COLUMNS = ["a", "b", "c", "d", "e"]


class InContext(nn.Module):
    """As TabPFN v1: examples with their labels, then the rows asked about, which look at the examples alone."""

    def __init__(self, examples: int = 20, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.columns, self.label = nn.Linear(len(COLUMNS), width), nn.Linear(1, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        self.register_buffer("known", randn(examples, len(COLUMNS), seed=1))
        self.register_buffer("answers", (randn(examples, 1, seed=2) > 0).float())

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.known)
        tokens = torch.cat([self.columns(self.known) + self.label(self.answers), self.columns(x)])[None]
        hidden = torch.zeros(tokens.shape[1], tokens.shape[1], dtype=torch.bool)
        hidden[:, count:] = True
        hidden[count:, count:] = ~torch.eye(len(x), dtype=torch.bool)
        return self.head(self.blocks(tokens, mask=hidden)[0, count:])


def model() -> nn.Module:
    return seeded(InContext).eval()


ROWS = randn(2, len(COLUMNS), seed=3)
FORMS: dict[str, Any] = {
    "tensors": (ROWS, None),
    "rows": (ROWS.numpy(), wf.Table(numerical=COLUMNS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_left_out_one_by_one(form: str) -> None:
    inputs, table = FORMS[form]
    net = model()
    results = wf.explain(net, inputs, processor=table, method="occlusion", target=1)
    for row, result in zip(ROWS, results, strict=True):
        assert result.units.labels == (tuple(COLUMNS) if table else ("0", "1", "2", "3", "4"))
        assert not any(result.units.special)
        with torch.no_grad():
            without = row.repeat(5, 1) * (1 - torch.eye(5))
            expected = net(row[None])[0, 1] - net(without)[:, 1]
        np.testing.assert_allclose(result.scores, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "shap"])
def test_gradients_and_shares_are_those_of_columns(form: str, method: str) -> None:
    inputs, table = FORMS[form]
    net = model()
    how = {"steps": 400} if method == "integrated_gradients" else {}
    result = wf.explain(net, inputs, processor=table, method=method, target=1, **how)[1]
    if method == "input_x_gradient":
        row = ROWS[1:].clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(row)[0, 1], row)
        np.testing.assert_allclose(result.scores, (row * slope)[0].detach().numpy(), atol=1e-5)
    else:  # what the scores have to add up to
        with torch.no_grad():
            change = float(net(ROWS[1:])[0, 1] - net(torch.zeros(1, 5))[0, 1])
        assert float(result.scores.sum()) == pytest.approx(change, abs=5e-3)


@pytest.mark.parametrize("form", FORMS)
def test_attention_is_over_rows_and_says_nothing_about_columns(form: str) -> None:
    inputs, table = FORMS[form]
    with pytest.raises(NotOverUnits, match="the whole row is one of the 21 tokens"):
        wf.explain(model(), inputs, processor=table, method="generic_attention")


def test_another_description_of_the_same_columns() -> None:
    net = model()
    for names in (COLUMNS, ["v", "w", "x", "y", "z"]):
        table = wf.Table(numerical=names)
        assert wf.explain(net, ROWS.numpy(), processor=table, method="occlusion")[0].units.labels == tuple(names)
