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
    alone = {name: explainer.explain(case.inputs(), method=name, target=1) for name in methods}
    calls: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    together = explainer.explain(case.inputs(), method=methods, target=1)
    handle.remove()
    assert len(calls) == 1
    for name in methods:
        for a, b in zip(together[name], alone[name], strict=True):
            np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-6)
