"""One pass serves many: methods that need the same record run the model once."""

from __future__ import annotations

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES

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


COUNTED = ["shap", "occlusion", "value_norms", "integrated_gradients", "generic_attention", "raw_attention", "saliency"]


@pytest.mark.parametrize("methods", [COUNTED, COUNTED[::-1]], ids=["there", "back"])
def test_what_each_of_several_methods_took_is_what_it_takes_alone(methods: list[str]) -> None:
    """Counts, not bounds: shap of seven tokens asks for all sets of them, and may ask for 512 and more."""
    case = CASES["bert"]
    explainer, inputs = wf.Explainer(case.build("sdpa")), {k: v[1:, :7] for k, v in case.inputs().items()}
    how = {"target": 1, "replace": 3, "steps": 3}
    together = explainer.explain(inputs, method=methods, **how)
    for name in methods:
        options = {k: v for k, v in how.items() if k == "target" or k in wf.list_methods()[name].options}
        alone, shared = explainer.explain(inputs, method=name, **options)[0].cost, together[name][0].cost
        assert (shared.forwards, shared.backwards) == (alone.forwards, alone.backwards), name
    assert together["shap"][0].cost.forwards < 2**7 + 2
