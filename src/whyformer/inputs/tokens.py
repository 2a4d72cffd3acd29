"""Token ids: padding, special tokens, limits of length, and the ids that replace a token."""

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

from whyformer.errors import BadInput, MissingProcessor, WhyformerError
from whyformer.inputs.base import Read
from whyformer.inputs.batch import Batch, on_host, with_columns
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.families import continues_text, is_rotary, number_of
from whyformer.inputs.language import kept_logits
from whyformer.inputs.units import PromptText
from whyformer.loan.borrow import NO_TOKEN, borrowed, known_about, modules_of
from whyformer.targets import least_effect, logits_of

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

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "input_ids") -> None:
        super().__init__(model, processor)
        self.main = main
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
        tokenizer, specials = self.tokenizer, self.special_ids()
        unknown = getattr(tokenizer, "unk_token_id", None)
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
        limits = [getattr(tokenizer, "model_max_length", None), self._positions()]
        finite = [int(n) for n in limits if isinstance(n, (int, float)) and n < 10**7]
        return min(finite) if finite else None

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
        table = self.embedding()
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

    def special_ids(self) -> set[int]:
        return self._specials

    @cached_property
    def _specials(self) -> set[int]:
        if self.processor is None:
            names = [f"{kind}_token_id" for kind in ("pad", "bos", "eos", "cls", "sep")]
            values = [getattr(config, name, None) for name in names for config in self.configs]
            ids = [i for value in values for i in (value if isinstance(value, (list, tuple)) else (value,))]
            return {i for i in ids if isinstance(i, int)}
        # A word that the vocabulary does not have is still a word, unless its id is that of padding or an end, too.
        tokenizer, kinds = self.tokenizer, ("bos", "eos", "sep", "cls", "pad", "mask")
        others = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
        unknown = getattr(tokenizer, "unk_token_id", None)
        return set(tokenizer.all_special_ids) - ({unknown} - others)

    @property
    def special_unknown(self) -> bool:
        padding = {self.configured("pad_token_id")}
        return self.processor is None and not self.special_ids() - padding

    def id_of(self, name: str) -> int | None:
        known = f"{name}_token_id"
        value = self.configured(known) if self.processor is None else number_of(self.tokenizer, known)
        if name == "pad" and self.processor is None and self.pointers and value in (None, NO_TOKEN):
            tables = (module for module in modules_of(self.model) if isinstance(module, nn.Embedding))
            value = next((table.padding_idx for table in tables if table.padding_idx is not None), None)
        return None if value == NO_TOKEN else value
