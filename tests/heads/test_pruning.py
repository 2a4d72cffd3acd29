"""Pruning curves: the order in which heads go, what is measured, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.models.case import HEADS, LAYERS
from tests.references import head_gates as twin
from tests.references.head_importance import masked
from whyformer.capture.roles import Gate
from whyformer.errors import BadInput, UnknownName
from whyformer.heads import gate_curve, head_importance, learn_gates, pruning_curve
from whyformer.heads.pruning import final_gates, open_probability, removal_order, sampled_gates
from whyformer.loan.borrow import module_names

LABELS = [2, 0]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def curve(name: str = "bert", **how: Any) -> Any:
    return pruning_curve(model_of(name), CASES[name].inputs(), how.pop("labels", LABELS), **how)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
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
        ({"order": "best"}, "unknown order"),
        ({"order": ALL[:3]}, "each of the model's 8 heads once"),
        ({"order": np.zeros((3, 3))}, "shape"),
        ({"labels": None}, "labels are needed"),
        ({"labels": [0]}, "1 labels for 2 inputs"),
    ],
)
def test_wrong_use_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=says):
        curve(**how)


# Gates inside the model, and learning which of them to close.


def test_gates_are_those_of_the_paper() -> None:
    log_a = torch.tensor([-6.0, -2.0, 0.0, 1.5, 5.0], dtype=torch.float64)
    uniform = torch.tensor([0.9, 0.3, 0.5, 0.05, 0.7], dtype=torch.float64)
    pairs = list(zip(log_a.tolist(), uniform.tolist(), strict=True))
    np.testing.assert_allclose(sampled_gates(log_a, uniform), [twin.sampled(a, u) for a, u in pairs], atol=1e-12)
    np.testing.assert_allclose(final_gates(log_a), [twin.final(a) for a, _ in pairs], atol=1e-12)
    np.testing.assert_allclose(open_probability(log_a), [twin.open_probability(a) for a, _ in pairs], atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "llama_gqa", "looped_heads", "folded_heads", "swin"])
def test_open_gates_change_nothing_and_gates_of_each_input_are_its_own(name: str) -> None:
    case = CASES[name]
    model, inputs = model_of(name), case.inputs()

    def logits(gates: Tensor, batch: object = inputs) -> Tensor:
        size = len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])
        axes = dict.fromkeys(range(20), 0) if name != "swin" else {}
        with torch.no_grad(), Gate(size, module_names(model), axes, gates=gates):
            out = model(**batch) if isinstance(batch, dict) else model(*batch)
        return out.logits if hasattr(out, "logits") else out

    with torch.no_grad():
        plain = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    plain = plain.logits if hasattr(plain, "logits") else plain
    layers = case.sites // HEADS if name == "looped_heads" else case.sites
    whole = torch.ones(max(layers, LAYERS), HEADS)
    torch.testing.assert_close(logits(whole), plain, atol=1e-5, rtol=1e-5)
    closed = whole.clone()
    closed[0, 1] = 0
    assert (logits(closed) - plain).abs().max() > 1e-4
    mixed = logits(torch.stack([whole, closed]))
    torch.testing.assert_close(mixed[0], plain[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed[1], logits(closed)[1], atol=1e-5, rtol=1e-5)


class OneUsefulHead(nn.Module):
    """Two heads over (B, N, 4) vectors: the first reads the part that holds the label, the second reads noise."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.classify.weight.copy_(torch.tensor([[-3.0, 0.0, 0.6, 0.0], [3.0, 0.0, -0.6, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        values = x.unflatten(-1, (2, 2)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(torch.zeros_like(values), torch.zeros_like(values), values)
        return self.classify(mixed.transpose(1, 2).flatten(2)[:, 0])


def useful_data(count: int) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 5, 4, generator=generator)
    labels = (torch.rand(count, generator=generator) > 0.5).long()
    x[:, :, 0] += (2 * labels - 1)[:, None]
    return x, labels.tolist()


def test_learning_keeps_the_head_that_matters() -> None:
    model = OneUsefulHead()
    x, labels = useful_data(64)
    found = learn_gates(model, x, labels, penalty=0.05, steps=80, seed=3)
    assert found.gates[0, 0] == 1.0 or found.gates[0, 0] > 0.9
    assert found.gates[0, 1] == 0.0
    assert found.kept == 1
    assert found.history["open"][-1] < found.history["open"][0]
    assert len(found.history["loss"]) == 80
    assert all(p.grad is None for p in model.parameters())
    again = learn_gates(model, x, labels, penalty=0.05, steps=80, seed=3)
    np.testing.assert_array_equal(found.gates, again.gates)
    # As an order, it takes the useless head first.
    assert pruning_curve(model, *useful_data(32), order=found).order == ((0, 1), (0, 0))


def test_no_penalty_keeps_everything() -> None:
    assert learn_gates(OneUsefulHead(), *useful_data(64), penalty=0.0, steps=20).kept == 2


def test_curve_of_learned_gates() -> None:
    got = gate_curve(
        OneUsefulHead(), *useful_data(64), test=useful_data(40), penalties=(0.05, 10.0), steps=150, batch_size=32
    )
    assert list(got.kept) == [2, 1, 0]
    assert got.values[1] >= got.values[0] - 0.02
    assert got.values[2] < got.values[1]
    assert got.samples.shape == (40, 3)


@pytest.mark.parametrize("name", ["bert", "looped_heads"])
def test_gates_learn_on_transformers(name: str) -> None:
    found = learn_gates(model_of(name), CASES[name].inputs(), [1, 2], penalty=1000.0, steps=3)
    assert found.gates.shape == (LAYERS, HEADS)
    assert (found.scores < 2.0).all()  # every gate felt the penalty
