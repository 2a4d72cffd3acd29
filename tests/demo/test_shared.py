"""Models that tests share: who changes one is found out."""

from __future__ import annotations

import pytest
import torch

from tests.support.demo_models import shared_models
from whyformer import demo


def test_one_model_for_all_and_changes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_models(monkeypatch):
        assert demo.load_adult()[0] is demo.load_adult()[0]
    model = demo.load_adult()[0]
    weight = next(model.parameters())
    with pytest.raises(AssertionError, match="'adult' was changed"), shared_models(monkeypatch), torch.no_grad():
        demo.load_adult()[0]
        weight += 1
    with torch.no_grad():
        weight -= 1
    with pytest.raises(AssertionError, match="'adult' was changed"), shared_models(monkeypatch):
        demo.load_adult()[0].train()
    model.eval()
