"""The loss against its twin, masks by the Shapley kernel, and games that a network must learn exactly."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.references import learned as twin
from whyformer.engines.perturbation.regression import KnownErrors, corrected
from whyformer.learned.network import (
    Example,
    ExampleTable,
    drawn_masks,
    flipped,
    known_errors,
    loss_of,
    mean_loss,
    removal_error,
    trained,
    with_efficiency,
)

CPU = torch.device("cpu")


def test_explanations_of_the_negated_output_are_the_negated_ones() -> None:
    network = trained(games(12, 0), games(4, 1), heads=(1,), linear=False, seed=0, device=CPU)
    with torch.no_grad():
        network.score.weight.copy_(torch.linspace(-1, 1, 128)[None])
        network.head_weights.zero_()
    heads = games(1, 2)[0].heads_UF
    attention, gradient = heads[:, 3].abs(), heads[:, 4]
    product = attention * gradient
    real = torch.stack([product, product.clamp(min=0), product, attention, gradient], 1)
    negated = torch.stack([-product, (-product).clamp(min=0), -product, attention, -gradient], 1)
    assert torch.allclose(flipped(real, (1,)), negated)
    states = games(1, 2)[0].states_US.float()[None]
    with torch.no_grad():
        network.total_weights.zero_()
        rest = (states, torch.ones(1, 6, dtype=torch.bool), torch.ones(1, 6), torch.zeros(1))
        assert torch.allclose(network(real[None], *rest), -network(negated[None], *rest), atol=1e-6)
        assert network(real[None], *rest).abs().max() > 1e-3


def games(count: int, seed: int, units: int = 6) -> list[Example]:
    """Additive games whose values are linear in the first two features; unit 0 cannot be masked."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        heads = torch.from_numpy(generator.normal(size=(units, 5))).float()
        parts = np.arange(1, units)
        phi = (2 * heads[:, 0] - 0.5 * heads[:, 1]).numpy()[parts].astype(float)
        masks = drawn_masks(len(parts), 8, generator)
        states = torch.from_numpy(generator.normal(size=(units, 3))).half()
        made.append(Example(heads, states, parts, masks, 0.3 + masks @ phi, 0.3 + phi.sum(), 0.3))
    return made


def test_loss_is_its_twin() -> None:
    generator = np.random.default_rng(0)
    phi, parts = torch.zeros(2, 4).double(), torch.tensor([[1.0, 1, 1, 0], [0, 1, 1, 1]]).double()
    phi[parts.bool()] = torch.from_numpy(generator.normal(size=6))
    masks, values = torch.zeros(2, 4, 4).double(), torch.from_numpy(generator.normal(size=(2, 4)))
    whole, none = torch.from_numpy(generator.normal(size=2)), torch.from_numpy(generator.normal(size=2))
    inputs = []
    for row in range(2):
        there = parts[row].nonzero()[:, 0].tolist()
        drawn = drawn_masks(3, 4, generator)
        masks[row][:, there] = torch.from_numpy(drawn).double()
        sets = [
            (frozenset(np.flatnonzero(mask).tolist()), float(v)) for mask, v in zip(drawn, values[row], strict=True)
        ]
        inputs.append((phi[row, there].tolist(), sets, float(whole[row]), float(none[row])))
        efficient = with_efficiency(phi, parts, whole - none)[row]
        assert efficient[there].tolist() == pytest.approx(twin.with_efficiency(inputs[-1][0], *inputs[-1][2:]))
        assert efficient.sum().item() == pytest.approx(float(whole[row] - none[row]))
    assert loss_of(phi, parts, masks, values, whole, none).item() == pytest.approx(twin.loss(inputs))
    assert loss_of(phi, parts, masks, values, whole, none, 0.5).item() == pytest.approx(twin.loss(inputs, 0.5))


def test_masks_have_sizes_of_the_shapley_kernel_and_come_with_their_complements() -> None:
    masks = drawn_masks(5, 8000, np.random.default_rng(0))
    assert (masks[0::2] == ~masks[1::2]).all()
    weights = 1 / (np.arange(1, 5) * (5 - np.arange(1, 5)))
    shares = np.bincount(masks.sum(1), minlength=6)[1:5] / len(masks)
    assert np.allclose(shares, weights / weights.sum(), atol=0.02)
    assert not {0, 5} & set(masks.sum(1))


