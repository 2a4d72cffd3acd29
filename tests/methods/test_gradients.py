"""saliency, input_x_gradient, smooth_grad and integrated_gradients: golden numbers, axioms, and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.methods.properties import close, explained
from tests.models import CASES
from tests.references import captum_integrated_gradients as captum
from tests.references.differentiable import numbers
from tests.references.smooth_grad import standard_error
from tests.support.released import BEFORE_FIVE
from whyformer.engines.gradient import InputSpace
from whyformer.errors import NotOffered
from whyformer.loan.spread import SavedBytes

METHOD = {"method": "saliency"}
SMOOTH = {"method": "smooth_grad", "samples": 6}


class Linear(nn.Module):
    """A table of numbers under one matrix: the gradient is the matrix."""

    def __init__(self, columns: int = 5) -> None:
        super().__init__()
        self.head = nn.Linear(columns, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def test_on_a_linear_model_it_is_the_weight() -> None:
    torch.manual_seed(0)
    model = Linear()
    for found in wf.explain(model, (torch.randn(4, 5),), target=2, **METHOD):
        close(found.scores, model.head.weight[2].abs().detach().numpy())


def test_columns_with_categories_are_differentiated_where_they_enter_the_first_block() -> None:
    for found in explained("rtdl_ft_transformer", **METHOD):
        assert (found.scores[1:] > 0).all(), "numbers and categories alike"
    with pytest.raises(NotOffered, match="at='embeddings'"):
        explained("rtdl_ft_transformer", **METHOD, at="input")


def test_a_score_that_ignores_the_input_has_none() -> None:
    class Blind(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) * 0 + 1

    for found in wf.explain(Blind(), (torch.randn(2, 5),), target=0, **METHOD):
        assert np.array_equal(found.scores, np.zeros(5))


# Input times gradient


def test_a_model_that_does_not_care_how_long_its_inputs_are_gets_a_warning() -> None:
    """DeBERTa normalises word embeddings before anything is added to them: x · ∇ is zero but for rounding."""
    for found in explained("deberta_v2", double=True, method="input_x_gradient"):
        assert any("rounding errors" in w for w in found.warnings)
    for name, how in (("deberta_v2", {"at": "embeddings"}), ("bert", {})):
        for found in explained(name, double=True, method="input_x_gradient", **how):
            assert not found.warnings
    for dtype in (torch.bfloat16, torch.float16):  # whose rounding errors are larger
        for name in ("modernbert", "bert"):
            case = CASES[name]
            half = case.build(case.implementations[0]).to(dtype)
            for found in wf.explain(half, case.inputs(), method="input_x_gradient", target=1):
                assert any("rounding errors" in w for w in found.warnings) == (name == "modernbert")


@pytest.mark.parametrize("method", ["two_ended", "occlusion", "value_zeroing"])
def test_scores_as_small_as_the_rounding_of_half_precision_get_a_warning(method: str) -> None:
    """A head with a large bias rounds every difference away; layers that add little, every change of theirs."""
    case = CASES["bert"]
    for dtype, expected in ((torch.bfloat16, True), (torch.float32, False)):
        model = case.build(case.implementations[0])
        with torch.no_grad():
            model.classifier.bias += 100
            for layer in model.bert.encoder.layer:
                layer.attention.output.dense.weight *= 0.02
        for found in wf.explain(model.to(dtype), case.inputs(), method=method, target=1):
            assert any("half precision" in w for w in found.warnings) == expected, found.warnings


# Gradients under noise


def test_reports_its_standard_error() -> None:
    for row, found in enumerate(explained("bert", double=True, **SMOOTH)):
        expected = standard_error(numbers("bert", row), samples=6, groups=5)
        assert found.checks["standard_error"] == pytest.approx(expected, rel=1e-4)
        relative = expected / np.abs(found.scores).max()
        assert found.checks["standard_error_relative"] == pytest.approx(relative, rel=1e-4)


def test_without_noise_it_is_saliency() -> None:
    for plain, smooth in zip(explained("vit", method="saliency"), explained("vit", **SMOOTH, noise=0.0), strict=True):
        close(smooth.scores, plain.scores)
        assert smooth.checks["standard_error"] == pytest.approx(0, abs=1e-6)


DRAWN = {"smooth_grad": "bert", "shap": "bert", "vit_cx": "vit"}


@pytest.mark.parametrize("method", DRAWN)
def test_other_seeds_draw_other_numbers_and_leave_numpys_alone(method: str) -> None:
    np.random.seed(11)
    expected = np.random.rand()
    np.random.seed(11)
    how = {"shap": {"algorithm": "permutation", "evaluations": 40}, "smooth_grad": {"samples": 6}}.get(method, {})
    one, same, other = (explained(DRAWN[method], method=method, seed=seed, **how)[0].scores for seed in (1, 1, 2))
    assert np.random.rand() == expected
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("bert", {"method": "smooth_grad", "samples": 25}),
        ("vit", {"method": "vit_cx", "draws": 1, "masks": 12, "noise": 0.5, "threshold": 0.0}),
        ("vit", {"method": "vit_cx", "draws": 3, "masks": 12, "noise": 0.5, "threshold": 0.0}),
    ],
)
def test_the_standard_error_is_about_the_spread_over_seeds(name: str, how: dict[str, Any]) -> None:
    found = [explained(name, seed=10 * seed, **how)[0] for seed in range(10)]
    scores = np.array([e.scores[~np.asarray(e.units.special)] for e in found])
    spread = np.sqrt(np.var(scores, axis=0, ddof=1).mean())
    reported = np.sqrt(np.mean([e.checks["standard_error"] ** 2 for e in found]))
    assert 0.5 < reported / spread < 2


INTEGRATED = {"method": "integrated_gradients", "steps": 8}
MASK = 7  # any id will do on a random model


# Weights are drawn in the order in which a model keeps them: that of a ViT is another before transformers 5.
of_five = pytest.mark.skipif(BEFORE_FIVE, reason="stored numbers are of the weights that transformers 5 draws")


@pytest.mark.parametrize("name", ["bert", pytest.param("vit", marks=of_five)])
def test_equals_captum_at_the_same_baseline_and_steps(name: str) -> None:
    """Captum's own numbers, entry by entry; tests/references/captum_integrated_gradients.py made them."""
    with np.load(captum.FILE) as stored:
        expected = {k: stored[k] for k in stored.files}
    baseline = captum.MASK if name == "bert" else "zero"
    how = {"method": "integrated_gradients", "steps": captum.STEPS, "baseline": baseline}
    for row, found in enumerate(explained(name, **how)):
        want = expected[f"{name}.{row}"]
        close(found.detail[: len(want)], want, 1e-4)


