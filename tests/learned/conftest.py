"""Short training for all tests of this folder: what is tested does not depend on its length."""

from __future__ import annotations

import pytest

from whyformer.learned import network


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "EPOCHS", 4)
    monkeypatch.setattr(network, "FEWEST_STEPS", 4)
