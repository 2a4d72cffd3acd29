"""Texts of several lengths in one batch, also by a tokenizer that has no padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import borrowed, memory_of, names_no_padding
from whyformer.errors import WhyformerError
from whyformer.outputs import logits_of
from whyformer.subjects.base import Batch, Subject


def padded(tokenizer: Any, encodings: list[Any]) -> dict[str, Tensor]:
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


def one_by_one(subject: Subject, batch: Batch) -> bool:
    """Texts that get other answers beside others: the model counts padding, reads it, or cannot tell it."""
    if batch.size == 1 or batch.keep_BN is None or bool(batch.keep_BN.all()):
        return False
    if not batch.raw:  # tensors are as the user wants them, unless the model would not take them
        return names_no_padding(subject.model)
    facts = memory_of(subject.model).facts
    key = ("minds padding", bool(batch.keep_BN[:, 0].all()))
    if key not in facts:
        facts[key] = _minds_padding(subject, batch)
    return bool(facts[key])


def _minds_padding(subject: Subject, batch: Batch) -> bool:
    """Whether the shortest text gets other logits with its padding than without."""
    assert batch.keep_BN is not None
    one = batch.select([int(batch.keep_BN.sum(1).argmin())])
    assert one.keep_BN is not None
    try:
        with borrowed(subject.model), torch.no_grad():
            beside, alone = (logits_of(subject.call(b)) for b in (one, bare(one)))
    except WhyformerError:
        return False  # said where it is asked for
    if beside.ndim == 3:  # one row per token: the last real one counts
        beside = beside[:, one.keep_BN[0]] if beside.shape[1] == one.keep_BN.shape[1] else beside
        beside, alone = beside[:, -1], alone[:, -1]
    tolerance = 1e-3 if alone.dtype in {torch.float32, torch.float64} else 5e-2
    scale = float(alone.abs().max())
    return beside.shape != alone.shape or float((beside - alone).abs().max()) > tolerance * max(scale, 1e-6)
