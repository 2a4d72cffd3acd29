"""The rules of AttnLRP and CP-LRP one by one: the value is the function's own, the gradient is the rule's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import CASES, Inputs, run
from tests.models.case import randn
from whyformer.capture.leaves import LookupLeaves, as_leaf
from whyformer.capture.lrp.alpha_beta import AlphaBeta
from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.loan.borrow import borrowed

Function = Callable[[Tensor], Tensor]


def gradient(function: Function, x: Tensor, constant: bool = False) -> tuple[Tensor, Tensor]:
    """Value and gradient (of the sum) under the rules."""
    leaf = x.clone().requires_grad_()
    with GradientRules(attention_is_constant=constant) as rules:
        out = function(leaf * 1)
    assert not rules.unruled
    return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]


WRITTEN_OUT: dict[str, Function] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "relu_": lambda x: x.relu_(),
    "leaky_relu_": lambda x: F.leaky_relu_(x, 0.2),
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "squared relu": lambda x: F.relu(x) ** 2,
    "gpt2's gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "fast gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.79788456 * (1.0 + 0.044715 * x * x))),
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu by exp": lambda x: x / (1 + torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "silu in place": lambda x: x.mul_(x.sigmoid()),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("constant", [False, True])
def test_an_activation_passes_what_it_got(name: str, constant: bool) -> None:
    x = randn(4, 6).double() * 2
    if name == "silu by exp":  # exp has no rule of its own, and needs none in a denominator
        leaf = x.clone().requires_grad_()
        with GradientRules(constant):
            out = WRITTEN_OUT[name](leaf)
        value, slope = out.detach(), torch.autograd.grad(out.sum(), leaf)[0]
    else:
        value, slope = gradient(WRITTEN_OUT[name], x, constant)
    assert torch.equal(value, WRITTEN_OUT[name](x.clone()))
    torch.testing.assert_close(slope * x, value, rtol=1e-7, atol=1e-9)


def test_an_activation_of_zero_has_no_relevance() -> None:
    for function in (F.gelu, torch.sigmoid):
        assert torch.equal(gradient(function, torch.zeros(3))[1], torch.zeros(3))


WEIGHT, BIAS = 1 + 0.1 * randn(6, seed=1).double(), randn(6, seed=2).double()
NORMS: dict[str, tuple[Function, bool]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (6,), WEIGHT, BIAS, 1e-5), True),
    "layer_norm by keyword": (lambda x: F.layer_norm(input=x, normalized_shape=(6,), weight=WEIGHT), True),
    "layer_norm by hand": (
        lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, correction=0, keepdim=True) + 1e-5) * WEIGHT,
        True,
    ),
    "rms_norm": (lambda x: F.rms_norm(x, (6,), WEIGHT, 1e-6), False),
    "rms_norm by hand": (lambda x: WEIGHT * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)), False),
    "rms_norm by power": (lambda x: WEIGHT * (x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5), False),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_spread_is_a_constant(name: str) -> None:
    function, centred = NORMS[name]
    x = randn(4, 6, seed=3).double()
    value, slope = gradient(function, x)
    assert torch.equal(value, function(x))
    spread = x.var(-1, correction=0, keepdim=True) + 1e-5 if centred else x.square().mean(-1, keepdim=True) + 1e-6
    want = (WEIGHT / spread.sqrt()).expand_as(x)
    torch.testing.assert_close(slope, want - want.mean(-1, keepdim=True) if centred else want)


def test_normalize_and_glu() -> None:
    x = randn(4, 6, seed=3).double()
    value, slope = gradient(lambda t: F.normalize(t, dim=-1), x)
    torch.testing.assert_close(slope * x, value)
    value, slope = gradient(lambda t: F.glu(t, -1), x)
    torch.testing.assert_close((slope * x)[:, :3], value / 2)  # a product: half to each
    torch.testing.assert_close((slope * x)[:, 3:], value / 2)
    value, slope = gradient(lambda t: F.glu(t, -1), x, constant=True)
    torch.testing.assert_close(slope * x, torch.cat([value, 0 * value], 1))  # the gate is given


def test_a_gate_is_told_from_what_it_gates() -> None:
    x = randn(4, 6, seed=4).double()

    def gated(t: Tensor) -> Tensor:
        a, b = t.chunk(2, -1)
        return F.silu(a) * b

    value, slope = gradient(gated, x)
    torch.testing.assert_close(slope * x, torch.cat([value, value], 1) / 2)
    value, slope = gradient(gated, x, constant=True)
    torch.testing.assert_close(slope * x, torch.cat([0 * value, value], 1))


def by_topk(t: Tensor) -> Tensor:
    weights = t[:, :3].softmax(-1).topk(2).values.type_as(t)
    return weights / weights.sum(-1, keepdim=True) * t[:, 3:5]


def by_sigmoid(t: Tensor) -> Tensor:
    scores = t[:, :3].sigmoid()
    return 2.5 * scores.gather(1, scores.topk(2).indices) * t[:, 3:5]


def by_matrix(t: Tensor) -> Tensor:
    return torch.einsum("te,ted->td", t[:, :3].softmax(-1), t[:, 3:].unsqueeze(-1))


def by_clamped(t: Tensor) -> Tensor:
    gate, gated = t[:, :3].clamp(max=1), t[:, 3:].clamp(-9, 9)
    return gated * (gate * torch.sigmoid(1.702 * gate))


@pytest.mark.parametrize("road", [by_topk, by_sigmoid, by_matrix, by_clamped])
def test_what_a_router_chose_weighs_as_a_gate_does(road: Function) -> None:
    x = randn(4, 6, seed=5).double()
    value, slope = gradient(road, x, constant=True)
    assert not slope[:, :3].any()
    torch.testing.assert_close((slope * x).sum(1), value.sum(1))
    value, slope = gradient(road, x)
    torch.testing.assert_close((slope * x)[:, 3:].sum(1), value.sum(1) / 2)


@pytest.mark.parametrize(
    "product", [F.linear, lambda a, b: torch.addmm(a.new_zeros(1), a, b.mT), lambda a, b: torch.mm(a, b.mT)]
)
def test_weights_that_depend_on_the_input_are_a_factor(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = randn(4, 6, seed=6).double()
    value, slope = gradient(lambda t: product(t[:, :3], t[:, 3:]), x)
    torch.testing.assert_close((slope * x)[:, :3].sum(1), value.sum(1) / 2)
    torch.testing.assert_close((slope * x).sum(), value.sum())


def test_pairs_as_complex_numbers() -> None:
    turn, x = torch.polar(torch.ones(3), torch.arange(3.0)), randn(4, 6, seed=7)
    rotated: Function = lambda t: torch.view_as_real(torch.view_as_complex(t.unflatten(1, (3, 2))) * turn).flatten(1)  # noqa: E731
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(gradient(rotated, x)[1], torch.autograd.grad(rotated(leaf).sum(), leaf)[0])


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def by_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    fold = [t.flatten(0, 1) for t in (q, k, v)]
    scores = torch.baddbmm(torch.zeros(1, 1, 1, dtype=q.dtype), fold[0], fold[1].mT, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), fold[2]).view(q.shape)


@pytest.mark.parametrize("road", [F.scaled_dot_product_attention, plain, by_einsum, by_baddbmm])
def test_attention_by_any_road(road: Callable[..., Tensor]) -> None:
    """Queries and keys a quarter, values a half of their gradients; CP-LRP: nothing, nothing, all."""
    qkv = [randn(2, 3, 5, 4, seed=s).double() for s in range(3)]
    seed = randn(2, 3, 5, 4, seed=9).double()

    def slopes(rules: GradientRules | None) -> list[Tensor | None]:
        leaves = [t.clone().requires_grad_() for t in qkv]
        if rules is None:
            out = plain(*leaves)
        else:
            with rules:
                out = road(*leaves)
        torch.testing.assert_close(out, plain(*qkv))
        return list(torch.autograd.grad((out * seed).sum(), leaves, allow_unused=True))

    full = slopes(None)
    for got, want, factor in zip(slopes(GradientRules(False)), full, (0.25, 0.25, 0.5), strict=True):
        torch.testing.assert_close(got, want * factor)
    query, key, value = slopes(GradientRules(True))
    assert query is None and key is None
    torch.testing.assert_close(value, full[2])


def test_a_query_that_may_look_nowhere_carries_nothing() -> None:
    q, k, v = (randn(2, 3, 5, 4, seed=s).double().requires_grad_() for s in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[0, :, 2] = False
    axes = {0: 0}
    for rules in (GradientRules(False), AlphaBeta(2, {}, axes, positions=5, dtype=torch.float64)):
        with rules:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        found = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(torch.isfinite(t).all() for t in found)
        assert not found[0][0, :, 2].any()


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_is_seen_through(need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).double().eval().requires_grad_(False)
    x = randn(2, 5, 8).double()

    def by_hand(t: Tensor) -> Tensor:
        q, k, v = (h.unflatten(-1, (2, 4)).transpose(1, 2) for h in
                   F.linear(t, module.in_proj_weight, module.in_proj_bias).chunk(3, -1))  # fmt: skip
        return module.out_proj(plain(q, k, v).transpose(1, 2).flatten(2))

    for constant in (False, True):
        got = gradient(lambda t: module(t, t, t, need_weights=need_weights)[0], x, constant)
        torch.testing.assert_close(got, gradient(by_hand, x, constant))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama", "deberta_v2", "modernbert", "rtdl_ft_transformer"])
def test_the_forward_pass_is_the_models_own(name: str) -> None:
    case = CASES[name]
    model = case.build(case.implementations[0])
    with borrowed(model), torch.no_grad():
        plain_logits = case.logits(run(model, case.inputs()))
    # DeBERTa folds heads into the batch: one input (here: one sum over both) leaves no doubt.
    batch = 1 if name == "deberta_v2" else 2
    for rules, dtype in (
        (GradientRules(attention_is_constant=False), torch.float32),
        (GradientRules(attention_is_constant=True), torch.float32),
        (AlphaBeta(batch, {}, dict.fromkeys(range(4), 0), positions=10, dtype=torch.float64), torch.float64),
    ):
        inputs = leaves_of(case.inputs(), dtype)
        named = inputs if isinstance(inputs, dict) else {str(i): t for i, t in enumerate(inputs)}
        with borrowed(model), torch.enable_grad(), rules, LookupLeaves(lambda e, d=dtype: as_leaf(e, d), named):
            logits = case.logits(run(model, inputs))
        assert logits.requires_grad and not rules.unruled
        torch.testing.assert_close(logits.detach().float(), plain_logits, rtol=0, atol=2e-6 * plain_logits.abs().max())


def leaves_of(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    def leaf(tensor: Tensor) -> Tensor:
        return as_leaf(tensor, dtype) if tensor.is_floating_point() else tensor

    if isinstance(inputs, dict):
        return {k: leaf(v) for k, v in inputs.items()}
    return tuple(leaf(v) for v in inputs)
