"""Limits of connections, and checks of requests before anything is read: hosts, origins, tokens, sizes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import threading
import warnings
import wave
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from io import BytesIO
from operator import attrgetter
from socket import MSG_PEEK
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from uvicorn.protocols.http.h11_impl import H11Protocol

from whyformer.errors import BadInput, require
from whyformer.files import open_image

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LARGEST_BODY = 2**20  # bytes of a question
LARGEST_UPLOAD = 20 * 2**20
MOST_HELD = 256 * 2**20  # bytes of all bodies at once; beyond, only questions are taken
MOST_CONNECTIONS = 512
MOST_PIXELS = 25_000_000
MOST_SCANS = 50  # of a JPEG, over all of its pixels each; encoders write about ten
FORMATS = ("JPEG", "PNG", "WEBP")
JPEG, SCAN = b"\xff\xd8", b"\xff\xda"  # how a file begins, and a scan of it
LONGEST_SOUND = 60  # seconds
RATES = (4_000, 192_000)  # samples a second
MOST_CHANNELS = 8
SHORTEST_TOKEN = 16
COOKIE = "whyformer"
UPLOADS = ("/api/images", "/api/sounds")
# Styles may stand in elements: pages are drawn with them. Scripts may not, so what is no text stays without effect.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
PAGES = re.compile(r"/|/r/[A-Za-z0-9_-]{1,40}")  # addresses that people open
_decoding = threading.Lock()  # one picture at a time: each may take MOST_PIXELS * 4 bytes


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def token_for(host: str, token: str | None) -> str | None:
    """Return the required token: generated if other machines can reach the server, None if none is needed."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise BadInput(f"--token has {len(token)} characters: give {SHORTEST_TOKEN} or more, or omit --token.")
    if token is not None and not (token.isascii() and token.isprintable() and not set(token) & set(' ";,\\')):
        raise BadInput("--token allows printable ASCII without spaces, quotes, backslashes, commas and semicolons.")
    return token or (None if is_loopback(host) else secrets.token_urlsafe(24))


