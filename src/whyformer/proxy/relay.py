"""The endpoint: requests are passed on to the server, replies to the client, with one field more where it is wanted."""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from whyformer.errors import BadInput
from whyformer.inputs.completions import CompletionServer
from whyformer.language.citations import Citations, cite
from whyformer.proxy import chat
from whyformer.serve import safety
from whyformer.serve.app import address, bound, serve_until_stopped
from whyformer.serve.jobs import Busy, Jobs
from whyformer.serve.messages import LONGEST_TEXT

# Headers of one connection, those that are computed anew, and the cookie, which is for this proxy. What a server's
# reply would set up in a browser is for the server's own pages, and this proxy has another address.
HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
HOP |= {"transfer-encoding", "upgrade", "expect"}
OURS = {"host", "content-length", "accept-encoding", "authorization", "cookie", "origin"}
# Some servers take these for the path, and for who asks: to them, this proxy is a client to be believed.
OURS |= {"x-original-url", "x-rewrite-url", "forwarded", "x-real-ip", "x-client-ip", "true-client-ip"}
OURS |= {f"x-forwarded-{what}" for what in ("for", "host", "port", "prefix", "proto", "server", "uri", "user")}
BROWSER = {"set-cookie", "set-cookie2", "clear-site-data", "strict-transport-security", "alt-svc", "link", "refresh"}
BROWSER |= {"nel", "report-to", "reporting-endpoints", "service-worker-allowed", "sourcemap"}
BROWSER |= {"x-content-security-policy", "x-webkit-csp", "timing-allow-origin"}
BROWSER_GROUPS = ("access-control-", "content-security-policy", "cross-origin-")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
# Servers often close idle connections after 5 seconds: a request on one that is about to be closed would be lost.
LIMITS = httpx.Limits(max_connections=safety.MOST_CONNECTIONS, keepalive_expiry=2.0)
LONGEST_LINE = 2**20  # bytes of an event that are held until it is complete
LARGEST_REPLY = 8 * 2**20  # bytes of a reply that is read; a larger one is passed on without an explanation
TOO_LARGE = f"not explained: the reply has more than {LARGEST_REPLY // 2**20} MB."
ENCODINGS = 4  # layers of percent-encoding that a path may have


@dataclass(eq=False)
class Proxy:
    """The state that all routes share.

    everything: cite every answer, not only where the request asks for it. key: the server's bearer token; None: the
    client's own is passed on, if this proxy has no token.
    """

    server: str
    citing: Citing
    everything: bool = False
    host: str = "127.0.0.1"
    token: str | None = None
    key: str | None = None
    telemetry: chat.Telemetry | None = None
    transport: httpx.AsyncBaseTransport | None = None  # of the connection to the server; None: the network
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.server = CompletionServer(self.server, key=self.key).url  # raises if it is not the address of a server
        local = safety.is_loopback(httpx.URL(self.server).host)
        # Proxies of the environment do not know servers of this machine. Redirects are not followed: the key is for
        # this server.
        self.client = httpx.AsyncClient(
            transport=self.transport,
            timeout=TIMEOUT,
            limits=LIMITS,
            trust_env=not local,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one client's cookies are not another's
        )

    def authorization(self, request: Request) -> str | None:
        """Return the header for the server; the token of this proxy is not for it."""
        if self.key is not None:
            return f"Bearer {self.key}"
        return request.headers.get("authorization") if self.token is None else None

    async def send(self, request: Request, body: bytes, encoding: str) -> httpx.Response:
        """Pass a request on; the reply has not been read yet."""
        # Some servers leave the query in raw_path, which comes from query_string below.
        path = (request.scope.get("raw_path") or request.url.path.encode()).partition(b"?")[0]
        query = request.scope["query_string"]
        if _leads_out(path.decode("latin-1")):
            raise HTTPException(400, "the path contains '..', or is encoded more than once.")
        base = httpx.URL(self.server)
        try:
            url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path + (b"?" + query if query else b""))
        except (httpx.InvalidURL, ValueError):
            raise HTTPException(400, "the path is not valid.") from None
        headers = _passing(request.headers.raw, OURS)
        headers.append((b"accept-encoding", encoding.encode()))
        if (authorization := self.authorization(request)) is not None:
            headers.append((b"authorization", authorization.encode("latin-1")))
        asked = self.client.build_request(request.method, url, headers=headers, content=body or None)
        try:
            return await self.client.send(asked, stream=True)
        except httpx.TimeoutException as error:
            raise HTTPException(504, f"the server did not answer in time ({type(error).__name__}).") from error
        except httpx.HTTPError as error:
            raise HTTPException(502, f"the server was not reached ({type(error).__name__}).") from error


