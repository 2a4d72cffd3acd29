"""Encoder-decoders: a source that is read, and a target that is generated token by token."""

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
from whyformer.inputs.language import last_real, wanted_steps
from whyformer.inputs.processing import processed
from whyformer.inputs.similarity import StreamsInput
from whyformer.inputs.text import TextInput
from whyformer.inputs.tokens import bare
from whyformer.results.types import Units
from whyformer.targets import logits_of

STEPS = 32  # generated tokens that are explained, unless the target is given


class Seq2SeqInput(StreamsInput, TextInput):
    """A source (text, sound or an image) and a target; units are the source's and the target's tokens so far.

    A generator is explained at the next token after the target prefix. Given only a source, the model's own greedy
    answer is explained, one explanation per token of it.
    """

    stream = "source"

    def __init__(
        self, model: nn.Module, processor: Any = None, source: str = "input_ids", target: str = "decoder_input_ids"
    ) -> None:
        super().__init__(model, processor, main=source)
        self.target = target
        heads = ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForObjectDetection")
        writes = bool(getattr(self.config, "is_encoder_decoder", False)) and not task_of(model).endswith(heads)
        self.generates = target == "decoder_input_ids" and writes
        kinds = {"input_features": AudioInput, "input_values": AudioInput, "pixel_values": ImageInput}
        self._source: Modality = kinds.get(source, TextInput)(model, processor, main=source)
        self._answer = Answer(model, processor, target)

    # Inputs

    def ask(self, decoding: Decoding, segments: Any) -> None:
        """Accept only a number of tokens to generate."""
        plain = decoding == Decoding(generate=decoding.generate, seed=decoding.seed)
        if not plain or not isinstance(decoding.generate, int | None):
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
        answered = [isinstance(r, tuple) and len(r) == 2 and isinstance(r[1], str) for r in raw]
        pairs = [r if pair else (r, None) for r, pair in zip(raw, answered, strict=True)]
        batch = self._source.encode([source for source, _ in pairs])
        return self._answer.with_answers(batch, [answer for _, answer in pairs])

    def adopt(self, tensors: Any) -> Batch:
        if not isinstance(self._source, TextInput):
            return self._source.adopt(tensors)
        batch = super().adopt(tensors)
        mask = batch.tensors.get("attention_mask")  # the decoder's mask may have the source's width by chance
        return batch if mask is None else replace(batch, keep_BN=mask.bool())

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
        """Raise for sources other than text: units of all streams are needed only where no streams were found."""
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

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        if self.target not in one.tensors:
            raise NotOffered(
                "the decoder is fed the source itself, so a unit cannot be taken away from one stream alone."
            )
        return super().owners(units, one)


class Answer:
    """What a decoder generates: a stream of its own, explained at the next token after the prefix.

    main: the argument that holds the prefix.
    """

    steps = STEPS

    def __init__(self, model: nn.Module, processor: Any, main: str = "decoder_input_ids") -> None:
        self.model, self.main = model, main
        self.text = TextInput(model, processor, main=main)
        self.configs = [self.text.config, getattr(self.text.config, "text_config", None)]

    # Inputs

    def with_answers(self, batch: Batch, texts: Sequence[str | None]) -> Batch:
        """Store the answers that the user gave, if any."""
        if all(t is None for t in texts):
            return batch
        if any(t is None for t in texts):
            raise BadInput("give a target text for every input, or for none.")
        tokenizer = self.text.tokenizer
        ids = [[int(i) for i in processed(tokenizer, text_target=str(t))["input_ids"]] for t in texts]
        return replace(batch, encodings=tuple({**e, "answer": i} for e, i in zip(_facts(batch), ids, strict=True)))

    def expanded(self, batch: Batch, target: Any, apart: bool = False) -> tuple[Batch, Any]:
        """Return one row per token of the answer, or for the token asked for, unless a prefix was given.

        apart: answers are generated one by one, without padding.
        """
        if self.main in batch.tensors:
            return batch, target
        answers = [facts.get("answer") for facts in _facts(batch)]
        if any(answer is None for answer in answers):
            answers = self._generated(batch, apart)
        else:
            answers = [[self.start(), *answer] for answer in answers]
        rows, prefixes, tokens = [], [], []
        for row, answer in enumerate(answers):
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

    def _named_id(self, *names: str) -> Any:
        values = (getattr(config, name, None) for name in names for config in self.configs)
        return next((value for value in values if value is not None), None)

    def start(self) -> int:
        start_id = getattr(self.model, "decoder_start_token_id", None)  # BLIP keeps it on the model
        named = self._named_id("decoder_start_token_id", "bos_token_id", "pad_token_id")
        value = start_id if isinstance(start_id, int) else named
        if value is None:
            raise NotOffered("the model's config names no decoder_start_token_id: pass decoder_input_ids yourself.")
        return int(value)

    def _generated(self, batch: Batch, apart: bool) -> list[list[int]]:
        """Return the model's greedy answers, end of text included."""
        room = self._named_id("max_target_positions")  # Whisper raises for more
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
        last = last_real(self.keep(batch)).to(logits.device)
        return logits[torch.arange(len(logits), device=logits.device), last]

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


def _facts(batch: Batch) -> tuple[Any, ...]:
    return batch.encodings or ({},) * batch.size
