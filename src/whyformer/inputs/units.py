"""Words and sentences of a text, chats written out by a template, and units: built, joined, grouped."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, groupby, pairwise
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.batch import Batch, Filling, SamplePool
from whyformer.inputs.decoding import with_thoughts, written_by
from whyformer.parameters import CharacterRange, NotEmpty, OneOf
from whyformer.results.types import Explanation, Units

# Stretches of a text that are scored as one: words, sentences, or ranges of characters

Span = tuple[int, int]  # first character, and the one after the last

GROUPS = "groups"  # of columns of a table
SIZES = ("token", "word", "sentence", "role", GROUPS)
Segments = Annotated[str, OneOf(*SIZES)] | Annotated[Sequence[CharacterRange], NotEmpty()] | Mapping[str, Any]
# A sentence ends at its mark, with what closes it, where a space or the end follows; CJK marks need no space.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[”’」』）]*|\n+")
# A full stop behind these does not end a sentence: titles, initials, enumerations, common abbreviations.
_NO_END = re.compile(
    r"(?:\b(?:(?i:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|fig|eq|approx|pp?|ch|sec|vol|inc|ltd|co|u\.s|u\.k)|No)"
    r"|(?:^|\s)[A-Z]|(?:^|\n)\s*\d+)\.$"
)
_LETTER = re.compile(r"\w")
# Chinese is written without spaces: each character is a word, as tokenizers have it.
_WORD = re.compile(r"[㐀-鿿]|[^\W㐀-鿿]+(?:['’.-][^\W㐀-鿿]+)*|[^\w\s]")


def words(text: str) -> list[Span]:
    """Return words and punctuation marks, without spaces."""
    return [match.span() for match in _WORD.finditer(text)]


def sentences(text: str) -> list[Span]:
    """Return sentences without the space around them; a line break ends one, too."""
    spans, start, marks = [], 0, list(_END.finditer(text))
    # A small letter continues a sentence only if sentences of this text begin with capital ones.
    firsts = [_LETTER.search(text, place) for place in (0, *(mark.end() for mark in marks))]
    capitals = any(first.group().isupper() for first in firsts if first is not None)
    for mark in marks:
        after = text[mark.end() :].lstrip()
        goes_on = (capitals and after[:1].islower()) or (after and _NO_END.search(text[start : mark.end()]))
        if goes_on and not mark.group().startswith("\n"):
            continue
        spans.append((start, mark.end()))
        start = mark.end()
    spans.append((start, len(text)))
    stripped = []
    for start, end in spans:
        part = text[start:end]
        stripped.append((start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())))
    return [span for span in stripped if span[0] < span[1]]


def token_sentences(text: str, ends: Sequence[int]) -> tuple[Span, ...]:
    """Return the tokens of each sentence. ends: where in the text all tokens but the last end."""
    bounds = [0, *ends, len(text)]
    groups = members(list(pairwise(bounds)), sentences(text))
    firsts = [0, *sorted(group[0] for group in groups if group)[1:], len(ends) + 1]
    return tuple(pairwise(firsts))


def spans_of(text: str, units: str | Sequence[Any]) -> list[Span]:
    """Return the stretches of a text that ``units`` names: "word", "sentence", or ranges of characters, checked."""
    if units == GROUPS:
        raise NotOffered('units="groups" is for columns of a table: use "word" or "sentence" for a text.')
    if units == "role":  # roles come from the chat, not from the text
        return []
    if isinstance(units, str):
        return words(text) if units == "word" else sentences(text)
    spans: list[Span] = []
    for number, (start, end) in enumerate(units):
        if not 0 <= start < end <= len(text):
            raise BadInput(
                f"units[{number}] = ({start}, {end}): the text has {len(text)} characters, and a stretch of it is "
                "(start, end) with 0 <= start < end."
            )
        spans.append((int(start), int(end)))
    for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if b[0] < a[1]:
            raise BadInput(f"units {a} and {b} overlap: a character belongs to one unit only.")
    return spans


def members(tokens: Sequence[Span], spans: Sequence[Span]) -> list[list[int]]:
    """Return the tokens of each stretch: a token belongs where most of its characters are, the first of equals."""
    groups: list[list[int]] = [[] for _ in spans]
    order = sorted(range(len(spans)), key=spans.__getitem__)
    starts, ends = ([spans[i][side] for i in order] for side in (0, 1))
    for token, (start, end) in enumerate(tokens):
        near = order[bisect_right(ends, start) : bisect_left(starts, end)] if start < end else []
        if near:
            groups[max(near, key=lambda i: min(spans[i][1], end) - max(spans[i][0], start))].append(token)
    return groups


TEMPLATE = "template"  # the role of what the template puts around messages
IMAGE = "image"  # the role of the tokens of images
MARK = "\ue000"  # for private use: no text has it
Part = tuple[int, int, str]  # first character, the one after the last, and their role


class PromptText(str):
    """A prompt as the model reads it, special tokens written out, with the roles of its parts."""

    parts: tuple[Part, ...]

    def __new__(cls, text: str, parts: Sequence[Part]) -> PromptText:
        prompt = super().__new__(cls, text)
        prompt.parts = tuple(parts)
        return prompt

    def __getnewargs__(self) -> tuple[str, tuple[Part, ...]]:  # type: ignore[override]
        return str(self), self.parts


def is_chat(inputs: Any) -> bool:
    """Return whether the inputs are messages: dicts with role and content."""
    if not isinstance(inputs, (list, tuple)) or not inputs:
        return False
    return all(isinstance(m, Mapping) and "role" in m and {"content", "tool_calls"} & m.keys() for m in inputs)


Message = Mapping[str, Any]


def prompt_of(
    messages: Sequence[Message], tokenizer: Any, template: str | None = None, tools: Sequence[Message] | None = None
) -> PromptText | tuple[PromptText, str]:
    """Write a chat out as a prompt; with the answer to explain, where the last message is the assistant's.

    A content is a string, or a list of parts: {"type": "text", "text": …}, and others, which the template turns into
    marks ({"type": "image"}). A message with tool calls may have none. template: of a processor, where the tokenizer
    has none. tools: definitions of tools, which the template writes out, too.
    """
    messages = [{**m, "content": m.get("content") or ""} if m.get("tool_calls") else m for m in messages]
    for number, message in enumerate(messages):
        content = message["content"]
        listed = isinstance(content, (list, tuple)) and all(isinstance(p, Mapping) and "type" in p for p in content)
        if not isinstance(message["role"], str) or not (isinstance(content, str) or listed):
            raise BadInput(
                f"messages[{number}] has a content of type {type(content).__name__}: role and content of a message "
                'must be strings; of a vision-language model, content may be a list of {"type": "text", "text": …} '
                'and {"type": "image", "image": …}.'
            )
    template = template or getattr(tokenizer, "chat_template", None)
    if not template:
        raise NotOffered(
            f"{type(tokenizer).__name__} has no chat template, so it cannot write messages out as a text. Set "
            "tokenizer.chat_template as the model's card says, or give the prompt as one string."
        )
    answered = len(messages) > 1 and messages[-1]["role"] == "assistant"
    asked = [dict(m) for m in (messages[:-1] if answered else messages)]
    write = partial(tokenizer.apply_chat_template, chat_template=template, tokenize=False, add_generation_prompt=True)
    write = write if not tools else partial(write, tools=list(tools))
    try:
        text = write(asked)
        # Some templates read lists of parts alone, and leave a string out.
        in_parts = [{**m, "content": [{"type": "text", "text": t} for t in texts_of(m)]} for m in asked]
        if not _holds(text, asked) and all(isinstance(m["content"], str) for m in asked):
            text, asked = write(in_parts), in_parts
    except Exception as error:  # templates are programs: they refuse orders of roles that they do not know
        raise BadInput(f"the tokenizer's chat template refused these messages: {error}") from error
    prompt = PromptText(text, with_thoughts(text, _parts(text, asked, write), asked, write))
    return (prompt, written_by(messages, "".join(texts_of(messages[-1])), text, write)) if answered else prompt


def texts_of(message: Message) -> list[str]:
    """Return what a message says: its content, or the texts among its parts."""
    content = message["content"]
    return [content] if isinstance(content, str) else [str(p["text"]) for p in content if p["type"] == "text"]


def _holds(text: str, messages: Sequence[Message]) -> bool:
    return all(said.strip() in text for message in messages for said in texts_of(message))


def _parts(text: str, messages: Sequence[Message], write: Callable[..., str]) -> list[Part]:
    """Return where in the text each message is. A template may strip messages, and put text around them."""
    numbers = count()
    marked = [_marked(message, numbers) for message in messages]
    said = [{"role": message["role"], "content": each} for message in messages for each in texts_of(message)]
    try:
        frame = write(marked)
    except Exception:  # a template that reads what is said
        frame = ""
    return _between(text, frame, said) or _in_order(text, said)


def _marked(message: Message, numbers: Iterator[int]) -> dict[str, Any]:
    """Return the message with numbered marks in place of its texts."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{MARK}{next(numbers)}{MARK}"}
    parts = [{**p, "text": f"{MARK}{next(numbers)}{MARK}"} if p["type"] == "text" else p for p in content]
    return {**message, "content": parts}


