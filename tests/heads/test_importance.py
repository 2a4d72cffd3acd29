"""head_importance and pruning curves against their twins and golden numbers, what must hold on any model, wrong use."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import FAMILY, close, golden, model_of, on_the_left, padded
from tests.models import CASES, run
from tests.models.case import HEADS, LAYERS, seeded
from tests.references import head_gates
from tests.references import head_importance as twin
from tests.references.head_importance import masked
from tests.references.head_lrp import lrp_relevance
from whyformer.capture.roles import Gate
from whyformer.errors import BadInput, NothingCaptured, NotOffered, UnknownName
from whyformer.heads import HeadImportance, head_importance, learn_gates, pruning_curve
from whyformer.heads.importance import normalized
from whyformer.heads.pruning import final_gates, open_probability, removal_order, sampled_gates
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
def test_ablation_is_a_mask_at_zero_and_confidence_and_relevance_are_those_of_the_maps(name: str) -> None:
    one, others, sure = (found(name, **how).samples for how in (*KINDS[-2:], {"kind": "confidence"}))
    through = found(name, kind="relevance", rule="generic").samples
    units = [e.units for e in wf.explain(model_of(name), CASES[name].inputs(), method="raw_attention")]
    for row in range(2):
        close(one[row], twin.ablation(name, row, twin.logit(TARGET), False))
        close(others[row], twin.ablation(name, row, twin.logit(TARGET), True))
        close(sure[row], twin.confidence(name, row, list(units[row].special)))
        want = twin.generic_relevance(name, row, TARGET)
        close(through[row], want / want.sum(1, keepdims=True))


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
                values.append(modality.read.call(batch))
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
    together, alone = (found("bert", kind="gradient", per="batch", batch_size=size).scores for size in (2, 1))
    signed = np.array([twin.mask_gradient("bert", row, twin.logit(TARGET)) for row in range(2)])
    close(together, np.abs(signed.mean(0)))
    close(alone, np.abs(signed).mean(0))


def test_normalizations() -> None:
    scores = np.array([[3.0, 4.0, np.nan], [0.0, 0.0, 0.0]])
    for kind, first in {"l2": (0.6, 0.8), "minmax": (0.75, 1), "l2_minmax": (0.75, 1), "share": (3 / 7, 4 / 7)}.items():
        np.testing.assert_allclose(normalized(scores, kind), [[*first, np.nan], [0, 0, 0]])
    assert normalized(scores, None) is scores


def test_costs_are_counted() -> None:
    for kind, passes in (("gradient", (1, 1)), ("ablation", (1 + LAYERS * HEADS, 0))):
        cost = found("bert", kind=kind).cost
        assert (cost.forwards, cost.backwards) == passes


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
        ({"target": [0]}, "targets: 1, inputs: 2"),
        ({"labels": [0, 1], "target": 1}, "not both"),
        ({"kind": "confidence", "target": 1}, "omit target"),
        ({"kind": "confidence", "scalar": "loss"}, "does not use a loss"),
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
    with pytest.raises(NotOffered, match="query and key streams"):
        head_importance(model_of("swin"), CASES["swin"].inputs(), per="token")


# Pruning curves: the order in which heads go, what is measured, and its limits.


LABELS = [2, 0]
ALL = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def curve(name: str = "bert", **how: Any) -> Any:
    return pruning_curve(model_of(name), CASES[name].inputs(), how.pop("labels", LABELS), **how)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_heads_go_in_the_given_order(name: str) -> None:
    order = ALL[::-1]
    got = curve(name, order=order, metric="loss")
    assert list(got.kept) == list(range(len(ALL), -1, -1))
    assert got.order == tuple(order)
    close(curve(name, order=order, metric="loss", batch_size=1).samples, got.samples)
    for taken in (0, 3, len(ALL)):
        mask = torch.ones(LAYERS, HEADS, dtype=torch.float64)
        for at in order[:taken]:
            mask[at] = 0
        logits = torch.stack([masked(name, row, mask)[0] for row in range(2)])
        want = nn.functional.cross_entropy(logits, torch.tensor(LABELS), reduction="none").tolist()
        close(got.samples[:, taken], want)
        assert got.values[taken] == pytest.approx(np.mean(want), rel=1e-4)


def test_accuracy_and_agreement() -> None:
    model, inputs = model_of("bert"), CASES["bert"].inputs()
    with torch.no_grad():
        predicted = model(**inputs).logits.argmax(1).tolist()
    right = curve(labels=predicted, order=ALL)
    assert right.values[0] == right.high[0] == 1.0 and right.low[0] == pytest.approx(0.342, abs=1e-3)  # Wilson, of two
    agreement = curve(labels=None, metric="agreement", order=ALL)
    close(agreement.samples, right.samples)
    assert 0 <= agreement.area <= 1 and list(agreement.to_frame().columns) == ["kept", "agreement", "low", "high"]
    assert curve(labels=[1 - min(p, 1) for p in predicted], order=ALL).values[0] == 0.0


def test_a_metric_may_be_a_function() -> None:
    def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits[torch.arange(len(labels)), labels]

    got = curve(metric=margin, order=ALL, points=2)
    want = [float(masked("bert", row, torch.ones(LAYERS, HEADS).double())[0][LABELS[row]].detach()) for row in range(2)]
    close(got.samples[:, 0], want)
    assert got.metric == "margin"


def test_an_importance_is_an_order_least_first() -> None:
    importance = head_importance(model_of("bert"), CASES["bert"].inputs())
    got = curve(order=importance, points=3)
    assert list(got.order) == [(layer, head) for layer, head, _ in reversed(importance.ranked())]
    assert list(got.kept) == [8, 4, 0] and "gradient" in got.name
    close(curve(order=importance.scores, points=3).samples, got.samples)


def test_random_orders_are_seeded() -> None:
    first, second, other = (removal_order("random", ALL, seed)[0] for seed in (0, 0, 1))
    assert first == second != other
    assert sorted(first) == ALL


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"order": "best"}, "unknown order"),
        ({"order": ALL[:3]}, "each of the model's 8 heads once"),
        ({"order": np.zeros((3, 3))}, "shape"),
        ({"labels": None}, "labels are needed"),
        ({"labels": [0]}, "1 labels for 2 inputs"),
    ],
)
def test_wrong_use_is_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=says):
        curve(**how)


# Gates inside the model, and learning which of them to close.


def test_gates_are_those_of_the_paper() -> None:
    log_a = torch.tensor([-6.0, -2.0, 0.0, 1.5, 5.0], dtype=torch.float64)
    uniform = torch.tensor([0.9, 0.3, 0.5, 0.05, 0.7], dtype=torch.float64)
    made = (sampled_gates(log_a, uniform), final_gates(log_a), open_probability(log_a))
    want = [
        (head_gates.sampled(a, u), head_gates.final(a), head_gates.open_probability(a))
        for a, u in zip(log_a.tolist(), uniform.tolist(), strict=True)
    ]
    np.testing.assert_allclose(torch.stack(made, 1), want, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "llama_gqa", "looped_heads", "folded_heads", "swin"])
def test_open_gates_change_nothing_and_gates_of_each_input_are_its_own(name: str) -> None:
    case = CASES[name]
    model, inputs = model_of(name), case.inputs()

    def logits(gates: Tensor | None) -> Tensor:
        axes = dict.fromkeys(range(20), 0) if name != "swin" else {}
        gated = nullcontext() if gates is None else Gate(2, module_names(model), axes, gates=gates)
        with torch.no_grad(), gated:
            out = run(model, inputs)
        return out.logits if hasattr(out, "logits") else out

    plain = logits(None)
    layers = case.sites // HEADS if name == "looped_heads" else case.sites
    whole = torch.ones(max(layers, LAYERS), HEADS)
    torch.testing.assert_close(logits(whole), plain, atol=1e-5, rtol=1e-5)
    closed = whole.clone()
    closed[0, 1] = 0
    assert (logits(closed) - plain).abs().max() > 1e-4
    mixed = logits(torch.stack([whole, closed]))
    torch.testing.assert_close(mixed[0], plain[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed[1], logits(closed)[1], atol=1e-5, rtol=1e-5)


class OneUsefulHead(nn.Module):
    """Two heads over (B, N, 4) vectors: the first reads the part that holds the label, the second reads noise."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.classify.weight.copy_(torch.tensor([[-3.0, 0.0, 0.6, 0.0], [3.0, 0.0, -0.6, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        values = x.unflatten(-1, (2, 2)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(torch.zeros_like(values), torch.zeros_like(values), values)
        return self.classify(mixed.transpose(1, 2).flatten(2)[:, 0])


