"""Token classification and masked language models: which token of a text is explained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, UnknownName
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.families import class_names
from whyformer.inputs.text import TextMask, TextMean, TextPlace, TextRead
from whyformer.inputs.tokens import position_of
from whyformer.results.types import Target
from whyformer.targets import logits_of

TOGETHER = 16  # texts per batch when the model's predictions are computed


class LocatedPlace(TextPlace):
    """A text that is explained at one of its tokens, which the model's answer or the target chooses. Abstract."""

    padding_in_doubt = False  # classes of transformers read attention_mask


class LocatedMean(TextMean):
    """A text that is explained at one of its tokens, which the model's answer or the target chooses. Abstract."""

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        if batch.asked.decoding:
            return super().expanded(batch, target)  # which raises
        located = self.located(batch, target)
        if not located.targets:
            return located, target
        return replace(located, targets=()), list(located.targets)

    @abstractmethod
    def located(self, batch: Batch, target: Any) -> Batch: ...

    @torch.no_grad()
    def said(self, batch: Batch) -> list[Tensor] | None:
        """(tokens, C) logits of each input at its real tokens; None where there is not one row per token."""
        apart = self.read.one_by_one(batch)
        step = 1 if apart else TOGETHER
        rows: list[Tensor] = []
        for start in range(0, batch.size, step):
            part = batch.select(slice(start, start + step))
            part = self.read.alone(part) if apart else part
            logits = logits_of(self.read.call(part))
            if logits.ndim != 3 or logits.shape[:2] != part.real_BN.shape:
                return None
            rows += [row[keep].float().cpu() for row, keep in zip(logits, part.real_BN, strict=True)]
        return rows

    def real_ids(self, batch: Batch, row: int) -> list[int]:
        ids: list[int] = batch.tensors[self.read.main][row][batch.real_BN[row]].tolist()
        return ids

    def words_among(self, batch: Batch, row: int) -> Tensor:
        """(tokens,) those that are not special; all if there are no others."""
        specials = self.read.special_ids
        words = torch.tensor([i not in specials for i in self.real_ids(batch, row)])
        return words if bool(words.any()) else torch.ones_like(words)


def each_of(target: Any, size: int) -> list[Any]:
    return list(target) if isinstance(target, list) else [target] * size


def _names_position(want: Any) -> bool:
    return isinstance(want, Target) and want.position is not None


