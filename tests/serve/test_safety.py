"""Hostile questions: other pages, other names, wrong tokens, bombs, paths, markup, nonsense. None is a 500."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.serve.served import TEXT, asked, client, png, running, served, up
from whyformer.cli.service_commands import hub_model
from whyformer.errors import BadInput
from whyformer.serve import messages, safety
from whyformer.serve.safety import RequestGuard, is_loopback, opened_picture, token_for

UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # a busy machine is slow, not wrong
NASTY = "<img src=x onerror=alert(1)></script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def ask() -> Iterator[TestClient]:
    whole = served("text", "image", "table")
    yield client(whole, raise_server_exceptions=True)
    whole.jobs.close()


# Who asks


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://localhost:1"},  # another server on this machine
        {"origin": "null"},  # a frame or a file
        {"origin": "http://[localhost"},
        {"host": "evil.example"},  # a name that was made to point here
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"host": "[::1].evil.example"},
        {"host": "localhost:80@evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_pages_get_403_and_nothing_is_done(ask: TestClient, headers: dict[str, str]) -> None:
    refused = ask.post("/api/explain", json=asked(), headers=headers)
    assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
    assert ask.get("/api/models", headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:9000", "[::1]:80"])
def test_this_machine_may_ask_under_its_names(ask: TestClient, host: str) -> None:
    for origin in ({}, {"origin": f"http://{host}"}):
        assert ask.get("/api/models", headers={"host": host, **origin}).status_code == 200


def test_a_form_of_another_page_cannot_ask(ask: TestClient) -> None:
    """Forms send text/plain without asking first; they have an origin, and their body is no JSON to us."""
    body = '{"model": "text", "input": {"text": "x"}}'
    assert ask.post("/api/explain", content=body, headers={"content-type": "text/plain"}).status_code == 422
    headers = {"content-type": "text/plain", "origin": "http://evil.example"}
    assert ask.post("/api/explain", content=body, headers=headers).status_code == 403


def test_every_answer_has_the_policy(ask: TestClient) -> None:
    for path in ("/", "/r/abc", "/static/serve.js", "/static/style.css", "/api/models", "/nothing", "/api/results/x"):
        headers = ask.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    page = ask.get("/").text
    assert "<script>" not in page and " on" + "click" not in page and "//" not in page.replace("<!doctype", "")


def test_a_token_is_needed_where_others_can_reach_it() -> None:
    assert (
        token_for("127.0.0.1", None) is None and token_for("::1", None) is None and token_for("localhost", None) is None
    )
    made = token_for("0.0.0.0", None)
    assert made is not None and len(made) >= 32 and made != token_for("0.0.0.0", None)
    assert not is_loopback("0.0.0.0") and not is_loopback("192.168.1.4") and not is_loopback("localhost.evil.example")
    for word in ("short", "with a space in the middle", "ends;with;semicolons;"):
        with pytest.raises(BadInput, match="--token"):
            token_for("127.0.0.1", word)
    whole = served("text", host="0.0.0.0", token=made)
    asking = client(whole, follow_redirects=False)
    for path in ("/", "/static/serve.js", "/api/models", "/r/abc", "/?token=wrong", "/?token="):
        assert asking.get(path).status_code == 401
    assert asking.get("/r/abc").text.startswith("a token is required")  # words, where a person opens a page
    for headers in ({"authorization": "Bearer wrong"}, {"cookie": "whyformer=wrong"}, {"cookie": "\x01;;="}):
        assert asking.get("/api/models", headers=headers).status_code == 401
    assert asking.get("/api/models", headers={"authorization": f"Bearer {made}"}).status_code == 200
    opened = asking.get(f"/?token={made}")
    assert opened.status_code == 303 and opened.headers["location"] == "/"
    shared = asking.get(f"/r/abc?token={made}")  # a result's link, as one would send it
    assert shared.status_code == 303 and shared.headers["location"] == "/r/abc"
    for elsewhere in (f"/r/abc/evil?token={made}", f"/r/%2f%2fevil.example?token={made}", f"/api/models?token={made}"):
        assert "location" not in client(whole, follow_redirects=False).get(elsewhere).headers
    other = client(served("text", host="0.0.0.0", token="another-token-of-the-same-machine"))
    assert other.get("/api/models", headers={"cookie": opened.headers["set-cookie"].split(";")[0]}).status_code == 401
    assert "HttpOnly; SameSite=Strict" in opened.headers["set-cookie"]
    assert asking.get("/api/models").status_code == 200  # the cookie came along
    assert asking.get("/api/models", headers={"origin": "http://evil.example"}).status_code == 403


# How much


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels, and holds a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(60_000, 60_000), (5001, 5001), (2**31 - 1, 1), (0, 5)])
def test_picture_bombs_are_refused_before_they_are_decoded(
    ask: TestClient, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    refused = ask.post("/api/images", content=bomb(*size))
    assert refused.status_code == 422 and ("pixels" in refused.json()["error"] or "image" in refused.json()["error"])


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a" + bytes(50), b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", png()[:60], NASTY.encode()],
)
def test_what_is_no_picture_of_a_known_kind_is_refused(ask: TestClient, content: bytes) -> None:
    refused = ask.post("/api/images", content=content, headers={"content-type": "image/png"})
    assert refused.status_code == 422 and "JPEG, PNG, WEBP" in refused.json()["error"]
    with pytest.raises(BadInput):
        opened_picture(png(form="TIFF"))


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(ask: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a few bytes, and goes over all pixels: 400 of them kept the server busy for a minute."""
    from PIL import Image, ImageFile

    written = BytesIO()
    Image.new("L", (64, 64), 128).save(written, "JPEG", progressive=True)
    plain = written.getvalue()
    assert ask.post("/api/images", content=plain).status_code == 200
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    many = plain[:-2] + plain[plain.rindex(b"\xff\xda") : -2] * 50 + plain[-2:]
    refused = ask.post("/api/images", content=many)
    assert refused.status_code == 422 and "more than 50 scans" in refused.json()["error"]