def useful_data(count: int) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 5, 4, generator=generator)
    labels = (torch.rand(count, generator=generator) > 0.5).long()
    x[:, :, 0] += (2 * labels - 1)[:, None]
    return x, labels.tolist()


def test_learning_keeps_the_head_that_matters() -> None:
    model = OneUsefulHead()
    x, labels = useful_data(64)
    found = learn_gates(model, x, labels, penalty=0.05, steps=80, seed=3)
    assert found.gates[0, 0] > 0.9 and found.gates[0, 1] == 0.0 and found.kept == 1
    assert found.history["open"][-1] < found.history["open"][0] and len(found.history["loss"]) == 80
    assert all(p.grad is None for p in model.parameters())
    again = learn_gates(model, x, labels, penalty=0.05, steps=80, seed=3)
    np.testing.assert_array_equal(found.gates, again.gates)
    # As an order, it takes the useless head first.
    assert pruning_curve(model, *useful_data(32), order=found).order == ((0, 1), (0, 0))


def test_no_penalty_keeps_everything() -> None:
    assert learn_gates(OneUsefulHead(), *useful_data(64), penalty=0.0, steps=20).kept == 2


@pytest.mark.parametrize("name", ["bert", "looped_heads"])
def test_gates_learn_on_transformers(name: str) -> None:
    found = learn_gates(model_of(name), CASES[name].inputs(), [1, 2], penalty=1000.0, steps=3)
    assert found.gates.shape == (LAYERS, HEADS) and (found.scores < 2.0).all()  # every gate felt the penalty
