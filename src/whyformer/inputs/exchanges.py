"""Prompts with answers, given or generated: their tokens, and which of them are explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer.errors import BadInput, ModelFailed, NotOffered, TooLong, WhyformerError, not_allowed, shown
from whyformer.inputs.batch import Batch
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.decoding import PLAIN, Continuation, Decoding, Stretch
from whyformer.inputs.families import is_media, task_of
from whyformer.inputs.tokens import ignores_later_tokens, is_causal, position_of, require_next_token
from whyformer.inputs.units import spans_of
from whyformer.loan.turns import Draws
from whyformer.parameters import NOT_ALLOWED, Count, domain_of
from whyformer.results.types import Target

ANSWER = "answer"  # the role of the answer's tokens


@dataclass(frozen=True)
class Exchange:
    """A prompt with its answer, as tokens, and what is known about each of them."""

    prompt: list[int]
    answer: list[int]
    text: str | None = None
    spans: list[Chars] | None = None
    role: list[str] | None = None
    begin: int = 0  # where in the text the answer begins: its first token may leave out a space
    said: str = ""  # the answer, where the prompt is not known as a text

    def facts(self, length: int) -> dict[str, Any]:
        """Return what is known about the first tokens."""
        facts: dict[str, Any] = {"ids": (self.prompt + self.answer)[:length], "said": self.said}
        if self.text is not None and self.spans is not None:
            facts |= {"spans": self.spans[:length], "text": self.text[: max(s.end for s in self.spans[:length])]}
            facts |= {"said": self.text[self.begin :], "begin": self.begin, "whole": self.text}
        if self.role is not None:
            facts["role"] = self.role[:length]
        return facts


class Chars(NamedTuple):
    """The characters of one token."""

    start: int
    end: int


def has_answers(batch: Batch) -> bool:
    return any(isinstance(text, tuple) for text in batch.raw)


def require_one_wish(decoding: Decoding, answers: bool) -> None:
    """Raise for options that exclude each other."""
    if decoding.generate is not None and answers:
        raise BadInput("the answer is given with the prompt: omit generate=, or give the prompt without an answer.")
    if decoding.choices and (answers or decoding.span or decoding.generate is not None):
        raise BadInput("choices= are tokens that follow a prompt: omit the answer, generate= and span=.")
    if decoding.span and decoding.generate is None and not answers:
        raise BadInput("span=True explains an answer: give (prompt, answer), or generate= to generate it.")


def answered(mean: Any, batch: Batch, target: Any) -> tuple[Batch, Any]:
    """Return one row per explained token: the prompt with the answer so far; one row for an answer as a whole.

    Where an answer is neither given nor to be generated, the batch is returned unchanged.
    """
    read, said = mean.read, has_answers(batch)
    decoding = batch.asked.decoding
    if decoding is PLAIN and not said:
        return batch, target
    stretch = decoding.span if isinstance(decoding.span, Stretch) else None
    if decoding:
        require_next_token(mean, batch, "generate, span, choices and one_pass are")
        if stretch is None:
            require_one_wish(decoding, said)
    if not (said or stretch is not None or decoding.generate is not None) or not is_causal(mean, batch):
        return batch, target
    if isinstance(target, list) and None in target:
        if any(aim is not None for aim in target):
            raise BadInput("target=[…]: name a token of every answer, or of none of them, which explains all tokens.")
        target = None
    exchanges = exchanges_of(read, batch) if stretch is None else [stretch.exchange]
    rows, lengths, tokens = [], [], []
    spoken: list[Continuation] = []
    for row, exchange in enumerate(exchanges):
        wanted = target[row] if isinstance(target, list) else target
        if decoding.span:
            if wanted is not None:
                raise BadInput("span= explains the answer itself: omit target=.")
            spoken.append(continuation_of(read, exchange, decoding.span))
            rows.append(row)
            shared_pass = spoken[-1].text_pass
            lengths.append(spoken[-1].start + len(spoken[-1].tokens) if shared_pass is None else shared_pass.length)
            continue
        for step in _steps(read, exchange, wanted):
            rows.append(row)
            lengths.append(len(exchange.prompt) + step)
            token = exchange.answer[step]
            tokens.append(replace(wanted, index=token, position=None) if isinstance(wanted, Target) else token)
    width, pad = max(lengths), read.filler_id()
    written = [exchanges[row].prompt + exchanges[row].answer for row in rows]
    ids = torch.tensor([text[:n] + [pad] * (width - n) for text, n in zip(written, lengths, strict=True)])
    keep = torch.arange(width) < torch.tensor(lengths)[:, None]
    tensors = {name: read.move(_lengthened(read, batch, name, ids, keep, rows)) for name in batch.tensors}
    prompts = [text[0] if isinstance(text, tuple) else text for text in batch.raw]
    steps_batch = replace(
        batch.select(rows),
        tensors=tensors,
        keep_BN=read.move(keep),
        raw=tuple(prompts[row] for row in rows) if prompts else (),
        warnings=((),) * len(rows),
        encodings=tuple(exchanges[row].facts(n) for row, n in zip(rows, lengths, strict=True)),
        groups=tuple(rows) if target is None and not decoding.span else (),
        answers=tuple(spoken),
    )
    if ignores_later_tokens(read, replace(steps_batch, answers=())):
        return replace(steps_batch, trunks=() if decoding.span else tuple(rows)), None if decoding.span else tokens
    if decoding.span:
        raise NotOffered(
            f"span= needs one pass for all tokens of an answer, and {type(read.model).__name__} looks ahead in its "
            "prompt, where it would see them. Omit span=: tokens are explained one by one."
        )
    return steps_batch, None if decoding.span else tokens


def _lengthened(read: Any, batch: Batch, name: str, ids: Tensor, keep: Tensor, rows: Sequence[int]) -> Tensor:
    """Extend one of the model's arguments over the answers; raise if it is not known what it holds there.

    rows: the input that each row of ``ids`` belongs to.
    """
    one, keep_BN = batch.tensors[name], batch.real_BN
    if name == read.main:
        return ids
    if is_media(name):
        return one[rows]
    if name.endswith("token_type_ids") and task_of(read.model).endswith("ForConditionalGeneration"):
        prompts = [_continued_types(read.model, name, one[row][keep_BN[row]], ids.shape[1]) for row in rows]
        return torch.where(keep, torch.stack(prompts).to(keep.device), 0)
    if one.shape == keep_BN.shape and "mask" in name:
        return (~keep if "padding" in name else keep).to(one.dtype)
    if one.shape == keep_BN.shape and name == "position_ids":
        counted, numbers = keep_BN.cumsum(1) - 1, torch.arange(ids.shape[1]).expand_as(ids).to(one.dtype)
    else:
        counted, numbers = torch.zeros_like(keep_BN, dtype=torch.long), torch.zeros_like(ids)
    if one.shape != keep_BN.shape or bool((one != counted)[keep_BN].any()):
        raise NotOffered(f"the values of {name} for the tokens of an answer are not known here: omit {name}.")
    return numbers


def _continued_types(model: Any, name: str, types_N: Tensor, length: int) -> Tensor:
    """(length,) the types of a prompt with images, and those that the model itself gives to tokens that follow."""
    types, update = types_N[None], getattr(model, "_update_model_kwargs_for_generation", None)
    while types.shape[1] < length and update is not None:  # PaliGemma: 1 for an answer, which does not look ahead
        types = update({}, {name: types}, num_new_tokens=1)[name]
    return torch.nn.functional.pad(types[0], (0, length))[:length]


def _steps(read: Any, exchange: Exchange, wanted: Any) -> list[int]:
    """Return the tokens of the answer that are explained; a position chooses among equal ones."""
    if not isinstance(wanted, Target) or wanted.position is None:
        return wanted_steps(read, exchange.answer, wanted)
    place = position_of(wanted.position, len(exchange.prompt) + len(exchange.answer) - 1)
    step = place - len(exchange.prompt) + 1
    if step < 0 or exchange.answer[step] != wanted.index:
        raise BadInput(f"{wanted!r}: the answer has no such token after position {place}.")
    return [step]


def part_of(answer: str, span: bool | str | tuple[int, int]) -> tuple[int, int]:
    """Return the characters of an answer that ``span`` names: all of them, a text in it, or a range."""
    if isinstance(span, str):
        if span not in answer:
            raise BadInput(f"span={shown(span)}: the answer {shown(answer)} does not contain it.")
        span = answer.rindex(span), answer.rindex(span) + len(span)
    return (0, len(answer)) if isinstance(span, bool) else spans_of(answer, [span])[0]


def continuation_of(read: Any, exchange: Exchange, span: bool | str | tuple[int, int] | Stretch) -> Continuation:
    """Return the tokens of the whole answer, of a range of its characters or a text in it, or of a stretch."""
    prompt, answer = len(exchange.prompt), exchange.answer
    if isinstance(span, Stretch):
        tokens, text = (exchange.prompt + answer)[span.first : span.stop], ""
        if exchange.text is not None and exchange.spans is not None:
            text = exchange.text[exchange.spans[span.first].start : exchange.spans[span.stop - 1].end]
        return Continuation(tuple(tokens), span.first - 1, text.strip(), span.weights, span.text_pass)
    if exchange.text is None or exchange.spans is None:
        if span is not True:
            raise NotOffered("span=(start, end) counts characters, and the positions of the tokens are not known here.")
        return Continuation(tuple(answer), prompt - 1, exchange.said or " ".join(read.labels(answer)))
    begin = exchange.begin
    said = exchange.text[begin:]
    start, end = part_of(said, span)
    inside = list(range(len(answer)))  # also tokens without characters of their own
    if span is not True:
        at = [(chars.start - begin, chars.end - begin) for chars in exchange.spans[prompt:]]
        inside = [token for token, (first, last) in enumerate(at) if first < end and last > start]
    if not inside:
        raise BadInput(f"span=({start}, {end}): the answer {said!r} has no token there.")
    return Continuation(tuple(answer[inside[0] : inside[-1] + 1]), prompt - 1 + inside[0], said[start:end])


def _require_room(read: Any, prompt: list[int], answer: int) -> None:
    limit = read.max_length()
    if limit is not None and len(prompt) + answer - 1 > limit:
        raise TooLong(
            f"prompt and answer have {len(prompt)} + {answer} tokens, and the model takes {limit}: shorten one of them."
        )


def exchanges_of(read: Any, batch: Batch) -> list[Exchange]:
    """Return prompts with the answers that came with them, or that the model generates."""
    if not has_answers(batch):
        return _generated_exchanges(read, batch)
    if not all(isinstance(text, tuple) for text in batch.raw):
        raise BadInput("give an answer with every prompt, or with none of them.")
    return _given_exchanges(read, batch)


def _given_exchanges(read: Any, batch: Batch) -> list[Exchange]:
    """Return prompts with the answers that were given with them."""
    exchanges = []
    for row, (prompt, answer) in enumerate(batch.raw):
        said = read.encoding_of(answer, add_special_tokens=False)
        prompt_ids, before = read.prompt_tokens(batch, row)
        answer_ids = [int(i) for i in said["input_ids"]]
        if not answer_ids or not prompt_ids:
            raise BadInput(
                f"({str(prompt)!r}, {answer!r}): a prompt and an answer of at least one token each are needed."
            )
        _require_room(read, prompt_ids, len(answer_ids))
        after = read.facts((answer,), said)
        spans = None
        if before["spans"] is not None and after["spans"] is not None:
            spans = [_chars(span) for span in before["spans"][: len(prompt_ids)]]
            spans += [_chars(span, len(prompt)) for span in after["spans"]]
        roles = _roles(before, prompt_ids, answer_ids)
        exchanges.append(Exchange(prompt_ids, answer_ids, str(prompt) + answer, spans, roles, len(prompt)))
    return exchanges


def _chars(span: Any, offset: int = 0) -> Chars:
    return Chars(offset, offset) if span is None else Chars(span.start + offset, span.end + offset)


def _roles(facts: Mapping[str, Any], prompt: list[int], answer: list[int]) -> list[str]:
    roles: Sequence[str] = facts.get("role") or ["prompt"] * len(prompt)
    return [*roles[: len(prompt)], *[ANSWER] * len(answer)]


def without_end(read: Any, text: str, ids: Sequence[int]) -> list[int]:
    """Cut off the end token that some tokenizers append; one that the text itself has (DialoGPT) stays."""
    tokenizer = read.tokenizer
    ends = {getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "sep_token_id", None)}
    prompt = [int(i) for i in ids]
    if not prompt or prompt[-1] not in ends:
        return prompt
    written = read.encoding_of(text, add_special_tokens=False)["input_ids"]
    added = _count_at_end(prompt, ends) - _count_at_end(written, ends)
    return prompt[: len(prompt) - max(added, 0)]


def _count_at_end(ids: Sequence[int], ends: set[int | None]) -> int:
    return len(list(takewhile(ends.__contains__, reversed(ids))))


def _generated_exchanges(read: Any, batch: Batch) -> list[Exchange]:
    """Return prompts with what the model generates, one by one: together they would be padded."""
    if not hasattr(read.model, "generate"):
        raise NotOffered(f"{type(read.model).__name__} has no generate(): give the answer, (prompt, answer).")
    exchanges = []
    for row in range(batch.size):
        ids = batch.tensors[read.main][row][batch.real_BN[row]].tolist()
        prompt = without_end(read, batch.raw[row], ids) if batch.raw else ids
        answer = _generated(read, prompt, batch.asked.decoding, read.beside_prompt(batch, row, len(prompt)))
        facts = batch.encodings[row] if batch.encodings else {}
        text, spans, begin = None, None, 0
        if facts.get("spans") is not None and facts.get("text") is not None:
            text, chars = _decoded(read, facts["text"], answer)
            spans, begin = [_chars(span) for span in facts["spans"][: len(prompt)]] + chars, len(facts["text"])
        said = "" if read.processor is None else str(read.tokenizer.decode(answer))
        exchanges.append(Exchange(prompt, answer, text, spans, _roles(facts, prompt, answer), begin, said))
    return exchanges


def _generated(read: Any, prompt: list[int], decoding: Decoding, others: Mapping[str, Tensor]) -> list[int]:
    """Return the tokens that the model generates, greedily unless the settings of ``generate`` say otherwise.

    others: what belongs to the prompt besides its tokens (images).
    """
    wish = decoding.generate
    assert wish is not None
    told = {"max_new_tokens": wish} if isinstance(wish, int) else dict(wish)
    ids = read.move(torch.tensor([prompt]))
    ours = {read.main: ids, "attention_mask": torch.ones_like(ids), "return_dict_in_generate": False, **others}
    if taken := sorted(told.keys() & {*ours, "inputs", "inputs_embeds", "num_return_sequences"}):
        raise BadInput(f"generate={shown(wish)}: one answer per prompt is generated: omit {', '.join(taken)}.")
    tokens = domain_of(Count)
    if tokens.take(told.get("max_new_tokens", 1)) is NOT_ALLOWED:
        raise not_allowed("generate['max_new_tokens']", told["max_new_tokens"], tokens.words)
    for name, before in (("max_new_tokens", 0), ("max_length", len(prompt))):
        if isinstance(told.get(name), int):
            _require_room(read, prompt, told[name] - before)
    told = {"do_sample": False, "num_beams": 1, "pad_token_id": read.filler_id(), **told}
    try:
        with torch.no_grad(), Draws({}, decoding.seed):
            written = read.model.generate(**ours, **told)
    except (WhyformerError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = f"{type(read.model).__name__}.generate raised {type(error).__name__}: {str(error).rstrip('.')}"
        if isinstance(wish, Mapping):
            raise BadInput(f"generate={shown(wish)}: {said}. Give settings that it supports, or a number.") from error
        raise ModelFailed(f"{said}. Give the answer, (prompt, answer).") from error
    answer = [int(i) for i in written[0, len(prompt) :]]
    if not answer:
        raise BadInput("the model generated no token: generate= needs at least one new token.")
    return answer


def written_answer(read: Any, batch: Batch) -> str:
    """Return what the model generates after the first prompt of a batch, without special tokens."""
    exchange = _generated_exchanges(read, batch.select([0]))[0]
    return str(read.tokenizer.decode(exchange.answer, skip_special_tokens=True))


def _decoded(read: Any, prompt: str, answer: list[int]) -> tuple[str, list[Chars]]:
    """Return prompt and answer as one text, and the characters of each token; several tokens may share one."""
    tokenizer = read.tokenizer
    so_far = [tokenizer.decode(answer[: count + 1], skip_special_tokens=False) for count in range(len(answer))]
    whole = list(accumulate((len(prompt) + len(text.rstrip("\ufffd")) for text in so_far), max))
    ends = [end + text.endswith("\ufffd") for end, text in zip(whole, so_far, strict=True)]
    return prompt + so_far[-1], [Chars(*pair) for pair in zip([len(prompt), *whole], ends, strict=False)]


def wanted_steps(read: Any, answer: list[int], wanted: Any) -> list[int]:
    """Return the tokens of an answer that are explained: all, or the first that is the wanted one."""
    if wanted is None:
        return list(range(len(answer)))
    wanted = wanted.index if isinstance(wanted, Target) else wanted
    if isinstance(wanted, int):
        ids = {wanted}
    else:
        texts = (str(wanted), f" {wanted}")
        spelled = [processed(read.tokenizer, text, add_special_tokens=False)["input_ids"] for text in texts]
        ids = {spelling[0] for spelling in spelled if len(spelling) == 1}
    steps = [i for i, token in enumerate(answer) if token in ids]
    if not steps:
        shown = " ".join(read.labels(answer))
        raise BadInput(f"target {wanted!r} is not among the tokens of the answer: {shown}.")
    return steps[:1]
