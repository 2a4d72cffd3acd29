"""Language models: whether a model is causal, and at which token it is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered, shown
from whyformer.inputs.base import Mean, Read
from whyformer.inputs.batch import Batch
from whyformer.inputs.families import says_tokens, task_of
from whyformer.loan.borrow import known_about
from whyformer.results.types import Target
from whyformer.targets import logits_of

# How far earlier logits may move with a later token before the model counts as not causal: masked weights are zeros.
UNSEEN = {torch.float32: 1e-5, torch.float64: 1e-9}
UNSEEN_IN_HALF = 1e-3
ENOUGH = 16  # tokens of a longer text that are tried
LOOKED_AT = 16  # positions before the changed one


def is_causal(mean: Mean, batch: Batch) -> bool:
    """Return whether the model predicts tokens and is causal: its output at the last position is the next token."""
    model = mean.read.model
    if mean.generates or not says_tokens(model) or task_of(model).endswith("ForMaskedLM"):
        return False
    # A decoder that reads another stream as well, or a vision-language model: PaliGemma's prompt looks ahead, and what
    # follows it is predicted at its end nevertheless.
    if mean.read.joint or task_of(model).endswith("ForConditionalGeneration"):
        return True
    return ignores_later_tokens(mean.read, batch)


def ignores_later_tokens(read: Read, batch: Batch) -> bool:
    """Return whether no position looks ahead, so that one pass predicts every token of an answer."""
    known = known_about(read.model)
    key = "causal" if "token_type_ids" not in batch.tensors else ("causal", "token_type_ids")
    if key not in known:
        known[key] = _ignores_later_tokens(read, batch)
    return bool(known[key])


def require_next_token(mean: Mean, batch: Batch, wishes: str) -> None:
    """Raise if the model does not predict the next token. wishes: the options that need it."""
    if not is_causal(mean, batch):
        name = type(mean.read.model).__name__
        raise NotOffered(f"{wishes} for models that predict the next token, and {name} does not: omit that.")


@torch.no_grad()
def _ignores_later_tokens(read: Read, batch: Batch) -> bool:
    """Return whether the logits stay when the last token is another one, in one pass."""
    if batch.keep_BN is None:
        return False
    row = int(batch.keep_BN.sum(1).argmax())
    real = batch.keep_BN[row]
    pair = batch.select([row, row])
    tensors = {k: v[:, real] if v.ndim > 1 and v.shape[1] == len(real) else v for k, v in pair.tensors.items()}
    length = int(real.sum())
    if length > ENOUGH and all(tuple(v.shape) == (2, length) for v in tensors.values()):
        tensors = {k: v[:, :ENOUGH] for k, v in tensors.items()}  # a model that looks ahead does so early, too
    if length == 1:
        tensors = {k: v.repeat_interleave(2, 1) if v.ndim > 1 and v.shape[1] == 1 else v for k, v in tensors.items()}
    ids = tensors[read.main].clone()
    ids[1, -1] = _another(read, ids[0])
    # A few positions from all over the text: logits of a large vocabulary at all of them would fill the memory.
    last = ids.shape[1] - 2
    before = torch.linspace(0, last, min(LOOKED_AT, last + 1)).round().long().unique()
    batch, extra = replace(pair, tensors=tensors | {read.main: ids}), kept_logits(read, before)
    logits = logits_of(read.call(batch, **extra))
    if logits.ndim != 3:  # a class of the user's that chose the position itself
        return True
    rows = slice(None) if extra else before.to(logits.device)
    moved = float((logits[0] - logits[1])[rows].abs().max())
    return moved <= UNSEEN.get(logits.dtype, UNSEEN_IN_HALF) * max(float(logits.abs().max()), 1e-6)


def kept_logits(read: Read, positions: Tensor) -> dict[str, Tensor]:
    """Return the argument by which a model computes its logits at some positions only, where it has one."""
    if "logits_to_keep" not in read.parameters:
        return {}
    return {"logits_to_keep": read.move(positions)}


def _another(read: Read, ids: Tensor) -> int:
    """Return a token other than the last of the text, not a special one if possible."""
    table, text, special = read.embedding(), ids.tolist(), read.special_ids()
    known = (*dict.fromkeys(text), *range(table.num_embeddings if table is not None else 0))
    others = [token for token in known if token != text[-1]] or text[-1:]
    return next((token for token in others if token not in special), others[0])


# Where a text is explained


def at_positions(read: Read, batch: Batch, target: Any) -> Batch:
    """Store the positions that targets name, counted among the real tokens of each text."""
    wanted = target if isinstance(target, list) else [target] * batch.size
    if batch.positions or batch.spans or not any(isinstance(t, Target) and t.position is not None for t in wanted):
        return batch
    keep = batch.keep_BN
    if keep is None or (read.joint and read.kind != "language"):
        raise BadInput("Target(position=…) is for models of one text: omit the position here.")
    positions = []
    for want, count in zip(wanted, keep.sum(1).tolist(), strict=True):
        position = want.position if isinstance(want, Target) else None
        positions.append(position_of(count - 1 if position is None else position, count))
    return replace(batch, positions=tuple(positions))


def position_of(position: Any, count: int) -> int:
    """Return a position that a target names, counted from the start."""
    if isinstance(position, bool) or not isinstance(position, int) or not -count <= position < count:
        raise BadInput(f"Target(position={shown(position)}): the text has {count} tokens, 0 to {count - 1}.")
    return position % count


def places(batch: Batch) -> list[int]:
    """Return the explained position of each row, padding counted: the chosen one, else the last real one."""
    if not batch.positions:
        return last_real(batch.real_BN).tolist()
    return [place for (place,) in ranked(batch, [[position] for position in batch.positions])]


def last_real(keep_BN: Tensor) -> Tensor:
    """(B,) the last real position of each row."""
    return keep_BN.shape[1] - 1 - keep_BN.flip(1).float().argmax(1)


def ranked(batch: Batch, positions: Sequence[Sequence[int]]) -> list[list[int]]:
    """Convert positions counted among the real ones of each row to positions with padding counted."""
    return [[int(row.nonzero()[p, 0]) for p in each] for row, each in zip(batch.real_BN, positions, strict=True)]


def spoken_at(batch: Batch) -> list[list[int]]:
    """Return the positions, padding counted, at which the tokens of each row's answer are predicted."""
    return [
        row.nonzero()[:, 0].tolist()[answer.start : answer.start + len(answer.tokens)]
        for row, answer in zip(batch.real_BN, batch.answers, strict=True)
    ]


def shortened(batch: Batch) -> Batch:
    """Cut off the columns that are padding in all rows, which have no padding in front."""
    width, used = batch.real_BN.shape[1], int(batch.real_BN.sum(1).max())
    if used == width:
        return batch
    tensors = {k: v[:, :used] if v.ndim > 1 and v.shape[1] == width else v for k, v in batch.tensors.items()}
    return replace(batch, tensors=tensors, keep_BN=batch.real_BN[:, :used])


def without_tokens(positions: Sequence[int], gone: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return positions after some tokens, or they themselves, were deleted."""
    return tuple(_moved_up(p, tokens) for p, tokens in zip(positions, gone, strict=True))


def _moved_up(position: int, gone: Sequence[int]) -> int:
    return max(0, position - sum(token <= position for token in gone))


Ends = tuple[int | None, int | None]


def spans_without(spans: Sequence[Ends], gone: Sequence[Sequence[int]]) -> tuple[Ends, ...]:
    """Return the first and last token of answers after some tokens were deleted."""
    moved = []
    for span, tokens in zip(spans, gone, strict=True):
        first, last = (None if p is None else _moved_up(p, tokens) for p in span)
        moved.append((first, last))
    return tuple(moved)
