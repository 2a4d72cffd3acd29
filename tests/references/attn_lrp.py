"""AttnLRP with its rules spelled out (Achtibat et al. 2024), ε → 0; the library differentiates instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.differentiable import double
from tests.references.eager_attention import one_input
from tests.references.relevance_tape import Node, Written, passed, propagated, rotated, written
from tests.references.twin import FAMILY, TARGET, Twin, each


class AttnLRP:
    """Each rule turns the relevance R of the result into that of the operands."""

    def linear(self, x: Node, weight: Tensor, bias: Tensor | None) -> Node:
        """R_i = x_i Σ_j w_ji R_j / z_j; z includes the bias, which absorbs its share."""
        z = x.value @ weight.T + (0 if bias is None else bias)
        return Node(z, (x,), lambda r: [x.value * ((r / z) @ weight)])

    def add(self, a: Node, b: Node) -> Node:
        """R_a = a R / (a + b)."""
        z = a.value + b.value
        return Node(z, (a, b), lambda r: [a.value * r / z, b.value * r / z])

    def matmul(self, a: Node, b: Node) -> Node:
        """R_a = a ∘ (R/(2z)) bᵀ, R_b = b ∘ aᵀ (R/(2z))."""
        z = a.value @ b.value

        def share(r: Tensor) -> list[Tensor]:
            s = r / (2 * z)
            return [a.value * (s @ b.value.transpose(1, 2)), b.value * (a.value.transpose(1, 2) @ s)]

        return Node(z, (a, b), share)

    def scaled(self, x: Node, factor: Tensor | float) -> Node:
        return passed(x, x.value * factor)

    def softmax(self, x: Node, causal: bool) -> Node:
        """Taylor expansion at x: R_i = x_i (R_i - s_i Σ_j R_j); a hidden position has none."""
        s = probabilities(x.value, causal)
        return Node(s, (x,), lambda r: [x.value * (r - s * r.sum(-1, keepdim=True))])

    def layer_norm(self, x: Node, weight: Tensor, bias: Tensor, eps: float) -> Node:
        """std is a constant; the bias absorbs its share; x - mean is a linear layer."""
        centred = x.value - x.value.mean(-1, keepdim=True)
        std = (x.value.var(-1, correction=0, keepdim=True) + eps).sqrt()
        out = centred / std * weight + bias

        def share(r: Tensor) -> list[Tensor]:
            r = r * (centred / std * weight) / out
            s = r / centred
            return [x.value * (s - s.mean(-1, keepdim=True))]

        return Node(out, (x,), share)

    def rms_norm(self, x: Node, weight: Tensor, eps: float) -> Node:
        """Identity."""
        return passed(x, rms_normalised(x.value, eps) * weight)

    def activation(self, x: Node, function: object) -> Node:
        """Identity."""
        return passed(x, function(x.value))  # type: ignore[operator]

    def gated(self, gate: Node, x: Node) -> Node:
        """R/2 to each factor."""
        return Node(gate.value * x.value, (gate, x), lambda r: [r / 2, r / 2])

    def rope(self, x: Node, cos: Tensor, sin: Tensor) -> Node:
        """A rotation is a linear layer: R = x ∘ Jᵀ(R/z)."""
        z = x.value * cos + rotated(x.value) * sin

        def share(r: Tensor) -> list[Tensor]:
            s = r / z
            return [x.value * (s * cos - rotated(s * sin))]  # rotating by a quarter is its own transpose, negated

        return Node(z, (x,), share)


def probabilities(scores: Tensor, causal: bool) -> Tensor:
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1)


def rms_normalised(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def relevance(
    name: str, model: nn.Module, single: dict[str, Tensor], target: int, rules: object, at: str = "input"
) -> tuple[Tensor, Written, dict[Node, Tensor]]:
    """(N,) relevance per position, the seed being the logit itself."""
    net = written(name, model, single, rules)
    seed = torch.zeros_like(net.logits.value)
    seed[target] = net.logits.value[target]
    found = propagated(net.logits, seed)
    scores = found[net.inputs if at == "input" else net.tokens].sum(-1)
    if len(scores) < len(net.tokens.value):  # the token that ViT adds is no input
        scores = torch.cat([scores.new_zeros(1), scores])
    return scores, net, found


def attn_lrp(name: str, model: nn.Module, single: dict[str, Tensor], target: int, at: str = "input") -> Tensor:
    return relevance(name, model, single, target, AttnLRP(), at)[0]


def expected(name: str, row: int, at: str) -> dict[str, Tensor]:
    return {"scores": attn_lrp(name, double(name), one_input(CASES[name].inputs(), row), TARGET, at)}


TWIN = Twin(expected, each(FAMILY, [{"at": "input"}, {"at": "tokens"}]))
