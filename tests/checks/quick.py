"""Two texts, and options that make every check quick on them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.methods.properties import model_of
from tests.models import CASES
from whyformer.checks.check import CHECKS
from whyformer.checks.exam import Exam
from whyformer.inputs.base import Read
from whyformer.results.codec import to_plain
from whyformer.verbs import Explainer

TEXTS = ["the movie was so good", "i hate the boring book"]
QUICK: dict[str, Any] = {
    "jain_wallace": {"permutations": 4, "candidates": 2, "steps": 3},
    "serrano_smith": {"draws": 1},
    "randomisation": {"copies": 1, "beside": 2},
    "stability": {"draws": 1},
}
EVERYTHING = {name: QUICK.get(name, {}) for name in CHECKS}


def exam_of(name: str = "bert", inputs: Any = None, **how: Any) -> Exam:
    """An examination of a tiny model; of a detector, that of its third query."""
    how = {"target": (2, 1)} | how if name == "detr" else how
    return Exam(Explainer(model_of(name)), CASES[name].inputs() if inputs is None else inputs, **how)


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each batch that models are called with from now on.

    It is noted beside the models: a hook that counts is a part of a model that changes.
    """
    calls: list[int] = []
    call = Read.call
    monkeypatch.setattr(Read, "call", lambda self, b, **how: calls.append(b.size) or call(self, b, **how))
    return calls


def plain_of(found: Any) -> Any:
    """Plain data without what is measured by the clock."""
    if isinstance(found, dict):
        return {k: plain_of(v) for k, v in found.items() if k not in {"seconds", "cost"}}
    if isinstance(found, list):
        return [plain_of(v) for v in found]
    return plain_of(json.loads(json.dumps(to_plain(found)))) if dataclasses.is_dataclass(found) else found
