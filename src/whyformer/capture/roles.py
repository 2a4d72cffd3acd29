"""What the interceptor does at a site: observe, record, intervene, impose, gate, hold values, or only outline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, sdpa_operands, tensors_in
from whyformer.capture.intercept import Intercept, current_path
from whyformer.capture.site import FOLLOWED, OpenSite, PlannedCall
from whyformer.capture.trail import Notes
from whyformer.errors import CaptureError, NotOffered
from whyformer.loan.spread import MultiplyAdds, out_of_memory

Edit = Callable[[int, OpenSite], None]  # number of the site, and the site
Rewrite = Callable[[int, int, Tensor], Tensor]  # layer, number of the first head, (B, H, Q, K) → another map


class HeadGradient(Intercept):
    """Finds the rows of the last attention that reach the logits, by the gradient of what follows it."""

    count: int | None = None  # of the attentions; None: the gradient is not taken
    spoke_BQ: Tensor | None = None  # whether a row of the last one has a gradient
    work: MultiplyAdds | None = None  # counts the pass; None: its share is known
    share = 0.0  # of the gradient, in the work of the forward
    _ending: tuple[Tensor, PlannedCall] | None = None  # the result of the last one, and the call that it came from

    def after_site(self, name: str, out: Tensor) -> Tensor:
        if len(self.sites) != self.count or name not in FOLLOWED:  # what multiplies by entries adds the rows up later
            return out
        torch.set_grad_enabled(True)
        start = out.detach().requires_grad_()
        self._ending = start, self.steps[-1]
        return start.clone()  # models may write into it

    def differentiate(self, logits: Tensor) -> Tensor:
        """Take the gradient of the logits; return these without it."""
        if self._ending is None:
            return logits
        (start, call), self._ending = self._ending, None
        if logits.requires_grad:
            forward = self.work.total if self.work else 0
            try:
                (gradient,) = torch.autograd.grad(mixed_sum(logits), start, allow_unused=True)
            except Exception as error:  # an operator of the model is for inference only: the rows are not known
                if out_of_memory(error):
                    raise
                gradient = None
            if self.work:
                self.share = self.work.total / max(forward, 1) - 1
            axes, site = call.rows(self.sites[-1]), self.sites[-1]
            if gradient is not None and gradient.ndim == len(axes) + 1:
                reached = gradient.movedim(axes, tuple(range(len(axes)))).any(-1)
                self.spoke_BQ = site.layout.inputs_of(reached)
        torch.set_grad_enabled(False)
        return logits.detach()


class Observe(HeadGradient):
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
        if self.layers is None or site.call is None or not site.waits:
            return out
        if self.glance is not None:
            (site.attention,), site.waits = fn.all_weights([site.call]), False
            self.glance(site.attention_BHQK, site.first_query)
        if self._layer(site.parallel) not in self.layers:
            site.call, site.waits = None, False
            site.attention, site.value = shape_of(site.attention), shape_of(site.value)
        return out

    def _layer(self, parallel: bool) -> int:
        """The number of the next site's layer, if that is another head of the last layer, or if not."""
        return sum(not site.parallel for site in self.sites) - int(parallel)

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        if self.layers is None or self.glance is not None or {self._layer(True), self._layer(False)} & self.layers:
            return super()._sdpa(func, args, kwargs)
        out, call = func(*args, **kwargs), sdpa_operands(args, kwargs)
        operands = tuple(_stand_in(self, call[name]) for name in ("query", "key", "value"))
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
        """Return d scalar / d attention per site, in the model's layout; again: another scalar of the pass follows."""
        ends = [*(site.attention if site.edge is None else site.edge for site in self.sites), *self.inputs]
        one, backward = torch.ones_like(scalar), torch.autograd.grad
        # With the mode on, for checkpointed models; in this thread, where it is: work of a GPU would go to another.
        with torch.autograd.set_multithreading_enabled(False), type(self)(self.batch, self.names, self.batch_axes):
            # autograd.grad would hand itself to the mode, and run its body with the mode off
            grads = fn.open_body(backward)(scalar, ends, one, retain_graph=again, allow_unused=True)
        count = len(self.sites)
        grads, self.input_gradients = grads[:count], tuple(grads[count:])
        if any(g is None for g in grads):
            layers = accumulate(int(not site.parallel) for site in self.sites)
            self.lost = frozenset(layer - 1 for layer, g in zip(layers, grads, strict=True) if g is None)
        known = [torch.zeros_like(s.attention) if g is None else g for s, g in zip(self.sites, grads, strict=True)]
        fused = [(number, site.call) for number, site in enumerate(self.sites) if site.call is not None]
        gradients = fn.all_gradients([call for _, call in fused], [grads[number] for number, _ in fused])
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
    look: Edit | None = None

    def at_site(self, site: OpenSite) -> None:
        """Leave the site as it is; of a fused kernel there are only shapes to see."""
        if self.look is not None:
            self.look(len(self.sites), site)

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        out = None if self.explicit else func(*args, **kwargs)
        call = sdpa_operands(args, kwargs)
        query, key = (_stand_in(self, call[name]) for name in ("query", "key"))
        return super()._sdpa(lambda *_, **__: out, (query, key, call["value"]), {"enable_gqa": call["enable_gqa"]})

    def _close(self, site: OpenSite, out: Tensor) -> None:
        super()._close(site, out)
        site.attention, site.value, site.call = shape_of(site.attention), shape_of(site.value), None


