"""One rule for ranks: report, recommend, compare, the server and badges never contradict each other."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import whyformer as wf
from whyformer.demo import load_sentiment
from whyformer.evaluate.candidate import mean_ranks
from whyformer.evaluate.comparison import MetricScore
from whyformer.evidence import ENOUGH, Standing, tied_places, too_few
from whyformer.registry import get_metric
from whyformer.serve.app import Served, application
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.store import Store

METHODS = ["two_ended", "grad_sam", "raw_attention"]
FILMS, WORDS = ("film", "book", "plot", "cast", "end"), ("good", "bad", "dull", "great", "witty", "boring")
ENOUGH_TEXTS = [f"the {film} is {word}" for film in FILMS for word in WORDS]
RANKED = re.compile(r"\b(best|1st|2nd|3rd|beats|comes first|first place)\b")


@pytest.fixture(scope="module")
def explainer() -> wf.Explainer:
    return wf.Explainer(*load_sentiment())


@pytest.fixture(scope="module", params=[5, ENOUGH])
def asked(request: pytest.FixtureRequest, explainer: wf.Explainer) -> dict[str, Any]:
    texts = ENOUGH_TEXTS[: request.param]
    about: dict[str, Any] = {"inputs": len(texts), "compare": explainer.compare(texts, method=METHODS)}
    about["report"] = explainer.report(texts, method=METHODS, checks=[])
    about["recommend"] = explainer.recommend(texts, method=METHODS, spaces=[])
    about["check"] = {m: explainer.check(texts, method=m, checks=["faithfulness"]) for m in METHODS}
    served = Served(Models([ServedModel("demo", "text", explainer, texts)]), Store(None), Jobs(8))
    with TestClient(application(served), base_url="http://localhost") as client:
        every = [{"text": text} for text in texts]
        question = {"model": "demo", "inputs": every, "methods": METHODS, "wait": 60}
        about["served"] = client.post("/api/compare", json=question).json()
        about["listed"] = client.get("/api/results").json()["results"][0]["said"]
        shown = {"model": "demo", "input": every[0], "method": METHODS[0], "wait": 60}
        result = client.post("/api/explain", json=shown).json()["id"]
        about["trust"] = client.post("/api/trust", json={"result": result, "wait": 60}).json()["about"]["statement"]
    return about


def test_no_door_ranks_fewer_than_thirty(asked: dict[str, Any]) -> None:
    compared, report, recommended = asked["compare"], asked["report"], asked["recommend"]
    few = asked["inputs"] < ENOUGH
    assert all(math.isnan(row.rank) is few for row in compared.rows if not row.baseline)
    assert all(standing.place is None for standing in report.standings.values()) is few
    assert all(standing.verdict == "unknown" for standing in report.standings.values()) is few
    assert all(result.findings[0].level == "note" for result in asked["check"].values()) is few
    assert "1 input: too few to rank" in asked["trust"] and not RANKED.search(asked["trust"])
    said = [compared.verdict, recommended.verdict, *map(str, report.standings.values()), *report.view().lead[:1]]
    said += [asked["listed"], re.sub(r"(?s)<style.*?</style>|<[^>]+>", " ", asked["served"]["html"])]
    said += [result.findings[0].text for result in asked["check"].values()]
    for words in said:
        assert ("too few to rank" in words) is few, words
        assert not few or not RANKED.search(words), words


def test_doors_agree_about_winner_and_random(asked: dict[str, Any]) -> None:
    compared, report = asked["compare"], asked["report"]
    assert [row.name for row in compared.rows] == [row.name for row in report.comparison.rows]
    for row in compared.rows:
        if not row.baseline:
            standing = report.standings[row.name]
            assert standing == compared.standing(row.name, "texts")
            found = asked["check"][row.name].results["faithfulness"].standing
            assert (found.verdict, found.better) == (standing.verdict, standing.better)
            assert found.gain == pytest.approx(standing.gain, abs=1e-6)
            assert standing.better == sum(score.beats_random for score in row.scores.values())
    if asked["inputs"] >= ENOUGH:
        assert compared.rows[0].name == "two_ended" and "two_ended" in compared.verdict
        assert asked["recommend"].best["method"] == "two_ended" and asked["recommend"].within("any cost").beats_random
        assert report.standings["two_ended"].verdict == "yes" and "two_ended" in asked["listed"]
        assert [finding.level for finding in asked["check"]["two_ended"].findings] == ["ok"]


def test_the_best_warns_where_it_is_none(explainer: wf.Explainer, asked: dict[str, Any]) -> None:
    few = asked["inputs"] < ENOUGH
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _ = asked["compare"].best
    assert [("too few" in str(w.message)) for w in heard] == ([True] if few else [])
    with pytest.warns(UserWarning, match="not better than random|too few"):
        _ = explainer.compare(ENOUGH_TEXTS, method=["random"]).best


def test_rounding_ranks_nothing_and_beats_nothing() -> None:
    """Where the output hardly changes with the input, differences of 1e-8 are the same sign on every input."""
    assert not MetricScore(1e-8, 1e-8, 1e-8, 6e-8, 5e-8, 7e-8).beats_random
    assert MetricScore(0.1, 0.1, 0.1, 2e-3, 1e-3, 3e-3).beats_random
    metric = get_metric("comprehensiveness")
    values = {metric.name: {"one": np.full(40, 2e-8), "other": np.full(40, 1e-8)}}
    np.testing.assert_array_equal(mean_ranks([(metric, {})], values, ["one", "other"]), np.full((40, 2), 1.5))


def test_methods_that_cannot_be_told_apart_share_a_place() -> None:
    generator = np.random.default_rng(0)
    same = generator.normal(2, 0.5, (40, 2))
    worse = generator.normal(3.5, 0.3, (40, 1))
    assert tied_places(np.concatenate([same, worse], 1)) == [1, 1, 3]
    shared = Standing(1, 3, 5, 5, 40, "texts", ties=1)
    assert str(shared) == "1st of 3 on 40 texts, tied with 1 other, beats random"
    assert str(Standing(None, 3, 5, 5, 5, "texts", gain=(0.2, 0.1, 0.3))) == (
        "5 texts: too few to rank methods (30 needed); gain over random scores +0.200 (95 % CI +0.100 to +0.300)"
    )
    assert too_few(1) == "1 input: too few to rank methods (30 needed)" and not too_few(ENOUGH)


def test_a_search_that_is_passed_is_no_ceiling(asked: dict[str, Any]) -> None:
    for row in asked["compare"].rows:
        if row.name == "greedy":
            methods = [r for r in asked["compare"].rows if not r.baseline]
            better = asked["compare"].higher_is_better
            passed = any(
                (r.scores[m].mean - score.mean) * (1 if better[m] else -1) > 0
                for m, score in row.scores.items()
                for r in methods
            )
            assert row.baseline == ("reference" if passed else "ceiling")