def _between(text: str, frame: str, messages: Sequence[Mapping[str, Any]]) -> list[Part] | None:
    """Find messages by the text that the template puts around them. frame: the template filled with marks."""
    before, *rest = re.split(f"{MARK}([0-9]+){MARK}", frame)
    parts, start = [], len(before)
    for number, after in zip(rest[::2], rest[1::2], strict=True):
        message = messages[int(number)]
        content = str(message["content"])
        spellings = (content, content.strip(), content.lstrip(), content.rstrip())
        said = next((s for s in spellings if text.startswith(s + after, start)), None)
        if said is None:
            return None
        if said.strip():
            place = start + len(said) - len(said.lstrip())
            parts.append((place, place + len(said.strip()), str(message["role"])))
        start += len(said) + len(after)
    return parts if text.startswith(before) and start == len(text) else None


def _in_order(text: str, messages: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Find messages by their own text, each after the one before it."""
    parts, start = [], 0
    for message in messages:
        content = str(message["content"]).strip()
        place = text.find(content, start)
        if not content or place < 0:  # left out or rewritten by the template
            continue
        parts.append((place, place + len(content), str(message["role"])))
        start = place + len(content)
    return parts


def roles_of(tokens: Sequence[Span | None], parts: Sequence[Part]) -> list[str]:
    """Return the role of each token: that of the part it overlaps with, else the template."""
    roles, here = [], 0
    for span in tokens:
        start, end = (0, 0) if span is None else (span[0], span[1])
        while here < len(parts) and parts[here][1] <= start:
            here += 1
        inside = here < len(parts) and min(parts[here][1], end) - max(parts[here][0], start) > 0
        roles.append(parts[here][2] if inside else TEMPLATE)
    return roles


# Columns of a table as units, and baselines from other inputs

Column = tuple[str, Any]  # a tensor, and where in one input of it: a place, a variable (all steps), or ``...`` for all

DRAWS = 4  # inputs drawn per variant, for "resample"


def owners_of_columns(one: Batch, columns: Iterable[tuple[int, Column]]) -> dict[str, Tensor]:
    """Return the unit of each entry (-1: none), for the tensors that hold columns of units."""
    owners = {name: torch.full(tensor.shape[1:], -1) for name, tensor in one.tensors.items()}
    for unit, (name, column) in columns:
        owners[name][column] = unit
    return {name: owner.to(one.tensors[name].device) for name, owner in owners.items() if (owner >= 0).any()}


def drawn_inputs(pool: SamplePool) -> list[int]:
    """(DRAWS,) rows of the pool, repeated only if it has fewer."""
    return [int(row) for row in np.resize(pool.generator.permutation(pool.batch.size), DRAWS)]


def resampled(names: Iterable[str], one: Batch, pool: SamplePool) -> list[Filling]:
    """Return, for each draw, the values of another input at the same places."""
    names, others = list(names), pool.batch.tensors
    for name in names:
        if others[name].shape[1:] != one.tensors[name].shape[1:]:
            raise BadInput(
                f"replace='resample' needs reference inputs of the shape of the input: {name} is "
                f"{tuple(one.tensors[name].shape[1:])}, the reference {tuple(others[name].shape[1:])}."
            )
    return [{name: others[name][row][None] for name in names} for row in drawn_inputs(pool)]


def of_pool(name: str, names: Iterable[str], one: Batch, pool: SamplePool) -> list[Filling]:
    """Return the baseline "resample" or "mean" of a pool."""
    return resampled(names, one, pool) if name == "resample" else averaged(names, one, pool.batch)


def averaged(names: Iterable[str], one: Batch, pool: Batch) -> list[Filling]:
    """Return the mean of the pool's numbers, and the most frequent of its categories, at each place."""
    names = list(names)
    if pool.size == 1 and all(torch.equal(pool.tensors[name], one.tensors[name]) for name in names):
        raise BadInput("replace='mean' of a single input is the input itself: pass reference=[…], or more inputs.")
    typical = {}
    for name in names:
        values_BX = pool.tensors[name]
        if values_BX.is_floating_point():
            typical[name] = values_BX.float().mean(0, keepdim=True).to(values_BX.dtype)
        else:
            typical[name] = values_BX.mode(0, keepdim=True).values
    return [typical]


WORD_STARTS = "▁Ġ"  # how SentencePiece and byte-level tokenizers write the space before a piece


def assemble(
    labels: Sequence[str],
    special: Sequence[bool],
    stream: str,
    extra: int,
    before: int | None,
    names: Sequence[str] = ("[CLS]",),
    **rest: Any,
) -> Units:
    """Add to the units of an input ``extra`` tokens of the model's own, ``before`` of them (None: all) in front."""
    added = [names[i] if i < len(names) else f"[EXTRA{i}]" for i in range(extra)]
    before = extra if before is None else before
    front, back = added[:before], added[before:]
    for name, filler in (("word", -1), ("spans", (0, 0)), ("role", "")):
        if rest.get(name) is not None:
            rest[name] = (*[filler] * len(front), *rest[name], *[filler] * len(back))
    return Units(
        labels=(*front, *labels, *back),
        special=(*[True] * len(front), *special, *[True] * len(back)),
        stream=(stream,) * (len(labels) + extra),
        **rest,
    )


def joined(parts: Sequence[Units]) -> Units:
    """Join units end to end. Word numbers continue; a grid, a text and its spans are kept if only one part has them."""
    texts = [p for p in parts if p.text is not None]
    grids = [p for p in parts if p.grid is not None]
    text = texts[0] if len(texts) == 1 else None
    grid = grids[0] if len(grids) == 1 else None
    word: list[int] = []
    spans: list[tuple[int, int]] = []
    boxes: list[tuple[float, ...]] = []
    for part in parts:
        offset = max(word, default=-1) + 1
        word += [w + offset if w >= 0 else -1 for w in part.word] if part.word else [-1] * len(part)
        spans += list(part.spans) if part is text and part.spans else [(0, 0)] * len(part)
        boxes += list(part.boxes) if part.boxes else [(0.0, 0.0, 0.0, 0.0)] * len(part)
    return Units(
        labels=tuple(label for p in parts for label in p.labels),
        special=tuple(s for p in parts for s in p.special),
        stream=tuple(s for p in parts for s in p.stream),
        grid=None if grid is None else grid.grid,
        image_size=None if grid is None else grid.image_size,
        picture_size=None if grid is None else grid.picture_size,
        word=tuple(word) if any(p.word for p in parts) else None,
        spans=tuple(spans) if text is not None and text.spans else None,
        text=None if text is None else text.text,
        boxes=tuple(boxes) if any(p.boxes for p in parts) else None,
    )


def pick(units: Units, index: list[int]) -> Units:
    """Some of the units."""

    def of(values: Any) -> Any:
        return None if values is None else tuple(values[i] for i in index)

    return Units(
        of(units.labels), of(units.special), of(units.stream), units.grid, of(units.word), of(units.spans), units.text,
        units.image_size, of(units.boxes), role=of(units.role),
    )  # fmt: skip


def words_of(labels: list[str], special: list[bool]) -> tuple[int, ...]:
    """Return word numbers from the spelling of the pieces, for tokenizers that don't number them."""
    starts = tuple(WORD_STARTS)
    marks_start = any(label.startswith(starts) for label in labels)
    word, result = -1, []
    for label, is_special in zip(labels, special, strict=True):
        if is_special:
            result.append(-1)
            continue
        continues = not label.startswith(starts) if marks_start else label.startswith("##")
        if not continues or word < 0:
            word += 1
        result.append(word)
    return tuple(result)


def with_words(units: Units) -> Units:
    """Number words as ``units="word"`` divides a text; tokenizers have rules of their own ("can", "'", "t")."""
    if units.text is None or units.spans is None:
        return units
    word, number = [-1] * len(units), count()
    for group in _completed(units, members(units.spans, words(units.text))):
        if not units.special[group[0]]:
            word[group[0] : group[-1] + 1] = [next(number)] * len(group)
    return replace(units, word=tuple(word))


def segmented(units: Units, by: str | Sequence[Any], whole: str | None) -> tuple[list[list[int]], Units]:
    """Return units grouped by word, sentence, role or chosen range, and the groups as units."""
    if units.text is None or units.spans is None:
        raise NotOffered(
            "units= divides a text into words, sentences or ranges, and the positions of its tokens are not known: "
            "give a text (not tensors) with a fast tokenizer."
        )
    roles = units.role or ("",) * len(units)
    if by == "role" and units.role is None:
        raise NotOffered('units="role" needs roles: give a chat (messages with roles), or an answer.')
    # The text that this one is the beginning of (``whole``) decides where words end ("3." in "3.14").
    ranges = spans_of(whole or units.text, by) if isinstance(by, str) else spans_of(units.text, by)
    chosen = members(units.spans, ranges)
    if by == "role":
        groups = [list(run) for _, run in groupby(range(len(units)), roles.__getitem__)]
    elif not isinstance(by, str):
        empty = [span for span, tokens in zip(ranges, chosen, strict=True) if not tokens]
        if empty:
            raise BadInput(f"units: {empty[0]} contains no whole token. Use ranges that start and end at words.")
        groups = chosen
    else:
        groups = _completed(units, chosen)
    seen = [units.stream[group[0]] == "image" for group in groups]
    apart = [image or (len(g) == 1 and units.special[g[0]]) for g, image in zip(groups, seen, strict=True)]
    texts = [
        IMAGE if image and len(g) > 1 else units.labels[g[0]] if alone else units.text_of(g)
        for g, image, alone in zip(groups, seen, apart, strict=True)
    ]
    spans = tuple((units.spans[g[0]][0], max(units.spans[i][1] for i in g)) for g in groups)
    return groups, Units(
        labels=tuple(texts),
        special=tuple(all(units.special[i] for i in g) or roles[g[0]] == TEMPLATE for g in groups),
        stream=tuple(units.stream[g[0]] for g in groups),
        word=tuple(-1 if alone else number for number, alone in enumerate(apart)),
        spans=spans,
        text=units.text,
        role=None if units.role is None else tuple(roles[g[0]] for g in groups),
    )


def _completed(units: Units, chosen: list[list[int]]) -> list[list[int]]:
    """Return all units in order, grouped by stretch; special tokens and roles divide a stretch."""
    roles = units.role or ("",) * len(units)
    of = {token: number for number, group in enumerate(chosen) for token in group}
    groups: list[list[int]] = []
    last: tuple[Any, ...] | None = None
    for token in range(len(units)):
        role = roles[token]
        if units.special[token] or units.stream[token] == "image":
            key: tuple[Any, ...] | None = ("special", token)
        elif role == TEMPLATE:
            key = ("template",)
        elif token in of:
            key = (of[token], role)
        else:  # a space or line break: of the word before it, else of the first
            key = last if last is not None and last[0] not in {"special", "template"} else ("space", role)
        if key == last or (last == ("space", role) and token in of):
            groups[-1].append(token)
        else:
            groups.append([token])
        last = key
    return groups


def by_segments(explanation: Explanation, groups: Sequence[Sequence[int]], units: Units) -> Explanation:
    """Return the explanation with the scores of each group of tokens added up."""
    scores = np.array([explanation.scores[list(group)].sum() for group in groups], dtype=np.float32)
    errors = explanation.errors  # of what joined as one they add up, and of others they are no larger than their sum
    if errors is not None:
        errors = np.array([errors[list(group)].sum() for group in groups], dtype=np.float32)
    outside = sorted(set(range(len(explanation.units))) - {i for group in groups for i in group})
    checks = explanation.checks
    if outside:
        checks = checks | {"outside_units": float(explanation.scores[outside].sum())}
    whole: dict[str, Any] = {"matrix": None, "layers": None, "detail": None}
    return explanation.replace(scores=scores, errors=errors, units=units, checks=checks, **whole)
