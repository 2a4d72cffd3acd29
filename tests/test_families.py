"""Every family: each attention call is seen, equals the model's own, has gradients, and leaves the output alone.

This table is the "supported" table of the docs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES, Case, model_of, run
from whyformer.capture.intercept import Intercept
from whyformer.capture.record import sites_of
from whyformer.capture.roles import Observe, Recorder
from whyformer.loan.borrow import borrowed, module_names

ALL = [(name, implementation) for name, case in CASES.items() for implementation in case.implementations]
EACH = pytest.mark.parametrize(("name", "implementation"), ALL, ids=[f"{n}-{i or 'own'}" for n, i in ALL])
# torch's fused encoder kernel is turned off by any function mode; what runs instead agrees to rounding.
FUSED = {"nn_transformer_encoder", "nn_transformer_encoder_prenorm", "nn_transformer_encoder_seq_first",
         "nn_transformer_encoder_prenorm_seq_first", "nn_transformer"}  # fmt: skip


def outputs(case: Case, model: nn.Module, intercept: Intercept | None = None) -> Tensor:
    inputs = case.inputs()
    if intercept is None:
        return case.logits(run(model, inputs))
    with intercept:
        return case.logits(run(model, inputs))


@cache
def reference_of(name: str) -> dict[int, Tensor]:
    return CASES[name].reference()


@EACH
def test_every_attention_is_seen_and_equals_the_models_own(name: str, implementation: str | None) -> None:
    case, model = CASES[name], model_of(name, implementation)
    with borrowed(model), torch.no_grad():
        intercept = Observe(2, module_names(model))
        seen = outputs(case, model, intercept)
        plain = outputs(case, model)
    sites = sites_of(intercept, values=True)
    assert len(sites) == case.sites
    assert intercept.unclaimed == ()
    if name in FUSED:
        torch.testing.assert_close(seen, plain, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(seen, plain), "observing changed the output"
    for index, reference in reference_of(name).items():
        torch.testing.assert_close(sites[index].attention_BHQK, reference, rtol=0, atol=1e-5)
        B, H, _, K = reference.shape
        assert sites[index].value_BHKD.shape[:3] == (B, H, K)


@EACH
def test_recorded_attention_has_gradients_and_the_output_agrees(name: str, implementation: str | None) -> None:
    case, model = CASES[name], model_of(name, implementation)
    with borrowed(model), torch.enable_grad():
        recorder = Recorder(2, module_names(model))
        logits = outputs(case, model, recorder)
        gradients = recorder.gradients(logits.sum())
        with torch.no_grad():
            plain = outputs(case, model)
    scale = plain.abs().max().clamp(min=1)
    torch.testing.assert_close(logits / scale, plain / scale, rtol=0, atol=5e-6 if name in FUSED else 2e-6)
    reached = [bool(g.abs().max() > 0) for g in gradients]
    silent = {"lxmert": 2}.get(name, 0)  # the image side of the last cross layer does not feed the answer
    assert reached.count(False) == silent


SELF_ONLY = [n for n, c in CASES.items() if c.self_only and n != "swin"]


@pytest.mark.parametrize("name", SELF_ONLY)
def test_generic_attention_is_the_readout_row_of_the_product(name: str) -> None:
    """scores = row of prod(I + mean_h relu(A∘∂A)), from the record itself, per input."""
    case = CASES[name]
    explainer = wf.Explainer(model_of(name))
    inputs = case.inputs()
    found = explainer.explain(inputs, method="generic_attention", target=1)
    record = explainer.record(inputs, grad=True, target=1)
    for row, explanation in enumerate(found):
        expected = product_row(record, row, case, explanation)
        torch.testing.assert_close(torch.from_numpy(explanation.scores), expected, rtol=1e-5, atol=1e-5)


def product_row(record: wf.Record, row: int, case: Case, explanation: wf.Explanation) -> Tensor:
    count = len(explanation.scores)
    width = record.sites[0].attention_BHQK.shape[-1]
    left = case.name == "xlnet"
    real = slice(width - count, width) if left else slice(0, count)
    if case.name in {"visual_bert", "vilt"}:  # text, then boxes or patches: padding is in the middle
        real = [i for i in range(width) if i not in range(7, 10)] if row else list(range(width))
    relevance = torch.eye(count)
    for site in record.sites:
        layer = (site.attention_BHQK[row] * site.attention_grad_BHQK[row]).clamp(min=0).mean(0)
        if layer.shape[0] == 1:  # FT-Transformer's last block asks for CLS only
            relevance = relevance[:1] + layer @ relevance
        else:
            relevance = relevance + layer[real][:, real] @ relevance
    rows = {"last": [-1], "before_last": None, "mean": None, None: None}.get(case.readout, [case.readout])
    if case.readout == "mean":
        rows = list(range(1, count)) if case.name == "beit" else list(range(count))
    if case.readout == "before_last":
        rows = [(10, 7)[row] - 2]
    if case.readout is None:
        rows = {"deit_distilled": [0, 1], "lucidrains_tab_transformer": list(range(count))}.get(case.name, [0])
    return relevance[rows].mean(0)


def test_flex_attention_models_are_switched_to_sdpa_and_back() -> None:
    case = CASES["llama"]
    reference: Any = wf.explain(case.build("sdpa"), case.inputs(), method="attention_rollout")
    model = case.build("sdpa")
    model.config._attn_implementation = "flex_attention"
    found = wf.explain(model, case.inputs(), method="attention_rollout")
    assert model.config._attn_implementation == "flex_attention"
    assert (found[0].scores == reference[0].scores).all()
