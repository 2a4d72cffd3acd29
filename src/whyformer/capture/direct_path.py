"""The direct path: from the result of a head along the residual stream to the logits, through no other layer.

Everything but that path is held constant: what later layers read from the stream (queries, keys, values, MLPs), and the
scale of every normalisation. What remains is linear in the results of the heads, so a head's share of the logit is its
slope times itself. That it is linear is checked, function by function: a head that ends in a tanh is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import (
    LARGEST,
    LAYOUTS,
    LINEAR,
    MEASURES,
    NORMS,
    PRODUCTS,
    PROJECTIONS,
    Function,
    plain_name,
    tensors_in,
)
from whyformer.capture.intercept import current_path
from whyformer.capture.notes import Notes
from whyformer.capture.roles import Recorder
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered

HELD = MEASURES | {"pow", "square"}  # norms written out measure their scale with these; it is held constant
FACTORS = PRODUCTS | {"mm", "mul", "div"}  # linear in one factor at a time
SHARES = (LINEAR - LARGEST) | FACTORS | {"multi_head_attention_forward"}
# The result of a head, on its way to the output projection.
ON_THE_WAY = LAYOUTS | frozenset("contiguous cat stack to float type_as clone dropout mul".split())


class DirectPath(Recorder):
    """Record with only the direct path in the graph; ``last`` is the number of the projection that makes the logits."""

    explicit = True

    def __init__(
        self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None, *, last: int = -1
    ) -> None:
        super().__init__(batch, names, batch_axes)
        self.last = last
        self.projections = 0
        self._results = Notes[bool]()

    def at_site(self, site: OpenSite) -> None:
        site.attention = site.attention.detach().requires_grad_()
        site.value = site.value.detach()

    def gradients(self, scalar: Tensor, again: bool = False) -> list[Tensor]:
        maps = [site.attention for site in self.sites]
        grads = torch.autograd.grad(scalar, maps, retain_graph=again, allow_unused=True)
        return [torch.zeros_like(m) if g is None else g for m, g in zip(maps, grads, strict=True)]

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, _ = plain_name(func.__name__)
        live = [t for t in tensors_in((*args, *kwargs.values())) if t.requires_grad]
        if name in PROJECTIONS:
            args = self._cut(name, args)
        elif live and (name in HELD or (name in FACTORS and len(args) > 1 and args[0] is args[1])):
            args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        elif live and name in NORMS:
            return _held_norm(name, args, kwargs)
        before = len(self.sites)
        out = super().__torch_function__(func, types, args, kwargs)
        results = tensors_in((out,))
        if live and name not in PROJECTIONS and any(r.requires_grad for r in results):
            self._require_linear(name, live)
        new = len(self.sites) > before and name != "multi_head_attention_forward"
        if new or (name in ON_THE_WAY and any(self._results.get(t) for t in tensors_in(args))):
            for result in results:
                self._results.put(result, True)
        return out

    def _require_linear(self, name: str, live: list[Tensor]) -> None:
        if name in SHARES and not (name in FACTORS and len(live) > 1):
            return
        where = current_path(self.names) or "the model"
        raise NotOffered(
            f"between the heads and the logits the model applies {name} (in {where}), which is not linear, so the "
            'logit does not split into shares of heads. Use head_importance (kind="gradient" or "ablation").'
        )

    def _cut(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Later layers read the stream through a projection: there the path ends, but for the output projection of
        the heads themselves and for the last one, which makes the logits.
        """
        number, self.projections = self.projections, self.projections + 1
        place = 1 if name == "addmm" else 0
        operand = args[place]
        if number == self.last or self._results.get(operand):
            return args
        return (*args[:place], operand.detach(), *args[place + 1 :])


def _held_norm(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """layer_norm or rms_norm with its scale held constant."""
    call = dict(zip(("input", "shape", "weight", "bias", "eps"), args, strict=False))
    if name == "rms_norm":
        call = dict(zip(("input", "shape", "weight", "eps"), args, strict=False))
    call |= {"shape" if k == "normalized_shape" else k: v for k, v in kwargs.items()}
    x, shape = call["input"], call["shape"]
    axes = tuple(range(-(1 if isinstance(shape, int) else len(shape)), 0))
    if name == "layer_norm":
        x = x - x.mean(axes, keepdim=True)
    eps = call.get("eps")
    eps = eps if eps is not None else 1e-5 if name == "layer_norm" else torch.finfo(x.dtype).eps
    scale = (x.detach().float().square().mean(axes, keepdim=True) + eps).rsqrt()
    out: Tensor = x * scale.to(x.dtype)
    weight, bias = call.get("weight"), call.get("bias")
    out = out if weight is None else out * weight
    return out if bias is None else out + bias
