"""Take the block around an attention apart: its projection, residual stream and norms, and where it ends.

While the unmodified model runs once, every torch function goes on a tape. Which projection reads the attention's result
(W_O), which tensor is added to it (the residual stream), which norms follow and where the MLP comes in is read from
there. It is checked on the numbers: map times values times W_O must be what the model computed.

    x ─┬──────────────────────────────────┐              ┌─────────┐
       └─ (norm) ─ attention ─ W_O ─ (…) ── + ─ (norm) ──┴── MLP ── + ── (norm) ─ output
                             projected          attended                          finished
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whyformer.capture.blocks.block import HEADS, Anatomy, Block, Follow, HeadResult, Places, State, Stream, Sum
from whyformer.capture.blocks.tape import Ref, Replay, Tape, TapedCall, ancestors, descendants, replay_between
from whyformer.capture.functions import ADDS, JOINS, LAYOUTS, MULS, UNCHANGED, Args, Function, Kwargs, name_of
from whyformer.capture.record import Forward, sites_of
from whyformer.capture.roles import Observe
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered
from whyformer.results.types import Record

# W_O: the projection that reads the attention's result, however the model spells it.

Matrix = tuple[Tensor, Tensor | None]  # (in, out) and bias


class Projected(NamedTuple):
    """The projected result by its number on the tape, and the projection."""

    number: int
    output_HDE: Tensor
    bias_E: Tensor | None


def project(follow: Follow, call: TapedCall, sites: list[OpenSite], places: Places) -> Projected | None:
    """Return the projection if this call is it: map · values · W_O must give the numbers that the model computed."""
    values, where = follow.tape.values, sites[0].path or "the model itself"
    affine = _matrix(call, values, follow.states)
    if affine is None and call.name in UNCHANGED | LAYOUTS | JOINS:
        return None
    parts = []  # the heads' results, from the captured maps and values
    for site in sites:
        value = site.value_BHKD
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        parts.append(torch.matmul(site.attention_BHQK.to(wide), value.to(wide)))
    mixed_BQM = torch.cat(parts, 1).transpose(1, 2).flatten(2)  # side by side
    if affine is not None:
        (matrix, bias), number = affine, call.outs[0]
    elif call.name in ADDS:  # no projection at all: the heads side by side are what is added
        matrix, bias = torch.eye(mixed_BQM.shape[-1], dtype=mixed_BQM.dtype, device=mixed_BQM.device), None
        number = next(n for n in call.inputs if isinstance(follow.states.get(n), HeadResult))
    else:
        raise NotOffered(
            f"{where}: the attention's result passes {call.name!r} before its projection, which is not linear in the "
            f"values of single tokens."
        )
    assert number is not None
    heads = sum(s.layout.heads for s in sites)
    if matrix.shape[0] == mixed_BQM.shape[-1]:
        expected = mixed_BQM @ matrix.to(mixed_BQM.dtype)
        expected = expected if bias is None else expected + bias.to(mixed_BQM.dtype)
        rows = _reading(values[number], expected, places)
        if rows is not None:
            follow.states[number] = Stream(rows)
            return Projected(number, matrix.reshape(heads, -1, matrix.shape[1]), bias)
    raise NotOffered(
        f"{where}: the projection of shape {tuple(matrix.shape)} does not give the attention's result of shape "
        f"{tuple(values[number].shape)} from {heads} heads side by side."
    )


def _reading(result: Tensor, expected_BQE: Tensor, places: Places) -> Tensor | None:
    """Row numbers of a tensor that must hold these numbers, batch or positions first."""
    rows_BQ = places.canonical_rows(result.device)
    half = result.dtype in (torch.float16, torch.bfloat16)
    tolerance = (3e-2 if half else 1e-4) * float(expected_BQE.abs().max())
    for rows, expected in ((rows_BQ, expected_BQE), (rows_BQ.t(), expected_BQE.transpose(0, 1))):
        if result.shape in (expected.shape, expected.flatten(0, 1).shape):
            error = (result.reshape(expected.shape) - expected).abs().max()
            if float(error) <= tolerance:
                return rows.reshape(result.shape[:-1])
    return None


def _matrix(call: TapedCall, values: Mapping[int, Tensor], states: Mapping[int, State]) -> Matrix | None:
    """Matrix and bias of a call that multiplies a live tensor with a weight, if it is one."""

    def constant(argument: Any) -> Tensor | None:
        known = isinstance(argument, Ref) and argument.number not in states
        return values[argument.number] if known else None

    if call.name == "linear":
        weight = constant(call.argument(1, "weight"))
        return None if weight is None else (weight.t(), constant(call.argument(2, "bias")))
    if call.name == "addmm" and not {"alpha", "beta"} & set(call.kwargs):
        weight = constant(call.argument(2, "mat2"))
        return None if weight is None else (weight, constant(call.argument(0, "input")))
    if call.name in {"matmul", "mm", "__matmul__"}:
        weight = constant(call.argument(1, "other", call.kwargs.get("mat2")))
        return None if weight is None or weight.ndim != 2 else (weight, None)
    return _einsum(call, constant) if call.name == "einsum" else None


def _einsum(call: TapedCall, constant: Callable[[Any], Tensor | None]) -> Matrix | None:
    """ "ibnd,hnd->ibh": letters that both operands have and the result has not are summed, in the input's order."""
    operands = call.args[1] if len(call.args) == 2 else call.args[1:]
    left, arrow, result = str(call.args[0]).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != 2 or len(operands) != 2:
        return None
    weight = constant(operands[1])
    summed = [c for c in terms[0] if c in terms[1] and c not in result]
    made = [c for c in terms[1] if c not in terms[0]]
    whole = len(made) == 1 and len(summed) + 1 == len(terms[1])
    if weight is None or not whole or result != terms[0].replace("".join(summed), made[0]):
        return None
    order = [terms[1].index(c) for c in (*summed, *made)]
    return weight.permute(order).flatten(0, -2), None


