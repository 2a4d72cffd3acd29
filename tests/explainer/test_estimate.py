"""What an explanation will take is told beforehand, and decides whether maps are stored or folded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import whyformer as wf
from tests.capture.test_fold import long_model
from tests.models import CASES
from tests.models.case import randint
from tests.support.live_bytes import peak_bytes
from whyformer import estimate
from whyformer.errors import BadInput, NotOffered

LONG = {"input_ids": randint(5, 90, 1, 700)}


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
    monkeypatch.setattr(estimate, "LONG", 100)
    monkeypatch.setattr("whyformer.explanations.LONG", 100)
    assert explainer.estimate(LONG, method="generic_attention").route == "full"
    assert explainer.explain(LONG, method="generic_attention")[0].matrix is not None
    monkeypatch.setattr(estimate, "free_bytes", lambda device: 40 * 2**20)
    assert explainer.estimate(LONG, method="generic_attention").route == "fold"
    assert explainer.explain(LONG, method="generic_attention")[0].matrix is None
    assert explainer.explain(LONG, method="generic_attention", memory="full")[0].matrix is not None
    both = explainer.explain(LONG, method=["generic_attention", "attention_gradcam"])
    assert both["generic_attention"][0].matrix is None, "each method goes its own way"


def test_methods_without_maps_are_estimated_too() -> None:
    case = CASES["bert"]
    explainer = wf.Explainer(case.build("sdpa"))
    told = explainer.estimate(case.inputs(), method="saliency")
    assert told.route == "full"
    assert told.fold_bytes is None
    assert "fold" in told.reason
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
