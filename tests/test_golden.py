"""The authors' own numbers on a tiny BERT, fed as one padded batch (tests/golden/README says where they come from)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.methods.properties import golden, meets_golden


@cache
def explainer(attention: str) -> wf.Explainer:
    return wf.Explainer(golden(attention).model)


def scores(e: wf.Explanation) -> np.ndarray:
    return e.scores


def matrix(e: wf.Explanation) -> np.ndarray:
    assert isinstance(e.matrix, np.ndarray)
    return e.matrix


def layers(e: wf.Explanation) -> np.ndarray:
    assert e.layers is not None
    return e.layers


def largest_is_one(e: wf.Explanation) -> np.ndarray:
    """Without [CLS], as vit-explain shows it."""
    return e.scores[1:] / e.scores[1:].max()


def cell_replaced(of: Callable[[np.ndarray], float]) -> Callable[[wf.Explanation], np.ndarray]:
    """What the authors' BERT makes of the map's own cell."""
    return lambda e: np.concatenate([[of(e.scores)], e.scores[1:]])


def rescaled(e: wf.Explanation) -> np.ndarray:
    whole = matrix(e)
    scaled = (whole - whole.min()) / (whole.max() - whole.min())
    return np.concatenate([[0], scaled[0, 1:]])


KEPT = {"keep_layers": True}
Entry = tuple[str, str, Callable[[wf.Explanation], np.ndarray], dict[str, Any]]
ENTRIES: list[Entry] = [
    ("gae.R", "generic_attention", matrix, {}),
    ("gae.cls_row", "generic_attention", scores, {}),
    ("gae.last_layer_only.cls_row", "generic_attention", scores, {"start_layer": 2}),
    ("raw.last_mean.cls_row", "raw_attention", scores, {}),
    ("rollout.R", "attention_rollout", matrix, {}),
    ("rollout.all_layers", "attention_rollout", layers, {"keep_layers": True}),
    ("rollout.no_residual", "attention_rollout", matrix, {"residual": 0.0}),
    ("globenc.baseline.W-FixedRes", "attention_rollout", matrix, {}),
    ("globenc.baseline.W-Res", "attention_rollout", matrix, {"residual": "mixing"}),
    ("globenc.baseline.N-FixedRes", "value_norms", matrix, {"level": "attn", "residual": 0.5}),
    ("gradsam.query", "grad_sam", scores, {}),
    ("gradsam.key", "grad_sam", scores, {"reduce": "key"}),
    ("loo.mask", "occlusion", scores, {"replace": 4}),
    ("loo.unk", "occlusion", scores, {"replace": 1}),
    ("loo.pad", "occlusion", scores, {"replace": "pad"}),
    ("loo.delete", "occlusion", scores, {"replace": "delete"}),
    ("loo.attention_mask", "occlusion", scores, {"replace": "attention_mask"}),
    ("input_x_gradient.word_embeddings", "input_x_gradient", scores, {}),
    ("input_x_gradient.embeddings", "input_x_gradient", scores, {"at": "embeddings"}),
    ("gradient.l2", "saliency", scores, {}),
    *[
        entry
        for at in ("word_embeddings", "embeddings")
        for entry in (
            (f"ig.{at}.pad", "integrated_gradients", scores, {"at": at, "baseline": "pad"}),
            (
                f"ig.{at}.pad.per_dim",
                "integrated_gradients",
                lambda e: e.detail[: len(e.scores)],
                {"at": at, "baseline": "pad"},
            ),
            (
                f"ig.{at}.pad_keep_special",
                "integrated_gradients",
                scores,
                {"at": at, "keep_special": [2, 3], "baseline": "pad"},
            ),
            (
                f"ig.{at}.mask_keep_special",
                "integrated_gradients",
                scores,
                {"at": at, "keep_special": [2, 3], "baseline": 4},
            ),
        )
    ],
    ("attn_gradcam.raw", "attention_gradcam", scores, {}),
    ("attn_gradcam.full", "attention_gradcam", matrix, {}),
    ("te.attn_gradcam", "attention_gradcam", rescaled, {}),
    ("grad_rollout.R", "gradient_rollout", matrix, {}),
    ("grad_rollout.fixed.discard0.0", "gradient_rollout", largest_is_one, {}),
    ("grad_rollout.fixed.discard0.5", "gradient_rollout", largest_is_one, {"discard": 0.5}),
    ("alti.R", "alti", matrix, {}),
    ("alti.layers", "alti", layers, KEPT),
    ("alti.l2.layers", "alti", layers, KEPT | {"norm": "l2"}),
    ("alti.transformed_norm", "value_norms", layers, KEPT | {"level": "attn_res_ln"}),
    ("norm.kob20.summed", "value_norms", layers, KEPT | {"level": "attn"}),
    ("norm.kob20.summed.rollout", "value_norms", matrix, {"level": "attn"}),
    ("norm.kob21.res", "value_norms", layers, KEPT | {"level": "attn_res"}),
    ("norm.kob21.res.rollout", "value_norms", matrix, {"level": "attn_res"}),
    ("norm.kob21.resln", "value_norms", layers, KEPT | {"level": "attn_res_ln"}),
    ("norm.kob21.resln.rollout", "value_norms", matrix, {"level": "attn_res_ln"}),
    ("norm.globenc.enc", "value_norms", layers, KEPT),
    ("globenc.R", "value_norms", matrix, {}),
    ("value_zeroing.layers", "value_zeroing", layers, KEPT),
    ("value_zeroing.rollout", "value_zeroing", matrix, {}),
    ("decompx.default.aggregated_norm", "decompx", layers, KEPT),
    ("flow.F", "attention_flow", matrix, {"rows": "all"}),
    ("flow.F_layer2", "attention_flow", matrix, {"rows": "all", "end_layer": 1}),
    ("flow.unnormalised_cls_row", "attention_flow", scores, {"normalize": False}),
    ("attnlrp.tokens", "attn_lrp", scores, {}),
    ("te.transformer_attribution.start0", "transformer_attribution", cell_replaced(np.min), {"normalize": True}),
    (
        "te.transformer_attribution.start2",
        "transformer_attribution",
        cell_replaced(np.min),
        {"normalize": True, "start_layer": 2},
    ),
    ("te.partial_lrp", "transformer_attribution", cell_replaced(lambda _: 0.0), {"variant": "last_layer"}),
    ("te.full_lrp", "transformer_attribution", cell_replaced(lambda _: 0.0), {"variant": "lrp"}),
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e[0])
def test_golden(entry: Entry, attention: str) -> None:
    key, method, read, options = entry
    case = golden(attention)
    found = explainer(attention).explain(case.inputs, method=method, target=case.target, **options)
    known = [row for row in range(2) if f"{key}.b{row}" in case.expected]
    for row in known:
        meets_golden(read(found[row]), key, row)
    assert known, f"no golden array {key}"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_golden_capture(attention: str) -> None:
    case = golden(attention)
    record = explainer(attention).record(case.inputs, grad=True, target=case.target)
    for row in range(2):
        n = case.expected[f"capture.A.b{row}"].shape[-1]
        meets_golden(np.stack([s.attention_BHQK[row, :, :n, :n].numpy() for s in record.sites]), "capture.A", row)
        meets_golden(np.stack([s.attention_grad_BHQK[row, :, :n, :n].numpy() for s in record.sites]), "capture.G", row)