def application(proxy: Proxy) -> Any:
    """Return the ASGI application behind its guard."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        proxy.citing.jobs.close()
        await proxy.client.aclose()

    app = FastAPI(title="whyformer proxy", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> Response:
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return JSONResponse({"error": {"message": str(error.detail), "type": kind}}, error.status_code)

    @app.post("/v1/chat/completions")
    async def completions(request: Request) -> Response:
        return await _Completion(proxy, request, chat.read_request(await request.body(), proxy.everything)).response()

    @app.api_route("/v1/{path:path}", methods=METHODS)
    async def other(request: Request) -> Response:
        accepted = request.headers.get("accept-encoding", "identity")
        reply = await proxy.send(request, await request.body(), accepted)
        return _passed_on(reply, _raw(reply))

    # Messages may hold images.
    return safety.RequestGuard(app, proxy.host, proxy.token, safety.LARGEST_UPLOAD)


class _Completion:
    """One chat completion: passed on, read on its way if anybody needs that, explained if it is wanted."""

    def __init__(self, proxy: Proxy, request: Request, asked: chat.ChatRequest) -> None:
        self.proxy, self.request, self.asked = proxy, request, asked
        self.begun, self.reply = time.time_ns(), chat.Reply()
        self.added: dict[str, Any] | None = None

    async def response(self) -> Response:
        try:
            reply = await self.proxy.send(self.request, self.asked.body, "identity")
        except HTTPException as error:
            self._record(str(error.status_code))
            raise
        events = reply.headers.get("content-type", "").startswith("text/event-stream")
        if self.asked.wanted is None or reply.status_code != 200:
            return _passed_on(reply, self._unchanged(_raw(reply), reply.status_code, events))
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            # A few bytes can unpack to gigabytes: what was not requested is not unpacked.
            await reply.aclose()
            self._record("encoding")
            raise HTTPException(502, "the server's reply is compressed, which was not requested: turn that off there.")
        if events:
            return _passed_on(reply, self._events(reply), *CHANGED)
        return await self._whole(reply)

    async def _whole(self, reply: httpx.Response) -> Response:
        """Read a reply that is not a stream, and add the field; one that is too large is passed on as it comes."""
        pieces, held, size = _raw(reply), list[bytes](), 0
        try:
            async for chunk in pieces:
                held.append(chunk)
                size += len(chunk)
                if size > LARGEST_REPLY:
                    made = _passed_on(reply, self._unchanged(pieces, 200, False, held))
                    made.headers["x-whyformer-error"] = TOO_LARGE
                    return made
        except httpx.HTTPError as error:
            self._record(type(error).__name__)
            raise HTTPException(502, f"the server's reply ended early ({type(error).__name__}).") from error
        body = b"".join(held)
        content = self.reply.read(body)
        if content is not None and chat.FIELD not in content:
            body = chat.with_field(body, content, await self._field())
        self._record()
        made = Response(body, reply.status_code)
        made.raw_headers = [*_headers(reply, CHANGED), (b"content-length", str(len(body)).encode())]
        return made

    async def _field(self, size: int = 0) -> dict[str, Any]:
        key = (self.proxy.authorization(self.request) or "").removeprefix("Bearer ").strip() or None
        try:
            if size > LARGEST_REPLY:
                self.added = {"error": TOO_LARGE, "reason": "unsupported"}
            else:
                self.added = await self.proxy.citing.added(self.asked, self.reply.answer.getvalue(), key)
        except Exception as error:  # a bug of the explanation must not fail the answer
            self.added = {"error": f"{type(error).__name__}: {error}", "reason": "failed"}
        if len(self.reply.choices) > 1:
            words = f"the reply has {len(self.reply.choices)} choices: choice 0 alone is explained."
            self.added = {**self.added, "choice": 0, "warnings": [*self.added.get("warnings", ()), words]}
        return self.added

    async def _unchanged(
        self, pieces: AsyncIterator[bytes], status: int, events: bool, before: Iterable[bytes] = ()
    ) -> AsyncIterator[bytes]:
        """Hand on the bytes of a reply that is not explained; ``before``: those that were read already."""
        held, size = list[bytes](), 0  # for the span
        trouble = "" if status < 400 else str(status)
        try:
            for chunk in before:
                yield chunk
            async for chunk in pieces:
                size += len(chunk)
                if self.proxy.telemetry is not None and size <= LARGEST_REPLY:
                    held.append(chunk)
                yield chunk
        except httpx.HTTPError as error:
            trouble = type(error).__name__
            raise
        finally:
            if events:
                self.reply.read_lines(b"".join(held).split(b"\n"))
            elif not before:
                self.reply.read(b"".join(held))
            self._record(trouble)

    async def _events(self, reply: httpx.Response) -> AsyncIterator[bytes]:
        """Hand on events as they come, line by line; the field is an event of its own before the last one."""
        rest, trouble, waiting, size = bytearray(), "", True, 0
        try:
            async for chunk in reply.aiter_raw():
                rest += chunk
                size += len(chunk)
                if b"\n" not in chunk and len(rest) <= LONGEST_LINE:
                    continue  # a line may come byte by byte: it is cut once
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                if size <= LARGEST_REPLY:
                    self.reply.read_lines(lines)
                at = next((i for i, line in enumerate(lines) if chat.DONE.fullmatch(line)), -1) if waiting else -1
                if at >= 0:
                    yield _joined(lines[:at])
                    yield chat.event_of(self.reply, await self._field(size))
                    waiting, lines = False, lines[at:]
                yield _joined(lines)
                if len(rest) > LONGEST_LINE:
                    yield last
                    rest.clear()
            last = bytes(rest)
            self.reply.read_lines([last])
            if waiting and not chat.DONE.fullmatch(last):  # some servers end without [DONE]
                yield (last + b"\n\n" if last else b"") + chat.event_of(self.reply, await self._field(size))
            else:
                yield (chat.event_of(self.reply, await self._field(size)) if waiting else b"") + last
        except httpx.HTTPError as error:
            trouble = type(error).__name__
            raise
        finally:
            await reply.aclose()
            self._record(trouble)

    def _record(self, trouble: str = "") -> None:
        if self.proxy.telemetry is not None:
            headers = dict(self.request.headers)
            done = chat.Completion(self.begun, headers, self.asked, self.reply, self.added, trouble)
            self.proxy.telemetry.record(done)


CHANGED = {"content-length", "content-encoding", "etag"}  # headers that no longer hold for a changed body


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _passing(headers: Iterable[tuple[bytes, bytes]], without: set[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are passed on: those that ``Connection`` names are of one connection, too.

    Some servers take "_" in a name for "-".
    """
    plain = [(name.lower(), value) for name, value in headers]
    named = b",".join(value for name, value in plain if name == b"connection").decode("latin-1")
    without = without | HOP | {name.strip().lower() for name in named.split(",")}
    return [(name, value) for name, value in plain if name.decode("latin-1").replace("_", "-") not in without]


