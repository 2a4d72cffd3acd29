"""Follow the residual stream through the block around an attention (capture/blocks/anatomy.py finds its parts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.blocks.tape import Ref, Replay, Tape, TapedCall
from whyformer.capture.functions import ADDS, DIVS, JOINS, LAYOUTS, MULS, NORMS, SUBS, UNCHANGED
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered
from whyformer.results.types import Record, Site

# Follow the residual stream through a block: from the attention's result to the block's output.
#
# What attention wrote travels through a projection (W_O), perhaps a gain or a norm, is added to the residual stream,
# and from there runs, beside the MLP, to the end of the block. Along this way everything is linear once the standard
# deviations of the norms are taken as they were: a vector is centred or not, multiplied by gains that are the same for
# all positions, and by one number per position. ``Stream`` holds exactly that. What passes a nonlinearity or a further
# projection (the MLP) is live but not linear: ``OPAQUE``. A stream to which something opaque is added goes on as it
# was: the MLP's part belongs to no input token (GlobEnc).

CENTER = "center"
Step = str | Tensor  # CENTER, or gains over the width


@dataclass(frozen=True, eq=False)
class Divisor:
    """One norm on the way; ``number`` is its result, or the factor that it multiplies by where it is written out."""

    operation: str  # "layer_norm", "rms_norm", "mul" or "div"
    number: int
    shift: Tensor | None = None  # the norm's bias


@dataclass(frozen=True, eq=False)
class Stream:
    """A tensor that is linear in what attention wrote: scale · steps(vector), position by position."""

    rows: Tensor  # for each position of the tensor: batch row · keys + position
    steps: tuple[Step, ...] = ()
    scale: Tensor | None = None  # in the tensor's layout, width 1
    divisors: tuple[Divisor, ...] = ()
    joined: bool = False  # the residual stream has been added
    shifted: bool = False  # something besides the bias of the last norm was added after it
    mean: bool = False  # the mean over the width of what the rest says

    def stepped(self, *steps: Step) -> Stream:
        late = bool(self.divisors) and self.divisors[-1].shift is not None
        return replace(self, steps=(*self.steps, *steps), shifted=self.shifted or late)


class Opaque:
    """A tensor that depends on what attention wrote, but not linearly."""


class HeadResult:
    """The attention's result before its projection."""


OPAQUE, HEADS = Opaque(), HeadResult()
State = Stream | Opaque | HeadResult


@dataclass(frozen=True, eq=False)
class Sum:
    """One addition to the stream."""

    stream: Stream  # before
    number: int  # of the stream before
    other: int  # what is added
    total: int
    origin: int  # for the residual stream: the tensor that attention was computed from


