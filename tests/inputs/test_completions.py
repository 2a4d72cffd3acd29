"""A model behind a completions server: the log-probabilities are the model's own, and what goes wrong is said."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.support.completions import ANSWER, ELSE, FLOOR, WEIGHTS, Server, known, serving
from whyformer.errors import BadInput, ModelFailed, NotAllowed, NotOffered
from whyformer.inputs import completions, connection

PROMPT = "The capital of France, on a river, is not Berlin but"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setattr(connection, "PAUSE", 0.001)
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(serving(Server(**how)))


Serve = Callable[..., Server]

DIALECTS: list[dict[str, Any]] = [
    {},
    {"least": 1},  # one more token is generated, and is not the answer's
    {"begins": True},  # vLLM: offsets are off by the letters of the token that begins a text
    {"begins": True, "sentencepiece": True, "least": 1},
    {"models": ()},  # a single model without a name
]


@pytest.mark.parametrize("how", DIALECTS, ids=str)
def test_the_log_probability_of_an_answer_in_every_dialect(serve: Serve, how: dict[str, Any]) -> None:
    server = serve(**how)
    asked = wf.CompletionServer(server.url)
    answers = [ANSWER, f"{ANSWER}, of course", " Rome"]
    assert asked([PROMPT] * 3, answers) == pytest.approx([known(PROMPT, a) for a in answers])
    across = asked(["France is "], ["Paris"])  # a token across the border is the answer's
    assert across == pytest.approx([FLOOR + WEIGHTS["France"]])
    assert asked.model == (server.models[0] if server.models else None)
    assert all(body.get("model") == asked.model for body in server.bodies)


def test_each_word_scores_what_the_model_gives_it(serve: Serve) -> None:
    server = serve()
    asked = wf.CompletionServer(server.url, "tiny")
    results = wf.explain(asked, ("The capital of France? Not Berlin.", ANSWER), method=["occlusion", "shap"])
    for explanation in results.values():
        expected = [WEIGHTS.get(label, 0.0) for label in explanation.units.labels]
        np.testing.assert_allclose(explanation.scores, expected, atol=1e-5)
        assert explanation.value == pytest.approx(FLOOR + 2.0 + 1.0 - 1.0, abs=1e-5)
        assert (explanation.scalar, explanation.target.label) == ("log_probability", ANSWER)
        assert explanation.model == "tiny (asked)", "what the server calls it"
    assert results["shap"].base == pytest.approx(FLOOR, abs=1e-5), "a line break stands where nothing is left"


def test_so_many_requests_are_sent_at_a_time(serve: Serve) -> None:
    server = serve(gate=threading.Barrier(3))
    assert len(wf.CompletionServer(server.url, "tiny", parallel=3)([PROMPT] * 6, [ANSWER] * 6)) == 6
    assert server.at_once == 3


def test_every_text_is_sent_once(serve: Serve) -> None:
    server = serve()
    asked = wf.CompletionServer(server.url, "tiny")
    explainer = wf.Explainer(asked)
    explanation = explainer.explain((PROMPT, ANSWER), method="occlusion")
    assert explanation.cost.forwards == asked.requests == len(set(server.texts)) == len(explanation.units) + 1
    assert explanation.cost.setup_forwards == 0
    explainer.explain((PROMPT, ANSWER), method=["occlusion", "random"])
    assert asked.requests == len(explanation.units) + 1


def test_what_is_sent(serve: Serve) -> None:
    server = serve(key="secret")
    asked = wf.CompletionServer(f"{server.url}/v1/", key="secret")
    wf.explain(asked, ("France, a country.", ANSWER), method="occlusion")
    assert server.texts[0] == f"France, a country.{ANSWER}"
    without_each = (", a country.", "France a country.", "France, country.", "France, a.", "France, a country")
    assert sorted(server.texts[1:]) == sorted(f"{prompt}{ANSWER}" for prompt in without_each)
    assert {(b["echo"], b["logprobs"], b["max_tokens"]) for b in server.bodies} == {(True, 1, 0)}
    assert "secret" not in repr(asked)


def test_characters_of_several_tokens() -> None:
    text, tokens = "né 😀 ok", ["<s>", "n", "\ufffd", "\ufffd", " ", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", " ok", "!"]
    assert completions._aligned(text, tokens) == [0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 7]
    assert completions._aligned(text, ["some", "thing", "else"]) is None


def test_what_the_model_would_say(serve: Serve) -> None:
    asked = wf.CompletionServer(serve().url)
    answer = asked.generate(PROMPT, 2)
    assert answer == f"{ANSWER}."
    written = wf.explain(asked, PROMPT, generate=2)
    assert written.target.label == answer
    assert written.value == pytest.approx(known(PROMPT, ANSWER) + ELSE, abs=1e-5)
    np.testing.assert_array_equal(written.scores, wf.explain(asked, (PROMPT, answer)).scores)


def test_a_busy_server_is_asked_again(serve: Serve) -> None:
    server = serve(failing=[429, 503, 500])
    asked = wf.CompletionServer(server.url, "tiny", retries=3)
    assert asked([PROMPT], [ANSWER]) == pytest.approx([known(PROMPT, ANSWER)])
    assert asked.requests == 4
    server.failing = [429] * 2
    with pytest.raises(ModelFailed, match=r"2 tries \(HTTP 429"):
        wf.CompletionServer(server.url, "tiny", retries=1)([PROMPT], [ANSWER])


def test_a_lost_connection_is_tried_again(serve: Serve) -> None:
    server = serve(dropping=2)
    asked = wf.CompletionServer(server.url, "tiny", retries=2)
    assert asked([PROMPT], [ANSWER]) == pytest.approx([known(PROMPT, ANSWER)])
    server.dropping = 2
    with pytest.raises(ModelFailed, match=r"did not answer in 2 tries \(RemoteDisconnected"):
        wf.CompletionServer(server.url, "tiny", retries=1)([PROMPT], [ANSWER])


def test_how_long_a_server_wants_to_be_left_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(connection.time, "sleep", pauses.append)
    server = serve(failing=[503] * 5, headers={"Retry-After": "7"})
    wf.CompletionServer(server.url, "tiny", retries=5)([PROMPT], [ANSWER])
    server.failing, server.headers = [503] * 3, {"Retry-After": "²"}  # a digit, and no number
    wf.CompletionServer(server.url, "tiny", retries=5)([PROMPT], [ANSWER])
    assert pauses == [7.0] * 5 + [0.001, 0.002, 0.004]


def test_a_reply_without_end_is_not_read_to_its_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LARGEST_REPLY", 2**20)
    server = serve(raw=b'{"choices": [' + b" " * 2**22 + b"]}")
    with pytest.raises(ModelFailed, match="more than 1 MB"):
        wf.CompletionServer(server.url, "tiny", retries=0)([PROMPT], [ANSWER])


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"with_logprobs": False}, NotOffered, "no log-probabilities.*vLLM.*ChatServer"),
        ({"echoes": False, "least": 1}, NotOffered, "does not repeat the text.*echo"),
        ({"key": "secret"}, BadInput, "401.*key="),
        ({"failing": [404]}, BadInput, "404.*address.*model"),
        ({"failing": [302], "headers": {"Location": "http://127.0.0.1:1/v1/completions"}}, BadInput, "another address"),
        ({"failing": [418]}, ModelFailed, "418"),
        ({"raw": b"<html>"}, ModelFailed, "not JSON"),
        ({"raw": b"[]"}, ModelFailed, "without choices"),
        pytest.param({"raw": b"[" * 100_000}, ModelFailed, "not JSON", id="nested"),
    ],
    ids=str,
)
def test_what_goes_wrong_is_said(serve: Serve, how: dict[str, Any], error: type[Exception], words: str) -> None:
    server = serve(**how)
    with pytest.raises(error, match=words):
        wf.explain(wf.CompletionServer(server.url, "tiny"), (PROMPT, ANSWER))


def test_a_server_that_refuses_echo_is_told_from_a_broken_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "Setting 'echo' and 'logprobs' at the same time is not supported for this model."
    server = serve(failing=[400])
    monkeypatch.setattr(connection.Refused, "__str__", lambda self: f"HTTP 400: {refusal}")
    with pytest.raises(NotOffered, match=r"is not supported.*vLLM returns them"):
        wf.CompletionServer(server.url, "tiny")([PROMPT], [ANSWER])


def test_nobody_listens() -> None:
    # The socket is bound, so that no other process takes its port, and does not listen.
    with socket.socket() as closed, pytest.raises(ModelFailed, match=r"no server was reached.*Refused.*start it"):
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        wf.explain(wf.CompletionServer(f"http://127.0.0.1:{port}"), (PROMPT, ANSWER))


def test_several_models_are_named(serve: Serve) -> None:
    server = serve(models=("small", "large"))
    with pytest.raises(BadInput, match=r"2 models.*small, large"):
        wf.explain(wf.CompletionServer(server.url), (PROMPT, ANSWER))
    assert wf.CompletionServer(server.url, "large")([PROMPT], [ANSWER]) == pytest.approx([known(PROMPT, ANSWER)])


def test_whatever_a_server_calls_its_model(serve: Serve) -> None:
    name = "or\0g/\x1b[31mtiny \ud800"
    server = serve(models=(name,))
    explanation = wf.explain(wf.CompletionServer(server.url), ("France", ANSWER))
    assert explanation.model == "or\ufffdg/\ufffd[31mtiny \ufffd (asked)"
    assert {body["model"] for body in server.bodies} == {name}


def test_where_the_answer_would_begin_the_text_something_stands_before_it(serve: Serve) -> None:
    server = serve()
    asked = wf.CompletionServer(server.url, "tiny", start="France,")
    assert asked([""], [ANSWER]) == pytest.approx([FLOOR + WEIGHTS["France"]])
    assert asked(["Lon"], ["don"]) == pytest.approx([ELSE]), "one token, the first of the text"
    assert server.texts == [f"France,{ANSWER}", "London", "France,London"]
    with pytest.raises(NotOffered, match=r"no log-probability.*start='x'"):
        wf.CompletionServer(server.url, "tiny", start="x")([""], ["y"])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"url": "localhost:8000"}, "not the address"),
        ({"url": "http://[::1"}, "not the address"),
        ({"url": "http://local host"}, "not the address"),
        ({"url": "http://me:word@localhost"}, "as key="),
        ({"url": "http://localhost", "key": "two\nlines"}, "bearer token"),
        ({"url": "http://localhost", "parallel": 0}, "parallel=0"),
        ({"url": ""}, "url=''"),
    ],
    ids=str,
)
def test_what_it_is_not_given(how: dict[str, Any], words: str) -> None:
    with pytest.raises((BadInput, NotAllowed), match=words) as refusal:
        wf.CompletionServer(**how)
    assert "two" not in str(refusal.value) and "word@" not in str(refusal.value)
