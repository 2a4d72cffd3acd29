"""The schedule of a model with several streams of tokens: who asks whom, and what each of them had seen before.

An attention call makes a new state of its query stream out of an older state of it and, for cross-attention, a state of
the key stream. Which states those are is read from the flow of data (study/dataflow.py): two cross-attentions of one
block that both start from the old states (LXMERT) are two steps with the same predecessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import LAYOUTS, MATMULS, Args, Function, Kwargs, sdpa_operands
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import Notes
from whyformer.errors import BadInput, NotOverUnits
from whyformer.inputs.families import ENCODER_STREAMS, PATH_STREAMS
from whyformer.study.dataflow import AttentionCall
from whyformer.study.readout import Passes, SiteFacts, Survey

# Which tokens sit in which window: read from how the model moves them, not from its settings.
#
# Beside every tensor goes a shadow of the same shape that holds the number of the token each value belongs to. What the
# model does to move tokens (view, roll, transpose, slice, pad) is done to the shadow as well, so at an attention the
# shadow of the queries says which token stands where in which window, shifted or not. Where four tokens are laid side
# by side and projected (patch merging), the shadow says which: their places in the grid are numbered anew.

MOVES = LAYOUTS | frozenset("contiguous roll __getitem__ cat clone to expand chunk split narrow stack".split())
PADDING = -1
IN_PARTS = (
    "{path}: attention runs over one part of the input at a time (the frames of one patch, one variable, one window), "
    "and which tokens each part holds was not found, so maps of different layers cannot be combined."
)


@dataclass(frozen=True)
class Placement:
    """Where the tokens of one attention call stand: (windows, places) token numbers, and the stage they are of."""

    tokens_WN: Tensor
    stage: int


@dataclass(frozen=True)
class Windows:
    """All placements in call order; ``merges[s]`` (N of stage s+1, N of stage s): which tokens became which."""

    placements: tuple[Placement, ...]
    merges: tuple[Tensor, ...]
    sizes: tuple[int, ...]  # tokens of each stage

    def whole(self, maps_WQK: Tensor, site: int) -> Tensor:
        """(B·W, n, n) maps inside windows → (B, N, N), zero between windows."""
        placement = self.placements[site]
        tokens = placement.tokens_WN.to(maps_WQK.device)
        windows, places = tokens.shape
        count = self.sizes[placement.stage]
        inside = maps_WQK.view(-1, windows, places, places)
        rows = tokens[:, :, None].expand(windows, places, places)
        columns = tokens[:, None, :].expand(windows, places, places)
        real = (rows >= 0) & (columns >= 0)
        result = maps_WQK.new_zeros(len(inside), count, count)
        result[:, rows[real], columns[real]] = inside[:, real]
        return result

    def merged(self, relevance_BNK: Tensor, before: int, after: int) -> Tensor:
        """Rows of an earlier stage → rows of a later one: a merged token is the mean of those it was made of."""
        for stage in range(before, after):
            relevance_BNK = self.merges[stage].to(relevance_BNK) @ relevance_BNK
        return relevance_BNK


class Shadows(Survey):
    """Follows the tokens of one image from the patch embedding on."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(1, names)
        self.placements: list[Placement] = []
        self.merges: list[Tensor] = []
        self.sizes: list[int] = []
        self._shadows = Notes[Tensor]()
        self._asking = Notes[Tensor]()  # beside scores: the shadow of their queries
        self._fused: Tensor | None = None

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name == "scaled_dot_product_attention":
            self._fused = self._shadows.get(sdpa_operands(args, kwargs)["query"])
        before = len(self.placements)
        out = super().__torch_function__(func, types, args, kwargs)
        self._fused = None
        with torch._C.DisableTorchFunction():
            if len(self.placements) == before:
                self._follow(name, func, args, kwargs, out)
            elif isinstance(out, Tensor) and out.shape[:-1] == self._last.shape[:-1]:
                self._shadows.put(out, self._last[..., :1].expand(out.shape))
        return out

    def at_site(self, site: OpenSite) -> None:
        super().at_site(site)
        asked = self._fused if self._fused is not None else self._asking.get(site.attention)
        rows = torch.tensor([[0, 1]]) if asked is None else site.layout.to_canonical(asked)[..., 0]
        if asked is None or (rows != rows[:, :1]).any():  # heads hold the same tokens
            raise NotOverUnits(IN_PARTS.format(path=site.path))
        self.placements.append(Placement(rows[:, 0].long(), len(self.sizes) - 1))
        self._last = asked

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        if name == "conv2d" and not self.placements and isinstance(out, Tensor):
            rows, columns = out.shape[-2:]
            numbers = torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)
            self.sizes, self.merges = [rows * columns], []
            self._shadows.put(out, numbers.expand(out.shape).clone())
            return
        first = args[0] if args else next(iter(kwargs.values()), None)
        members = list(first) if isinstance(first, (list, tuple)) else [first]
        shadows = [self._shadows.get(t) for t in members]
        if name in MOVES and shadows and all(s is not None for s in shadows):
            moved = func(shadows if isinstance(first, (list, tuple)) else shadows[0], *args[1:], **kwargs)
            for result, shadow in zip(_each(out), _each(moved), strict=True):
                self._shadows.put(result, shadow)
            return
        if not isinstance(out, Tensor):
            return
        known = next((s for t in args if isinstance(t, Tensor) and (s := self._shadows.get(t)) is not None), None)
        if name == "pad" and known is not None:
            self._shadows.put(out, torch.nn.functional.pad(known, args[1], value=PADDING))
        elif name in {"linear", "layer_norm"} and known is not None:
            self._projected(known, out)
        elif name in MATMULS and known is not None and out.ndim == known.ndim:
            self._asking.put(out, known)
        elif known is not None and known.shape == out.shape:
            self._shadows.put(out, known)
        else:
            asked = next((a for t in args if (a := self._asking.get(t)) is not None), None)
            # Windows may have an axis of their own for a while: a mask that differs between them is added there.
            size = out.shape[:-1]
            if asked is not None and size[-1:] == asked.shape[-2:-1] and size.numel() == asked.shape[:-1].numel():
                self._asking.put(out, asked)

    def _projected(self, numbers: Tensor, out: Tensor) -> None:
        """One token per vector stays itself; several side by side become a new one."""
        if numbers.shape[:-1] != out.shape[:-1]:
            return
        if (numbers == numbers[..., :1]).all():
            self._shadows.put(out, numbers[..., :1].expand(out.shape))
            return
        flat = numbers.reshape(-1, numbers.shape[-1])
        merge = torch.zeros(len(flat), self.sizes[-1], dtype=torch.float32)
        for i, values in enumerate(flat):
            tokens = values[values >= 0].unique().long()
            merge[i, tokens] = 1 / max(len(tokens), 1)
        self.merges.append(merge)
        self.sizes.append(len(flat))
        fresh = torch.arange(len(flat), dtype=torch.float64).view(*numbers.shape[:-1], 1)
        self._shadows.put(out, fresh.expand(out.shape))


