"""Experts of each token against the router's own logits and against experts computed one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.models.case import Inputs, alone
from tests.models.kinds import KINDS
from tests.support.released import experts_at_once
from whyformer.errors import NotOffered
from whyformer.views.view import view_of

ROUTED = ["gpt_oss", *(pytest.param(n, marks=experts_at_once) for n in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"))]


def built(name: str) -> tuple[Any, Inputs]:
    case = KINDS[name].case
    return case.build(None), case.inputs()


@pytest.mark.parametrize("name", ROUTED)
def test_the_chosen_experts_are_those_of_the_routers_logits(name: str) -> None:
    model, inputs = built(name)
    for row, found in enumerate(wf.heads.experts(model, inputs)):
        one = alone(inputs, row)
        with torch.no_grad():
            reported = model(**one, output_router_logits=True).router_logits
        assert found.count == 4 and len(found.paths) == len(reported)
        for layer, logits in enumerate(reported):
            wanted = logits.topk(2, -1).indices.sort(-1).values
            assert np.array_equal(np.sort(found.chosen[layer], -1), wanted)
            if name == "mixtral":  # softmax over all, the two largest sum to one
                weights = logits.softmax(-1).topk(2, -1).values
                np.testing.assert_allclose(found.weights[layer], weights / weights.sum(-1, keepdim=True), atol=1e-5)
        np.testing.assert_allclose(found.routed().sum(1), 1)
        np.testing.assert_allclose(found.shares().sum(1), 1)


@experts_at_once
def test_relevance_is_each_experts_output_times_the_gradient() -> None:
    """Mixtral's experts written out: down(silu(gate x) · up x), weighted by the router."""
    model, inputs = built("mixtral")
    one, kept = alone(inputs, 1), []
    found = wf.heads.experts(model, inputs, target=5)[1]
    module = model.model.layers[0].mlp.experts

    def hold(module: Any, args: Any, output: Tensor) -> Tensor:
        leaf = torch.zeros_like(output, requires_grad=True)
        kept.append((args, leaf))
        return output + leaf

    handle = module.register_forward_hook(hold)
    score = model(**one).logits[0, -1, 5]
    handle.remove()
    (states, chosen, weights), leaf = kept[0]
    (gradient,) = torch.autograd.grad(score, leaf)
    with torch.no_grad():
        for token in range(len(chosen)):
            for slot in range(2):
                expert, x = int(chosen[token, slot]), states[token]
                gate, up = (module.gate_up_proj[expert] @ x).chunk(2)
                out = module.down_proj[expert] @ (torch.nn.functional.silu(gate) * up) * weights[token, slot]
                assert found.relevance[0, token, slot] == pytest.approx(float(out @ gradient[token]), abs=1e-5)
    assert found.value == pytest.approx(float(score.detach()), abs=1e-4)
    assert (found.relevance[1, :-1] == 0).all()  # after the last attention, only the last token reaches the logits


@experts_at_once
def test_it_is_saved_drawn_and_given_as_a_table(tmp_path: Any) -> None:
    model, inputs = built("qwen3_moe")
    found = wf.heads.experts(model, inputs)[0]
    found.save(tmp_path / "experts.json")
    same = wf.load(tmp_path / "experts.json")
    np.testing.assert_allclose(same.relevance, found.relevance)
    frame = found.to_frame()
    assert list(frame.columns) == ["layer", "position", "token", "expert", "weight", "relevance"]
    assert len(frame) == found.chosen.size
    page = view_of(found)
    assert [panel.title for panel in page.panels][:2] == ["share of the tokens", "share of the relevance"]
    found.save(tmp_path / "experts.html")
    assert "share of the relevance" in (tmp_path / "experts.html").read_text(encoding="utf-8")


def test_a_model_without_experts_is_refused_and_left_as_it_was() -> None:
    model, inputs = built("llama")
    with pytest.raises(NotOffered, match=r"no experts were found.*need transformers 5"):
        wf.heads.experts(model, inputs)
    assert not any(module._forward_hooks for module in model.modules())