def with_notes(batch: Batch, notes: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple((*said, *note) for said, note in zip(batch.warnings or ((),) * batch.size, notes, strict=True))


class TokenLabelMean(LocatedMean):
    """Token classification: explained at the surest token with a label but "O", or where the target is strongest."""

    def located(self, batch: Batch, target: Any) -> Batch:
        wants = each_of(target, batch.size)
        if all(map(_names_position, wants)):
            places = [position_of(w.position, len(self.real_ids(batch, row))) for row, w in enumerate(wants)]
            return replace(batch, positions=tuple(places), targets=tuple(wants))
        said = self.said(batch)
        if said is None:
            return batch
        chosen = [self._chosen(batch, row, want, said[row]) for row, want in enumerate(wants)]
        positions, aims, notes = zip(*chosen, strict=True)
        return replace(batch, positions=positions, targets=aims, warnings=with_notes(batch, notes))

    def _chosen(self, batch: Batch, row: int, want: Any, logits_NC: Tensor) -> tuple[int, Any, tuple[str, ...]]:
        """Return the token, what is explained at it, and a remark on the choice."""
        if _names_position(want):
            return position_of(want.position, len(logits_NC)), want, ()
        first = want[0] if isinstance(want, tuple) and want else want.index if isinstance(want, Target) else want
        probability_NC = logits_NC.softmax(-1)
        probability_NC[~self.words_among(batch, row)] = -1
        names = class_names(self.read.model)
        labels = [names.get(i, str(i)) for i in range(logits_NC.shape[1])]
        if first is None:
            position, index, reason = _surest(logits_NC, probability_NC, labels)
        else:
            classes = _classes(first, labels)
            flat = int(probability_NC[:, classes].argmax())
            position, index = flat // len(classes), classes[flat % len(classes)]
            reason = f"where '{labels[index]}' is most probable"
        token = self.read.labels(self.real_ids(batch, row))[position]
        note = f"explained at token {position}, {token!r}, {reason}; for another, target=Target(label, position=…)."
        if isinstance(want, tuple):
            return position, (index, *want[1:]), (note,)
        return position, replace(want, index=index, position=position) if isinstance(want, Target) else index, (note,)


TokenLabelInput = Modality.of(TextRead, LocatedPlace, TextMask, TokenLabelMean)


def _surest(logits_NC: Tensor, probability_NC: Tensor, labels: list[str]) -> tuple[int, int, str]:
    """Return token and label of the highest probability, of labels other than O if possible, and why."""
    outside = [i for i, label in enumerate(labels) if label.upper() == "O"]
    named_NC, reason = probability_NC.clone(), "the surest of all"
    if 0 < len(outside) < len(labels):
        named_NC[:, outside] = -1
        labelled_N = ~torch.isin(logits_NC.argmax(-1), torch.tensor(outside)) & (probability_NC[:, 0] >= 0)
        reason = "the nearest to a label other than O: the model gives none"
        if bool(labelled_N.any()):
            named_NC[~labelled_N] = -1
            reason = "the surest with a label other than O"
    flat = int(named_NC.argmax())
    return flat // len(labels), flat % len(labels), reason


def _classes(want: Any, labels: list[str]) -> list[int]:
    """Return the labels that a target names: one by name or number, or all of an entity ("PER": B-PER, I-PER)."""
    if isinstance(want, str):
        lower = want.lower()
        classes = [i for i, label in enumerate(labels) if label.lower() == lower]
        classes = classes or [i for i, label in enumerate(labels) if label.lower().partition("-")[2] == lower]
        if not classes:
            raise UnknownName("target", want, labels)
        return classes
    if isinstance(want, bool) or not isinstance(want, int) or not -len(labels) <= want < len(labels):
        raise UnknownName("target", want, [f"0 to {len(labels) - 1}", *labels[:20]])
    return [want % len(labels)]


class MaskedMean(LocatedMean):
    """Masked language models: explained at the mask, one explanation for each of several."""

    def located(self, batch: Batch, target: Any) -> Batch:
        batch, wants = self._at_masks(batch, target)
        if batch.groups:
            raise BadInput("several masks in one text give several explanations; here each text has to have one mask.")
        return replace(batch, targets=tuple(wants))

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        if batch.asked.decoding:
            return super().expanded(batch, target)  # which raises
        batch, wants = self._at_masks(batch, target)
        return batch, None if target is None else wants

    def _at_masks(self, batch: Batch, target: Any) -> tuple[Batch, list[Any]]:
        """Return one row per mask, or for the token that a target names."""
        rows, positions, wants = [], [], []
        for row, want in enumerate(each_of(target, batch.size)):
            ids = self.real_ids(batch, row)
            places = [position_of(want.position, len(ids))] if _names_position(want) else self._masks(batch, row, ids)
            rows += [row] * len(places)
            positions += places
            wants += [want] * len(places)
        several = len(rows) > batch.size
        batch = batch.select(rows) if several else batch
        return replace(batch, positions=tuple(positions), groups=tuple(rows) if several else ()), wants

    def _masks(self, batch: Batch, row: int, ids: list[int]) -> list[int]:
        mask = self.read.id_of("mask")
        places = [i for i, token in enumerate(ids) if token == mask]
        if places:
            return places
        named = "target=whyformer.Target(token, position=…) names a token of the text as it is."
        if mask is None:
            raise BadInput(
                "a masked language model is explained at a mask, and its mask token is not known here: pass "
                f"processor=<its tokenizer>. Or {named}"
            )
        sign = self.read.labels([mask])[0]
        example = ""
        if batch.raw:  # the text with its last word hidden
            words = (batch.raw[row] if isinstance(batch.raw[row], str) else batch.raw[row][-1]).split()
            example = f" ({' '.join([*words[-6:-1], sign])!r})"
        raise BadInput(
            f"a masked language model is explained at its mask, and input {row} has none: replace the word to predict "
            f"by {sign}{example}. Or {named}"
        )


MaskedInput = Modality.of(TextRead, LocatedPlace, TextMask, MaskedMean)
