"""The attention debate with several streams (LXMERT, T5, CLIP, DETR)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from tests.checks.quick import exam_of
from tests.methods.properties import model_of
from tests.models import CASES, run
from tests.references.checks import attention_debate as twin
from whyformer.checks.attention_debate import importance, wiegreffe_pinter, without
from whyformer.checks.attention_rows import (
    IN_SHARES,
    LayerRows,
    jsd,
    outputs_with,
    rows_of,
)
from whyformer.checks.jain_wallace import jain_wallace, permuted
from whyformer.errors import NotOffered
from whyformer.views.report_view import checkup_page

QUICK: dict[str, Any] = {"permutations": 4, "candidates": 1, "steps": 2}
SHARED = {"jain_wallace": QUICK, "serrano_smith": {"points": 4, "draws": 1}, "wiegreffe_pinter": {}}
# What is asked of the row (or rows) that feed the head, last of each pair of streams: (call, who asks whom)
LAST = {
    "lxmert": [(9, ("text", "text")), (7, ("text", "image"))],
    "t5": [(4, ("target", "target")), (5, ("target", "source"))],
    "clip": [(1, ("image", "image")), (3, ("text", "text"))],
    "detr": [(5, ("queries", "image"))],
}


def eager(name: str) -> torch.nn.Module:
    return CASES[name].build(CASES[name].implementations[-1])


def alone(name: str, row: int) -> dict[str, Tensor]:
    return {k: v[row : row + 1] for k, v in CASES[name].inputs().items()}


def logits_of(name: str, model: torch.nn.Module, one: dict[str, Tensor]) -> Tensor:
    """(C,) what is explained, from the model's own output."""
    out = run(model, one)
    if name in {"clip", "lxmert"}:
        return (out.logits_per_image if name == "clip" else out.question_answering_score)[0]
    return out.logits[0, {"detr": 2, "t5": -1}.get(name, ...)]


def answered(
    name: str, model: torch.nn.Module, one: dict[str, Tensor], maps: dict[int, tuple[LayerRows, Tensor]]
) -> Any:
    """Logits with rows (H, R, K) of some calls replaced, by answering the model's own softmax calls."""

    def change(call: int, attention: Tensor) -> Tensor:
        if call not in maps:
            return attention
        place, rows_HRK = maps[call]
        changed = attention.clone()
        maps_BHQK = changed if changed.ndim == 4 else changed[None]  # DETR, before transformers 5
        size = attention.shape[-2]
        for i, row in enumerate(place.rows):
            maps_BHQK[row // size, :, row % size] = rows_HRK[:, i].to(attention.dtype)
        return changed

    with torch.no_grad(), twin.answering(change):
        return logits_of(name, model, one)


@pytest.mark.parametrize("name", LAST)
def test_the_rows_that_are_changed_are_those_that_feed_the_head(name: str) -> None:
    exam = exam_of(name)
    with exam.borrowing():
        places = rows_of(exam.run(0))
    assert sorted((p.layer, p.asks) for p in places) == sorted(LAST[name])
    last = CASES["t5"].inputs()["decoder_input_ids"].shape[1] - 1
    read = {"lxmert": {"text": (0,)}, "detr": {"queries": (2,)}, "t5": {"target": (last,)}}
    rows = {p.asks[0]: p.rows for p in places}
    assert rows == read.get(name, rows)
    for place in places:
        assert float(place.read_R.sum()) == pytest.approx(1)
        assert place.shown(place.weights_HRK[None]).sum().item() == pytest.approx(1)
        own = place.weights_HRK * place.free_RK
        share = own / own.sum(-1, keepdim=True)
        assert torch.allclose(place.full(share[None])[0], place.weights_HRK, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "rows", "layers"),
    [*((name, "all", "all") for name in ("bert", "lxmert", "detr")), ("t5", "readout", "last")],
)
def test_imposed_rows_give_what_the_twin_gives(name: str, rows: str, layers: str) -> None:
    exam = exam_of(name)
    with exam.borrowing():
        one = exam.run(0)
        places = rows_of(one, layers, rows=rows)
        maps = permuted(places, 3, seed=0)
        found = outputs_with(one, places, maps)
        own = outputs_with(one, places, [p.weights_HRK[None] for p in places])[0]
    model, inputs = eager(name), alone(name, 0)
    assert own.tolist() == pytest.approx(answered(name, model, inputs, {}).softmax(-1).tolist(), abs=1e-5)
    assert (found - own).abs().max() > 1e-3
    for variant in range(3):
        given = {p.layer: (p, m[variant]) for p, m in zip(places, maps, strict=True)}
        want = answered(name, model, inputs, given).softmax(-1)
        assert found[variant].tolist() == pytest.approx(want.tolist(), abs=1e-5)


