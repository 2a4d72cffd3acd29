"""The rules of relevance: AttnLRP and CP-LRP by changed gradients, short ways of the alpha-beta rules as written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import randn
from whyformer.capture.lrp.alpha_beta import AlphaBeta
from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.capture.lrp.redistribution import Desk, positive_linear, positive_part, product_of_two, proportional

Function = Callable[[Tensor], Tensor]


def gradient(function: Function, x: Tensor, constant: bool = False, unruled: str = "") -> tuple[Tensor, Tensor]:
    """Value and gradient (of the sum) under the rules."""
    leaf = x.clone().requires_grad_()
    with GradientRules(attention_is_constant=constant) as rules:
        out = function(leaf * 1)
    assert rules.functions_without_rule(out) == set(unruled.split())
    return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]


WRITTEN_OUT: dict[str, Function] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "relu in place": lambda x: F.relu(x, inplace=True),
    "leaky_relu_": lambda x: F.leaky_relu_(x, 0.2),
    "squared relu": lambda x: F.relu(x) ** 2,
    "gpt2's gelu": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu by exp": lambda x: x / (1 + torch.exp(-x)),
    "silu in place": lambda x: x.mul_(x.sigmoid()),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("constant", [False, True])
def test_an_activation_passes_what_it_got(name: str, constant: bool) -> None:
    x = randn(4, 6).double() * 2
    value, slope = gradient(WRITTEN_OUT[name], x, constant)  # exp has no rule, and needs none in a denominator
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


def shared_by_groups(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, relevance: Tensor) -> Tensor:
    """The rule of layer_norm for groups of channels, one number at a time: R_j → x_i Σ_j ∂z_j/∂x_i R_j / out_j."""
    batch, channels, steps = x.shape
    size, got = channels // groups, torch.zeros_like(x)
    for b in range(batch):
        for g in range(groups):
            members = [(c, t) for c in range(g * size, (g + 1) * size) for t in range(steps)]
            values = torch.stack([x[b, c, t] for c, t in members])
            mean, std = values.mean(), (values.var(correction=0) + eps).sqrt()
            for c, t in members:
                out = weight[c] * (x[b, c, t] - mean) / std + bias[c]
                for other, (c2, t2) in enumerate(members):
                    centring = ((c, t) == (c2, t2)) - 1 / len(members)  # of x - mean, a linear layer
                    got[b, c2, t2] += values[other] * centring * weight[c] / std * relevance[b, c, t] / out
    return got


GROUPED: dict[str, tuple[int, Function]] = {
    "group_norm": (2, lambda x: F.group_norm(x, 2, WEIGHT, BIAS, 1e-3)),
    "group_norm by keyword": (3, lambda x: F.group_norm(input=x, num_groups=3, weight=WEIGHT, bias=BIAS, eps=1e-3)),
    "torch.group_norm": (2, lambda x: torch.group_norm(x, 2, WEIGHT, BIAS, 1e-3)),
    "instance_norm": (6, lambda x: F.instance_norm(x, None, None, WEIGHT, BIAS, eps=1e-3)),
    "torch.instance_norm": (6, lambda x: torch.instance_norm(x, WEIGHT, BIAS, None, None, True, 0.1, 1e-3, False)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_channels(name: str) -> None:
    groups, function = GROUPED[name]
    x, relevance = randn(2, 6, 3, seed=5).double(), randn(2, 6, 3, seed=6).double()
    with GradientRules(attention_is_constant=False) as rules:
        out = function(leaf := x.clone().requires_grad_())
    assert torch.equal(out, function(x)) and not rules.functions_without_rule(out)
    (slope,) = torch.autograd.grad(out, leaf, relevance / out.detach())
    torch.testing.assert_close(x * slope, shared_by_groups(x, groups, WEIGHT, BIAS, 1e-3, relevance))


def test_a_norm_by_running_statistics_is_linear() -> None:
    x, mean, spread = randn(2, 6, 3, seed=5).double(), randn(6, seed=6).double(), randn(6, seed=7).double() ** 2
    _, slope = gradient(lambda t: F.instance_norm(t, mean, spread, WEIGHT, None, use_input_stats=False, eps=0), x)
    torch.testing.assert_close(slope, (WEIGHT / spread.sqrt())[:, None].expand_as(x))


def test_where_an_image_is_sampled_is_a_constant() -> None:
    """Deformable attention computes the places from its input as well: all relevance goes to what is read there."""
    x = randn(1, 2, 4, 5, seed=8).double()

    def places(t: Tensor) -> Tensor:
        return torch.tanh(t.permute(0, 2, 3, 1))

    for sample in (
        lambda t: F.grid_sample(t, places(t), align_corners=False),
        lambda t: F.grid_sample(input=t, grid=places(t), mode="bilinear", align_corners=False),
    ):
        value, slope = gradient(sample, x)
        assert torch.equal(value, sample(x))
        torch.testing.assert_close((slope * x).sum(), value.sum())


def test_functions_without_a_rule_are_those_that_relevance_meets() -> None:
    """Neither what makes a constant nor what is computed before the inputs or apart from the output."""
    with GradientRules(attention_is_constant=False) as rules:
        leaf = randn(3).requires_grad_()
        inputs = torch.sin(leaf)
        torch.cos(inputs)
        out = torch.exp(inputs) / (1 + torch.log1p(inputs.square()))
    assert rules.functions_without_rule(out) == {"exp", "sin"}
    assert rules.functions_without_rule(out, inputs) == {"exp"}


def test_normalize() -> None:
    x = randn(4, 6, seed=3).double()
    value, slope = gradient(lambda t: F.normalize(t, dim=-1), x)
    torch.testing.assert_close(slope * x, value)


@pytest.mark.parametrize("gated", [lambda a, b: F.glu(torch.cat([a, b], 1), -1), lambda a, b: a * F.silu(b)])
def test_a_gate_is_told_from_what_it_gates(gated: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = randn(4, 6, seed=4).double()
    value, slope = gradient(lambda t: gated(*t.chunk(2, -1)), x)
    torch.testing.assert_close(slope * x, torch.cat([value, value], 1) / 2)  # a product: half to each
    value, slope = gradient(lambda t: gated(*t.chunk(2, -1)), x, constant=True)
    torch.testing.assert_close(slope * x, torch.cat([value, 0 * value], 1))  # the gate is given


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
    for rules in (GradientRules(False), AlphaBeta(2, {}, {0: 0}, positions=5, dtype=torch.float64)):
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


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("signs", ["one", "both"])
@pytest.mark.parametrize("rows", ["all", "one"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_linear_layer(precision: torch.dtype, signs: str, rows: str, cancelled: bool) -> None:
    x, weight, bias = drawn(2, 300, 8, seed=0), drawn(6, 8, seed=1).float(), drawn(6, seed=2).float()
    weight, bias = weight.to(precision), bias.to(precision)
    relevance = drawn(2, 300, 6, seed=3)
    if cancelled:  # one entry raises the result, by next to nothing
        x, weight = -x.abs(), weight.abs()
        x[..., 0] = 1e-13
    filled = relevance if rows == "all" else relevance[:, :1]
    # Of both signs, Σ|R| is large beside |ΣR|: no rounding.
    filled.copy_(filled.abs() if signs == "one" else filled - filled.mean((1, 2), keepdim=True))
    if rows == "one":
        relevance[:, 1:] = 0
    want, got = as_written_and_short(x, weight, bias, relevance)
    rounded = precision == torch.float32 and signs == "one" and rows == "all" and not cancelled
    assert float((want - got).abs().max()) <= (1e-6 if rounded else 1e-9) * float(want.abs().max())


def test_large_relevance_of_both_signs_leaves_no_rounding_in_the_others_sum() -> None:
    x, weight, bias = drawn(600, 32, seed=0), drawn(24, 32, seed=1).float(), drawn(24, seed=2).float()
    relevance = drawn(600, 24, seed=3).abs()
    large = 1e6 * drawn(5, 24, seed=4)
    relevance[::120] = large - large.mean(1, keepdim=True)
    want, got = as_written_and_short(x, weight, bias, relevance)
    assert float((want - got).abs().sum()) <= 1e-5 * float(relevance.sum())


def as_written_and_short(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    shown = torch.nn.functional.linear(x.detach(), weight.double(), bias.double())
    written = positive_part(torch.nn.functional.linear, shown, x, weight)
    short = positive_linear(Desk(torch.float64), x, weight, bias)
    torch.testing.assert_close(shown, short, rtol=1e-14, atol=1e-14)
    want, got = (torch.autograd.grad(out, x, relevance)[0] for out in (written, short))
    return want, got


@pytest.mark.parametrize("shape", [((3, 4, 5), (3, 5, 6)), ((2, 9, 2), (2, 2, 9))])
def test_a_product_of_two(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = (drawn(*s, seed=i).requires_grad_() for i, s in enumerate(shape))
    shown = (left @ right).detach()
    relevance = drawn(*shown.shape, seed=5)
    want = torch.autograd.grad(proportional(torch.matmul, shown, left, right), (left, right), relevance)
    short = product_of_two(shown, left, right) * 1.0
    for a, b in zip(want, torch.autograd.grad(short, (left, right), relevance), strict=True):
        torch.testing.assert_close(a, b)


def relevance(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Value and relevance of x, all of the value's being 1."""
    leaf = x.clone().requires_grad_()
    with AlphaBeta(1, {}, {0: 0}, positions=5, dtype=torch.float64) as rules:
        out = function(leaf * 1)
    assert not rules.unruled
    return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]


