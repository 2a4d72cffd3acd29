"""What the interceptor does at a site: observe, record, intervene, impose, gate, hold values, or only outline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from whyformer.capture.functions import Args, Function, Kwargs, all_gradients, open_body, sdpa_operands
from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite

Edit = Callable[[int, OpenSite], None]  # number of the site, and the site
Rewrite = Callable[[int, int, Tensor], Tensor]  # layer, number of the first head, (B, H, Q, K) → another map


class Observe(Intercept):
    """The model's own kernel runs untouched; the attention map is computed beside it.

    ``layers``: those whose maps are wanted, by number; None: all of them. Of the others shapes are kept, and fused
    kernels run alone there, unless ``glance(attention_BHQK, first_query)`` has to see each map, once.
    """

    explicit = False
    layers: frozenset[int] | None = None
    glance: Callable[[Tensor, int], None] | None = None

    def at_site(self, site: OpenSite) -> None:
        if self.glance is not None:
            self.glance(site.attention_BHQK, site.first_query)

    def at_result(self, site: OpenSite, out: Tensor) -> Tensor:
        if self.layers is not None and site.waits and self._layer(site.parallel) not in self.layers:
            site.call, site.waits, site.value = None, False, shape_of(site.value)
        return out

    def _layer(self, parallel: bool) -> int:
        """The number of the next site's layer, if that is another head of the last layer, or if not."""
        return sum(not site.parallel for site in self.sites) - int(parallel)

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        if self.layers is None or self.glance is not None or {self._layer(True), self._layer(False)} & self.layers:
            return super()._sdpa(func, args, kwargs)
        out, call = func(*args, **kwargs), sdpa_operands(args, kwargs)
        operands = tuple(self._noted(shape_of(call[name]), call[name]) for name in ("query", "key", "value"))
        return super()._sdpa(lambda *_, **__: out, operands, {"enable_gqa": call["enable_gqa"]})

    def _close(self, site: OpenSite, out: Tensor) -> None:
        if self.layers is not None and self._layer(site.parallel) not in self.layers:
            site.attention, site.value = shape_of(site.attention), shape_of(site.value)
        super()._close(site, out)


class Recorder(Intercept):
    """Record maps and their gradients: the map is in the autograd graph, or torch's own kernel is (functions.py).

    ``lost``: numbers of the layers whose maps have no gradient. ``inputs``: further tensors to differentiate by.
    """

    explicit, keeps_operands = False, True
    lost: frozenset[int] = frozenset()
    inputs: tuple[Tensor, ...] = ()
    input_gradients: tuple[Tensor | None, ...] = ()

    def at_site(self, site: OpenSite) -> None:
        # With frozen weights the first map has no history: it becomes the leaf that everything later hangs on.
        if site.call is None and not site.attention.requires_grad:
            site.attention = site.attention.detach().requires_grad_()

    def at_result(self, site: OpenSite, out: Tensor) -> Tensor:
        # Of the result as it is now, also where the model writes into it later.
        if out.grad_fn is not None:
            site.edge = GradientEdge(out.grad_fn, out.output_nr)
            return out
        leaf = out.detach().requires_grad_()
        site.edge = get_gradient_edge(leaf)
        return leaf.clone()

    def gradients(self, scalar: Tensor, again: bool = False) -> list[Tensor]:
        """Return d scalar / d attention for every site, in the model's layout; zeros where there is no dependence.

        again: another scalar of the same pass follows. The mode stays on, for checkpointed models.
        """
        ends = [*(site.attention if site.edge is None else site.edge for site in self.sites), *self.inputs]
        one, backward = torch.ones_like(scalar), torch.autograd.grad
        # In this thread, where the mode is: work of a GPU would go to another one.
        with torch.autograd.set_multithreading_enabled(False), type(self)(self.batch, self.names, self.batch_axes):
            # autograd.grad would hand itself to the mode, and run its body with the mode off
            grads = open_body(backward)(scalar, ends, one, retain_graph=again, allow_unused=True)
        count = len(self.sites)
        grads, self.input_gradients = grads[:count], tuple(grads[count:])
        if any(g is None for g in grads):
            layers = accumulate(int(not site.parallel) for site in self.sites)
            self.lost = frozenset(layer - 1 for layer, g in zip(layers, grads, strict=True) if g is None)
        known = [torch.zeros_like(s.attention) if g is None else g for s, g in zip(self.sites, grads, strict=True)]
        fused = [(number, site.call) for number, site in enumerate(self.sites) if site.call is not None]
        gradients = all_gradients([call for _, call in fused], [grads[number] for number, _ in fused])
        for (number, _), gradient in zip(fused, gradients, strict=True):
            known[number] = gradient
        return known