@pytest.mark.parametrize("linear", [True, False])
def test_additive_games_are_learned_exactly(linear: bool) -> None:
    network = trained(games(40, 0), games(8, 1), heads=(1,), linear=linear, seed=0, device=CPU)
    held = games(10, 2)
    assert mean_loss(network, ExampleTable(held, CPU)) < 1e-6
    assert removal_error(network, held) < 1e-3 * float(network.scale)


def test_training_depends_on_the_seed_alone_and_leaves_the_users_generator() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (trained(games(12, 0), games(4, 1), heads=(1,), linear=False, seed=5, device=CPU) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    batch = ExampleTable(games(2, 2), CPU).batch([0, 1])
    assert torch.equal(batch.phi(one), batch.phi(other))


def test_padding_changes_no_score() -> None:
    network = trained(games(12, 0), games(4, 1), heads=(1,), linear=False, seed=0, device=CPU)
    short, long = games(1, 3, units=4)[0], games(1, 4, units=9)[0]
    alone = ExampleTable([short], CPU).batch([0]).phi(network)[0]
    with torch.no_grad():
        network.score.weight.copy_(torch.linspace(-1, 1, 128)[None])  # the layer takes part
        alone, beside = (
            ExampleTable([short], CPU).batch([0]).phi(network)[0],
            ExampleTable([short, long], CPU).batch([0, 1]).phi(network)[0],
        )
    assert torch.allclose(alone, beside[:4], atol=1e-5)
    assert not beside[4:].any()


def test_known_errors_are_those_of_a_guide_and_correct_it_as_far_as_they_say() -> None:
    """Games whose values lie around a prediction with a known variance, and whose outputs have a known noise."""
    generator = np.random.default_rng(0)
    network = trained(games(40, 0), games(8, 1), heads=(1,), linear=True, seed=0, device=CPU)  # exact without errors
    spread, noise, made, values = 0.3, 0.8, [], []
    for example in games(150, 2, units=9):
        own = np.stack([example.masks_MP, ~example.masks_MP], 1).reshape(-1, len(example.parts))[::2]
        masks = np.stack([own, ~own], 1).reshape(-1, len(example.parts))
        truth = _phi(example) + spread * generator.normal(size=len(example.parts))
        said = 0.3 + masks @ truth + noise / np.sqrt(2) * generator.normal(size=len(masks))
        made.append(dataclasses.replace(example, masks_MP=masks, values_M=said, whole=0.3 + truth.sum()))
        values.append(truth)
    variance, relative = known_errors(network, made)
    assert np.sqrt(variance) == pytest.approx(spread, rel=0.15)
    assert np.sqrt(variance * relative) == pytest.approx(noise, rel=0.15)
    known, before, after, off = KnownErrors(variance, relative), [], [], []
    for example, truth in zip(made, values, strict=True):
        guide, difference = _phi(example), example.values_M[0::2] - example.values_M[1::2]
        seen = example.masks_MP[0::2], difference, np.ones(len(difference)), float(truth.sum())
        fit = corrected(*seen, guide, known)
        assert fit.values_P.sum() == pytest.approx(truth.sum())
        before.append(guide + (truth.sum() - guide.sum()) / len(guide) - truth)
        after.append(fit.values_P - truth)
        off.append(after[-1] / fit.errors_P)
        still = corrected(*seen, guide, KnownErrors(1e-12, 1e12))
        assert np.allclose(still.values_P, before[-1] + truth, atol=1e-6)
    assert np.std(after) < 0.9 * np.std(before)
    assert np.std(off) == pytest.approx(1, abs=0.15)  # standard errors are as large as the errors


def _phi(example: Example) -> Any:
    return (2 * example.heads_UF[:, 0] - 0.5 * example.heads_UF[:, 1]).numpy()[example.parts].astype(float)
