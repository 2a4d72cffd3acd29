"""The first explanation by gradients of attention: its passes, and what each of them refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whyformer as wf
from tests.models import CASES
from tests.study.test_replay import IDS, PICTURE, Model
from tests.study.test_slopes import Reversed
from whyformer.capture import intercept, roles
from whyformer.errors import CaptureError, NotOffered, PartlyCaptured, WhyformerError

METHOD = "generic_attention"


def refused(model: nn.Module, inputs: dict[str, Tensor], how: Any, match: str = ".") -> None:
    explainer = wf.Explainer(model)
    explainer.advises = False  # which methods would run instead is not asked here
    with pytest.raises(how, match=match):
        explainer.explain(inputs, method=METHOD, target=0)


def counted(model: nn.Module) -> list[int]:
    calls: list[int] = []
    model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    return calls


@pytest.mark.parametrize(("inputs", "passes"), [(IDS, 8), (PICTURE, 9)], ids=["text", "picture"])
def test_the_first_explanation_takes_these_passes(inputs: dict[str, Tensor], passes: int) -> None:
    model = Model(picture=inputs is PICTURE).eval()
    calls = counted(model)
    first = wf.explain(model, inputs, method=METHOD, target=0)[0]
    assert len(calls) == passes == first.cost.setup_forwards + first.cost.forwards
    assert first.cost.backwards == 1
    again = wf.explain(model, inputs, method=METHOD, target=0)[0]
    assert (len(calls), again.cost.setup_forwards) == (passes + 1, 0)
    np.testing.assert_array_equal(first.scores, again.scores)


@pytest.mark.parametrize("method", ["generic_attention", "transformer_attribution", ["grad_sam", "attention_rollout"]])
def test_one_input_by_gradients_is_as_it_is_beside_another(method: Any) -> None:
    """Of two inputs nothing is shared with the study."""

    def scores(model: nn.Module, inputs: dict[str, Tensor]) -> list[np.ndarray[Any, Any]]:
        results = wf.explain(model, inputs, method=method, target=0)
        return [results[name][0].scores for name in method] if isinstance(method, list) else [results[0].scores]

    two = {"input_ids": torch.cat([IDS["input_ids"], IDS["input_ids"].flip(1)])}
    for alone, beside in zip(scores(Model().eval(), IDS), scores(Model().eval(), two), strict=True):
        np.testing.assert_allclose(alone, beside, atol=1e-5 * np.abs(beside).max())


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
@pytest.mark.parametrize("wrong", ["values", "conv", "far", "flip", "gate", "mean", "unseen"])
def test_what_passes_between_positions_outside_attention_is_refused(wrong: str, picture: bool) -> None:
    inputs = PICTURE if picture else IDS
    refused(Model(wrong, picture).eval(), inputs, PartlyCaptured, "exchange information outside")


@pytest.mark.parametrize("picture", [False, True])
def test_what_the_model_writes_over_is_recorded_anew(picture: bool) -> None:
    model, inputs = Model("over", picture).eval(), PICTURE if picture else IDS
    first, second = (wf.explain(model, inputs, method="attention_rollout", target=0)[0] for _ in range(2))
    np.testing.assert_array_equal(first.scores, second.scores)
    with pytest.raises(RuntimeError, match="inplace operation"):  # as its own backward would say
        wf.explain(model, inputs, method=METHOD, target=0)


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
