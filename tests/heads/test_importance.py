"""head_importance against its twins and golden numbers, what must hold on any model, its result, and wrong use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import FAMILY, close, golden, model_of, on_the_left, padded
from tests.models import CASES
from tests.models.case import HEADS, LAYERS, seeded
from tests.references import head_importance as twin
from tests.references.head_lrp import lrp_relevance
from whyformer.capture.roles import Gate
from whyformer.errors import BadInput, NothingCaptured, NotOffered
from whyformer.heads import HeadImportance, head_importance
from whyformer.heads.importance import normalized
from whyformer.loan.borrow import module_names

TARGET = 1
KINDS: list[dict[str, Any]] = [
    {"kind": "gradient"},
    {"kind": "gradient", "per": "token"},
    {"kind": "confidence"},
    {"kind": "relevance"},
    {"kind": "relevance", "rule": "generic"},
    {"kind": "ablation"},
    {"kind": "ablation", "ablate": "all_but_one"},
]
NAMES = [" ".join(map(str, kind.values())) for kind in KINDS]


def found(name: str, inputs: Any = None, **how: Any) -> HeadImportance:
    if how["kind"] != "confidence":
        how.setdefault("target", TARGET)
    return head_importance(model_of(name), CASES[name].inputs() if inputs is None else inputs, **how)


# The authors' numbers


@pytest.mark.parametrize("normalize", [None, "l2"])
@pytest.mark.parametrize("scalar", ["logit", "loss"])
def test_meets_michels_code(scalar: str, normalize: str | None) -> None:
    case = golden()
    key = f"head_importance.michel_token.{scalar}.{normalize or 'raw'}"
    how = {"labels": case.target, "scalar": "loss"} if scalar == "loss" else {"target": case.target}
    got = head_importance(case.model, case.inputs, per="token", normalize=normalize, **how).scores
    if key.endswith("loss.raw"):  # their loss is the mean over a batch, here of two, which halves every gradient
        got = got / 2
    close(got, case.expected[key], case.meta["arrays"][key]["tol"])


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("scalar", ["logit", "loss"])
def test_meets_the_golden_mask_gradient(scalar: str, row: int) -> None:
    case = golden()
    one = {k: v[row : row + 1] for k, v in case.inputs.items()}
    how = {"labels": [case.target[row]]} if scalar == "loss" else {"target": case.target[row]}
    got = head_importance(case.model, one, scalar=scalar, **how)
    want = case.expected[f"head_importance.signed_xi_grad.{scalar}.b{row}"]
    close(got.direction, want, case.meta["arrays"][f"head_importance.signed_xi_grad.{scalar}"]["tol"])
    close(got.scores, np.abs(want), 1e-4)


def test_meets_the_golden_ablation() -> None:
    case = golden()
    got = head_importance(case.model, case.inputs, kind="ablation", target=case.target)
    close(got.samples[0], case.expected["head_ablation.logit_drop.b0"], 1e-4)


# The twins


@pytest.mark.parametrize("name", FAMILY)
def test_gradient_is_that_of_a_mask(name: str) -> None:
    want = np.array([twin.mask_gradient(name, row, twin.logit(TARGET)) for row in range(2)])
    got = found(name, kind="gradient")
    close(got.samples, np.abs(want))
    close(got.direction, want.mean(0))
    close(got.scores, np.abs(want).mean(0))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_ablation_of_the_loss_counts_what_it_adds(name: str) -> None:
    labels = [2, 0]
    got = head_importance(model_of(name), CASES[name].inputs(), kind="ablation", labels=labels, scalar="loss")
    for row in range(2):
        close(got.samples[row], -twin.ablation(name, row, twin.loss(labels[row])))


@pytest.mark.parametrize("name", FAMILY)
def test_token_importance(name: str) -> None:
    sums = sum(twin.token_sums(name, row, twin.logit(TARGET)) for row in range(2))
    counts = np.full(LAYERS, sum(twin.tokens(name, row) for row in range(2)), float)
    counts[-1] = 2  # one row per input is read
    close(found(name, kind="gradient", per="token").scores, sums / counts[:, None])


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("ablate", ["one", "all_but_one"])
def test_ablation_is_a_mask_at_zero(name: str, ablate: str) -> None:
    got = found(name, kind="ablation", ablate=ablate)
    for row in range(2):
        close(got.samples[row], twin.ablation(name, row, twin.logit(TARGET), ablate == "all_but_one"))


@pytest.mark.parametrize("name", FAMILY)
def test_confidence(name: str) -> None:
    got = found(name, kind="confidence")
    units = [e.units for e in wf.explain(model_of(name), CASES[name].inputs(), method="raw_attention")]
    for row in range(2):
        close(got.samples[row], twin.confidence(name, row, list(units[row].special)))


@pytest.mark.parametrize("name", FAMILY)
def test_generic_relevance(name: str) -> None:
    got = found(name, kind="relevance", rule="generic")
    for row in range(2):
        want = twin.generic_relevance(name, row, TARGET)
        close(got.samples[row], want / want.sum(1, keepdims=True))


def test_lrp_relevance_is_what_the_linearised_model_loses() -> None:
    got = found("llama", kind="relevance")
    for row in range(2):
        want, _ = lrp_relevance(row, TARGET)
        close(got.samples[row], np.abs(want) / np.abs(want).sum(1, keepdims=True))


@pytest.mark.parametrize("how", KINDS, ids=NAMES)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_neither_batch_nor_padding_changes_a_number(name: str, how: dict[str, Any]) -> None:
    inputs = CASES[name].inputs()
    together = found(name, **how).samples
    for row in range(2) if how.get("per") != "token" else ():  # which is a ratio of sums
        one = {k: v[row : row + 1] for k, v in inputs.items()}
        close(found(name, one, **how).samples[0], together[row])
    close(found(name, padded(inputs, 3), **how).samples, together)
    if name == "gpt2":
        close(found(name, on_the_left(inputs), **how).samples, together)


@pytest.mark.parametrize("how", KINDS, ids=NAMES)
def test_half_precision_and_one_token_are_finite(how: dict[str, Any]) -> None:
    half = head_importance(CASES["gpt2"].build("sdpa").to(torch.bfloat16), CASES["gpt2"].inputs(), **how)
    assert half.signed == (how["kind"] == "ablation") and (half.low <= half.high).all()
    assert np.isfinite(half.scores).all() and half.scores.any()
    one = found("bert", {"input_ids": CASES["bert"].inputs()["input_ids"][:1, :1]}, **how)
    assert np.isfinite(one.scores).all()
    assert np.isnan(one.low).all()  # one input shows no spread


@pytest.mark.parametrize("name", ["looped_heads", "folded_heads", "rtdl_ft_transformer", "swin"])
def test_gradient_and_ablation_agree_on_other_layouts(name: str) -> None:
    """At gates near 1 the loss of score is the gradient times the step, whatever the layout of the maps."""
    case = CASES[name]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    got = head_importance(model, inputs, target=TARGET)
    x = wf.Explainer(model)
    modality, batch, _ = x.prepare(inputs)
    step = 1e-2
    for layer, head in [(0, 0), (1, 3)]:
        values = []
        for sign in (1, -1):
            gates = torch.ones(got.scores.shape)
            gates[layer, head] += sign * step
            axes = x.study(inputs).batch_axes
            with torch.no_grad(), Gate(batch.size, module_names(model), axes, gates=gates):
                values.append(modality.call(batch))
        logits = [v.logits if hasattr(v, "logits") else v for v in values]
        slope = (logits[0] - logits[1])[:, TARGET] / (2 * step)
        np.testing.assert_allclose(got.samples[:, layer, head], slope.abs(), atol=2e-3 * got.samples.max())


class Narrowing(torch.nn.Module):
    """Two layers of attention over (B, N, 8) vectors, with four heads and with two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 24) for _ in range(2))
        self.classify = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, heads in zip(self.layers, (4, 2), strict=True):
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.classify(x[:, 0])


