"""What help() says of a public name: a sentence, and an example that runs as it stands."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import language

NAMES = [name for name in wf.__all__ if name != "__version__"]
ELSEWHERE = {"extend"}  # its example is a method of one's own, which tests/explainer/test_surface.py registers


class Server:
    """A server that finds every answer likely, in place of one that has to be started."""

    def __init__(self, url: str) -> None:
        assert url.startswith("http://")

    def __call__(self, prompts: list[Any], answers: list[Any]) -> list[float]:
        return [-0.1 * len(str(prompt)) for prompt in prompts]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the examples name."""
    folder = tmp_path_factory.mktemp("desk")
    language.model("gpt2").save_pretrained(folder / "language-model")
    language.tokenizer().save_pretrained(folder / "language-model")
    (folder / "reviews.csv").write_text("text\nI like the movie\nThis is so boring\n", encoding="utf-8")
    matplotlib.use("agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for loader in ("load_sentiment", "load_pets", "load_adult"):  # once for all examples
            patch.setattr(wf.demo, loader, cache(getattr(wf.demo, loader)))
        yield folder


@pytest.mark.parametrize("name", NAMES)
def test_help_begins_with_a_sentence(name: str) -> None:
    first = (inspect.getdoc(getattr(wf, name)) or "").partition("\n")[0]
    assert first.endswith((".", "?")), first
    assert len(first) <= 120


@pytest.mark.parametrize("name", sorted(set(NAMES) - ELSEWHERE))
def test_its_example_runs(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(wf, name)) or "")
    assert examples, f"help(wf.{name}) shows no example"
    assert f"wf.{name}(" in "".join(example.source for example in examples) or not inspect.isfunction(getattr(wf, name))
    if name == "CompletionServer":
        monkeypatch.setattr(wf, "CompletionServer", Server)
    scope: dict[str, Any] = {"wf": wf, "torch": torch, "np": np}
    for example in examples:
        exec(compile(example.source, f"help(wf.{name})", "single"), scope)
