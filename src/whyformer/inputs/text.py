"""Text: tokens of a tokenizer, or ids."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.borrow import NO_TOKEN, borrowed, known_about, modules_of, names_no_padding
from whyformer.errors import BadInput, MissingProcessor, NotOffered, TooLong, UnknownName, WhyformerError
from whyformer.inputs.base import Modality, require_shown
from whyformer.inputs.batch import PLAIN, Batch, Decoding, Placed, Raw
from whyformer.inputs.chat import PromptText, is_chat, prompt_of, roles_of
from whyformer.inputs.fillings import drawn_inputs
from whyformer.inputs.language import (
    ANSWER,
    answered,
    has_answers,
    is_causal,
    kept_logits,
    require_next_token,
    require_one_wish,
    spans_without,
    without_tokens,
)
from whyformer.inputs.stream_inputs import StreamInput, Words
from whyformer.inputs.units import WORD_STARTS, assemble, distinct_words, segmented, words_of
from whyformer.targets import logits_of
from whyformer.types import Units

WRITERS = ("ForCausalLM", "LMHeadModel")  # how classes of language models are called


class TextInput(Modality):
    """One text, or a pair of texts, per input; units are the tokens."""

    stream = "text"
    embeds = True
    lengths_vary = True
    padding_in_doubt = True
    limit: int | None = None  # of tokens, where it was looked up before: it takes a walk through the model

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "input_ids") -> None:
        super().__init__(model, processor)
        self.main = main
        self.config = getattr(model, "config", None)

    @property
    def kind(self) -> str:
        # By its name: whether a token sees those that follow is found out later, by running the model.
        return "language" if type(self.model).__name__.endswith(WRITERS) and not self.multi_input else self.stream

    # Encoding

    def encode(self, raw: Sequence[Raw]) -> Batch:
        tokenizer = self._tokenizer()
        texts = [_text(r) for r in raw]
        limit = self.max_length()
        # A prompt that a template wrote has its special tokens already.
        encodings = [
            tokenizer(*t, truncation=False, add_special_tokens=type(t[0]) is not PromptText, verbose=False)
            for t in texts
        ]
        warnings: list[tuple[str, ...]] = []
        for i, encoding in enumerate(encodings):
            length = len(encoding["input_ids"])
            if limit is not None and length > limit:
                encodings[i] = self.encoding_of(*texts[i], truncation=True, max_length=limit)
                warnings.append((f"the text has {length} tokens and the model takes {limit}: the end was cut off.",))
            else:
                warnings.append(())
            warnings[-1] += self.unknown_words(encodings[i]["input_ids"])
        batch = padded(tokenizer, encodings)
        keep = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        batch = self._by_argument_names(batch, keep)
        self._check_vocabulary(batch[self.main])
        tensors = {k: self.move(v) for k, v in batch.items() if self._takes(k)}
        return Batch(
            tensors,
            keep_BN=self.move(keep.bool()),
            raw=tuple(t[0] if len(t) == 1 else t for t in texts),
            warnings=tuple(warnings),
            encodings=tuple(self._facts(t, e) for t, e in zip(texts, encodings, strict=True)),
        )

    def encoding_of(self, *text: str, **how: Any) -> Any:
        """What the tokenizer makes of a text; a prompt that a template wrote has its special tokens already."""
        how = {"truncation": False, "add_special_tokens": not isinstance(text[0], PromptText), "verbose": False} | how
        return self._tokenizer()(*text, **how)

    def filler_id(self) -> int:
        """What padding is filled with: it is masked out, so any id will do."""
        names = ("pad_token_id", "eos_token_id")
        known = (getattr(holder, name, None) for holder in (self.processor, self.config) for name in names)
        return next((i for i in known if isinstance(i, int) and i >= 0), 0)

    def from_messages(self, inputs: list[Any]) -> Any:
        if is_chat(inputs):
            return prompt_of(inputs, self._tokenizer())
        chats = all(is_chat(chat) for chat in inputs)
        return [prompt_of(chat, self._tokenizer()) for chat in inputs] if chats else inputs

    def ask(self, decoding: Decoding, segments: Any) -> None:
        if self.multi_input or self.compares:
            if segments != "token":
                raise NotOffered("units= divides one text, and this model reads more than that. Leave units out.")
            super().ask(decoding, segments)
        self.decoding, self.segments = decoding, segments

    def unknown_words(self, ids: Sequence[int]) -> tuple[str, ...]:
        """A note, where most of a text are words that the tokenizer does not know: they all look the same."""
        tokenizer, specials = self._tokenizer(), self.special_ids()
        unknown = getattr(tokenizer, "unk_token_id", None)
        words = [i for i in ids if i not in specials]
        count = 0 if unknown is None else words.count(int(unknown))
        if count <= len(words) / 2:
            return ()
        return (
            f"{count} of {len(words)} tokens are {tokenizer.unk_token}: the tokenizer does not know these words, and "
            "the model sees the same in place of each. Is the text in a language and script that it was made for?",
        )

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        if self.decoding is PLAIN and not (batch.raw and has_answers(batch) and not self.compares):
            return batch, target
        if self.decoding:
            require_next_token(self, batch, "generate, span, choices and one_pass are")
            require_one_wish(self.decoding, has_answers(batch))
        prompted = has_answers(batch) or self.decoding.generate is not None
        return answered(self, batch, target) if prompted and is_causal(self, batch) else (batch, target)

    def one_by_one(self, batch: Batch) -> bool:
        if self.multi_input or self.compares or batch.size == 1 or batch.keep_BN is None or bool(batch.keep_BN.all()):
            return False
        if not batch.raw:  # tensors are as the user wants them, unless the model would not take them
            return names_no_padding(self.model)
        return minds_padding(self, batch)

    def alone(self, one: Batch) -> Batch:
        return bare(one)

    def lengthened(self, tensors: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
        if not any(name.endswith("mask") and "padding" not in name for name in tensors):
            return tensors
        width, pad = tensors[self.main].shape[1], getattr(self.config, "pad_token_id", None) or 0
        return {
            k: nn.functional.pad(v, (0, extra), value=pad if k == self.main else 0) if v.shape[1:2] == (width,) else v
            for k, v in tensors.items()
        }

    def _by_argument_names(self, batch: dict[str, Tensor], keep: Tensor) -> dict[str, Tensor]:
        """As a home-made model calls them: the ids by its first argument, padding by one whose name speaks of it."""
        if self.main in batch:
            return batch
        named = {self.main: batch["input_ids"]}
        mask = next((n for n in self.parameters if "mask" in n or "padding" in n), None)
        if mask is not None and (self._requires(mask) or not bool(keep.all())):
            named[mask] = keep == 0 if "padding" in mask else keep != 0  # torch.nn's padding masks say what is hidden
        return named

    def _requires(self, name: str) -> bool:
        return self.parameters[name].default is inspect.Parameter.empty

    def _takes(self, name: str) -> bool:
        return name in self.parameters or any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())

    def _tokenizer(self) -> Any:
        if self.processor is None:
            raise MissingProcessor(
                "text needs the model's tokenizer: pass processor=AutoTokenizer.from_pretrained(…), or give tensors "
                "({'input_ids': …}) instead of strings."
            )
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        if not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise BadInput(
                f"processor is a {type(tokenizer).__name__}, which is no tokenizer, and the inputs are text. Pass the "
                "tokenizer that was made for this model."
            )
        return tokenizer

    def max_length(self) -> int | None:
        """How many tokens the model takes: the smaller of what tokenizer and model say."""
        if self.limit is not None:
            return self.limit
        limits = []
        if self.processor is not None:
            limits.append(getattr(self._tokenizer(), "model_max_length", None))
        limits.append(self._positions())
        finite = [n for n in limits if n is not None and n < 10**7]
        return min(finite) if finite else None

    def _positions(self) -> int | None:
        """Rows of the position table. RoBERTa and its kin start counting after the padding index."""
        limit = getattr(self.config, "max_position_embeddings", None)
        if limit is None or getattr(self.config, "rope_parameters", None) or limit < 0:
            return None
        for module in modules_of(self.model):
            if isinstance(module, nn.Embedding) and module.num_embeddings == limit and module.padding_idx is not None:
                return int(limit) - module.padding_idx - 1
        return int(limit)

    def _check_vocabulary(self, ids: Tensor) -> list[list[int]]:
        """Refuse ids that the model does not know; else the ids themselves."""
        table = self.embedding()
        if ids.is_floating_point():
            raise BadInput(
                f"{self.main} holds {ids.dtype} numbers, and token ids are whole: convert them, {self.main}.long()."
            )
        numbers = ids.cpu().numpy()  # once for all questions: a GPU stops for each
        smallest, largest = int(numbers.min()), int(numbers.max())
        if smallest < 0:
            raise BadInput(f"{self.main} holds the id {smallest}: token ids are 0 or more.")
        if table is not None and largest >= table.num_embeddings:
            raise BadInput(
                f"the tokenizer produced id {largest}, but the model knows only {table.num_embeddings} tokens: "
                "this is not the model's own tokenizer."
            )
        rows: list[list[int]] = numbers.tolist()
        return rows

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        if self.main not in batch.tensors:
            raise UnknownName("tensor name", ", ".join(batch.tensors), [self.main], f"{self.main} is missing.")
        ids = batch.tensors[self.main]
        if ids.ndim != 2:
            raise BadInput(f"{self.main} has shape {tuple(ids.shape)}; it needs two axes, inputs × tokens.")
        limit = getattr(self.config, "max_position_embeddings", None)
        if not isinstance(limit, int) or 2 * ids.shape[1] > limit:  # far below it, nobody has to look for the table
            limit = self._positions()
        if limit is not None and ids.shape[1] > limit:
            raise TooLong(f"{ids.shape[1]} tokens, but the model takes {limit}. Cut the inputs to that length.")
        rows = self._check_vocabulary(ids)
        keep = torch.ones_like(ids, dtype=torch.bool)
        for name, tensor in batch.tensors.items():
            if name == "attention_mask" and tensor.ndim == 2 and tensor.shape != ids.shape:
                raise BadInput(
                    f"{name} has shape {tuple(tensor.shape)} and {self.main} {tuple(ids.shape)}: one number per token."
                )
            if tensor.shape == ids.shape and name != self.main:
                if "padding" in name:  # torch.nn's convention: True hides
                    keep = ~tensor.bool()
                elif name.endswith("mask"):
                    keep = tensor.bool()
                    if not bool(keep.any(1).all()):
                        require_shown(name, keep)
        encodings = tuple(self._facts(None, {"input_ids": row}) for row in rows)
        return Batch(batch.tensors, keep_BN=keep, encodings=encodings, constants=batch.constants)

    # Units

    def _facts(self, text: tuple[str, ...] | None, encoding: Any) -> dict[str, Any]:
        """What the tokenizer knows about one input, position by position (without padding for raw text)."""
        ids = list(encoding["input_ids"])
        facts: dict[str, Any] = {"ids": ids}
        words = getattr(encoding, "word_ids", None)
        try:
            facts["word"] = [-1 if w is None else w for w in words()] if words else None
            facts["spans"] = [encoding.token_to_chars(i) for i in range(len(ids))] if words else None
        except (ValueError, AttributeError):  # slow tokenizers know neither
            facts["word"] = facts["spans"] = None
        if text is not None and isinstance(text[0], PromptText) and facts["spans"] is not None:
            facts["role"] = roles_of(facts["spans"], text[0].parts)
        facts["pair"] = text is not None and len(text) > 1
        facts["text"] = text[0] if text is not None and len(text) == 1 else None
        if facts["pair"] and facts["word"] is not None:
            facts["word"] = distinct_words(facts["word"], encoding.sequence_ids())
        return facts

    def labels(self, ids: Sequence[int]) -> list[str]:
        if self.processor is None:
            return [str(i) for i in ids]
        tokens = self._tokenizer().convert_ids_to_tokens(list(ids))
        return [t if isinstance(t, str) else str(i) for t, i in zip(tokens, ids, strict=True)]

    def special_ids(self) -> set[int]:
        if self.processor is not None:
            tokenizer = self._tokenizer()
            # A word that the vocabulary does not have is still a word, unless its id is that of padding or an end, too.
            kinds = ("bos", "eos", "sep", "cls", "pad", "mask")
            others = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
            unknown = getattr(tokenizer, "unk_token_id", None)
            return set(tokenizer.all_special_ids) - ({unknown} - others)
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        ids: set[int] = set()
        for name in names:
            value = getattr(self.config, name, None)
            ids |= set(value) if isinstance(value, (list, tuple)) else set() if value is None else {value}
        return ids

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        ids_BN, keep_BN = batch.tensors[self.main], batch.keep_BN
        assert keep_BN is not None
        extra = length - ids_BN.shape[1]
        specials = self.special_ids()
        result = []
        for row, (ids, keep) in enumerate(zip(ids_BN.tolist(), keep_BN.tolist(), strict=True)):
            real = [i for i, k in zip(ids, keep, strict=True) if k]
            facts = batch.encodings[row] if batch.encodings else {}
            known = len(facts.get("ids", ())) == len(real)
            labels = self.labels(real)
            word = facts.get("word") if known else None
            spans = facts.get("spans") if known and facts.get("text") is not None else None
            special = [i in specials for i in real]
            result.append(
                assemble(
                    labels,
                    special,
                    self.stream,
                    extra,
                    front,
                    word=tuple(word) if word else words_of(labels, special) if self.processor else None,
                    spans=_spans(labels, spans, facts["text"]) if spans else None,
                    text=facts.get("text") if known else None,
                    role=tuple(facts["role"]) if known and facts.get("role") else None,
                )
            )
        return result

    def divided(self, units: Units, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        return None if self.segments == "token" else segmented(units, self.segments, facts.get("whole"))

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        keep_BN = batch.keep_BN
        assert keep_BN is not None
        extra = length - keep_BN.shape[1]
        if extra <= 0:
            return keep_BN[:, :length]
        added = torch.ones(len(keep_BN), extra, dtype=torch.bool, device=keep_BN.device)
        before = extra if front is None else front
        return torch.cat([added[:, :before], keep_BN, added[:, before:]], 1)

    # Where a path to the text starts

    @property
    def default_baseline(self) -> str:
        # A sentence of [MASK] says less than one of [PAD] (docs/guide/frontier.md).
        return next((name for name in ("mask", "pad") if name in self.replacements), "zero")

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        """Another token in place of every one that is neither padding nor kept."""
        if name == "zero":
            return None
        if self.multi_input:
            raise NotOffered(
                f"baseline={name!r} is a word, and an image is laid beside the words of this model: it would stay. "
                "Use at='input', where each has its own baseline, or baseline='zero'."
            )
        ids_BN, other = placed.batch.tensors[self.main], self.replacement_id(name)
        instead = torch.where(self.open_tokens(placed.batch, keep_special), other, ids_BN)
        return placed.batch.with_tensors(**{self.main: instead})

    def open_tokens(self, batch: Batch, keep_special: bool | Sequence[int]) -> Tensor:
        keep_BN = batch.keep_BN
        assert keep_BN is not None
        if keep_special is False:
            return keep_BN
        special = sorted(self.special_ids()) if keep_special is True else list(keep_special)
        ids_BN = batch.tensors[self.main]
        return keep_BN & ~torch.isin(ids_BN, torch.tensor(special, dtype=ids_BN.dtype, device=ids_BN.device))

    def stream_inputs(
        self, stream: str, layout: Mapping[str, slice], placed: Placed, whole: Modality
    ) -> list[StreamInput]:
        view, places = partial(_view, whole, stream), partial(_places, whole, self.main)
        return [Words(placed, stream, layout[stream], self, view, places)]

    # Taking units away

    def removable(self, units: Units) -> list[bool]:
        # [CLS] and [SEP] are ids like any other. An answer that is explained as a whole stays: what it says is asked.
        if self.decoding.span and units.role is not None:
            return [role != ANSWER for role in units.role]
        return [True] * len(units)

    @property
    def replacements(self) -> tuple[str, ...]:
        known = [n for n in ("mask", "unk", "pad") if self._id_of(n) is not None]
        has_mask = any("mask" in p for p in self.parameters)
        hidden = ("attention_mask",) if has_mask else ()
        # A sentence of mask tokens is none: stretches of text are left out.
        return ("delete", *known, *hidden) if self.segments not in ("token", "word") else (*known, "delete", *hidden)

    def _id_of(self, name: str) -> int | None:
        if self.processor is not None:
            value = getattr(self._tokenizer(), f"{name}_token_id", None)
        else:
            value = getattr(self.config, f"{name}_token_id", None)
        return None if value is None or value == NO_TOKEN else int(value)

    def replacement_id(self, replacement: str | int) -> int:
        if isinstance(replacement, int):
            table = self.embedding()
            if replacement < 0 or (table is not None and replacement >= table.num_embeddings):
                known = "0 or more" if table is None else f"0 to {table.num_embeddings - 1}"
                raise BadInput(f"token id {replacement}: the model knows {known}.")
            return replacement
        token_id = self._id_of(replacement)
        if token_id is None:
            raise UnknownName(
                "replacement",
                replacement,
                self.replacements,
                "A token id (an integer) works too, and is needed where no tokenizer was given.",
            )
        return token_id

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
        one = batch.select([row])
        ids_N, keep_N = one.tensors[self.main][0], one.keep_BN[0] if one.keep_BN is not None else None
        assert keep_N is not None
        positions = keep_N.nonzero()[:, 0].tolist()
        copies = one.select([0] * len(positions))
        if replacement == "delete":
            return self._deleted(one, positions)
        if replacement == "attention_mask":
            name = next((n for n in one.tensors if n != self.main and "mask" in n), "")
            if not name:
                raise NotOffered(
                    "replace='attention_mask' hides a token by the mask among the inputs, and there is none: give the "
                    "attention_mask, too, or replace=<token id>."
                )
            mask = copies.tensors[name].clone()
            hides = not torch.equal(mask[0].bool(), keep_N)  # what True means, whatever the name says
            mask[range(len(positions)), positions] = hides
            return copies.with_tensors(**{name: mask})
        ids = ids_N.repeat(len(positions), 1)
        ids[range(len(positions)), positions] = self.replacement_id(replacement)
        return copies.with_tensors(**{self.main: ids})

    takes_token_ids = True

    def trimmed(self, one: Batch) -> Batch:
        keep = one.keep_BN
        if keep is None or self.multi_input:
            return one
        width, used = keep.shape[1], int(keep[0].nonzero()[-1]) + 1
        # Boxes of words (LayoutLM) are as many as the tokens are; a picture beside the text has its channels there.
        tensors = {k: v[:, :used] if v.ndim in {2, 3} and v.shape[1] == width else v for k, v in one.tensors.items()}
        return replace(one, tensors=tensors, keep_BN=keep[:, :used])

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        assert one.keep_BN is not None
        unit = torch.full_like(one.tensors[self.main][0], -1)
        unit[one.keep_BN[0]] = torch.arange(len(units), device=unit.device)
        return {self.main: unit}

    @property
    def fillers(self) -> tuple[str, ...]:
        return () if self.multi_input else ("resample",)

    def filling(
        self, name: str, units: Units, one: Batch, pool: Batch, generator: np.random.Generator
    ) -> list[dict[str, Tensor]]:
        """Tokens drawn from all of the pool's."""
        ids = pool.tensors[self.main]
        keep = torch.ones_like(ids, dtype=torch.bool) if pool.keep_BN is None else pool.keep_BN
        tokens = ids[keep].cpu().numpy()
        tokens = tokens[~np.isin(tokens, list(self.special_ids()))]
        if not len(tokens):
            raise BadInput("replace='resample' draws tokens from the reference inputs, and they have none.")
        shape = one.tensors[self.main].shape
        return [
            {self.main: torch.from_numpy(generator.choice(tokens, size=shape)).to(ids.device)}
            for _ in drawn_inputs(pool, generator)  # texts are drawn word by word, but as often as other inputs
        ]

    def token_ids(self, units: Units, one: Batch) -> Tensor | None:
        assert one.keep_BN is not None
        ids = one.tensors[self.main][0][one.keep_BN[0]]
        return ids if len(ids) == len(units) else None

    @property
    def special_unknown(self) -> bool:
        padding = {getattr(self.config, "pad_token_id", None)}
        return self.processor is None and not self.special_ids() - padding

    def _deleted(self, one: Batch, positions: list[int]) -> Batch:
        """Each copy lacks one token; the rest moves up."""
        if one.answers and one.answers[0].start == 0:
            raise NotOffered(
                "replace='delete': the prompt has one token, and without it the answer follows nothing. Use "
                "replace=<token id>."
            )
        width = one.tensors[self.main].shape[1]
        rest = torch.tensor([[p for p in range(width) if p != gone] for gone in positions])
        tensors = {
            k: v[0][rest.to(v.device)] if v.ndim > 1 and v.shape[1] == width else v[[0] * len(positions)]
            for k, v in one.tensors.items()
        }
        assert one.keep_BN is not None
        keep = one.keep_BN[0][rest.to(one.keep_BN.device)]
        gone = [[rank] for rank in range(len(positions))]
        chosen = without_tokens(one.positions * len(gone), gone) if one.positions else ()
        spans = spans_without(one.spans * len(gone), gone) if one.spans else ()
        answers = tuple(answer.moved(-1) for answer in one.answers * len(positions))
        return Batch(tensors, keep_BN=keep, constants=one.constants, positions=chosen, spans=spans, answers=answers)


