"""Chat completions as they are read: what a request asks for, what a reply says, and the field that is added to it."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import HTTPException
from pydantic import Field, ValidationError

from whyformer.errors import BadInput, require
from whyformer.language.citations import TEXTS, documents_by_name
from whyformer.serve.messages import Asked, Name
from whyformer.version import __version__

FIELD = "whyformer"  # of requests and replies
DONE = re.compile(rb"data: ?\[DONE\]\s*")
PARAGRAPH = re.compile(r"\n\s*\n")
MOST = 1000  # documents
MANY = Field(max_length=MOST)
Document = str | dict[str, Any]


class Wanted(Asked):
    """The field of a request. Without documents, they are the other messages, or the earlier paragraphs."""

    cite: bool = False
    question: str | None = None
    documents: Annotated[dict[Name, Document], MANY] | Annotated[list[Document], MANY] | None = None
    top: Annotated[int, Field(ge=1, le=20)] = 3


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion that is asked for."""

    body: bytes  # what is passed on
    content: Mapping[str, Any]
    wanted: Wanted | None  # None: citations are not wanted

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return list(self.content["messages"])


def read_request(data: bytes, everything: bool) -> ChatRequest:
    """Read a request; what is not a chat completion raises 400, a wrong field 422."""
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise HTTPException(400, "the body is not a JSON object.")
    messages = content.get("messages")
    if not isinstance(messages, list) or not messages:
        raise HTTPException(400, "messages: give a list of at least one message.")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
        raise HTTPException(400, "messages: each is an object with a role.")
    if not isinstance(content.get("model", ""), str) or not isinstance(content.get("stream"), bool | None):
        raise HTTPException(400, "model is not a text, or stream is not true or false.")
    if FIELD not in content:
        return ChatRequest(data, content, Wanted(cite=True) if everything else None)
    try:
        wanted = Wanted.model_validate({"cite": everything} | content.pop(FIELD))
    except (ValidationError, TypeError) as error:
        words = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in getattr(error, "errors", list)()[:5]]
        raise HTTPException(422, f"{FIELD}: {'; '.join(words) or 'give an object'}"[:1000]) from None
    try:
        body = json.dumps(content, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body has numbers that are too large, or is nested too deeply.") from None
    return ChatRequest(body, content, wanted if wanted.cite else None)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


# Question and documents


def question_of(request: ChatRequest) -> tuple[str, dict[str, str]]:
    """Return the question and the documents by name; raise BadInput if there are none."""
    wanted = request.wanted or Wanted()
    texts = [_text_of(message) for message in request.messages]
    asked = max((i for i, each in enumerate(request.messages) if each["role"] == "user"), default=None)
    if wanted.question is None and (asked is None or not texts[asked].strip()):
        raise BadInput("the request has no user message with a text: give whyformer.question.")
    question = wanted.question if wanted.question is not None else texts[asked or 0]
    documents = wanted.documents if wanted.documents is not None else request.content.get("documents")
    if documents:
        return question, _named(documents)
    roles = [f"message {i} ({each['role'][:20]})" for i, each in enumerate(request.messages, 1)]
    others = {
        name: text
        for i, (name, text) in enumerate(zip(roles, texts, strict=True))
        if text.strip() and (i != asked or wanted.question is not None)
    }
    if others:
        return question, others
    *paragraphs, question = [each for each in PARAGRAPH.split(question) if each.strip()] or [""]
    if not paragraphs:
        raise BadInput(
            "the request has no documents: give whyformer.documents, documents, other messages, or paragraphs before "
            "the question."
        )
    return question, {f"paragraph {i}": text for i, text in enumerate(paragraphs, 1)}


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        raise BadInput("only texts are cited: a message has an image, a sound or a file.")
    return "\n\n".join(part["text"] for part in content)


def _named(documents: Any) -> dict[str, str]:
    if not isinstance(documents, (list, dict)):
        raise BadInput("documents is not a list or an object of texts.")
    if len(documents) > MOST:
        raise BadInput(f"documents: {len(documents)} are given; the limit is {MOST}.")
    by_name = documents_by_name(documents)
    if not all(isinstance(text, str) for text in by_name.values()):
        raise BadInput(f"documents: each is a text, or an object with one of {', '.join(TEXTS)}.")
    return by_name


# Replies


@dataclass
class Reply:
    """The content of a reply, read while it is passed on."""

    facts: dict[str, Any] = field(default_factory=dict)  # id, model, created, usage
    answer: StringIO = field(default_factory=StringIO)  # of the first choice
    reasons: dict[int, str] = field(default_factory=dict)  # why each choice ended
    choices: set[int] = field(default_factory=set)  # their numbers

    def read(self, data: bytes, part: str = "message") -> dict[str, Any] | None:
        """Read a whole reply, or (``part="delta"``) an event of a stream; return it if it is a JSON object."""
        try:
            content = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            return None
        if not isinstance(content, dict):
            return None
        self.facts |= {key: content[key] for key in ("id", "model", "created", "usage") if content.get(key) is not None}
        choices = content.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if not isinstance(index, int):
                continue
            self.choices.add(index)
            if isinstance(choice.get("finish_reason"), str):
                self.reasons[index] = choice["finish_reason"]
            said = choice.get(part)
            if index == 0 and isinstance(said, dict) and isinstance(said.get("content"), str):
                self.answer.write(said["content"])
        return content

    def read_lines(self, lines: Iterable[bytes]) -> None:
        """Read lines of a stream of events."""
        for line in lines:
            if line.startswith(b"data:") and not DONE.fullmatch(line):
                self.read(line[5:], "delta")


def with_field(body: bytes, content: dict[str, Any], added: Mapping[str, Any]) -> bytes:
    """Insert the field before the brace that closes a reply; all other bytes stay as they are."""
    end = body.rindex(b"}")
    comma = b"," if content else b""
    return body[:end] + comma + f'"{FIELD}":'.encode() + _json(added) + body[end:]


def event_of(reply: Reply, added: Mapping[str, Any]) -> bytes:
    """Return the event of a stream that holds the field: a chunk without choices."""
    facts = {key: value for key, value in reply.facts.items() if isinstance(value, str | int)}  # no NaN, no usage
    return b"data: " + _json({**facts, "object": "chat.completion.chunk", "choices": [], FIELD: added}) + b"\n\n"


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()


# OpenTelemetry: one span per chat completion, by the conventions of gen_ai, with scores as attributes and events.


SETTINGS = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}  # of a request, by their type
USAGE = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
NOT_SET_UP = (
    "--trace: spans are discarded, because no OpenTelemetry SDK is configured: pip install opentelemetry-distro "
    "opentelemetry-exporter-otlp, then opentelemetry-instrument -- whyformer proxy … --trace"
)

