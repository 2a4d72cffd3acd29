"""Language models: whether a token sees those that follow it, at which token one is explained, and answers given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import known_about
from whyformer.errors import BadInput, TooLong
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.families import task_of
from whyformer.targets import logits_of
from whyformer.types import Target

# How far earlier logits may move with a later token before it counts as seen: masked weights are exact zeros.
UNSEEN = {torch.float32: 1e-5, torch.float64: 1e-9}
UNSEEN_IN_HALF = 1e-3


def says_tokens(model: Any) -> bool:
    """The classes are tokens of the vocabulary, at every position of one text."""
    named = task_of(model).endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM"))
    return named and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def is_causal(modality: Modality, batch: Batch) -> bool:
    """The model says tokens, and no position sees a later one: what it says at the last is the next token."""
    if modality.generates or not says_tokens(modality.model) or task_of(modality.model).endswith("ForMaskedLM"):
        return False
    if modality.multi_input:  # a decoder that reads another stream as well
        return True
    known = known_about(modality.model)
    if "causal" not in known:
        known["causal"] = _ignores_later_tokens(modality, batch)
    return bool(known["causal"])


@torch.no_grad()
def _ignores_later_tokens(modality: Modality, batch: Batch) -> bool:
    """Tried out, in one pass: with another last token the logits before it stay."""
    if batch.keep_BN is None:
        return False
    row = int(batch.keep_BN.sum(1).argmax())
    real = batch.keep_BN[row]
    pair = batch.select([row, row])
    tensors = {k: v[:, real] if v.ndim > 1 and v.shape[1] == len(real) else v for k, v in pair.tensors.items()}
    if int(real.sum()) == 1:
        tensors = {k: v.repeat_interleave(2, 1) if v.ndim > 1 and v.shape[1] == 1 else v for k, v in tensors.items()}
    ids = tensors[modality.main].clone()
    ids[1, -1] = _another(modality, ids[0])
    logits = logits_of(modality.call(replace(pair, tensors=tensors | {modality.main: ids})))
    if logits.ndim != 3:  # a class of the user's that chose the position itself
        return True
    moved = float((logits[0] - logits[1])[: ids.shape[1] - 1].abs().max())
    return moved <= UNSEEN.get(logits.dtype, UNSEEN_IN_HALF) * max(float(logits.abs().max()), 1e-6)


def _another(modality: Modality, ids: Tensor) -> int:
    """A token that the text does not end with, an ordinary one where there is."""
    table = modality.embedding()
    known = dict.fromkeys([*ids.tolist(), *range(table.num_embeddings if table is not None else 0)])
    others = [token for token in known if token != int(ids[-1])]
    ordinary = (token for token in others if token not in modality.special_ids())
    return next(ordinary, others[0] if others else int(ids[-1]))


# Where a text is explained


def at_positions(modality: Modality, batch: Batch, target: Any) -> Batch:
    """The batch with the positions that targets name, counted among the real tokens of each text."""
    wanted = target if isinstance(target, list) else [target] * batch.size
    if batch.positions or batch.spans or not any(isinstance(t, Target) and t.position is not None for t in wanted):
        return batch
    keep = batch.keep_BN
    if keep is None or modality.multi_input or modality.compares:
        raise BadInput("Target(position=…) is for models that read one text: leave the position out here.")
    positions = []
    for want, count in zip(wanted, keep.sum(1).tolist(), strict=True):
        position = want.position if isinstance(want, Target) else None
        positions.append(position_of(count - 1 if position is None else position, count))
    return replace(batch, positions=tuple(positions))


def position_of(position: Any, count: int) -> int:
    """A position that a target names, counted from the start."""
    if isinstance(position, bool) or not isinstance(position, int) or not -count <= position < count:
        raise BadInput(f"Target(position={position!r}): the text has {count} tokens, 0 to {count - 1}.")
    return position % count


def places(batch: Batch) -> list[int]:
    """Per row, where among all positions (padding included) the explained one stands: as chosen, else the last."""
    keep = batch.keep_BN
    assert keep is not None
    width = keep.shape[1]
    if not batch.positions:
        return [width - 1 - int(row.flip(0).float().argmax()) for row in keep]
    return [place for (place,) in ranked(batch, [[position] for position in batch.positions])]


def ranked(batch: Batch, positions: Sequence[Sequence[int]]) -> list[list[int]]:
    """Per row, where among all positions those stand that are counted among the real ones."""
    assert batch.keep_BN is not None
    return [[int(row.nonzero()[p, 0]) for p in each] for row, each in zip(batch.keep_BN, positions, strict=True)]


def without_tokens(positions: Sequence[int], gone: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Positions once some tokens before them, or they themselves, were left out."""
    return tuple(_moved_up(p, tokens) for p, tokens in zip(positions, gone, strict=True))


