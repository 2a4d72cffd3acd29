"""Long commands print their estimated work before they start, and the estimate is near the passes that run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import whyformer as wf
from tests.cli.test_cli import run
from whyformer.checks.check import CHECKS
from whyformer.cli import _work
from whyformer.demo import SENTENCES

LIKE = "I like the movie"
FEW = ("-m", "raw_attention", "-m", "occlusion")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("check", LIKE, "-c", "sinks"), "Name checks (-c NAME)"),
        (("compare", LIKE, *FEW, "--metric", "aopc"), "Name fewer methods (-m NAME)"),
        (("recommend", *SENTENCES[:4], *FEW), "Name methods (-m NAME)"),
        (
            ("explain", "text", LIKE, *FEW, "--report", "report.html"),
            "Name fewer methods (-m NAME) or give fewer inputs to shorten the report",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_long_commands_say_so_first(
    command: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_work, "_timed", lambda session, rows: 1e-5)
    assert "forwards" not in run(*command).stderr, "quick ones do not"
    monkeypatch.setattr(_work, "LONG", 0.0)
    assert re.match(rf"About [\d,]+ forwards, \d+ seconds\. {re.escape(words)}", run(*command).stderr)


def test_the_estimate_is_near_the_passes_that_run() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    explainer, rows, text = wf.Explainer(model, tokenizer), 0, "the film was slow but its music is good"

    def count(module: Any, given: Any, named: dict[str, Any], output: Any) -> None:
        nonlocal rows
        tensors = [*given, *(each for each in named.values() if isinstance(each, torch.Tensor))]
        rows += len(tensors[0])

    work = _work.measured(explainer, [text])
    with model.register_forward_hook(count, with_kwargs=True):
        explainer.check(text, progress=False)
        checked, rows = rows, 0
        explainer.compare([text], progress=False)
        compared = rows
    methods = [name for name in wf.list_methods() if name != "random"]
    assert checked / 2 < work.checks(list(CHECKS), None) < 3 * checked  # backwards are not counted here
    assert compared / 2 < work.evaluation(methods) < 6 * compared  # masked inputs that methods share run once


def test_numbers_are_rounded() -> None:
    assert [_work._rounded(count) for count in (7.2, 84, 3421, 12_345)] == [7, 84, 3400, 12_000]
    assert _work._duration(84.3) == "84 seconds" and _work._duration(400) == "7 minutes"
