"""Encoder-decoders: a source that is read, and a target that is written token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered
from whyformer.outputs import logits_of
from whyformer.subjects.audio import AudioSubject
from whyformer.subjects.base import Batch, Raw, Subject
from whyformer.subjects.parts import without_each
from whyformer.subjects.text import TextSubject
from whyformer.types import Units

STEPS = 32  # generated tokens that are explained, unless the target is given


class Seq2SeqSubject(TextSubject):
    """A source (text or sound) and a target; units are the source's and the target's tokens so far.

    A generator is explained at the next token after the target prefix. Given only a source, the model's own greedy
    answer is explained, one explanation per token of it.
    """

    several = True
    stream = "source"

    def __init__(
        self, model: nn.Module, processor: Any = None, source: str = "input_ids", target: str = "decoder_input_ids"
    ) -> None:
        super().__init__(model, processor, main=source)
        self.target = target
        self.generates = target == "decoder_input_ids" and is_generator(model)
        self._source: Subject = (
            AudioSubject(model, processor, main=source)
            if source in {"input_features", "input_values"}
            else TextSubject(model, processor, main=source)
        )
        self._target = TextSubject(model, processor, main=target)

    # Inputs

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if not self.generates:
            return super().encode(raw)
        pairs = [r if _is_pair(r) else (r, None) for r in raw]
        batch = self._source.encode([source for source, _ in pairs])
        given = [answer for _, answer in pairs]
        if all(g is None for g in given):
            return batch
        if any(g is None for g in given):
            raise BadInput("give a target text for every input, or for none.")
        ids = [[int(i) for i in self._tokenizer()(text_target=str(g))["input_ids"]] for g in given]
        return replace(batch, encodings=tuple({**e, "answer": i} for e, i in zip(_facts(batch), ids, strict=True)))

    def adopt(self, tensors: Any) -> Batch:
        if isinstance(self._source, TextSubject):
            batch = super().adopt(tensors)
        else:
            batch = self._source.adopt(tensors)
        mask = batch.tensors.get("attention_mask")  # the decoder's mask may have the source's width by chance
        if isinstance(self._source, TextSubject) and mask is not None:
            batch = replace(batch, keep_BN=mask.bool())
        return batch

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        """A source without a target prefix: one row per token of the answer, or the token that was asked for."""
        if not self.generates or self.target in batch.tensors:
            return batch, target
        answers = [self._given(e) for e in batch.encodings] if batch.encodings else [None] * batch.size
        written = answers if all(a is not None for a in answers) else self._generated(batch)
        rows, prefixes, tokens = [], [], []
        for row, answer in enumerate(written):
            assert answer is not None
            wanted = target[row] if isinstance(target, list) else target
            for step in self._steps(answer[1:], wanted):
                rows.append(row)
                prefixes.append(answer[: step + 1])
                tokens.append(answer[step + 1])
        width = max(len(p) for p in prefixes)
        pad = self._start()
        ids = torch.tensor([p + [pad] * (width - len(p)) for p in prefixes])
        mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in prefixes])
        steps = batch.select(rows).with_tensors(**{self.target: self.move(ids)})
        if "decoder_attention_mask" in self.parameters:
            steps = steps.with_tensors(decoder_attention_mask=self.move(mask))
        elif len({len(p) for p in prefixes}) > 1:
            steps = replace(
                steps, encodings=tuple({**e, "written": len(p)} for e, p in zip(_facts(steps), prefixes, strict=True))
            )
        return replace(steps, groups=tuple(rows) if target is None else ()), tokens

    def _given(self, facts: Any) -> list[int] | None:
        answer = facts.get("answer")
        return None if answer is None else [self._start(), *answer]

    def _start(self) -> int:
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            value = getattr(self.config, name, None)
            if value is not None:
                return int(value)
        raise NotOffered("the model's config names no decoder_start_token_id: pass decoder_input_ids yourself.")

    def _generated(self, batch: Batch) -> list[list[int]]:
        """The model's greedy answers, end of text included."""
        with torch.no_grad():
            ids = self.model.generate(  # type: ignore[operator]
                **batch.tensors, max_new_tokens=STEPS, do_sample=False, num_beams=1
            )
        ends = getattr(self.config, "eos_token_id", None)
        stop = set(ends) if isinstance(ends, (list, tuple)) else {ends}
        answers = []
        for tokens in ids.tolist():
            # Whisper's generate leaves the prompt out; others begin with the start token.
            row = tokens if tokens[0] == self._start() else [self._start(), *tokens]
            end = next((i for i, token in enumerate(row[1:], 1) if token in stop), len(row) - 1)
            answers.append(row[: end + 1])
        return answers

    def _steps(self, answer: list[int], wanted: Any) -> list[int]:
        if wanted is None:
            return list(range(len(answer)))
        ids = {wanted} if isinstance(wanted, int) else self._spellings(str(wanted))
        found = [i for i, token in enumerate(answer) if token in ids]
        if not found:
            raise BadInput(f"target {wanted!r} is not among the tokens of the answer: {' '.join(self.labels(answer))}.")
        return found[:1]

    def _spellings(self, token: str) -> set[int]:
        found: set[int] = set()
        for text in (token, " " + token):
            ids = self._tokenizer()(text, add_special_tokens=False)["input_ids"]
            found |= set(ids) if len(ids) == 1 else set()
        return found

    # Outputs

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        logits = logits_of(output)
        if not self.generates or logits.ndim != 3:
            return None
        keep = self._written(batch)
        width = keep.shape[1]
        last = torch.stack([width - 1 - row.flip(0).float().argmax() for row in keep])
        return logits[torch.arange(len(logits), device=logits.device), last.to(logits.device)]

    # Units

    def _written(self, batch: Batch) -> Tensor:
        """(B, N) real positions of the target."""
        ids = self._target_ids(batch)
        mask = batch.tensors.get("decoder_attention_mask")
        if mask is not None:
            return mask.bool()
        if self.target not in batch.tensors and batch.keep_BN is not None:
            return batch.keep_BN  # the source once more, moved on by one
        counts = [e.get("written") if isinstance(e, dict) else None for e in batch.encodings]
        if counts and all(c is not None for c in counts):
            return torch.arange(ids.shape[1], device=ids.device) < torch.tensor(counts, device=ids.device)[:, None]
        return torch.ones_like(ids, dtype=torch.bool)

    def _target_ids(self, batch: Batch) -> Tensor:
        if self.target in batch.tensors:
            return batch.tensors[self.target]
        ids = batch.tensors[self.main]  # classifiers feed the source to the decoder, after a start token
        start = torch.full_like(ids[:, :1], self._start())
        return torch.cat([start, ids[:, :-1]], 1)

    def part(self, stream: str, batch: Batch) -> tuple[Subject, Batch]:
        if stream == "target":
            ids = self._target_ids(batch)
            return self._target, Batch({self.target: ids}, keep_BN=self._written(batch))
        return self._source, batch

    @property
    def replacements(self) -> tuple[str, ...]:
        kept = [r for r in self._source.replacements if r not in {"delete", "attention_mask"}]
        return tuple(kept) or ("unk",)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
        if self.target not in batch.tensors:
            raise NotOffered(
                "the decoder is fed the source itself, so a unit cannot be taken away from one stream alone. Use "
                "generic_attention."
            )
        return without_each(self, batch, row, units, replacement)


def is_generator(model: Any) -> bool:
    config = getattr(model, "config", None)
    name = type(model).__name__
    return bool(getattr(config, "is_encoder_decoder", False)) and not name.endswith(
        ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForObjectDetection")
    )


def _is_pair(raw: Raw) -> bool:
    return isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[1], str)


def _facts(batch: Batch) -> tuple[Any, ...]:
    return batch.encodings or ({},) * batch.size
