"""A connection to a server with OpenAI's API: its address, its model, retries, and the number of tokens it reports."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from whyformer.errors import BadInput, ModelFailed, WhyformerError, shown

PAUSE = 0.5  # seconds before the second try, then twice as long each time
LONGEST_PAUSE = 30.0
LARGEST_REPLY = 32 * 2**20  # bytes
BUSY = {408, 425, 429, 500, 502, 503, 504}  # statuses that are tried again
NOT_THERE = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)  # errors that are not
BEARER = re.compile(r"\b(bearer)\s+[^\s\"',;]+", re.IGNORECASE)  # and the token behind it
Item = TypeVar("Item")
Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Usage:
    """What a server was asked for so far. Tokens are as it reports them; 0 if it does not."""

    requests: int = 0  # those that were tried again included
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, more: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))

    def __sub__(self, before: Usage) -> Usage:
        return Usage(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens:,} prompt tokens, {self.completion_tokens:,} generated tokens"
        known = self.prompt_tokens or self.completion_tokens
        return f"{self.requests:,} requests, {tokens if known else 'tokens not reported by the server'}"


class Connection:
    """A server with OpenAI's API. Subclasses know what to send."""

    quoted = True  # whether errors quote the server's replies, which may repeat its key and its address

    def __init__(self, url: str, model: str | None, key: str | None, timeout: float, parallel: int, retries: int):
        self.url = url.rstrip("/")
        for ending in ("/completions", "/chat", "/v1"):
            self.url = self.url.removesuffix(ending).rstrip("/")
        host = _host(self.url)
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key and key):
            raise BadInput("key is not a bearer token: give printable text without spaces or line breaks around it.")
        self.timeout, self.parallel, self.retries = timeout, parallel, retries
        self.usage = Usage()
        self._model, self._key = model, key
        self._lock = threading.RLock()
        handlers: list[Any] = [_Stays()]
        if host in {"localhost", "127.0.0.1", "::1"}:  # no proxy knows what is on this machine
            handlers.append(ProxyHandler({}))
        self._opener: OpenerDirector = build_opener(*handlers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, model={self._model!r})"

    @property
    def __name__(self) -> str:
        """The name in results and errors, as that of a function."""
        return self._model or str(type(self).__name__)

    @property
    def identity(self) -> str:
        """The key of its answers in a cache."""
        return f"{self.url} {self.model}"

    @property
    def requests(self) -> int:
        """The number of requests so far, those that were tried again included."""
        return self.usage.requests

    @property
    def model(self) -> str | None:
        """The name of the model, requested from the server if none was given. None: the server lists none."""
        with self._lock:
            if self._model is None:
                self._model = self._only_model()
        return self._model or None

    def _each(self, function: Callable[[Item], Reply], items: Sequence[Item]) -> list[Reply]:
        """Call a function for all items, ``parallel`` of them at a time."""
        _ = self.model  # requested once, before there are threads
        with ThreadPoolExecutor(max(1, min(self.parallel, len(items)))) as pool:
            replies = [pool.submit(function, item) for item in items]
            try:
                return [reply.result() for reply in replies]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _only_model(self) -> str:
        try:
            listing = self._reply("/v1/models", None)
        except Refused as refusal:
            if refusal.status == 404:  # a server that has no list: it may have one model without a name
                return ""
            raise self._explained(refusal) from None
        data = listing.get("data") if isinstance(listing, dict) else None
        names = [str(m["id"]) for m in data or [] if isinstance(m, dict) and "id" in m]
        if len(names) > 1:
            raise BadInput(
                f"{self.url} has {len(names)} models: name one, {type(self).__name__}(url, model=…): "
                f"{', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
            )
        return names[0] if names else ""

    def _words(self, refusal: Refused) -> str:
        return str(refusal) if self.quoted else f"HTTP {refusal.status}"

    def _explained(self, refusal: Refused) -> WhyformerError:
        said = f"{self.url} refused the request ({self._words(refusal)})."
        if refusal.status in {401, 403}:
            return BadInput(f"{said} Give its key, {type(self).__name__}(url, key=…).")
        if refusal.status == 404:
            return BadInput(f"{said} Check the address, and that it has model={self._model!r} (GET /v1/models).")
        if 300 <= refusal.status < 400:
            return BadInput(f"{said} It redirects to another address: give that one as url.")
        return ModelFailed(said)

    def _reply(self, path: str, body: dict[str, Any] | None) -> Any:
        """Return the server's reply; a busy server is tried again, after a growing pause."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        for left in reversed(range(self.retries + 1)):
            pause = min(LONGEST_PAUSE, PAUSE * 2 ** (self.retries - left))
            self._count(Usage(1))
            try:
                with self._opener.open(Request(self.url + path, data, headers), timeout=self.timeout) as reply:
                    data = reply.read(LARGEST_REPLY + 1)
                if len(data) > LARGEST_REPLY:
                    raise ModelFailed(f"{self.url}{path} replied with more than {LARGEST_REPLY // 2**20} MB.")
                content = json.loads(data)
                self._count(_tokens(content))
                return content
            except HTTPError as error:
                refusal = Refused(error)
                if refusal.status not in BUSY:
                    raise refusal from None
                trouble, pause = self._words(refusal), min(LONGEST_PAUSE, refusal.pause or pause)
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                trouble = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
                if isinstance(reason, NOT_THERE):
                    raise ModelFailed(
                        f"no server was reached at {self.url} ({trouble}): start it, or correct the url."
                    ) from error
            except (ValueError, RecursionError) as error:
                raise ModelFailed(f"{self.url}{path} replied with something that is not JSON: {error}.") from error
            if left:
                time.sleep(pause)
        raise ModelFailed(
            f"{self.url} did not answer in {self.retries + 1} tries ({trouble}). Check that it is running and not "
            f"overloaded; see timeout=, parallel= and retries= of {type(self).__name__}."
        )

    def _count(self, more: Usage) -> None:
        with self._lock:
            self.usage += more


def _tokens(content: Any) -> Usage:
    """Return the tokens that a reply reports."""
    facts = content.get("usage") if isinstance(content, dict) else None
    facts = facts if isinstance(facts, dict) else {}
    counts = [facts.get(name) for name in ("prompt_tokens", "completion_tokens")]
    return Usage(0, *(count if isinstance(count, int) and count > 0 else 0 for count in counts))


def _host(url: str) -> str:
    """Return the host of an address; raise if it is not a usable one."""
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:  # half a bracket, a port beyond all ports
        address, host, port = urlsplit(""), None, None
    if address.username is not None:
        raise BadInput("url contains a user name: give the address alone, and the credentials as key=.")
    plain = url.isascii() and url.isprintable() and " " not in url and port != 0
    if address.scheme not in {"http", "https"} or not host or not plain:
        raise BadInput(f"url={shown(url)} is not the address of a server: give one such as 'http://localhost:8000'.")
    return host


class _Stays(HTTPRedirectHandler):
    """Follows no redirect: the key is for this server only."""

    def redirect_request(self, *request: Any) -> None:  # type: ignore[override]
        return None


class Refused(Exception):
    """A reply with another status than 200, with the server's message."""

    def __init__(self, error: HTTPError) -> None:
        self.status = error.code
        after = error.headers.get("Retry-After", "") if error.headers else ""
        self.pause = float(after) if after.strip().isdecimal() else None
        with error:
            said = BEARER.sub(r"\1 …", " ".join(error.read(4000).decode("utf-8", "replace").split()))
        super().__init__(f"HTTP {error.code}: {said[:300] or error.reason}")
