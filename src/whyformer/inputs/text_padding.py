"""Texts of several lengths in one batch: filled up, cut to their own again, and whether the model minds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import borrowed, known_about
from whyformer.errors import WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.language import kept_logits
from whyformer.targets import logits_of


def padded(tokenizer: Any, encodings: list[Any]) -> dict[str, Tensor]:
    """Texts of several lengths in one batch, also by a tokenizer that has no padding."""
    sizes = {len(values) for encoding in encodings for values in encoding.values()}
    if len(sizes) == 1 and all(encoding.keys() == encodings[0].keys() for encoding in encodings):  # nothing to pad
        return {k: torch.tensor([e[k] for e in encodings]) for k in encodings[0]}
    if tokenizer.pad_token_id is not None:
        return dict(tokenizer.pad([dict(e) for e in encodings], return_tensors="pt"))
    # Padding is masked out, so any id will do; the tokenizer itself is not touched.
    filler = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    longest = max(len(e["input_ids"]) for e in encodings)
    left = getattr(tokenizer, "padding_side", "right") == "left"
    fill = {"input_ids": filler}
    return {k: torch.tensor([_fill(e[k], longest, fill.get(k, 0), left) for e in encodings]) for k in encodings[0]}


def _fill(values: list[int], length: int, filler: int, left: bool) -> list[int]:
    padding = [filler] * (length - len(values))
    return padding + list(values) if left else list(values) + padding


def bare(one: Batch) -> Batch:
    """A single input with the padding of its text cut off."""
    assert one.keep_BN is not None
    real = one.keep_BN[0]
    cut = {k: v[:, real] for k, v in one.tensors.items() if k == "bbox" or _runs_along(v, real)}
    return replace(one.with_tensors(**cut), keep_BN=one.keep_BN[:, real])


def _runs_along(tensor: Tensor, real_N: Tensor) -> bool:
    """Ids, types and masks have a number for each position."""
    return tensor.ndim == 2 and tensor.shape[1] == len(real_N) and not tensor.is_floating_point()


def minds_padding(modality: Modality, batch: Batch) -> bool:
    """Texts that get other answers beside others: the model counts padding, reads it, or cannot tell it."""
    assert batch.keep_BN is not None
    facts = known_about(modality.model)
    key = ("minds padding", bool(batch.keep_BN[:, 0].all()))
    if key not in facts:
        facts[key] = _minds_padding(modality, batch)
    return bool(facts[key])


def _logits_at_end(modality: Modality, one: Batch) -> Tensor:
    assert one.keep_BN is not None
    last = one.keep_BN[0].nonzero()[-1:, 0]
    return logits_of(modality.call(one, **kept_logits(modality, last)))


def _minds_padding(modality: Modality, batch: Batch) -> bool:
    """Whether the shortest text gets other logits with its padding than without."""
    assert batch.keep_BN is not None
    one = batch.select([int(batch.keep_BN.sum(1).argmin())])
    assert one.keep_BN is not None
    try:
        with borrowed(modality.model), torch.no_grad():
            beside, alone = (_logits_at_end(modality, b) for b in (one, bare(one)))
    except WhyformerError:
        return False  # said where it is asked for
    if beside.ndim == 3:  # one row per token: the last real one counts
        beside = beside[:, one.keep_BN[0]] if beside.shape[1] == one.keep_BN.shape[1] else beside
        beside, alone = beside[:, -1], alone[:, -1]
    tolerance = 1e-3 if alone.dtype in {torch.float32, torch.float64} else 5e-2
    scale = float(alone.abs().max())
    return beside.shape != alone.shape or float((beside - alone).abs().max()) > tolerance * max(scale, 1e-6)