def _each(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else list(out)


def windows_of(run: Passes) -> Windows:
    """Placements of one image's tokens, by one forward pass."""
    shadows = Shadows(run.names)
    with torch.no_grad(), shadows:
        run()
    return Windows(tuple(shadows.placements), tuple(shadows.merges), tuple(shadows.sizes))


START = -1  # the state before any attention


@dataclass(frozen=True)
class Step:
    """One attention call: it updates the rows of ``query``, as they were after ``query_after``."""

    site: int
    query: str
    key: str
    query_after: int = START  # site whose result the queries are, START for the input
    key_after: int = START
    used: bool = True  # does its result reach the output?

    @property
    def cross(self) -> bool:
        return self.query != self.key


@dataclass(frozen=True)
class Link:
    """The result of one stream placed among the tokens of another (LLaVA): those tokens start as what it had seen."""

    source: str
    into: str
    made_of: Tensor  # (tokens, N_source) each placed token is the mean of these positions of the source
    placed_BNM: Tensor | None = None  # (B, N_into, N_source) the same, where the tokens stand in each input

    def at(self, places_BN: Tensor) -> Link:
        """Return the link for a batch: ``places_BN`` marks the tokens, which come in the order of ``made_of``."""
        made_of = self.made_of.to(places_BN.device)
        counts = places_BN.sum(1).tolist()
        if any(count != len(made_of) for count in counts):
            raise BadInput(
                f"the inputs have {sorted(set(counts))} image tokens, and the model makes {len(made_of)} per image: "
                "every input needs one image of the same size. Explain the others separately."
            )
        placed = made_of.new_zeros(*places_BN.shape, made_of.shape[1])
        placed[places_BN] = made_of.repeat(len(places_BN), 1)
        return replace(self, placed_BNM=placed)

    @property
    def lost(self) -> int:
        """Positions of the source that become no token."""
        return int((self.made_of.sum(0) == 0).sum())


@dataclass(frozen=True)
class Schedule:
    """All steps in call order, and how many positions each stream has."""

    steps: tuple[Step, ...]
    lengths: dict[str, int]  # on the input that was studied
    links: tuple[Link, ...] = ()

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.lengths)

    @property
    def shown(self) -> tuple[str, ...]:
        """Streams with units of their own: one that is placed among another's tokens is shown there."""
        inner = {link.source for link in self.links}
        return tuple(s for s in self.streams if s not in inner)

    def link(self, into: str) -> Link | None:
        return next((link for link in self.links if link.into == into), None)

    def last(self, stream: str) -> int:
        """The site after which the rows of a stream are final: its last one that reaches the output."""
        sites = [s.site for s in self.steps if s.query == stream and s.used]
        return sites[-1] if sites else START

    def reduced(self, feeding: Iterable[str], links: tuple[Link, ...] = ()) -> Schedule:
        """Return the schedule without streams that neither attention nor a link connects to the head."""
        joined = set(feeding)
        while True:
            more = {s.key for s in self.steps if s.used and s.query in joined}
            more = (more | {link.source for link in links if link.into in joined}) - joined
            if not more:
                break
            joined |= more
        steps = tuple(s for s in self.steps if s.query in joined)
        return Schedule(steps, {k: v for k, v in self.lengths.items() if k in joined}, links)

    def between(self, query: str, key: str) -> list[int]:
        """Sites where ``query`` asks ``key``, and the answer reaches the output."""
        return [s.site for s in self.steps if (s.query, s.key) == (query, key) and s.used]


