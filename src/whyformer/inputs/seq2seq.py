"""Encoder-decoders: a source that is read, and a target that is written token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, NotOverUnits
from whyformer.inputs.audio import AudioInput
from whyformer.inputs.base import LearnedPositions, Modality
from whyformer.inputs.batch import Batch, Decoding, Raw, others_note, signature_of
from whyformer.inputs.families import task_of
from whyformer.inputs.image import ImageInput
from whyformer.inputs.language import wanted_steps
from whyformer.inputs.processing import processed
from whyformer.inputs.similarity import without_each
from whyformer.inputs.text import TextInput
from whyformer.inputs.tokens import bare
from whyformer.results.types import Units
from whyformer.targets import logits_of

STEPS = 32  # generated tokens that are explained, unless the target is given


class Seq2SeqInput(TextInput):
    """A source (text, sound or an image) and a target; units are the source's and the target's tokens so far.

    A generator is explained at the next token after the target prefix. Given only a source, the model's own greedy
    answer is explained, one explanation per token of it.
    """

    multi_input = True
    stream = "source"

    def __init__(
        self, model: nn.Module, processor: Any = None, source: str = "input_ids", target: str = "decoder_input_ids"
    ) -> None:
        super().__init__(model, processor, main=source)
        self.target = target
        self.generates = target == "decoder_input_ids" and is_generator(model)
        kinds = {"input_features": AudioInput, "input_values": AudioInput, "pixel_values": ImageInput}
        self._source: Modality = kinds.get(source, TextInput)(model, processor, main=source)
        self._answer = Answer(model, processor, target)

    # Inputs

    def ask(self, decoding: Decoding, segments: Any) -> None:
        """Of what a language model is asked for, how much it writes."""
        if decoding != Decoding(generate=decoding.generate, seed=decoding.seed) or not isinstance(
            decoding.generate, int | None
        ):
            raise NotOffered(
                "span, choices and other wishes are for models without an encoder: give generate=<tokens>."
            )
        if segments != "token":
            super().ask(decoding, segments)
        if decoding.generate is not None:
            self._answer.steps = decoding.generate

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if not self.generates:
            return super().encode(raw)
        pairs = [r if is_pair(r) else (r, None) for r in raw]
        batch = self._source.encode([source for source, _ in pairs])
        return self._answer.with_answers(batch, [answer for _, answer in pairs])

    def adopt(self, tensors: Any) -> Batch:
        if isinstance(self._source, TextInput):
            batch = super().adopt(tensors)
        else:
            batch = self._source.adopt(tensors)
        mask = batch.tensors.get("attention_mask")  # the decoder's mask may have the source's width by chance
        if isinstance(self._source, TextInput) and mask is not None:
            batch = replace(batch, keep_BN=mask.bool())
        return batch

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        return self._answer.expanded(batch, target) if self.generates else (batch, target)

    # Outputs

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        return self._answer.next_logits(output, batch) if self.generates else None

    # Units

    def settle(self, one: Batch, grid: tuple[int, int] | None) -> int:
        return self.passes + self._source.settle(one, grid)

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        if self.target == "decoder_input_ids":  # as transformers calls it
            return super().inputs(batch)
        return [(batch.tensors[self.main], "source"), (batch.tensors[self.target], "target")]

    def notes(self, batch: Batch, length: int) -> tuple[str, ...]:
        return (others_note(f"{self.main} and {self.target}", self.unscored),) if self.unscored else ()

    def part(self, stream: str, batch: Batch) -> tuple[Modality, Batch]:
        if stream == "target" and (self.target in batch.tensors or isinstance(self._source, TextInput)):
            return self._answer.part(batch, self.main)
        return (LearnedPositions(self.model, self.main), batch) if stream == "queries" else (self._source, batch)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        self._require_text()
        return super().units(batch, length, front, grid)

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        self._require_text()
        return super().keep(batch, length, front)

    def _require_text(self) -> None:
        """Asked for units of its own only where no streams were found."""
        if not isinstance(self._source, TextInput):
            raise NotOverUnits(
                "which positions of the model's attention belong to which part of the input is not known: its encoder "
                "attends inside windows (Donut), or over positions that change from layer to layer, so scores could "
                "not be laid over the input."
            )

    @property
    def replacements(self) -> tuple[str, ...]:
        offered = [r for r in self._source.replacements if r not in {"delete", "attention_mask"}]
        return tuple(offered) or ("unk",)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
        if self.target not in batch.tensors:
            raise NotOffered(
                "the decoder is fed the source itself, so a unit cannot be taken away from one stream alone."
            )
        return without_each(self, batch, row, units, replacement)


class Answer:
    """What a decoder writes token by token: a stream of its own, explained at the next token after the prefix.

    main: the argument that holds what was written so far.
    """

    steps = STEPS

    def __init__(self, model: nn.Module, processor: Any, main: str = "decoder_input_ids") -> None:
        self.model, self.main = model, main
        self.text = TextInput(model, processor, main=main)
        config = getattr(model, "config", None)
        self.configs = [config, getattr(config, "text_config", None)]

    # Inputs

    def with_answers(self, batch: Batch, texts: Sequence[str | None]) -> Batch:
        """Remember the answers that the user gave, if any."""
        if all(t is None for t in texts):
            return batch
        if any(t is None for t in texts):
            raise BadInput("give a target text for every input, or for none.")
        tokenizer = self.text._tokenizer()
        ids = [[int(i) for i in processed(tokenizer, text_target=str(t))["input_ids"]] for t in texts]
        return replace(batch, encodings=tuple({**e, "answer": i} for e, i in zip(_facts(batch), ids, strict=True)))

    def expanded(self, batch: Batch, target: Any, apart: bool = False) -> tuple[Batch, Any]:
        """A source without a target prefix: one row per token of the answer, or the token that was asked for.

        apart: inputs are answered one by one, without padding.
        """
        if self.main in batch.tensors:
            return batch, target
        answers = [self._answer_ids(e) for e in batch.encodings] if batch.encodings else [None] * batch.size
        written = answers if all(a is not None for a in answers) else self._generated(batch, apart)
        rows, prefixes, tokens = [], [], []
        for row, answer in enumerate(written):
            assert answer is not None
            wanted = target[row] if isinstance(target, list) else target
            for step in wanted_steps(self.text, answer[1:], wanted):
                rows.append(row)
                prefixes.append(answer[: step + 1])
                tokens.append(answer[step + 1])
        width = max(len(p) for p in prefixes)
        pad = self.start()
        ids = torch.tensor([p + [pad] * (width - len(p)) for p in prefixes])
        mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in prefixes])
        steps = batch.select(rows).with_tensors(**{self.main: self.text.move(ids)})
        if "decoder_attention_mask" in self.text.parameters:
            steps = steps.with_tensors(decoder_attention_mask=self.text.move(mask))
        elif len({len(p) for p in prefixes}) > 1:
            steps = replace(
                steps, encodings=tuple({**e, "written": len(p)} for e, p in zip(_facts(steps), prefixes, strict=True))
            )
        return replace(steps, groups=tuple(rows) if target is None else ()), tokens

    def _answer_ids(self, facts: Any) -> list[int] | None:
        answer = facts.get("answer")
        return None if answer is None else [self.start(), *answer]

    def _named_id(self, *names: str) -> Any:
        values = (getattr(config, name, None) for name in names for config in self.configs)
        return next((value for value in values if value is not None), None)

    def start(self) -> int:
        start_id = getattr(self.model, "decoder_start_token_id", None)  # BLIP keeps it on the model
        value = (
            start_id
            if isinstance(start_id, int)
            else self._named_id("decoder_start_token_id", "bos_token_id", "pad_token_id")
        )
        if value is None:
            raise NotOffered("the model's config names no decoder_start_token_id: pass decoder_input_ids yourself.")
        return int(value)

    def _generated(self, batch: Batch, apart: bool) -> list[list[int]]:
        """The model's greedy answers, end of text included."""
        room = self._named_id("max_target_positions")  # Whisper refuses to be asked for more
        steps = self.steps if room is None else min(self.steps, int(room) - 2)
        parts = [bare(batch.select([i])) for i in range(batch.size)] if apart else [batch]
        ids: list[list[int]] = []
        for part in parts:
            # A tokenizer of another family may make types: a forward with **kwargs ignores them, generate() does not.
            known = {k: v for k, v in part.tensors.items() if k != "token_type_ids" or k in signature_of(self.model)}
            with torch.no_grad():
                ids += self.model.generate(  # type: ignore[operator]
                    **known, max_new_tokens=steps, do_sample=False, num_beams=1
                ).tolist()
        ends = [self._named_id("eos_token_id"), self._named_id("sep_token_id")]
        stop = {e for end in ends for e in (end if isinstance(end, (list, tuple)) else [end])}
        answers = []
        for tokens in ids:
            # Whisper's generate leaves the prompt out; others begin with the start token.
            row = tokens if tokens[0] == self.start() else [self.start(), *tokens]
            end = next((i for i, token in enumerate(row[1:], 1) if token in stop), len(row) - 1)
            answers.append(row[: end + 1])
        return answers

    # Outputs

    def next_logits(self, output: Any, batch: Batch) -> Tensor | None:
        """(B, C) logits after the last written token."""
        logits = logits_of(output)
        if logits.ndim != 3:
            return None
        keep = self.keep(batch)
        width = keep.shape[1]
        last = torch.stack([width - 1 - row.flip(0).float().argmax() for row in keep])
        return logits[torch.arange(len(logits), device=logits.device), last.to(logits.device)]

    # Units

    def ids(self, batch: Batch, source: str = "") -> Tensor:
        if self.main in batch.tensors:
            return batch.tensors[self.main]
        ids = batch.tensors[source]  # classifiers feed the source to the decoder, after a start token
        start = torch.full_like(ids[:, :1], self.start())
        return torch.cat([start, ids[:, :-1]], 1)

    def keep(self, batch: Batch, source: str = "") -> Tensor:
        """(B, N) real positions of the target."""
        ids = self.ids(batch, source)
        mask = batch.tensors.get("decoder_attention_mask")
        if mask is not None:
            return mask.bool()
        if self.main not in batch.tensors and batch.keep_BN is not None:
            return batch.keep_BN  # the source once more, moved on by one
        counts = [e.get("written") if isinstance(e, dict) else None for e in batch.encodings]
        if counts and all(c is not None for c in counts):
            return torch.arange(ids.shape[1], device=ids.device) < torch.tensor(counts, device=ids.device)[:, None]
        return torch.ones_like(ids, dtype=torch.bool)

    def part(self, batch: Batch, source: str = "") -> tuple[Modality, Batch]:
        return self.text, Batch({self.main: self.ids(batch, source)}, keep_BN=self.keep(batch, source))


def is_pair(raw: Raw) -> bool:
    """A source with the answer that is to be explained."""
    return isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[1], str)


def _facts(batch: Batch) -> tuple[Any, ...]:
    return batch.encodings or ({},) * batch.size


def is_generator(model: Any) -> bool:
    config = getattr(model, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and not task_of(model).endswith(
        ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForObjectDetection")
    )
