"""A chat server without log-probabilities: values are shares of sampled answers, with intervals that cover."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import whyformer as wf
from tests.support.completions import Server, serving
from tests.views.samples import still
from whyformer.errors import BadInput, ModelFailed, NotAllowed, NotOffered
from whyformer.evidence import ABOUT_95, difference_interval, share_interval
from whyformer.inputs import connection
from whyformer.inputs.completions import exact, f1

PROMPT = "Paris is the capital. It has a river. Cats sleep. Which city?"
CHANCES = {"Paris": 0.6, "river": 0.3}
ANSWER = "It is Paris."
DOCUMENTS = {"atlas": "Paris is the capital. It has a river.", "note": "A cat sat on the mat."}
Serve = Callable[..., Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(connection, "PAUSE", 0.001)
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(serving(Server(**{"chances": CHANCES, **how})))


@pytest.mark.parametrize(
    ("given", "sampled", "same", "shared"),
    [
        ("The Paris.", "paris", 1, 1),
        ("It is Paris", "It is Rome", 0, 2 / 3),
        ("one two two", "two three two two", 0, 4 / 7),
        ("Paris", "", 0, 0),
        ("!", "?", 1, 1),
    ],
)
def test_matches(given: str, sampled: str, same: float, shared: float) -> None:
    assert exact(given, sampled) == same
    assert f1(given, sampled) == pytest.approx(shared)


def test_the_value_of_an_answer_is_its_share(serve: Serve) -> None:
    server = serve()
    asked = wf.ChatServer(server.url, samples=20, match="exact")
    log_shares = asked([PROMPT, "river", "Which?"], [ANSWER] * 3)
    assert np.exp(log_shares) == pytest.approx([0.9, 0.3, 0], abs=1e-9)
    assert asked([PROMPT], ["I do not know"]) == pytest.approx([math.log(0.1)])
    assert len(server.bodies) == 3, "no prompt is sent twice, and one request has all its answers"
    body = server.bodies[0]
    assert (body["n"], body["temperature"], body["max_tokens"], body["model"]) == (20, 1.0, 256, "tiny")


def test_a_sampled_answer_counts_by_its_best_sentence_and_without_thoughts(serve: Serve) -> None:
    server = serve(chances={"": 1.0}, says="<think>It is Rome.</think>Well. It is Paris.")
    asked = wf.ChatServer(server.url, samples=2, match="exact")
    assert asked.share(PROMPT, ANSWER) == 1
    assert asked.share(PROMPT, "Well. It is Paris.") == 1
    assert asked.share(PROMPT, "It is Rome.") == 0


def test_a_match_of_ones_own(serve: Serve) -> None:
    asked = wf.ChatServer(serve().url, samples=10, match=lambda given, sampled: 0.5 * ("Paris" in sampled))
    assert asked.share(PROMPT, "anything") == pytest.approx(0.45)
    with pytest.raises(BadInput, match="match returned 3"):
        wf.ChatServer(serve().url, samples=2, match=lambda given, sampled: 3).share(PROMPT, ANSWER)


@pytest.mark.parametrize("samples", [10, 40])
def test_sentences_score_what_they_add_to_the_share(serve: Serve, samples: int) -> None:
    server = serve()
    asked = wf.ChatServer(server.url, "tiny", samples=samples, match="exact")
    explanation = wf.explain(asked, (PROMPT, ANSWER), method="occlusion", units="sentence")
    np.testing.assert_allclose(explanation.scores, [0.6, 0.3, 0, 0], atol=1e-6)
    assert (explanation.scalar, explanation.value) == ("probability", pytest.approx(0.9))
    assert explanation.prediction.label == explanation.target.label == ANSWER
    assert explanation.errors is not None
    low, high = difference_interval(np.full(4, 0.9), np.array([0.3, 0.6, 0.9, 0.9]), samples)
    half = ABOUT_95 * explanation.errors
    np.testing.assert_allclose(half, np.maximum(explanation.scores - low, high - explanation.scores), atol=1e-5)
    assert asked.requests == explanation.cost.forwards == 5
    assert f"{5 * samples} answers; 5 requests, 35 prompt tokens" in explanation.warnings[0]
    assert wf.explain(asked, (PROMPT, ANSWER), units="sentence").method == "occlusion"
    assert asked.requests == 5, "answers are stored"


@pytest.mark.parametrize(
    ("how", "requests"),
    [
        ({"several": False}, 1 + 9),  # the first reply has one answer
        ({"refuses": ("n",)}, 1 + 10),
        ({"refuses": ("max_tokens", "temperature")}, 3),
        ({"failing": [200, 429, 503], "dropping": 1}, 4),
    ],
    ids=str,
)
def test_servers_that_support_less(serve: Serve, how: dict[str, Any], requests: int) -> None:
    server = serve(**how)
    asked = wf.ChatServer(server.url, "tiny", samples=10, match="exact")
    assert asked.share(PROMPT, ANSWER) == pytest.approx(0.9)
    assert asked.requests == requests
    assert {"max_completion_tokens", "max_tokens"} & server.bodies[-1].keys()
    before = asked.requests
    asked.share("river", ANSWER)
    assert asked.requests - before == (10 if requests > 9 else 1), "what it does not support is remembered"


def test_a_temperature_that_was_asked_for_is_not_given_up(serve: Serve) -> None:
    with pytest.raises(ModelFailed, match="temperature"):
        wf.ChatServer(serve(refuses=("temperature",)).url, "tiny", temperature=0.5).share(PROMPT, ANSWER)


def test_the_budget_is_known_before_anything_is_sent(serve: Serve) -> None:
    server = serve()
    asked = wf.ChatServer(server.url, "tiny", samples=10, budget=49)
    estimate = wf.Explainer(asked).estimate((PROMPT, ANSWER), method="occlusion", units="sentence")
    assert "5 contexts × 10 answers = 50 answers" in str(estimate)
    with pytest.raises(BadInput, match=r"5 contexts × 10 answers = 50 answers .*budget=49"):
        wf.explain(asked, (PROMPT, ANSWER), method="occlusion", units="sentence")
    with pytest.raises(BadInput, match=r"6 contexts × 10 answers = 60 answers .*budget=49"):
        wf.cite(asked, "Which city?", DOCUMENTS, answer=ANSWER)
    assert not server.bodies
    asked.budget = 60
    wf.cite(asked, "Which city?", DOCUMENTS, answer=ANSWER)
    assert asked.requests == 6


def test_what_was_sampled_before_an_error_is_not_sampled_again(serve: Serve) -> None:
    server = serve(several=False, failing=[200] * 23 + [418])
    asked = wf.ChatServer(server.url, "tiny", samples=10, match="exact", parallel=1)
    with pytest.raises(ModelFailed, match="418"):
        wf.explain(asked, (PROMPT, ANSWER), method="occlusion", units="sentence")
    assert 23 <= sum(server.answered.values()) < 30, "one that was under way may have ended"
    explanation = wf.explain(asked, (PROMPT, ANSWER), method="occlusion", units="sentence")
    np.testing.assert_allclose(explanation.scores, [0.6, 0.3, 0, 0], atol=1e-6)
    assert sum(server.answered.values()) == 50


def test_citations_of_sampled_answers(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    asked = wf.ChatServer(server.url, "tiny", samples=20, match="exact")
    cited = wf.cite(asked, "Which city?", DOCUMENTS, answer="It is Paris. I do not know.")
    assert cited.shares is not None
    np.testing.assert_allclose(cited.shares, [0.9, 0.1])
    np.testing.assert_allclose(cited.drops, [[0.6, 0.3, 0], [-0.6, -0.3, 0]], atol=1e-6)
    np.testing.assert_allclose(cited.document_drops, [[0.9, 0], [-0.9, 0]], atol=1e-6)
    low, high = difference_interval(np.array([0.9, 0.9]), np.array([0.3, 0.6]), 20)
    best, second, _ = cited.sentences[0].citations
    assert (best.low, best.high, second.low) == pytest.approx((low[0], high[0], low[1]))
    assert cited.influenced == (True, False) and np.isnan(cited.log_probabilities).all()
    assert cited.usage == {"requests": 6, "prompt_tokens": 42, "completion_tokens": 360}, "once for both sentences"
    assert [row["low"] for row in cited.table[:1]] == pytest.approx([low[0]])
    again = wf.load(cited.save(tmp_path / "cited.json"))
    assert repr(again.sentences) == repr(cited.sentences) and again.samples == 20
    page = still(cited.to_html())
    assert "+0.60 (" in page and "20 answers per context" in page and "log-probability" not in page


def test_citations_of_the_servers_own_answer(serve: Serve) -> None:
    chat = wf.cite(wf.ChatServer(serve(chances={"Paris": 1.0}).url, samples=10), "Which city?", DOCUMENTS)
    assert (chat.answer, chat.influenced) == (ANSWER, (True,))
    plain = wf.cite(wf.CompletionServer(serve().url), "Which city?", DOCUMENTS, generate=2)
    assert (plain.answer, plain.method, plain.samples) == (" Paris.", "occlusion", None)


def test_an_answer_that_is_never_sampled(serve: Serve) -> None:
    asked = wf.ChatServer(serve().url, samples=10, match="exact")
    explanation = wf.explain(asked, (PROMPT, "It is Rome."), method="occlusion", units="sentence")
    assert any("no sampled answer matches 'It is Rome.'" in warning for warning in explanation.warnings)
    cited = wf.cite(asked, "Which city?", DOCUMENTS, answer="It is Rome.")
    assert "no sampled answer matches 'It is Rome.'" in cited.warnings[0]


def test_empty_and_cut_answers_are_counted(serve: Serve) -> None:
    asked = wf.ChatServer(serve(otherwise=None, finish="length", usage=False).url, samples=10)
    assert asked.share(PROMPT, ANSWER) == pytest.approx(0.9)
    assert "10 answers, 1 of them empty, 10 of them cut off at max_tokens=256; " in asked.summary()
    assert "tokens not reported" in asked.summary()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"key": "secret"}, BadInput, r"401.*ChatServer\(url, key="),
        ({"failing": [404]}, BadInput, "404.*address"),
        ({"failing": [429] * 9}, ModelFailed, r"2 tries \(HTTP 429.*ChatServer"),
        ({"raw": b"<html>"}, ModelFailed, "not JSON"),
        ({"raw": b'{"choices": 3}'}, ModelFailed, "without choices"),
        ({"raw": b'{"choices": [3]}'}, ModelFailed, "without choices"),
    ],
    ids=str,
)
def test_what_goes_wrong_is_said(serve: Serve, how: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wf.explain(wf.ChatServer(serve(**how).url, "tiny", retries=1), (PROMPT, ANSWER), units="sentence")


def test_what_it_is_not_given(serve: Serve) -> None:
    with pytest.raises(NotAllowed, match=r"match='close'"):
        wf.ChatServer("http://localhost", match="close")
    with pytest.raises(NotAllowed, match="samples=1"):
        wf.ChatServer("http://localhost", samples=1)
    with pytest.raises(NotOffered, match="no logarithm"):
        wf.explain(wf.ChatServer(serve().url, "tiny"), (PROMPT, ANSWER), scalar="log_odds")


# Intervals: the chance that they cover, computed exactly over all outcomes.

SHARES = np.linspace(0.02, 0.98, 25)


@pytest.mark.parametrize("count", [5, 10, 40])
def test_intervals_of_shares_cover(count: int) -> None:
    low, high = share_interval(np.arange(count + 1) / count, count)
    likely = binom.pmf(np.arange(count + 1)[:, None], count, SHARES)
    covered = (likely * ((low[:, None] <= SHARES) & (high[:, None] >= SHARES))).sum(0)
    assert covered.mean() > 0.94 and covered.min() > 0.8
    assert low[0] == 0 and high[-1] == 1 and (low[1:] > 0).all()


@pytest.mark.parametrize("count", [5, 10, 40])
def test_intervals_of_differences_cover(count: int) -> None:
    outcomes = np.arange(count + 1) / count
    low, high = difference_interval(outcomes[:, None], outcomes, count)
    likely = binom.pmf(np.arange(count + 1)[:, None], count, SHARES)
    covered = []
    for one, first in zip(likely.T, SHARES, strict=True):
        for other, second in zip(likely.T, SHARES, strict=True):
            inside = (low <= first - second) & (high >= first - second)
            covered.append(float((one[:, None] * other * inside).sum()))
    assert np.mean(covered) > 0.945 and min(covered) > 0.88
    width = (high - low).mean()
    assert width == pytest.approx(2 * ABOUT_95 * math.sqrt(2 / 6 / count), rel=0.25), (
        "and they are not wide for nothing"
    )


def test_intervals_of_scores_cover_in_repeated_explanations() -> None:
    generator = np.random.default_rng(0)

    class Chat:
        samples = 10

        def __call__(self, prompts: list[str], answers: list[str]) -> list[float]:
            chances = [sum(chance for word, chance in CHANCES.items() if word in prompt) for prompt in prompts]
            return [math.log(hits / 10) if hits else -100.0 for hits in generator.binomial(10, chances)]

    covered = []
    for _ in range(120):
        scores = wf.explain(Chat(), (PROMPT, ANSWER), method="occlusion", units="sentence")
        assert scores.errors is not None
        covered.append(np.abs(scores.scores - [0.6, 0.3, 0, 0]) <= ABOUT_95 * scores.errors)
    assert (np.mean(covered, 0) > 0.92).all()
