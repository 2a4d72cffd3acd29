"""The proxy: replies are the server's, byte for byte, and the field beside them never costs an answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

import whyformer as wf
from tests.proxy.upstream import (
    ANSWER,
    ASKED,
    DOCUMENTS,
    DONE,
    EVENTS,
    QUESTION,
    WHOLE,
    Upstream,
    ask,
    client,
    event,
    model,
    proxy,
    split,
    streaming,
)
from tests.support import completions, language
from whyformer.cli.main import app
from whyformer.errors import BadInput
from whyformer.proxy import relay
from whyformer.proxy import relay as relay_module
from whyformer.proxy.chat import Reply, question_of, read_request
from whyformer.proxy.relay import Citing, Proxy, application
from whyformer.serve.safety import LARGEST_UPLOAD

CHAT = "/v1/chat/completions"
PLAIN = {key: value for key, value in ASKED.items() if key != "whyformer"}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Explanations go on when this is set, or after 20 seconds."""
    go, real = threading.Event(), relay_module.cite
    monkeypatch.setattr(relay_module, "cite", lambda *given, **options: go.wait(20) and real(*given, **options))
    yield go
    go.set()


# Bytes


@pytest.mark.parametrize("content", [PLAIN, ASKED | {"whyformer": {"cite": False}}, ASKED | {"whyformer": {}}])
def test_without_an_explanation_the_bytes_are_the_servers(content: dict[str, Any]) -> None:
    packed = gzip.compress(WHOLE)
    for body, headers in ((WHOLE, {}), (packed, {"content-encoding": "gzip"}), (b"not JSON", {})):
        upstream = Upstream(body[:9], body[9:], **headers, **{"x-request-id": "7"})
        told = client(upstream).send(
            client(upstream).build_request("POST", "/v1/chat/completions", json=content), stream=True
        )
        assert b"".join(told.iter_raw()) == body and told.headers["x-request-id"] == "7"
        (sent,) = upstream.sent
        assert json.loads(sent.content) == PLAIN and str(sent.url) == "http://up.example:8000/v1/chat/completions"
    raw = b'{"messages" :[{"role":"user","content":"\xc3\xa9"}], "seed": 1.0e0 }'
    client(upstream).post("/v1/chat/completions", content=raw)
    assert upstream.sent[-1].content == raw


def test_an_explanation_is_one_more_field_and_that_of_cite() -> None:
    upstream = Upstream(WHOLE[:50], WHOLE[50:])
    told = ask(upstream)
    rest, added = split(told.content)
    assert rest == WHOLE and told.headers["content-length"] == str(len(told.content))
    assert json.loads(told.content)["whyformer"] == added and b"whyformer" not in upstream.sent[0].content
    direct = wf.cite(model(), QUESTION, DOCUMENTS, processor=language.tokenizer(), answer=ANSWER)
    assert [each["text"] for each in added["citations"]] == [each.text for each in direct.sentences]
    for got, known in zip(added["citations"], direct.sentences, strict=True):
        assert ANSWER[got["start"] : got["end"]] == known.text and got["influenced"] == known.influenced
        assert [(s["document"], s["text"]) for s in got["sources"]] == [(c.document, c.text) for c in known.citations]
        assert [s["drop"] for s in got["sources"]] == pytest.approx([c.drop for c in known.citations], abs=1e-4)
        assert [s["cited"] for s in got["sources"]] == [c.cited for c in known.citations]
    assert [each["drop"] for each in added["documents"]] == pytest.approx([d.drop for d in direct.documents], abs=1e-4)
    assert (added["method"], added["model"]) == ("attn_lrp", "small") and added["seconds"] > 0


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_compressed_reply_that_was_not_requested_is_refused_and_not_unpacked(kind: str) -> None:
    bomb = gzip.compress(bytes(2**20))
    told = ask(Upstream(bomb, kind=kind, **{"content-encoding": "gzip"}))
    assert told.status_code == 502 and "compressed, which was not requested" in told.text and len(told.content) < 200


