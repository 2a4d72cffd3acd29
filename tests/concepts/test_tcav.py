"""TCAV and activation maximisation: agreement with the plain twin, invariants, and the shipped model of textures."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.concepts import textures
from tests.references import tcav as twin
from tests.support.released import VIT_LAYERS, VIT_MLP
from whyformer.concepts import TCAVResult
from whyformer.concepts.activation_maximization import checkerboard, total_variation
from whyformer.concepts.concept_vectors import CAV, _random_magnitude, _rows, fit_cav, holm, score, welch
from whyformer.demo import load_sentiment
from whyformer.errors import BadInput, NotOffered, UnknownName


@pytest.fixture(scope="module")
def concepts() -> dict[str, Tensor]:
    return {name: textures.swatches(name, 180) for name in ("striped", "dotted", "bubbly")}  # 12 vectors of 15


@pytest.fixture(scope="module")
def relative(concepts: dict[str, Tensor]) -> TCAVResult:
    return wf.tcav(
        textures.model(), layer=2, concepts=concepts, random_sets=textures.random_sets(12),
        class_inputs=textures.zebras(25), target="zebra-like",
        relative=[("striped", "dotted"), ("dotted", "striped"), ("dotted", "bubbly")], pooling="mean", batch_size=64,
    )  # fmt: skip


# The shipped model


def test_zebras_need_stripes_and_neither_dots_nor_bubbles(relative: TCAVResult) -> None:
    assert len(relative["striped|dotted"].scores) == 12
    assert min(relative["striped|dotted"].scores) >= 0.9 and relative["striped|dotted"].significant
    row = relative["dotted|bubbly"]
    assert not row.significant and row.p > 0.05
    assert abs(row.magnitude) < relative.random_magnitude < abs(relative["striped|dotted"].magnitude)


def test_an_effect_below_that_of_random_vectors_is_called_small() -> None:
    """The same direction in every vector, so that all signs agree; once along the gradient, once nearly across it."""
    gradient = np.tile([[1.0, 0.0]], (8, 1))
    null = [CAV(np.array([np.cos(t), np.sin(t)]), 1.0) for t in np.linspace(0, 2 * np.pi, 20, endpoint=False)]
    size = _random_magnitude(null, gradient)
    assert size == pytest.approx(np.sqrt(0.5))
    directions = {"large": [0.9, 0.436], "little": [0.1, 0.995]}
    fits = {(name, "random"): [CAV(np.array(d), 1.0)] * 20 for name, d in directions.items()}
    large, little = _rows(fits, gradient, null, size, 0.05, set())
    assert large.mean == little.mean == 1 and large.significant and little.significant
    assert not large.small and little.small, "the test counts signs; the size is told beside it"


def test_swapped_concepts_give_one_minus_the_score(relative: TCAVResult) -> None:
    there, back = relative["striped|dotted"], relative["dotted|striped"]
    np.testing.assert_allclose(np.array(there.scores), 1 - np.array(back.scores), atol=1e-12)
    assert there.magnitude == pytest.approx(-back.magnitude)
    assert there.significant and back.significant, "the same vectors: no other verdict the other way round"


def test_agrees_with_the_twin() -> None:
    model = copy.deepcopy(textures.model()).double()
    striped, dotted, zebras = textures.swatches("striped", 12), textures.swatches("dotted", 12), textures.zebras(2)
    found = wf.tcav(
        model, layer=2, concepts={"a": striped, "b": dotted}, random_sets=[], class_inputs=zebras, target=0,
        relative=[("a", "b")], pooling="mean",
    )  # fmt: skip
    acts = [np.stack([twin.mean_activation(model, x.double(), 2) for x in images]) for images in (striped, dotted)]
    slopes = []
    for run in range(20):
        order = np.random.default_rng(run).permutation(12)[4:]  # the split of this run: the first third is held out
        v = twin.logistic_direction(acts[0][order], acts[1][order])
        np.testing.assert_allclose(fit_cav(*acts, "logistic", run).direction_D, v, atol=1e-9)
        slopes.append([twin.directional_derivative(model, x.double(), 2, 0, v) for x in zebras])
    assert list(found["a|b"].scores) == [sum(s > 0 for s in row) / len(row) for row in slopes]
    assert found["a|b"].magnitude == pytest.approx(np.mean(slopes), abs=1e-6)
    page = found.to_html()
    assert "not tested" in page and "n.s." not in page, "too few examples for a test"


def test_the_model_comes_back_unchanged() -> None:
    model = textures.model()
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    hooks = [len(m._forward_hooks) for m in model.modules()]
    how = {"layer": -1, "concepts": {"a": textures.swatches("striped", 6)}, "class_inputs": textures.zebras(2)}
    with pytest.raises(UnknownName):
        wf.tcav(model, random_sets=textures.random_sets(3, 6), target="zebra", **how)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_shared_examples_are_warned_about(relative: TCAVResult) -> None:
    assert not any("share examples" in w for w in relative.warnings)
    how = {"layer": 2, "target": 0, "random_sets": textures.random_sets(10, 6), "class_inputs": textures.zebras(4)}
    few, many = ({"a": textures.swatches("striped", count)} for count in (20, 60))
    found, enough = (wf.tcav(textures.model(), concepts=concepts, **how) for concepts in (few, many))
    assert any("a: inconclusive. There are fewer than 60 examples (10 vectors of 6)" in w for w in found.warnings)
    assert found["a"].p < 0.05 and not found["a"].significant, "no star where p is known to be too small"
    assert "★ " not in found.to_html().split("Lines are")[0]
    assert enough["a"].significant and not any("share examples" in w for w in enough.warnings)


def test_relative_concepts_need_no_random_sets() -> None:
    """Told apart along one feature, which the first logit has; or by nothing: tested against shuffled examples."""
    model = Features()
    nn.init.zeros_(model.head.weight)
    nn.init.ones_(model.head.weight[0, :1])
    how = {"layer": "features", "class_inputs": _cloud(50), "target": 0, "relative": True, "pooling": "flat"}
    apart = wf.tcav(
        model, concepts={"up": _cloud(1, 200) + torch.tensor([3.0, 0, 0, 0]), "down": _cloud(2, 200)}, **how
    )
    assert apart["up|down"].significant and apart["up|down"].mean == 1 and apart["down|up"].mean == 0
    assert len(apart.random) == 20 and 0.2 < np.mean(apart.random) < 0.8
    assert not apart.warnings and "shuffled" in apart.to_html() and "random |" not in apart.to_html()
    alike = wf.tcav(model, concepts={"a": _cloud(3, 200), "b": _cloud(4, 200)}, **how)
    assert not any(row.significant for row in alike.rows)
    with pytest.raises(BadInput, match="relative=True"):
        wf.tcav(model, concepts={"up": _cloud(1, 200)}, **{**how, "relative": False})


# Small models


class Features(nn.Module):
    """A linear (or constant) reading of features, behind a layer that can be tapped."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.features, self.constant = nn.Identity(), constant
        self.head = nn.Linear(4, 2)
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return torch.zeros_like(logits) if self.constant else logits


