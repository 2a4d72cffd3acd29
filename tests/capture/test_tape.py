"""The tape: what a model calls, and running a stretch of it again on other numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.models.case import randn
from whyformer.capture.blocks.anatomy import Dissect
from whyformer.capture.blocks.tape import Tape, stretch
from whyformer.errors import NotOffered


def recorded(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tape, Tensor]:
    """Run a function with everything it calls on tape."""
    mode = Dissect(1, {})
    with torch.no_grad(), mode:
        out = function(*inputs)
    return mode.tape, out


def test_a_stretch_runs_again_on_other_numbers() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y += 1
        kept = y.clone()
        y.mul_(kept)
        left, right = y.chunk(2, dim=-1)
        return torch.cat([left.relu(), right], -1)

    x, other = randn(3, 4, seed=1), randn(3, 4, seed=2)
    tape, out = recorded(function, x)
    again = stretch(tape, tape.number(x), tape.number(out))
    assert torch.equal(again.run(x), out)
    assert torch.equal(again.run(other), function(other))
    assert torch.equal(again.run(x), out), "running a stretch must not change what it reads"


def test_memory_overwritten_through_a_view_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        row = y[0]
        row.add_(1)
        return y + 1

    x = randn(3, 4, seed=1)
    tape, out = recorded(function, x)
    with pytest.raises(NotOffered, match="overwritten through another view"):
        stretch(tape, tape.number(x), tape.number(out))


def test_decisions_on_numbers_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        return y + 1 if float(y.sum()) > 0 else y - 1

    x = randn(3, 4, seed=1)
    tape, out = recorded(function, x)
    with pytest.raises(NotOffered, match="depends on its own numbers"):
        stretch(tape, tape.number(x), tape.number(out))


def test_forgetting_keeps_what_later_calls_need() -> None:
    x = randn(3, 4, seed=1)
    tape, _ = recorded(lambda x: ((x * 2) + x).relu(), x)
    tape.forget(2)
    assert [c.name for c in tape.calls] == ["relu"]
    assert set(tape.values) == {n for c in tape.calls for n in (*c.inputs, *c.outs)}