@dataclass
class TapedSite:
    """A site on the tape: its calls (one, or one per head where heads are computed one by one) and their results."""

    sites: list[OpenSite]
    calls: list[int]  # indices into tape.calls
    results: list[int]


class Dissect(Observe):
    """Observe attention with all calls on tape; each block is taken apart when the next site is reached."""

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.tape = Tape()
        self.blocks: list[Block] = []
        self._site: TapedSite | None = None
        self._closed: OpenSite | None = None
        self._end: int | None = None  # the last block's output

    def _close(self, site: OpenSite, out: Tensor) -> None:
        super()._close(site, out)
        self._closed = site

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        # The inner calls of multi_head_attention_forward come to us one by one.
        if name is None or name == "multi_head_attention_forward":
            return super().__torch_function__(func, types, args, kwargs)
        refs, named = self.tape.refs(args), self.tape.refs(kwargs)
        overwritten = self.tape.preserve(name, args, kwargs)
        out = super().__torch_function__(func, types, args, kwargs)
        call = self.tape.record(name, func, refs, named, out, overwritten)
        if self._closed is not None:
            assert call is not None and call.outs[0] is not None
            site, self._closed = self._closed, None
            self._reached(site, call.outs[0])
        return out

    def _reached(self, site: OpenSite, result: int) -> None:
        if not site.parallel or self._site is None:
            self.settle()
            self._site = TapedSite([], [], [])
        self._site.sites.append(site)
        self._site.calls.append(len(self.tape.calls) - 1)
        self._site.results.append(result)

    def settle(self) -> None:
        """Take the last site's block apart; what came before that site is no longer needed."""
        mark = self._site
        if mark is None:
            return
        block, start, end = take_apart(self.tape, mark, self.batch)
        if self._end is not None and not _same(self.tape, start, self._end):
            raise NotOffered(
                f"{block.path}: something happens to the residual stream between this block and the one before, so "
                f"where that one ends is not known."
            )
        self.blocks.append(block)
        self._end = end
        self.tape.forget(mark.calls[0])


def dissect(forward: Forward, intercept: Dissect) -> Anatomy:
    """Run the model once and come back with its sites and blocks."""
    with torch.no_grad():
        with intercept:
            logits = intercept.differentiate(forward())
        intercept.tape.detach()
        intercept.settle()
        record = Record(tuple(sites_of(intercept, values=True)), logits, intercept.unclaimed)
    return Anatomy(record, tuple(intercept.blocks))


def _same(tape: Tape, number: int, other: int) -> bool:
    """Whether a tensor is another one, or a cast or view of it."""
    makers = tape.makers()
    while number != other:
        call = makers.get(number)
        if call is None or call.name not in UNCHANGED | LAYOUTS:
            return False
        number = call.inputs[0]
    return True


def take_apart(tape: Tape, mark: TapedSite, batch: int) -> tuple[Block, int, int]:
    """The block around one site, and the numbers of its residual stream and its output."""
    where = mark.sites[0].path or "the model itself"
    sources = ancestors(tape.calls[: mark.calls[-1] + 1], mark.results) - set(mark.results)
    follow = Follow(tape, _residual_among(tape, sources))
    follow.states.update(dict.fromkeys(mark.results, HEADS))
    places = Places(mark.sites[0], batch)
    projection: Projected | None = None
    for call in tape.calls[mark.calls[0] + 1 :]:
        if projection is None and any(isinstance(follow.states.get(n), HeadResult) for n in call.inputs):
            projection = project(follow, call, mark.sites, places)
        if projection is None or call.outs[0] != projection.number:
            follow.see(call)
    if projection is None:
        raise NotOffered(f"{where}: no projection of the attention's result was found.")
    if not follow.joins:
        raise NotOffered(
            f"{where}: no residual stream is added to the attention's result. An adapter beside its projection that "
            "is not linear is not followed. Nor are several streams, as hyper-connections have them."
        )
    join = follow.joins[0]
    stations = _stations(tape, follow, join, sources, mark.calls[-1] + 1)
    return _block(tape, follow, projection, join, stations, places, where), join.origin, stations.end


