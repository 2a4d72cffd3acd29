"""Extractive question answering and multiple choice: which answer is explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import scalar_from
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Raw, named_tensors
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.text import TextMask, TextRead
from whyformer.inputs.token_heads import LocatedMean, LocatedPlace, each_of, with_notes
from whyformer.inputs.tokens import position_of, ranked
from whyformer.results.types import Choice, Target
from whyformer.targets import logits_of

NEXT_SPANS = 8  # answers among which the next best of another text is looked for
LONGEST = 15  # tokens of a predicted answer, as in transformers' pipeline
ABSENT = -1e4  # the logit of padding; finite, so that its gradient is
ALIKE = 1e-3  # of the largest logit: how far a choice alone may be from the same choice among the others


class SpanRead(TextRead):
    """Extractive question answering: start + end logit of the best answer or a named one, or one of the two."""

    def call(self, batch: Batch, **extra: Any) -> Any:
        """(B, N, 2) start and end logits of every token."""
        output = super().call(batch, **extra)
        start, end = (getattr(output, name, None) for name in ("start_logits", "end_logits"))
        if not isinstance(start, Tensor) or not isinstance(end, Tensor) or start.ndim != 2:
            return output
        return torch.stack([start, end], -1)

    def facts(self, text: tuple[str, ...] | None, encoding: Any) -> dict[str, Any]:
        facts = super().facts(text, encoding)
        if text is not None and facts["spans"] is not None and len(text) == 2:
            facts |= {"sequence": encoding.sequence_ids(), "context": text[1]}
        return facts


class SpanMean(LocatedMean):
    """A start and an end for every token, of which one answer is explained."""

    read: SpanRead

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        """(B, 1) the span's logit; beside it, for probabilities, that of all other spans together."""
        if isinstance(output, Mapping) and "start_top_log_probs" in output:
            raise NotOffered(
                f"{type(self.read.model).__name__} uses beam search and returns the best answers instead of a start "
                "and an end for every token. Use a class …ForQuestionAnsweringSimple, which returns these."
            )
        if not batch.spans or scalar == "cosine":
            return None
        with scalar_from(output):
            return self._spans(output, batch, scalar)

    @staticmethod
    def _spans(output: Tensor, batch: Batch, scalar: str) -> Tensor:
        rows = torch.arange(len(output), device=output.device)[:, None]
        places_B2 = torch.tensor(ranked(batch, [[place or 0 for place in span] for span in batch.spans])).to(rows)
        read_B2 = torch.tensor([[place is not None for place in span] for span in batch.spans], device=rows.device)
        chosen_B2 = output[rows, places_B2, torch.arange(2, device=rows.device)]
        if not bool(read_B2.all()):
            chosen_B2 = chosen_B2 * read_B2
        value_B1: Tensor = chosen_B2.sum(1, keepdim=True)
        if scalar == "logit":
            return value_B1
        all_BN2 = output.masked_fill(~batch.real_BN[:, :, None], ABSENT)
        others_BN2 = all_BN2.scatter(1, places_B2[:, None], ABSENT)
        total_B2, rest_B2 = all_BN2.logsumexp(1), others_BN2.logsumexp(1)
        # Another start with any end, or this start with another end; if only one is explained, another place.
        both_B = torch.logaddexp(rest_B2[:, 0] + total_B2[:, 1], chosen_B2[:, 0] + rest_B2[:, 1])
        other_B = torch.where(read_B2.all(1), both_B, (rest_B2 * read_B2).sum(1))
        return torch.cat([value_B1, other_B[:, None]], 1)

    def located(self, batch: Batch, target: Any) -> Batch:
        said = self.said(batch)
        if said is None or said[0].shape[1] != 2:
            return batch
        if any(isinstance(text, str) for text in batch.raw):
            raise BadInput("a question-answering model takes a question and a text: give ('question', 'context').")
        aims, predictions, notes = [], [], []
        for row, want in enumerate(each_of(target, batch.size)):
            logits_N2, within_N = said[row], self._context(batch, row)
            best, *others = _best_spans(logits_N2, within_N)
            predictions.append(self._prediction(batch, row, logits_N2, best, others))
            aims.append(self._aim(batch, row, want, logits_N2, best))
            none = float(logits_N2[0].sum())
            doubt = not within_N[0] and none > float(logits_N2[best[0], 0] + logits_N2[best[1], 1])
            notes.append((f'the model predicts "no answer" (token 0, {none:.3g}).',) * doubt)
        return replace(
            batch,
            spans=tuple((aim.position, aim.end) for aim in aims),
            targets=tuple(aims),
            predictions=tuple(predictions),
            warnings=with_notes(batch, notes),
        )

    def _aim(self, batch: Batch, row: int, want: Any, logits_N2: Tensor, best: tuple[int, int]) -> Target:
        if want is None:
            return self._answer(batch, row, *best)
        if want in ("start", "end"):
            return self._answer(batch, row, *((best[0], None) if want == "start" else (None, best[1])))
        if isinstance(want, str):
            spans = self._spans_of(batch, row, want)
            return self._answer(batch, row, *max(spans, key=lambda s: float(logits_N2[s[0], 0] + logits_N2[s[1], 1])))
        if isinstance(want, Target) and want.versus is None and (want.position, want.end) != (None, None):
            count = len(logits_N2)
            start, end = (None if p is None else position_of(p, count) for p in (want.position, want.end))
            if want.index == 1 and end is None:
                start, end = None, start
            if start is not None and end is not None and end < start:
                raise BadInput(f"target {want!r}: the answer would end before it starts.")
            return self._answer(batch, row, start, end)
        raise BadInput(
            f"target {want!r}: targets of a question-answering model are the answer's text, 'start' or 'end', "
            "Target(0, position=first token, end=last token), or Target(0, position=…) for the start at a token and "
            "Target(1, position=…) for the end."
        )

    def _context(self, batch: Batch, row: int) -> Tensor:
        """(tokens,) those that an answer may consist of: the second text, or the last stretch without specials."""
        facts = batch.encodings[row] if batch.encodings else {}
        if "sequence" in facts:
            return torch.tensor([sequence == 1 for sequence in facts["sequence"]])
        words_N = self.words_among(batch, row)
        types = batch.tensors.get("token_type_ids")
        if types is not None and batch.keep_BN is not None:
            second_N = (types[row][batch.keep_BN[row]] == 1).cpu() & words_N
            if bool(second_N.any()):
                return second_N
        gaps = (~words_N[: int(words_N.nonzero()[-1])]).nonzero()
        after_N = torch.arange(len(words_N)) > (int(gaps[-1]) if len(gaps) else -1)
        return words_N & after_N

    def _answer(self, batch: Batch, row: int, start: int | None, end: int | None) -> Target:
        """Return the target of a span, or of one end of it, named by its text."""
        first, last = (start if start is not None else end), (end if end is not None else start)
        assert first is not None and last is not None
        facts = batch.encodings[row] if batch.encodings else {}
        places = [s for s in facts["spans"][first : last + 1] if s is not None] if "context" in facts else []
        if places and set(facts["sequence"][first : last + 1]) == {1}:
            label = facts["context"][places[0].start : places[-1].end].strip()
        elif self.read.processor is not None:
            label = str(self.read.tokenizer.decode(self.real_ids(batch, row)[first : last + 1])).strip()
        else:
            label = f"token {first}" if first == last else f"tokens {first} to {last}"
        of = "end of " if start is None else "start of " if end is None else ""
        return Target(0, f"{of}{label}", position=start, end=end)

    def _prediction(
        self, batch: Batch, row: int, logits_N2: Tensor, best: tuple[int, int], others: Sequence[tuple[int, int]]
    ) -> Target:
        """Return the best answer with its probability, and the next best one of another text."""
        likely_N2 = logits_N2.float().softmax(0)

        def probability(span: tuple[int, int]) -> float:
            return float(likely_N2[span[0], 0] * likely_N2[span[1], 1])

        said = replace(self._answer(batch, row, *best), probability=probability(best))
        for span in others:
            label = self._answer(batch, row, *span).label
            if label != said.label:
                return replace(said, next=(Choice(1, label, probability(span)),))
        return said

    def _spans_of(self, batch: Batch, row: int, answer: str) -> list[tuple[int, int]]:
        """Return first and last token of every occurrence of the answer in the context."""
        facts = batch.encodings[row] if batch.encodings else {}
        within = self._context(batch, row).nonzero()[:, 0].tolist()
        if "context" in facts:
            places = _occurrences(facts["context"], answer) or _occurrences(facts["context"].lower(), answer.lower())
            spans = [(i, facts["spans"][i]) for i in within if facts["spans"][i] is not None]
            inside = [[i for i, s in spans if s.start < end and s.end > start] for start, end in places]
            results = [(tokens[0], tokens[-1]) for tokens in inside if tokens]
        else:  # of tensors: where the answer's tokens are in a row
            ids, results = self.real_ids(batch, row), []
            for text in (answer, f" {answer}"):
                spelling = list(processed(self.read.tokenizer, text, add_special_tokens=False)["input_ids"])
                count = len(spelling)
                results += [(i, i + count - 1) for i in within if spelling and ids[i : i + count] == spelling]
        if not results:
            raise BadInput(
                f"target {answer!r} is not in the context (or was cut off): give an answer as written there, 'start' "
                "or 'end', or its tokens as Target(0, position=first, end=last)."
            )
        return results


