"""What ``repr`` says of every public object fits on a screen: 24 lines of 100 columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES
from tests.views import samples
from tests.views.results import ALL
from whyformer.brief import CONTROLS, WIDEST
from whyformer.checks.training import MaskedSurrogate
from whyformer.demo import load_adult
from whyformer.inputs.table_schema import Standardize
from whyformer.results.types import ByMethod, Choice, Explanations, Target

LINES = 24
LONG = tuple(f"a rather long label, number {i}" for i in range(400))


def long_explanation() -> wf.Explanation:
    many = len(LONG)
    units = wf.Units(LONG, (False,) * many, ("text",) * many, text=" ".join(LONG), spans=((0, 1),) * many)
    return samples.text().replace(units=units, scores=np.zeros(many, np.float32), target=Target(3, LONG[0] * 4))


def explainer() -> wf.Explainer:
    return wf.Explainer(CASES["bert"].build("sdpa"))


OBJECTS: dict[str, Callable[[], Any]] = {
    **{kind.__name__: make for kind, make in ALL.items()},
    "a long Explanation": long_explanation,
    "Units": lambda: long_explanation().units,
    "Target": lambda: Target(1, LONG[0] * 9, probability=0.5, next=tuple(Choice(i, LONG[i], 0.1) for i in range(4))),
    "Record": samples.encoder_record,
    "Site": lambda: samples.encoder_record().sites[0],
    "Explanations": lambda: Explanations([long_explanation()] * 50),
    "ByMethod": lambda: ByMethod({name: long_explanation() for name in wf.list_methods()}),
    "lists by method": lambda: ByMethod({"a": Explanations([long_explanation()] * 9), "b": Explanations()}),
    "methods": wf.list_methods,
    "metrics": wf.list_metrics,
    "a method": lambda: wf.list_methods()["shap"],
    "a metric": lambda: wf.list_metrics()["aopc"],
    "Table": lambda: load_adult()[1],
    "Standardize": lambda: Standardize((0.5,) * 300, (1.0,) * 300),
    "Explainer": explainer,
    "Study": lambda: explainer().study({"input_ids": torch.arange(8)[None]}),
    "View": lambda: samples.text().view(),
    "Page": lambda: Explanations([samples.text()] * 30).view(),
    "CompletionServer": lambda: wf.CompletionServer("http://localhost:1/v1", model="m"),
    "ChatServer": lambda: wf.ChatServer("http://localhost:1/v1/chat/completions", model="m", key="secret"),
    "MaskedSurrogate": lambda: MaskedSurrogate(CASES["bert"].build("sdpa"), 0.5, 0.75, 40, 10, 0.1),
    "Cost": lambda: samples.text().cost,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_it_fits_on_a_screen(name: str) -> None:
    lines = repr(OBJECTS[name]()).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDEST


def test_no_label_steers_a_terminal() -> None:
    why = samples.text()
    named = dataclasses.replace(why.target, label="\x1b[31mred\x9b\u202e")
    labelled = why.replace(
        target=named, units=dataclasses.replace(why.units, labels=("\x1b]0;x\x07",) * len(why.units))
    )
    assert not CONTROLS.search("".join(map(repr, (labelled, named, wf.Explanations([labelled])))).replace("\n", ""))


def test_every_public_class_is_among_them() -> None:
    kinds = {getattr(wf, name) for name in wf.__all__ if isinstance(getattr(wf, name), type)}
    shown = {type(make()) for make in OBJECTS.values()}
    elsewhere = {wf.ExplainedDataset}  # tests/jobs reads one, which takes a folder
    assert {k for k in kinds if not issubclass(k, BaseException)} - elsewhere <= shown


def test_what_is_as_by_default_is_left_out() -> None:
    first, second = repr(samples.text()).split("\n    ")
    assert first == f"Explanation(generic_attention of '{samples.TEXT}',"
    assert second == "positive: not 0.3, ##believable 0.2, un 0.15, …)"
    assert repr(Target(1, "positive")) == "Target(index=1, label='positive')"
    assert repr(Target(1, "a", probability=0.96871)) == "Target(index=1, label='a', probability=0.9687)"
    assert "int64[2, 3]" in repr(dataclasses.replace(samples.encoder_record(), logits=torch.zeros(2, 3).long()))
