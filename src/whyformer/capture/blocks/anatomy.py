"""The anatomy of a block: what a decomposition of attention needs to know beside the attention map.

While the unmodified model runs once, every torch function goes on a tape. For each site the tape says, by dataflow
only, which projection reads the attention's result (W_O), which tensor is added to it (the residual stream), which
norms stand between there and the end of the block, and where the MLP comes in. What is claimed is checked on the
numbers: the attention map times the values times W_O must be what the model computed.

    x ─┬──────────────────────────────────┐              ┌─────────┐
       └─ (norm) ─ attention ─ W_O ─ (…) ── + ─ (norm) ──┴── MLP ── + ── (norm) ─ output
                             projected          attended                          finished
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.capture.blocks.block import Anatomy, Block, Places
from whyformer.capture.blocks.output_projection import Projected, project
from whyformer.capture.blocks.residual import HEADS, Follow, Heads, Stream, Sum
from whyformer.capture.blocks.tape import Stretch, Tape, TapedCall, ancestors, changes_in_place, descendants, stretch
from whyformer.capture.functions import LAYOUTS, MULS, UNCHANGED, Function, name_of
from whyformer.capture.record import Forward, sites_of
from whyformer.capture.roles import Observe
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered
from whyformer.types import Record


@dataclass
class TapedSite:
    """A site on the tape: its calls (one, or one per head where heads are computed one by one) and their results."""

    sites: list[OpenSite]
    calls: list[int]  # indices into tape.calls
    results: list[int]


class Dissect(Observe):
    """Observe, with everything on tape. A block is taken apart when the next site is reached, and then forgotten."""

    def __init__(self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None) -> None:
        super().__init__(batch, names, batch_axes)
        self.tape = Tape()
        self.blocks: list[Block] = []
        self._site: TapedSite | None = None
        self._closed: OpenSite | None = None
        self._end: int | None = None  # the last block's output

    def _close(self, site: OpenSite, out: Tensor) -> None:
        super()._close(site, out)
        self._closed = site

    def __torch_function__(
        self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        # The inner calls of multi_head_attention_forward come to us one by one.
        if name is None or name == "multi_head_attention_forward":
            return super().__torch_function__(func, types, args, kwargs)
        refs, named = self.tape.refs(args), self.tape.refs(kwargs)
        overwritten = args[0] if changes_in_place(name, kwargs) and args and isinstance(args[0], Tensor) else None
        if overwritten is not None:
            self.tape.preserve(overwritten)
        out = super().__torch_function__(func, types, args, kwargs)
        call = self.tape.record(name, func, refs, named, out, overwritten)
        if self._closed is not None:
            assert call is not None and call.outs[0] is not None
            site, self._closed = self._closed, None
            self._reached(site, call.outs[0])
        return out

    def _reached(self, site: OpenSite, result: int) -> None:
        if site.parallel and self._site is not None:
            self._site.sites.append(site)
            self._site.calls.append(len(self.tape.calls) - 1)
            self._site.results.append(result)
            return
        self.settle()
        self._site = TapedSite([site], [len(self.tape.calls) - 1], [result])

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
            logits = forward()
        intercept.settle()
        record = Record(tuple(sites_of(intercept, values=True)), logits, intercept.unclaimed)
    return Anatomy(record, tuple(intercept.blocks))


def _same(tape: Tape, number: int, other: int) -> bool:
    """Whether a tensor is another one, or a cast or view of it."""
    makers = {n: c for c in tape.calls for n in c.outs}
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
        if projection is None and any(isinstance(follow.states.get(n), Heads) for n in call.inputs):
            projection = project(follow, call, mark.sites, places)
        if projection is None or call.outs[0] != projection.number:
            follow.see(call)
    if projection is None:
        raise NotOffered(f"{where}: no projection of the attention's result was found.")
    if not follow.joins:
        raise NotOffered(
            f"{where}: no residual stream is added to the attention's result. An adapter beside its projection (LoRA) "
            "is not followed: merge it, with peft model.merge_and_unload(). Nor are several streams, as "
            "hyper-connections have them."
        )
    join = follow.joins[0]
    stations = _stations(tape, follow, join, sources, mark.calls[-1] + 1)
    return _block(tape, follow, projection, join, stations, places, where), join.origin, stations.end


def _residual_among(tape: Tape, sources: set[int]) -> Callable[[int], int | None]:
    """The residual stream is what attention itself was computed from, perhaps scaled."""
    makers: dict[int | None, TapedCall] = {n: c for c in tape.calls for n in c.outs}

    def origin(number: int) -> int | None:
        while number not in sources:
            call = makers.get(number)
            if call is None or call.name not in UNCHANGED | LAYOUTS | MULS:
                return None
            number = call.inputs[0]
        tensor = tape.values[number]
        return None if isinstance(tensor, nn.Parameter) or not tensor.is_floating_point() else number

    return origin


@dataclass(frozen=True)
class Stations:
    attended: int  # the output of the attention half
    end: int  # the block's output
    beside: bool = False  # the MLP may have run beside the attention, and be part of both


def _stations(tape: Tape, follow: Follow, join: Sum, sources: set[int], site_end: int) -> Stations:
    """Where the attention half ends, and where the block ends.

    The MLP is added to the output of the attention half. If that had been normalised (post-norm), the block ends after
    the next norm, otherwise with the addition itself.
    """
    if follow.passes:
        first = follow.passes[0]
        norms = len(first.stream.divisors)
        end = _last_with(tape, follow, norms + 1, first.total) if norms else first.total
        return Stations(_unscaled(tape, first.number), end)
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
    """The last tensor of the joined stream that passed so many norms, before it is cast or laid out for what follows.

    Without norms: nothing but constants (the MLP beside the attention) was added to it.
    """
    makers = {n: c for c in tape.calls for n in c.outs}
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


def _unscaled(tape: Tape, number: int) -> int:
    makers = {n: c for c in tape.calls for n in c.outs}
    while number in makers and _scales(makers[number]):
        number = makers[number].inputs[0]
    return number


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
    replay: Stretch | NotOffered
    try:
        replay = stretch(tape, projection.number, stations.end)
    except NotOffered as error:
        replay, inside = NotOffered(f"{where}: {error}"), set()
    else:
        inside = {n for call in replay.calls for n in (*call.inputs, *call.outs)}
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
        streams={n: s for n, s in streams.items() if n in {*inside, projection.number, stations.end}},
        places=places,
    )