def _moved_up(position: int, gone: Sequence[int]) -> int:
    return max(0, position - sum(token <= position for token in gone))


def spans_without(
    spans: Sequence[tuple[int | None, int | None]], gone: Sequence[Sequence[int]]
) -> tuple[tuple[int | None, int | None], ...]:
    """Answers once some tokens were left out."""
    moved = []
    for (start, end), tokens in zip(spans, gone, strict=True):
        first, last = (None if p is None else _moved_up(p, tokens) for p in (start, end))
        moved.append((first, last))
    return tuple(moved)


# Answers that were given


def has_answers(batch: Batch) -> bool:
    return any(isinstance(text, tuple) for text in batch.raw)


def answered(modality: Any, batch: Batch, target: Any) -> tuple[Batch, Any]:
    """One row per token of each answer (or for the token asked for): the prompt, and the answer so far."""
    if not all(isinstance(text, tuple) for text in batch.raw):
        raise BadInput("give an answer with every prompt, or with none of them.")
    tokenizer = modality._tokenizer()
    ends = {getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "sep_token_id", None)}
    rows, texts, tokens = [], [], []
    for row, (prompt, answer) in enumerate(batch.raw):
        prompt_ids, answer_ids = _ids(tokenizer, prompt), _ids(tokenizer, answer, add_special_tokens=False)
        while prompt_ids and prompt_ids[-1] in ends:  # the answer goes on where the prompt stops
            prompt_ids.pop()
        if not answer_ids or not prompt_ids:
            raise BadInput(f"({prompt!r}, {answer!r}): a prompt and an answer of at least one token each are needed.")
        limit = modality.max_length()
        if limit is not None and len(prompt_ids) + len(answer_ids) - 1 > limit:
            raise TooLong(
                f"prompt and answer have {len(prompt_ids)} + {len(answer_ids)} tokens, and the model takes {limit}: "
                "shorten one of them."
            )
        wanted = target[row] if isinstance(target, list) else target
        for step in wanted_steps(modality, answer_ids, wanted):
            rows.append(row)
            texts.append(prompt_ids + answer_ids[:step])
            tokens.append(answer_ids[step])
    width = max(map(len, texts))
    filler = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    ids = torch.tensor([text + [filler] * (width - len(text)) for text in texts])
    keep = torch.tensor([[True] * len(text) + [False] * (width - len(text)) for text in texts])
    tensors = {
        name: modality.move(ids if name == modality.main else keep.long() if "mask" in name else torch.zeros_like(ids))
        for name in batch.tensors
    }
    steps = replace(
        batch.select(rows),
        tensors=tensors,
        keep_BN=modality.move(keep),
        raw=tuple(batch.raw[row][0] for row in rows),
        warnings=((),) * len(rows),
        encodings=tuple({"ids": text} for text in texts),
        groups=tuple(rows) if target is None else (),
    )
    return steps, tokens


def _ids(tokenizer: Any, text: str, **how: Any) -> list[int]:
    return [int(i) for i in tokenizer(text, **how)["input_ids"]]


def wanted_steps(modality: Any, answer: list[int], wanted: Any) -> list[int]:
    """The tokens of an answer that are explained: all, or the first that is the wanted one."""
    if wanted is None:
        return list(range(len(answer)))
    wanted = wanted.index if isinstance(wanted, Target) else wanted
    ids = {wanted} if isinstance(wanted, int) else _spellings(modality, str(wanted))
    steps = [i for i, token in enumerate(answer) if token in ids]
    if not steps:
        shown = " ".join(modality.labels(answer))
        raise BadInput(f"target {wanted!r} is not among the tokens of the answer: {shown}.")
    return steps[:1]


def _spellings(modality: Any, token: str) -> set[int]:
    spellings: set[int] = set()
    for text in (token, " " + token):
        ids = modality._tokenizer()(text, add_special_tokens=False)["input_ids"]
        spellings |= set(ids) if len(ids) == 1 else set()
    return spellings