class Follow:
    """Note what each tensor after a site is to the residual stream; ``residual`` finds its tensor behind an operand.

    Afterwards ``joins`` holds the addition of the residual, ``passes`` those of something opaque to the joined stream.
    """

    def __init__(self, tape: Tape, residual: Callable[[int], int | None]) -> None:
        self.tape, self.residual = tape, residual
        self.states: dict[int, State] = {}
        self.joins: list[Sum] = []
        self.passes: list[Sum] = []

    def see(self, call: TapedCall) -> None:
        live = [n for n in call.inputs if n in self.states]
        if not live or not call.outs or call.outs[0] is None:
            return
        state = self._result(call, live)
        for number in call.outs:
            if number is not None:
                self.states[number] = state

    def _result(self, call: TapedCall, live: list[int]) -> State:
        state = self.states[live[0]]
        means = [s for n in live if isinstance(s := self.states[n], Stream) and s.mean]
        if means and call.name not in SUBS | UNCHANGED:
            return OPAQUE
        if isinstance(state, HeadResult):
            heads = all(isinstance(self.states[n], HeadResult) for n in live)
            return HEADS if heads and call.name in UNCHANGED | LAYOUTS | JOINS else OPAQUE
        if call.name in ADDS | SUBS:
            return self._sum(call)
        if call.name in MULS | DIVS:
            return self._product(call)
        if isinstance(state, Opaque):
            return OPAQUE
        if call.name in UNCHANGED:
            return state
        if call.name in LAYOUTS:
            return self._moved(call, live[0], state)
        if call.name in NORMS:
            return self._norm(call, live[0], state)
        if call.name == "mean":  # over the width: a layer norm that is written out
            dim, ndim = call.argument(1, "dim"), self.tape.values[live[0]].ndim
            dims = [d % ndim for d in ([dim] if isinstance(dim, int) else dim or [])]
            return replace(state, mean=True) if dims == [ndim - 1] and call.argument(2, "keepdim") else OPAQUE
        return OPAQUE

    # One case each

    def _sum(self, call: TapedCall) -> State:
        a, b = call.argument(0, "input"), call.argument(1, "other")
        streams = [r.number for r in (a, b) if isinstance(r, Ref) and isinstance(self.states.get(r.number), Stream)]
        if not streams or "alpha" in call.kwargs or len(call.args) > 2:
            return OPAQUE
        state, other = self.states[streams[0]], self.states[streams[-1]]
        assert isinstance(state, Stream) and isinstance(other, Stream)
        if len(streams) == 2:
            same = other.rows is state.rows and other.steps is state.steps
            centred = call.name in SUBS and same and other.mean and not state.mean
            return state.stepped(CENTER) if centred else OPAQUE
        if call.name in SUBS:
            return OPAQUE
        other_ref = b if isinstance(a, Ref) and a.number == streams[0] else a
        return self._added(call, streams[0], state, other_ref)

    def _added(self, call: TapedCall, number: int, state: Stream, other: Any) -> State:
        total = call.outs[0]
        assert total is not None
        if not isinstance(other, Ref):
            return state
        if isinstance(self.states.get(other.number), (Opaque, HeadResult)):
            if not state.joined:  # another way from the heads to the sum (an adapter beside W_O): not followed
                return OPAQUE
            self.passes.append(Sum(state, number, other.number, total, 0))
            return state
        origin = None if state.joined else self.residual(other.number)
        if origin is None:
            return self._shifted(call, number, state, self.tape.values[other.number])
        self.joins.append(Sum(state, number, other.number, total, origin))
        return Stream(_widened(state.rows, self.tape.values[total]), joined=True)

    def _shifted(self, call: TapedCall, number: int, state: Stream, shift: Tensor) -> State:
        """A constant is added: a bias, a parallel MLP. It belongs to nobody; a norm's own bias is remembered."""
        stream, total = self.tape.values[number], self.tape.values[call.outs[0] or 0]
        if total.shape != stream.shape:
            return OPAQUE
        if not state.divisors:
            return state
        last = state.divisors[-1]
        if last.shift is None and _is_vector(shift, stream):
            return replace(state, divisors=(*state.divisors[:-1], replace(last, shift=shift.flatten())))
        return replace(state, shifted=True)

    def _product(self, call: TapedCall) -> State:
        a, b = call.argument(0, "input"), call.argument(1, "other")
        swapped = not (isinstance(a, Ref) and isinstance(self.states.get(a.number), Stream))
        if swapped:
            a, b = b, a
        state = self.states.get(a.number) if isinstance(a, Ref) else None
        if not isinstance(state, Stream) or (swapped and call.name in DIVS) or "rounding_mode" in call.kwargs:
            return OPAQUE
        divide = call.name in DIVS
        stream = self.tape.values[a.number]
        if not isinstance(b, Ref):
            gain = torch.as_tensor(float(b), dtype=stream.dtype, device=stream.device)
            return state.stepped(1 / gain if divide else gain)
        factor, other = self.tape.values[b.number], self.states.get(b.number)
        if isinstance(other, Opaque):
            if factor.shape != (*stream.shape[:-1], 1):
                return OPAQUE
            return self._divided(state, Divisor("div" if divide else "mul", b.number), 1 / factor if divide else factor)
        if other is None and _is_vector(factor, stream):
            gain = factor.flatten()
            return state.stepped(1 / gain if divide else gain)
        return OPAQUE

    def _norm(self, call: TapedCall, number: int, state: Stream) -> State:
        stream = self.tape.values[number]
        shape = call.argument(1, "normalized_shape")
        if call.argument(0, "input") != Ref(number) or tuple(shape) != (stream.shape[-1],) or state.mean:
            return OPAQUE
        weight, out = call.argument(2, "weight"), call.outs[0]
        assert out is not None
        wide = stream if stream.dtype == torch.float64 else stream.float()
        if call.name == "layer_norm":
            bias, eps = call.argument(3, "bias"), call.argument(4, "eps", 1e-5)
            scale = (wide.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
            steps: tuple[Step, ...] = (CENTER,)
            shift = self.tape.values[bias.number] if isinstance(bias, Ref) else None
        else:
            eps, shift, steps = call.argument(3, "eps"), None, ()
            eps = torch.finfo(stream.dtype).eps if eps is None else eps
            scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        if isinstance(weight, Ref):
            steps = (*steps, self.tape.values[weight.number])
        return self._divided(state.stepped(*steps), Divisor(call.name, out, shift), scale)

    @staticmethod
    def _divided(state: Stream, divisor: Divisor, scale: Tensor) -> Stream:
        if state.scale is not None:
            scale = state.scale * scale
        return replace(state, scale=scale, divisors=(*state.divisors, divisor))

    def _moved(self, call: TapedCall, number: int, state: Stream) -> State:
        """A change of layout is done to the row numbers too."""
        width = self.tape.values[number].shape[-1]
        out = call.outs[0]
        assert out is not None
        if call.argument(0, "input") != Ref(number) or self.tape.values[out].shape[-1:] != (width,):
            return OPAQUE

        def moved(marks: Tensor) -> Tensor:
            result: Tensor = call.run({number: marks.expand(*marks.shape[:-1], width).contiguous()})[0]
            return result

        rows = moved(state.rows[..., None])
        if not torch.equal(rows, rows[..., :1].expand_as(rows)):
            return OPAQUE  # width and positions were mixed
        scale = None if state.scale is None else moved(state.scale)[..., :1]
        return replace(state, rows=rows[..., 0], scale=scale)


def _widened(rows: Tensor, total: Tensor) -> Tensor:
    """Rows of a sum: where a layer asks for one row only and adds it to all (FT-Transformer), the rest counts on."""
    shape = total.shape[:-1]
    if rows.shape == shape:
        return rows
    axes = [i for i, (was, now) in enumerate(zip(rows.shape, shape, strict=True)) if was != now]
    offsets = torch.arange(shape[axes[0]], device=rows.device)
    return rows + offsets.view([-1 if i == axes[0] else 1 for i in range(len(shape))])


def _is_vector(tensor: Tensor, like: Tensor) -> bool:
    """One number per feature, the same for all positions."""
    return tensor.numel() in (1, like.shape[-1]) and (tensor.ndim == 0 or tensor.shape[-1] == tensor.numel())


@dataclass(frozen=True)
class Linear:
    """The linear map from one point of the stream to another, with norms' statistics held: scale_i · steps(vector)."""

    steps: tuple[Step, ...]
    scale_BQ: Tensor | None

    def apply(self, vectors: Tensor) -> Tensor:
        """The steps; the scale of the position that a vector arrives at comes on top."""
        for step in self.steps:
            if isinstance(step, Tensor):
                vectors = vectors * step.to(vectors.dtype)
            else:
                vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors

    def scaled(self, vectors_BQE: Tensor) -> Tensor:
        return vectors_BQE if self.scale_BQ is None else vectors_BQE * self.scale_BQ[..., None].to(vectors_BQE.dtype)


class Places:
    """Convert between the model's layouts and (B, Q, width), for one site; ``rows``: batch row · keys + position."""

    def __init__(self, site: OpenSite, batch: int) -> None:
        self.batch, self.first = batch, site.first_query
        self.keys = site.attention.shape[site.contraction.key]
        self.queries = site.attention.shape[site.contraction.query]
        self._in_order: dict[int, tuple[Tensor, bool]] = {}  # by id of rows, which are kept so that ids stay theirs

    def canonical_rows(self, device: torch.device) -> Tensor:
        starts = torch.arange(self.batch, device=device)[:, None] * self.keys + self.first
        return starts + torch.arange(self.queries, device=device)

    def in_order(self, rows: Tensor) -> bool:
        if id(rows) not in self._in_order:
            wanted = self.canonical_rows(rows.device).flatten()
            self._in_order[id(rows)] = rows, rows.numel() == wanted.numel() and torch.equal(rows.flatten(), wanted)
        return self._in_order[id(rows)][1]

    def read(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """The model's tensor → (B, Q, width)."""
        flat = tensor.reshape(-1, tensor.shape[-1])
        if self.in_order(rows):
            return flat.view(self.batch, self.queries, -1)
        place = torch.zeros(self.batch * self.keys, dtype=torch.long, device=rows.device)
        place[rows.flatten()] = torch.arange(rows.numel(), device=rows.device)
        return flat[place[self.canonical_rows(rows.device)]]

    def write(self, tensor_BQE: Tensor, rows: Tensor) -> Tensor:
        """(B, Q, width) → the model's layout; positions that the site has no query for are zero."""
        shape = (*rows.shape, tensor_BQE.shape[-1])
        if self.in_order(rows):
            return tensor_BQE.reshape(shape)
        whole = tensor_BQE.new_zeros(self.batch * self.keys, tensor_BQE.shape[-1])
        whole[self.canonical_rows(rows.device).flatten()] = tensor_BQE.flatten(0, 1)
        return whole[rows.flatten()].view(shape)

    def linear(self, stream: Stream) -> Linear:
        scale = None if stream.scale is None else self.read(stream.scale, stream.rows)[..., 0]
        return Linear(stream.steps, scale)


@dataclass(frozen=True)
class Block:
    """One attention and what follows it. Tensors are (B, Q, E), E being the width of the residual stream."""

    path: str
    output_HDE: Tensor  # W_O by head
    bias_E: Tensor | None  # b_O, where the projection has one
    projected_BQE: Tensor  # the attention's result after W_O and b_O
    residual_BQE: Tensor  # x, as it is added
    before: Linear  # from projected to what is added: a gain, a norm, usually nothing
    attended: Linear  # from the sum to where the MLP is added: the first norm of a post-norm block
    finished: Linear  # from the sum to the block's output, the MLP left out
    attended_BQE: Tensor  # output of the attention half (post-norm: after its norm)
    output_BQE: Tensor  # the block's output: what the next block adds to
    replay: Replay | NotOffered  # from projected to the block's output; or why that cannot be run again
    streams: dict[int, Stream]  # what is linear along ``replay``, by number
    places: Places

    @property
    def rest(self) -> Replay:
        """Everything from ``projected`` to the block's output, MLP included, ready to be run on other numbers."""
        if isinstance(self.replay, NotOffered):
            raise self.replay
        return self.replay


@dataclass(frozen=True)
class Anatomy:
    """The record of one forward pass, and the block around each of its sites."""

    record: Record
    blocks: tuple[Block, ...]

    @property
    def layers(self) -> Iterator[tuple[Site, Block]]:
        return zip(self.record.sites, self.blocks, strict=True)
