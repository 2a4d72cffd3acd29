"""Attention × gradient against its twin, in every reading."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models import CASES
from whyformer.errors import NotOffered, UnknownName


def test_it_depends_on_the_class_and_is_never_negative() -> None:
    case = CASES["bert"]
    model = case.build(None)
    first, second = (wf.explain(model, case.inputs(), method="attention_x_gradient", target=t) for t in (0, 1))
    assert not np.allclose(first[0].scores, second[0].scores)
    assert all((e.scores >= 0).all() for e in first)


def test_the_last_layer_has_a_gradient_at_the_readout_only() -> None:
    case = CASES["bert"]
    how = {"method": "attention_x_gradient", "target": 1}
    row = wf.explain(case.build(None), case.inputs(), **how)[0].scores
    received = wf.explain(case.build(None), case.inputs(), **how, read="column_sum")[0].scores
    np.testing.assert_allclose(row, received, atol=1e-6)


def test_one_token_and_half_precision() -> None:
    case = CASES["bert"]
    one = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.tensor([[1]])}
    assert np.isfinite(wf.explain(case.build(None), one, method="attention_x_gradient")[0].scores).all()
    half = case.build(None).bfloat16()
    assert all(np.isfinite(e.scores).all() for e in wf.explain(half, case.inputs(), method="attention_x_gradient"))
    with pytest.raises(UnknownName, match="column"):
        wf.explain(case.build(None), one, method="attention_x_gradient", read="columns")


@pytest.mark.parametrize("method", ["raw_attention", "attention_x_gradient"])
def test_a_last_layer_of_one_row_has_no_columns(method: str) -> None:
    """FT-Transformer asks for its CLS row only in the last block."""
    case = CASES["rtdl_ft_transformer"]
    model = case.build(None)
    for options in ({"layers": "last"}, {"layers": "product"}):
        for read in ("column", "column_max", "diagonal"):
            with pytest.raises(NotOffered, match="read='row'"):
                wf.explain(model, case.inputs(), method=method, read=read, **options)
    for options in ({"layers": 0, "read": "column"}, {"layers": "mean", "read": "column_max"}, {"layers": "product"}):
        found = wf.explain(model, case.inputs(), method=method, **options)
        assert all(len(e.scores) == len(e.units) for e in found)