class RequestGuard:
    """ASGI middleware that rejects requests before they reach the application."""

    def __init__(self, app: Application, host: str, token: str | None, largest: int | None = None) -> None:
        self.app, self.loopback, self.token, self.largest = app, is_loopback(host), token, largest
        self.held = 0
        # Cookies are sent to every port of a machine: two servers would take each other's away under one name.
        self.cookie = f"{COOKIE}-{hashlib.blake2b((token or '').encode(), digest_size=4).hexdigest()}"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError("only http is served")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        most = LARGEST_UPLOAD if scope["path"] in UPLOADS else self.largest or LARGEST_BODY
        refusal = self._refusal(scope, headers, most)
        if refusal is not None:
            await _refuse(send, *refusal, page=bool(PAGES.fullmatch(scope["path"])))
            return
        body = bytearray()
        try:
            if scope["method"] in ("POST", "PUT", "PATCH") and (refusal := await self._read(body, receive, most)):
                await _refuse(send, *refusal)
            else:
                await self._pass(scope, bytes(body), receive, send)
        finally:
            self.held -= len(body)

    async def _read(self, body: bytearray, receive: Receive, most: int) -> tuple[Any, ...] | None:
        """Read a body, whatever length was announced; return why not, if it is too large, or the client left."""
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            self.held += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or len(body) > most:
                return 413, f"too large: at most {most} bytes."
            if len(body) > LARGEST_BODY and self.held > MOST_HELD:
                return 429, "too many uploads at once: try again in a moment.", {"retry-after": "2"}
        return None

    async def _pass(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Hand a request on to the application; its reply gets the headers that every reply has."""
        replayed = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def received() -> Message:
            return next(replayed, None) or await receive()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [each for each in message["headers"] if each[0].decode("latin-1").lower() not in HEADERS]
                message["headers"] = [*others, *((n.encode(), v.encode()) for n, v in HEADERS.items())]
            await send(message)

        await self.app(scope, received, sent)

    def _refusal(self, scope: Message, headers: dict[str, str], most: int) -> tuple[Any, ...] | None:
        host = headers.get("host", "")
        if self.loopback and not is_loopback(_name(host)):
            # A name that was made to point here (DNS rebinding): the page behind it is not ours.
            return 403, f"the host name {host!r} is not allowed: open http://localhost instead."
        origin = headers.get("origin")
        if origin is not None and not _same(origin, host):
            return 403, f"requests from pages of {origin!r} are not allowed."
        site = headers.get("sec-fetch-site", "none")
        if scope["path"].startswith(("/api", "/v1")) and site not in ("same-origin", "none"):
            return 403, "requests from other pages are not allowed."
        if self.token is not None:
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if scope["method"] == "GET" and PAGES.fullmatch(scope["path"]) and asked:
                if hmac.compare_digest(asked.encode(), self.token.encode()):
                    # The address without the token: links are copied, and stand in the browser's history.
                    cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    return 303, "", {"location": scope["path"], "set-cookie": cookie}
                return 401, "wrong token: open the address that the terminal shows."
            if not self._knows(headers):
                return 401, "a token is required: open the address that the terminal shows, or send a Bearer token."
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # A server in front may take the other one for the length of the body.
            return 400, "give content-length or transfer-encoding, not both.", {"connection": "close"}
        try:
            if int(headers.get("content-length", "0")) > most:
                return 413, f"too large: at most {most} bytes."
        except ValueError:
            return 400, "content-length is not a number."
        return None

    def _knows(self, headers: dict[str, str]) -> bool:
        assert self.token is not None
        offered = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
            offered += [] if cookie is None else [cookie.value]
        except CookieError:
            pass
        return any(hmac.compare_digest(each.encode(), self.token.encode()) for each in offered)


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    match = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d*)?", host)
    return match[1] if match else ""


def _same(origin: str, host: str) -> bool:
    """The page comes from here: "null", which frames and files send, does not."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


async def _refuse(
    send: Send, status: int, words: str, more: dict[str, str] | None = None, *, page: bool = False
) -> None:
    """Send a refusal as JSON, or as plain text if a person opened a page."""
    from whyformer.views.html.live import as_json

    body = (words if page else as_json({"error": words})).encode() if words else b""
    kind = "text/plain; charset=utf-8" if page else "application/json"
    named = HEADERS | {"content-type": kind, "content-length": str(len(body))} | (more or {})
    headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def opened_picture(data: bytes) -> Any:
    """RGB, upright. Its kind and size are read before its pixels are: a small file can hold billions of them."""
    require("PIL", why="reading images")
    from PIL import Image

    with _decoding, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise BadInput(
                        f"the image has {width} × {height} pixels; at most {MOST_PIXELS // 10**6} million are allowed: "
                        "make it smaller."
                    )
                if data.startswith(JPEG) and data.count(SCAN) > MOST_SCANS:
                    raise BadInput(f"the image has more than {MOST_SCANS} scans: save it again.")
                image.load()
                return open_image(image)
        except BadInput:
            raise
        except Exception as error:  # each format has errors of its own, and Pillow some more for bombs
            raise BadInput(
                f"the file cannot be read as an image ({type(error).__name__}): use {', '.join(FORMATS)}."
            ) from error


def opened_sound(data: bytes) -> tuple[Any, int]:
    """Samples in [-1, 1] and their rate, of a 16-bit WAV: its header is read before its samples are."""
    try:
        with wave.open(BytesIO(data)) as file:
            channels, width, rate, frames = file.getparams()[:4]
            if width != 2 or not 1 <= channels <= MOST_CHANNELS or not RATES[0] <= rate <= RATES[1]:
                raise BadInput("unsupported sound: give a 16-bit WAV file of 4 to 192 kHz and up to 8 channels.")
            if frames > LONGEST_SOUND * rate:
                raise BadInput(f"the sound is longer than {LONGEST_SOUND} seconds: give a shorter one.")
            samples = np.frombuffer(file.readframes(frames), "<i2").astype(np.float32) / 32768
    except BadInput:
        raise
    except Exception as error:  # what was cut off or changed ends in errors of wave, struct or numpy
        raise BadInput(f"the file cannot be read as a sound ({type(error).__name__}): use 16-bit WAV.") from error
    if len(samples) < channels:
        raise BadInput("the sound is empty or silent.")
    return samples[: len(samples) // channels * channels].reshape(-1, channels).mean(1), rate


def written_sound(samples: Any, rate: int) -> bytes:
    """Encode samples as a 16-bit WAV file."""
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return written.getvalue()


# Connections: none may hold a place for long without a request, and the oldest of those make room.

MOST_PER_ADDRESS = MOST_CONNECTIONS // 2
HEADERS_WITHIN = 10.0  # seconds from the connection, or the last response, to the end of a request's headers
BODY_WITHIN = 120.0  # seconds until its body is there


class BoundedProtocol(H11Protocol):
    """A connection with limits of time for a request, and of number for one address and all of them.

    The owner of a server on this machine has the address of whoever floods it. So a connection that has sent nothing
    takes only the place of another such one, and not of one that came before the crowd of its address.
    """

    connections: set[BoundedProtocol]  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        self.heard = self.begun = False  # whether its first byte has arrived, and whether it was read
        self.address = (self.client or ("", 0))[0]
        self.early = False  # whether its address was not crowded when it came
        self._make_room()

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self.heard = self.begun = True
            self._make_room()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.timer.cancel()
        self._arm()

    @property
    def waits(self) -> bool:
        """Whether the client is waited for: for a request, the rest of its body, or room to write."""
        done = self.cycle is None or self.cycle.response_complete
        return done or self.cycle.more_body or self.flow.write_paused

    @property
    def unread(self) -> bool:
        """Whether bytes are there that were not read: in a flood, many connections are accepted before one is read."""
        with suppress(OSError), self.transport.get_extra_info("socket").dup() as peeking:
            return bool(peeking.recv(1, MSG_PEEK))
        return False

    def _make_room(self) -> None:
        """Close connections that are waited for, silent ones first and of those the oldest, until all have room."""
        crowd = [each for each in self.connections if each.address == self.address]
        self.early |= len(crowd) <= MOST_PER_ADDRESS // 2
        over, of_one = len(crowd) - MOST_PER_ADDRESS, True
        if over <= 0:
            crowd, over, of_one = [*self.connections], len(self.connections) - MOST_CONNECTIONS, False
        if over <= 0:
            return
        if self.heard:
            crowd = [each for each in crowd if each.waits and each.begun == each.heard]
        else:
            crowd = [each for each in crowd if not each.heard and not (each.early and of_one)]
        for each in sorted(crowd, key=attrgetter("heard", "since")):
            if each is self:
                continue
            if each.unread:
                each.heard = True
                continue
            self.connections.discard(each)
            each.transport.abort()
            over -= 1
            if not over:
                return
        if self.heard:
            self.limit_concurrency = 0  # every place is at work: the request is answered with 503

    def _arm(self) -> None:
        self.since = self.loop.time()
        self.timer = self.loop.call_later(HEADERS_WITHIN, self._expire)

    def _expire(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                return
            if (left := self.since + BODY_WITHIN - self.loop.time()) > 0:
                self.timer = self.loop.call_later(left, self._expire)
                return
        self.transport.abort()
