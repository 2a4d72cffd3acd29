"""Two texts, and options that make every check quick on them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.methods.properties import model_of
from tests.models import CASES
from whyformer.checks.check import CHECKS
from whyformer.checks.exam import Exam
from whyformer.inputs.base import Modality
from whyformer.verbs import Explainer

TEXTS = ["the movie was so good", "i hate the boring book"]
QUICK: dict[str, Any] = {
    "jain_wallace": {"permutations": 6, "candidates": 2, "steps": 6},
    "randomisation": {"copies": 2},
    "stability": {"draws": 2},
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
    call = Modality.call
    monkeypatch.setattr(Modality, "call", lambda self, b, **how: calls.append(b.size) or call(self, b, **how))
    return calls
