"""Methods that mask score what the model was given, whatever attention runs over; what has no score is in a warning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from whyformer import demo
from whyformer.errors import NotOffered
from whyformer.inputs.tensors import TensorMask

WIDTH, CLASS = 16, 1
CODES, NUMBERS = torch.tensor([[1, 2, 3, 4, 5]]), torch.randn(1, 3, generator=torch.Generator().manual_seed(1))


class Blocks(nn.Module):
    """Two blocks over the embeddings of codes."""

    def __init__(self, features: int = WIDTH) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.words, self.head = nn.Embedding(20, WIDTH), nn.Linear(features, 2)


class Weather(Blocks):
    """A vector becomes the first of the tokens, and the head reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, WIDTH)

    def forward(self, weather: Tensor, codes: Tensor) -> Tensor:
        tokens = torch.cat([self.first(weather)[:, None], self.words(codes) * 0.02], 1)
        return self.head(self.blocks(tokens)[:, 0])


class Around(Blocks):
    """Numbers go to the head, around attention; attended codes hardly matter."""

    def __init__(self) -> None:
        super().__init__(WIDTH + 3)

    def forward(self, ids: Tensor, feats: Tensor) -> Tensor:
        return self.head(torch.cat([self.blocks(self.words(ids)).mean(1) * 0.01, feats], -1))


