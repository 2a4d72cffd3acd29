"""Encoder-decoders: a source that is read, and a target that is written token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from whyformer.errors import NotOffered, NotOverUnits
from whyformer.subjects.answer import Answer, is_pair
from whyformer.subjects.audio import AudioSubject
from whyformer.subjects.base import Batch, Raw, Subject
from whyformer.subjects.families import task_of
from whyformer.subjects.image import ImageSubject
from whyformer.subjects.parts import OwnPositions, without_each
from whyformer.subjects.text import TextSubject
from whyformer.types import Units


class Seq2SeqSubject(TextSubject):
    """A source (text, sound or an image) and a target; units are the source's and the target's tokens so far.

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
        kinds = {"input_features": AudioSubject, "input_values": AudioSubject, "pixel_values": ImageSubject}
        self._source: Subject = kinds.get(source, TextSubject)(model, processor, main=source)
        self._answer = Answer(model, processor, target)

    # Inputs

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if not self.generates:
            return super().encode(raw)
        pairs = [r if is_pair(r) else (r, None) for r in raw]
        batch = self._source.encode([source for source, _ in pairs])
        return self._answer.with_given(batch, [answer for _, answer in pairs])

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
        return self._answer.expanded(batch, target) if self.generates else (batch, target)

    # Outputs

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        return self._answer.next_logits(output, batch) if self.generates else None

    # Units

    def part(self, stream: str, batch: Batch) -> tuple[Subject, Batch]:
        if stream == "target" and (self.target in batch.tensors or isinstance(self._source, TextSubject)):
            return self._answer.part(batch, self.main)
        return (OwnPositions(self.model, self.main), batch) if stream == "queries" else (self._source, batch)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        self._require_text()
        return super().units(batch, length, front, grid)

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        self._require_text()
        return super().keep(batch, length, front)

    def _require_text(self) -> None:
        """Asked for units of its own only where no streams were found."""
        if not isinstance(self._source, TextSubject):
            raise NotOverUnits(
                "which positions of the model's attention belong to which part of the input is not known: its encoder "
                "attends inside windows (Donut), or over positions that change from layer to layer. No method can lay "
                "scores over the input here."
            )

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
    return bool(getattr(config, "is_encoder_decoder", False)) and not task_of(model).endswith(
        ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForObjectDetection")
    )
