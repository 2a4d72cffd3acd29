"""Token ids: padding, special tokens, limits of length; causal language models, and the token that is explained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, MissingProcessor, NotOffered, WhyformerError, shown
from whyformer.inputs.base import Mean, Read
from whyformer.inputs.batch import Batch, on_host, with_columns
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.families import continues_text, is_rotary, number_of, says_tokens, task_of
from whyformer.inputs.units import PromptText
from whyformer.loan.borrow import NO_TOKEN, borrowed, known_about, modules_of
from whyformer.results.types import Target
from whyformer.targets import least_effect, logits_of

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
    table, text, special = read.embedding, ids.tolist(), read.special_ids
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


# Padding: added, cut off, and whether it changes the model's output

NOTICE = "Asking-to-pad-a-fast-tokenizer"  # as transformers 4 calls it
ROUNDING = 1e-2  # of the tolerance: what other shapes of the same computation may change


def padded(tokenizer: Any, encodings: list[Any]) -> dict[str, Tensor]:
    """Pad texts to one length, also with a tokenizer that has no padding token."""
    sizes = {len(values) for encoding in encodings for values in encoding.values()}
    if len(sizes) == 1 and all(encoding.keys() == encodings[0].keys() for encoding in encodings):  # nothing to pad
        return {k: torch.tensor([e[k] for e in encodings]) for k in encodings[0]}
    if tokenizer.pad_token_id is not None:
        with _without_notice(tokenizer):
            return dict(tokenizer.pad([dict(e) for e in encodings], return_tensors="pt"))
    # Padding is masked out, so any id will do; the tokenizer itself is not changed.
    filler = {"input_ids": tokenizer.eos_token_id or 0}
    longest = max(len(e["input_ids"]) for e in encodings)
    left = getattr(tokenizer, "padding_side", "right") == "left"
    batch = {}
    for name in encodings[0]:
        rows = [(list(e[name]), [filler.get(name, 0)] * (longest - len(e[name]))) for e in encodings]
        batch[name] = torch.tensor([padding + values if left else values + padding for values, padding in rows])
    return batch


@contextmanager
def _without_notice(tokenizer: Any) -> Iterator[None]:
    """Keep ``tokenizer.pad`` from logging, with transformers 4, that one call would encode and pad faster."""
    logged = getattr(tokenizer, "deprecation_warnings", {})
    before = logged.get(NOTICE, False)
    logged[NOTICE] = True
    try:
        yield
    finally:
        logged[NOTICE] = before


BY_CONTENT = "goes by content"  # a fact about a model that sorts, gates or decides: no input speaks for others


def bare(one: Batch) -> Batch:
    """Cut the padding off a single text."""
    real = one.real_BN[0]
    cut = with_columns(one.tensors, len(real), real.nonzero().T)
    return replace(one.with_tensors(**cut), keep_BN=one.real_BN[:, real])


def padding_effect(read: Read, batch: Batch) -> float | None:
    """Return how far padding moves the logits, in tolerances; None where the model does not run both ways."""
    facts = known_about(read.model)
    key = ("padding", bool(batch.real_BN[:, 0].all()), *sorted(batch.tensors))
    if key not in facts or BY_CONTENT in facts:
        facts[key] = _measured_effect(read, batch)
    effect: float | None = facts[key]
    return effect


def _measured_effect(read: Read, batch: Batch) -> float | None:
    """Compare the logits of the shortest text, which has most padding, with and without it."""
    one = batch.select([int(batch.real_BN.sum(1).argmin())])
    both = []
    try:
        with borrowed(read.model), torch.no_grad():
            for text in (one, bare(one)):
                last = text.real_BN[0].nonzero()[-1:, 0]
                both.append(logits_of(read.call(text, **kept_logits(read, last))))
    except WhyformerError:
        return None  # the pass that is explained raises the error
    beside, alone = both
    if beside.ndim == 3:  # one row per token: the last real one counts
        beside = beside[:, one.real_BN[0]] if beside.shape[1] == one.real_BN.shape[1] else beside
        beside, alone = beside[:, -1], alone[:, -1]
    if beside.shape != alone.shape:
        return math.inf
    coarse = alone.dtype not in {torch.float32, torch.float64}
    tolerance = 5e-2 * max(float(alone.abs().max()), 1e-6) if coarse else least_effect(alone)
    return float((beside - alone).abs().max()) / tolerance


class TokenRead(Read):
    """Ids of a vocabulary. Abstract: how texts become a batch of them, and units, is in text.py."""

    stream = "text"
    embeds = True
    unknown_id: Any = None  # known with the special ids

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "input_ids") -> None:
        super().__init__(model, processor)
        self.main, self._ids = main, dict[str, int | None]()
        # A vision-language model keeps what it knows about tokens in the config of its language model.
        inner = getattr(self.config, "text_config", None) if continues_text(model) else None
        self.configs = [self.config] if inner is None else [inner, self.config]

    def configured(self, name: str) -> int | None:
        """Return a whole number of the model's config."""
        numbers = (number_of(config, name) for config in self.configs)
        return next((number for number in numbers if number is not None), None)

    @cached_property
    def tokenizer(self) -> Any:
        """The processor's tokenizer. Cached: tokenizers look for attributes that they do not have in many places."""
        if self.processor is None:
            raise MissingProcessor(
                "text needs the model's tokenizer: pass processor=AutoTokenizer.from_pretrained(…), or give tensors "
                "({'input_ids': …}) instead of strings."
            )
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise BadInput(
                f"processor is a {type(tokenizer).__name__}, which is not a tokenizer, and the inputs are text. Pass "
                "the tokenizer that was made for this model."
            )
        return tokenizer

    def encoding_of(self, *text: str, side: str | None = None, **options: Any) -> Any:
        """Tokenize a text; a prompt written by a chat template has its special tokens already.

        side: at which a text is truncated, where that is not the tokenizer's own.
        """
        tokenizer, added = self.tokenizer, not isinstance(text[0], PromptText)
        if side is not None and getattr(tokenizer, "truncation_side", side) != side:
            tokenizer = deepcopy(tokenizer)  # the user's stays as it is
            tokenizer.truncation_side = side
        options = {"truncation": False, "add_special_tokens": added, "verbose": False} | options
        return processed(tokenizer, *text, **options)

    def filler_id(self) -> int:
        """Return the id of padding, which is masked out, so any id will do."""
        names, tokenizer = ("pad_token_id", "eos_token_id"), getattr(self.processor, "tokenizer", self.processor)
        known = (getattr(holder, name, None) for holder in (tokenizer, *self.configs) for name in names)
        return next((i for i in known if isinstance(i, int) and i >= 0), 0)

    def unknown_words(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return a remark where most tokens of a text are unknown to the tokenizer."""
        tokenizer, specials, unknown = self.tokenizer, self.special_ids, self.unknown_id
        words = [i for i in ids if i not in specials]
        count = 0 if unknown is None else words.count(int(unknown))
        if count <= len(words) / 2:
            return ()
        return (
            f"{count} of {len(words)} tokens are {tokenizer.unk_token}: these words are not in the vocabulary, and the "
            "model gets the same token for each. Check that it supports the language and script of the text.",
        )

    def max_length(self) -> int | None:
        """Return how many tokens the model takes: the smaller limit of tokenizer and model."""
        if self.limit is not None:
            return self.limit
        tokenizer = None if self.processor is None else self.tokenizer
        limits = [getattr(tokenizer, "model_max_length", None), self._positions]
        finite = [int(n) for n in limits if isinstance(n, (int, float)) and n < 10**7]
        return min(finite) if finite else None

    @cached_property
    def _positions(self) -> int | None:
        """Return the rows of the position table that are used: RoBERTa counts from after the padding index."""
        limit = self.configured("max_position_embeddings")
        if limit is None or any(map(is_rotary, self.configs)) or limit < 0:
            return None
        for module in modules_of(self.model):
            if isinstance(module, nn.Embedding) and module.num_embeddings == limit and module.padding_idx is not None:
                return limit - module.padding_idx - 1
        return limit

    def check_vocabulary(self, ids: Tensor) -> list[list[int]]:
        """Raise for ids that the model does not know; return the ids as lists."""
        table = self.embedding
        if ids.is_floating_point():
            raise BadInput(
                f"{self.main} holds {ids.dtype} numbers, and token ids are whole: convert them, {self.main}.long()."
            )
        numbers = on_host(ids).numpy()
        smallest, largest = int(numbers.min()), int(numbers.max())
        if smallest < 0:
            raise BadInput(f"{self.main} holds the id {smallest}: token ids are 0 or more.")
        if table is not None and largest >= table.num_embeddings:
            raise BadInput(
                f"the tokenizer produced id {largest}, but the model has only {table.num_embeddings} tokens: this is "
                "not the model's own tokenizer."
            )
        rows: list[list[int]] = numbers.tolist()
        return rows

    def takes(self, name: str) -> bool:
        return name in self.parameters or any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())

    def labels(self, ids: Sequence[int]) -> list[str]:
        if self.processor is None:
            return [str(i) for i in ids]
        tokens = self.tokenizer.convert_ids_to_tokens(list(ids))
        return [t if isinstance(t, str) else str(i) for t, i in zip(tokens, ids, strict=True)]

    @cached_property
    def special_ids(self) -> set[int]:  # type: ignore[override]
        if self.processor is None:
            names = [f"{kind}_token_id" for kind in ("pad", "bos", "eos", "cls", "sep")]
            values = [getattr(config, name, None) for name in names for config in self.configs]
            ids = [i for value in values for i in (value if isinstance(value, (list, tuple)) else (value,))]
            return {i for i in ids if isinstance(i, int)}
        # A word that the vocabulary does not have is still a word, unless its id is that of padding or an end, too.
        tokenizer, kinds = self.tokenizer, ("bos", "eos", "sep", "cls", "pad", "mask")
        others = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
        self.unknown_id = unknown = getattr(tokenizer, "unk_token_id", None)
        return set(tokenizer.all_special_ids) - ({unknown} - others)

    @property
    def special_unknown(self) -> bool:
        padding = {self.configured("pad_token_id")}
        return self.processor is None and not self.special_ids - padding

    def id_of(self, name: str) -> int | None:
        known = f"{name}_token_id"
        if self.processor is not None and name not in self._ids:  # which takes tokenizers long
            self._ids[name] = number_of(self.tokenizer, known)
        value = self.configured(known) if self.processor is None else self._ids[name]
        if name == "pad" and self.processor is None and self.pointers and value in (None, NO_TOKEN):
            tables = (module for module in modules_of(self.model) if isinstance(module, nn.Embedding))
            value = next((table.padding_idx for table in tables if table.padding_idx is not None), None)
        return None if value == NO_TOKEN else value
