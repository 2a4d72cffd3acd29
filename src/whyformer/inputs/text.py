"""Text: tokens of a tokenizer, or ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.lookups import ABSENT
from whyformer.errors import BadInput, NotOffered, TooLong, UnknownName, shown
from whyformer.inputs import units as naming
from whyformer.inputs.base import MEAN_VECTOR, Mask, Mean, Modality, Place, with_added
from whyformer.inputs.batch import (
    Batch,
    Filling,
    Placed,
    Raw,
    SamplePool,
    all_real,
    on_host,
    pointers,
    require_shown,
    required,
)
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.exchanges import ANSWER, Chars, answered, without_end
from whyformer.inputs.families import continues_text, number_of
from whyformer.inputs.stream_inputs import Layout, StreamInput, WordEmbeddings
from whyformer.inputs.tokens import ROUNDING, TokenRead, bare, padded, padding_effect
from whyformer.loan.borrow import names_no_padding
from whyformer.results.types import Units

ONLY_TOKENS = ("bos", "eos", "pad")  # what is left of a text without words: the first of these that there is
DELETED = (
    "sentences and ranges of a text are deleted by default, tokens and words are replaced in place (replace={!r}): "
    "scores of the two differ, also in sign."
)


class TextRead(TokenRead):
    """One text, or a pair of texts, per input; units are the tokens."""

    @cached_property
    def kind(self) -> str:  # type: ignore[override]  # asked many times in a call
        # By its name: whether it is causal is found later, by running the model.
        return "language" if continues_text(self.model) and not self.joint else self.stream

    def encode(self, raw: Sequence[Raw]) -> Batch:
        tokenizer = self.tokenizer  # without one, nothing else about the inputs counts
        texts, limit = [_text(r) for r in raw], self.max_length()
        encodings = [self.encoding_of(*text) for text in texts]
        warnings: list[tuple[str, ...]] = []
        for i, encoding in enumerate(encodings):
            length, cut = len(encoding["input_ids"]), tuple[str, ...]()
            if limit is not None and length > limit:
                # A language model continues the end of a prompt: without it, another question would be explained.
                side = "left" if self.kind == "language" else getattr(tokenizer, "truncation_side", "right")
                encodings[i] = self.encoding_of(*texts[i], truncation=True, max_length=limit, side=side)
                part = "beginning" if side == "left" else "end"
                which = " of the longer text, or of both," if len(texts[i]) > 1 else ""
                cut = (f"the text has {length} tokens and the model takes {limit}: the {part}{which} was cut off.",)
            warnings.append((*cut, *self.unknown_words(encodings[i]["input_ids"])))
        batch = padded(tokenizer, encodings)
        keep = batch["attention_mask"] if "attention_mask" in batch else torch.ones_like(batch["input_ids"])
        batch = self._by_argument_names(batch, keep)
        self.check_vocabulary(batch[self.main])
        tensors = {k: self.move(v) for k, v in batch.items() if self.takes(k)}
        return Batch(
            tensors,
            keep_BN=self.move(keep.bool()),
            raw=tuple(t[0] if len(t) == 1 else t for t in texts),
            warnings=tuple(warnings),
            encodings=tuple(self.facts(t, e) for t, e in zip(texts, encodings, strict=True)),
        )

    def from_messages(self, inputs: Any) -> Any:
        if naming.is_chat(inputs):
            return self.written_out(inputs)
        chats = all(naming.is_chat(chat) for chat in inputs)
        return [self.written_out(chat) for chat in inputs] if chats else inputs

    def written_out(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        """Return a chat as a prompt, with its answer if it has one; a processor may hold the template."""
        template = getattr(self.processor, "chat_template", None)
        return naming.prompt_of(messages, self.tokenizer, template if isinstance(template, str) else None)

    def allowed(self, decoding: Decoding, segments: Any) -> Any:
        if self.joint:
            if segments != "token":
                raise NotOffered("units= divides one text, and this model takes more than one. Omit units=.")
            return super().allowed(decoding, segments)
        if isinstance(segments, Mapping):
            if set(segments) != {"text"}:
                raise BadInput('units={"image": …} names regions of an image, and the input is a text alone.')
            segments = segments["text"]
        return segments

    def prompt_tokens(self, batch: Batch, row: int) -> tuple[list[int], dict[str, Any]]:
        """Return the tokens of a prompt that came with its answer, and facts about them."""
        prompt = batch.raw[row][0]
        encoding = self.encoding_of(prompt)
        return without_end(self, prompt, encoding["input_ids"]), self.facts((prompt,), encoding)

    def beside_prompt(self, batch: Batch, row: int, length: int) -> dict[str, Tensor]:
        """Return what ``generate`` needs besides the first ``length`` tokens of a prompt."""
        return {}

    def one_by_one(self, batch: Batch) -> bool:
        if self.joint or batch.size == 1 or batch.keep_BN is None:
            return False
        if bool(on_host(batch.keep_BN).all()):
            return False
        if not batch.raw:  # tensors are as the user wants them, unless the model would not take them
            return names_no_padding(self.model)
        effect = padding_effect(self, batch)
        return effect is not None and effect > 1

    def alone(self, one: Batch) -> Batch:
        return one if one.keep_BN is None else bare(one)  # two compared texts have a mask each

    def trimmed(self, one: Batch) -> Batch:
        keep = one.keep_BN
        if keep is None or self.joint or bool(on_host(keep).all()):
            return one
        effect = padding_effect(self, one)
        return bare(one) if effect is not None and effect <= ROUNDING else one

    def _by_argument_names(self, batch: dict[str, Tensor], keep: Tensor) -> dict[str, Tensor]:
        """Rename for a home-made model: the ids to its first argument, the mask to one with mask or padding in it."""
        if self.main in batch:
            return batch
        named = {self.main: batch["input_ids"]}
        mask = next((n for n in self.parameters if "mask" in n or "padding" in n), None)
        if mask is not None and (self.parameters[mask].default is Parameter.empty or not bool(keep.all())):
            named[mask] = keep == 0 if "padding" in mask else keep != 0  # torch.nn's padding masks say what is hidden
        return named

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        ids = required(batch, self.main)
        if ids.ndim != 2:
            raise BadInput(f"{self.main} has shape {tuple(ids.shape)}; it needs two axes, inputs × tokens.")
        limit = getattr(self.config, "max_position_embeddings", None)
        if not isinstance(limit, int) or 2 * ids.shape[1] > limit:  # far below it, nobody has to look for the table
            limit = self._positions
        if limit is not None and ids.shape[1] > limit:
            raise TooLong(f"{ids.shape[1]} tokens, but the model takes {limit}. Cut the inputs to that length.")
        rows = self.check_vocabulary(ids)
        keep: Tensor | None = None
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
                    if name == "attention_mask" and not bool(on_host(keep).any(1).all()):
                        require_shown(name, keep)  # what other masks mean is not agreed upon
        if keep is None:
            keep = all_real(len(ids), ids.shape[1], device=ids.device)
        alone = batch.tensors.keys() <= {self.main, "attention_mask"}  # neither holds positions
        self.pointers = () if alone or self.joint else pointers(batch.tensors, self.main)
        encodings = tuple(self.facts(None, {"input_ids": row}) for row in rows)
        if self.processor is None and self.example is None:  # the first one stays: it is of the same form as later ones
            self.example = batch.select([0])
        return Batch(batch.tensors, keep_BN=keep, encodings=encodings, constants=batch.constants)

    def facts(self, text: tuple[str, ...] | None, encoding: Any) -> dict[str, Any]:
        """Return what the tokenizer knows about one input, position by position (raw text without padding)."""
        ids = list(encoding["input_ids"])
        facts: dict[str, Any] = {"ids": ids}
        words = getattr(encoding, "word_ids", None)
        try:
            facts["word"] = [-1 if w is None else w for w in words()] if words else None
            facts["spans"] = characters_of(encoding) if words else None
        except (ValueError, AttributeError, TypeError):  # slow tokenizers know neither
            facts["word"] = facts["spans"] = None
        if text is not None and isinstance(text[0], naming.PromptText) and facts["spans"] is not None:
            facts["role"] = naming.roles_of(facts["spans"], text[0].parts)
        facts["pair"] = text is not None and len(text) > 1
        facts["text"] = text[0] if text is not None and len(text) == 1 else None
        if facts["pair"] and facts["word"] is not None:
            numbered = list(zip(facts["word"], encoding.sequence_ids(), strict=True))
            offset = max((word for word, part in numbered if part == 0), default=-1) + 1  # of the second text's words
            facts["word"] = [word + offset if part == 1 and word >= 0 else word for word, part in numbered]
        return facts


class TextPlace(Place):
    """Tokens of a text, which has as many positions as it needs."""

    read: TextRead
    lengths_vary = True
    padding_in_doubt = True

    def lengthened(self, tensors: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
        if not any(name.endswith("mask") and "padding" not in name for name in tensors):
            return tensors
        width, pad = tensors[self.read.main].shape[1], number_of(self.read.config, "pad_token_id") or 0
        return {
            k: nn.functional.pad(v, (0, extra), value=pad if k == self.read.main else 0)
            if v.shape[1:2] == (width,)
            else v
            for k, v in tensors.items()
        }

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        ids_BN, keep_BN = batch.tensors[self.read.main], batch.real_BN
        extra = length - ids_BN.shape[1]
        specials = self.read.special_ids
        result = []
        for row, (ids, keep) in enumerate(zip(on_host(ids_BN).tolist(), on_host(keep_BN).tolist(), strict=True)):
            real = [i for i, k in zip(ids, keep, strict=True) if k]
            facts = batch.encodings[row] if batch.encodings else {}
            known = len(facts.get("ids", ())) == len(real)
            labels, special = self.read.labels(real), [i in specials for i in real]
            word, text, role = (facts.get(name) if known else None for name in ("word", "text", "role"))
            rest: dict[str, Any] = {"text": text, "role": tuple(role) if role else None}
            rest["word"] = tuple(word) if word else naming.words_of(labels, special) if self.read.processor else None
            if text is not None and facts.get("spans"):
                rest["spans"] = _spans(labels, facts["spans"], text)
            result.append(naming.with_words(naming.assemble(labels, special, self.read.stream, extra, front, **rest)))
        return result

    def divided(self, units: Units, by: Any, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        return None if by == "token" else naming.segmented(units, by, facts.get("whole"))

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return with_added(batch.real_BN[:, :length], length, front, True)


class TextMask(Mask):
    """Other tokens stand in place of masked ones; tokens may be hidden or deleted, too."""

    read: TextRead
    takes_token_ids = True

    def only_token(self) -> int:
        table = self.read.embedding
        for name in ONLY_TOKENS:
            token = self.read.id_of(name)
            if token is not None and (table is None or token < table.num_embeddings):
                return token
        whose = "the model's config" if self.read.processor is None else "the tokenizer"
        raise NotOffered(
            f"deleting every token leaves an empty input, and {whose} has no bos, eos or pad token to use instead: use "
            f"{self.in_place()}."
        )

    def in_place(self) -> str:
        names = [name for name in self.replacements if name in {"mask", "unk", "pad"}]
        return " or ".join([*(f"replace={name!r}" for name in names), "replace=<token id>"])

    def replacement_id(self, replacement: str | int) -> int:
        if isinstance(replacement, int):
            table = self.read.embedding
            if replacement < 0 or (table is not None and replacement >= table.num_embeddings):
                known = "0 or more" if table is None else f"0 to {table.num_embeddings - 1}"
                raise BadInput(f"token id {replacement}: the model has {known}.")
            return replacement
        token_id = self.read.id_of(replacement)
        if token_id is None:
            hint = "A token id (an integer) works too, and is needed where no tokenizer was given."
            raise UnknownName("replacement", replacement, self.replacements, hint)
        return token_id

    @property
    def replacements(self) -> tuple[str, ...]:
        known = [n for n in ("mask", "unk", "pad") if self.read.id_of(n) is not None]
        hidden = ("attention_mask",) if any("mask" in p for p in self.read.parameters) else ()
        if not known and self.looks_up((self.read.main,)):
            known = [MEAN_VECTOR]
        return (*known, *hidden, "delete") if self.read.pointers else (*known, "delete", *hidden)

    def offered(self, segments: Any) -> tuple[str, ...]:
        # A sentence of mask tokens is not a sentence: stretches of text are deleted by default.
        known = self.replacements
        if segments in ("token", "word") or self.read.pointers or "delete" not in known:
            return known
        return "delete", *(name for name in known if name != "delete")

    @property
    def default_baseline(self) -> str:
        # A sentence of [MASK] says less than one of [PAD] (docs/reports/frontier.md).
        return next((name for name in ("mask", "pad") if name in self.replacements), "zero")

    def other_baselines(self) -> tuple[str, ...]:
        """Return tokens whose vectors are not zero, and the text's own mean vector."""
        return (*(name for name in ("pad", "unk", "eos", "bos") if self.has_vector(name)), "mean")

    def has_vector(self, name: str) -> bool:
        """Return whether the token of this name exists and its vector is not zero, as that of padding may be."""
        token_id, table = self.read.id_of(name), self.read.embedding
        if token_id is None or table is None or table.weight.is_meta:  # no table that says so, or it is offloaded
            return token_id is not None
        return token_id < len(table.weight) and bool(table.weight[token_id].any())

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        """Replace every token that is neither padding nor kept."""
        if name in {"zero", "mean"}:
            return None
        if self.read.joint:
            raise NotOffered(
                f"baseline={name!r} is a word, and this model also takes an image, which it cannot replace. Use "
                "at='input', where each has its own baseline, or baseline='zero'."
            )
        ids_BN, other = placed.batch.tensors[self.read.main], self.replacement_id(name)
        instead = torch.where(self.open_tokens(placed.batch, keep_special), other, ids_BN)
        return placed.batch.with_tensors(**{self.read.main: instead})

    def open_tokens(self, batch: Batch, keep_special: bool | Sequence[int]) -> Tensor:
        if keep_special is False:
            return batch.real_BN
        special = sorted(self.read.special_ids) if keep_special is True else list(keep_special)
        ids_BN = batch.tensors[self.read.main]
        return batch.real_BN & ~torch.isin(ids_BN, torch.tensor(special, dtype=ids_BN.dtype, device=ids_BN.device))

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        return [WordEmbeddings(placed, stream, self, layout[stream], whole)]

    def about_baseline(self, name: Any) -> tuple[str, ...]:
        in_place = [other for other in self.replacements if other in {"mask", "unk", "pad"}]
        return (DELETED.format(in_place[0]),) if name == "delete" and in_place else ()

    def removable(self, units: Units, batch: Batch) -> list[bool]:
        # [CLS] and [SEP] are ids like any other. An answer that is explained as a whole stays; of a part of it, the run
        # knows where it begins.
        if batch.asked.decoding.span is True and units.role is not None:
            return [role != ANSWER for role in units.role]
        return [stream != "queries" for stream in units.stream]

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        unit = torch.full_like(one.tensors[self.read.main][0], -1, dtype=torch.long)
        unit[one.real_BN[0]] = torch.arange(int(one.real_BN.sum()), device=unit.device)
        owners = {self.read.main: unit}
        if name := self._mask(one):
            owners[name] = unit.view(-1, *[1] * (one.tensors[name].ndim - 2))
        return owners

    def _mask(self, one: Batch) -> str:
        """Return the name of the mask that hides padding; the model may take other masks, too."""
        keep_N = one.real_BN[0]

        def differs(name: str) -> tuple[bool, bool]:
            mask = one.tensors[name][0].bool()
            return name != "attention_mask", not (torch.equal(mask, keep_N) or torch.equal(~mask, keep_N))

        return min((n for n in one.tensors if n != self.read.main and "mask" in n), key=differs, default="")

    @property
    def fillers(self) -> tuple[str, ...]:
        return () if self.read.joint else ("resample",)

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return another token, a mask that hides, or (with a pool) tokens drawn from all of the pool's."""
        if pool is None and name == "attention_mask":
            if not (mask := self._mask(one)):
                raise NotOffered(
                    "replace='attention_mask' hides a token by the mask among the inputs, and there is none: give the "
                    "attention_mask, too, or replace=<token id>."
                )
            # What True means, whatever the name says.
            hides = not torch.equal(one.tensors[mask][0].bool(), one.real_BN[0])
            return [{mask: torch.full_like(one.tensors[mask], hides)}]
        if pool is None:
            other = ABSENT if name == MEAN_VECTOR else self.replacement_id(name)
            return [{self.read.main: torch.full_like(one.tensors[self.read.main], other)}]
        ids = pool.batch.tensors[self.read.main]
        tokens = (ids if pool.batch.keep_BN is None else ids[pool.batch.keep_BN]).flatten().cpu().numpy()
        tokens = tokens[~np.isin(tokens, list(self.read.special_ids))]
        if not len(tokens):
            raise BadInput("replace='resample' draws tokens from the reference inputs, and they have none.")
        shape = one.tensors[self.read.main].shape
        return [
            {self.read.main: torch.from_numpy(pool.generator.choice(tokens, size=shape)).to(ids.device)}
            for _ in naming.drawn_inputs(pool)  # texts are drawn word by word, but as often as other inputs
        ]

    def token_ids(self, units: Units, one: Batch) -> Tensor | None:
        ids = one.tensors[self.read.main][0][one.real_BN[0]]
        return ids if len(ids) == len(units) else None


