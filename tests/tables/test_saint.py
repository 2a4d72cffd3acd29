"""Rows that look at each other: explained beside named reference rows, row attention kept apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models.case import softmax_outputs
from tests.tables.models import COLUMNS, HEADS, LAYOUTS, rows, saint, table, tensors
from tests.tables.test_readings import READINGS, TARGET
from whyformer.errors import BadInput, NotOffered
from whyformer.tables import row_attention

REFERENCE = rows(8, seed=7)  # with the row itself 9: neither the heads (2) nor the tokens (6)


def described(**more: Any) -> wf.Table:
    return table(reference=REFERENCE, reference_name="rows of May", **more)


def alone_among(row: dict[str, Any], double: bool = True) -> tuple[Any, list[torch.Tensor]]:
    """Logits of the row beside the reference, and every softmax on the way (columns, rows, columns, …)."""
    model = saint().double() if double else saint()
    numbers, codes = tensors([row, *REFERENCE])
    with softmax_outputs() as found:
        logits = model(numbers if double else numbers.float(), codes)
    return logits, found


def test_readings_equal_their_twins() -> None:
    row = rows(1)[0]
    logits, found = alone_among(row)
    over_columns = found[::2]
    gradients = torch.autograd.grad(logits[0, TARGET], over_columns)
    maps = [a.unflatten(0, (-1, HEADS))[0].detach().numpy() for a in over_columns]
    grads = [g.unflatten(0, (-1, HEADS))[0].numpy() for g in gradients]
    for reading, (method, options, twin_of) in READINGS.items():
        explained = wf.explain(saint(), row, processor=described(), method=method, target=TARGET, **options)
        assert explained.units.labels == ("[CLS]", *COLUMNS)
        assert explained.value == pytest.approx(float(logits[0, TARGET].detach()), abs=1e-5)
        np.testing.assert_allclose(explained.scores, twin_of(maps, grads, (0,)), atol=1e-5, err_msg=reading)


def test_each_row_is_explained_beside_the_reference_and_not_its_neighbours() -> None:
    some = rows(3)
    methods = ["generic_attention", "occlusion", "saliency"]
    together = wf.explain(saint(), some, processor=described(), method=methods, target=TARGET)
    for name in methods:
        for row, found in zip(some, together[name], strict=True):
            alone = wf.explain(saint(), row, processor=described(), method=name, target=TARGET)
            np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
            assert any("explained beside 8 rows of May" in w for w in found.warnings)


def test_integrated_gradients_move_the_row_alone() -> None:
    row = rows(1)[0]
    options: dict[str, Any] = {"processor": described(), "target": TARGET}
    found = wf.explain(saint(), row, method="integrated_gradients", steps=40, **options)
    assert found.base is not None
    assert float(found.scores.sum()) == pytest.approx(found.value - found.base, abs=1e-3)
    assert (found.cost.forwards, found.cost.backwards) == (42, 40)


def test_row_attention_is_the_model_s_own() -> None:
    row = rows(1)[0]
    _, found = alone_among(row)
    seen = row_attention(saint(), row, processor=described())
    assert seen.labels[:2] == ("this row", "rows of May 0") and len(seen.labels) == 9
    expected = np.stack([a.detach().numpy()[:, 0] for a in found[1::2]])
    np.testing.assert_allclose(seen.weights_LHR, expected, atol=1e-5)
    np.testing.assert_allclose(seen.weights_LHR.sum(-1), 1, atol=1e-5)
    assert seen.ranked()[0][1] >= seen.ranked()[-1][1]
    with pytest.raises(NotOffered, match="do not look at each other"):
        row_attention(LAYOUTS["rtdl"].build(), row, processor=described())


def test_without_reference_rows_it_is_refused() -> None:
    with pytest.raises(BadInput, match="reference=rows"):
        wf.explain(saint(), rows(1)[0], processor=table())


def test_a_reference_as_large_as_the_heads_or_the_tokens_is_cut_by_a_row() -> None:
    """1 + 5 = 6 tokens, 1 + 1 = 2 heads: sizes that could be mixed up."""
    row, how = rows(1)[0], {"method": "generic_attention", "target": TARGET}
    found = wf.explain(saint(), row, processor=table(reference=REFERENCE[:5]), **how)
    fewer = wf.explain(saint(), row, processor=table(reference=REFERENCE[:4]), **how)
    np.testing.assert_allclose(found.scores, fewer.scores, atol=1e-6)
    assert any("beside 4 reference rows" in w for w in found.warnings)
    with pytest.raises(BadInput, match="too few"):
        wf.explain(saint(), row, processor=table(reference=REFERENCE[:1]), **how)


def test_the_model_comes_back_as_it_was() -> None:
    model = saint()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    numbers, codes = tensors(REFERENCE)
    plain = model(numbers.float(), codes)
    wf.explain(model, rows(2), processor=described(), method=["generic_attention", "integrated_gradients"], steps=2)
    assert torch.equal(plain, model(numbers.float(), codes))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
