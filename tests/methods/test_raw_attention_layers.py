"""Raw attention of some layers keeps, and where a fused kernel runs computes, no other layer's map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import whyformer as wf
from tests.models import CASES, model_of
from tests.support.live_bytes import peak_bytes

CHOICES = ["last", 0, -2, [0, -1], "mean"]


def bert(layers: int, attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 50}
    config = BertConfig(num_hidden_layers=layers, **sizes)
    return BertForSequenceClassification._from_config(config, attn_implementation=attention).eval()


def inputs(padding: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (2, 64), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 64 - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", [0, 5])
def test_the_peak_does_not_grow_with_the_layers(attention: str, padding: int) -> None:
    peaks = []
    for count in (3, 9):
        explainer, x = wf.Explainer(bert(count, attention)), inputs(padding)
        explainer.explain(x, method="raw_attention", target=0)  # studied
        peaks.append(peak_bytes(lambda e=explainer, x=x: e.explain(x, method="raw_attention", target=0)))
    one_map = 2 * 4 * 64 * 64 * 4
    assert peaks[1] - peaks[0] < one_map / 2
    whole = peak_bytes(lambda: explainer.explain(x, method="attention_rollout", target=0))
    assert whole > peaks[1] + 5 * one_map


@pytest.mark.parametrize("layers", CHOICES, ids=str)
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "looped_heads", "folded_heads", "einsum", "swin"])
def test_numbers_are_those_of_the_whole_record(name: str, layers: Any) -> None:
    model, x = model_of(name), CASES[name].inputs()
    alone = wf.explain(model, x, method="raw_attention", target=0, layers=layers, keep_layers=True)
    other = "occlusion" if name == "swin" else "attention_rollout"
    together = wf.explain(model, x, method=["raw_attention", other], target=0, layers=layers, keep_layers=True)
    for one, whole in zip(alone, together["raw_attention"], strict=True):
        np.testing.assert_array_equal(one.scores, whole.scores)
        np.testing.assert_array_equal(one.matrix, whole.matrix)
        np.testing.assert_array_equal(one.layers, whole.layers)
        assert one.warnings == whole.warnings
        assert (one.cost.forwards, one.cost.backwards) == (1, 0)


def test_a_model_that_lost_a_layer_is_read_at_the_last_it_has() -> None:
    explainer, x = wf.Explainer(bert(4, "sdpa")), inputs(0)
    explainer.explain(x, method="raw_attention", target=0)
    del explainer.model.bert.encoder.layer[3]
    short = bert(4, "sdpa")
    del short.bert.encoder.layer[3]
    for one, other in zip(
        explainer.explain(x, method="raw_attention", target=0),
        wf.explain(short, x, method="raw_attention", target=0),
        strict=True,
    ):
        np.testing.assert_array_equal(one.scores, other.scores)


def test_attention_to_padding_is_told_from_all_layers() -> None:
    """A model that does not hide padding says so, whichever layer is read."""
    x = {"input_ids": inputs(0)["input_ids"]}
    x = {**x, "attention_mask": inputs(20)["attention_mask"]}
    model = bert(3, "sdpa")
    model.bert.get_extended_attention_mask = lambda *_, **__: None  # type: ignore[union-attr, method-assign, assignment]
    alone = wf.explain(model, x, method="raw_attention", target=0)
    both = wf.explain(model, x, method=["raw_attention", "attention_rollout"], target=0)
    for one, other in zip(alone, both["raw_attention"], strict=True):
        assert one.warnings == other.warnings
        np.testing.assert_array_equal(one.scores, other.scores)
