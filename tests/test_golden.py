"""The authors' own numbers on a tiny BERT, fed as one padded batch (tests/golden/README says where they come from)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf

FOLDER = Path(__file__).parent / "golden" / "bert_cls"


@cache
def golden() -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    meta = json.loads((FOLDER / "meta.json").read_text())
    return meta, dict(np.load(FOLDER / "inputs.npz")), dict(np.load(FOLDER / "expected.npz"))


@cache
def explainer(attention: str) -> wf.Explainer:
    from transformers import BertForSequenceClassification

    return wf.Explainer(BertForSequenceClassification.from_pretrained(FOLDER, attn_implementation=attention))


def batch() -> dict[str, torch.Tensor]:
    _, inputs, _ = golden()
    return {k: torch.from_numpy(inputs[k]) for k in ("input_ids", "attention_mask")}


def check(key: str, found: np.ndarray, tolerance: float | None = None) -> None:
    meta, _, expected = golden()
    want = expected[key].astype(np.float64)
    name = key if key in meta["arrays"] else key.rpartition(".")[0]
    limit = tolerance or meta["arrays"][name]["tol"]
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= limit * np.abs(want).max(), key


def scores(e: wf.Explanation) -> np.ndarray:
    return e.scores


def matrix(e: wf.Explanation) -> np.ndarray:
    assert isinstance(e.matrix, np.ndarray)
    return e.matrix


def layers(e: wf.Explanation) -> np.ndarray:
    assert e.layers is not None
    return e.layers


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
    ("ig.word_embeddings.pad", "integrated_gradients", scores, {}),
    ("ig.word_embeddings.pad.per_dim", "integrated_gradients", lambda e: e.detail[: len(e.scores)], {}),
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e[0])
def test_golden(entry: Entry, attention: str) -> None:
    key, method, read, options = entry
    _, inputs, expected = golden()
    found = explainer(attention).explain(batch(), method=method, target=inputs["target"].tolist(), **options)
    compared = 0
    for row in range(2):
        if f"{key}.b{row}" in expected:
            check(f"{key}.b{row}", read(found[row]))
            compared += 1
    assert compared, f"no golden array {key}"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_golden_capture(attention: str) -> None:
    _, inputs, expected = golden()
    record = explainer(attention).record(batch(), grad=True, target=inputs["target"].tolist())
    for row in range(2):
        n = expected[f"capture.A.b{row}"].shape[-1]
        check(f"capture.A.b{row}", np.stack([s.attention_BHQK[row, :, :n, :n].numpy() for s in record.sites]))
        check(f"capture.G.b{row}", np.stack([s.attention_grad_BHQK[row, :, :n, :n].numpy() for s in record.sites]))
