"""Chats and parts of texts: messages written out by the template, words and sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered

# Stretches of a text that are scored as one: its words, its sentences, or ranges of characters that someone chose.

Span = tuple[int, int]  # first character, and the one after the last

SIZES = ("token", "word", "sentence", "role")
# A sentence ends at its mark, with what closes it, where a space or the end follows; CJK marks need no space.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[”’」』）]*|\n+")
# What is followed by a full stop without ending anything: titles, initials, enumerations, common abbreviations.
_NO_END = re.compile(
    r"(?:\b(?:(?i:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|fig|eq|approx|pp?|ch|sec|vol|inc|ltd|co|u\.s|u\.k)|No)"
    r"|(?:^|\s)[A-Z]|(?:^|\n)\s*\d+)\.$"
)
_LETTER = re.compile(r"\w")
_WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")


def words(text: str) -> list[Span]:
    """Words and punctuation marks; spaces belong to none."""
    return [match.span() for match in _WORD.finditer(text)]


def sentences(text: str) -> list[Span]:
    """Sentences without the space around them; a line break ends one, too."""
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
    return [span for span in (_stripped(text, *span) for span in spans) if span[0] < span[1]]


def token_sentences(text: str, ends: Sequence[int]) -> tuple[Span, ...]:
    """The tokens of each sentence, from where in the text all tokens but the last end; together they are all."""
    bounds = [0, *ends, len(text)]
    groups = members(list(pairwise(bounds)), sentences(text))
    firsts = [0, *sorted(group[0] for group in groups if group)[1:], len(ends) + 1]
    return tuple(pairwise(firsts))


def _stripped(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def spans_of(text: str, units: str | Sequence[Any]) -> list[Span]:
    """The stretches of a text that ``units`` names: "word", "sentence", or ranges of characters, checked."""
    if units == "role":  # who says what does not stand in the text
        return []
    if isinstance(units, str):
        return words(text) if units == "word" else sentences(text)
    spans: list[Span] = []
    for number, pair in enumerate(units):
        start, end = pair
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
    """Per stretch, the tokens in it: each token goes where most of its characters are, the first of equals."""
    groups: list[list[int]] = [[] for _ in spans]
    if not spans:
        return groups
    starts, ends = np.array(spans).T
    for token, (start, end) in enumerate(tokens):
        shared = np.minimum(ends, end) - np.maximum(starts, start)
        best = int(shared.argmax())
        if shared[best] > 0:
            groups[best].append(token)
    return groups


TEMPLATE = "template"  # what stands around the messages: it has a role of its own, so that nothing is hidden
MARK = "\ue000"  # for private use: no text has it
Part = tuple[int, int, str]  # first character, the one after the last, and whose they are


class PromptText(str):
    """A prompt as the model reads it, special tokens written out, and whose words its parts are."""

    parts: tuple[Part, ...]

    def __new__(cls, text: str, parts: Sequence[Part]) -> PromptText:
        prompt = super().__new__(cls, text)
        prompt.parts = tuple(parts)
        return prompt

    def __getnewargs__(self) -> tuple[str, tuple[Part, ...]]:  # type: ignore[override]
        return str(self), self.parts


def is_chat(inputs: Any) -> bool:
    """Messages: dicts that say who says what."""
    return isinstance(inputs, (list, tuple)) and bool(inputs) and all(_is_message(m) for m in inputs)


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" in message and "content" in message


def prompt_of(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> PromptText | tuple[PromptText, str]:
    """The prompt that a chat makes; with the answer, where the assistant has the last word: that is explained."""
    for number, message in enumerate(messages):
        if not isinstance(message["content"], str) or not isinstance(message["role"], str):
            kind = type(message["content"]).__name__
            raise BadInput(
                f"messages[{number}] holds a content of type {kind}: role and content of a message are strings."
            )
    if not getattr(tokenizer, "chat_template", None):
        raise NotOffered(
            f"{type(tokenizer).__name__} has no chat template, so it cannot write messages out as a text. Set "
            "tokenizer.chat_template as the model's card says, or give the prompt as one string."
        )
    answered = len(messages) > 1 and messages[-1]["role"] == "assistant"
    asked = [dict(m) for m in (messages[:-1] if answered else messages)]
    try:
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs: they refuse orders of roles that they do not know
        raise BadInput(f"the tokenizer's chat template refused these messages: {error}") from error
    prompt = PromptText(text, _parts(text, asked, tokenizer))
    return (prompt, str(messages[-1]["content"])) if answered else prompt


def _parts(text: str, messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[Part]:
    """Where in the text each message stands. A template may strip them, and put something before the first."""
    marked = [{**m, "content": f"{MARK}{number}{MARK}"} for number, m in enumerate(messages)]
    try:
        frame = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    except Exception:  # a template that reads what is said
        frame = ""
    return _between(text, frame, messages) or _in_order(text, messages)


def _between(text: str, frame: str, messages: Sequence[Mapping[str, Any]]) -> list[Part] | None:
    """By what the template puts around messages, tried out with marks for them: a short one may stand in that, too."""
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
    """By their words, each after the one before it."""
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
    """Whose each token is: of the part in which most of it stands, else the template's."""
    roles, here = [], 0
    for span in tokens:
        start, end = (0, 0) if span is None else (span[0], span[1])
        while here < len(parts) and parts[here][1] <= start:
            here += 1
        inside = here < len(parts) and min(parts[here][1], end) - max(parts[here][0], start) > 0
        roles.append(parts[here][2] if inside else TEMPLATE)
    return roles
