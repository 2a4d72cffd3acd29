"""Models that read more than the tensor whose positions are the units: a second series, a condition, an own token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randint, randn, seeded

WIDTH, STEPS, TARGET = 16, 6, 1
METHODS = ["generic_attention", "input_x_gradient", "occlusion"]


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


@pytest.mark.parametrize(
    ("make", "inputs", "name", "entrance"),
    [(Late, SERIES, "values", "value"), (Conditioned, PICTURE, "image", ""), (Worded, WORDS, "input_ids", "words")],
)
def test_gradients_are_taken_where_the_named_tensor_enters(make: Any, inputs: Any, name: str, entrance: str):
    expected = at(make, inputs, name, entrance)
    pixels = name == "image"
    expected = expected.sum(0).reshape(4, 8, 4, 8).sum((1, 3)).flatten() if pixels else expected.sum(-1)
    torch.testing.assert_close(torch.tensor(scores(make, inputs, "input_x_gradient").scores), expected)


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


# A token of the model's own among the vectors


VECTORS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


class Summary(nn.Module):
    """A token of its own, in front or behind, reads the vectors; padding is hidden."""

    def __init__(self, behind: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.behind, self.own, self.head = behind, nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        own, shown = self.own.expand(len(features), -1, -1), torch.ones_like(mask[:, :1])
        x = torch.cat([features, own] if self.behind else [own, features], 1)
        hidden = ~torch.cat([mask, shown] if self.behind else [shown, mask], 1).bool()
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        logits: Tensor = self.head(x[:, -1 if self.behind else 0])
        return logits


@pytest.mark.parametrize("method", ["generic_attention", "integrated_gradients", "occlusion", "attn_lrp"])
def test_padding_is_no_unit_and_changes_nothing(method: str) -> None:
    model = Summary(behind=False).eval()
    together = wf.explain(model, {"features": VECTORS, "mask": MASK}, method=method, target=0)
    for row, (explanation, count) in enumerate(zip(together, (3, 5), strict=True)):
        names = [f"features[{i}]" for i in range(count)]
        own = int(np.flatnonzero(explanation.units.special)[0])
        assert [label for i, label in enumerate(explanation.units.labels) if i != own] == names
        alone = {"features": VECTORS[row : row + 1, :count], "mask": MASK[row : row + 1, :count]}
        (one,) = wf.explain(model, alone, method=method, target=0)
        np.testing.assert_allclose(explanation.scores, one.scores, atol=1e-5)


@pytest.mark.parametrize("behind", [False, True])
def test_integrated_gradients_start_at_the_vectors_and_leave_the_models_own_token(behind: bool) -> None:
    net = Summary(behind).eval()
    nodes, weights = np.polynomial.legendre.leggauss(50)
    mask = MASK[1:]

    def gradient(vectors: Tensor) -> Tensor:
        leaf = vectors.clone().requires_grad_()
        return torch.autograd.grad(net(leaf, mask)[0, 0], leaf)[0]

    path = sum(w / 2 * gradient(VECTORS[1:] * float((t + 1) / 2)) for t, w in zip(nodes, weights, strict=True))
    expected = (VECTORS[1:] * path).sum(-1)[0]
    (explanation,) = wf.explain(net, {"features": VECTORS[1:], "mask": mask}, method="integrated_gradients", target=0)
    special = np.array(explanation.units.special)
    np.testing.assert_allclose(explanation.scores[~special], expected, atol=1e-4)
    assert explanation.scores[special] == 0