@pytest.mark.parametrize("name", ["llama", "vit", "rtdl_ft_transformer"])
def test_scores_add_up_within_the_reported_error(name: str) -> None:
    baseline = MASK if CASES[name].units == "tokens" else "zero"
    for found in explained(name, method="integrated_gradients", steps=100, baseline=baseline):
        missing = abs(found.scores.sum() - (found.value - found.base))
        assert missing == pytest.approx(found.checks["completeness_error"], abs=1e-4)
        assert found.checks["completeness_error"] < 0.05 * max(1, abs(found.value - found.base))


def test_too_few_steps_are_warned_about() -> None:
    """A line that starts at zero, where a norm bends sharply, needs more than five points."""
    found = explained("llama", method="integrated_gradients", steps=5, baseline="zero")
    assert any("raise steps=5" in warning for e in found for warning in e.warnings)


def test_rows_of_a_table_are_advised_to_start_at_a_typical_one() -> None:
    found = explained("rtdl_ft_transformer", method="integrated_gradients", steps=1)
    assert any("Table(…, reference=rows)" in warning for e in found for warning in e.warnings)


@pytest.mark.parametrize("name", ["bert", "vit", "rtdl_ft_transformer", "lxmert"])
def test_the_baseline_that_was_taken_is_said_and_can_be_asked_for(name: str) -> None:
    found = explained(name, **INTEGRATED)[0]
    assert found.options["baseline"] is not None
    again = explained(name, **INTEGRATED, baseline=found.options["baseline"])[0]
    np.testing.assert_allclose(again.scores, found.scores, atol=1e-6)


class Directions(nn.Module):
    """Reads the directions of word vectors: each is divided by its length, and of zeros there is none."""

    def __init__(self, norm: str, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.embed, self.places = norm, nn.Embedding(50, 32, padding_idx=padding), nn.Embedding(16, 32)
        self.config = SimpleNamespace(pad_token_id=padding, eos_token_id=None if padding is None else 2)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, nn.functional.gelu, batch_first=True)
        self.head = nn.Linear(32, 3)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        if self.norm == "l2":
            x = nn.functional.normalize(x, dim=-1) * 5
        if self.norm == "rms":
            x = nn.functional.rms_norm(x, (32,), eps=1e-12)
        logits: torch.Tensor = self.head(self.layer(x + self.places.weight[: x.shape[1]] * 0.3).mean(1))
        return logits


