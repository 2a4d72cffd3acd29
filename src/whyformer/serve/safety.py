"""Check requests before anything is read: hosts, origins, tokens, sizes; and the schema of questions."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import threading
import warnings
import wave
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from io import BytesIO
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import numpy as np
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.files import open_image

# What a client may ask: every field with its limits, checked before anything is done.

LONGEST_TEXT = 20_000  # characters
LARGEST_NUMBER = 10_000  # of an option: more steps or samples would keep a model busy for hours
Name = Annotated[str, Field(min_length=1, max_length=200)]
Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
Number = Annotated[StrictInt, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Fraction = Annotated[StrictFloat, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False)]
Word = Annotated[StrictStr, Field(max_length=200)]
Plain = StrictBool | Number | Fraction | Word | None
Cell = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | Word | None
Class = Annotated[StrictInt, Field(ge=0, le=10**7)] | Annotated[StrictStr, Field(min_length=1, max_length=300)]
Share = Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)]  # above which a detector's objects count
Words = Annotated[str, Field(max_length=LONGEST_TEXT)]
Wait = Annotated[float, Field(ge=0, le=60)]


class Asked(BaseModel):
    """A request body: unknown fields and values of another type raise an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


WAYS = ("text", "prompt", "row", "image", "sound", "sample")
TOGETHER = ({"image", "text"}, {"sample", "text"})  # a picture and what is asked about it


class Input(Asked):
    """A text (or two), a prompt, a row by column names, an uploaded picture or sound, a sample of the model's; a
    picture or sample with a text."""

    text: Words | None = None
    second: Words | None = None  # the other text of a pair
    prompt: Words | None = None
    row: Annotated[dict[Name, Cell], Field(min_length=1, max_length=2000)] | None = None
    image: Identity | None = None
    sound: Identity | None = None
    sample: Annotated[int, Field(ge=0, le=10_000)] | None = None
    erased: Annotated[list[Annotated[int, Field(ge=0, le=100_000)]], Field(max_length=10_000)] = []  # patches
    answer: Words | None = None  # of a model that writes, instead of its own
    chat: bool = False  # the prompt is a message, put as the tokenizer's template says

    @property
    def ways(self) -> set[str]:
        return {name for name in WAYS if getattr(self, name) is not None}

    @model_validator(mode="after")
    def _one(self) -> Input:
        if len(self.ways) != 1 and self.ways not in TOGETHER:
            raise ValueError(f"give one of {', '.join(WAYS[:-1])} and sample, or an image with a text")
        if self.second is not None and self.ways != {"text"}:
            raise ValueError("second is for a pair of texts: give the first as text")
        if self.erased and not self.ways & {"image", "sample"}:
            raise ValueError("erased is for patches of an image")
        return self


class Predict(Asked):
    model: Name
    input: Input
    target: Share | None = None  # of a detector: above which probability its objects count


class Explain(Asked):
    model: Name
    input: Input
    method: Name | Annotated[list[Name], Field(min_length=1, max_length=40)] | None = None
    target: Class | Share | None = None
    versus: Class | None = None
    options: Annotated[dict[Name, Plain | Annotated[list[Plain], Field(max_length=100)]], Field(max_length=20)] = {}
    scalar: Literal["logit", "centred", "probability", "log_odds", "cosine"] = "centred"
    units: Literal["token", "word", "sentence"] = "token"
    generate: Annotated[int, Field(ge=1, le=256)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    edited_from: Identity | None = None
    wait: Wait = 0.0  # seconds for which the answer itself is waited for; then it is a job

    @property
    def methods(self) -> list[str | None]:
        return [*self.method] if isinstance(self.method, list) else [self.method]

    @property
    def aim(self) -> Any:
        """As ``explain`` takes it."""
        return self.target if self.versus is None else (self.target, self.versus)


class Compare(Asked):
    """Methods on some inputs, measured; or results that are there already, side by side."""

    model: Name | None = None
    inputs: Annotated[list[Input], Field(max_length=50)] = []
    methods: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=40)] | None,
        Field(validation_alias=AliasChoices("method", "methods")),  # "methods" is the old name
    ] = None
    results: Annotated[list[Identity], Field(max_length=12)] = []
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    wait: Wait = 0.0

    @model_validator(mode="after")
    def _some(self) -> Compare:
        if bool(self.results) == bool(self.inputs):
            raise ValueError("give inputs to compare methods on, or results to show side by side")
        if self.inputs and self.model is None:
            raise ValueError("name the model that the inputs are for")
        return self


class About(Asked):
    """Further analysis of a result: its heads, or its evaluation."""

    result: Identity
    item: Annotated[int, Field(ge=0, le=1000)] = 0  # of several objects, which
    thorough: bool = False  # all checks, the slow ones too
    again: bool = False  # even where it is known
    wait: Wait = 0.0


class Load(Asked):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$")]


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
    """As JSON; where a person opens a page, as plain words."""
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
    """As a 16-bit WAV."""
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return written.getvalue()
