"""The endpoint: requests are passed on to the server, replies to the client, with one field more where it is wanted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from whyformer.inputs.completions import CompletionServer
from whyformer.proxy.chat import DONE, FIELD, ChatRequest, Reply, event_of, read_request, with_field
from whyformer.proxy.citing import Citing
from whyformer.proxy.telemetry import Telemetry
from whyformer.serve import safety
from whyformer.serve.app import GRACE, MOST_CONNECTIONS, address, bound, serve_until_stopped

# Headers of one connection, those that are computed anew, and the cookie, which is for this proxy.
HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
HOP |= {"transfer-encoding", "upgrade", "expect"}
OURS = {"host", "content-length", "accept-encoding", "authorization", "cookie", "origin"}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
TIMEOUT = httpx.Timeout(600.0, connect=10.0)
# Servers often close idle connections after 5 seconds: a request on one that is about to be closed would be lost.
LIMITS = httpx.Limits(max_connections=MOST_CONNECTIONS, keepalive_expiry=2.0)
LONGEST_LINE = 2**20  # bytes of an event that are held until it is complete


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
    telemetry: Telemetry | None = None
    transport: httpx.AsyncBaseTransport | None = None  # of the connection to the server; None: the network
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.server = CompletionServer(self.server, key=self.key).url  # raises if it is not the address of a server
        local = safety.is_loopback(httpx.URL(self.server).host)
        # Proxies of the environment do not know servers of this machine. Redirects are not followed: the key is for
        # this server.
        self.client = httpx.AsyncClient(
            transport=self.transport, timeout=TIMEOUT, limits=LIMITS, trust_env=not local, follow_redirects=False
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
        if ".." in request.url.path.split("/"):
            raise HTTPException(400, "the path contains '..'.")
        base = httpx.URL(self.server)
        try:
            url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path + (b"?" + query if query else b""))
        except (httpx.InvalidURL, ValueError):
            raise HTTPException(400, "the path is not valid.") from None
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in HOP | OURS]
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
        proxy.citing.jobs.close(GRACE)
        await proxy.client.aclose()

    app = FastAPI(title="whyformer proxy", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> Response:
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        return JSONResponse({"error": {"message": str(error.detail), "type": kind}}, error.status_code)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _Completion(proxy, request, read_request(await request.body(), proxy.everything)).response()

    @app.api_route("/v1/{path:path}", methods=METHODS)
    async def other(request: Request) -> Response:
        accepted = request.headers.get("accept-encoding", "identity")
        reply = await proxy.send(request, await request.body(), accepted)
        return _passed_on(reply, _raw(reply), HOP)

    # Messages may hold images.
    return safety.RequestGuard(app, proxy.host, proxy.token, safety.LARGEST_UPLOAD)


class _Completion:
    """One chat completion: passed on, read on its way if anybody needs that, explained if it is wanted."""

    def __init__(self, proxy: Proxy, request: Request, asked: ChatRequest) -> None:
        self.proxy, self.request, self.asked = proxy, request, asked
        self.begun, self.reply = time.time_ns(), Reply()
        self.added: dict[str, Any] | None = None

    async def response(self) -> Response:
        try:
            reply = await self.proxy.send(self.request, self.asked.body, "identity")
        except HTTPException as error:
            self._record(str(error.status_code))
            raise
        # The reply is decoded only if it is changed: otherwise its bytes are handed on as they are.
        explained = self.asked.wanted is not None and reply.status_code == 200
        events = reply.headers.get("content-type", "").startswith("text/event-stream")
        if not explained:
            return _passed_on(reply, self._unchanged(reply, events), HOP)
        if events:
            return _passed_on(reply, self._events(reply), HOP | CHANGED)
        try:
            body = await reply.aread()
        except httpx.HTTPError as error:
            self._record(type(error).__name__)
            raise HTTPException(502, f"the server's reply ended early ({type(error).__name__}).") from error
        content = self.reply.read(body)
        if content is not None and FIELD not in content:
            body = with_field(body, content, await self._field())
        self._record()
        made = Response(body, reply.status_code)
        made.raw_headers = [*_headers(reply, HOP | CHANGED), (b"content-length", str(len(body)).encode())]
        return made

    async def _field(self) -> dict[str, Any]:
        key = (self.proxy.authorization(self.request) or "").removeprefix("Bearer ").strip() or None
        try:
            self.added = await self.proxy.citing.added(self.asked, self.reply.answer, key)
        except Exception as error:  # a bug of the explanation must not fail the answer
            self.added = {"error": f"{type(error).__name__}: {error}", "reason": "failed"}
        return self.added

    async def _unchanged(self, reply: httpx.Response, events: bool) -> AsyncIterator[bytes]:
        """Hand on the bytes of a reply that is not explained."""
        kept: list[bytes] = []  # for the span
        trouble = "" if reply.status_code < 400 else str(reply.status_code)
        try:
            async for chunk in _raw(reply):
                if self.proxy.telemetry is not None:
                    kept.append(chunk)
                yield chunk
        except httpx.HTTPError as error:
            trouble = type(error).__name__
            raise
        finally:
            if events:
                self.reply.read_lines(b"".join(kept).split(b"\n"))
            else:
                self.reply.read(b"".join(kept))
            self._record(trouble)

    async def _events(self, reply: httpx.Response) -> AsyncIterator[bytes]:
        """Hand on events as they come, line by line; the field is an event of its own before the last one."""
        rest, trouble, waiting = b"", "", True
        try:
            async for chunk in reply.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                self.reply.read_lines(lines)
                at = next((i for i, line in enumerate(lines) if DONE.fullmatch(line)), -1) if waiting else -1
                if at >= 0:
                    yield _joined(lines[:at])
                    yield event_of(self.reply, await self._field())
                    waiting, lines = False, lines[at:]
                yield _joined(lines)
                if len(rest) > LONGEST_LINE:
                    yield rest
                    rest = b""
            self.reply.read_lines([rest])
            if waiting and not DONE.fullmatch(rest):  # some servers end without [DONE]
                yield (rest + b"\n\n" if rest else b"") + event_of(self.reply, await self._field())
            else:
                yield (event_of(self.reply, await self._field()) if waiting else b"") + rest
        except httpx.HTTPError as error:
            trouble = type(error).__name__
            raise
        finally:
            await reply.aclose()
            self._record(trouble)

    def _record(self, trouble: str = "") -> None:
        if self.proxy.telemetry is not None:
            headers = dict(self.request.headers)
            self.proxy.telemetry.record(self.begun, headers, self.asked, self.reply, self.added, trouble)


CHANGED = {"content-length", "content-encoding", "etag"}  # headers that no longer hold for a changed body


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _headers(reply: httpx.Response, without: set[str]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower(), value) for name, value in reply.headers.raw if name.decode().lower() not in without | {"date"}
    ]


def _passed_on(reply: httpx.Response, content: AsyncIterator[bytes], without: set[str]) -> Response:
    made = StreamingResponse(content, reply.status_code)
    made.raw_headers = _headers(reply, without)
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
