"""Families beyond those of test_families.py: scores are those of the model's own eager attention, input by input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.models.case import alone, seeded, softmax_outputs
from tests.models.hf import text
from tests.models.others import OTHERS, REFUSED, score
from whyformer.errors import CaptureError

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
