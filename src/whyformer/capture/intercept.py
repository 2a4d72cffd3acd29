"""The interceptor: one function mode that sees every attention of an unmodified model.

An attention is one call, or a softmax and, later, its product with the values. Nothing in the model is hooked.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, FusedCall, Kwargs, sdpa_operands, tensors_in
from whyformer.capture.site import (
    FOLLOWED,
    Contraction,
    Layout,
    OffPlan,
    OpenSite,
    Plan,
    PlannedCall,
    PlannedSite,
    layout_of,
)
from whyformer.capture.trail import Atom, Axes, Axis, Note, Notes, ProjectionSource, Sources, Trail, fresh
from whyformer.errors import BadInput, shown

NOWHERE = torch.empty((), device="meta")  # in place of a map that is computed later, which has its shape


@dataclass(slots=True)
class SoftmaxCall:
    """One softmax (or marked attention map).

    ``claimed``: its key axis was contracted with values. ``pools``: it weighs positions by scores that no query asked
    for, which is how a head pools them.
    """

    path: str
    shape: tuple[int, ...]
    axis: int
    layout: str | None = None
    claimed: bool = False
    contracted_elsewhere: bool = False
    pools: bool = False

    def __str__(self) -> str:
        where = self.path or "the model itself"
        fate = "contracted over another axis" if self.contracted_elsewhere else "never multiplied with values"
        return f"{where}: softmax over axis {self.axis} of {self.shape}, {fate}"


def mark_attention(weights: Tensor, layout: str = "b h q k") -> Tensor:
    """Return ``weights`` unchanged, and tell whyformer that it is an attention map in this layout.

    For home-made attention that is no softmax (sparsemax, sigmoid, a lookup), called between the weights and their
    product with the values. Outside of an explanation it costs nothing.

    >>> def forward(self, query, key, value):
    ...     weights = torch.sigmoid(query @ key.transpose(-1, -2))  # (batch, heads, queries, keys)
    ...     return wf.mark_attention(weights, "b h q k") @ value
    """
    if not isinstance(weights, Tensor):
        raise BadInput(f"mark_attention marks a tensor of attention weights, and weights is {shown(weights)}.")
    if len(letters_of(layout)) != weights.ndim:
        raise BadInput(f"layout {layout!r} does not describe a tensor of shape {tuple(weights.shape)}: {LETTERS}.")
    if has_torch_function_unary(weights):
        marked: Tensor = handle_torch_function(mark_attention, (weights,), weights, layout)
        return marked
    return weights


LETTERS = "give one letter per axis out of b (batch), h (head), q (query), k (key), e.g. 'b h q k'"


def letters_of(layout: str) -> list[str]:
    """The axes that a layout names."""
    letters = layout.split() if isinstance(layout, str) else []
    if sorted(letters) not in (["b", "h", "k", "q"], ["b", "k", "q"], ["b", "k"], ["k", "q"]):
        raise BadInput(f"layout {shown(layout)} does not describe attention weights: {LETTERS}.")
    return letters


def running_modules() -> Iterator[nn.Module]:
    """Yield the modules that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # To ask a frame for its variables copies all of them: only those are asked that have a "self".
        if "self" in code.co_varnames or "self" in code.co_freevars or "self" in code.co_cellvars:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                yield module
        frame = frame.f_back


def current_path(names: dict[int, str]) -> str:
    """Dotted path of the innermost running module of the model, "" for the model itself."""
    return next((names[id(module)] for module in running_modules() if id(module) in names), "")


def _place(tensor: Tensor, axis: int) -> tuple[int, int]:
    """Where a tensor lies in memory, and how far apart its neighbours along an axis are."""
    return tensor.untyped_storage().data_ptr(), tensor.stride(axis)


