"""Nothing leaks: every method on every kind of input, and every verb, leave no tensor and no memory behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from bench.soak import _model as soak_model
from bench.soak import calls, live_tensors
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support.live_bytes import LiveBytes, set_apart
from whyformer.loan.spread import SavedBytes

CALLS = calls()
ON_WORDS = [name for name in CALLS if name.endswith(" bert") or " " not in name]


@pytest.mark.filterwarnings("ignore")  # models warn, and so do objects that are looked at
@pytest.mark.parametrize("name", ON_WORDS)
def test_no_tensor_stays(name: str) -> None:
    """Of the other kinds of input, ``python -m bench.soak`` tells."""
    call = CALLS[name]
    call()  # which imports what it needs
    set_apart()
    call()
    before = live_tensors()
    call()
    assert live_tensors() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["integrated_gradients", "smooth_grad", "attn_lrp", "generic_attention"])
def test_no_memory_stays(method: str) -> None:
    """What no collector sees, of methods that keep graphs: storages are counted wherever they are held."""
    call, model = CALLS[f"{method} bert"], soak_model("bert")
    call()
    with LiveBytes(model) as live:
        call()
        before = live.now
        for _ in range(3):
            call()
        assert live.now == before
    assert live.peak > before


def test_counting_what_is_saved_holds_nothing() -> None:
    model, inputs = model_of("bert"), CASES["bert"].inputs()
    leaf = torch.zeros(1, requires_grad=True)

    def counted() -> weakref.ref[Tensor]:
        with SavedBytes(model) as saved:
            squared = (leaf + 1).exp()
            out = squared.pow(2).sum() + model(**inputs).logits.sum()
        assert saved.total > 0
        (gradient,) = torch.autograd.grad(out, leaf)
        assert gradient == pytest.approx(2 * torch.e**2)
        return weakref.ref(squared)

    dead = counted()
    gc.collect()
    assert dead() is None
