"""Pruning curves: the order in which heads go, what is measured, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.models.case import HEADS, LAYERS
from tests.references.head_importance import masked
from whyformer.errors import BadInput, UnknownName
from whyformer.heads import head_importance, pruning_curve
from whyformer.heads.pruning import removal_order

LABELS = [2, 0]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def curve(name: str = "bert", **how: Any) -> Any:
    return pruning_curve(model_of(name), CASES[name].inputs(), how.pop("labels", LABELS), **how)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_heads_go_in_the_given_order(name: str) -> None:
    order = ALL[::-1]
    got = curve(name, order=order, metric="loss")
    assert list(got.kept) == list(range(len(ALL), -1, -1))
    assert got.order == tuple(order)
    close(curve(name, order=order, metric="loss", batch_size=1).samples, got.samples)
    for taken in (0, 3, len(ALL)):
        mask = torch.ones(LAYERS, HEADS, dtype=torch.float64)
        for at in order[:taken]:
            mask[at] = 0
        want = [
            torch.nn.functional.cross_entropy(masked(name, row, mask)[0], torch.tensor(LABELS[row])).item()
            for row in range(2)
        ]
        close(got.samples[:, taken], want)
        assert got.values[taken] == pytest.approx(np.mean(want), rel=1e-4)


def test_accuracy_and_agreement() -> None:
    model, inputs = model_of("bert"), CASES["bert"].inputs()
    with torch.no_grad():
        predicted = model(**inputs).logits.argmax(1).tolist()
    right = curve(labels=predicted, order=ALL)
    assert right.values[0] == 1.0
    agreement = curve(labels=None, metric="agreement", order=ALL)
    close(agreement.samples, right.samples)
    assert 0 <= agreement.area <= 1 and list(agreement.to_frame().columns) == ["kept", "agreement", "low", "high"]
    wrong = curve(labels=[1 - min(p, 1) for p in predicted], order=ALL)
    assert wrong.values[0] == 0.0


def test_a_metric_may_be_a_function() -> None:
    def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits[torch.arange(len(labels)), labels]

    got = curve(metric=margin, order=ALL, points=2)
    want = [float(masked("bert", row, torch.ones(LAYERS, HEADS).double())[0][LABELS[row]].detach()) for row in range(2)]
    close(got.samples[:, 0], want)
    assert got.metric == "margin"


def test_an_importance_is_an_order_least_first() -> None:
    importance = head_importance(model_of("bert"), CASES["bert"].inputs())
    got = curve(order=importance, points=3)
    assert list(got.order) == [(layer, head) for layer, head, _ in reversed(importance.ranked())]
    assert list(got.kept) == [8, 4, 0]
    assert "gradient" in got.name
    close(curve(order=importance.scores, points=3).samples, got.samples)


def test_random_orders_are_seeded() -> None:
    first, second, other = (removal_order("random", ALL, seed)[0] for seed in (0, 0, 1))
    assert first == second != other
    assert sorted(first) == ALL


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"metric": "f1"}, "metric=.*not allowed"),
        ({"order": "best"}, "unknown order"),
        ({"order": ALL[:3]}, "each of the model's 8 heads once"),
        ({"order": np.zeros((3, 3))}, "shape"),
        ({"labels": None}, "labels are needed"),
        ({"labels": [0]}, "1 labels for 2 inputs"),
        ({"points": 1}, "at least 2"),
    ],
)
def test_wrong_use_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=says):
        curve(**how)