class Intercept(TorchFunctionMode):
    """See every attention of a model that runs inside ``with intercept:``; subclasses say what to do with it.

    batch: number of inputs in the batch; names: module paths by id; batch_axes: what an unambiguous run taught.
    """

    explicit = True  # False: torch's own attention kernel runs and the map is computed beside it
    keeps_operands = False  # True: what torch's own kernel was given stays with the site
    keeps_values = True  # False: a site's values go once they have been used
    rows_attend = False  # True: maps of batch × batch are inputs looking at each other (SAINT), and kept apart
    facts: Sequence[Any] = ()  # what the study says of each site: its streams, and its kind
    plan: Plan | None = None  # the calls that will come; None: nothing is known, and every call is followed
    _watched: frozenset[str] | None = None  # the functions of the plan: each one that the model calls is compared

    def __init__(self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None) -> None:
        super().__init__()
        self.batch = batch
        self.names = names
        self.batch_axes = batch_axes or {}
        self.softmaxes: list[SoftmaxCall] = []
        self.sites: list[OpenSite] = []
        self.between_rows: list[tuple[str, Tensor]] = []  # path, and (…, batch, batch) map
        self.steps: list[PlannedCall] = []  # the calls that a plan is made of
        self._first = True  # of the last product with values: the map was its first operand
        self._softmax_of_map: int | None = None  # and made by this softmax
        self._made: list[tuple[int, int]] = []  # by softmax: where its result lies, and how its axis is laid out
        self.plannable = True  # each map is a softmax's own result, or a view of it: then a plan can be held to it
        self._row_marked = False  # the model marked weights without a query, which a head may multiply and add up
        self._since_site: Notes[bool] | None = None  # what was computed from the last site, if that has a single head

    def __enter__(self) -> Intercept:
        self._watched = None if self.plan is None else self.plan.watched
        return super().__enter__()  # type: ignore[no-any-return]

    @abstractmethod
    def at_site(self, site: OpenSite) -> None:
        """Called once per attention, before the value product; may replace ``site.attention`` and ``site.value``."""

    def at_result(self, site: OpenSite, out: Tensor) -> Tensor:
        """Called after torch's own kernel ran, where a role lets it; what goes on in place of its result."""
        return out

    def after_site(self, name: str, out: Any) -> Any:
        """Called with the result of each attention's last function; what goes on in place of it."""
        return out

    @cached_property
    def _trail(self) -> Trail:
        """Made when something is first followed."""
        return Trail()

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """Softmaxes over positions that were not followed to their values."""
        # Class probabilities and routers have fewer than three axes.
        over_positions = [call for call in self.softmaxes if len(call.shape) >= 3 and call.shape[call.axis] > 1]
        return tuple(str(call) for call in over_positions if not call.claimed)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if self._watched is not None and func.__name__ not in self._watched:
            return func(*args, **kwargs) if kwargs else func(*args)
        before, call = len(self.sites), self._followed_call if self.plan is None else self._next_step
        out, name = call(func, args, kwargs or {}), func.__name__
        attended = len(self.sites) > before and name != "multi_head_attention_forward"  # whose body was seen
        return self.after_site(name, out) if attended else out

    def _followed_call(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        name = func.__name__
        if name == "__get__":  # attributes such as x.shape and x.device: only x.T and x.mT make tensors that matter
            if func not in fn.ATTRIBUTES:
                return func(*args, **kwargs)
            name = fn.ATTRIBUTES[func]
        handler, before = FOLLOWED.get(name), len(self.sites)
        if handler is None and self._row_marked and fn.plain_name(name) == ("mul", False):
            handler = "_weigh"
        out = func(*args, **kwargs) if handler is None else getattr(self, handler)(func, args, kwargs)
        if handler is not None and handler != "_see_through":
            equation = args[0] if name == "einsum" and isinstance(args[0], str) else ""
            if len(self.sites) > before:
                self.steps.append(PlannedCall(name, before, self._first, self._softmax_of_map, equation))
            else:
                self.steps.append(PlannedCall(name, equation=equation))
        for result in (out,) if isinstance(out, Tensor) else out if isinstance(out, (tuple, list)) else ():
            if not isinstance(result, Tensor):
                continue
            if handler is None:
                self._trail.follow(name, args, result)
            if self._since_site is not None and self._since_site.knows(*tensors_in(args)):
                self._since_site.put(result, True)
        return out

    # Road one: a whole attention in one call.

    def _sdpa(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        call = sdpa_operands(args, kwargs)
        query, key, value = call["query"], call["key"], call["value"]
        fused = None if self.explicit else func(*args, **kwargs)
        if call["enable_gqa"]:
            key, value = fn.repeat_heads(query, key), fn.repeat_heads(query, value)
        with torch.set_grad_enabled(self.explicit and torch.is_grad_enabled()):
            weights = fn.attention_weights(query, key, call["attn_mask"], call["is_causal"], call["scale"])
        n, m = weights.ndim, value.ndim
        contraction = Contraction(n - 2, n - 1, m - 2, m - 1, tuple(range(m - 2)))
        # As torch documents it, unless the study saw the heads in front.
        documented = weights.ndim == 4 and weights.shape[0] == self.batch
        documented &= self.batch_axes.get(len(self.sites)) != 1
        layout = Layout((0, 1, 2, 3), weights.shape[:2], ("B", "H"), 1, weights.shape[1]) if documented else None
        q, k = self._trail.at(query), self._trail.at(key)
        if self.rows_attend and self._is_between_rows(weights, contraction):
            return torch.matmul(weights, value) if fused is None else fused
        if self._since_site is not None and self._since_site.knows(query, key):
            self._since_site.put(weights, True)  # made here, out of the mode's sight
        axes = (*q.axes[:-1], k.axes[-2])
        site = self._open(weights, value, contraction, axes, (q.source, k.source), layout)
        if fused is not None and self.keeps_operands:
            site.call = FusedCall(query, key, value)
        self.at_site(site)
        out = torch.matmul(site.attention, site.value) if fused is None else self.at_result(site, fused)
        self._close(site, out)
        self._trail.put(out, Note((*axes[:-1], (Atom(out.shape[-1]),))))
        return out

    # What was planned.

    def _next_step(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """The next call of the plan, whatever it is."""
        assert self.plan is not None
        number, name = len(self.steps), func.__name__
        if name == "multi_head_attention_forward":
            return self._see_through(func, args, kwargs)
        step = self.plan.steps[number] if number < len(self.plan.steps) else None
        if step is None or step.function != name or name == "mark_attention":
            raise OffPlan
        self.steps.append(step)
        if step.equation and (not args or args[0] != step.equation):
            raise OffPlan
        if step.site is None:
            out = func(*args, **kwargs)
            if name in {"softmax", "special_softmax"}:
                dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
                self._made.append(_place(out, out.ndim - 1 if dim is None else int(dim) % max(out.ndim, 1)))
            return out
        expected = self.plan.sites[step.site]
        if name == "scaled_dot_product_attention":
            return self._next_fused(expected, func, args, kwargs)
        operands = list(args)
        if name == "einsum" and isinstance(args[1], (list, tuple)):
            operands = [args[0], *args[1]]
        left = {"baddbmm": 1, "einsum": 1}.get(name, 0)
        if len(operands) < left + 2:
            raise OffPlan
        places = (left, left + 1) if step.first else (left + 1, left)
        weights, value = (operands[place] for place in places)
        if weights.ndim != len(expected.layout.order) or step.softmax is None or step.softmax >= len(self._made):
            raise OffPlan
        if _place(weights, expected.contraction.key) != self._made[step.softmax]:
            raise OffPlan  # this is not what the softmax made
        site = expected.opened(weights, value, self.batch)
        self.at_site(site)
        operands[places[0]], operands[places[1]] = site.attention, site.value
        out = func(*operands, **kwargs)
        self._close(site, out)
        return out

    def _next_fused(self, expected: PlannedSite, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """Torch's own attention, whose map is computed later, with those of other layers."""
        query, key, value, mask, _, causal, scale, _ = sdpa_operands(args, kwargs).values()
        call = FusedCall(query, key, value, mask, causal, scale)
        site = expected.opened(NOWHERE.expand(call.shape), value, self.batch)
        site.call, site.waits = call, True
        out = self.at_result(site, func(*args, **kwargs))
        self.sites.append(site)
        return out

    def _see_through(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """nn.MultiheadAttention hides its body from function modes (pytorch#131947): run the same body with us on."""
        with self:
            return fn.open_body(F.multi_head_attention_forward)(*args, **kwargs)

    # Road two: a softmax, later a product with the values.

    def _softmax(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        out: Tensor = func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        note = self._trail.at(scores)
        axis = (out.ndim - 1 if dim is None else int(dim)) % max(out.ndim, 1)
        self._remember(out, note, axis)
        return out

    def _remember(self, out: Tensor, note: Note, axis: int, layout: str | None = None) -> None:
        self._made.append(_place(out, axis))
        self.softmaxes.append(SoftmaxCall(current_path(self.names), tuple(out.shape), axis, layout))
        axes = note.axes if len(note.axes) == out.ndim else fresh(out.shape)
        keys: Axis = (Atom(out.shape[axis]),)  # an axis of its own: queries and keys may be the same positions
        axes = (*axes[:axis], keys, *axes[axis + 1 :])
        self._trail.put(out, Note(axes, query_key=note.query_key, softmax=len(self.softmaxes) - 1, key_axis=keys))

    def _marked_by_user(self, func: Function, args: Args, kwargs: Kwargs) -> Tensor:
        """The user says: this tensor is an attention map in that layout."""
        weights, layout = args
        note = self._trail.at(weights)
        if note.softmax is not None:
            self.softmaxes[note.softmax].claimed = True
        self._row_marked |= "q" not in layout
        self._remember(weights, note, layout.split().index("k"), layout)
        return weights

    def _weigh(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """A product by entries: of (batch, positions, 1) marked weights with what they weigh, or of anything else."""
        for first, (weights, value) in ((True, args), (False, args[::-1])):
            note = self._trail.get(weights)
            if note is None or note.softmax is None or note.key_axis not in note.axes or not isinstance(value, Tensor):
                continue
            widths = [i for i, (one, size) in enumerate(zip(weights.shape, value.shape, strict=False)) if one < size]
            row = weights.ndim == value.ndim and "q" not in (self.softmaxes[note.softmax].layout or "q")
            if row and len(widths) == 1:
                width, key = widths[0], note.axes.index(note.key_axis)
                lead = tuple(i for i in range(value.ndim) if i not in (width, key))
                return self._claim(func, weights, value, note, Contraction(width, key, key, width, lead), first)
        out = func(*args, **kwargs)
        self._trail.follow(func.__name__, args, out)
        return out

    def _matmul(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        left = args[0] if args else kwargs["input"]
        right: Tensor = args[1] if len(args) > 1 else kwargs["other" if "other" in kwargs else "mat2"]
        return self._product(func, left, right, Contraction.of_matmul)

    def _baddbmm(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        bias = args[0] if args else kwargs["input"]
        left = args[1] if len(args) > 1 else kwargs["batch1"]
        right = args[2] if len(args) > 2 else kwargs["batch2"]
        scale = {k: v for k, v in kwargs.items() if k in {"beta", "alpha"}}
        return self._product(lambda a, b: func(bias, a, b, **scale), left, right, Contraction.of_matmul)

    def _einsum(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        equation, operands = args[0], args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
        if not isinstance(equation, str) or len(operands) != 2:
            return func(*args, **kwargs)
        return self._product(partial(func, equation), *operands, partial(Contraction.of_einsum, equation))

    def _product(
        self, product: Callable[[Tensor, Tensor], Any], left: Tensor, right: Tensor, contraction_of: Any
    ) -> Any:
        """A product of two tensors: attention with values, or queries with keys."""
        for first in (True, False):
            weights, value = (left, right) if first else (right, left)
            note = self._trail.get(weights)
            if note is None or note.softmax is None or note.key_axis not in note.axes:
                continue
            contraction = contraction_of(weights.ndim, value.ndim, (note.axes.index(note.key_axis), first))
            if contraction is None:
                self.softmaxes[note.softmax].contracted_elsewhere = True
                continue
            return self._claim(product, weights, value, note, contraction, first)
        out = product(left, right)
        if isinstance(out, Tensor):
            a, b = self._trail.at(left), self._trail.at(right)
            asked = b.source or (left.ndim > 1 and right.ndim > 2)  # else by a vector of weights: no query and key
            pair = (a.source, b.source) if asked else None
            axes = (*a.axes[:-1], b.axes[-1]) if out.ndim == left.ndim == right.ndim else fresh(out.shape)
            sizes_fit = all(math.prod(atom.size for atom in axis) == n for axis, n in zip(axes, out.shape, strict=True))
            source = ProjectionSource.of(left) if right.ndim == 2 else None  # x @ weight: a projection
            self._trail.put(out, Note(axes if sizes_fit else fresh(out.shape), source=source, query_key=pair))
        return out

    def _claim(
        self,
        product: Callable[[Tensor, Tensor], Any],
        weights: Tensor,
        value: Tensor,
        note: Note,
        contraction: Contraction,
        first: bool,
    ) -> Any:
        assert note.softmax is not None
        self._first, self._softmax_of_map = first, note.softmax
        self.plannable &= _place(weights, contraction.key) == self._made[note.softmax]
        call = self.softmaxes[note.softmax]
        call.claimed = True
        call.pools = note.query_key is None and call.layout is None and weights.shape[contraction.query] == 1
        if call.pools or (self.rows_attend and self._is_between_rows(weights, contraction)):
            return product(weights, value) if first else product(value, weights)
        marked = call.layout.split().index("b") if call.layout is not None and "b" in call.layout else None
        sources = note.query_key or (None, None)
        site = self._open(weights, value, contraction, note.axes, sources, batch_axis=marked)
        self.at_site(site)
        out = product(site.attention, site.value) if first else product(site.value, site.attention)
        self._close(site, out)
        return out

    # What both roads do.

    def _is_between_rows(self, weights: Tensor, contraction: Contraction) -> bool:
        query, key = contraction.query, contraction.key
        if (weights.shape[query], weights.shape[key]) != (self.batch, self.batch):
            return False
        lead = [i for i in range(weights.ndim) if i not in (query, key)]
        self.between_rows.append((current_path(self.names), weights.detach().permute(*lead, query, key)))
        return True

    def _open(
        self,
        weights: Tensor,
        value: Tensor,
        contraction: Contraction,
        axes: Axes,
        sources: Sources,
        layout: Layout | None = None,
        batch_axis: int | None = None,
    ) -> OpenSite:
        path = current_path(self.names)
        if layout is None:
            if batch_axis is None:
                batch_axis = self.batch_axes.get(len(self.sites))
            shape, query, key = tuple(weights.shape), contraction.query, contraction.key
            layout = layout_of(shape, axes, query, key, self.batch, path, batch_axis)
        # A single-head map computed beside the previous one, not from its result, is another head of that layer.
        parallel = (
            layout.heads == 1
            and self._since_site is not None
            and self.sites[-1].attention.shape == weights.shape
            and self.sites[-1].layout.heads == 1
            and not self._since_site.knows(weights)
        )
        site = OpenSite(path, weights, value, layout, contraction, sources, parallel)
        site.locate()
        return site

    def _close(self, site: OpenSite, out: Tensor) -> None:
        if not site.parallel:
            self._since_site = None
        if site.layout.heads == 1:
            if self._since_site is None:
                self._since_site = Notes()
            self._since_site.put(out, True)
        if not self.keeps_values:
            site.value = site.value.new_empty(0)
        self.sites.append(site)