class TextMean(Mean):
    """Classes, or the next token."""

    read: TextRead

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        return answered(self, batch, target)


TextInput = Modality.of(TextRead, TextPlace, TextMask, TextMean)


def characters_of(encoding: Any) -> list[Any]:
    """Return the characters of each token, None for tokens that the tokenizer added."""
    whose = zip(encoding.encodings[0].offsets, encoding.encodings[0].sequence_ids, strict=True)
    return [None if sequence is None else Chars(*characters) for characters, sequence in whose]


def _spans(labels: Sequence[str], spans: Sequence[Any], text: str) -> tuple[tuple[int, int], ...]:
    """Return the characters of each token; the ``▁`` that SentencePiece adds before a text has none."""
    result = []
    for label, span in zip(labels, spans, strict=True):
        start, end = (span.start, span.end) if span else (0, 0)
        invented = not label.strip(naming.WORD_STARTS) and text[start:end].strip()
        result.append((start, start) if invented else (start, end))
    return tuple(result)


def _text(raw: Raw) -> tuple[str, ...]:
    if isinstance(raw, Mapping):
        raise BadInput(
            f"the input is a dict ({', '.join(map(str, list(raw)[:4]))}), and none of its values is a tensor: give the "
            "text itself, or torch tensors by the names of the model's arguments."
        )
    parts = raw if isinstance(raw, (tuple, list)) else (raw,)
    if not all(isinstance(p, str) for p in parts) or not 1 <= len(parts) <= 2:
        raise BadInput(
            f"expected a string or a pair of strings, got {type(raw).__name__}: {shown(raw)}. Pass several texts as a "
            "list, an array or a Series of strings."
        )
    if not any(p.strip() for p in parts):
        raise BadInput("the text is empty: there is nothing to explain. Pass at least one word.")
    return tuple(str(p) if isinstance(p, np.str_) else p for p in parts)  # repr shows numpy's own kind
