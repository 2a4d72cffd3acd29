"""Weights that are elsewhere: on the meta device, brought for each pass by a hook, or by nobody."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.models import CASES, model_of
from whyformer.errors import NotOffered

METHODS = ["generic_attention", "attention_rollout", "occlusion", "integrated_gradients", "attn_lrp", "value_norms"]
FEW: dict[str, dict[str, int]] = {"integrated_gradients": {"steps": 4}}


class AlignDevices:
    """What accelerate's AlignDevicesHook does with offload=True."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self.execution_device = weights, torch.device("cpu")

    def place(self, module: nn.Module, device: str) -> None:
        for name, weight in self.weights.items():
            before = module._parameters[name]
            assert before is not None
            module._parameters[name] = nn.Parameter(weight.to(device), requires_grad=before.requires_grad)


def offloaded(model: nn.Module) -> nn.Module:
    """As accelerate.cpu_offload leaves a model: every forward wrapped, every weight on the meta device."""
    for module in model.modules():
        weights = {name: p.detach().clone() for name, p in module._parameters.items() if p is not None}
        if not weights:
            continue
        hook = AlignDevices(weights)

        def forward(module: Any, *args: Any, **named: Any) -> Any:
            module._hf_hook.place(module, "cpu")
            out = module._old_forward(*args, **named)
            module._hf_hook.place(module, "meta")
            return out

        module._hf_hook, module._old_forward = hook, module.forward
        module.forward = functools.update_wrapper(functools.partial(forward, module), module.forward)
        hook.place(module, "meta")
    return model


@functools.cache
def elsewhere(name: str) -> nn.Module:
    return offloaded(CASES[name].build("sdpa"))


def same_scores(name: str, model: nn.Module, method: str) -> None:
    expected, results = (
        wf.explain(m, CASES[name].inputs(), method=method, target=1, **FEW.get(method, {}))
        for m in (model_of(name), model)
    )
    for one, other in zip(expected, results, strict=True):
        np.testing.assert_allclose(other.scores, one.scores, atol=1e-6)
        assert other.value == pytest.approx(one.value, abs=1e-6)


@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("method", METHODS)
def test_offloaded_weights_give_the_same_scores(name: str, method: str) -> None:
    same_scores(name, elsewhere(name), method)


def test_offloaded_weights_are_handed_back_as_they_were() -> None:
    model = offloaded(CASES["bert"].build("sdpa"))
    model.classifier.weight.requires_grad = False
    before = {name: (p.device, p.requires_grad) for name, p in model.named_parameters()}
    assert {device.type for device, _ in before.values()} == {"meta"}
    wf.explain(model, CASES["bert"].inputs(), method="saliency")
    assert {name: (p.device, p.requires_grad) for name, p in model.named_parameters()} == before


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_a_weight_that_nobody_brings_is_refused(method: str) -> None:
    model = CASES["bert"].build("sdpa")
    state = model.state_dict()
    model.classifier.weight = nn.Parameter(torch.empty_like(model.classifier.weight, device="meta"))
    with pytest.raises(NotOffered, match=r"classifier\.weight is on the meta device.*load_state_dict\(state, assign"):
        wf.explain(model, CASES["bert"].inputs(), method=method)
    model.load_state_dict(state, assign=True)  # as it advises
    assert len(wf.explain(model, CASES["bert"].inputs(), method=method)) == 2


# By accelerate itself: a map that spreads one model over the CPU, offloaded weights and a disk.


MAP = {
    "bert.embeddings": "cpu",
    "bert.encoder.layer.0": "disk",
    "bert.encoder.layer.1": "cpu",
    "bert.encoder.layer.2": "disk",
    "bert.pooler": "cpu",
    "classifier": "disk",
}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    from accelerate import dispatch_model

    model = CASES["bert"].build("sdpa")
    present = {name for name, _ in model.named_modules()}
    device_map = {name: place for name, place in MAP.items() if name in present}
    folder = str(tmp_path_factory.mktemp("weights"))
    return dispatch_model(model, device_map, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize("method", [*METHODS, "value_zeroing", "alti"])
def test_a_model_over_cpu_and_disk_gives_the_same_scores(method: str, on_disk: nn.Module) -> None:
    same_scores("bert", on_disk, method)
    assert {p.device.type for p in on_disk.parameters()} == {"cpu", "meta"}, "some weights stay on the disk"
