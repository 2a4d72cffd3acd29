"""Short training and few passes for all tests of this folder: what is tested does not depend on their number."""

from __future__ import annotations

import pytest

from whyformer import registry
from whyformer.learned import learning, network


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ("_LEARNED", "_FILES", "_LOADED"):  # what a test learns is not known to others
        monkeypatch.setattr(registry, known, {})
    monkeypatch.setattr(network, "EPOCHS", 4)
    monkeypatch.setattr(network, "FEWEST_STEPS", 4)
    monkeypatch.setattr(learning, "MOST_MASKS", 8)
    monkeypatch.setattr(learning, "SHAPLEY_INPUTS", 3)
    monkeypatch.setitem(learning.GUIDED, "evaluations", 8)
    monkeypatch.setattr(learning, "SHAPLEY", {"algorithm": "regression", "evaluations": 64})
