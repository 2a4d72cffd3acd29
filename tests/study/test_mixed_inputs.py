"""Inputs of a batch that change each other's answers are run singly, and the results say so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from whyformer.errors import MixedInputs
from whyformer.study.interference import SINGLY

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12], [13, 3, 14, 5, 15]])
METHODS = ["attention_rollout", "generic_attention", "input_x_gradient", "integrated_gradients", "occlusion"]


class Mixing(nn.Module):
    """One layer of attention. ``how``: what is taken over all rows of the batch, if anything."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.embed, self.head = how, nn.Embedding(20, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.how == "mean":
            x = x - x.mean(0, keepdim=True) / 2
        if self.how == "maximum":  # one row has it, and is not changed by the others
            x = x / x.abs().amax((0, 2), keepdim=True)
        logits: Tensor = self.head(self.layer(x)[:, 0])
        return logits


def options(method: str) -> dict[str, object]:
    return {"replace": 1} if method == "occlusion" else {}


@pytest.mark.parametrize("how", ["mean", "maximum"])
@pytest.mark.parametrize("method", METHODS)
def test_each_is_explained_as_it_is_by_itself(method: str, how: str) -> None:
    model = Mixing(how).eval()
    together = wf.explain(model, {"input_ids": IDS}, method=method, target=0, **options(method))
    for row, explanation in enumerate(together):
        one = {"input_ids": IDS[row : row + 1]}
        (alone,) = wf.explain(Mixing(how).eval(), one, method=method, target=0, batch_size=1, **options(method))
        with torch.no_grad():
            assert explanation.value == pytest.approx(float(model(**one)[0, 0]), abs=1e-5)
        np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-6)
        assert SINGLY in explanation.warnings


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients", "smooth_grad"])
def test_variants_of_a_single_input_are_run_singly(method: str) -> None:
    one = {"input_ids": IDS[:1]}
    (explanation,) = wf.explain(Mixing("mean").eval(), one, method=method, target=0, **options(method))
    (alone,) = wf.explain(Mixing("mean").eval(), one, method=method, target=0, batch_size=1, **options(method))
    np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-6)
    assert SINGLY in explanation.warnings
    assert SINGLY not in alone.warnings, "nothing was beside it, and nothing is known"


@pytest.mark.parametrize("method", METHODS)
def test_others_stay_together_and_it_is_tried_once(method: str) -> None:
    explainer = wf.Explainer(Mixing().eval())
    first, second = (
        explainer.explain({"input_ids": IDS}, method=method, target=0, **options(method))[0] for _ in range(2)
    )
    assert SINGLY not in first.warnings
    assert first.cost.setup_forwards > second.cost.setup_forwards == 0


def test_it_is_known_of_the_model_from_then_on() -> None:
    model = Mixing("mean").eval()
    wf.explain(model, {"input_ids": IDS}, method="attention_rollout", target=0)
    (explanation,) = wf.explain(model, {"input_ids": IDS[:1]}, method="occlusion", target=0, replace=1)
    assert SINGLY in explanation.warnings
    assert explanation.cost.setup_forwards == 0


def test_verbs_that_run_inputs_together_refuse_or_run_them_singly() -> None:
    importance = wf.head_importance(Mixing("mean").eval(), {"input_ids": IDS}, kind="gradient", target=0)
    each = [
        wf.head_importance(Mixing("mean").eval(), {"input_ids": IDS[i : i + 1]}, kind="gradient", target=0).scores
        for i in range(len(IDS))
    ]
    np.testing.assert_allclose(importance.scores, np.mean(each, 0), atol=1e-6)
    with pytest.raises(MixedInputs, match="batch_size=1"):
        wf.Explainer(Mixing("mean").eval()).record({"input_ids": IDS}, grad=True, target=0)