class TwoInputs(nn.Module):
    """A classifier of two tensors of columns, without attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(torch.cat([x, y], 1))
        return logits


def test_a_path_through_two_inputs_from_baselines_with_the_axis_of_a_batch() -> None:
    model, both = TwoInputs().eval(), torch.randn(2, 5)
    starts = torch.randn(1, 5)
    inputs, given = (both[:, :3], both[:, 3:]), {"x": starts[:, :3], "y": starts[:, 3:]}
    explained = wf.explain(model, inputs, method="integrated_gradients", baseline=given, target=1, steps=50)
    points, weights = np.polynomial.legendre.leggauss(50)
    for row, one in enumerate(explained):
        total = torch.zeros(5)
        for point, weight in zip(points, weights, strict=True):
            at = (starts[0] + (both[row] - starts[0]) * (point + 1) / 2).float().requires_grad_()
            (slope,) = torch.autograd.grad(model.layers(at[None])[0, 1], at)
            total += slope * weight / 2
        assert np.allclose(one.scores, (both[row] - starts[0]) * total, atol=1e-5)
    assert explained[0].units.labels == ("x[0]", "x[1]", "x[2]", "y[0]", "y[1]")
    single = wf.explain(model.layers, both, method="integrated_gradients", baseline=starts, target=1)
    assert np.allclose(single[1].scores, explained[1].scores, atol=1e-6)


WORDS = {"input_ids": torch.tensor([[3, 4, 5, 6], [9, 8, 7, 2]])}


@pytest.mark.parametrize(("padding", "taken"), [(None, "mean"), (1, "eos")])
@pytest.mark.parametrize("norm", ["l2", "rms"])
def test_the_default_is_no_baseline_next_to_which_the_score_jumps(norm: str, padding: int | None, taken: str) -> None:
    """padding: with an id for it, whose vector is zero."""
    model = Directions(norm, padding).eval()
    explained = wf.explain(model, WORDS, method="integrated_gradients", target=1)
    for row, found in enumerate(explained):
        assert found.options["baseline"] == taken
        assert any(f"use baseline={taken!r}" in warning for warning in found.warnings)
        assert not any("miss" in warning and "%" in warning for warning in found.warnings)
        assert found.checks["completeness_error_relative"] < 0.01
        assert (found.cost.forwards, found.cost.backwards) == (52, 50)
        alone = wf.explain(  # a model of which nothing is known yet, and the input alone
            Directions(norm, padding).eval(),
            {"input_ids": WORDS["input_ids"][row : row + 1]},
            method="integrated_gradients",
            target=1,
        )[0]
        np.testing.assert_allclose(alone.scores, found.scores, atol=1e-5)
    for start in ("zero", *["pad"] * (padding is not None)):
        zero = wf.explain(model, WORDS, method="integrated_gradients", target=1, baseline=start)[0]
        assert zero.checks["completeness_error_relative"] > 0.9
        advised = f"pass baseline={taken!r}"
        assert any("100%" in warning and advised in warning for warning in zero.warnings)


def test_the_default_stays_where_nothing_jumps() -> None:
    for found in wf.explain(Directions("").eval(), WORDS, method="integrated_gradients", target=1):
        assert found.options["baseline"] == "zero" and not found.warnings


def test_a_jump_is_looked_for_once_per_model() -> None:
    explainer = wf.Explainer(Directions("l2").eval())
    costs = [explainer.explain(WORDS, **INTEGRATED, target=1)[0].cost.setup_forwards for _ in range(2)]
    assert costs[0] > costs[1] == 0


@pytest.mark.parametrize("method", [INTEGRATED, {"method": "smooth_grad", "samples": 8}], ids=lambda m: m["method"])
def test_memory_stays_within_the_budget(method: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is weighed here, whatever the method itself weighs."""
    weighed: list[tuple[int, int]] = []
    gradient_at = InputSpace.gradient_at

    def watched(space: InputSpace, points: torch.Tensor, rows: list[int]) -> torch.Tensor:
        with SavedBytes(space.run.modality.model) as saved:
            gradient = gradient_at(space, points, rows)
        weighed.append((len(rows), saved.total))
        return gradient

    monkeypatch.setattr(InputSpace, "gradient_at", watched)
    wide = explained("bert", **method, memory_mb=1000)
    assert max(weighed)[0] == 16, "without a tight budget points share batches"
    one = max(total // count for count, total in weighed)
    weighed.clear()
    budget = 3.5 * one
    narrow = explained("bert", **method, memory_mb=budget / 2**20)
    assert {count for count, _ in weighed} <= {1, 2, 3} and max(weighed)[0] == 3
    assert max(total for _, total in weighed) <= budget
    for a, b in zip(wide, narrow, strict=True):
        close(a.scores, b.scores)