def _spans(labels: Sequence[str], spans: Sequence[Any], text: str) -> tuple[tuple[int, int], ...]:
    """The characters of each token. SentencePiece puts a ``▁`` of its own before a text: it stands for none of them,
    though the tokenizer says that it is the first."""
    result = []
    for label, span in zip(labels, spans, strict=True):
        start, end = (span.start, span.end) if span else (0, 0)
        invented = not label.strip(WORD_STARTS) and text[start:end].strip()
        result.append((start, start) if invented else (start, end))
    return tuple(result)


def _view(whole: Modality, stream: str, batch: Batch) -> Batch:
    return whole.part(stream, batch)[1]


def _places(whole: Modality, main: str, batch: Batch) -> Tensor | None:
    return whole.places(batch) if main == whole.main else None


def _text(raw: Raw) -> tuple[str, ...]:
    if isinstance(raw, Mapping):
        raise BadInput(
            f"the input is a dict ({', '.join(map(str, list(raw)[:4]))}), and none of its values is a tensor: give the "
            "text itself, or torch tensors by the names of the model's arguments."
        )
    parts = raw if isinstance(raw, (tuple, list)) else (raw,)
    if not all(isinstance(p, str) for p in parts) or not 1 <= len(parts) <= 2:
        raise BadInput(f"expected a string or a pair of strings, got {type(raw).__name__}: {str(raw)[:60]!r}")
    if not any(p.strip() for p in parts):
        raise BadInput("the text is empty: there is nothing to explain. Pass at least one word.")
    return tuple(parts)


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
