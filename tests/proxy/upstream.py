"""A server that is not there: what the proxy sends is kept, and answered as a test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import httpx
from starlette.testclient import TestClient

from tests.support import language
from whyformer.proxy.relay import Citing, Proxy, application

ANSWER = "it is paris . the cat sat on the mat ."
QUESTION = "what is the capital of france ?"
DOCUMENTS = {"atlas": "the capital of france is paris . rome is big .", "note": "a cat sat on the mat ."}
ASKED = {
    "model": "tiny",
    "messages": [{"role": "user", "content": QUESTION}],
    "whyformer": {"cite": True, "documents": DOCUMENTS},
}
# Spaces, escapes, numbers and a newline at the end that no other writer of JSON would choose.
WHOLE = (
    b'{ "id":"x-1",  "object" : "chat.completion", "created": 1.50e0, "model": "tiny", "note": "\\u00e9\xc3\xa9",\n'
    b' "choices": [{"index":0,"message":{"role":"assistant","content": "%s"},"finish_reason":"stop"}],'
    b'"usage": {"prompt_tokens": 7, "completion_tokens": 3}  }\n'
) % ANSWER.encode()


def event(text: str | None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, **more}
    return b"data: " + json.dumps({"id": "x-1", "model": "tiny", "choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENTS = [b": hello\n\n", *(event(f"{word} ") for word in ANSWER.split()), event(None, finish_reason="stop"), DONE]


class Upstream:
    """Answers with pieces of a body; ``sent`` holds the requests."""

    def __init__(self, *pieces: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.pieces, self.status, self.sent = pieces or (WHOLE,), status, list[httpx.Request]()
        self.headers = {"content-type": kind, **headers}
        self.wait: Callable[[int], Any] | None = None  # awaited before each piece
        self.error: Exception | None = None  # raised after the last one
        self.refusal: Exception | None = None  # raised in place of a reply

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        if self.refusal is not None:
            raise self.refusal
        return httpx.Response(self.status, headers=self.headers, content=self.body())

    async def body(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self.pieces):
            if self.wait is not None:
                await self.wait(number)
            yield piece
        if self.error is not None:
            raise self.error


def streaming(*pieces: bytes) -> Upstream:
    return Upstream(*(pieces or EVENTS), kind="text/event-stream; charset=utf-8")


@cache
def model() -> Any:
    return language.model("llama")


def proxy(upstream: Upstream, *, local: bool = True, limits: dict[str, Any] | None = None, **how: Any) -> Proxy:
    """``limits``: of the explanation."""
    facts = {"model": model(), "processor": language.tokenizer(), "name": "small"} if local else {}
    citing = Citing("http://up.example:8000", **facts, **(limits or {}))
    return Proxy("http://up.example:8000/v1", citing, transport=httpx.MockTransport(upstream), **how)


def client(upstream: Upstream, **how: Any) -> TestClient:
    return TestClient(application(proxy(upstream, **how)), base_url="http://localhost")


def ask(upstream: Upstream, content: Any = None, headers: dict[str, str] | None = None, **how: Any) -> httpx.Response:
    asked: Any = client(upstream, **how).post(
        "/v1/chat/completions", json=ASKED if content is None else content, headers=headers
    )
    return asked  # type: ignore[no-any-return]


def split(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """A whole reply without the field, and the field."""
    start = body.index(b',"whyformer":')
    text = body[start + len(b',"whyformer":') :].decode()
    added, end = json.JSONDecoder().raw_decode(text)
    return body[:start] + text[end:].encode(), added
