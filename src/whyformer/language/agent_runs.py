"""Runs of agents: messages with thoughts, tool calls and tool results, and where they are in what the model reads.

A chat template writes a run out as one text, in its own way: it may strip contents, escape them as JSON, leave out
thoughts of earlier turns, and write tool calls as JSON or as tags. Parts are looked for in that text, in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whyformer import files
from whyformer.errors import BadInput, shown
from whyformer.inputs.decoding import FIELDS, MARKS, THOUGHT, TOOL_CALL
from whyformer.inputs.units import PromptText, Span, sentences, texts_of

ANSWER, DEFINITION = "answer", "tool definition"
MODEL = "assistant"  # the role of what the model wrote
RESULTS = {"tool", "function", "ipython", "observation"}  # of tool results
DEFINITIONS = -1  # stands for the number of a message, where definitions of tools are meant
FORM = 'a list of messages, [{"role": …, "content": …}, …], or {"messages": […], "tools": […]}'
_THINKING = tuple(mark for mark in MARKS if "tool" not in mark[0])
_CALLING = tuple(mark for mark in MARKS if mark[0] == "<tool_call>")
_PARAGRAPHS = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class AgentRun:
    """The messages of a run, checked, and the definitions of its tools."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def written(self) -> list[int]:
        """The messages that the model wrote."""
        return [number for number, message in enumerate(self.messages) if message["role"] == MODEL]


class RunPart(NamedTuple):
    """A thought, tool call, answer, or what the model read, in one message."""

    message: int
    kind: str  # THOUGHT, TOOL_CALL, ANSWER, DEFINITION, or the role of what was read
    text: str
    name: str = ""  # of the tool
    call_id: str = ""


class WrittenPart(NamedTuple):
    """Characters of the text that a part is written as."""

    part: int
    start: int
    end: int


def read_run(run: Any) -> AgentRun:
    """Return the run in a file, or given as messages; raise if it is not one."""
    if isinstance(run, (str, Path)):
        path = files.readable_file(run, "run of an agent", "run")
        try:
            run = files.read_json(path)
        except files.Damaged as error:
            raise BadInput(f"{str(path)!r} is not a JSON file ({error}). A run is {FORM}.") from error
    tools: Any = ()
    if isinstance(run, Mapping):
        if "messages" not in run:
            keys = ", ".join(map(str, list(run)[:6])) or "none"
            raise BadInput(f"the run is a dict without messages (its keys: {keys}). A run is {FORM}.")
        run, tools = run["messages"], run.get("tools") or ()
    if isinstance(run, (str, bytes)) or not isinstance(run, Sequence):
        raise BadInput(f"the run is a {type(run).__name__}. A run is {FORM}.")
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadInput('tools of a run are a list of definitions, [{"type": "function", "function": {…}}, …].')
    messages = tuple(_message(number, message) for number, message in enumerate(run))
    result = AgentRun(messages, tuple(dict(tool) for tool in tools))
    if not result.written:
        roles = ", ".join(dict.fromkeys(str(message["role"]) for message in messages)) or "none"
        raise BadInput(
            f'the run has no message of the role "assistant" (its roles: {roles}): nothing in it was written by the '
            "model. To explain what the model would write, use explain(model, messages, generate=…)."
        )
    if result.written[0] == 0:
        raise BadInput("messages[0] is the assistant's: a run begins with what the model read (system or user).")
    return result


def _message(number: int, message: Any) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadInput(f"{where} is {shown(message)}: a message is a dict with a role. A run is {FORM}.")
    result = {key: value for key, value in message.items() if value is not None}
    content = result.setdefault("content", "")
    if not isinstance(content, str):
        kinds = [part.get("type") if isinstance(part, Mapping) else None for part in _items(content)]
        if not kinds or set(kinds) != {"text"}:
            other = next((str(kind) for kind in kinds if kind not in ("text", None)), type(content).__name__)
            raise BadInput(f"{where} has a content of {other}: traces are of texts, strings or parts of type text.")
    if result["role"] == MODEL:
        result["tool_calls"] = [_call(f"{where}.tool_calls[{i}]", c) for i, c in _calls(where, result)]
        if not result["tool_calls"]:
            del result["tool_calls"]
            if not any(result.get(name) for name in ("content", *FIELDS)):
                raise BadInput(f"{where} is an empty message of the assistant: it has neither content nor tool calls.")
    return result


def _items(content: Any) -> Sequence[Any]:
    return content if isinstance(content, (list, tuple)) else ()


