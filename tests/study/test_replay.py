"""What the study of a model with torch's own attention refuses, and how many passes it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from whyformer.errors import CaptureError, PartlyCaptured
from whyformer.study import Study

IDS = {"input_ids": torch.randint(2, 40, (1, 48), generator=torch.Generator().manual_seed(0))}
PICTURE = {"pixel_values": torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(1))}
LAYERS, WIDTH, HEADS = 3, 16, 2


class Model(nn.Module):
    """Torch's own attention over a text or a picture, and one thing that is wrong with it."""

    def __init__(self, wrong: str = "", picture: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wrong, self.picture = wrong, picture
        self.embed = nn.Conv2d(3, WIDTH, 8, 8) if picture else nn.Embedding(40, WIDTH)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 64, WIDTH))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH)}
            )
            for _ in range(LAYERS)
        )
        self.near = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        if self.picture:
            assert pixel_values is not None
            x = self.embed(pixel_values).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        else:
            x = self.embed(input_ids)
        x = x + self.places[:, : x.shape[1]]
        for number, layer in enumerate(self.layers):
            q, k, v = layer["qkv"](x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
            if self.wrong == "values":
                v = v + 0.1 * v.roll(1, 2)
            said = F.scaled_dot_product_attention(q, k, v)
            if self.wrong == "over":
                q.zero_()
                said.mul_(2)
            x = layer["norm"](x + layer["out"](said.transpose(1, 2).flatten(2)))
            if self.wrong == "conv":
                x = x + self.near(x.transpose(1, 2)).transpose(1, 2)
            elif self.wrong == "far":  # further than a short text goes
                x = x + 0.1 * x.roll(20, 1)
            elif self.wrong == "flip":
                x = x + 0.5 * x.flip(1)
            elif self.wrong == "gate":  # a mean over positions, which does not hear when they trade places
                x = x * (4 * x.mean(1, keepdim=True)).sigmoid()
            elif self.wrong == "mean":
                x = x + 1e-3 * x.mean(1, keepdim=True)
            elif self.wrong == "unseen" and number == LAYERS - 1:
                x = x + (x @ x.transpose(1, 2)) @ x / x.shape[1] ** 2
        return self.head(self._read(x, input_ids))

    def _read(self, x: Tensor, ids: Tensor | None) -> Tensor:
        rows = torch.arange(len(x))
        if self.wrong == "largest id":
            assert ids is not None
            return x[rows, ids.argmax(1)]
        if self.wrong == "loudest":
            return x[rows, x[:, 1:].norm(dim=2).argmax(1) + 1]
        if self.wrong == "short":  # other ways with few tokens
            return x[:, -1] if x.shape[1] < 20 else x[:, 0]
        return x[:, 0]


def studied(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Study, int]:
    """What is found out, and in how many passes; the first of them are counted as they run."""
    calls: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    study = wf.Explainer(model).study(inputs)
    handle.remove()
    assert study.forwards == len(calls)
    return study, len(calls)


@pytest.mark.parametrize(("picture", "passes"), [(False, 5), (True, 6)])
def test_a_model_without_defects_is_studied(picture: bool, passes: int) -> None:
    study, count = studied(Model(picture=picture).eval(), PICTURE if picture else IDS)
    assert (str(study.readout), study.leak.found, count) == ("first position", False, passes)
    assert study.leak.checked > 2 * LAYERS


@pytest.mark.parametrize("picture", [False, True])
@pytest.mark.parametrize("wrong", ["values", "conv", "far", "flip", "gate", "mean", "unseen"])
def test_what_passes_between_positions_outside_attention_is_refused(wrong: str, picture: bool) -> None:
    with pytest.raises(PartlyCaptured, match="exchange information outside"):
        wf.explain(Model(wrong, picture).eval(), PICTURE if picture else IDS, method="attention_rollout", target=0)


def test_rows_that_are_found_by_content_are_no_rule() -> None:
    ids = IDS["input_ids"].clone()
    ids[0, 0] = 39  # the first position, for this text
    study, _ = studied(Model("largest id").eval(), {"input_ids": ids})
    assert study.readout is not None
    assert study.readout.kind == "rows"
    with pytest.raises(CaptureError, match="by what stands there"):
        wf.explain(Model("loudest", picture=True).eval(), PICTURE, method="attention_rollout", target=0)


def test_a_model_that_changes_its_ways_with_the_length_is_asked_at_its_length() -> None:
    study, count = studied(Model("short").eval(), IDS)
    assert (str(study.readout), study.leak.found, count) == ("first position", False, 5)


@pytest.mark.parametrize("wrong", ["", "over"])
@pytest.mark.parametrize("picture", [False, True])
def test_the_first_explanation_is_the_second(wrong: str, picture: bool) -> None:
    model, inputs = Model(wrong, picture).eval(), PICTURE if picture else IDS
    first, second = (wf.explain(model, inputs, method="attention_rollout", target=0)[0] for _ in range(2))
    np.testing.assert_array_equal(first.scores, second.scores)
    assert (first.value, second.cost.setup_forwards) == (second.value, 0)


@pytest.mark.parametrize(("inputs", "passes"), [(IDS, 7), (PICTURE, 8)], ids=["text", "picture"])
def test_the_first_explanation_takes_these_passes(inputs: dict[str, Tensor], passes: int) -> None:
    model, calls = Model(picture=inputs is PICTURE).eval(), []
    model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    found = wf.explain(model, inputs, method="attention_rollout", target=0)[0]
    assert len(calls) == passes == found.cost.setup_forwards + found.cost.forwards
