"""Transformer attribution (Chefer, Gur & Wolf, CVPR 2021), rule by rule and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.attn_lrp import probabilities, rms_normalised
from tests.references.differentiable import double
from tests.references.eager_attention import one_input, reported
from tests.references.relevance_tape import Node, Written, moved, passed, propagated, written
from tests.references.twin import FAMILY, TARGET, Twin, each


def divided(a: Tensor, b: Tensor) -> Tensor:
    """a/b, with the stabiliser of the authors' code on the side where it stabilises; zero where b is."""
    return torch.where(b == 0, 0.0, a / (b + 1e-9 * b.sign()))


class AlphaBeta:
    """alpha = 1, beta = 0."""

    def linear(self, x: Node, weight: Tensor, bias: Tensor | None) -> Node:
        """z = x⁺W⁺ + x⁻W⁻, without the bias; R = x⁺ ∘ W⁺(R/z) + x⁻ ∘ W⁻(R/z)."""
        out = x.value @ weight.T + (0 if bias is None else bias)
        px, nx, pw, nw = x.value.clamp(min=0), x.value.clamp(max=0), weight.clamp(min=0), weight.clamp(max=0)
        z = px @ pw.T + nx @ nw.T

        def share(r: Tensor) -> list[Tensor]:
            s = divided(r, z)
            return [px * (s @ pw) + nx * (s @ nw)]

        return Node(out, (x,), share)

    def add(self, a: Node, b: Node) -> Node:
        """R·a/(a+b) and R·b/(a+b), then rescaled so that the sums are to each other as |Σa| to |Σb|."""
        z = a.value + b.value

        def share(r: Tensor) -> list[Tensor]:
            s = divided(r, z)
            ra, rb = a.value * s, b.value * s
            sa, sb = ra.sum(), rb.sum()
            whole = sa.abs() + sb.abs()
            return [
                ra * divided(divided(sa.abs(), whole) * r.sum(), sa),
                rb * divided(divided(sb.abs(), whole) * r.sum(), sb),
            ]

        return Node(z, (a, b), share)

    def matmul(self, a: Node, b: Node) -> Node:
        """x ∘ ∂z/∂x (R/z), halved."""
        z = a.value @ b.value

        def share(r: Tensor) -> list[Tensor]:
            s = divided(r, z)
            return [
                a.value * (s @ b.value.transpose(1, 2)) / 2,
                b.value * (a.value.transpose(1, 2) @ s) / 2,
            ]

        return Node(z, (a, b), share)

    def scaled(self, x: Node, factor: Tensor | float) -> Node:
        return passed(x, x.value * factor)

    def softmax(self, x: Node, causal: bool) -> Node:
        return passed(x, probabilities(x.value, causal))

    def layer_norm(self, x: Node, weight: Tensor, bias: Tensor, eps: float) -> Node:
        return passed(x, nn.functional.layer_norm(x.value, weight.shape, weight, bias, eps))

    def rms_norm(self, x: Node, weight: Tensor, eps: float) -> Node:
        return passed(x, rms_normalised(x.value, eps) * weight)

    def activation(self, x: Node, function: object) -> Node:
        return passed(x, function(x.value))  # type: ignore[operator]

    def gated(self, gate: Node, x: Node) -> Node:
        """Half to each factor."""
        return Node(gate.value * x.value, (gate, x), lambda r: [r / 2, r / 2])

    def rope(self, x: Node, cos: Tensor, sin: Tensor) -> Node:
        """As the model writes it: x·cos + rotate(x)·sin, a sum of two."""
        half = x.value.shape[-1] // 2
        swapped = moved(x, lambda t: t.roll(half, -1), lambda r: r.roll(half, -1))
        sign = torch.cat([-torch.ones(half), torch.ones(half)])
        return self.add(self.scaled(x, cos), self.scaled(swapped, sign * sin))


def walked(name: str, model: nn.Module, single: dict[str, Tensor], target: int) -> tuple[Written, dict[Node, Tensor]]:
    """The model written out and its relevances, from a one-hot seed."""
    net = written(name, model, single, AlphaBeta())
    seed = torch.zeros_like(net.logits.value)
    seed[target] = 1
    return net, propagated(net.logits, seed)


def transformer_attribution(
    relevance: list[np.ndarray],
    gradient: list[np.ndarray] | None,
    normalize: bool = False,
    identity: bool = True,
) -> np.ndarray:
    """C_L ··· C_1 of the (H, Q, K) relevances and gradients of the layers."""
    joint = None
    for layer, rel in enumerate(relevance):
        heads, n, _ = rel.shape
        c = np.eye(n) if identity else np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                for h in range(heads):
                    weight = rel[h, i, j] * (1 if gradient is None else gradient[layer][h, i, j])
                    c[i, j] += max(0.0, weight) / heads
        if normalize:
            c = c / c.sum(1, keepdims=True)
        joint = c if joint is None else c @ joint
    assert joint is not None
    return joint


def expected(
    name: str, row: int, variant: str = "full", normalize: bool = False, start_layer: int = 0
) -> dict[str, Any]:
    net, relevance = walked(name, double(name), one_input(CASES[name].inputs(), row), TARGET)
    if variant == "lrp":
        return {"scores": relevance[net.tokens].sum(-1), "detail": relevance[net.tokens]}
    start = -1 if variant == "last_layer" else start_layer
    whole = transformer_attribution(
        [relevance[node].numpy() for node in net.attention][start:],
        reported(name, row, TARGET).gradient[start:] if variant == "full" else None,
        normalize=normalize,
        identity=variant != "last_layer",
    )
    value = pytest.approx(float(net.logits.value[TARGET]), abs=1e-5)
    return {"matrix": whole, "scores": whole[net.row], "value": value}


CHOICES: list[dict[str, Any]] = [
    {},
    {"normalize": True},
    {"start_layer": 1},
    {"variant": "rollout"},
    {"variant": "last_layer"},
    {"variant": "lrp"},
]
TWIN = Twin(expected, each(FAMILY, CHOICES))