@pytest.mark.parametrize("how", KINDS, ids=NAMES)
def test_layers_with_fewer_heads_are_nan(how: dict[str, Any]) -> None:
    model = seeded(Narrowing)
    got = head_importance(model, torch.randn(3, 5, 8), **how)
    assert np.isnan(got.scores).tolist() == [[False] * 4, [False, False, True, True]]
    assert len(got.ranked()) == 6


def test_per_batch_takes_the_absolute_value_last() -> None:
    got = found("bert", kind="gradient", per="batch", batch_size=2)
    signed = np.array([twin.mask_gradient("bert", row, twin.logit(TARGET)) for row in range(2)])
    close(got.scores, np.abs(signed.mean(0)))
    alone = found("bert", kind="gradient", per="batch", batch_size=1)
    close(alone.scores, np.abs(signed).mean(0))


def test_normalizations() -> None:
    scores = np.array([[3.0, 4.0, np.nan], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(normalized(scores, "l2"), [[0.6, 0.8, np.nan], [0, 0, 0]])
    np.testing.assert_allclose(normalized(scores, "minmax"), [[0.75, 1, np.nan], [0, 0, 0]])
    np.testing.assert_allclose(normalized(scores, "l2_minmax"), [[0.75, 1, np.nan], [0, 0, 0]])
    np.testing.assert_allclose(normalized(scores, "share"), [[3 / 7, 4 / 7, np.nan], [0, 0, 0]])
    assert normalized(scores, None) is scores


def test_costs_are_counted() -> None:
    gradient = found("bert", kind="gradient").cost
    assert (gradient.forwards, gradient.backwards) == (1, 1)
    ablated = found("bert", kind="ablation").cost
    assert (ablated.forwards, ablated.backwards) == (1 + LAYERS * HEADS, 0)


def test_the_model_comes_back_unchanged() -> None:
    model = CASES["bert"].build("sdpa").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for how in KINDS:
        head_importance(model, CASES["bert"].inputs(), **how)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# Wrong use


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"kind": "gradeint"}, "Did you mean 'gradient'"),
        ({"scalar": "loss"}, "pass labels"),
        ({"scalar": "loss", "labels": [0, 1], "target": 1}, "no target"),
        ({"labels": [0]}, "1 labels for 2 inputs"),
        ({"target": [0]}, "1 targets for 2 inputs"),
        ({"labels": [0, 1], "target": 1}, "not both"),
        ({"kind": "confidence", "target": 1}, "leave target out"),
        ({"kind": "confidence", "scalar": "loss"}, "not about a loss"),
        ({"kind": "ablation", "per": "token"}, "belongs to kind"),
        ({"ablate": "all_but_one"}, "belongs to kind"),
        ({"rule": "generic"}, "belongs to kind"),
        ({"scalar": "loss", "labels": [0, 7]}, "unknown target"),
    ],
)
def test_wrong_options_are_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        head_importance(model_of("bert"), CASES["bert"].inputs(), **how)


def test_models_without_heads_and_tokens_of_unknown_streams_are_refused() -> None:
    with pytest.raises(NothingCaptured, match="no attention"):
        head_importance(torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.randn(2, 4))
    with pytest.raises(NotOffered, match="which stream asks which"):
        head_importance(model_of("swin"), CASES["swin"].inputs(), per="token")
