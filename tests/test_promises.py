"""Promises of the design: the model is handed back as it came, whatever happens, and nothing leaks."""

from __future__ import annotations

import contextlib
import copy
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whyformer as wf
from bench.soak import live_tensors
from tests.models import CASES
from tests.support.live_bytes import set_apart
from whyformer.errors import CaptureError, NotOffered

METHODS = sorted(wf.list_methods())


def state(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that an explanation could have touched."""
    return {
        "training": [m.training for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grads": [p.grad for p in model.parameters()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "attention": model.config._attn_implementation,
        "dtype": [p.dtype for p in model.parameters()],
        "weights": [p.detach().clone() for p in model.parameters()],
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key, was in before.items():
        if key == "weights":
            assert all(torch.equal(a, b) for a, b in zip(was, after[key], strict=True))
        else:
            assert was == after[key], key


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    return CASES["bert"].build("sdpa"), CASES["bert"].inputs()


@pytest.mark.parametrize("method", METHODS)
def test_the_model_comes_back_as_it_was(method: str) -> None:
    model, inputs = bert()
    model.train()
    model.bert.encoder.layer[0].eval()
    model.classifier.weight.requires_grad_(False)
    before, numbers = state(model), torch.get_rng_state()
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(**inputs).logits
    options = {"steps": 2} if method == "integrated_gradients" else {}
    with contextlib.suppress(NotOffered):  # methods for images refuse a text model, and have to leave it alone, too
        wf.explain(model, inputs, method=method, **options)
    assert_same(before, state(model))
    assert torch.equal(numbers, torch.get_rng_state()), "the caller's random numbers were disturbed"
    with torch.no_grad():
        assert torch.equal(model.eval()(**inputs).logits, expected)


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_the_model_comes_back_as_it_was_after_an_exception(interruption: type[BaseException]) -> None:
    model, inputs = bert()
    model.train()
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise interruption("in the middle")

    handle = model.bert.encoder.layer[1].register_forward_hook(interrupt)
    before = state(model)
    with pytest.raises(interruption, match="in the middle"):
        wf.explain(model, inputs, method="integrated_gradients", steps=40, batch_size=1)
    assert_same(before, state(model))
    assert torch.is_grad_enabled()
    handle.remove()
    assert len(wf.explain(model, inputs, method="generic_attention")) == 2, "the lock was not released"


def test_four_threads_give_the_scores_of_one() -> None:
    model, inputs = bert()
    alone = wf.explain(model, inputs, method="generic_attention")
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = [wf.explain(model, inputs, method="generic_attention") for _ in range(3)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for results in found.values():
        for result in results:
            for a, b in zip(result, alone, strict=True):
                np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)


def test_fifty_calls_leave_nothing_behind() -> None:
    model, inputs = bert()

    def calls(count: int) -> None:
        for _ in range(count):
            wf.explain(model, inputs, method="generic_attention")

    tracemalloc.start()  # what was allocated before, by other tests, is not counted when it is freed
    try:
        calls(10)
        set_apart()
        tensors, (memory, _) = live_tensors(), tracemalloc.get_traced_memory()
        calls(50)
        assert live_tensors() == tensors
        assert tracemalloc.get_traced_memory()[0] - memory < 50 * 2048, "more than 2 kB of each call stayed"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("method", ["raw_attention", "attention_rollout", "generic_attention", "grad_sam"])
def test_other_precisions(method: str, dtype: torch.dtype) -> None:
    model, inputs = bert()
    single = wf.explain(model, inputs, method=method, target=1)
    found = wf.explain(model.to(dtype), inputs, method=method, target=1)
    for a, b in zip(found, single, strict=True):
        assert a.scores.dtype == np.float32
        scale = np.abs(b.scores).max()
        # half precision moves the model itself; the ranking's backbone has to stay
        assert np.abs(a.scores - b.scores).max() <= (1e-5 if dtype == torch.float64 else 0.2) * scale


def test_a_call_inside_inference_mode_works() -> None:
    model, inputs = bert()
    expected = wf.explain(model, inputs, method="generic_attention")
    with torch.inference_mode():
        found = wf.explain(model, inputs, method="generic_attention")
    np.testing.assert_allclose(found[0].scores, expected[0].scores, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
def test_a_compiled_model_is_unwrapped() -> None:
    model, inputs = bert()
    expected = wf.explain(model, inputs, method="generic_attention")
    compiled = torch.compile(model)
    found = wf.explain(compiled, inputs, method="generic_attention")
    np.testing.assert_allclose(found[0].scores, expected[0].scores, atol=1e-6)
    model.bert.encoder.layer[0].compile()  # a part of it
    found = wf.explain(model, inputs, method="generic_attention")
    np.testing.assert_allclose(found[0].scores, expected[0].scores, atol=1e-6)


class Checkpointed(nn.Module):
    """A home-made model that recomputes its blocks in backward, also in eval mode."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.inner.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.inner.head(self.inner.norm(x)[:, 0] if hasattr(self.inner, "norm") else x[:, 0])


def test_gradient_checkpointing_is_followed() -> None:
    case = CASES["einsum"]
    model = case.build(None)
    (x,) = case.inputs()
    plain = wf.explain(Checkpointed(model, False), (x,), method="attention_rollout")
    found = wf.explain(Checkpointed(model, False), (x,), method="generic_attention", target=1)
    assert len(found[0].scores) == len(plain[0].scores)
    reference = _uncheckpointed(model, x)
    np.testing.assert_allclose(found[0].scores, reference, atol=1e-5)


def _uncheckpointed(model: nn.Module, x: Tensor) -> Any:
    class Plain(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.inner.blocks:
                x = block(x)
            return self.inner.head(self.inner.norm(x)[:, 0] if hasattr(self.inner, "norm") else x[:, 0])

    return wf.explain(Plain(model, False), (x,), method="generic_attention", target=1)[0].scores


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpointing_is_refused_with_the_fix() -> None:
    """Reentrant checkpointing hides the graph."""
    case = CASES["einsum"]
    model = case.build(None)
    (x,) = case.inputs()
    with pytest.raises(CaptureError, match="checkpoint"):
        wf.explain(Checkpointed(model, True), (x,), method="generic_attention", target=1)