def _cloud(seed: int, count: int = 12, shift: float = 0.0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)) + shift


def test_scores_do_not_depend_on_the_length_of_the_vector_or_the_unit_of_activations() -> None:
    a, b, gradient = (_cloud(s, 20, shift).double().numpy() for s, shift in ((1, 1), (2, 0), (3, 0)))
    cav = fit_cav(a, b)
    assert score(gradient, CAV(cav.direction_D * 1e6, 1)) == score(gradient, cav)
    np.testing.assert_allclose(fit_cav(a * 1000, b * 1000).direction_D, cav.direction_D, atol=1e-6)
    np.testing.assert_allclose(fit_cav(b, a).direction_D, -cav.direction_D, atol=1e-6)


def test_a_concept_that_the_layer_does_not_know_is_flagged() -> None:
    sets = [_cloud(seed, 60) for seed in range(12)]
    how = {"layer": "features", "class_inputs": _cloud(50), "target": 0}
    found = wf.tcav(Features(), concepts={"nothing": _cloud(99, 300)}, random_sets=sets, **how)
    row = found["nothing"]
    assert row.doubtful and not row.significant and 0.4 < row.accuracy < 0.6
    assert any("inconclusive" in w for w in found.warnings)


def test_a_linear_or_constant_model_gives_all_or_nothing() -> None:
    how = {"layer": "features", "concepts": {"up": _cloud(9, shift=2)}, "target": 0, "class_inputs": _cloud(50)}
    sets = [_cloud(seed) for seed in range(5)]
    for classifier in ("logistic", "sgd"):
        found = wf.tcav(Features(), random_sets=sets, classifier=classifier, **how)
        assert set(found["up"].scores) <= {0.0, 1.0}
    found = wf.tcav(Features(True), random_sets=sets, **how)
    assert found["up"].mean == 0 and any("does not depend" in w for w in found.warnings)


