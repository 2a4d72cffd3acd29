"""What cannot be recorded is found in a rehearsal, which nobody else notices."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from whyformer.compiled.graph import HostAsked, Products, rehearsed

CPU = torch.device("cpu")
ASKS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "truth": lambda x: bool((x > 0).all()),
    "list": lambda x: x.tolist(),
    "float": lambda x: float(x.sum()),
    "places": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "new": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "equal": lambda x: torch.equal(x, x),
    "distinct": lambda x: x.unique(),
}


@pytest.mark.parametrize("asked", ASKS)
def test_what_asks_the_host_is_an_error(asked: str) -> None:
    x = torch.arange(4.0)
    with pytest.raises(HostAsked), rehearsed(CPU):
        ASKS[asked](x)


def test_what_stays_on_the_device_is_none() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    with rehearsed(CPU):
        best = x.argmax(1)
        picked = x.gather(1, torch.where(best == 0, best, best + 0)[:, None]).sum()
        (gradient,) = torch.autograd.grad(picked, x)
        masked = x.masked_fill(x > 0, 0.0)
    assert gradient.sum() == 2 and bool((masked <= 0).all())


def test_only_the_thread_that_rehearses_is_told_that_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # there may be no CUDA to ask
    before = torch.cuda.is_current_stream_capturing
    with rehearsed(CPU):
        assert torch.cuda.is_current_stream_capturing()
        other = threading.Thread(target=lambda: told.append(torch.cuda.is_current_stream_capturing()))
        other.start()
        other.join()
    assert told == [False]
    assert torch.cuda.is_current_stream_capturing is before


def test_an_error_ends_the_rehearsal() -> None:
    before = torch.cuda.is_current_stream_capturing
    with pytest.raises(ZeroDivisionError), rehearsed(CPU):
        _ = 1 / 0
    assert torch.cuda.is_current_stream_capturing is before
    assert torch.arange(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("quicker", ["product and sum", "whole"])
def test_a_linear_layer_is_computed_in_the_quicker_way(quicker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Callable[..., Tensor]] = []

    def duration(self: Products, product: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> float:
        timed.append(product)
        whole = product is torch.ops.aten.addmm.default
        return 1.0 if whole == (quicker == "whole") else 2.0

    monkeypatch.setattr(Products, "duration", duration)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 4), torch.randn(3, 6, requires_grad=True)
    expected = layer(x)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    with Products(CPU) as products:
        results = [layer(x), layer(x.flip(0)).flip(0)]
        (again,) = torch.autograd.grad(results[0].sum(), x)
        scaled = torch.addmm(layer.bias, x, layer.weight.t(), alpha=2.0)
    assert len(timed) == 2, "once for each shape, both ways"
    assert list(products.apart.values()) == [quicker != "whole"]
    for result in results:
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(again, slope)
    torch.testing.assert_close(scaled, layer.bias + 2 * (x @ layer.weight.t()))
