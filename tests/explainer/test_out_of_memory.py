"""A device that is too small for a batch is given a smaller one; what does not fit at all is said plainly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES
from tests.models.case import randint
from whyformer.errors import NotOffered

INPUTS = {"input_ids": randint(5, 90, 7, 6)}


@contextmanager
def room_for(model: torch.nn.Module, most: list[int]) -> Iterator[list[int]]:
    """The model runs out of memory with more than ``most`` inputs; yields the sizes it was asked for."""
    asked: list[int] = []

    def refuse(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        asked.append(len(kwargs["input_ids"]))
        if asked[-1] > most[0]:
            raise torch.OutOfMemoryError("tried to allocate 1.00 TiB")

    hook = model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        yield asked
    finally:
        hook.remove()


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "occlusion", "integrated_gradients"])
def test_a_batch_that_does_not_fit_is_halved_until_it_does(method: str) -> None:
    model = CASES["bert"].build("sdpa")
    explainer = wf.Explainer(model)
    targets = [0, 1, 2, 2, 0, 0, 1]
    expected = explainer.explain(INPUTS, method=method, target=targets)
    with room_for(model, [3]) as asked:
        found = explainer.explain(INPUTS, method=method, target=targets, batch_size=6)
    assert asked.count(6) == 1, "what was learned once holds for the rest"
    assert [e.target.index for e in found] == targets
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert (one.cost.forwards, one.cost.backwards) == (other.cost.forwards, other.cost.backwards)


def test_a_single_input_that_does_not_fit_is_refused_with_what_to_do() -> None:
    model = CASES["bert"].build("sdpa")
    explainer = wf.Explainer(model)
    room = [99]
    with room_for(model, room) as asked:
        explainer.explain(INPUTS, method="generic_attention", target=1)  # studied while there was room
        room[0] = 0
        asked.clear()
        with pytest.raises(NotOffered, match=r"half precision.*1\.00 TiB"):
            explainer.explain(INPUTS, method="generic_attention", target=1, batch_size=4)
    assert asked == [4, 2, 1, 1, 1], "once more without storing maps, and once to see whether anything else would fit"
    assert explainer.explain(INPUTS, method="generic_attention", target=1), "and the model is as it was"
