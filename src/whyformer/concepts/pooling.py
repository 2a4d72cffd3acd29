"""From activations per token to one vector per input, and the same way for gradients."""

from __future__ import annotations

from torch import Tensor

from whyformer.errors import NotOffered

POOLINGS = ("cls", "mean", "flat")


def pooled(activation: Tensor, keep_BN: Tensor | None, pooling: str) -> Tensor:
    """(B, D): the first real token, the mean over real tokens, or everything."""
    if activation.ndim == 2:
        return activation
    if pooling == "flat":
        _require_no_padding(keep_BN)
        return activation.flatten(1)
    keep_BN = _checked(activation, keep_BN, pooling)
    if pooling == "cls":
        return activation[range(len(activation)), keep_BN.float().argmax(1)]
    weights_BN1 = keep_BN[:, :, None].to(activation)
    return (activation * weights_BN1).sum(1) / weights_BN1.sum(1)


def pooled_gradient(gradient: Tensor, keep_BN: Tensor | None, pooling: str) -> Tensor:
    """(B, D): the derivative for a step of the pooled vector; the mean takes a step where every real token does."""
    if gradient.ndim == 2 or pooling != "mean":
        return pooled(gradient, keep_BN, pooling)
    keep_BN = _checked(gradient, keep_BN, pooling)
    return (gradient * keep_BN[:, :, None].to(gradient)).sum(1)


def _checked(activation: Tensor, keep_BN: Tensor | None, pooling: str) -> Tensor:
    if activation.ndim != 3:
        raise NotOffered(
            f"pooling={pooling!r} needs activations of inputs × tokens × features; this layer gives "
            f'{tuple(activation.shape)}. Use pooling="flat" or another layer.'
        )
    if keep_BN is None or keep_BN.shape[1] != activation.shape[1]:
        return activation.new_ones(activation.shape[:2]).bool()
    return keep_BN.to(activation.device)


def _require_no_padding(keep_BN: Tensor | None) -> None:
    if keep_BN is not None and not keep_BN.all():
        raise NotOffered('pooling="flat" needs inputs of one length, and these were padded: use "cls" or "mean".')