def _headers(reply: httpx.Response, without: set[str]) -> list[tuple[bytes, bytes]]:
    wrong = {"content-length"} if "transfer-encoding" in reply.headers else set()  # which says where the reply ends
    passing = _passing(reply.headers.raw, without | BROWSER | {"date"} | wrong)
    return [(name, value) for name, value in passing if not name.decode("latin-1").startswith(BROWSER_GROUPS)]


def _leads_out(path: str) -> bool:
    """Whether some server could read '..' in a path: behind ';', with '\\', in wide characters, or encoded again."""
    for _ in range(ENCODINGS):
        path = unquote(path)
    parts = [re.split("[;?#]", part)[0].strip() for part in re.split(r"[/\\]", unicodedata.normalize("NFKC", path))]
    encoded = re.search("%(25|u)", path, re.IGNORECASE)
    return bool({".", ".."} & {*parts}) or not path.isprintable() or "\ufffd" in path or encoded is not None


def _passed_on(reply: httpx.Response, content: AsyncIterator[bytes], *without: str) -> Response:
    made = StreamingResponse(content, min(reply.status_code, 599))  # beyond is none of HTTP
    made.raw_headers = _headers(reply, {*without})
    return made


async def _raw(reply: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    finally:
        await reply.aclose()


def run(proxy: Proxy, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``say`` is called with the address."""
    with bound(proxy.host, port) as listening:
        say(f"{address(proxy.host, listening.getsockname()[1], None)}v1 → {proxy.server}/v1")
        if proxy.token is not None:
            say(f"Clients need this key: {proxy.token}")
        if not safety.is_loopback(proxy.host):
            say("From another machine, use this machine's name as the host. The connection is not encrypted.")
        serve_until_stopped(application(proxy), listening, proxy.citing.jobs)


# Citations of answers, computed one at a time from a bounded queue and within a time limit.


QUEUE = "citations"


@dataclass(eq=False)
class Citing:
    """Computes the field of replies. A failure is a field with an error; nothing is raised.

    model, processor: a local model; None: the log-probabilities of the server. seconds: for one field, the time in the
    queue included. waiting: requests in the queue; more are not explained.
    """

    server: str
    model: Any = None
    processor: Any = None
    name: str = ""  # of the local model
    method: str | None = None
    seconds: float = 30.0
    waiting: int = 8
    longest: int = LONGEST_TEXT
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.server = CompletionServer(self.server).url  # raises if it is not the address of a server
        self.jobs = Jobs(self.waiting)

    async def added(self, request: chat.ChatRequest, answer: str, key: str | None) -> dict[str, Any]:
        """Return the field of a reply; ``key``: the bearer token of the server."""
        try:
            if not answer.strip():
                raise BadInput("the answer has no text.")
            question, documents = chat.question_of(request)
            size = len(question) + len(answer) + sum(map(len, documents.values()))
            if size > self.longest:
                raise BadInput(f"question, documents and answer have {size} characters; the limit is {self.longest}.")
        except BadInput as error:
            return _error("unsupported", str(error))
        try:
            job = self.jobs.add(QUEUE, "cite", partial(self._cited, request, question, documents, answer, key))
        except Busy:
            return _error("busy", f"not explained: {self.waiting} answers are waiting for an explanation already.")
        try:
            if not await job.ended(self.seconds):
                return _error("time_limit", f"not explained within {self.seconds:g} seconds.")
        finally:
            self.jobs.cancel(job)
        if job.state == "done":
            return dict(job.answer)
        # Clients do not see the server's address, nor what it replied (``quoted`` below).
        words = job.error.replace(self.server, "the server")
        host = re.escape(urlsplit(self.server).hostname or "")
        return _error("failed", re.sub(rf"\b{host}\b(:\d+)?", "the server", words))

    def _cited(
        self, request: chat.ChatRequest, question: str, documents: dict[str, str], answer: str, key: str | None
    ) -> dict[str, Any]:
        begun = time.monotonic()
        assert request.wanted is not None
        options: dict[str, Any] = {"top": request.wanted.top, "progress": False}
        model, name, shift = self.model, self.name, 0
        if model is None:
            named = request.content.get("model")
            model = CompletionServer(self.server, named, key=key, timeout=self.seconds, retries=0)
            model.quoted = False
            # The prompt ends in "Answer:", and the first word of an answer has a space before it.
            answer, shift = f" {answer}", 1
        options |= {"processor": self.processor, "answer": answer, "method": self.method}
        citations = cite(model, question, documents, **options)
        if self.model is None:
            name = model.model or ""  # known once it was asked
        return plain(citations, name, shift) | {"seconds": round(time.monotonic() - begun, 3)}


def plain(result: Citations, name: str, shift: int = 0) -> dict[str, Any]:
    """Return citations as the content of the field; ``shift``: characters before the answer."""
    sentences = [
        {
            "text": sentence.text,
            "start": start - shift,
            "end": end - shift,
            **_fields(sentence, "log_probability", "influenced"),
            "sources": [_fields(c, "document", "text", "score", "drop", "cited") for c in sentence.citations],
        }
        for sentence, (start, end) in zip(result.sentences, result.spans, strict=True)
    ]
    documents = [_fields(document, "name", "score", "drop") for document in result.documents]
    facts = {"method": result.method, "model": name, "warnings": list(result.warnings)}
    return {"citations": sentences, "documents": documents, **facts}


def _fields(part: Any, *names: str) -> dict[str, Any]:
    """Return fields by name, numbers rounded, and NaN as None."""
    values = {name: getattr(part, name) for name in names}
    rounded = {name: round(v, 6) if math.isfinite(v) else None for name, v in values.items() if isinstance(v, float)}
    return values | rounded


def _error(reason: str, words: str) -> dict[str, Any]:
    return {"error": words, "reason": reason}
