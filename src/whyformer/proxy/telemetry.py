"""OpenTelemetry: one span per chat completion, by the conventions of gen_ai, with scores as attributes and events."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from whyformer.extras import require
from whyformer.proxy.chat import ChatRequest, Reply
from whyformer.version import __version__

SETTINGS = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}  # of a request, by their type
USAGE = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
NOT_SET_UP = (
    "--trace: spans are discarded, because no OpenTelemetry SDK is configured: pip install opentelemetry-distro "
    "opentelemetry-exporter-otlp, then opentelemetry-instrument -- whyformer proxy … --trace"
)

log = logging.getLogger("whyformer.proxy")


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

    def record(
        self,
        begun: int,
        headers: Mapping[str, str],
        request: ChatRequest,
        reply: Reply,
        added: Mapping[str, Any] | None,
        trouble: str = "",
    ) -> None:
        """Write one span, from ``begun`` (nanoseconds) until now; ``trouble``: the status or class of an error."""
        try:
            self._write(begun, headers, self._attributes(request, reply, added, trouble), added, trouble)
        except Exception:  # an answer does not fail because of its span
            log.exception("the span of a completion was not written")

    def _attributes(
        self, request: ChatRequest, reply: Reply, added: Mapping[str, Any] | None, trouble: str
    ) -> dict[str, Any]:
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
            attributes["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "content": reply.answer}])
        attributes |= {"error.type": trouble} if trouble else {}
        attributes |= self._summary(added)
        return attributes

    def _write(
        self,
        begun: int,
        headers: Mapping[str, str],
        attributes: Mapping[str, Any],
        added: Mapping[str, Any] | None,
        trouble: str,
    ) -> None:
        # The parent is the span of a server instrumentation around this proxy, or else that of the client.
        around = self._trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"chat {attributes.get('gen_ai.request.model', '')}".strip(),
            context=None if around else self._extract(dict(headers)),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=begun,
        )
        for number, sentence in enumerate((added or {}).get("citations", ())):
            span.add_event("whyformer.citation", self._scores(number, sentence, added or {}))
        if trouble:
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
