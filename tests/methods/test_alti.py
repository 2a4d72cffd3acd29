"""alti against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import FAMILY, close, explained, golden, meets_golden
from tests.methods.runs import running
from tests.models import CASES
from whyformer.engines.attention import value_vectors as contributions
from whyformer.methods.value_contributions import proximity

METHOD = {"method": "alti"}


def test_meets_the_golden_numbers() -> None:
    case = golden()
    for norm, key in (("l1", "alti.layers"), ("l2", "alti.l2.layers")):
        found = wf.explain(case.model, case.inputs, target=case.target, **METHOD, norm=norm, keep_layers=True)
        for row, one in enumerate(found):
            meets_golden(one.layers, key, row)
            if norm == "l1":
                meets_golden(one.matrix, "alti.R", row)


def test_transformed_vectors_meet_the_golden_numbers() -> None:
    case = golden()
    found = wf.explain(
        case.model, case.inputs, target=case.target, method="value_norms", level="attn_res_ln", keep_layers=True
    )
    for row, one in enumerate(found):
        meets_golden(one.layers, "alti.transformed_norm", row)


@pytest.mark.parametrize("name", [*FAMILY, "gemma2", "gpt_neox", "opt", "xlnet", "looped_heads", "rtdl_ft_transformer"])
def test_rows_are_shares(name: str) -> None:
    for found in explained(name, **METHOD):
        assert isinstance(found.matrix, np.ndarray)
        assert found.matrix.min() >= 0
        assert found.matrix.max() <= 1 + 1e-6
        close(found.matrix.sum(-1), np.ones(len(found.matrix)))


def test_a_few_rows_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("bert") as run:
        for site, block in run.anatomy().layers:
            parts = contributions.contributions(site, block, "attn_res_ln")
            at_once = proximity(parts, block.attended_BQE, 1)
            monkeypatch.setattr(contributions, "BUDGET", 1)
            close(proximity(parts, block.attended_BQE, 1), at_once, 1e-6)
            monkeypatch.undo()


def test_a_row_that_nothing_comes_near_is_zero_not_nan() -> None:
    with running("bert") as run:
        site, block = next(iter(run.anatomy().layers))
        parts = contributions.contributions(site, block, "attn_res_ln")
        away = -1e-3 * parts.diagonal_BQE
        near = proximity(parts, away, 1)
    model = CASES["bert"].build("sdpa")
    assert torch.isfinite(near).all()
    with torch.no_grad():  # a bias of the norm that drowns every contribution, and the residual, in itself
        norm = model.bert.encoder.layer[0].attention.output.LayerNorm
        norm.weight.zero_()
    for found in wf.explain(model, CASES["bert"].inputs(), **METHOD):
        assert np.isfinite(found.scores).all()
        assert not found.scores.any()
