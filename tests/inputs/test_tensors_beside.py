"""Models that read more than the tensor whose positions are the units: a second series, a condition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randint, randn, seeded

WIDTH, STEPS, TARGET = 16, 6, 1
METHODS = ["generic_attention", "attn_lrp", "input_x_gradient", "occlusion"]


class Blocks(nn.Module):
    """What all of them share: blocks, and a head over the mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def read(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


class Late(Blocks):
    """Times go straight to the head, as vectors of as many positions as there are values."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.time = nn.Linear(5, WIDTH), nn.Linear(5, WIDTH)

    def forward(self, values: Tensor, times: Tensor) -> Tensor:
        entering, beside = self.value(values), self.time(times)
        return self.read(entering) + self.head(beside.mean(1))


class Conditioned(Blocks):
    """A picture after a vector, in the order of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.other = nn.Conv2d(3, WIDTH, 8, 8), nn.Linear(7, WIDTH)

    def forward(self, condition: Tensor, image: Tensor) -> Tensor:
        return self.read(self.patches(image).flatten(2).transpose(1, 2) + self.other(condition)[:, None])


class Worded(Blocks):
    """Words beside a vector per word, as wide as their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, WIDTH)

    def forward(self, input_ids: Tensor, features: Tensor) -> Tensor:
        return self.read(self.words(input_ids) * features.sigmoid())


class Masked(Blocks):
    """A mask of numbers, made as wide as the vectors before these are."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(5, WIDTH)

    def forward(self, values: Tensor, padding_mask: Tensor) -> Tensor:
        shown = 1 - padding_mask.unsqueeze(-1)
        return self.read(self.value(values) * shown)


def at(make: Any, inputs: dict[str, Tensor], name: str, entrance: str = "") -> Tensor:
    """(N,) or pixels: x · ∂s/∂x of the first input, at a tensor or at what a module makes, by hooks alone."""
    model = seeded(make)
    one = {k: v[:1].clone() for k, v in inputs.items()}
    leaf: list[Tensor] = []

    def hold(*args: Any) -> Tensor:
        leaf.append(args[-1].detach().clone().requires_grad_())
        return leaf[0]

    if entrance:
        model.get_submodule(entrance).register_forward_hook(hold)
    else:
        one[name] = hold(one[name])
    (gradient,) = torch.autograd.grad(model(**one)[0, TARGET], leaf)
    return (leaf[0] * gradient).detach()[0]


def scores(make: Any, inputs: dict[str, Tensor], method: str, **options: Any) -> wf.types.Explanation:
    return wf.explain(seeded(make), inputs, method=method, target=TARGET, progress=False, **options)[0]


SERIES = {"values": randn(2, STEPS, 5, seed=1), "times": randn(2, STEPS, 5, seed=2)}
PICTURE = {"condition": randn(2, 7, seed=1), "image": randn(2, 3, 32, 32, seed=2)}
WORDS = {"input_ids": randint(1, 30, 2, STEPS), "features": randn(2, STEPS, WIDTH, seed=2)}


def test_gradients_are_taken_where_the_named_tensor_enters_not_another_one():
    expected = at(Late, SERIES, "values", "value").sum(-1)
    torch.testing.assert_close(torch.tensor(scores(Late, SERIES, "input_x_gradient").scores), expected)


def test_a_picture_that_comes_second_is_the_one_that_gradients_are_of():
    expected = at(Conditioned, PICTURE, "image").sum(0).reshape(4, 8, 4, 8).sum((1, 3)).flatten()
    torch.testing.assert_close(torch.tensor(scores(Conditioned, PICTURE, "input_x_gradient").scores), expected)


def test_words_beside_vectors_as_wide_as_they_are():
    expected = at(Worded, WORDS, "input_ids", "words").sum(-1)
    torch.testing.assert_close(torch.tensor(scores(Worded, WORDS, "input_x_gradient").scores), expected)


def test_vectors_are_put_back_where_they_entered_also_beside_a_mask_of_numbers():
    inputs = {"values": SERIES["values"], "padding_mask": torch.zeros(2, STEPS)}
    whole = scores(Masked, inputs, "integrated_gradients", at="embeddings", steps=200)
    model = seeded(Masked)
    base = model.read(torch.zeros(1, STEPS, WIDTH))[0, TARGET].item()
    assert float(whole.scores.sum()) == pytest.approx(whole.value - base, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("make", "inputs", "main", "other"),
    [(Late, SERIES, "values", "times"), (Conditioned, PICTURE, "image", "condition"),
     (Worded, WORDS, "input_ids", "features")],
)  # fmt: skip
def test_what_is_no_unit_is_named(make: Any, inputs: dict[str, Tensor], main: str, other: str, method: str):
    (told,) = [w for w in scores(make, inputs, method).warnings if "the model also reads" in w]
    assert f"also reads {other}," in told and f"is {main} alone" in told


def test_masks_and_segments_are_no_such_thing():
    inputs = {"values": SERIES["values"], "padding_mask": torch.zeros(2, STEPS)}
    assert not [w for w in scores(Masked, inputs, "occlusion").warnings if "the model also reads" in w]
