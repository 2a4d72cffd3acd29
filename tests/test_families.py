"""Every family: each attention call is seen, equals the model's own, has gradients, and leaves the output alone.

This table is the "supported" table of the docs.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES, Case, model_of, run
from tests.models.case import alone, seeded, softmax_outputs
from tests.models.hf import text
from tests.models.kinds import KINDS
from tests.models.others import OTHERS, REFUSED, score
from tests.references.kinds import generic_attention
from tests.support.released import require_state_per_batch
from whyformer.capture.intercept import Intercept
from whyformer.capture.record import sites_of
from whyformer.capture.roles import Observe, Recorder
from whyformer.errors import CaptureError
from whyformer.loan.borrow import borrowed, module_names

ALL = [(name, implementation) for name, case in CASES.items() for implementation in case.implementations]
EACH = pytest.mark.parametrize(("name", "implementation"), ALL, ids=[f"{n}-{i or 'own'}" for n, i in ALL])
# torch's fused encoder kernel is turned off by any function mode; what runs instead agrees to rounding.
FUSED = {"nn_transformer_encoder", "nn_transformer_encoder_prenorm", "nn_transformer_encoder_seq_first",
         "nn_transformer_encoder_prenorm_seq_first", "nn_transformer"}  # fmt: skip


def outputs(case: Case, model: nn.Module, intercept: Intercept | None = None) -> Tensor:
    with intercept or nullcontext():
        return case.logits(run(model, case.inputs()))


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


SELF_ONLY = [n for n, c in CASES.items() if c.self_only and c.units not in {"windows", "several"}]


@pytest.mark.parametrize("name", SELF_ONLY)
def test_generic_attention_is_the_readout_row_of_the_product(name: str) -> None:
    """scores = row of prod(I + mean_h relu(A∘∂A)), by hand from the model's own maps, each input alone."""
    kind = KINDS[name]
    own = kind.case.build(kind.case.implementations[-1])  # transformers leaves hooks where maps were asked for
    results = wf.explain(model_of(name), kind.case.inputs(), method="generic_attention", target=TARGET)
    for row, found in enumerate(results):
        expected = generic_attention(kind.case, kind.rows, own, row, len(found.scores))
        torch.testing.assert_close(torch.from_numpy(found.scores), expected, rtol=1e-5, atol=1e-5)


def test_flex_attention_models_are_switched_to_sdpa_and_back() -> None:
    case = CASES["llama"]
    reference: Any = wf.explain(case.build("sdpa"), case.inputs(), method="attention_rollout")
    model = case.build("sdpa")
    model.config._attn_implementation = "flex_attention"
    found = wf.explain(model, case.inputs(), method="attention_rollout")
    assert model.config._attn_implementation == "flex_attention"
    assert (found[0].scores == reference[0].scores).all()


@pytest.mark.parametrize("name", ["vilt", "visual_bert"])
def test_generic_attention_of_a_text_before_boxes_or_patches(name: str) -> None:
    """The same from the record itself: padding is in the middle."""
    explainer, inputs = wf.Explainer(model_of(name)), CASES[name].inputs()
    record = explainer.record(inputs, grad=True, target=TARGET)
    for row, found in enumerate(explainer.explain(inputs, method="generic_attention", target=TARGET)):
        width = record.sites[0].attention_BHQK.shape[-1]
        real = [i for i in range(width) if not row or i not in range(7, 10)]
        relevance = torch.eye(len(found.scores))
        for site in record.sites:
            layer = (site.attention_BHQK[row] * site.attention_grad_BHQK[row]).clamp(min=0).mean(0)
            relevance = relevance + layer[real][:, real] @ relevance
        read = (10, 7)[row] - 2 if CASES[name].readout == "before_last" else 0
        torch.testing.assert_close(torch.from_numpy(found.scores), relevance[read], rtol=1e-5, atol=1e-5)


# Families beyond those of CASES: scores are those of the model's own eager attention, input by input.


TARGET = 1
METHODS = ["attention_rollout", "generic_attention"]