def _residual_among(tape: Tape, sources: set[int]) -> Callable[[int], int | None]:
    """Return a function that finds the residual stream behind a tensor: a source of attention, perhaps scaled."""
    makers = tape.makers()

    def origin(number: int) -> int | None:
        while number not in sources:
            call = makers.get(number)
            if call is None or call.name not in UNCHANGED | LAYOUTS | MULS:
                return None
            number = call.inputs[0]
        tensor = tape.values[number]
        return None if isinstance(tensor, nn.Parameter) or not tensor.is_floating_point() else number

    return origin


class Stations(NamedTuple):
    attended: int  # the output of the attention half
    end: int  # the block's output
    beside: bool = False  # the MLP may have run beside the attention, and be part of both


def _stations(tape: Tape, follow: Follow, join: Sum, sources: set[int], site_end: int) -> Stations:
    """Return where the attention half ends, and where the block ends."""
    # The MLP is added to the output of the attention half. If that had been normalised (post-norm), the block ends
    # after the next norm, otherwise with the addition itself.
    if follow.passes:
        first, makers = follow.passes[0], tape.makers()
        norms, attended = len(first.stream.divisors), first.number
        end = _last_with(tape, follow, norms + 1, first.total) if norms else first.total
        while attended in makers and _scales(makers[attended]):
            attended = makers[attended].inputs[0]
        return Stations(attended, end)
    # No MLP after the sum: it ran beside the attention (a parallel block), or there is none.
    calls = tape.calls[:site_end]
    between = descendants(calls, [join.origin]) & sources - {join.origin}
    pre_norm = any(
        between.intersection(c.outs) and c.name in {"layer_norm", "rms_norm", "rsqrt", "sqrt", "std", "var"}
        for c in calls
    )
    end = _last_with(tape, follow, 0 if pre_norm else 1, join.total)
    return Stations(end, end, beside=pre_norm)


def _last_with(tape: Tape, follow: Follow, norms: int, default: int) -> int:
    """Return the last tensor of the joined stream after so many norms; without norms, with only constants added."""
    makers = tape.makers()
    numbers = [
        n
        for n, s in follow.states.items()
        if isinstance(s, Stream)
        and (s.joined and len(s.divisors) == norms and (norms or not s.steps))
        and not (makers[n].name in {*UNCHANGED, *LAYOUTS, "mean"} or _scales(makers[n]))
    ]
    return numbers[-1] if numbers else default


def _scales(call: TapedCall) -> bool:
    """A product with a plain number: how some models weigh the residual stream (DeepNet), no part of a norm."""
    return call.name in MULS and len(call.inputs) == 1


def _block(
    tape: Tape, follow: Follow, projection: Projected, join: Sum, stations: Stations, places: Places, where: str
) -> Block:
    streams = {n: s for n, s in follow.states.items() if isinstance(s, Stream)}

    def read(number: int) -> Tensor:
        return places.read(tape.values[number], streams[number].rows)

    before = places.linear(join.stream)
    projected_BQE = read(projection.number)
    added = tape.values[join.other].expand_as(tape.values[join.total])
    residual_BQE = places.read(added, streams[join.total].rows)
    attended_BQE = read(stations.attended)
    if stations.beside:
        attended_BQE = before.scaled(before.apply(projected_BQE)) + residual_BQE
    replay: Replay | NotOffered
    inside = {projection.number, stations.end}
    try:
        replay = replay_between(tape, projection.number, stations.end)
        inside |= {n for call in replay.calls for n in (*call.inputs, *call.outs) if n is not None}
    except NotOffered as error:
        replay = NotOffered(f"{where}: {error}")
    return Block(
        path=where,
        output_HDE=projection.output_HDE,
        bias_E=projection.bias_E,
        projected_BQE=projected_BQE,
        residual_BQE=residual_BQE,
        before=before,
        attended=places.linear(streams[stations.attended]),
        finished=places.linear(streams[stations.end]),
        attended_BQE=attended_BQE,
        output_BQE=read(stations.end),
        replay=replay,
        streams={n: s for n, s in streams.items() if n in inside},
        places=places,
    )