def mixed_sum(values: Tensor) -> Tensor:
    """Sum values with random weights, so that no two of their gradients cancel."""
    return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(0)).to(values)).sum()


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor without numbers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _stand_in(role: Intercept, tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape without numbers, with what is known about that one."""
    copy = shape_of(tensor)
    role._trail.copy(tensor, copy)
    if role._since_site is not None:
        role._since_site.copy(tensor, copy)
    return copy


def first_values(forward: Callable[[], Tensor], names: dict[int, str], number: int = 0) -> Tensor:
    """Return (1, H, K, D) the values that the first attention, or the one of this number, reads of one input."""
    read: dict[int, Tensor] = {}

    def look(index: int, site: OpenSite) -> None:
        if index == number:
            read[index] = site.value_BHKD

    intercept = Outline(1, names)
    intercept.look = look
    with torch.no_grad(), intercept:
        forward()
    if number not in read:  # another input took another way through the model
        raise CaptureError("the model runs its attention for some inputs only.")
    return read[number]


# The direct path: from the result of a head along the residual stream to the logits, through no other layer.
#
# Everything but that path is held constant: what later layers read from the stream (queries, keys, values, MLPs), and
# the scale of every normalisation. What remains is linear in the results of the heads, so a head's share of the logit
# is its slope times itself. That it is linear is checked, function by function: a head that ends in a tanh is refused.

HELD = fn.MEASURES | {"pow", "square"}  # norms written out measure their scale with these; it is held constant
FACTORS = fn.PRODUCTS | {"mm", "mul", "div"}  # linear in one factor at a time
SHARES = (fn.LINEAR - fn.LARGEST) | FACTORS | {"multi_head_attention_forward"}
# The result of a head, on its way to the output projection.
ON_THE_WAY = fn.LAYOUTS | frozenset("contiguous cat stack to float type_as clone dropout mul".split())


class DirectPath(Recorder):
    """Record with only the direct path in the graph; ``last`` is the number of the projection that makes the logits."""

    explicit = True

    def __init__(self, *where: Any, last: int = -1) -> None:
        super().__init__(*where)
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

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        name, _ = fn.plain_name(func.__name__)
        live = [t for t in tensors_in((*args, *kwargs.values())) if t.requires_grad]
        if name in fn.PROJECTIONS:
            args = self._cut(name, args)
        elif live and (name in HELD or (name in FACTORS and len(args) > 1 and args[0] is args[1])):
            args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        elif live and name in fn.NORMS:
            return _held_norm(name, args, kwargs)
        before = len(self.sites)
        out = super().__torch_function__(func, types, args, kwargs)
        results = tensors_in((out,))
        if live and name not in fn.PROJECTIONS and any(r.requires_grad for r in results):
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
        """Detach what later layers read through projections, except W_O of the heads and the one to the logits."""
        number, self.projections = self.projections, self.projections + 1
        place = 1 if name == "addmm" else 0
        operand = args[place]
        if number == self.last or self._results.get(operand):
            return args
        return (*args[:place], operand.detach(), *args[place + 1 :])


def _held_norm(name: str, args: Args, kwargs: Kwargs) -> Tensor:
    """layer_norm or rms_norm with its scale held constant."""
    names = ["input", "normalized_shape", "weight", *(["bias"] if name == "layer_norm" else []), "eps"]
    call = dict(zip(names, args, strict=False)) | kwargs
    x, shape, eps = call["input"], call["normalized_shape"], call.get("eps")
    axes = tuple(range(-(1 if isinstance(shape, int) else len(shape)), 0))
    if name == "layer_norm":
        x = x - x.mean(axes, keepdim=True)
    if eps is None:
        eps = 1e-5 if name == "layer_norm" else torch.finfo(x.dtype).eps
    scale = (x.detach().float().square().mean(axes, keepdim=True) + eps).rsqrt()
    out: Tensor = x * scale.to(x.dtype)
    weight, bias = call.get("weight"), call.get("bias")
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


# The weights that make queries, keys and values at each site, and those that read its result.
#
# The projections that a model computes are remembered, and at a site each head's queries, keys and values are looked
# for among their columns. Packed weights (GPT-2's c_attn), grouped key heads (Llama) and interleaved layouts (GPT-NeoX)
# all come out as one first column per head. Rotated queries are recognised by their norms, which a rotation keeps, and
# by position 0, which is not rotated.

TOLERANCE = 1e-3  # relative; a wrong column is off by about 1


@dataclass(frozen=True)
class HeadWeights:
    """Columns of a weight, one slice per head: (H, in, D) for q, k, v; (H, D, out) for o."""

    weight_HXY: Tensor
    rotated: bool = False


@dataclass
class SiteWeights:
    """The four weights of one site, None where they were not found."""

    path: str
    heads: int
    query: HeadWeights | None = None
    key: HeadWeights | None = None
    value: HeadWeights | None = None
    output: HeadWeights | None = None


@dataclass(frozen=True)
class _Projection:
    weight_XY: Tensor  # in, out
    operand_NX: Tensor
    result_NY: Tensor


class ProjectionFinder(Observe):
    """Run one input inside of it; ``site_weights`` then has the weights of each site."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(1, names)
        self.site_weights: list[SiteWeights] = []
        self._recent: list[_Projection] = []
        self._operands: dict[int, tuple[Tensor, Tensor]] = {}  # queries and keys behind a map, by number
        self._pairs = Notes[int]()  # those numbers
        self._result_HND: Tensor | None = None

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        name = func.__name__
        if name in {"linear", "addmm"} and isinstance(out, Tensor):
            operand, weight = (args[0], args[1].t()) if name == "linear" else args[1:3]
            self._projected(operand, weight, out)
        elif name != "__get__" and isinstance(out, Tensor) and self._pairs.get(out) is None:
            self._pairs.copy(next((a for a in args if isinstance(a, Tensor)), None), out)
        return out

    def _projected(self, operand: Tensor, weight: Tensor, out: Tensor) -> None:
        projection = _Projection(weight, operand.reshape(-1, operand.shape[-1]), out.reshape(-1, out.shape[-1]))
        if self._result_HND is not None and self.site_weights[-1].output is None:
            starts = columns_of(self._result_HND, projection.operand_NX)
            if starts is not None:
                width = self._result_HND.shape[-1]
                self.site_weights[-1].output = HeadWeights(torch.stack([weight[s : s + width] for s in starts]))
                self._result_HND = None
        self._recent.append(projection)

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        call = sdpa_operands(args, kwargs)
        self._operands[len(self.sites)] = (call["query"], fn.repeat_heads(call["query"], call["key"]))
        return super()._sdpa(func, args, kwargs)

    def _product(
        self, product: Callable[[Tensor, Tensor], Any], left: Tensor, right: Tensor, contraction_of: Any
    ) -> Any:
        before = len(self.sites)
        out = super()._product(product, left, right, contraction_of)
        if isinstance(out, Tensor) and len(self.sites) == before and left.ndim == right.ndim == 4:
            number = -1 - len(self._operands)
            self._operands[number] = (left, right.transpose(-2, -1))
            self._pairs.put(out, number)
        return out

    def at_site(self, site: OpenSite) -> None:
        number = self._pairs.get(site.attention)
        query, key = self._operands.get(len(self.sites) if number is None else number, (None, None))
        value_HND = site.value_BHKD[0]
        sides = [None if side is None or side.ndim != 4 else side[0] for side in (query, key)]
        weights = (self._find(heads_HND) for heads_HND in (*sides, value_HND))
        self.site_weights.append(SiteWeights(site.path, site.layout.heads, *weights))
        self._result_HND = site.attention_BHQK[0] @ value_HND
        self._recent, self._operands = [], {}

    def _find(self, heads_HND: Tensor | None) -> HeadWeights | None:
        if heads_HND is None:
            return None
        width = heads_HND.shape[-1]
        for rotated in (False, True):
            for projection in reversed(self._recent):
                starts = columns_of(heads_HND, projection.result_NY, rotated)
                if starts is not None:
                    return HeadWeights(torch.stack([projection.weight_XY[:, s : s + width] for s in starts]), rotated)
        return None


def columns_of(heads_HND: Tensor, block_NY: Tensor, rotated: bool = False) -> list[int] | None:
    """The first column of each head in a block of columns, up to one common factor; None where it is not there."""
    positions, width = heads_HND.shape[1:]
    if block_NY.shape[0] != positions or block_NY.shape[1] % width or positions < 3:
        return None
    blocks_XND = block_NY.float().reshape(positions, -1, width).transpose(0, 1)
    wanted = heads_HND.float()
    if rotated:
        first = _misfit(wanted[:, 0], blocks_XND[:, 0])
        misfit = torch.maximum(first, _misfit(wanted.norm(dim=-1), blocks_XND.norm(dim=-1)))
    else:
        misfit = _misfit(wanted.flatten(1), blocks_XND.flatten(1))
    best = misfit.min(1)
    if bool((best.values > TOLERANCE).any()):
        return None
    return [int(i) * width for i in best.indices]


def _misfit(wanted_HF: Tensor, blocks_XF: Tensor) -> Tensor:
    """(H, X) relative distance between each head and its best multiple of each block."""
    inner = wanted_HF @ blocks_XF.t()
    energy = blocks_XF.square().sum(1)
    factor = inner / energy.clamp(min=1e-12)
    away = wanted_HF[:, None] - factor[..., None] * blocks_XF[None]
    misfit: Tensor = away.norm(dim=-1) / wanted_HF.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return misfit
