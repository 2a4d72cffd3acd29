"""Texts of several lengths in one batch: filled up, cut to their own again, and whether the model minds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import borrowed, known_about
from whyformer.errors import WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.columns import with_columns
from whyformer.inputs.language import kept_logits
from whyformer.targets import logits_of

ROUNDING = 1e-2  # of the tolerance: what other shapes of the same computation may change


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
    cut = with_columns(one.tensors, len(real), real.nonzero().T)
    return replace(one.with_tensors(**cut), keep_BN=one.keep_BN[:, real])


def minds_padding(modality: Modality, batch: Batch) -> bool:
    """Texts that get other answers beside others: the model counts padding, reads it, or cannot tell it."""
    effect = _padding_effect(modality, batch)
    return effect is not None and effect > 1


def without_effect(modality: Modality, batch: Batch) -> bool:
    """Padding can be cut off: the model gives the same logits without it, but for rounding."""
    effect = _padding_effect(modality, batch)
    return effect is not None and effect <= ROUNDING


def _padding_effect(modality: Modality, batch: Batch) -> float | None:
    """How far padding moves the logits, in tolerances; None where the model does not run both ways. Measured once per
    model, side of the padding, and names of its arguments."""
    assert batch.keep_BN is not None
    facts = known_about(modality.model)
    key = ("padding", bool(batch.keep_BN[:, 0].all()), *sorted(batch.tensors))
    if key not in facts:
        facts[key] = _measured_effect(modality, batch)
    effect: float | None = facts[key]
    return effect


def _logits_at_end(modality: Modality, one: Batch) -> Tensor:
    assert one.keep_BN is not None
    last = one.keep_BN[0].nonzero()[-1:, 0]
    return logits_of(modality.call(one, **kept_logits(modality, last)))


def _measured_effect(modality: Modality, batch: Batch) -> float | None:
    """Of the shortest text, which has most of it."""
    assert batch.keep_BN is not None
    one = batch.select([int(batch.keep_BN.sum(1).argmin())])
    assert one.keep_BN is not None
    try:
        with borrowed(modality.model), torch.no_grad():
            beside, alone = (_logits_at_end(modality, b) for b in (one, bare(one)))
    except WhyformerError:
        return None  # the pass that is explained raises the error
    if beside.ndim == 3:  # one row per token: the last real one counts
        beside = beside[:, one.keep_BN[0]] if beside.shape[1] == one.keep_BN.shape[1] else beside
        beside, alone = beside[:, -1], alone[:, -1]
    tolerance = 1e-3 if alone.dtype in {torch.float32, torch.float64} else 5e-2
    scale = float(alone.abs().max())
    if beside.shape != alone.shape:
        return math.inf
    return float((beside - alone).abs().max()) / (tolerance * max(scale, 1e-6))
