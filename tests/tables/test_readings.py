"""Every reading of every library's model against its twin, by the names of the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.references import tables as twin
from tests.tables.models import CATEGORIES, HEADS, LAYOUTS, NUMBERS, maps_of, rows, shared, table, tensors

TARGET = 1
READINGS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "first layer": ("raw_attention", {"layers": 0}, lambda a, g, r: twin.first_layer(a, r)),
    "mean of layers": ("raw_attention", {"layers": "mean"}, lambda a, g, r: twin.mean_of_layers(a, r)),
    "diagonal": ("raw_attention", {"layers": 0, "read": "diagonal"}, lambda a, g, r: twin.diagonal(a)),
    "column sum": ("raw_attention", {"layers": 0, "read": "column_sum"}, lambda a, g, r: twin.column_sum(a)),
    "rollout": ("attention_rollout", {}, lambda a, g, r: twin.rollout(a, r)),
    "generic attention": ("generic_attention", {}, twin.generic_attention),
    "Grad-SAM": ("grad_sam", {}, lambda a, g, r: twin.grad_sam(a, g, r, "query")),
    "Grad-SAM by key": ("grad_sam", {"reduce": "key"}, lambda a, g, r: twin.grad_sam(a, g, r, "key")),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_readings_equal_their_twins(name: str) -> None:
    layout = LAYOUTS[name]
    some = rows(3)
    model = shared(name)
    expected = [maps_of(layout, row, TARGET) for row in some]
    assert all(a.std() > 0.02 for maps, _ in expected for a in maps), "maps too even to tell mistakes"
    for reading, (method, options, twin_of) in READINGS.items():
        found = wf.explain(model, some, processor=table(), method=method, target=TARGET, **options)
        for explanation, (maps, gradients) in zip(found, expected, strict=True):
            own = [label if label != "[CLS]" else None for label in explanation.units.labels]
            assert tuple(own) == layout.tokens, name
            scores = twin_of(maps, gradients, layout.readout)
            np.testing.assert_allclose(explanation.scores, scores, atol=1e-5, err_msg=f"{name}, {reading}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_row_says_does_not_depend_on_its_batch(name: str) -> None:
    some = rows(3)
    explainer = wf.Explainer(shared(name), table())
    together = explainer.explain(some, target=TARGET)
    for row, found in zip(some, together, strict=True):
        alone = explainer.explain(row, target=TARGET)
        assert isinstance(alone, wf.Explanation)
        np.testing.assert_allclose(alone.scores, found.scores, atol=1e-5)
        values = dict(zip(found.units.labels, found.units.values or (), strict=True))
        assert values["work"] == row["work"]
        assert all(values.get(n, f"{row[n]:.6g}") == f"{row[n]:.6g}" for n in NUMBERS)


def test_columns_without_a_token_are_listed_not_scored() -> None:
    found = wf.explain(shared("lucidrains_tab"), rows(1)[0], processor=table())
    assert found.units.labels == tuple(CATEGORIES)
    assert found.units.unseen == NUMBERS
    assert any("not explained by attention: age, hours, gain" in w for w in found.warnings)
    plain = wf.explain(shared("rtdl"), rows(1)[0], processor=table())
    assert plain.units.unseen == () and not any("not explained" in w for w in plain.warnings)


@pytest.mark.parametrize("name", ["rtdl", "cls_last", "no_cls"])
def test_integrated_gradients_add_up_and_equal_their_definition(name: str) -> None:
    """From the embeddings of a typical row to those of the row; for rtdl also step by step in the test itself."""
    layout, row = LAYOUTS[name], rows(1)[0]
    described = table(reference=rows(7, seed=5))
    options: dict[str, Any] = {"processor": described, "method": "integrated_gradients", "target": TARGET}
    found = wf.explain(shared(name), row, steps=60, **options)
    assert found.base is not None
    assert float(found.scores.sum()) == pytest.approx(found.value - found.base, abs=1e-3)
    columns = {c: [r[c] for r in rows(7, seed=5)] for c in row}
    typical = {c: float(np.mean(v)) if c in NUMBERS else max(v, key=v.count) for c, v in columns.items()}
    assert found.base == pytest.approx(wf.explain(shared(name), typical, **options).value, abs=1e-5)
    if name == "rtdl":
        expected = _integrated(layout, row, typical, steps=6)
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


@pytest.mark.parametrize("name", ["cls_first", "cls_last", "no_cls"])
def test_value_norms_equal_their_twin(name: str) -> None:
    """From the weights of the model, block by block."""
    layout, row = LAYOUTS[name], rows(1)[0]
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


@pytest.mark.parametrize("name", ["cls_first", "cls_last"])
def test_where_the_class_token_stands_only_moves_it(name: str) -> None:
    """Same weights, class token first or last: columns keep their scores."""
    weights = LAYOUTS["cls_first"].build().state_dict()
    model = LAYOUTS[name].build()
    model.load_state_dict(weights)
    first = shared("cls_first")
    row = rows(1)[0]
    for method in ("generic_attention", "attention_rollout", "grad_sam", "raw_attention"):
        one = dict(wf.explain(first, row, processor=table(), method=method, target=TARGET).ranked())
        other = dict(wf.explain(model, row, processor=table(), method=method, target=TARGET).ranked())
        assert one == pytest.approx(other, abs=1e-5)


def test_half_precision_weights() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        found = wf.explain(LAYOUTS["rtdl"].build().to(dtype), rows(2), processor=table())
        assert all(np.isfinite(e.scores).all() for e in found)


def test_columns_can_be_taken_away_and_filled_from_reference_rows() -> None:
    model, row = LAYOUTS["rtdl"].build(), rows(1)[0]
    reference = rows(9, seed=3)
    described = table(reference=reference)
    found = wf.explain(model, row, processor=described, method="occlusion", target=TARGET)
    for column in (*NUMBERS, *CATEGORIES):
        known = [r[column] for r in reference]
        filler = float(np.mean(known)) if column in NUMBERS else max(known, key=known.count)
        other = wf.explain(model, row | {column: filler}, processor=described, target=TARGET)
        assert dict(found.ranked())[column] == pytest.approx(found.value - other.value, abs=1e-5)
    shares = wf.explain(model, row, processor=described, method="shap", target=TARGET)
    assert shares.base is not None
    assert float(shares.scores.sum()) == pytest.approx(shares.value - shares.base, abs=1e-4)


def test_classes_have_the_names_of_the_table() -> None:
    found = wf.explain(shared("rtdl"), rows(1)[0], processor=table(), target="yes")
    assert found.target.label == "yes"