def test_a_body_whose_client_left_is_not_taken_for_whole() -> None:
    messages = iter([{"type": "http.request", "body": b"{}", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    guard = RequestGuard(lambda *_: pytest.fail("it came through"), "127.0.0.1", None)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b""}
    asyncio.run(guard(scope | {"headers": [HOST]}, receive, send))
    assert sent[0]["status"] == 413


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 256 connections may upload 20 MB: together they took 5 GB. Questions are answered all the same."""
    for name, most in (("LARGEST_BODY", 100), ("LARGEST_UPLOAD", 900), ("MOST_HELD", 1000)):
        monkeypatch.setattr(safety, name, most)

    async def scenario() -> list[int]:
        go, statuses = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (go.wait() if (await receive())["body"].startswith(b"wait") else asyncio.sleep(0))
            await send(START)

        async def ask(path: str, body: bytes) -> None:
            pieces = iter([body[:50], body[50:]])

            async def receive() -> Any:
                piece = next(pieces)
                return {"type": "http.request", "body": piece, "more_body": piece == body[:50]}

            async def send(message: Any) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [HOST]}
            await guard(scope, receive, send)

        guard = RequestGuard(app, "127.0.0.1", None)
        first = [asyncio.create_task(ask("/api/images", b"wait".ljust(450))) for _ in range(2)]
        await asyncio.sleep(0)
        await ask("/api/images", b"x" * 450)
        await ask("/api/explain", b"x" * 90)
        go.set()
        await asyncio.gather(*first)
        await ask("/api/images", b"x" * 450)
        assert guard.held == 0
        return statuses

    assert asyncio.run(scenario()) == [429, 200, 200, 200, 200]


def test_bodies_beyond_their_limit_are_refused(ask: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "LARGEST_BODY", 1000)
    monkeypatch.setattr(safety, "LARGEST_UPLOAD", 2000)
    assert ask.post("/api/explain", content=b"x" * 1001).status_code == 413
    assert ask.post("/api/images", content=b"x" * 2001).status_code == 413
    assert ask.post("/api/images", content=iter([b"x" * 900] * 3)).status_code == 413  # nothing was announced
    assert ask.post("/api/explain", content=b"", headers={"content-length": "many"}).status_code == 400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": {"text": "x" * 20_001}}, "20000"),
        ({"options": {"steps": 10**6}, "method": "integrated_gradients"}, "10000"),
        ({"options": {"batch_size": 3}}, "not an option"),
        ({"options": {"nothing": 3}}, "nothing"),
        ({"input": {"text": "a", "prompt": "b"}}, "one of"),
        ({"input": {}}, "one of"),
        ({"input": {"text": "anna", "row": {"age": 1}}}, "one of"),
        ({"input": {"prompt": "anna", "second": "bob"}}, "pair of texts"),
        ({"input": {"text": "anna", "erased": [1]}}, "patches of an image"),
        ({"input": {"text": "anna", "answer": "bob"}}, "language models"),
        ({"input": {"sound": "abc"}}, "model of text"),
        ({"target": 2.5}, "target"),
        ({"input": {"text": "  "}}, "empty"),
        ({"method": "__import__"}, "unknown method"),
        ({"method": ["saliency"] * 41}, "40"),
        ({"target": "none such"}, "none such"),
        ({"target": 10**30}, "target"),
        ({"model": "none such"}, "unknown model"),
        ({"edited_from": "../../etc/passwd"}, "edited_from"),
        ({"edited_from": "nothing"}, "unknown result"),
        ({"trust_remote_code": True}, "not permitted"),
        ({"input": {"row": {"age": 3}}}, "model of text"),
        ({"input": {"image": "abc"}}, "model of text"),
        ({"model": "image", "input": {"text": "/etc/passwd"}}, "model of image"),
        ({"model": "image", "input": {"image": "0" * 24}}, "unknown image"),
        ({"model": "image", "input": {"sample": 99}}, "99 does not exist"),
        ({"model": "table", "input": {"row": {NASTY: NASTY}}}, "missing"),
        ({"model": "table", "input": {"row": {"age": 10**400}}}, "missing"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(ask: TestClient, change: dict[str, Any], words: str) -> None:
    refused = ask.post("/api/explain", json=asked() | change)
    assert refused.status_code == 422 and words in refused.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/r/../../etc/passwd",
        "/r/%2e%2e%2fpasswd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/api/images/..%2f..%2fx",
    ],
)
def test_paths_lead_nowhere(ask: TestClient, path: str) -> None:
    assert ask.get(path).status_code in (404, 422)


def test_models_are_not_loaded_by_name_unless_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = served("text")
    refused = client(closed).post("/api/models", json={"name": "org/model"})
    assert refused.status_code == 422 and "--allow-models" in refused.json()["error"]
    loaded: list[str] = []
    opened = served("text", loader=lambda name: loaded.append(name) or served("image").models["image"])  # type: ignore[func-returns-value]
    asking = client(opened)
    for name in ("/etc", "../up", "a/b/c", "~/model", ".hidden", "a\\b", "a/../b", "https://x/y", "x" * 300, ""):
        assert asking.post("/api/models", json={"name": name}).status_code == 422
    assert loaded == [] and asking.post("/api/models", json={"name": "org/model"}).status_code == 200
    assert loaded == ["org/model"]
    opened.jobs.close()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="cannot be loaded from here"):  # transformers would take the folder
        hub_model("here")


def test_markup_stays_text(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked(input={"text": f"{NASTY} anna"}, target="<b>maybe</b>")).json()
    assert NASTY[:20] in told["title"] and told["views"][0]["data"]["prediction"]["label"] in (
        "no",
        "yes",
        "<b>maybe</b>",
    )
    page = ask.get(f"/api/results/{told['id']}/export?format=html").text
    assert "<img src=x" not in page and "<b>maybe</b>" not in page
    compared = {"model": "text", "inputs": [{"text": f"{NASTY} anna"}], "methods": ["saliency"], "wait": 60}
    assert "<img src=x" not in ask.post("/api/compare", json=compared).json()["html"]


def test_words_of_a_table_are_no_formulas(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked("table")).json()
    from whyformer.serve.drawn import _harmless

    assert [_harmless(v) for v in ("=1+1", "@x", "-2", "word", 3.5)] == ["'=1+1", "'@x", "'-2", "word", 3.5]
    assert ask.get(f"/api/results/{told['id']}/export?format=csv").text.startswith("unit,score")


# Nonsense. Jobs of a question before run on in a thread, and libraries draw numbers there while the next is made up.

OTHERS_DRAW = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["\ud800", NASTY, TEXT])
)
ANY = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "model input method target versus options units seed wait result results inputs name methods item thorough generate"
).split()
POSTS = "/api/explain /api/predict /api/compare /api/heads /api/trust /api/models /api/images /api/sounds".split()
GETS = (
    "/api/results /api/methods /api/samples /api/jobs/{} /api/results/{} /api/results/{}/export /r/{} "
    "/api/images/{} /api/sounds/{}"
).split()

VALUES = st.text(max_size=8) | st.sampled_from(["text", "0", "nan", "1e400"])
QUERY = st.dictionaries(st.sampled_from(["search", "limit", "before", "model", "number", "format"]), VALUES, max_size=3)


def dumped(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()  # NaN and halves of characters as browsers would not send them


@OTHERS_DRAW
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=UNCHECKED)
@given(st.sampled_from(POSTS), st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=4), st.booleans(), st.booleans())
def test_no_body_is_a_500(ask: TestClient, path: str, changes: dict[str, Any], valid: bool, text: bool) -> None:
    body: Any = {"model": "text", "input": {"text": TEXT}} if valid else {}
    if valid and path == "/api/compare":
        body = {"model": "text", "inputs": [{"text": "anna"}], "methods": ["saliency"]}
    sent = dumped(body | changes | ({"input": {"text": changes.get("input")}} if text else {}))
    answered = ask.post(path, content=sent, headers={"content-type": "application/json"})
    assert answered.status_code < 500 and answered.json() is not None


@OTHERS_DRAW
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=UNCHECKED)
@given(st.sampled_from(GETS), st.text(max_size=12), QUERY, st.sampled_from(["GET", "DELETE", "PUT", "OPTIONS"]))
def test_no_address_is_a_500(ask: TestClient, path: str, name: str, query: dict[str, str], verb: str) -> None:
    from urllib.parse import quote

    answered = ask.request(verb, path.format(quote(name, safe="")), params=query)
    assert answered.status_code < 500


@OTHERS_DRAW
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=UNCHECKED)
@given(st.binary(max_size=64), st.sampled_from(POSTS))
def test_no_bytes_are_a_500(ask: TestClient, body: bytes, path: str) -> None:
    for content in (body, b"[" * 5000 + body, b'{"model": ' + b"9" * 5000 + b"}"):
        assert ask.post(path, content=content, headers={"content-type": "application/json"}).status_code < 500


# Connections without a request


def closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection within a generous time."""
    connection.settimeout(60)
    with suppress(ConnectionResetError):
        return not connection.recv(1)
    return True


HEADERS = b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HOST = (b"host", b"localhost")
START = {"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]}


class Crowd:
    """An application, and connections to it. While it is ``held``, they arrive, and none is accepted or read."""

    def __init__(self, many: ExitStack) -> None:
        self.many, self.stuck, self.free = many, threading.Event(), threading.Event()
        self.port = urlsplit(many.enter_context(running(self))).port

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/stuck":
            self.stuck.set()
            self.free.wait(60)
        elif scope["type"] == "http" and scope["path"] == "/long":
            await send(START)
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while scope["type"] == "http" and (message := await receive())["type"] == "http.request":
            if not message["more_body"] and scope["path"] != "/long":
                await send(START)
                await send({"type": "http.response.body", "body": b"whole"})

    def come(self, number: int = 1, sent: bytes = b"") -> list[socket.socket]:
        made = [self.many.enter_context(socket.create_connection(("127.0.0.1", self.port))) for _ in range(number)]
        for each in made:
            each.sendall(sent)
        return made

    def come_and_go(self, number: int) -> None:
        for each in self.come(number):
            each.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.come(1, GET.replace(b"/ ", b"/stuck "))
        assert self.stuck.wait(60)
        yield
        self.free.set()


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    monkeypatch.setattr(safety, "MOST_PER_ADDRESS", 6)
    for name in ("HEADERS_WITHIN", "BODY_WITHIN"):  # none is closed because it takes long
        monkeypatch.setattr(safety, name, 600.0)
    with ExitStack() as many:
        yield Crowd(many)


def answered(one: socket.socket, rest: bytes = b"") -> bool:
    """Whether a request is answered after the rest of it was sent."""
    one.settimeout(60)
    with suppress(ConnectionError):
        one.sendall(rest)
        return b"whole" in b"".join(iter(lambda: one.recv(4096), b""))
    return False


@pytest.mark.parametrize("sent", [0, 1, 30, 60], ids=["nothing", "a byte", "headers", "half a body"])
def test_a_request_from_before_a_flood_of_silent_connections_is_answered(crowd: Crowd, sent: int) -> None:
    request = GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 20\r\n\r\n" + b"x" * 20)
    (owner,) = crowd.come(1, request[:sent])
    assert answered(*crowd.come(1, GET))  # what was sent before is read by now
    flood = crowd.come(20)
    assert closed(flood[5]) and answered(owner, request[sent:])


def test_connections_that_were_closed_make_room_before_one_that_is_silent(crowd: Crowd) -> None:
    with crowd.held():
        crowd.come_and_go(10)
        (owner,) = crowd.come()
        crowd.come_and_go(10)
    assert answered(owner, GET)


def test_requests_that_have_arrived_unread_are_answered(crowd: Crowd) -> None:
    with crowd.held():
        crowd.come(10)
        owners = crowd.come(3, GET)
        crowd.come(30)
    assert all(map(answered, owners))


def test_the_work_for_a_flood_grows_as_its_length(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each connection, every other one that had arrived was looked at: the event loop was held up for minutes."""
    looks: list[int] = []
    unread = safety.BoundedProtocol.unread.fget
    monkeypatch.setattr(safety.BoundedProtocol, "unread", property(lambda self: looks.append(1) or unread(self)))
    monkeypatch.setattr(safety, "MOST_PER_ADDRESS", 50)
    with crowd.held():
        crowd.come_and_go(100)
        crowd.come(100, b"G")
        (owner,) = crowd.come(1, GET)
    assert answered(owner) and len(looks) < 500


def test_a_request_beyond_those_at_work_gets_503_and_no_reset(crowd: Crowd) -> None:
    for each in crowd.come(6, GET.replace(b"/ ", b"/long ")):
        assert each.recv(4096)
    (owner,) = crowd.come(1, GET)
    assert owner.makefile("rb").readline().startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("begun", [[b""], [b"", b"GET / HTTP/1.1\r\nHost: ", HEADERS]], ids=["nothing", "beginnings"])
def test_silent_connections_lock_nobody_out(begun: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "MOST_PER_ADDRESS", 4)
    for name in ("HEADERS_WITHIN", "BODY_WITHIN"):  # none is closed because it takes long
        monkeypatch.setattr(safety, name, 600.0)
    with up(served("text")) as at, ExitStack() as many:
        port = urlsplit(at).port
        flood = [many.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(12)]
        for number, one in enumerate(flood):
            with suppress(OSError):
                one.sendall(begun[number % len(begun)])
        with urllib.request.urlopen(f"{at}/api/models", timeout=60) as told:
            assert told.status == 200
        left, last = set(flood), time.monotonic() + 60
        while len(left) > 3 and time.monotonic() < last:
            left -= {one for one in select.select(left, [], [], 1)[0] if closed(one)}
        # Which of those that have begun make room depends on what has arrived. Of the others, the first came before the
        # crowd; the oldest of the rest make room.
        assert len(left) <= 3 and (len(begun) > 1 or left <= {*flood[:2], *flood[9:]})


@pytest.mark.parametrize(
    "sent", ["", "GET / HTTP/1.1\r\n", "POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_request_that_does_not_come_is_not_waited_for(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "HEADERS_WITHIN", 0.1)
    monkeypatch.setattr(safety, "BODY_WITHIN", 0.2)
    with up(served("text")) as at, socket.create_connection(("127.0.0.1", urlsplit(at).port)) as one:
        one.sendall(sent.encode())
        assert closed(one)


def test_two_lengths_of_a_body_are_refused(ask: TestClient) -> None:
    both = {"transfer-encoding": "chunked", "content-length": "3"}
    refused = ask.post("/api/explain", content=iter([b"{}"]), headers=both)
    assert refused.status_code == 400 and refused.headers["connection"] == "close"


def test_only_http_is_served() -> None:
    guard = RequestGuard(lambda *_: pytest.fail("it came through"), "127.0.0.1", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only http"):
        asyncio.run(guard({"type": "websocket"}, None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["method", "methods"])  # the second is the old name
def test_methods_to_compare_have_the_name_that_one_to_explain_has(name: str) -> None:
    body = {"model": "demo", "inputs": [{"text": TEXT}], name: ["shap", "grad_sam"]}
    assert messages.Compare.model_validate(body).methods == ["shap", "grad_sam"]
