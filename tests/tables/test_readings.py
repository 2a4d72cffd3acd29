"""Every reading of every library's model against its twin, by the names of the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.models.case import softmax_outputs
from tests.references import tables as twin
from tests.tables.models import CATEGORIES, HEADS, LAYOUTS, NUMBERS, maps_of, rows, saint, shared, table, tensors
from whyformer.errors import BadInput, NotOffered
from whyformer.tables import row_attention

TARGET = 1
READINGS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "first layer": ("raw_attention", {"layers": 0}, lambda a, g, r: twin.first_layer(a, r)),
    "diagonal": ("raw_attention", {"layers": 0, "read": "diagonal"}, lambda a, g, r: twin.diagonal(a)),
    "column sum": ("raw_attention", {"layers": 0, "read": "column_sum"}, lambda a, g, r: twin.column_sum(a)),
    "rollout": ("attention_rollout", {}, lambda a, g, r: twin.rollout(a, r)),
    "generic attention": ("generic_attention", {}, twin.generic_attention),
    "Grad-SAM": ("grad_sam", {}, lambda a, g, r: twin.grad_sam(a, g, r, "query")),
}


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"cls_first"}))
def test_readings_equal_their_twins(name: str) -> None:
    layout = LAYOUTS[name]
    some = rows(2)
    model = shared(name)
    expected = [maps_of(layout, row, TARGET) for row in some]
    assert all(a.std() > 0.02 for maps, _ in expected for a in maps), "maps too even to tell mistakes"
    for reading, (method, options, twin_of) in READINGS.items():
        found = wf.explain(model, some, processor=table(), method=method, target=TARGET, **options)
        for row, explanation, (maps, gradients) in zip(some, found, expected, strict=True):
            values = dict(zip(explanation.units.labels, explanation.units.values or (), strict=True))
            assert values["work"] == row["work"] and values.get("age", f"{row['age']:.6g}") == f"{row['age']:.6g}"
            own = [label if label != "[CLS]" else None for label in explanation.units.labels]
            assert tuple(own) == layout.tokens, name
            scores = twin_of(maps, gradients, layout.readout)
            np.testing.assert_allclose(explanation.scores, scores, atol=1e-5, err_msg=f"{name}, {reading}")


def test_columns_without_a_token_are_listed_not_scored() -> None:
    found = wf.explain(shared("lucidrains_tab"), rows(1)[0], processor=table(), method="generic_attention")
    assert found.units.labels == tuple(CATEGORIES) and found.units.unseen == NUMBERS
    assert "of the value depends on age, hours and gain, which are not scored" in found.warnings[0]
    plain = wf.explain(shared("rtdl"), rows(1)[0], processor=table(), target="yes")
    assert plain.target.label == "yes" and plain.units.unseen == ()
    assert not any("not scored" in w for w in plain.warnings)


def test_integrated_gradients_add_up_and_equal_their_definition() -> None:
    """From the embeddings of a typical row to those of the row, also step by step in the test itself."""
    name, row = "rtdl", rows(1)[0]
    described = table(reference=rows(7, seed=5))
    options: dict[str, Any] = {"processor": described, "method": "integrated_gradients", "target": TARGET}
    found = wf.explain(shared(name), row, steps=60, **options)
    assert found.base is not None
    assert float(found.scores.sum()) == pytest.approx(found.value - found.base, abs=1e-3)
    columns = {c: [r[c] for r in rows(7, seed=5)] for c in row}
    typical = {c: float(np.mean(v)) if c in NUMBERS else max(v, key=v.count) for c, v in columns.items()}
    assert found.base == pytest.approx(wf.explain(shared(name), typical, **options).value, abs=1e-5)
    expected = _integrated(LAYOUTS[name], row, typical, steps=6)
    np.testing.assert_allclose(wf.explain(shared(name), row, steps=6, **options).scores, expected, atol=1e-5)


def _integrated(layout: Any, row: dict[str, Any], typical: dict[str, Any], steps: int) -> np.ndarray:
    model = layout.build().double()

    def tokens(one: dict[str, Any]) -> torch.Tensor:
        numbers, codes = tensors([one])
        parts = [model.cls_embedding((1,)), model.cont_embeddings(numbers), model.cat_embeddings(codes)]
        return torch.cat(parts, 1).detach()

    start, end = tokens(typical), tokens(row)
    total = torch.zeros_like(end)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    for node, weight in zip(nodes, weights, strict=True):
        point = (start + (end - start) * (node + 1) / 2).requires_grad_()
        total += torch.autograd.grad(model.backbone(point)[0, TARGET], point)[0] * weight / 2
    return ((end - start) * total).sum(2)[0].numpy()


def test_value_norms_equal_their_twin() -> None:
    """From the weights of the model, block by block."""
    name, row = "cls_last", rows(1)[0]
    layout = LAYOUTS[name]
    model = layout.build().double()
    streams: list[torch.Tensor] = []
    for block in model.encoder:
        block.register_forward_hook(lambda module, args, out: streams.append(args[0][0].detach()))
    maps, _ = maps_of(layout, row, TARGET)
    model(*tensors([row]))
    blocks = []
    for block, stream, attention in zip(model.encoder, streams, maps, strict=True):
        own = block.attention
        _, _, weight = own.in_proj_weight.detach().chunk(3)
        values = block.norm1(stream) @ weight.T + own.in_proj_bias.detach().chunk(3)[2]
        per_head = values.detach().unflatten(1, (HEADS, -1)).transpose(0, 1)
        output = own.out_proj.weight.detach().T.unflatten(0, (HEADS, -1))
        blocks.append((attention, per_head.numpy(), output.numpy(), stream.numpy()))
    expected = twin.value_norms(blocks, layout.readout)
    found = wf.explain(shared(name), row, processor=table(), method="value_norms", target=TARGET)
    np.testing.assert_allclose(found.scores / expected.max(), expected / expected.max(), atol=1e-5)


def test_columns_can_be_taken_away_and_filled_from_reference_rows() -> None:
    model, row = LAYOUTS["rtdl"].build(), rows(1)[0]
    reference = rows(9, seed=3)
    described = table(reference=reference)
    found = wf.explain(model, row, processor=described, method="occlusion", target=TARGET, replace="mean")
    for column in (*NUMBERS, *CATEGORIES):
        known = [r[column] for r in reference]
        filler = float(np.mean(known)) if column in NUMBERS else max(known, key=known.count)
        other = wf.explain(model, row | {column: filler}, processor=described, target=TARGET)
        assert dict(found.ranked())[column] == pytest.approx(found.value - other.value, abs=1e-5)
    shares = wf.explain(model, row, processor=described, method="shap", target=TARGET)
    assert shares.base is not None
    assert float(shares.scores.sum()) == pytest.approx(shares.value - shares.base, abs=1e-4)


# Rows that look at each other: explained beside named reference rows, row attention kept apart.


SAINT = saint()  # studied once
REFERENCE = rows(8, seed=7)  # with the row itself 9: neither the heads (2) nor the tokens (6)


def beside(**more: Any) -> wf.Table:
    return table(reference=REFERENCE, reference_name="rows of May", **more)


def alone_among(row: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """Logits of the row beside the reference, and every softmax on the way (columns, rows, columns, …)."""
    with softmax_outputs() as found:
        logits = saint().double()(*tensors([row, *REFERENCE]))
    return logits, found


def test_readings_of_saint_equal_their_twins() -> None:
    row = rows(1)[0]
    logits, found = alone_among(row)
    over_columns = found[::2]
    gradients = torch.autograd.grad(logits[0, TARGET], over_columns)
    maps = [a.unflatten(0, (-1, HEADS))[0].detach().numpy() for a in over_columns]
    grads = [g.unflatten(0, (-1, HEADS))[0].numpy() for g in gradients]
    for reading, (method, options, twin_of) in READINGS.items():
        explained = wf.explain(SAINT, row, processor=beside(), method=method, target=TARGET, **options)
        assert explained.units.labels == ("[CLS]", *NUMBERS, *CATEGORIES)
        assert explained.value == pytest.approx(float(logits[0, TARGET].detach()), abs=1e-5)
        np.testing.assert_allclose(explained.scores, twin_of(maps, grads, (0,)), atol=1e-5, err_msg=reading)


def test_each_row_is_explained_beside_the_reference_and_not_its_neighbours() -> None:
    some = rows(2)
    methods = ["generic_attention", "occlusion"]
    together = wf.explain(SAINT, some, processor=beside(), method=methods, target=TARGET)
    for name in methods:
        for row, found in zip(some, together[name], strict=True):
            alone = wf.explain(SAINT, row, processor=beside(), method=name, target=TARGET)
            np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
            assert any("explained beside 8 rows of May" in w for w in found.warnings)


def test_integrated_gradients_move_the_row_alone() -> None:
    options: dict[str, Any] = {"processor": beside(), "target": TARGET, "method": "integrated_gradients"}
    found = wf.explain(SAINT, rows(1)[0], steps=40, **options)
    assert found.base is not None
    assert float(found.scores.sum()) == pytest.approx(found.value - found.base, abs=1e-3)
    assert (found.cost.forwards, found.cost.backwards) == (42, 40)


def test_row_attention_is_the_model_s_own() -> None:
    row = rows(1)[0]
    _, found = alone_among(row)
    seen = row_attention(SAINT, row, processor=beside())
    assert seen.labels[:2] == ("this row", "rows of May 0") and len(seen.labels) == 9
    expected = np.stack([a.detach().numpy()[:, 0] for a in found[1::2]])
    np.testing.assert_allclose(seen.weights_LHR, expected, atol=1e-5)
    assert seen.ranked()[0][1] >= seen.ranked()[-1][1]
    with pytest.raises(NotOffered, match="do not attend to each other"):
        row_attention(LAYOUTS["rtdl"].build(), row, processor=beside())


def test_a_reference_as_large_as_the_heads_or_the_tokens_is_cut_by_a_row() -> None:
    """1 + 5 = 6 tokens, 1 + 1 = 2 heads: sizes that could be mixed up."""
    row, how = rows(1)[0], {"method": "generic_attention", "target": TARGET}
    found = wf.explain(SAINT, row, processor=table(reference=REFERENCE[:5]), **how)
    fewer = wf.explain(SAINT, row, processor=table(reference=REFERENCE[:4]), **how)
    np.testing.assert_allclose(found.scores, fewer.scores, atol=1e-6)
    assert any("beside 4 reference rows" in w for w in found.warnings)
    for described, words in ((table(reference=REFERENCE[:1]), "too few"), (table(), "reference=rows")):
        with pytest.raises(BadInput, match=words):
            wf.explain(SAINT, row, processor=described, **how)
