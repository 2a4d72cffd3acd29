"""The escape hatch: say yourself which tensor is an attention map."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from whyformer.errors import BadInput


def mark_attention(weights: Tensor, layout: str = "b h q k") -> Tensor:
    """Return ``weights`` unchanged, and tell whyformer that it is an attention map in this layout.

    For home-made attention that is no softmax (sparsemax, sigmoid, a lookup), called between the weights and their
    product with the values. Outside of an explanation it costs nothing.
    """
    letters = layout.split()
    if sorted(letters) not in (["b", "h", "k", "q"], ["b", "k", "q"], ["k", "q"]) or len(letters) != weights.ndim:
        raise BadInput(
            f"layout {layout!r} does not describe a tensor of shape {tuple(weights.shape)}: give one letter per axis "
            "out of b (batch), h (head), q (query), k (key), e.g. 'b h q k'."
        )
    if has_torch_function_unary(weights):
        marked: Tensor = handle_torch_function(mark_attention, (weights,), weights, layout)
        return marked
    return weights