def _calls(where: str, message: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    calls = message.get("tool_calls") or ()
    if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
        raise BadInput(f"{where}.tool_calls is a {type(calls).__name__}: give a list of calls.")
    return iter(enumerate(calls))


def _call(where: str, call: Any) -> dict[str, Any]:
    """Return a call whose arguments are a dict: APIs send them as a JSON text, and templates write a dict."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadInput(
            f'{where} is {shown(call)}: a call is {{"function": {{"name": …, "arguments": …}}}}, and this one names no '
            "function."
        )
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = files.parsed(arguments) if arguments.strip() else {}
        except files.Damaged:  # what a model wrote need not be JSON
            arguments = function["arguments"]
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def parts_of(run: AgentRun) -> list[RunPart]:
    parts = [
        RunPart(DEFINITIONS, DEFINITION, json.dumps(tool, ensure_ascii=False), str(_named(tool))) for tool in run.tools
    ]
    for number, message in enumerate(run.messages):
        texts = [text.strip() for text in texts_of(message) if text.strip()]
        if message["role"] != MODEL:
            name, call_id = (str(message.get(key, "")) for key in ("name", "tool_call_id"))
            parts += [RunPart(number, message["role"], text, name, call_id) for text in texts]
            continue
        for name_of_field, kind in FIELDS.items():
            if kind == THOUGHT and str(message.get(name_of_field) or "").strip():
                parts.append(RunPart(number, THOUGHT, str(message[name_of_field]).strip()))
                break
        parts += [RunPart(number, kind, text) for whole in texts for kind, text in _divided(whole)]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            parts.append(
                RunPart(number, TOOL_CALL, _written(function["arguments"]), function["name"], str(call.get("id", "")))
            )
    return parts


def _named(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function.get("name", "") if isinstance(function, Mapping) else ""


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _divided(content: str) -> Iterator[tuple[str, str]]:
    """Divide what the model wrote at marks of thoughts and tool calls inside its content."""
    first: tuple[int, int, int, int, str] | None = None
    for kind, marks in ((THOUGHT, _THINKING), (TOOL_CALL, _CALLING)):
        for begin, end in marks:
            start = content.find(begin)
            stop = content.find(end, start + len(begin)) if start >= 0 else -1
            if stop >= 0 and (first is None or start < first[0]):
                first = (start, start + len(begin), stop, stop + len(end), kind)
    if first is None:
        if content.strip():
            yield ANSWER, content.strip()
        return
    start, inner, stop, after, kind = first
    for each, text in ((ANSWER, content[:start]), (kind, content[inner:stop])):
        if text.strip():
            yield each, text.strip()
    yield from _divided(content[after:])


def places_of(parts: Sequence[RunPart], prompt: PromptText, written: str, last: int) -> list[WrittenPart]:
    """Return where the parts of messages up to ``last`` are in prompt and answer; parts that were left out are missing.

    last: the message that ``written`` is of; those before it are in the prompt.
    """
    text, positions, at = str(prompt) + written, list[WrittenPart](), 0
    contents = _contents(parts, prompt, last)
    for number, part in enumerate(parts):
        if part.message > last:
            break
        if number in contents:
            positions.append(WrittenPart(number, *contents[number]))
            at = max(at, contents[number][1])
            continue
        at = max(at, len(prompt)) if part.message == last else at
        ahead = (start for other, (start, _) in contents.items() if other > number)
        end = len(text) if part.message == last else min(min(ahead, default=len(prompt)), len(prompt))
        span = (_call_in if part.kind == TOOL_CALL and part.name else _text_in)(text[:end], part, at)
        if span is not None:
            positions.append(WrittenPart(number, *span))
            at = at if part.kind == DEFINITION else span[1]
    return positions


def _contents(parts: Sequence[RunPart], prompt: PromptText, last: int) -> dict[int, Span]:
    """Return the places of contents that the template's frame shows; none where they are not told apart."""
    contents = [(start, end) for start, end, role in prompt.parts if role not in (THOUGHT, TOOL_CALL)]
    before = [n for n, part in enumerate(parts) if 0 <= part.message < last]
    plain = [n for n in before if parts[n].kind not in (THOUGHT, TOOL_CALL)]
    fitting = len(contents) == len(plain) and all(
        prompt[start:end] == parts[n].text for n, (start, end) in zip(plain, contents, strict=True)
    )
    return dict(zip(plain, contents, strict=True)) if fitting else {}


def _spellings(text: str) -> list[str]:
    """Return a text as templates write it: as it is, or inside a JSON string."""
    return list(dict.fromkeys((text, *(json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True)))))


def _text_in(text: str, part: RunPart, at: int) -> Span | None:
    for spelling in _spellings(part.text):
        start = text.find(spelling, at)
        if start >= 0:
            return start, start + len(spelling)
    return None


def _call_in(text: str, part: RunPart, at: int) -> Span | None:
    """Return from the name of the tool to the end of its arguments, as JSON or each value by itself."""
    try:
        arguments = json.loads(part.text)
    except ValueError:
        arguments = part.text
    spellings = [part.text, *_spellings(part.text)[1:]]
    for indent, separators in ((None, (",", ":")), (4, None), (2, None)):
        spellings.append(json.dumps(arguments, ensure_ascii=False, indent=indent, separators=separators))
    spellings.append(json.dumps(arguments))
    for spelling in spellings:
        start = text.find(spelling, at)
        if start >= 0:
            name = text.rfind(part.name, at, start)
            name = text.find(part.name, start) if name < 0 else name
            if name >= 0:
                return min(name, start), max(name + len(part.name), start + len(spelling))
    name = text.find(part.name, at)
    values = list(arguments.values()) if isinstance(arguments, Mapping) else []
    end = name + len(part.name)
    for value in values:
        written = _written(value)
        start = text.find(written, end)
        if start < 0:
            return None
        end = start + len(written)
    return (name, end) if name >= 0 and values else None


def documents_in(text: str, role: str) -> list[Span]:
    """Return the documents of a tool result, elements of a JSON list or paragraphs; other messages are one."""
    whole = (len(text) - len(text.lstrip()), len(text.rstrip()))
    if role not in RESULTS:
        return [whole]
    elements = _elements(text)
    if len(elements) > 1:
        return elements
    spans, start = [], 0
    for gap in [*_PARAGRAPHS.finditer(text), None]:
        end = len(text) if gap is None else gap.start()
        inner = text[start:end]
        if inner.strip():
            spans.append((start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())))
        start = end if gap is None else gap.end()
    return spans or [whole]


def _elements(text: str) -> list[Span]:
    at, spans = text.find("["), list[Span]()
    if at < 0 or text[:at].strip():
        return []
    decoder = json.JSONDecoder()
    at += 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        if text[at : at + 1] == "]":
            return spans
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        spans.append((at, end))
        at = end


def sentences_in(text: str, span: Span) -> list[Span]:
    return [(span[0] + start, span[0] + end) for start, end in sentences(text[slice(*span)])]
