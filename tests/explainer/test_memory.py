"""What an explanation takes: passes that methods share, memory that is told beforehand, and nothing that stays."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from bench.soak import calls, live_tensors
from tests.capture.test_fold import long_model
from tests.methods.properties import model_of
from tests.models import CASES
from tests.models.case import randint
from tests.support.live_bytes import peak_bytes, set_apart
from whyformer import estimates
from whyformer.errors import BadInput, NotOffered
from whyformer.loan import spread
from whyformer.loan.spread import CLEAR, Peak, SavedBytes, measured_on_cpu

LARGE = 64 << 20
LONG = {"input_ids": randint(5, 90, 1, 700)}
INPUTS = {"input_ids": randint(5, 90, 7, 6)}


@pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="this system does not tell, and 0 is reported")
def test_the_highest_moment_counts_also_when_it_is_over() -> None:
    with measured_on_cpu():
        peak = Peak(torch.device("cpu"))
    fresh = mmap(-1, LARGE)  # a tensor might come to lie in what the process has free already
    fresh.write(b"1" * LARGE)
    assert peak.bytes > 0.9 * LARGE
    assert Peak(torch.device("cpu")).bytes == 0  # nobody asked
    fresh.close()
    assert peak.bytes > 0.9 * LARGE
    with measured_on_cpu():
        assert Peak(torch.device("cpu")).bytes < LARGE / 2


def test_where_the_system_does_not_tell_it_is_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spread, "CLEAR", tmp_path / "nowhere" / "clear_refs")
    with measured_on_cpu():
        peak = Peak(torch.device("cpu"))
    kept = torch.ones(LARGE // 4)
    assert peak.bytes == 0
    assert len(kept)


# Estimates, which decide whether maps are stored or folded.


def test_an_estimate_is_close_to_what_it_takes() -> None:
    explainer = wf.Explainer(long_model("llama"))
    for memory in ("full", "fold"):
        told = explainer.estimate(LONG, method="generic_attention", memory=memory)
        explainer.explain(LONG, method="generic_attention", memory=memory)
        taken = peak_bytes(lambda way=memory: explainer.explain(LONG, method="generic_attention", memory=way))
        assert told.route == memory
        assert 0.5 <= told.peak_bytes / taken <= 2.0
        assert (told.forwards, told.backwards, told.batch_size) == (1, 1, 1)
    assert "folded" in str(told)
    assert told.fits


def test_room_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = wf.Explainer(long_model("bert"))
    monkeypatch.setattr(estimates, "LONG", 100)
    monkeypatch.setattr("whyformer.explanations.LONG", 100)
    assert explainer.estimate(LONG, method="generic_attention").route == "full"
    assert explainer.explain(LONG, method="generic_attention")[0].matrix is not None
    monkeypatch.setattr(estimates, "free_bytes", lambda device: 40 * 2**20)
    assert explainer.estimate(LONG, method="generic_attention").route == "fold"
    assert explainer.explain(LONG, method="generic_attention")[0].matrix is None
    assert explainer.explain(LONG, method="generic_attention", memory="full")[0].matrix is not None
    both = explainer.explain(LONG, method=["generic_attention", "attention_gradcam"])
    assert both["generic_attention"][0].matrix is None, "each method goes its own way"


def test_methods_without_maps_are_estimated_too() -> None:
    case = CASES["bert"]
    explainer = wf.Explainer(case.build("sdpa"))
    told = explainer.estimate(case.inputs(), method="saliency")
    assert (told.route, told.fold_bytes) == ("full", None) and "fold" in told.reason
    with pytest.raises(NotOffered, match="memory='fold'"):
        explainer.estimate(case.inputs(), method="saliency", memory="fold")
    with pytest.raises(BadInput, match="memory"):
        explainer.estimate(case.inputs(), memory="little")


@pytest.mark.parametrize("memory", ["auto", "full"])
def test_a_device_that_is_full_folds_or_says_how(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["bert"]
    explainer, inputs = wf.Explainer(case.build("sdpa")), case.inputs()
    explainer.explain(inputs, method="generic_attention", target=1)

    def short(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 1.00 TiB")

    monkeypatch.setattr("whyformer.run.run.record", short)
    if memory == "full":
        with pytest.raises(NotOffered, match="memory='fold'"):
            explainer.explain(inputs, method="generic_attention", target=1, memory=memory)
    else:
        assert len(explainer.explain(inputs, method="generic_attention", target=1)) == len(inputs["input_ids"])


# A device that is too small for a batch is given a smaller one.


@contextmanager
def room_for(model: torch.nn.Module, most: list[int], cpu: bool = False) -> Iterator[list[int]]:
    """The model runs out of memory with more than ``most`` inputs; yields the sizes it was asked for."""
    asked: list[int] = []
    seen = {"asked": asked, "most": most}  # one variable, which changes in every pass: no setting of the hook

    def refuse(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen["asked"].append(len(kwargs["input_ids"]))
        if seen["asked"][-1] > seen["most"][0]:
            if cpu:
                torch.empty(10**15)  # torch's own error, which is a RuntimeError
            raise torch.OutOfMemoryError("tried to allocate 1.00 TiB")

    hook = model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        yield asked
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("method", "cpu"), [("generic_attention", False), ("integrated_gradients", True), ("occlusion", True)]
)
def test_a_batch_that_does_not_fit_is_halved_until_it_does(method: str, cpu: bool) -> None:
    model = CASES["bert"].build("sdpa")
    explainer = wf.Explainer(model)
    targets = [0, 1, 2, 2, 0, 0, 1]
    expected = explainer.explain(INPUTS, method=method, target=targets)
    with room_for(model, [3], cpu) as asked:
        found = explainer.explain(INPUTS, method=method, target=targets, batch_size=6)
    assert asked.count(6) == 1, "what was learned once holds for the rest"
    assert [e.target.index for e in found] == targets
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert (one.cost.forwards, one.cost.backwards) == (other.cost.forwards, other.cost.backwards)


@pytest.mark.parametrize(("tokens", "size", "most"), [(8, None, 64), (40, None, 25), (100, None, 16), (8, 5, 5)])
def test_short_inputs_have_more_variants_in_a_batch_unless_it_is_said_how_many(
    tokens: int, size: int | None, most: int
) -> None:
    model, sizes = CASES["bert"].build("sdpa").eval(), []
    inputs = {"input_ids": randint(5, 90, 1, tokens), "attention_mask": torch.ones(1, tokens, dtype=torch.long)}
    with model.register_forward_hook(lambda module, args, named, out: sizes.append(len(out.logits)), with_kwargs=True):
        wf.explain(model, inputs, method="shap", evaluations=300, target=1, batch_size=size)
    assert max(sizes) == most


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


# Nothing leaks.


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


# One pass serves many: methods that need the same record run the model once.


SHARED = {
    "gradients": ["raw_attention", "attention_rollout", "generic_attention", "grad_sam", "attention_gradcam"],
    "blocks": ["attention_rollout", "value_norms", "alti", "value_zeroing"],
}


@pytest.mark.parametrize("methods", SHARED.values(), ids=SHARED)
def test_methods_that_share_a_record_run_the_model_once(methods: list[str]) -> None:
    case = CASES["bert"]
    model = case.build("sdpa")
    explainer = wf.Explainer(model)
    calls: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    alone = {name: explainer.explain(case.inputs(), method=name, target=1) for name in methods}
    calls.clear()
    together = explainer.explain(case.inputs(), method=methods, target=1)
    handle.remove()
    assert len(calls) == 1
    for name in methods:
        for a, b in zip(together[name], alone[name], strict=True):
            np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-6)


def test_what_each_of_several_methods_took_is_what_it_takes_alone() -> None:
    """Counts, not bounds: shap of seven tokens asks for all sets of them, and may ask for 512 and more."""
    methods = ["shap", "occlusion", "value_norms", "integrated_gradients", "generic_attention", "raw_attention"]
    case = CASES["bert"]
    explainer, inputs = wf.Explainer(case.build("sdpa")), {k: v[1:, :7] for k, v in case.inputs().items()}
    how = {"target": 1, "replace": 3, "steps": 3}
    together = explainer.explain(inputs, method=methods, **how)
    for name in methods:
        options = {k: v for k, v in how.items() if k == "target" or k in wf.list_methods()[name].options}
        alone, shared = explainer.explain(inputs, method=name, **options)[0].cost, together[name][0].cost
        assert (shared.forwards, shared.backwards) == pytest.approx((alone.forwards, alone.backwards)), name
    assert together["shap"][0].cost.forwards < 2**7 + 2
