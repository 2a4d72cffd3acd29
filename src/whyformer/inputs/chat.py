"""Chats written out by the tokenizer's template; words and sentences of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered

# Stretches of a text that are scored as one: words, sentences, or ranges of characters

Span = tuple[int, int]  # first character, and the one after the last

SIZES = ("token", "word", "sentence", "role")
# A sentence ends at its mark, with what closes it, where a space or the end follows; CJK marks need no space.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[”’」』）]*|\n+")
# A full stop behind these does not end a sentence: titles, initials, enumerations, common abbreviations.
_NO_END = re.compile(
    r"(?:\b(?:(?i:mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|e\.g|i\.e|cf|fig|eq|approx|pp?|ch|sec|vol|inc|ltd|co|u\.s|u\.k)|No)"
    r"|(?:^|\s)[A-Z]|(?:^|\n)\s*\d+)\.$"
)
_LETTER = re.compile(r"\w")
_WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")


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
    if units == "role":  # roles come from the chat, not from the text
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
    """Return the tokens of each stretch: a token belongs where most of its characters are, the first of equals."""
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


TEMPLATE = "template"  # the role of what the template puts around messages
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
    return all(isinstance(m, Mapping) and "role" in m and "content" in m for m in inputs)


def prompt_of(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> PromptText | tuple[PromptText, str]:
    """Write a chat out as a prompt; with the answer to explain, where the last message is the assistant's."""
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
    """Return where in the text each message is. A template may strip messages, and put text around them."""
    marked = [{**m, "content": f"{MARK}{number}{MARK}"} for number, m in enumerate(messages)]
    try:
        frame = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    except Exception:  # a template that reads what is said
        frame = ""
    return _between(text, frame, messages) or _in_order(text, messages)


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