SpanInput = Modality.of(SpanRead, LocatedPlace, TextMask, SpanMean)


def _best_spans(logits_N2: Tensor, within_N: Tensor) -> list[tuple[int, int]]:
    """Return the spans (start, end) with the largest sums, the best first."""
    count = len(logits_N2)
    sums_NN = logits_N2[:, None, 0] + logits_N2[None, :, 1]
    allowed_NN = torch.ones(count, count, dtype=torch.bool).triu().tril(LONGEST - 1)
    sums_NN = sums_NN.masked_fill(~(allowed_NN & within_N[:, None] & within_N[None]), -torch.inf)
    best = [int(sums_NN.argmax())]  # the first of equal sums; topk may return another
    possible = int(sums_NN.isfinite().sum())
    best += [i for i in sums_NN.flatten().topk(min(NEXT_SPANS, possible or 1)).indices.tolist() if i != best[0]]
    return [(flat // count, flat % count) for flat in best]


def _occurrences(text: str, part: str) -> list[tuple[int, int]]:
    return [(i, i + len(part)) for i in range(len(text)) if part and text.startswith(part, i)]


class ChoiceRead(TextRead):
    """Multiple choice, (prompt, [choice, …]): the logit of one. Tensors are (inputs, choices, tokens) before that."""

    def encode(self, raw: Sequence[Raw]) -> Batch:
        for one in raw:
            if not (isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[1], (tuple, list)) and one[1]):
                raise BadInput(
                    "a multiple-choice model takes (prompt, [choice, choice, …]) as one input, got "
                    f"{type(one).__name__}: {str(one)[:60]!r}"
                )
        flat = super().encode([(prompt, choice) for prompt, choices in raw for choice in choices])
        counts = [len(choices) for _, choices in raw]
        first = [sum(counts[:i]) for i in range(len(counts))]
        # Inputs with fewer choices repeat their first one, which is not read.
        rows = [[f + (c if c < n else 0) for c in range(max(counts))] for f, n in zip(first, counts, strict=True)]
        index = torch.tensor(rows, device=flat.real_BN.device)
        facts = []
        for (_, choices), f, n in zip(raw, first, counts, strict=True):
            names = [str(choice) for choice in choices]
            facts.append({"choices": names, "each": flat.encodings[f : f + n], "notes": flat.warnings[f : f + n]})
        tensors = {name: tensor[index] for name, tensor in flat.tensors.items()}
        return Batch(tensors, keep_BN=flat.real_BN[index], raw=tuple(raw), encodings=tuple(facts))

    def adopt(self, tensors: Any) -> Batch:
        named = named_tensors(tensors, self.parameters)
        ids: torch.Size = getattr(named.get(self.main), "shape", torch.Size())
        if len(ids) != 3:
            return super().adopt(tensors)
        flat = super().adopt({k: v.flatten(0, 1) if isinstance(v, Tensor) else v for k, v in named.items()})
        each = [flat.encodings[i : i + ids[1]] for i in range(0, len(flat.encodings), ids[1])]
        names = [f"choice {i}" for i in range(ids[1])]
        return Batch(
            {k: v.unflatten(0, ids[:2]) for k, v in flat.tensors.items()},
            keep_BN=flat.real_BN.unflatten(0, ids[:2]),
            encodings=tuple({"choices": names, "each": facts, "notes": ((),) * ids[1]} for facts in each),
            constants=flat.constants,
        )

    def call(self, batch: Batch, **extra: Any) -> Any:
        """Rows of tokens are inputs with a single choice."""
        tensors = {k: v[:, None] if v.ndim == 2 else v for k, v in batch.tensors.items()}
        return super().call(replace(batch, tensors=tensors), **extra)


class ChoiceMean(LocatedMean):
    """A logit for each choice, of which one is explained."""

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        if scalar == "probability":
            raise NotOffered(
                "the probability of a choice depends on the tokens of all others, and one choice is explained: omit "
                "scalar= to explain its logit."
            )
        return None

    @torch.no_grad()
    def located(self, batch: Batch, target: Any) -> Batch:
        if batch.tensors[self.read.main].ndim == 2:  # a choice was made
            return batch
        chosen, aims, predictions = [], [], []
        for row, want in enumerate(each_of(target, batch.size)):
            names = batch.encodings[row]["choices"]
            tensors = {k: v[row : row + 1, : len(names)] for k, v in batch.tensors.items()}
            logits = logits_of(self.read.call(replace(batch, tensors=tensors))).flatten()
            if logits.shape != (len(names),):
                raise NotOffered(f"the model returns {len(logits)} logits for {len(names)} choices, not one each.")
            best = int(logits.argmax())
            chosen.append(_choice(want, names, best))
            aims.append(Target(0, names[chosen[-1]]))
            likely = logits.float().softmax(0).tolist()
            order = sorted((i for i in range(len(names)) if i != best), key=lambda i: -likely[i])
            others = tuple(Choice(i, names[i], likely[i]) for i in order)
            predictions.append(Target(0, names[best], probability=likely[best], next=others))
            if not row:
                alone = logits_of(self.read.call(replace(batch, tensors={k: v[:, best] for k, v in tensors.items()})))
                if float((alone - logits[best]).abs().max()) > ALIKE * float(logits.abs().max()):
                    raise NotOffered(
                        "the logit of a choice changes with the other choices: they attend to each other, so the logit "
                        "of one cannot be explained by its own tokens."
                    )
        rows, facts = list(range(batch.size)), batch.encodings
        keep_BN = batch.real_BN[rows, chosen]
        used = keep_BN.any(0)
        return replace(
            batch,
            tensors={k: v[rows, chosen][:, used] for k, v in batch.tensors.items()},
            keep_BN=keep_BN[:, used],
            raw=tuple((one[0], one[1][choice]) for one, choice in zip(batch.raw, chosen, strict=False)),
            encodings=tuple(_cut(f["each"][c], used) for f, c in zip(facts, chosen, strict=True)),
            warnings=tuple(f["notes"][c] for f, c in zip(facts, chosen, strict=True)),
            targets=tuple(aims),
            predictions=tuple(predictions),
        )


ChoiceInput = Modality.of(ChoiceRead, LocatedPlace, TextMask, ChoiceMean)


def _cut(facts: dict[str, Any], used_N: Tensor) -> dict[str, Any]:
    """Cut facts of a user's own ids, which count padding."""
    if len(facts["ids"]) != len(used_N):
        return facts
    return facts | {"ids": [i for i, used in zip(facts["ids"], used_N.tolist(), strict=True) if used]}


def _choice(want: Any, names: list[str], best: int) -> int:
    if want is None:
        return best
    name = want.label if isinstance(want, Target) and want.label else want
    if isinstance(name, str):
        matches = [i for i, choice in enumerate(names) if choice.lower() == name.lower()]
        if not matches:
            raise UnknownName("target", name, names)
        return matches[0]
    index = want.index if isinstance(want, Target) and want.versus is None else want
    if isinstance(index, bool) or not isinstance(index, int) or not -len(names) <= index < len(names):
        raise BadInput(f"target {want!r}: give a choice as text or by its number, 0 to {len(names) - 1}.")
    return index % len(names)
