"""The first explanation of a model with torch's own attention: its passes, and what each check refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whyformer as wf
from tests.models import CASES
from tests.study.test_slopes import Reversed
from whyformer.capture import intercept, roles
from whyformer.errors import CaptureError, NotOffered, PartlyCaptured, WhyformerError
from whyformer.study import Study

METHOD = "generic_attention"
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


def refused(model: nn.Module, inputs: dict[str, Tensor], how: Any, match: str = ".") -> None:
    explainer = wf.Explainer(model)
    explainer.advises = False  # which methods would run instead is not asked here
    with pytest.raises(how, match=match):
        explainer.explain(inputs, method=METHOD, target=0)


def counted(model: nn.Module) -> list[int]:
    calls: list[int] = []
    model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    return calls


@pytest.mark.parametrize("method", ["attention_rollout", METHOD])
@pytest.mark.parametrize(("inputs", "passes"), [(IDS, 7), (PICTURE, 8)], ids=["text", "picture"])
def test_the_first_explanation_takes_these_passes(inputs: dict[str, Tensor], passes: int, method: str) -> None:
    model, gradients = Model(picture=inputs is PICTURE).eval(), int(method == METHOD)
    calls = counted(model)
    first = wf.explain(model, inputs, method=method, target=0)[0]
    assert len(calls) == passes + gradients == first.cost.setup_forwards + first.cost.forwards
    assert first.cost.backwards == gradients
    again = wf.explain(model, inputs, method=method, target=0)[0]
    assert (len(calls), again.cost.setup_forwards) == (passes + gradients + 1, 0)
    np.testing.assert_array_equal(first.scores, again.scores)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.units != "columns" and n != "detr"])
def test_the_first_explanation_of_one_input_is_the_second(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    one: Any = {key: value[:1] for key, value in inputs.items()} if isinstance(inputs, dict) else inputs[0][:1]
    calls = counted(model)
    results: list[Any] = []
    for _ in range(2):
        calls.clear()
        try:
            found = wf.explain(model, one, method=METHOD, target=0)[0]
        except WhyformerError as error:
            results.append(type(error))
            continue
        asked = name == "siglip"  # which row ends its text is asked of each input anew
        assert len(calls) == found.cost.setup_forwards + found.cost.forwards + asked
        results.append(found.scores)
    np.testing.assert_allclose(*results, rtol=1e-5) if isinstance(results[0], np.ndarray) else None
    assert type(results[0]) is type(results[1])


@pytest.mark.parametrize("picture", [False, True])
def test_a_model_that_writes_over_its_queries_has_no_gradients(picture: bool) -> None:
    with pytest.raises(RuntimeError, match="inplace operation"):  # as its own backward would say
        wf.explain(Model("over", picture).eval(), PICTURE if picture else IDS, method=METHOD, target=0)


class Cut(Model):
    """A model in which what some layers say passes through ``change`` on its way on."""

    def __init__(self, change: Callable[[Tensor], Tensor], at: tuple[int, ...], picture: bool = False) -> None:
        super().__init__(picture=picture)
        for number in at:
            self.layers[number]["out"].register_forward_hook(lambda module, args, out: change(out))


def without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 1.0


def other_way_with_gradients(x: Tensor) -> Tensor:
    return x * 1.5 if torch.is_grad_enabled() else x


def other_way_when_watched(x: Tensor) -> Tensor:
    return x * 1.5 if torch._C._len_torch_function_stack() else x


def slightly_another_when_watched(x: Tensor) -> Tensor:
    return x * 1.05 if torch._C._len_torch_function_stack() else x


CUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda x: x.detach(),
    "no_grad": without_graph,
    "reversed": Reversed.apply,  # type: ignore[no-untyped-call]
    "half of its width": lambda x: torch.cat([x[..., :8].detach(), x[..., 8:]], -1),
    "every other position": lambda x: torch.where(torch.arange(x.shape[1])[:, None] % 2 == 0, x.detach(), x),
    "all but the last positions": lambda x: torch.cat([x[:, :-20].detach(), x[:, -20:]], 1),
    "data": lambda x: x.data,
    "numbers": lambda x: torch.tensor(x.tolist()),
}


@pytest.mark.parametrize("picture", [False, True])
@pytest.mark.parametrize("at", [(1,), (0, 1, 2)], ids=["one", "all"])
@pytest.mark.parametrize("how", CUTS)
def test_gradients_that_are_no_slope_are_refused(how: str, at: tuple[int, ...], picture: bool) -> None:
    model = Cut(CUTS[how], at, picture).eval()
    for _ in range(1 + (how == "reversed")):  # what was refused is not remembered as held
        refused(model, PICTURE if picture else IDS, (CaptureError, NotOffered))


@pytest.mark.parametrize("picture", [False, True])
@pytest.mark.parametrize("way", [other_way_with_gradients, other_way_when_watched, slightly_another_when_watched])
def test_a_model_that_says_something_else_while_it_is_looked_into_is_refused(
    way: Callable[[Tensor], Tensor], picture: bool
) -> None:
    model = Cut(way, (1,), picture).eval()
    refused(model, PICTURE if picture else IDS, NotOffered, "something else while it is looked into")


class Recomputed(Model):
    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        said: Tensor = checkpoint(super().forward, input_ids, pixel_values, use_reentrant=False)
        return said


def test_layers_that_are_recomputed_say_the_same() -> None:
    plain, recomputed = (kind().eval() for kind in (Model, Recomputed))
    expected = wf.explain(plain, IDS, method=METHOD, target=0)[0].scores
    for _ in range(2):
        found = wf.explain(recomputed, IDS, method=METHOD, target=0)[0].scores
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def quiet(model: Model, share: float = 0.1) -> Model:
    """Return the model with smaller logits, beside which rounding errors are larger."""
    with torch.no_grad():
        model.head.weight.mul_(share)
        model.head.bias.mul_(share)
    return model


@pytest.mark.parametrize("how", CUTS)
def test_gradients_that_are_no_slope_are_refused_where_logits_are_small(how: str) -> None:
    refused(quiet(Cut(CUTS[how], (0, 1, 2))).eval(), IDS, (CaptureError, NotOffered))


class Aside(Model):
    """What it says of the last class is another when someone looks: by some of the largest logit."""

    share = 0.0

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        said: Tensor = super().forward(input_ids, pixel_values)
        if torch._C._len_torch_function_stack():
            said = said + self.share * said.detach().abs().max() * torch.tensor([0.0, 0.0, 1.0])
        return said


def test_every_class_is_held_to_what_the_model_says_by_itself() -> None:
    model = Aside().eval()
    model.share = 2e-3  # two roundings
    refused(model, IDS, NotOffered, "something else while it is looked into")


@pytest.mark.parametrize("by", [0.9, 1.1])
def test_gradients_that_are_made_wrongly_are_refused(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = roles.all_gradients
    monkeypatch.setattr(roles, "all_gradients", lambda *of: [by * gradient for gradient in right(*of)])
    refused(Model().eval(), IDS, CaptureError, "not the slope")


def test_maps_that_are_made_wrongly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = intercept.all_weights
    monkeypatch.setattr(intercept, "all_weights", lambda calls: [weights.flip(-1) for weights in right(calls)])
    refused(Model().eval(), IDS, CaptureError, "not the slope")


class Mixing(Model):
    """Inputs of a batch hear of each other."""

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        said: Tensor = super().forward(input_ids, pixel_values)
        return said - said.mean(0, keepdim=True) / 2


def test_inputs_that_change_each_other_are_run_singly() -> None:
    two = {"input_ids": torch.cat([IDS["input_ids"], IDS["input_ids"].flip(1)])}
    together = wf.explain(Mixing().eval(), two, method=METHOD, target=0)
    for row, found in enumerate(together):
        alone = wf.explain(Mixing().eval(), {"input_ids": two["input_ids"][row : row + 1]}, method=METHOD, target=0)
        np.testing.assert_allclose(found.scores, alone[0].scores, atol=1e-6)
        assert any("was run by itself" in warning for warning in found.warnings)