def test_a_reply_beyond_the_limit_is_passed_on_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LARGEST_REPLY", 50)
    read: list[int] = []
    monkeypatch.setattr(Reply, "read", lambda self, data, part="": read.append(len(data)))
    told = ask(Upstream(WHOLE[:30], WHOLE[30:60], WHOLE[60:]))
    assert told.content == WHOLE and "8 MB" in told.headers["x-whyformer-error"] and not read
    streamed = ask(streaming(*EVENTS), ASKED | {"stream": True}).content
    field = json.loads(streamed[streamed.index(b'{"object"') :].partition(b"\n\n")[0])["whyformer"]
    assert field == {"error": relay.TOO_LARGE, "reason": "unsupported"} and streamed.endswith(DONE) and len(read) < 2


def test_a_line_that_comes_byte_by_byte_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was there of it was copied for each byte: a few megabytes kept the proxy busy for hours."""
    cut: list[int] = []
    joined = relay._joined
    monkeypatch.setattr(relay, "_joined", lambda lines: cut.append(len(lines)) or joined(lines))
    monkeypatch.setattr(relay, "LONGEST_LINE", 600)
    told = ask(streaming(*[b"x"] * 2000, b"\n\n", DONE), ASKED | {"stream": True}).content
    assert told.startswith(b"x" * 2000 + b"\n\n") and told.endswith(DONE) and len(cut) < 10


def test_an_answer_in_small_pieces_is_joined_once() -> None:
    """All that was there of it was copied for each piece: 8 MB kept the proxy busy for a minute."""
    reply, peaks = Reply(), []
    reply.read_lines([event("x" * 10**6)])
    tracemalloc.start()
    for _ in range(9):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        reply.read_lines([event("y")])
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert min(peaks) < 10**5 and reply.answer.getvalue() == "x" * 10**6 + "y" * 9


@pytest.mark.parametrize("fact", [b"NaN", b"1e999", b"[" * 900 + b"]" * 900, b'{"a": -Infinity}'])
def test_facts_that_json_does_not_have_cost_no_stream(fact: bytes) -> None:
    """The event that repeats them could not be written, and the stream broke off in front of it."""
    first = event("it is paris .").replace(b'"x-1"', b'"x-1", "created": ' + fact)
    told = ask(streaming(first, DONE), ASKED | {"stream": True}).content
    assert told.startswith(first) and told.endswith(DONE) and b'"citations"' in told and told.count(fact) == 1


def test_several_choices_are_said_to_be_there() -> None:
    choices = [{"index": i, "message": {"content": ANSWER}} for i in range(2)]
    _, added = split(ask(Upstream(json.dumps({"choices": choices}).encode())).content)
    assert added["choice"] == 0 and "2 choices: choice 0 alone is explained" in added["warnings"][-1]


def test_the_log_probabilities_of_the_server_explain_without_a_local_model() -> None:
    documents = {"map": "France has a river.", "other": "Berlin is big."}
    reply = json.dumps({"choices": [{"index": 0, "message": {"content": "Paris"}}]}).encode()
    with completions.serving(completions.Server(key="secret")) as server:
        content = PLAIN | {"whyformer": {"cite": True, "documents": documents}}
        made = proxy(Upstream(reply), local=False, key="secret")
        made.citing.server = server.url
        told = TestClient(application(made), base_url="http://localhost").post("/v1/chat/completions", json=content)
        _, added = split(told.content)
    (sentence,) = added["citations"]
    assert (sentence["text"], sentence["start"], sentence["end"]) == ("Paris", 0, 5)
    drops = {source["document"]: source["drop"] for source in sentence["sources"]}
    assert drops == pytest.approx({"map": 2.25, "other": -1.0}, abs=1e-4)
    assert (added["method"], added["model"], sentence["influenced"]) == ("occlusion", "tiny", True)


# Streams


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_field_is_the_event_before_the_last_however_a_stream_is_cut(size: int) -> None:
    whole = b"".join(EVENTS)
    told = ask(streaming(*(whole[i : i + size] for i in range(0, len(whole), size))), ASKED | {"stream": True})
    assert told.headers["content-type"].startswith("text/event-stream")
    before, _, after = told.content.partition(b"data: {" + b'"id":"x-1","model":"tiny","object":')
    chunk, _, end = after.partition(b"\n\n")
    assert before + end == whole and end == DONE
    added = json.loads(b'{"object":' + chunk)
    assert added["choices"] == [] and added["whyformer"]["citations"][0]["text"] == "it is paris ."
    assert ask(streaming(), PLAIN | {"stream": True}).content == whole


@pytest.mark.parametrize("ending", [b"", b"data: [DONE]", b": the end"])
def test_a_stream_may_end_otherwise(ending: bytes) -> None:
    told = ask(streaming(*EVENTS[:-1], ending))
    assert told.content.count(b'"whyformer"') == 1 and told.content.startswith(b"".join(EVENTS[:-1]))
    assert (told.content.endswith(b"}\n\n" + ending)) or ending == b": the end"


def test_events_are_passed_on_before_the_next_one_is_there() -> None:
    """The server writes an event only when the client has the one before, and the explanation waits for nobody."""

    async def exchange() -> list[bytes]:
        upstream, got, arrived = streaming(event("it"), event(" is"), DONE), list[bytes](), asyncio.Condition()

        async def wait(number: int) -> None:
            async with arrived:
                await asyncio.wait_for(arrived.wait_for(lambda: len(got) >= number), 20)

        async def send(message: Any) -> None:
            if message.get("body"):
                async with arrived:
                    got.append(message["body"])
                    arrived.notify_all()

        async def receive() -> Any:
            if not asked:
                await asyncio.Event().wait()
            return asked.pop()

        upstream.wait = wait
        content = json.dumps(ASKED | {"stream": True}).encode()
        asked = [{"type": "http.request", "body": content, "more_body": False}]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "root_path": ""}
        scope |= {"headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http"}  # type: ignore[dict-item]
        await application(proxy(upstream))(scope | {"raw_path": b"/v1/chat/completions"}, receive, send)
        return got

    got = asyncio.run(exchange())
    assert got[:2] == [event("it"), event(" is")] and b'"whyformer"' in got[2] and got[3:] == [DONE]


def test_a_stream_that_breaks_off_breaks_off_for_the_client() -> None:
    for content in (PLAIN, ASKED):
        upstream = streaming(event("it"))
        upstream.error = httpx.ReadError("gone")
        with pytest.raises(Exception) as broken:
            ask(upstream, content)
        # Older starlettes wrap it in a group.
        assert isinstance(getattr(broken.value, "exceptions", [broken.value])[0], httpx.ReadError)
    upstream = Upstream(WHOLE[:40])
    upstream.error = httpx.ReadError("gone")
    assert ask(upstream).status_code == 502


# Failures of the explanation


def test_a_failure_is_said_in_the_field_and_the_answer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **options: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(relay_module, "cite", broken)
    rest, added = split(ask(Upstream()).content)
    assert rest == WHOLE and added == {"error": "RuntimeError: out of memory", "reason": "failed"}
    streamed = ask(streaming(), ASKED | {"stream": True}).content
    assert streamed.endswith(DONE) and b'"reason":"failed"' in streamed
    monkeypatch.setattr(Citing, "added", broken)
    assert split(ask(Upstream()).content) == (WHOLE, {"error": "RuntimeError: out of memory", "reason": "failed"})


def test_a_server_without_log_probabilities_is_not_named_to_clients() -> None:
    made = proxy(Upstream(), local=False)
    made.citing.server = "http://127.0.0.1:9"  # nobody listens there
    rest, added = split(TestClient(application(made), base_url="http://localhost").post(CHAT, json=ASKED).content)
    assert rest == WHOLE and added["reason"] == "failed"
    assert "no server was reached at the server" in added["error"] and "127.0.0.1" not in added["error"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
def test_clients_do_not_see_what_the_server_replied_to_an_explanation(status: int) -> None:
    with completions.serving(completions.Server(key="secret", failing=[status] * 9)) as server:
        made = proxy(Upstream(), local=False, key="secret")
        made.citing.server = server.url
        told = TestClient(application(made), base_url="http://localhost").post(CHAT, json=ASKED)
    _, added = split(told.content)
    assert added["reason"] == "failed" and f"HTTP {status}" in added["error"]
    assert not [word for word in ("secret", "127.0.0.1", "Bearer") if word in added["error"]], added


def test_an_explanation_that_takes_too_long_is_left_out(held: threading.Event) -> None:
    rest, added = split(ask(Upstream(), limits={"seconds": 0.05}).content)
    assert rest == WHOLE and added == {"error": "not explained within 0.05 seconds.", "reason": "time_limit"}


def test_with_a_full_queue_answers_go_on_without_explanations(held: threading.Event) -> None:
    made = proxy(Upstream(), limits={"waiting": 2})
    asked = read_request(json.dumps(ASKED).encode(), False)

    async def all_of_them() -> list[dict[str, Any]]:
        first = asyncio.ensure_future(made.citing.added(asked, ANSWER, None))
        while not made.citing.jobs.lines or made.citing.jobs.lines["citations"].current is None:
            await asyncio.sleep(0.005)  # it runs, and no longer waits
        queued = [asyncio.ensure_future(made.citing.added(asked, ANSWER, None)) for _ in range(2)]
        await asyncio.sleep(0)
        shed = await asyncio.gather(*(made.citing.added(asked, ANSWER, None) for _ in range(3)))
        held.set()
        return [*await asyncio.gather(first, *queued), *shed]

    results = asyncio.run(all_of_them())
    assert [each.get("reason", "cited") for each in results] == ["cited"] * 3 + ["busy"] * 3
    assert results[-1]["error"] == "not explained: 2 answers are waiting for an explanation already."


@pytest.mark.parametrize(
    ("content", "limits", "words"),
    [
        (PLAIN | {"whyformer": {"cite": True}}, {}, "the request has no documents"),
        (ASKED, {"longest": 40}, "the limit is 40"),
        (PLAIN | {"documents": ["a"] * 1001, "whyformer": {"cite": True}}, {}, "the limit is 1000"),
        (PLAIN | {"messages": [{"role": "system", "content": "x"}], "whyformer": {"cite": True}}, {}, "user message"),
        (ASKED | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {}, "only texts"),
        (ASKED | {"whyformer": {"cite": True, "documents": [{"txt": "a"}]}}, {}, "one of text, content"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_said(content: Any, limits: dict[str, Any], words: str) -> None:
    rest, added = split(ask(Upstream(), content, limits=limits).content)
    assert rest == WHOLE and added["reason"] == "unsupported" and words in added["error"]


@pytest.mark.parametrize("body", [b"[1]", b"oops", b'{"choices": 3', b'{"whyformer": 1, "choices": []}'])
def test_replies_that_have_no_place_for_a_field_stay_as_they_are(body: bytes) -> None:
    assert ask(Upstream(body)).content == body


def test_an_answer_without_text_is_not_explained() -> None:
    body = b'{"choices":[{"index":0,"message":{"content":null,"tool_calls":[]}},7,{"index":"x"}]}'
    assert split(ask(Upstream(body)).content) == (body, {"error": "the answer has no text.", "reason": "unsupported"})
    assert ask(Upstream(b"{}")).content.startswith(b'{"whyformer":')


# Questions and documents


@pytest.mark.parametrize(
    ("messages", "more", "question", "documents"),
    [
        ([("user", "one\n\ntwo\n \nwho?")], {}, "who?", {"paragraph 1": "one", "paragraph 2": "two"}),
        ([("system", "be kind"), ("tool", "it rains"), ("user", "a\n\nb")], {}, "a\n\nb",
         {"message 1 (system)": "be kind", "message 2 (tool)": "it rains"}),
        ([("user", "q")], {"documents": ["a", {"title": "t", "text": "b"}, {"title": "t", "content": "c"}]}, "q",
         {"document 1": "a", "t": "b", "t (3)": "c"}),
        ([("user", "q")], {"documents": [{"id": "t (2)", "text": "a"}, {"id": "t (2)", "text": "b"}]}, "q",
         {"t (2)": "a", "t (2) (2)": "b"}),
        ([("user", "q")], {"documents": [{"page_content": "a", "metadata": {"source": "x.pdf"}, "id": None},
                                         {"node": {"id_": "n1", "text": "b", "metadata": {}}, "score": 0.5}]}, "q",
         {"x.pdf": "a", "n1": "b"}),
        ([("user", "context")], {"whyformer": {"cite": True, "question": "why?"}}, "why?",
         {"message 1 (user)": "context"}),
    ],
)  # fmt: skip
def test_question_and_documents(
    messages: list[tuple[str, str]], more: dict[str, Any], question: str, documents: dict[str, str]
) -> None:
    content = {"messages": [{"role": role, "content": text} for role, text in messages], **more}
    assert question_of(read_request(json.dumps(content).encode(), True)) == (question, documents)


def test_all_explains_every_answer_unless_the_request_says_no() -> None:
    content = PLAIN | {"messages": [{"role": "user", "content": f"{DOCUMENTS['atlas']}\n\n{QUESTION}"}]}
    assert split(ask(Upstream(), content, everything=True).content)[1]["documents"][0]["name"] == "paragraph 1"
    assert ask(Upstream(), ASKED | {"whyformer": {"cite": False}}, everything=True).content == WHOLE


# Hostile requests


HOSTILE: list[bytes] = [
    b"", b"\xff\xfe", b"null", b"[]", b'"x"', b"{", b"[" * 100_000, b'{"messages":' + b"[" * 100_000,
    b'{"messages": NaN}', b'{"messages": []}', b'{"messages": {}}', b'{"messages": [1]}', b'{"messages": [{}]}',
    b'{"messages": [{"role": 1}]}', b'{"messages": [{"role": "user"}], "n": ' + b"9" * 5000 + b"}",
    b'{"messages": [{"role": "user"}], "model": 1}', b'{"messages": [{"role": "user"}], "stream": "yes"}',
    b'{"messages": [{"role": "user"}], "x": 1e999, "whyformer": {}}',
    *(b'{"messages": [{"role": "user"}], "whyformer": %s}' % field for field in (
        b"null", b"1", b"[]", b'"x"', b"true", b'{"cite": 1}', b'{"cite": "true"}', b'{"other": 1}', b'{"top": 0}',
        b'{"top": 1e9}', b'{"top": true}', b'{"documents": [1]}', b'{"documents": {"": "x"}}', b'{"documents": "x"}',
        b'{"question": 7}', b'{"documents": [%s]}' % b",".join([b'"x"'] * 1001))),
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body[:60].decode("latin-1"))
def test_hostile_bodies_get_4xx_and_are_not_passed_on(body: bytes) -> None:
    upstream = Upstream()
    told = client(upstream).post("/v1/chat/completions", content=body)
    assert told.status_code in (400, 422) and told.json()["error"]["type"] == "invalid_request_error"
    assert not upstream.sent


def test_large_bodies_get_413() -> None:
    upstream = Upstream()
    told = client(upstream).post("/v1/chat/completions", content=b" " * (LARGEST_UPLOAD + 1))
    assert told.status_code == 413 and not upstream.sent


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "\ud800", "a\n\nb"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "documents", "cite", "text", "top"]), inner, max_size=3)
    ),
    max_leaves=12,
)


FUZZED = client(Upstream(b'{"choices":[]}'), local=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    messages=st.lists(st.dictionaries(st.sampled_from(["role", "content"]), JSON), max_size=3), field=JSON, more=JSON
)
def test_any_body_is_a_request_or_a_4xx(messages: Any, field: Any, more: Any) -> None:
    content = json.dumps({"messages": messages, "whyformer": field, "documents": more}).encode()
    told = FUZZED.post("/v1/chat/completions", content=content)
    assert told.status_code in (200, 400, 422)


# Who may ask, and what else is passed on


def test_tokens_and_hosts_are_those_of_serve() -> None:
    token = "a-long-secret-token"
    upstream = Upstream()
    for headers in ({}, {"authorization": "Bearer wrong"}):
        assert ask(upstream, PLAIN, headers, token=token).status_code == 401
    assert ask(upstream, PLAIN, {"host": "evil.example"}).status_code == 403
    assert ask(upstream, PLAIN, {"origin": "http://evil.example"}).status_code == 403
    assert ask(upstream, PLAIN, {"sec-fetch-site": "cross-site"}).status_code == 403
    assert not upstream.sent
    right = {"authorization": f"Bearer {token}", "cookie": f"a={token}"}
    assert ask(upstream, PLAIN, right, token=token).status_code == 200
    assert token not in str(upstream.sent[-1].headers.raw)  # it is for this proxy
    ask(upstream, PLAIN, right, token=token, key="of-the-server")
    assert upstream.sent[-1].headers["authorization"] == "Bearer of-the-server"
    for header in ("Bearer mine", "Basic bWU6bWU="):
        ask(upstream, PLAIN, {"authorization": header})
        assert upstream.sent[-1].headers["authorization"] == header
    assert ask(upstream, PLAIN, {"host": "any.example"}, host="0.0.0.0").status_code == 200


def test_other_paths_are_passed_on_unchanged() -> None:
    upstream = Upstream(b'{"data": []}', **{"x-one": "1"})
    told = client(upstream).get("/v1/models/a%2Fb?x=1&y=%20")
    assert (told.content, told.headers["x-one"]) == (b'{"data": []}', "1")
    assert upstream.sent[0].url.raw_path == b"/v1/models/a%2Fb?x=1&y=%20"
    client(upstream).post(
        "/v1/embeddings", content=b"\x00any", headers={"content-type": "x/y", "accept-encoding": "br"}
    )
    sent = upstream.sent[1]
    assert (sent.content, sent.headers["content-type"], sent.headers["accept-encoding"]) == (b"\x00any", "x/y", "br")
    client(upstream).get("/v1/models", headers={"accept-encoding": ""})
    for path in ("/", "/metrics", "/v2/models"):
        assert client(upstream).get(path).status_code == 404
    count = len(upstream.sent)
    assert client(upstream).get("/v1/%2e%2e/admin").status_code == 400 and len(upstream.sent) == count


@pytest.mark.parametrize(
    "path",
    [
        "..;/admin",
        "..%5cadmin",
        "%252e%252e/admin",
        "a%2f..%2fadmin",
        "..%3b/x",
        "%c0%ae%c0%ae/x",
        "%" + "25" * 7 + "2e./x",
        "%EF%BC%8E%EF%BC%8E/admin",  # wide dots
        "..%ef%bc%8fadmin",  # a wide slash
        "..%23/admin",
        "..%3f/admin",
        "%u002e%U002E/admin",
    ],
)
def test_no_path_leads_out_of_the_api(path: str) -> None:
    upstream = Upstream()
    assert client(upstream, key="of-the-server").get(f"/v1/{path}").status_code == 400 and not upstream.sent


def test_clients_share_no_cookies_and_browsers_get_no_orders() -> None:
    orders = {"set-cookie": "session=of-the-first; Path=/", "access-control-allow-origin": "*"}
    orders |= {"content-security-policy": "script-src *", "x-frame-options": "ALLOWALL", "x-one": "1"}
    orders |= {
        "clear-site-data": '"*"',
        "timing-allow-origin": "*",
        "x-webkit-csp": "script-src *",
        "cross-origin-resource-policy": "cross-origin",
    }
    upstream = Upstream(**orders, **{"connection": "x-private", "x-private": "1"})
    asking = client(upstream)
    headers = {
        "connection": "x-hop",
        "x-hop": "1",
        "x-stays": "1",
        "x-original-url": "/admin",
        "x-rewrite-url": "/admin",
        "x_rewrite_url": "/admin",
        "x-forwarded-for": "127.0.0.1",
        "X-Real_IP": "127.0.0.1",
    }
    for path in (CHAT, "/v1/embeddings"):
        told = asking.post(path, json=PLAIN, headers=headers)
        assert {*orders} & {*told.headers} == {
            "content-security-policy",
            "x-frame-options",
            "x-one",
            "cross-origin-resource-policy",
        }
        assert "x-private" not in told.headers and told.headers["cross-origin-resource-policy"] == "same-origin"
        assert told.headers["x-one"] == "1" and "default-src 'none'" in told.headers["content-security-policy"]
        assert told.headers["x-frame-options"] == "DENY" and "*" not in told.headers["content-security-policy"]
    refused = {"cookie", *headers} - {"connection", "x-stays"}
    assert not any({each.lower() for each in refused} & {*sent.headers} for sent in upstream.sent)
    assert all(sent.headers["x-stays"] == "1" for sent in upstream.sent)


def test_replies_that_contradict_http_reach_the_client_whole() -> None:
    both = Upstream(b"longer", **{"content-length": "1", "transfer-encoding": "chunked"})
    for path in (CHAT, "/v1/embeddings"):
        told = client(both).post(path, json=PLAIN)
        assert told.content == b"longer" and "content-length" not in told.headers
        assert client(Upstream(b"odd", status=999)).post(path, json=PLAIN).status_code == 599


def test_errors_of_the_server_are_the_servers() -> None:
    told = ask(Upstream(b'{"error": "slow down"}', status=429, **{"retry-after": "3"}))
    assert (told.status_code, told.content, told.headers["retry-after"]) == (429, b'{"error": "slow down"}', "3")

    for error, status in ((httpx.ConnectError("x"), 502), (httpx.ReadTimeout("x"), 504)):
        upstream = Upstream()
        upstream.refusal = error
        told = ask(upstream)
        assert told.status_code == status and told.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", "nowhere"], "is not the address of a server"),
        (["--server", "http://x", "--token", "short"], "16 or more"),
        (["--server", "http://x", "--trace-content"], "add --trace"),
        (["--server", "http://x", "--method", "nothing"], "unknown method"),
        (["--server", "http://x", "--key", "a b\n"], "not a bearer token"),
        ([], "Missing option '--server'"),
    ],
)
def test_the_command_refuses_before_it_loads_anything(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logging.basicConfig", lambda **how: None)  # it is for the whole process
    told = CliRunner().invoke(app, ["proxy", *words])
    assert told.exit_code and message in " ".join(told.output.split())


def test_secrets_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logging.basicConfig", lambda **how: None)
    begun: list[Proxy] = []
    monkeypatch.setattr(relay, "run", lambda made, *how: begun.append(made))
    file = tmp_path / "secret"
    file.write_text("a-long-secret-of-a-file\n")
    run = lambda *words, **env: CliRunner().invoke(app, ["proxy", "--server", "http://x", *words], env=env)  # noqa: E731
    run("--token", f"@{file}", "--key", f"@{file}")
    run(WHYFORMER_TOKEN=f"@{file}")
    assert [(made.token, made.key) for made in begun] == [
        ("a-long-secret-of-a-file",) * 2,
        ("a-long-secret-of-a-file", None),
    ]
    assert "cannot be read" in run("--token", "@nowhere").output


def test_a_server_without_an_address_is_refused() -> None:
    with pytest.raises(BadInput, match="user name"):
        Proxy("http://me:secret@up.example", Citing("http://up.example"))
