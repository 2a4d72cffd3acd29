"""Several arguments of whole numbers: which of them are sequences is seen in the model, whatever they are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf

SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])
TARGET = torch.tensor([[5, 8, 2, 9], [1, 4, 6, 6]])
SAME_LENGTH = torch.tensor([[5, 8, 2, 9, 1, 1], [1, 4, 6, 6, 2, 3]])
THIRD = torch.tensor([[7, 7, 1], [2, 3, 4]])


class Reader(nn.Module):
    """Reads two sequences in one of several ways; ``forward`` is written with names of one's own (``named``)."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.first, self.second, self.positions = nn.Embedding(30, 16), nn.Embedding(30, 16), nn.Embedding(20, 16)
        self.both = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.head, self.pair = nn.Linear(16, 3), nn.Linear(32, 3)
        with torch.no_grad():
            for table in (self.first, self.second):
                table.weight.mul_(2)

    def placed(self, vectors: Tensor) -> Tensor:
        return vectors + self.positions(torch.arange(vectors.shape[1]))

    def decoded(self, first: Tensor, second: Tensor) -> Tensor:
        """From word embeddings, so that a test can differentiate by them."""
        causal = nn.Transformer.generate_square_subsequent_mask(second.shape[1])
        read = self.both(self.placed(first), self.placed(second), tgt_mask=causal)[:, -1]
        logits: Tensor = self.head(read)
        return logits

    def pooled(self, vectors: Tensor) -> Tensor:
        read: Tensor = self.both.encoder(self.placed(vectors)).mean(1)
        return read

    def read(self, a: Tensor, b: Tensor, *third: Tensor) -> Tensor:
        first, second = self.first(a), self.second(b)
        if self.way == "decoder":
            return self.decoded(first, second)
        if self.way == "towers":
            return self.pair(torch.cat([self.pooled(first), self.pooled(second)], 1))
        if self.way == "three":
            return self.decoded(first, second) + self.head(self.pooled(self.first(third[0])))
        if self.way == "added":
            return self.head(self.pooled(first + second))
        if self.way == "laid end to end":
            return self.head(self.pooled(torch.cat([first, second], 1)))
        if self.way == "beside":
            return self.head(self.pooled(first) + second.mean(1))
        if self.way == "out of sight":
            return self.head(self.pooled(first) + torch.tensor(b.tolist()).float().mean(1, keepdim=True))
        return self.head(self.pooled(first))


def named(way: str, *names: str) -> nn.Module:
    """A model whose arguments are called that, in this order; the first two are read as source and target."""
    text = f"def forward(self, {', '.join(names)}):\n    return self.read({', '.join(names)})"
    space: dict[str, Any] = {}
    exec(text, space)
    return type("Home", (Reader,), {"forward": space["forward"]})(way).eval()


def by_stream(explanation: wf.Explanation) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for stream, score in zip(explanation.units.stream, explanation.scores, strict=True):
        found.setdefault(stream, []).append(float(score))
    return found


NAMES = ["src/tgt", "x/y", "context/question"]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("target", [TARGET, SAME_LENGTH], ids=["other length", "same length"])
def test_both_sequences_of_a_decoder_have_the_gradients_of_plain_torch(names: str, target: Tensor) -> None:
    model = named("decoder", *names.split("/"))
    inputs = dict(zip(names.split("/"), (SOURCE, target), strict=True))
    leaves = [model.first(SOURCE).detach().requires_grad_(), model.second(target).detach().requires_grad_()]
    slopes = torch.autograd.grad(model.decoded(*leaves)[:, 1].sum(), leaves)
    expected = [(leaf * slope).sum(2).detach().numpy() for leaf, slope in zip(leaves, slopes, strict=True)]
    for row, found in enumerate(wf.explain(model, inputs, method="input_x_gradient", target=1)):
        scores = by_stream(found)
        np.testing.assert_allclose(scores["source"], expected[0][row], atol=1e-4)
        np.testing.assert_allclose(scores["target"], expected[1][row], atol=1e-4)


@pytest.mark.parametrize("way", ["decoder", "towers"])
def test_a_call_by_position_and_other_names_change_nothing(way: str) -> None:
    for method in ("occlusion", "generic_attention"):
        ways = [(named(way, "src", "tgt"), {"src": SOURCE, "tgt": TARGET}), (named(way, "q", "d"), (SOURCE, TARGET))]
        one, other = (wf.explain(model, inputs, method=method, target=0)[0] for model, inputs in ways)
        assert one.units == other.units
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
        assert all(np.abs(scores).sum() > 0.01 for scores in by_stream(other).values())


def test_the_sequence_that_asks_is_the_target_wherever_it_stands() -> None:
    model = named("decoder", "a", "b")
    swapped = type("Home", (type(model),), {"forward": lambda self, b, a: self.read(a, b)})("decoder").eval()
    one = wf.explain(model, (SOURCE, TARGET), method="input_x_gradient", target=0)[0]
    other = wf.explain(swapped, (TARGET, SOURCE), method="input_x_gradient", target=0)[0]
    for stream, scores in by_stream(one).items():
        np.testing.assert_allclose(scores, by_stream(other)[stream], atol=1e-5)


@pytest.mark.parametrize("way", ["added", "laid end to end", "beside", "out of sight"])
def test_an_argument_that_has_no_units_is_named(way: str) -> None:
    model, inputs = named(way, "a", "b"), {"a": SOURCE, "b": SAME_LENGTH}
    for method in ("occlusion", "input_x_gradient", "attention_rollout"):
        found = wf.explain(model, inputs, method=method, target=0)[0]
        assert any("also reads b," in warning for warning in found.warnings), method


def test_an_argument_that_changes_nothing_is_not_named() -> None:
    found = wf.explain(named("alone", "a", "b"), (SOURCE, TARGET), method="occlusion", target=0)[0]
    assert not found.warnings and len(found.scores) == SOURCE.shape[1]


def test_a_third_sequence_is_named() -> None:
    inputs = {"a": SOURCE, "b": TARGET, "c": THIRD}
    found = wf.explain(named("three", "a", "b", "c"), inputs, method="occlusion", target=0)[0]
    assert any("also reads c," in warning and "a and b alone" in warning for warning in found.warnings)
    assert {"source", "target"} <= set(found.units.stream)


def test_it_is_found_out_once_per_model_and_counted() -> None:
    """Against a model that is known already: the passes of the first call are all in its cost."""
    model, calls = named("decoder", "a", "b"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    explainer, counts = wf.Explainer(model), []
    for _ in range(3):
        before = len(calls)
        (found,) = explainer.explain((SOURCE[:1], TARGET[:1]), method="attention_rollout", target=0)
        counts.append((len(calls) - before, found.cost.setup_forwards))
    (first, setup), (second, nothing), third = counts
    assert nothing == 0 and third == (second, 0)
    assert first - second == setup