@pytest.mark.parametrize("bias", [lambda x: drawn(6, seed=1).expand_as(x), lambda x: drawn(1, 1, 6, seed=1)])
def test_a_bias_takes_nothing_in_whatever_shape(bias: Callable[[Tensor], Tensor]) -> None:
    x = drawn(1, 5, 6, seed=0)
    value, shares = relevance(lambda t: t + bias(t), x)
    torch.testing.assert_close(value, x + bias(x))
    torch.testing.assert_close(shares, torch.ones_like(x))
    heads = relevance(lambda t: t.view(1, 5, 2, 3) + drawn(2, seed=1)[None, None, :, None], x)[1]
    torch.testing.assert_close(heads, torch.ones_like(x))
    positions = relevance(lambda t: t + drawn(5, 6, seed=1), x)[1]
    assert not torch.allclose(positions, torch.ones_like(x)), "positions take a share"


@pytest.mark.parametrize("added", ["index_add_", "scatter_add"])
def test_what_meets_in_one_place_shares(added: str) -> None:
    x, index = drawn(4, 3, seed=0).abs(), torch.tensor([0, 1, 0])

    def summed(t: Tensor) -> Tensor:
        base, source = t[:1].expand(2, 3) * 1, t[1:] * torch.ones(3, 3)
        if added == "scatter_add":
            return base.scatter_add(0, index[:, None].expand(3, 3), source)
        out: Tensor = getattr(base, added)(0, index, source)
        return out

    value, shares = relevance(summed, x)
    torch.testing.assert_close(value, summed(x))
    torch.testing.assert_close(shares[1:], x[1:] / value[index])
    torch.testing.assert_close(shares.sum(), torch.tensor(6.0, dtype=torch.float64))


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch 2.6 has no _grouped_mm")
def test_stretches_of_rows_with_matrices_of_their_own() -> None:
    x, weights = drawn(5, 8, seed=0), drawn(2, 8, 16, seed=1).bfloat16()
    ends = torch.tensor([2, 5], dtype=torch.int32)
    grouped = relevance(lambda t: torch._grouped_mm(t, weights, offs=ends), x)
    each = relevance(lambda t: torch.cat([t[:2] @ weights[0].double(), t[2:] @ weights[1].double()]), x)
    torch.testing.assert_close(grouped, each)
