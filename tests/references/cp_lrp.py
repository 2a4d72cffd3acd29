"""CP-LRP with its rules spelled out: those of AttnLRP, with attention maps and gates as constants."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models import CASES
from tests.references.attn_lrp import AttnLRP, probabilities, relevance
from tests.references.differentiable import double
from tests.references.eager_attention import one_input
from tests.references.relevance_tape import Node
from tests.references.twin import FAMILY, TARGET, Twin, each


class CPLRP(AttnLRP):
    def softmax(self, x: Node, causal: bool) -> Node:
        """What attention looks at is given: the map has no parents."""
        return Node(probabilities(x.value, causal))

    def matmul(self, a: Node, b: Node) -> Node:
        """Attention is the only constant among the factors: all of R goes to the values."""
        z = a.value @ b.value
        if a.parents:  # queries with keys: nothing comes back through the map anyway
            return Node(z, (a, b), lambda r: [torch.zeros_like(a.value), torch.zeros_like(b.value)])
        return Node(z, (b,), lambda r: [b.value * (a.value.transpose(1, 2) @ (r / z))])

    def gated(self, gate: Node, x: Node) -> Node:
        return Node(gate.value * x.value, (x,), lambda r: [r])


def cp_lrp(name: str, model: nn.Module, single: dict[str, Tensor], target: int, at: str = "input") -> Tensor:
    return relevance(name, model, single, target, CPLRP(), at)[0]


def expected(name: str, row: int, at: str) -> dict[str, Tensor]:
    return {"scores": cp_lrp(name, double(name), one_input(CASES[name].inputs(), row), TARGET, at)}


TWIN = Twin(expected, each(FAMILY, [{"at": "input"}, {"at": "tokens"}]))