def test_welch_and_holm() -> None:
    from scipy.stats import ttest_ind, ttest_ind_from_stats

    a, b = np.array([0.1, 0.4, 0.3]), np.array([0.9, 0.6, 0.8, 0.2])
    assert welch(a, b) == pytest.approx(ttest_ind(a, b, equal_var=False).pvalue)
    assert welch(np.ones(3), np.ones(4)) == 1 and welch(np.ones(3), np.zeros(4)) == 0
    both = np.concatenate([b, 1 - b])
    expected = ttest_ind_from_stats(a.mean(), a.std(ddof=1), 3, 0.5, both.std(ddof=1), 4, equal_var=False).pvalue
    assert welch(a, b, 1 - b) == pytest.approx(expected)
    assert welch(1 - a, b, 1 - b) == pytest.approx(expected), "a concept and its opposite"
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


# Text


def test_text_does_not_depend_on_padding() -> None:
    model, tokenizer = load_sentiment()
    good = ["a great film", "wonderful", "I loved every minute of it", "great fun", "excellent acting and music"]
    plain = ["the film is long", "a man", "it was shown in a theatre on monday", "two people", "a story about a town"]
    how = {"layer": 1, "class_inputs": good, "target": "positive", "processor": tokenizer}
    pair = {"concepts": {"good": good, "plain": plain}, "random_sets": [], "relative": [("good", "plain")]}
    found = [wf.tcav(model, **how, **pair, pooling="mean", batch_size=size) for size in (1, 5)]
    assert found[0]["good|plain"].scores == found[1]["good|plain"].scores
    assert found[0]["good|plain"].magnitude == pytest.approx(found[1]["good|plain"].magnitude, abs=1e-5)
    with pytest.raises((NotOffered, BadInput), match="one length"):
        wf.tcav(model, **how, concepts={"good": good}, random_sets=[plain] * 3, pooling="flat")


# Results and refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"layer": 17}, "0 to 3"),
        ({"layer": "vit.nothing"}, "unknown module"),
        ({"concepts": {}}, "not empty"),
        ({"target": None}, "one class"),
        ({"relative": [("a", "c")]}, "unknown concept"),
        ({"concepts": {"a": textures.swatches("striped", 2)}}, "at least 4"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, object], message: str) -> None:
    how = {"layer": 0, "concepts": {"a": textures.swatches("striped", 6)}, "target": 0} | change
    with pytest.raises(BadInput, match=message):
        wf.tcav(textures.model(), random_sets=textures.random_sets(3, 6), class_inputs=textures.zebras(2), **how)


# Activation maximisation: invariants, units, and what is measured about the picture.


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 2)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(pixel_values.flatten(1))  # type: ignore[no-any-return]