class Intervene(Intercept):
    """Change attention maps or values inside the running model; ``edit(index, site)`` sets canonical tensors."""

    def __init__(self, *where: Any, edit: Edit) -> None:
        super().__init__(*where)
        self.edit = edit

    def at_site(self, site: OpenSite) -> None:
        self.edit(len(self.sites), site)


class Impose(Intercept):
    """Every map passes through ``rewrite(layer, first_head, attention_BHQK)`` before it meets the values."""

    def __init__(self, *where: Any, rewrite: Rewrite) -> None:
        super().__init__(*where)
        self.rewrite = rewrite
        self.layer, self.first = -1, 0  # where the next head of a model that computes heads one by one belongs

    def at_site(self, site: OpenSite) -> None:
        if site.parallel:
            self.first += self.sites[-1].layout.heads
        else:
            self.layer, self.first = self.layer + 1, 0
        site.attention_BHQK = self.rewrite(self.layer, self.first, site.attention_BHQK)


class Gate(Impose):
    """Multiply the result of each head by a number: ``gates`` is (L, H), or (B, L, H) with one table per input."""

    def __init__(self, *where: Any, gates: Tensor) -> None:
        gates_BLH = gates if gates.ndim == 3 else gates[None]

        # No method: bound to the role that holds it, it would keep the maps until the garbage collector runs.
        def gated(layer: int, first: int, weights_BHQK: Tensor) -> Tensor:
            gates_BH = gates_BLH[:, layer, first : first + weights_BHQK.shape[1]]
            if len(gates_BH) > 1:  # windows of one input share its gates
                gates_BH = gates_BH.repeat_interleave(len(weights_BHQK) // len(gates_BH), 0)
            return weights_BHQK * gates_BH.to(weights_BHQK.dtype)[:, :, None, None]

        super().__init__(*where, rewrite=gated)


class HeldAttention(Intercept):
    """Hold attention maps constant and keep the (B·W, H, K, D) values, to differentiate the score by them."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.values: list[Tensor] = []

    def at_site(self, site: OpenSite) -> None:
        site.attention = site.attention.detach()
        value = site.value_BHKD  # one copy per head, also where key heads are shared
        if not value.requires_grad:  # nothing before it depends on the input: it is where the graph begins
            value = value.detach().requires_grad_()
        self.values.append(value)
        site.value_BHKD = value

    def gradient_times_value(self, scalar: Tensor) -> list[Tensor]:
        """Per layer (B, H) Σ_kd V ∘ ∂s/∂V, which is Σ_q o_q · ∂s/∂o_q for the head's result o = A·V."""
        gradients = torch.autograd.grad(scalar, self.values, allow_unused=True)
        layers: list[Tensor] = []
        for site, value, gradient in zip(self.sites, self.values, gradients, strict=True):
            product = torch.zeros_like(value) if gradient is None else value.detach() * gradient
            sums_BH = product.float().sum((2, 3)).view(-1, site.layout.windows, value.shape[1]).sum(1)
            if site.parallel:  # another head of the same layer
                layers[-1] = torch.cat([layers[-1], sums_BH], 1)
            else:
                layers.append(sums_BH)
        return layers


class Outline(Intercept):
    """Keep shapes in place of maps and values, for studies. explicit: ``at_site`` supplies the map of a fused call."""

    explicit = False

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change, and of a fused kernel nothing to see but shapes."""

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        out = None if self.explicit else func(*args, **kwargs)
        call = sdpa_operands(args, kwargs)
        query, key = (self._noted(shape_of(call[name]), call[name]) for name in ("query", "key"))
        return super()._sdpa(lambda *_, **__: out, (query, key, call["value"]), {"enable_gqa": call["enable_gqa"]})

    def _close(self, site: OpenSite, out: Tensor) -> None:
        super()._close(site, out)
        site.attention, site.value, site.call = shape_of(site.attention), shape_of(site.value), None


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor without numbers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class _Values(Outline):
    """Keeps the values of the attention of this number."""

    number = 0
    value_BHKD: Tensor | None = None

    def at_site(self, site: OpenSite) -> None:
        if len(self.sites) == self.number:
            self.value_BHKD = site.value_BHKD


def first_values(forward: Callable[[], Tensor], names: dict[int, str], number: int = 0) -> Tensor:
    """(1, H, K, D) what the first attention, or the one of this number, reads at each position of one input."""
    intercept = _Values(1, names)
    intercept.number = number
    with torch.no_grad(), intercept:
        forward()
    assert intercept.value_BHKD is not None
    return intercept.value_BHKD