def schedule_of(
    sites: Sequence[SiteFacts], calls: Sequence[AttentionCall], reached: frozenset[int], default: str
) -> Schedule:
    """Streams and order of all sites; ``default`` is the stream of a model whose inputs have no names."""
    queries, keys = _named(sites, calls, default)

    def latest(past: frozenset[int], stream: str) -> int:
        return max((i for i in past if queries[i] == stream), default=START)

    steps = [
        Step(i, query, key, latest(call.query.calls, query), latest(call.key.calls, key), i in reached)
        for i, (query, key, call) in enumerate(zip(queries, keys, calls, strict=True))
    ]
    # Positions of each stream, in the order in which streams are first read; a few rows asked of a stream are fine.
    lengths: dict[str, int] = {}
    for step in steps:
        if not step.cross:
            lengths.setdefault(step.key, sites[step.site].keys)
    for step in steps:
        lengths.setdefault(step.key, sites[step.site].keys)
        lengths.setdefault(step.query, sites[step.site].queries)
    return Schedule(tuple(steps), lengths)


def _named(sites: Sequence[SiteFacts], calls: Sequence[AttentionCall], default: str) -> tuple[list[str], list[str]]:
    named = any(c.query.stream or c.key.stream for c in calls)

    def by_path(site: SiteFacts) -> str:
        words = site.path.split(".")
        return next((s for word, s in PATH_STREAMS.items() if named and word in words), default)

    queries = [c.query.stream or by_path(s) for s, c in zip(sites, calls, strict=True)]
    keys = [c.key.stream or (q if s.kind == "self" else default) for s, c, q in zip(sites, calls, queries, strict=True)]
    # Different streams, or one stream at two different depths (a decoder reading its encoder).
    depths = [site.kind == "cross" and c.query.calls != c.key.calls for site, c in zip(sites, calls, strict=True)]
    crossed = [i for i in range(len(sites)) if queries[i] != keys[i] or depths[i]]
    # A decoder that is fed the encoder's own input (BART as a classifier): one input, two streams.
    one = [i for i in crossed if queries[i] == keys[i]]
    # Keys of the same tokens at an earlier layer (Gemma 3n shares them) are no second stream: what asks has been there.
    if one and calls[one[0]].key.calls < calls[one[0]].query.calls:
        one = []
    blocks = {_block(sites[i].path) for i in one}
    for i, site in enumerate(sites):
        if blocks and _block(site.path) in blocks:
            queries[i] = "target"
            keys[i] = keys[i] if i in crossed else "target"
    if "target" in queries and "image" not in queries:  # beside an image, a question stays a text
        queries = [ENCODER_STREAMS.get(q, q) for q in queries]
        keys = [ENCODER_STREAMS.get(k, k) for k in keys]
    return queries, keys


def kind_of(site: SiteFacts, step: Step, call: AttentionCall) -> str:
    """ "self" where one stream attends to itself; where nothing is known of either side, "cross" stays."""
    if step.cross:
        return "cross"
    known = call.query.stream is not None and call.query.calls == call.key.calls and site.queries == site.keys
    return "self" if site.kind == "self" or known else "cross"


def _block(path: str) -> str:
    """The list of layers that a site belongs to: its path up to the first number."""
    words = path.split(".")
    numbers = [i for i, w in enumerate(words) if w.isdigit()]
    return ".".join(words[: numbers[0]] if numbers else words)


def unsteady(sites: Sequence[SiteFacts], schedule: Schedule, stream: str | None = None) -> NotOverUnits | None:
    """Return the error that a stream (by default any) changes its positions from layer to layer (windows), or None."""
    for step in schedule.steps:
        site, queries, keys = sites[step.site], schedule.lengths[step.query], schedule.lengths[step.key]
        fits = site.queries == queries or (site.queries < queries and not step.cross)  # a few rows may be asked for
        if stream in {None, step.query} and not (site.windows == 1 and fits and site.keys == keys):
            return NotOverUnits(
                f"{site.path}: attention of {site.queries} × {site.keys} positions, but the streams {step.query} and "
                f"{step.key} have {queries} and {keys}, so maps of different layers cannot be combined."
            )
    return None
