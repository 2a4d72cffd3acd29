"""Who may ask, and how much: hosts, origins, tokens, sizes of bodies and pictures. Refused before anything is read."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import warnings
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

from whyformer.errors import BadInput, MissingExtra
from whyformer.files.image_file import open_image

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LARGEST_BODY = 2**20  # bytes of a question
LARGEST_UPLOAD = 20 * 2**20
MOST_PIXELS = 25_000_000
FORMATS = ("JPEG", "PNG", "WEBP")
SHORTEST_TOKEN = 16
COOKIE = "whyformer"
UPLOADS = "/api/images"
# Styles may stand in elements: pages are drawn with them. Scripts may not, so what is no text stays without effect.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
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
    """The token that is asked for: made up where others can reach the server; None where none is needed."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise BadInput(f"--token has {len(token)} characters: give {SHORTEST_TOKEN} or more, or leave it out.")
    if token is not None and not (token.isascii() and token.isprintable() and not set(token) & set(' ";,\\')):
        raise BadInput("--token may hold letters, digits and signs of ASCII, no spaces, quotes, commas or semicolons.")
    return token or (None if is_loopback(host) else secrets.token_urlsafe(24))


class Guard:
    """Stands before the application: what it refuses, nothing else sees."""

    def __init__(self, app: Application, host: str, token: str | None) -> None:
        self.app, self.loopback, self.token = app, is_loopback(host), token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError("only http is served")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        most = LARGEST_UPLOAD if scope["path"] == UPLOADS else LARGEST_BODY
        refusal = self._refusal(scope, headers, most)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        body = await _body(receive, most) if scope["method"] in ("POST", "PUT", "PATCH") else b""
        if body is None:
            await _refuse(send, 413, f"too large: at most {most} bytes.")
            return
        await self.app(scope, _again(body, receive), _with_headers(send))

    def _refusal(self, scope: Message, headers: dict[str, str], most: int) -> tuple[Any, ...] | None:
        host = headers.get("host", "")
        if self.loopback and not is_loopback(_name(host)):
            # A name that was made to point here (DNS rebinding): the page behind it is not ours.
            return 403, f"the name {host!r} is none of this machine: open http://localhost instead."
        origin = headers.get("origin")
        if origin is not None and not _same(origin, host):
            return 403, f"pages of {origin!r} may not ask here."
        if scope["path"].startswith("/api") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "other pages may not ask here."
        if self.token is not None:
            asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if scope["method"] == "GET" and scope["path"] == "/" and asked:
                if hmac.compare_digest(asked.encode(), self.token.encode()):
                    cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    return 303, "", {"location": "/", "set-cookie": cookie}
                return 401, "this is not the token: the terminal shows the right address."
            if not self._knows(headers):
                return 401, "a token is needed: open the address that the terminal shows, or send it as a Bearer token."
        try:
            if int(headers.get("content-length", "0")) > most:
                return 413, f"too large: at most {most} bytes."
        except ValueError:
            return 400, "content-length is no number."
        return None

    def _knows(self, headers: dict[str, str]) -> bool:
        assert self.token is not None
        offered = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            offered += [] if cookie is None else [cookie.value]
        except CookieError:
            pass
        return any(hmac.compare_digest(each.encode(), self.token.encode()) for each in offered)


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _same(origin: str, host: str) -> bool:
    """The page comes from here: "null", which frames and files send, does not."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


async def _refuse(send: Send, status: int, words: str, more: dict[str, str] | None = None) -> None:
    from whyformer.views.html.live import as_json

    body = as_json({"error": words}).encode() if words else b""
    named = HEADERS | {"content-type": "application/json", "content-length": str(len(body))} | (more or {})
    headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive, most: int) -> bytes | None:
    """All of it, counted as it comes, whatever was announced; None beyond the limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes."""
    told = False

    async def received() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            have = {name.lower() for name, _ in message["headers"]}
            more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in have]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sent


# Pictures


def opened_picture(data: bytes) -> Any:
    """RGB, upright. Its kind and size are read before its pixels are: a small file can hold billions of them."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "hf", "reading images") from None
    with _decoding, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise BadInput(
                        f"the picture has {width} × {height} pixels, and at most {MOST_PIXELS // 10**6} million are "
                        "read: make it smaller."
                    )
                image.load()
                return open_image(image)
        except BadInput:
            raise
        except Exception as error:  # each format has errors of its own, and Pillow some more for bombs
            raise BadInput(
                f"this cannot be read as a picture: {', '.join(FORMATS)} are. ({type(error).__name__})"
            ) from error
