"""Spans of completions: gen_ai attributes and scores, and no text unless it is wanted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from tests.proxy.upstream import ANSWER, ASKED, DOCUMENTS, EVENTS, QUESTION, WHOLE, Upstream, ask, split, streaming
from whyformer.proxy import chat
from whyformer.proxy.chat import Telemetry

URL = "http://up.example:8000"
PRIVATE = [QUESTION, ANSWER, *DOCUMENTS, *DOCUMENTS.values(), "paris", "capital", "atlas"]


class Span:
    def __init__(self, name: str, context: Any, kind: Any, attributes: dict[str, Any], start_time: int) -> None:
        self.name, self.context, self.kind, self.attributes, self.begun = name, context, kind, attributes, start_time
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.status: Any = None
        self.ended = False

    def add_event(self, name: str, attributes: dict[str, Any]) -> None:
        self.events.append((name, attributes))

    def set_status(self, status: Any) -> None:
        self.status = status

    def end(self) -> None:
        self.ended = True


class Provider:
    """What an SDK would be."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, *names: str) -> Provider:
        return self

    def start_span(self, *given: Any, **facts: Any) -> Span:
        self.spans.append(Span(*given, **facts))
        return self.spans[-1]


def traced(upstream: Upstream, content: Any = ASKED, *, texts: bool = False, **how: Any) -> tuple[Span, httpx.Response]:
    provider = Provider()
    told = ask(upstream, content, telemetry=Telemetry(URL, texts, provider), **how)
    (span,) = provider.spans
    assert span.ended and span.kind == trace.SpanKind.CLIENT and span.begun > 0
    # What an SDK takes: texts, numbers, and lists of one kind.
    for value in (v for facts in (span.attributes, *(e[1] for e in span.events)) for v in facts.values()):
        assert isinstance(value, str | int | float) or len({type(each) for each in value}) <= 1
    return span, told


def test_a_span_has_the_facts_and_scores_of_a_completion_without_its_texts() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    span, told = traced(Upstream(), ASKED | {"temperature": 0, "max_tokens": 9}, headers={"traceparent": parent})
    rest, added = split(told.content)
    assert rest == WHOLE and span.name == "chat tiny"
    assert trace.get_current_span(span.context).get_span_context().trace_id == int(parent[3:35], 16)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.id": "x-1",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "up.example",
        "server.port": 8000,
        "whyformer.method": "attn_lrp",
        "whyformer.seconds": added["seconds"],
        "whyformer.sentences": 2,
        "whyformer.sentences_influenced": sum(s["influenced"] for s in added["citations"]),
        "whyformer.document_drops": [d["drop"] for d in added["documents"]],
    }
    assert span.attributes == expected
    for (name, facts), sentence in zip(span.events, added["citations"], strict=True):
        assert name == "whyformer.citation" and facts["whyformer.influenced"] == sentence["influenced"]
        assert facts["whyformer.source.drops"] == [source["drop"] for source in sentence["sources"]]
        assert [[*DOCUMENTS][i] for i in facts["whyformer.source.documents"]] == [
            source["document"] for source in sentence["sources"]
        ]
    written = json.dumps([span.attributes, span.events])
    assert not [text for text in PRIVATE if text in written]


def test_with_content_texts_are_in_the_span() -> None:
    span, _ = traced(Upstream(), texts=True)
    assert json.loads(span.attributes["gen_ai.input.messages"]) == ASKED["messages"]
    assert ANSWER in span.attributes["gen_ai.output.messages"]
    assert span.events[0][1]["whyformer.text"] == "it is paris ."


@pytest.mark.parametrize("upstream", [Upstream(), streaming(*EVENTS)], ids=["whole", "stream"])
def test_completions_that_are_not_explained_have_a_span_too(upstream: Upstream) -> None:
    content = {key: value for key, value in ASKED.items() if key != "whyformer"}
    span, told = traced(upstream, content)
    assert told.content == b"".join(upstream.pieces) and span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert not any(name.startswith("whyformer") for name in span.attributes)


def test_errors_are_recorded_without_their_words() -> None:
    span, _ = traced(Upstream(b"{}", status=500))
    assert span.attributes["error.type"] == "500" and span.status == trace.StatusCode.ERROR
    span, _ = traced(Upstream(), limits={"longest": 3})
    assert span.attributes["whyformer.reason"] == "unsupported" and "whyformer.error" not in span.attributes
    assert span.status is None


def test_a_span_that_cannot_be_written_does_not_cost_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Provider):
        def start_span(self, *given: Any, **facts: Any) -> Span:
            raise RuntimeError("full")

    logged: list[str] = []
    monkeypatch.setattr(chat.log, "exception", logged.append)
    told = ask(Upstream(), telemetry=Telemetry(URL, False, Broken()))
    assert split(told.content)[0] == WHOLE and logged == ["the span of a completion was not written"]


def test_without_an_sdk_spans_are_known_to_be_discarded() -> None:
    assert Telemetry(URL).discarded and not Telemetry(URL, provider=Provider()).discarded
