"""What Python asks of a tensor is fetched once from a device that is not at hand, and again once it was written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.models import CASES
from whyformer import explanations
from whyformer.explanations import _fetched
from whyformer.inputs import batch
from whyformer.inputs.batch import all_real, on_host


@contextmanager
def fetches() -> Iterator[list[Tensor]]:
    """Inside, every device is far away; the tensors that were fetched."""
    asked: list[Tensor] = []

    def cpu(tensor: Tensor) -> Tensor:
        asked.append(tensor)
        return tensor.clone()

    with patch.object(batch, "AT_HAND", set()), patch.object(Tensor, "cpu", cpu):
        yield asked


def test_a_tensor_is_fetched_once_until_it_is_written_to() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    with fetches() as asked:
        assert on_host(ids).tolist() == on_host(ids).tolist() == [[1, 2], [3, 4]]
        assert len(asked) == 1
        ids[0, 0] = 9
        assert on_host(ids).tolist() == [[9, 2], [3, 4]]
        assert on_host(ids[:1]).tolist() == [[9, 2]], "a part is a tensor of its own"
        assert len(asked) == 3


def test_writes_that_nobody_counts_are_seen() -> None:
    with torch.inference_mode():
        ids = torch.tensor([1, 2])
    with fetches(), torch.inference_mode():
        assert on_host(ids).tolist() == [1, 2]
        ids[0] = 7
        assert on_host(ids).tolist() == [7, 2]


def test_of_a_mask_without_padding_nobody_has_to_ask() -> None:
    with fetches() as asked:
        mask = all_real(2, 3, device=torch.device("cpu"))
        assert bool(on_host(mask).all()) and mask.shape == (2, 3) and mask.dtype is torch.bool
        assert not asked
        mask[0, 0] = False
        assert not bool(on_host(mask).all())


@pytest.mark.parametrize("masked", [False, True])
def test_ids_and_masks_are_fetched_once_for_an_explanation(masked: bool) -> None:
    inputs = CASES["bert"].inputs()
    ids, mask = inputs["input_ids"][:, :3].clone(), torch.ones(len(inputs["input_ids"]), 3, dtype=torch.long)
    explainer = wf.Explainer(CASES["bert"].build("sdpa"))
    x = {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}
    plain = explainer.explain(x, method="attention_rollout", target=0)
    with fetches() as asked:
        far = explainer.explain(x, method="attention_rollout", target=0)
    assert [e.units for e in far] == [e.units for e in plain]
    whole = [t for t in asked if t.shape == ids.shape and t.dtype in (torch.long, torch.bool)]
    assert len(whole) == len({id(t) for t in whole}) == (3 if masked else 1), (
        "ids; the mask as it came, and as it is read"
    )
    del x["input_ids"], ids


def test_results_are_fetched_at_once_and_are_the_same() -> None:
    tensors = {"scores": torch.randn(2, 3), "matrix": torch.randn(2, 3, 3), "values": torch.randn(2)}
    with fetches() as asked:
        near = _fetched(tensors)
        assert len(asked) == 1
        for name, tensor in tensors.items():
            assert torch.equal(near[name], tensor), name
        with patch.object(explanations, "AT_ONCE", 4):
            assert _fetched(tensors) is tensors, "what is large is not copied first"
