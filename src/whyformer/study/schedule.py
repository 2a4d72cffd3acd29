"""The schedule of a model with several streams of tokens: who asks whom, and what each of them had seen before.

Rows of relevance belong to the stream that asks. An attention call makes a new state of its query stream out of an
older state of it and, for cross-attention, a state of the key stream. Which states those are is read from the flow of
data (study/dataflow.py), not from the model's class: two cross-attentions of one block that both start from the old
states (LXMERT) are two steps with the same predecessors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from whyformer.errors import BadInput, NotOverUnits
from whyformer.inputs.families import ENCODER_STREAMS, PATH_STREAMS
from whyformer.study.dataflow import AttentionCall, Segments
from whyformer.study.readout import SiteFacts

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
        """For a batch: ``places_BN`` marks the tokens, which come in the order of ``made_of``."""
        made_of = self.made_of.to(places_BN.device)
        counts = places_BN.sum(1).tolist()
        if any(count != len(made_of) for count in counts):
            raise BadInput(
                f"the inputs have {sorted(set(counts))} image tokens, and the model makes {len(made_of)} of an "
                "image: every input needs one image of the same size. Explain the others separately."
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
    segments: Segments = ()  # streams laid end to end in a joint one
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
        """Without the streams that neither attention nor a link connects to those that feed the head."""
        joined = set(feeding)
        while True:
            more = {s.key for s in self.steps if s.used and s.query in joined}
            more = (more | {link.source for link in links if link.into in joined}) - joined
            if not more:
                break
            joined |= more
        steps = tuple(s for s in self.steps if s.query in joined)
        return Schedule(steps, {k: v for k, v in self.lengths.items() if k in joined}, self.segments, links)

    def between(self, query: str, key: str) -> list[int]:
        """Sites where ``query`` asks ``key``, and the answer reaches the output."""
        return [s.site for s in self.steps if (s.query, s.key) == (query, key) and s.used]


def schedule_of(
    sites: Sequence[SiteFacts], calls: Sequence[AttentionCall], reached: frozenset[int], default: str
) -> Schedule:
    """Streams and order of all sites; ``default`` is the stream of a model whose inputs have no names."""
    queries, keys = _named(sites, calls, default)
    steps = []
    for i, call in enumerate(calls):
        steps.append(
            Step(
                i,
                queries[i],
                keys[i],
                _latest(queries, call.query.calls, queries[i]),
                _latest(queries, call.key.calls, keys[i]),
                i in reached,
            )
        )
    segments = next((c.query.segments for c in calls if c.query.segments), ())
    return Schedule(tuple(steps), _lengths(sites, steps), segments)


def _latest(queries: list[str], past: frozenset[int], stream: str) -> int:
    calls = [i for i in past if queries[i] == stream]
    return max(calls) if calls else START


def _named(sites: Sequence[SiteFacts], calls: Sequence[AttentionCall], default: str) -> tuple[list[str], list[str]]:
    named = any(c.query.stream or c.key.stream for c in calls)
    queries = [c.query.stream or _by_path(s, default, named) for s, c in zip(sites, calls, strict=True)]
    keys = [c.key.stream or (q if s.kind == "self" else default) for s, c, q in zip(sites, calls, queries, strict=True)]
    crossed = [i for i, s in enumerate(sites) if _is_cross(s, calls[i], queries[i], keys[i])]
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


def _is_cross(site: SiteFacts, call: AttentionCall, query: str, key: str) -> bool:
    """Different streams, or one stream at two different depths (a decoder reading its encoder)."""
    return query != key or (site.kind == "cross" and call.query.calls != call.key.calls)


def kind_of(site: SiteFacts, step: Step, call: AttentionCall) -> str:
    """ "self" where one stream asks itself; a doubt (nothing known of either side) stays "cross"."""
    if step.cross:
        return "cross"
    known = call.query.stream is not None and call.query.calls == call.key.calls and site.queries == site.keys
    return "self" if site.kind == "self" or known else "cross"


def _by_path(site: SiteFacts, default: str, named: bool) -> str:
    if not named:
        return default
    words = site.path.split(".")
    return next((stream for word, stream in PATH_STREAMS.items() if word in words), default)


def _block(path: str) -> str:
    """The list of layers that a site belongs to: its path up to the first number."""
    words = path.split(".")
    numbers = [i for i, w in enumerate(words) if w.isdigit()]
    return ".".join(words[: numbers[0]] if numbers else words)


def _lengths(sites: Sequence[SiteFacts], steps: Sequence[Step]) -> dict[str, int]:
    """Positions of each stream, in the order in which streams are first read; a few rows asked of a stream are fine."""
    lengths: dict[str, int] = {}
    for step in steps:
        if not step.cross:
            lengths.setdefault(step.key, sites[step.site].keys)
    for step in steps:
        lengths.setdefault(step.key, sites[step.site].keys)
        lengths.setdefault(step.query, sites[step.site].queries)
    return lengths


def require_steady(sites: Sequence[SiteFacts], schedule: Schedule) -> None:
    """Streams must keep their positions from layer to layer."""
    for step in schedule.steps:
        site = sites[step.site]
        if not _fits(site, step, schedule):
            want = schedule.lengths[step.query], schedule.lengths[step.key]
            raise NotOverUnits(
                f"{site.path}: attention of {site.queries} × {site.keys} positions, where the streams {step.query} and "
                f"{step.key} have {want[0]} and {want[1]}, so maps of different layers do not line up."
            )


def is_steady(sites: Sequence[SiteFacts], schedule: Schedule, stream: str) -> bool:
    """Does this stream keep its positions? A vision tower that attends inside windows does not."""
    return all(_fits(sites[s.site], s, schedule) for s in schedule.steps if s.query == stream)


def _fits(site: SiteFacts, step: Step, schedule: Schedule) -> bool:
    queries, keys = schedule.lengths[step.query], schedule.lengths[step.key]
    few = site.queries <= queries if not step.cross else site.queries == queries
    return site.windows == 1 and few and site.keys == keys
