"""What "mean" means: reference rows, or an input's own steps; never the other inputs of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import seeded
from tests.tables.models import CATEGORIES, LAYOUTS, rows, shared, table
from whyformer.errors import BadInput

MEANS: list[dict[str, Any]] = [
    {"method": "integrated_gradients", "baseline": "mean", "steps": 8},
    {"method": "occlusion", "replace": "mean"},
    {"method": "shap", "replace": "mean"},
]
SOME = rows(4)


@pytest.mark.parametrize("how", MEANS, ids=lambda how: how["method"])
def test_a_row_has_the_same_scores_alone_and_with_others(how: dict[str, Any]) -> None:
    model, described = LAYOUTS["rtdl"].build(), table(reference=rows(9, seed=3))
    together = wf.explain(model, SOME, processor=described, target=1, **how)[0]
    alone = wf.explain(model, SOME[0], processor=described, target=1, **how)
    np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
    assert np.abs(alone.scores).max() > 1e-3
    usual = wf.explain(model, SOME[0], processor=described, target=1, **{k: v for k, v in how.items() if v != "mean"})
    np.testing.assert_allclose(alone.scores, usual.scores, atol=1e-6)  # with reference rows it is the default


@pytest.mark.parametrize("how", MEANS, ids=lambda how: how["method"])
def test_rows_to_take_the_mean_from_have_to_be_named(how: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"mean .*not .*explained together.*reference=rows"):
        wf.explain(shared("rtdl"), SOME, processor=table(), **how)
    case = CASES["rtdl_ft_transformer"]
    with pytest.raises(BadInput, match=r"mean of a column.*reference=rows"):
        wf.explain(case.build(None), case.inputs(), **how)


def test_columns_without_a_token_stay_where_integrated_gradients_start() -> None:
    """Numbers of a TabTransformer go around attention: what they change is no part of the sum."""
    model, reference = LAYOUTS["lucidrains_tab"].build(), rows(9, seed=3)
    described = table(reference=reference)
    found = wf.explain(model, SOME, processor=described, method="integrated_gradients", target=1, steps=2)
    codes = {k: max(known := [r[k] for r in reference], key=known.count) for k in CATEGORIES}
    for row, one in zip(SOME, found, strict=True):
        start = wf.explain(model, row | codes, processor=described, target=1)
        assert one.base == pytest.approx(start.value, abs=1e-5)


class Series(nn.Module):
    """A head over the mean of attended steps."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = torch.tanh(self.attend(x, x, x, key_padding_mask=~mask.bool())[0] + x)
        return self.out((y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("how", MEANS, ids=lambda how: how["method"])
def test_steps_take_the_mean_of_their_own_series(how: dict[str, Any]) -> None:
    model = seeded(Series)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 5, dtype=torch.int64)
    mask[0, 4:] = 0
    found = wf.explain(model, {"x": x, "mask": mask}, target=1, **how)[0]
    alone = wf.explain(model, {"x": x[:1], "mask": mask[:1]}, target=1, **how)[0]
    np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
    if how["method"] == "occlusion":
        changed = x[:1].clone()
        changed[0, 1] = x[0, :4].mean(0)
        expected = model(x[:1], mask[:1])[0, 1] - model(changed, mask[:1])[0, 1]
        assert float(found.scores[1]) == pytest.approx(expected.item(), abs=1e-5)
    if how["method"] == "integrated_gradients":
        changed = torch.where(mask[:1, :, None].bool(), x[0, :4].mean(0), x[:1])
        assert found.base == pytest.approx(model(changed, mask[:1])[0, 1].item(), abs=1e-5)


def test_comparing_on_one_row_needs_others_for_the_mean() -> None:
    model = LAYOUTS["rtdl"].build()
    with pytest.raises(BadInput, match=r"single input is the input itself.*reference="):
        wf.compare(model, SOME[:1], processor=table(), methods=["saliency"], replace="mean")
    result = wf.compare(model, SOME[:1], processor=table(), methods=["saliency"], replace="mean", reference=SOME[1:])
    assert result["saliency"].scores
