"""What the bench of jobs says beside its rates."""

from __future__ import annotations

import os

import pytest

import whyformer as wf
from bench.batch import job, padding, sentences
from tests.jobs.sentences import census_explainer
from whyformer.demo.census import adult_rows


def test_padding_is_what_rows_of_other_lengths_cost() -> None:
    x = wf.Explainer(*wf.demo.load_sentiment())
    assert padding(x, ["a good movie"] * 40) == 0
    assert padding(x, ["good"] * 31 + ["good good good"]) == pytest.approx(1 - (31 * 3 + 5) / (32 * 5))
    assert 0 < padding(x, sentences(600)) < 0.15


def test_the_second_half_of_a_job_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that took a second each: so many rows per second as a part has."""
    real, number = os.replace, iter(range(1000))

    def replace(source: str, target: str) -> None:
        real(source, target)
        if str(target).endswith(".parquet"):
            os.utime(target, (moment := 1e9 + next(number), moment))

    monkeypatch.setattr(os, "replace", replace)
    rate = job(census_explainer(), adult_rows(), method="raw_attention", part_rows=8)
    assert rate == pytest.approx(8, rel=1e-3)
