"""For folders whose tests are about refusals themselves."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unadvised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal tries no other methods, which would take longer than its reason; tests/test_advice.py is about them."""
    monkeypatch.setattr("whyformer.explainer.CoreExplainer.advises", False)


@pytest.fixture
def advised(unadvised: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it recommends is asked for all the same."""
    monkeypatch.setattr("whyformer.explainer.CoreExplainer.advises", True)