PLAIN = {"jitter": 0, "scale": 0, "l2": 0, "tv": 0, "bounded": False, "optimizer": "gradient"}


def test_plain_steps_follow_the_gradient() -> None:
    torch.manual_seed(0)
    model = Linear()
    found = wf.activation_maximization(model, 1, size=(8, 8), steps=20, fourier=True, **PLAIN)
    assert np.all(np.diff(found.history) >= 0) and found.value > found.start
    found = wf.activation_maximization(model, 0, size=(8, 8), steps=5, lr=0.1, fourier=False, **PLAIN)
    rise = 5 * 0.1 * float(model.head.weight[0].detach().square().sum())
    assert found.value - found.start == pytest.approx(rise, rel=1e-4)


def test_penalties_do_what_they_say() -> None:
    assert float(total_variation(torch.full((1, 3, 8, 8), 0.7))) == 0
    steps = torch.zeros(1, 3, 4, 4)
    steps[..., 2:] = 0.5  # one edge of four pixels, in three colours
    assert float(total_variation(steps)) == pytest.approx(3 * 4 * 0.5)
    model = Linear()
    how = {"size": (8, 8), "fourier": False, "steps": 200, "lr": 0.5}
    for weight in (0.1, 0.4):  # max w·x + b - λ‖x‖² is at x = w/2λ, and ‖x‖² is a sum
        found = wf.activation_maximization(model, 0, **{**PLAIN, **how, "l2": weight})
        w = model.head.weight[0].detach()
        best = float(w.square().sum()) / (2 * weight) + float(model.head.bias[0].detach())
        assert found.value == pytest.approx(best, rel=1e-3)
        assert found.penalties["l2·‖x‖²"] == pytest.approx(float(w.square().sum()) / (4 * weight), rel=1e-3)


def test_checkerboard_sees_the_grid() -> None:
    patches = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).repeat_interleave(8, 2)
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert checkerboard(patches.repeat_interleave(8, 3) + 0.01 * noise, (8, 8)) > 10
    assert checkerboard(noise, (8, 8)) == pytest.approx(1, abs=0.1)
    assert checkerboard(torch.ones(1, 3, 64, 64), (8, 8)) == 1


@pytest.mark.parametrize(
    "unit", ["zebra-like", ("neuron", 1, 5), ("token", f"{VIT_LAYERS}.0.{VIT_MLP[0]}", 3, 7), ("layer", 2)]
)
def test_units_rise_and_seeds_reproduce(unit: object) -> None:
    model = textures.model()
    hooks = [len(m._forward_hooks) for m in model.modules()]
    first, again = (wf.activation_maximization(model, unit, steps=12, seed=3) for _ in range(2))
    assert first.history == again.history and np.array_equal(first.image, again.image)
    assert first.value > first.start and first.image.shape == (64, 64, 3) and first.image.dtype == np.uint8
    assert np.isfinite(first.checkerboard) and not first.warnings
    assert [len(m._forward_hooks) for m in model.modules()] == hooks


def test_little_jitter_is_warned_about_and_pictures_are_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = wf.activation_maximization(textures.model(), 0, steps=3, jitter=1)
    assert any("half a patch" in w for w in found.warnings)
    assert found.save(tmp_path / "x.png").stat().st_size > 5000
    with pytest.raises(UnknownName):
        found.save(tmp_path / "x.gif")


def test_texts_are_refused() -> None:
    model, tokenizer = load_sentiment()
    with pytest.raises(NotOffered, match="takes texts"):
        wf.activation_maximization(model, "positive", processor=tokenizer, steps=2)


@pytest.mark.parametrize(
    "change",
    [{"tv": -1}, {"unit": ("neuron", 1)}, {"jitter": float("nan")}, {"unit": ("neuron", 1, 9999)}, {"unit": None}],
)
def test_bad_options_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        wf.activation_maximization(textures.model(), **{"unit": 0, "steps": 2, **change})
