"""Texts of several lengths in one batch, also by a tokenizer that has no padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
