"""gradient_rollout against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest

import whyformer as wf
from tests.methods.properties import FAMILY, TARGET, close, explained, golden, meets_golden
from tests.references.eager_attention import reported
from tests.references.gradient_rollout import gradient_rollout

METHOD = {"method": "gradient_rollout"}


def test_special_tokens_are_kept_from_being_discarded() -> None:
    # A ViT's class token is the only special one: with everything else discarded its row and column are left.
    plain, kept = (explained("vit", double=True, **METHOD, discard=0.9, protect_special=p)[0] for p in (False, True))
    own = reported("vit", 0, TARGET)
    close(kept.matrix, gradient_rollout(own.attention, own.gradient, discard=0.9, protected=[0]))
    assert not np.allclose(plain.matrix, kept.matrix, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1])
def test_golden(row: int) -> None:
    case = golden()
    found = wf.explain(case.model, case.inputs, target=case.target, **METHOD)[row]
    meets_golden(found.matrix, "grad_rollout.R", row)
    for discard in (0.0, 0.5):
        scores = wf.explain(case.model, case.inputs, target=case.target, discard=discard, **METHOD)[row].scores[1:]
        meets_golden(scores / scores.max(), f"grad_rollout.fixed.discard{discard}", row)


def test_rows_sum_to_one_and_layers_lead_to_the_whole() -> None:
    for name in FAMILY:
        for found in explained(name, **METHOD, keep_layers=True, discard=0.4):
            assert found.matrix is not None and found.layers is not None
            close(np.asarray(found.matrix).sum(1), np.ones(len(found.units)))
            close(found.layers[-1], found.matrix)
