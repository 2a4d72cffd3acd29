"""Jain & Wallace, Serrano & Smith, Wiegreffe & Pinter: against loop-by-loop twins, and what must hold on any model."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.checks.quick import exam_of
from tests.methods.properties import model_of, padded
from tests.models import CASES
from tests.references.checks import attention_debate as twin
from whyformer.checks.attention_debate import ORDERS, importance, serrano_smith, wiegreffe_pinter
from whyformer.checks.attention_rows import (
    gradient_x_input,
    jsd,
    kendall,
    leave_one_out,
    outputs_with,
    probabilities,
    rank_agreement,
    rows_of,
    tvd,
)
from whyformer.checks.exam import Exam
from whyformer.checks.jain_wallace import adversarial_attention, jain_wallace, permuted
from whyformer.verbs import Explainer

FILLER = 0
QUICK: dict[str, Any] = {"permutations": 8, "candidates": 2, "steps": 4}


@cache
def eager() -> torch.nn.Module:
    return CASES["bert"].build("eager")


def alone(row: int) -> dict[str, torch.Tensor]:
    inputs = CASES["bert"].inputs()
    length = int(inputs["attention_mask"][row].sum())
    return {k: v[row : row + 1, :length] for k, v in inputs.items()}


# Distances


def test_divergence_is_bounded_symmetric_and_zero_only_for_equal_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, 6, generator=generator).mul(3).softmax(-1).double() for _ in range(2))
    values = jsd(a, b)
    assert ((values > 0) & (values <= math.log(2) + 1e-12)).all()
    assert torch.allclose(values, jsd(b, a)) and jsd(a, a).abs().max() < 1e-12
    assert float(jsd(*torch.eye(2, dtype=torch.float64))) == pytest.approx(math.log(2))
    for row in range(5):
        assert float(values[row]) == pytest.approx(twin.divergence(a[row].tolist(), b[row].tolist()), abs=1e-9)
        assert float(tvd(a[row], b[row])) == pytest.approx(twin.total_variation(a[row].tolist(), b[row].tolist()))
    theta = torch.tensor([0.0, 1.0, -1e4], requires_grad=True)
    (grad,) = torch.autograd.grad(jsd(theta.softmax(-1), torch.tensor([0.5, 0.5, 0.0])), theta)
    assert torch.isfinite(grad).all(), "a slope where a weight is zero"


def test_rank_agreement_of_constants() -> None:
    assert rank_agreement(np.ones(5), np.ones(5)) == 1.0
    assert math.isnan(rank_agreement(np.ones(5), np.arange(5)))
    assert rank_agreement(np.arange(5), -np.arange(5)) == pytest.approx(-1)
    assert math.isnan(kendall(np.ones(5), np.arange(5))[0])


# Twins


def test_correlations_equal_the_twin() -> None:
    exam = exam_of(target=1)
    found = jain_wallace(exam, **QUICK)
    for row, test in enumerate(found.inputs):
        one = alone(row)
        words = [i for i, special in enumerate(test.original.units.special) if not special]
        attention = twin.own_row(eager(), one, 1).mean(0).tolist()
        slopes = twin.gradient_x_input(eager(), one, 1)
        losses = twin.leave_one_out(eager(), one, FILLER)
        with exam.borrowing():
            run = exam.run(row)
            assert gradient_x_input(run) == pytest.approx(slopes, rel=1e-3, abs=1e-5)
            assert leave_one_out(run) == pytest.approx(losses, abs=1e-5)
        picked = [[values[i] for i in words] for values in (attention, slopes, losses)]
        assert test.tau_gradient == pytest.approx(twin.kendall(picked[0], picked[1]))
        assert test.tau_loo == pytest.approx(twin.kendall(picked[0], picked[2]))


def test_several_layers_are_shown_as_their_mean() -> None:
    found = jain_wallace(exam_of(target=1), layers="all", **QUICK).inputs[0]
    rows = [twin.own_row(eager(), alone(0), layer).mean(0) for layer in (0, 1)]
    mean = (sum(rows) / 2).tolist()
    assert found.original.scores.tolist() == pytest.approx(mean, abs=1e-5)
    assert found.tau_gradient == pytest.approx(twin.kendall(mean, twin.gradient_x_input(eager(), alone(0), 1)))


@pytest.mark.parametrize("row", [0, 1])
def test_erasure_equals_the_twin(row: int) -> None:
    exam = exam_of()
    found = serrano_smith(exam, draws=1).inputs[row]
    with exam.borrowing():
        run = exam.run(row)
        places = rows_of(run)
        scores = dict(zip(ORDERS, importance(run, places), strict=False))
        keys = places[0].free_RK.any(0).nonzero()[:, 0].tolist()
    for name, values in scores.items():
        order = sorted(keys, key=lambda k: -float(values[k]))
        want = twin.erased_until_flip(eager(), alone(row), 1, order)
        assert found.erased[name] == pytest.approx(1.0 if want is None else want)
        assert found.flipped[name] == float(want is not None)


def test_some_decision_flips_on_the_test_model() -> None:
    """Else the comparison with the twin would compare nothing."""
    flipped = [i.flipped for i in serrano_smith(exam_of(), layers="all").inputs]
    assert any(share > 0 for each in flipped for share in each.values())


# What must hold


def uniform_bert() -> torch.nn.Module:
    """Queries are zero: every row of attention is uniform."""
    model = CASES["bert"].build("sdpa")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query." in name:
                parameter.zero_()
    return model


def test_permuting_uniform_attention_changes_nothing() -> None:
    exam = Exam(Explainer(uniform_bert()), CASES["bert"].inputs())
    with exam.borrowing():
        run = exam.run(0)
        for layers in ("last", "all"):
            places = rows_of(run, layers, rows="all")
            own = outputs_with(run, places, [p.weights_HRK[None] for p in places])
            shuffled = outputs_with(run, places, permuted(places, 6, 0))
            assert float(tvd(shuffled, own).max()) < 1e-6
    assert max(i.change_everywhere for i in wiegreffe_pinter(exam).inputs) < 1e-6
    changed = jain_wallace(exam_of(), **QUICK).inputs
    assert max(i.median_change for i in changed) > 1e-3  # and of other attention it does


def test_permuted_rows_hold_the_same_weights_and_leave_special_tokens_alone() -> None:
    exam = exam_of(inputs=with_specials(0))
    with exam.borrowing():
        (place,) = rows_of(exam.run(0))
    (maps,) = permuted([place], 5, 0)
    assert torch.equal(maps.sort(-1).values, place.weights_HRK.sort(-1).values.expand_as(maps))
    hidden = ~place.free_RK
    assert hidden[0].nonzero()[:, 0].tolist() == [0, 9]
    assert torch.equal(maps[..., hidden[0]], place.weights_HRK[..., hidden[0]].expand(5, -1, -1, -1))
    assert len({m.numpy().tobytes() for m in maps}) > 1


def with_specials(row: int) -> dict[str, torch.Tensor]:
    """First and last token become an id that the configuration calls special."""
    one = alone(row)
    ids = one["input_ids"].clone()
    ids[0, [0, -1]] = 0
    return one | {"input_ids": ids}


def test_the_adversary_is_as_far_as_it_says_and_keeps_the_output() -> None:
    exam = exam_of(inputs=with_specials(0))
    with exam.borrowing():
        run = exam.run(0)
        places = rows_of(run, heads=[2])
        before = outputs_with(run, places, [places[0].weights_HRK[None]])[0]
        found = adversarial_attention(run, places, before, candidates=3, steps=60)
        own = places[0].shown(places[0].weights_HRK[None])[0]
    assert 0 < found.jsd <= math.log(2)
    assert found.jsd == pytest.approx(twin.divergence(own.tolist(), found.shown[0].tolist()), abs=1e-5)
    assert found.change <= 0.05
    # One head was changed, so its row is known from what is shown: the twin imposes it.
    row = twin.own_row(eager(), with_specials(0), 1)
    words = row[2, 1:-1].sum()  # what the words get together stays; so do [0] and [-1]
    row[2, 1:-1] = words * found.shown[0][1:-1]
    assert found.probability_C.tolist() == pytest.approx(twin.output(eager(), with_specials(0), {1: row}), abs=1e-5)


def test_the_models_own_attention_is_among_the_candidates() -> None:
    """An output that may not move at all leaves nothing else."""
    exam = exam_of()
    with exam.borrowing():
        run = exam.run(0)
        places = rows_of(run, "all", rows="all")
        before = outputs_with(run, places, [p.weights_HRK[None] for p in places])[0]
        found = adversarial_attention(run, places, before, candidates=1, steps=2, epsilon=1e-9)
        own = places[-1].shown(places[-1].weights_HRK[None])[0]
    assert (found.jsd, found.change) == (0, 0) and torch.equal(found.shown[-1], own)


@pytest.mark.parametrize("check", [jain_wallace, serrano_smith])
def test_neighbours_and_padding_change_nothing(check: Any) -> None:
    how = QUICK if check is jain_wallace else {}
    together = check(exam_of(), **how)
    wider = check(exam_of(inputs=padded(CASES["bert"].inputs(), 3)), **how)
    single = check(exam_of(inputs=alone(1)), **how)
    for name, value in vars(together.inputs[1]).items():
        for other in (vars(wider.inputs[1])[name], vars(single.inputs[0])[name]):
            if isinstance(value, dict):
                assert value == pytest.approx(other, abs=1e-5)
            elif isinstance(value, float):
                assert value == pytest.approx(other, abs=1e-3 if name == "jsd" else 1e-4, nan_ok=True), name


@pytest.mark.parametrize("name", ["gpt2", "folded_heads", "looped_heads", "rtdl_ft_transformer"])
def test_runs_on_other_families(name: str) -> None:
    exam = exam_of(name)
    with exam.borrowing():
        run = exam.run(1)
        for rows in ("readout", "all"):  # a model's own attention, imposed, is the model
            places = rows_of(run, "all", rows=rows)
            own = outputs_with(run, places, [p.weights_HRK.expand(3, -1, -1, -1) for p in places])
            assert float(tvd(own, probabilities(run.logits)).max()) < 1e-5
        places = rows_of(run, "all", heads=[1])
        moved = outputs_with(run, places, permuted(places, 4, 0))
        assert float(tvd(moved, probabilities(run.logits)).max()) > 1e-5
    found = jain_wallace(exam, **QUICK)
    for test in found.inputs:
        assert 0 <= test.jsd <= math.log(2) and test.change <= found.epsilon and 0 <= test.median_change <= 1
        assert np.isfinite(test.original.scores).all()
    assert serrano_smith(exam, draws=1).findings()
    assert wiegreffe_pinter(exam).findings()


def test_one_word_leaves_nothing_to_change() -> None:
    (finding,) = wf.check(model_of("bert"), {"input_ids": torch.tensor([[0, 7]])}, checks=["jain_wallace"]).findings
    assert finding.level == "note" and "no weights to change" in finding.text