def expected(model: Any, case: Any, row: int) -> dict[str, Tensor]:
    """Rollout and generic attention by hand, of one input without padding, from the maps that the model returns."""
    with torch.enable_grad():
        output = model(**alone(case.inputs(), row), output_attentions=True)
        gradients = torch.autograd.grad(score(case, output, TARGET), output.attentions)
    count = output.attentions[0].shape[-1]
    eye = rollout = relevance = torch.eye(count)
    for attention, gradient in zip(output.attentions, gradients, strict=True):
        layer = attention[0].detach()
        rollout = (layer.mean(0) + eye) / (layer.mean(0) + eye).sum(-1, keepdim=True) @ rollout
        relevance = relevance + (layer * gradient[0]).clamp(min=0).mean(0) @ relevance
    rows: Any = {"last": [-1], "mean": slice(None), "all but first": slice(1, None), "first two": slice(2)}
    read = rows.get(case.readout, [case.readout])
    return {"attention_rollout": rollout[read].mean(0), "generic_attention": relevance[read].mean(0)}


@pytest.mark.parametrize("name", OTHERS)
def test_scores_are_those_of_the_models_own_attention(name: str) -> None:
    """Of the second input, which is padded where lengths vary."""
    case = OTHERS[name]
    found = wf.explain(case.build(case.implementations[0]), case.inputs(), method=METHODS, target=TARGET)
    # Built anew: some models choose their attention when they are made.
    own = expected(case.build(case.implementations[-1]), case, row=1)
    for method in METHODS:
        torch.testing.assert_close(torch.from_numpy(found[method][1].scores), own[method], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_no_map_where_attention_is_not_all_there_is(name: str) -> None:
    """Sparse, pooled or missing attention, convolutions and recurrences beside it: refused, and other methods work."""
    require_state_per_batch(name)
    case = REFUSED[name]
    explainer = wf.Explainer(case.build(case.implementations[0]))
    with pytest.raises(CaptureError, match="gradient or perturbation method"):
        explainer.explain(case.inputs(), method="generic_attention", target=TARGET)
    explainer.advises = False  # the advice would be the same
    with pytest.raises(CaptureError):
        explainer.explain(case.inputs(), method="attention_rollout", target=TARGET)
    found = explainer.explain(case.inputs(), method="occlusion", target=TARGET)
    assert all(explanation.scores.std() > 0 for explanation in found)


def test_latents_that_read_the_input_stand_between_it_and_the_answer() -> None:
    """Perceiver, rules 6, 7, 10 and 11 by hand: latents ask the text, themselves, and a query asks the latents."""
    from transformers import PerceiverConfig, PerceiverForSequenceClassification

    sizes = {"d_model": 32, "d_latents": 32, "num_latents": 6, "num_self_attends_per_block": 1, "num_labels": 3}
    sizes |= {"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "max_position_embeddings": 10}
    model = seeded(lambda: PerceiverForSequenceClassification(PerceiverConfig(vocab_size=100, **sizes)))
    inputs = {"inputs": text()["input_ids"], "attention_mask": text()["attention_mask"]}
    found = wf.explain(model, inputs, method="generic_attention", target=TARGET)
    for row, count in enumerate((10, 7)):
        with torch.enable_grad(), softmax_outputs() as maps:
            logits = model(inputs["inputs"][row : row + 1, :count]).logits
        gradients = torch.autograd.grad(logits[0, TARGET], maps)
        weighted = [(a * g)[0].clamp(min=0).mean(0).detach() for a, g in zip(maps, gradients, strict=True)]
        from_text, inside, answer = weighted
        expected = answer @ (from_text + inside @ from_text)
        scores = [s for s, stream in zip(found[row].scores, found[row].units.stream, strict=True) if stream == "text"]
        torch.testing.assert_close(torch.tensor(scores), expected[0], rtol=1e-4, atol=1e-6)


def test_a_stream_that_no_score_is_of_is_named() -> None:
    """X-CLIP attends frame by frame, so its maps do not line up; occlusion of the words says that the video stayed."""
    from transformers import XCLIPConfig, XCLIPModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = sizes | {"vocab_size": 100, "max_position_embeddings": 16, "eos_token_id": 99, "pad_token_id": 0}
    video = sizes | {"image_size": 16, "patch_size": 8, "num_frames": 4, "mit_hidden_size": 32}
    video |= {"mit_intermediate_size": 64, "mit_num_hidden_layers": 1, "mit_num_attention_heads": 2}
    config = XCLIPConfig(text_config=words, vision_config=video, projection_dim=32, prompt_num_attention_heads=2)
    model = seeded(lambda: XCLIPModel(config))
    inputs = text(eos=99) | {"pixel_values": torch.randn(2, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    found = wf.explain(model, inputs, method="occlusion")[0]
    assert set(found.units.stream) == {"text"}
    assert any("the image has no scores" in warning for warning in found.warnings)
    plain = wf.explain(OTHERS["ernie"].build("sdpa"), text(), method="occlusion")[0]
    assert plain.warnings == ()