log = logging.getLogger("whyformer.proxy")


@dataclass(frozen=True)
class Completion:
    """A chat completion that has ended, and what is known of it."""

    begun: int  # nanoseconds
    headers: Mapping[str, str]
    request: ChatRequest
    reply: Reply
    added: Mapping[str, Any] | None
    trouble: str = ""  # the status or class of an error


class Telemetry:
    """Writes spans through the configured OpenTelemetry SDK. content: include texts, too."""

    def __init__(self, server: str, content: bool = False, provider: Any = None) -> None:
        require("opentelemetry", why="--trace")
        from opentelemetry import propagate, trace

        provider = provider or trace.get_tracer_provider()
        self.discarded = isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        self._tracer = provider.get_tracer("whyformer", __version__)
        self._trace, self._extract, self.content = trace, propagate.extract, content
        address = urlsplit(server)
        self._server: dict[str, Any] = {"server.address": address.hostname or ""}
        self._server |= {"server.port": address.port} if address.port else {}

    def record(self, done: Completion) -> None:
        """Write one span, until now."""
        try:
            self._write(done, self._attributes(done))
        except Exception:  # an answer does not fail because of its span
            log.exception("the span of a completion was not written")

    def _attributes(self, done: Completion) -> dict[str, Any]:
        request, reply = done.request, done.reply
        model = str(request.content.get("model", ""))
        # The API in front is OpenAI's; what is behind it is not known here.
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", **self._server}
        attributes |= {"gen_ai.request.model": model} if model else {}
        for name, kind in SETTINGS.items():
            value = request.content.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                attributes[f"gen_ai.request.{name}"] = kind(value)
        for name in ("id", "model"):
            if isinstance(reply.facts.get(name), str):
                attributes[f"gen_ai.response.{name}"] = reply.facts[name]
        if reply.reasons:
            attributes["gen_ai.response.finish_reasons"] = [reason for _, reason in sorted(reply.reasons.items())]
        usage = reply.facts.get("usage")
        known = usage if isinstance(usage, dict) else {}
        attributes |= {
            f"gen_ai.usage.{to}": known[name] for name, to in USAGE.items() if isinstance(known.get(name), int)
        }
        if self.content:
            attributes["gen_ai.input.messages"] = json.dumps(request.messages)
            said = {"role": "assistant", "content": reply.answer.getvalue()}
            attributes["gen_ai.output.messages"] = json.dumps([said])
        attributes |= {"error.type": done.trouble} if done.trouble else {}
        return attributes | self._summary(done.added)

    def _write(self, done: Completion, attributes: Mapping[str, Any]) -> None:
        # The parent is the span of a server instrumentation around this proxy, or else that of the client.
        around = self._trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"chat {attributes.get('gen_ai.request.model', '')}".strip(),
            context=None if around else self._extract(dict(done.headers)),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=done.begun,
        )
        added = done.added or {}
        for number, sentence in enumerate(added.get("citations", ())):
            span.add_event("whyformer.citation", self._scores(number, sentence, added))
        if done.trouble:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def _summary(self, added: Mapping[str, Any] | None) -> dict[str, Any]:
        if added is None:
            return {}
        if "error" in added:
            # Messages may quote texts.
            return {"whyformer.reason": added["reason"]} | ({"whyformer.error": added["error"]} if self.content else {})
        drops = [_float(document["drop"]) for document in added["documents"]]
        return {
            "whyformer.method": added["method"],
            "whyformer.seconds": added["seconds"],
            "whyformer.sentences": len(added["citations"]),
            "whyformer.sentences_influenced": sum(sentence["influenced"] for sentence in added["citations"]),
            "whyformer.document_drops": drops,
        }

    def _scores(self, number: int, sentence: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of a sentence of the answer. Documents are numbered: their names may be private."""
        names = [document["name"] for document in added["documents"]]
        sources = sentence["sources"]
        scores: dict[str, Any] = {
            "whyformer.sentence": number,
            "whyformer.influenced": sentence["influenced"],
            "whyformer.log_probability": _float(sentence["log_probability"]),
            "whyformer.source.documents": [names.index(source["document"]) for source in sources],
            "whyformer.source.scores": [_float(source["score"]) for source in sources],
            "whyformer.source.drops": [_float(source["drop"]) for source in sources],
        }
        if self.content:
            scores |= {"whyformer.text": sentence["text"], "whyformer.source.texts": [s["text"] for s in sources]}
        return scores


def _float(value: float | None) -> float:
    return math.nan if value is None else value