def test_a_similarity_is_told_in_shares_of_what_the_units_add() -> None:
    exam = exam_of("clip")
    with exam.borrowing():
        one = exam.run(0)
        places = rows_of(one)
        maps = permuted(places, 2, seed=1)
        found = outputs_with(one, places, maps)
        own = outputs_with(one, places, [p.weights_HRK[None] for p in places])[0]
    assert own.tolist() == pytest.approx([0, 1], abs=1e-5)
    model, inputs = eager("clip"), alone("clip", 0)
    whole = float(answered("clip", model, inputs, {})[0])
    ids, units = inputs["input_ids"].clone(), one.units[0]
    real = [p for p, stream in enumerate(units.stream) if stream == "text"]
    for position, unit in enumerate(real):
        if not units.special[unit]:
            ids[0, position] = 0  # without a tokenizer: the first of the vocabulary
    pixels = inputs["pixel_values"]
    empty = inputs | {"input_ids": ids, "pixel_values": pixels.mean((-2, -1), keepdim=True).expand_as(pixels)}
    nothing = float(answered("clip", model, empty, {})[0])
    for variant in range(2):
        given = {p.layer: (p, m[variant]) for p, m in zip(places, maps, strict=True)}
        share = (float(answered("clip", model, inputs, given)[0]) - nothing) / (whole - nothing)
        assert float(found[variant, 1]) == pytest.approx(share, abs=1e-4)
    result = wf.check(model_of("clip"), CASES["clip"].inputs(), method="raw_attention", checks=SHARED)
    assert any("not a decision" in finding.text for finding in result.of("note"))
    assert all(IN_SHARES in f.text for f in result.findings if f.check == "jain_wallace")
    assert result.results["jain_wallace"].inputs[0].original.scalar == "share"


# Windows


def test_attention_inside_windows_is_refused() -> None:
    with pytest.raises(NotOffered, match="inside windows"):
        jain_wallace(exam_of("swin"), **QUICK)


# Erasing


def test_erased_weights_are_those_of_the_position() -> None:
    exam = exam_of("t5")
    with exam.borrowing():
        one = exam.run(0)
        places = rows_of(one)
        attention, gradient, product = importance(one, places)
        gone = torch.stack([attention.argsort(descending=True)[:2]])
        for place in places:
            rows = without(place, gone)
            erased = torch.isin(place.keys_RK, gone)
            assert (rows[0][:, erased] == 0).all()
            assert torch.allclose(rows.sum(-1), place.weights_HRK.sum(-1)[None], atol=1e-5)
    assert attention.shape == gradient.shape == product.shape
    by_hand = torch.zeros_like(attention)
    for place in places:
        for key, weight in zip(place.keys_RK.flatten(), place.weights_HRK.sum(0).flatten(), strict=True):
            by_hand[key] += weight
    assert torch.allclose(attention, by_hand, atol=1e-4)


# The checks as a whole


@pytest.mark.parametrize("name", ["lxmert", "clip"])
def test_the_debate_runs(name: str) -> None:
    found = wf.check(model_of(name), alone(name, 0), method="raw_attention", checks=SHARED)
    assert set(found.results) == set(SHARED) - ({"serrano_smith"} if name == "clip" else set())
    for test in found.results["jain_wallace"].inputs:
        assert 0 <= test.jsd <= math.log(2) and test.change <= 0.05 and math.isnan(test.mixing)
        assert float(test.original.scores.sum()) == pytest.approx(1, abs=1e-4)
    for one in found.results["wiegreffe_pinter"].inputs:
        assert one.change_everywhere > 0 and 0 < one.jsd <= math.log(2)
    # Every stream is drawn, and what is not known is left out.
    drawn = {"clip": ["Heat", "TokenRun"], "lxmert": ["TokenRun", "Bars"]}
    for view in checkup_page(replace(found, results={"jain_wallace": found.results["jain_wallace"]})).views:
        kinds = [[type(mark).__name__ for mark in panel.marks] for panel in view.panels]
        assert all(kind == drawn[name] for kind in kinds)
        assert view.facts and all("nan" not in fact.value for fact in view.facts)


def test_how_far_from_uniform_is_the_mean_over_who_asks_whom() -> None:
    exam = exam_of("lxmert", alone("lxmert", 0))
    found = wiegreffe_pinter(exam).inputs[0].jsd
    with exam.borrowing():
        places = rows_of(exam.run(0))
    each = [float(jsd(p.shown(p.weights_HRK[None]), p.shown(p.full(p.even_HRK[None])))) for p in places]
    assert len(each) == 2
    assert found == pytest.approx(np.mean(each), abs=1e-6)


def test_each_detection_is_checked_at_its_own_query() -> None:
    exam = exam_of("detr", target=0.42)
    logits = run(model_of("detr"), CASES["detr"].inputs()).logits
    with exam.borrowing():
        for row in range(exam.size):
            one = exam.run(row)
            target = exam.explanations[row].target
            queries = [i for i in range(2) if torch.allclose(one.logits[0], logits[i, target.position], atol=1e-4)]
            assert len(queries) == 1
            assert one.targets[0].index == target.index
    assert exam.size > 2
    found = wf.check(model_of("detr"), CASES["detr"].inputs(), target=0.42, checks=["class_dependence", "sinks"])
    assert found.inputs == exam.size and len(found.results) == 2
    assert not any("was not run" in f.title for f in found.findings)
