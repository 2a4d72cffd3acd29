"""Models that tests share: who changes one is found out, and the next test has a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import CASES, run
from tests.support.sharing import Shared

CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight": lambda model: model.classifier.weight.data.add_(1e-3),
    "precision": lambda model: model.half(),
    "mode": lambda model: model.train(),
    "a hook": lambda model: model.bert.register_forward_hook(lambda *_: None),
    "a gradient": lambda model: setattr(model.classifier.weight, "grad", torch.ones_like(model.classifier.weight)),
    "what is trained": lambda model: model.bert.requires_grad_(False),
    "settings": lambda model: setattr(model.config, "pad_token_id", 7),
    "a part": lambda model: setattr(model, "classifier", nn.Sequential(model.classifier)),
}


@pytest.fixture(scope="module")
def shared() -> Shared:
    return Shared(lambda name: CASES[name].build("sdpa"), lambda model, name: run(model, CASES[name].inputs()))


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_out_and_not_handed_on(shared: Shared, what: str) -> None:
    with pytest.raises(AssertionError, match=r"shared with other tests: \[\('bert',\)\]"), shared.handed_back():
        changed = shared("bert")
        CHANGES[what](changed)
    with shared.handed_back():
        assert shared("bert") is not changed and shared("bert") is shared("bert")