class Variables(Blocks):
    """The tokens are the variables of a series, each with all of its steps (iTransformer)."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.of_steps = nn.Linear(steps, WIDTH)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.blocks(self.of_steps(series.transpose(1, 2))).mean(1))


class Pooled(Blocks):
    """Rows of weights, without a query, pool what a recurrent layer read."""

    def __init__(self, rows: int) -> None:
        super().__init__(WIDTH * rows)
        self.read, self.scores = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, rows)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.read(self.words(ids))[0]
        return self.head((torch.softmax(self.scores(states).mT, -1) @ states).flatten(1))


def explained(model: nn.Module, inputs: Any, method: str | None = None, **options: Any) -> wf.types.Explanation:
    return wf.explain(model, inputs, method=method, target=CLASS, progress=False, **options)[0]


def without(model: nn.Module, inputs: tuple[Tensor, ...], argument: int, where: Any) -> float:
    """How far the output falls when some numbers are zeros, by calling the model alone."""
    other = [tensor.clone() for tensor in inputs]
    other[argument][0][where] = 0
    with torch.no_grad():
        return float((model(*inputs) - model(*other))[0, CLASS])


def test_an_argument_that_becomes_a_token_is_a_unit_of_its_name() -> None:
    model, inputs = seeded(Weather), (NUMBERS, CODES)
    for method in (None, "occlusion", "generic_attention", "attn_lrp"):
        found = explained(model, inputs, method)
        assert found.units.labels == ("weather", *(f"codes[{i}]" for i in range(5))) and not any(found.units.special)
        assert found.ranked()[0][0] == "weather", method
    found = explained(model, inputs, "occlusion", replace="zero")
    expected = [without(model, inputs, 0, ...), *(without(model, inputs, 1, i) for i in range(5))]
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)


METHODS = ("occlusion", "shap", "two_ended", "input_x_gradient", "integrated_gradients", "attn_lrp")


@pytest.mark.parametrize("method", [None, *METHODS])
def test_numbers_that_go_around_attention_have_scores(method: str | None) -> None:
    model, inputs = seeded(Around), (CODES, NUMBERS)
    found = explained(model, inputs, method)
    assert found.units.labels == (*(f"ids[{i}]" for i in range(5)), *(f"feats[{i}]" for i in range(3)))
    expected = model.head.weight[CLASS, WIDTH:].detach() * NUMBERS[0]  # the head is linear in them
    far = 1e-4 if method else 0.1  # the default takes the mean of a guide and what is measured
    np.testing.assert_allclose(found.scores[5:], expected, atol=far)
    assert not any("not scored" in warning for warning in found.warnings)
    both = wf.explain(model, tuple(torch.cat([t, t.flip(1)]) for t in inputs), method=method, target=CLASS)
    np.testing.assert_allclose(both[0].scores, found.scores, atol=1e-5)


def test_what_attention_does_not_score_is_measured_and_said_first() -> None:
    model, inputs = seeded(Around), (CODES, NUMBERS)
    found = explained(model, inputs, "generic_attention")
    assert len(found.units) == 5
    share, change = found.warnings[0].split("%")[0], -without(model, inputs, 1, ...)
    assert (
        int(share) >= 95
        and f"depends on feats, which is not scored: the value changes by {change:+.3g}" in (found.warnings[0])
    )


def test_a_comparison_masks_all_units_and_gives_0_to_those_that_attention_leaves_out() -> None:
    inputs = (torch.randint(1, 20, (3, 5)), torch.randn(3, 3))
    found = wf.compare(seeded(Around), inputs, method=["occlusion", "generic_attention"], progress=False)
    for name, count in {"occlusion": 8, "generic_attention": 5}.items():
        assert all(len(e.scores) == 8 and np.count_nonzero(e.scores) == count for e in found.explanations[name])


@pytest.mark.parametrize(("steps", "count"), [(12, 5), (12, 12), (5, 6)])
def test_tokens_that_hold_a_variable_are_variables(steps: int, count: int) -> None:
    model = seeded(lambda: Variables(steps))
    series = torch.randn(1, steps, count, generator=torch.Generator().manual_seed(2))
    found = explained(model, series, "occlusion")
    assert found.units.labels == tuple(f"variable {i}" for i in range(count)) and not any(found.units.special)
    expected = [without(model, (series,), 0, (slice(None), i)) for i in range(count)]
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    leaf = series.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(leaf)[0, CLASS], leaf)
    for method in ("integrated_gradients", "smooth_grad", "attn_lrp"):
        assert explained(model, series, method).units == found.units
    found = explained(model, series, "input_x_gradient")
    np.testing.assert_allclose(found.scores, (leaf * slope).sum(1)[0].detach(), atol=1e-5)
    assert explained(model, series, "generic_attention").units == found.units


class Head(nn.Module):
    """The shipped classifier with a pooling head: weights without a query, multiplied in one of three ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = demo.load_sentiment()[0], way
        self.scores = nn.Linear(self.inner.config.hidden_size, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.inner.bert(input_ids, attention_mask).last_hidden_state
        scores = self.scores(states)[..., 0].masked_fill(attention_mask == 0, -1e9)
        if self.way == "@":
            pooled = (torch.softmax(scores[:, None], -1) @ states)[:, 0]
        elif self.way == "bmm":
            pooled = torch.bmm(torch.softmax(scores, -1)[:, None], states)[:, 0]
        else:
            pooled = (torch.softmax(scores, -1)[..., None] * states).sum(1)
        return self.inner.classifier(pooled)


def test_a_head_that_pools_is_the_same_however_it_is_written() -> None:
    models = [seeded(lambda way=way: Head(way)) for way in ("@", "bmm", "*")]
    text, tokenizer = "The plot is thin but the acting is wonderful", demo.load_sentiment()[1]
    for method in (None, "occlusion", "generic_attention", "input_x_gradient"):
        first, *others = (wf.explain(model, text, tokenizer, method=method, target=CLASS) for model in models)
        assert first.units.labels[4] == "thin"
        assert any("weights the positions itself" in w for w in first.warnings) == (method == "generic_attention")
        for other in others:
            assert other.units == first.units and other.warnings == first.warnings
            np.testing.assert_allclose(other.scores, first.scores, atol=1e-5)


def test_masks_are_of_tokens_where_weights_of_several_rows_read_them() -> None:
    model = seeded(lambda: Pooled(2))
    found = explained(model, CODES, "occlusion", replace=7)
    with torch.no_grad():
        variants = torch.where(torch.eye(5, dtype=torch.bool), 7, CODES)
        expected = (model(CODES) - model(variants))[:, CLASS]
    assert found.units.labels == ("1", "2", "3", "4", "5", "[query 0]", "[query 1]")
    assert found.units.special == (False,) * 5 + (True,) * 2
    np.testing.assert_allclose(found.scores, [*expected, 0, 0], atol=1e-5)


class Marked(Blocks):
    """The weights of a pooling head come out of a module of their own, as (inputs, positions)."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.read, self.scores, self.weigh = (
            nn.LSTM(WIDTH, WIDTH, batch_first=True),
            nn.Linear(WIDTH, 1),
            nn.Softmax(-1),
        )

    def forward(self, ids: Tensor) -> Tensor:
        states = self.read(self.words(ids))[0]
        weights = self.weigh(self.scores(states)[..., 0])
        if self.way == "@":
            return self.head((weights[:, None] @ states)[:, 0])
        weights = weights.unsqueeze(-1)
        return self.head((weights * states if self.way == "w * h" else states * weights).sum(1))


@pytest.mark.parametrize("way", ["@", "w * h", "h * w"])
def test_a_row_of_weights_can_be_marked_as_attention_over_the_tokens(way: str) -> None:
    model = seeded(lambda: Marked(way))
    explainer = wf.Explainer(model, attention_at={"weigh": "b k"})
    codes = torch.cat([CODES, CODES.flip(1)])
    with torch.no_grad():
        weights = model.weigh(model.scores(model.read(model.words(codes))[0])[..., 0])
    for method in ("raw_attention", "attention_rollout"):
        for found, row in zip(explainer.explain(codes, method=method, target=CLASS), weights, strict=True):
            assert found.units.special[5:] == (True,)
            np.testing.assert_allclose(found.scores[:5], row, atol=1e-6)
    product = seeded(lambda: Marked("@"))
    options = {"method": "generic_attention", "target": CLASS, "attention_at": {"weigh": "b k"}}
    first, second = (wf.explain(one, codes, **options) for one in (model, product))
    np.testing.assert_allclose(first[1].scores, second[1].scores, atol=1e-6)


class Either(nn.Module):
    """The largest number decides, and it is there twice."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([-x.amax(1), x.amax(1)], 1)


def test_zeros_for_all_units_are_refused_where_masking_all_of_them_changes_the_value() -> None:
    x = torch.tensor([[3.0, 3.0, 1.0]])
    with pytest.raises(NotOffered, match="0 to every unit of input 0, although the value changes by 3"):
        explained(Either(), x, "occlusion")
    assert explained(Either(), x, "two_ended").scores[0] == pytest.approx(1.5)
    assert not explained(Either(), x * 0, "occlusion").scores.any()


def test_a_unit_that_holds_no_number_of_the_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that changes nothing would pass for a part that does nothing."""
    owners = TensorMask.owners
    monkeypatch.setattr(
        TensorMask, "owners", lambda *args: {k: v.masked_fill(v == 1, -1) for k, v in owners(*args).items()}
    )
    for method in ("occlusion", "two_ended"):
        found = explained(Either(), torch.tensor([[3.0, 2.0, 1.0]]), method)
        assert any("no number of the input belongs to 1:" in warning for warning in found.warnings), method
