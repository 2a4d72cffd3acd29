"""attention_gradcam against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import TARGET, close, explained, golden, meets_golden
from tests.models import CASES

METHOD = {"method": "attention_gradcam"}


def test_several_layers_are_averaged() -> None:
    both = explained("bert", **METHOD, layer="mean")[0]
    single = [explained("bert", **METHOD, layer=i)[0] for i in range(2)]
    close(both.matrix, (np.asarray(single[0].matrix) + np.asarray(single[1].matrix)) / 2)
    close(explained("bert", **METHOD, layer=[0, 1])[0].scores, both.scores)


@pytest.mark.parametrize("row", [0, 1])
def test_golden(row: int) -> None:
    case = golden()
    found = wf.explain(case.model, case.inputs, target=case.target, **METHOD)[row]
    whole = np.asarray(found.matrix)
    meets_golden(found.scores, "attn_gradcam.raw", row)
    meets_golden(whole, "attn_gradcam.full", row)
    scaled = (whole - whole.min()) / (whole.max() - whole.min())  # as the authors show it
    scaled[0, 0] = 0
    meets_golden(scaled[0], "te.attn_gradcam", row)


def test_order_of_heads_does_not_matter_and_scores_are_not_negative() -> None:
    import copy

    from tests.methods.properties import model_of

    model = copy.deepcopy(model_of("bert"))
    order = [2, 0, 3, 1]
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        with torch.no_grad():
            for linear in (attention.query, attention.key, attention.value):
                linear.weight.copy_(linear.weight.unflatten(0, (4, -1))[order].flatten(0, 1))
                linear.bias.copy_(linear.bias.unflatten(0, (4, -1))[order].flatten())
            out = layer.attention.output.dense.weight
            out.copy_(out.unflatten(1, (4, -1))[:, order].flatten(1, 2))
    inputs = CASES["bert"].inputs()
    for before, after in zip(
        explained("bert", **METHOD), wf.explain(model, inputs, target=TARGET, **METHOD), strict=True
    ):
        close(after.scores, before.scores)
        assert (before.scores >= 0).all()
