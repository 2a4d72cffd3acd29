"""Where heads stand: in the encoder, the decoder or the cross-attention, or in a stream of another kind of model.

A model with several streams of tokens has heads over each of them and between them. Here each attention call is told
who asks and who is asked, so that roles, confidence, profiles and relevance are read from the right positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.attention.streams import normalized, placed, relevance_states
from whyformer.errors import BadInput, one_of
from whyformer.loan.spread import heads_elsewhere
from whyformer.run import Run
from whyformer.session import LoadedModel, Session, loaded_as, passing_through
from whyformer.study import Study
from whyformer.study.schedule import START, Step
from whyformer.study.streams import slices
from whyformer.types import Site

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """One attention call: which positions of the run ask, and which are asked."""

    layer: int
    site: Site
    queries: slice
    keys: slice
    streams: tuple[str, str]


def calls(run: Run, grad: bool = False) -> list[Call | None]:
    """Every attention call of a run, in order; None for one over positions that are no units (an image tower's)."""
    sites = run.record(grad=grad, multi_stream=run.multi_stream).sites
    if not run.multi_stream:
        stream = run.modality.stream
        return [
            Call(i, site, slice(site.first_query, site.first_query + site.attention_BHQK.shape[2]),
                 slice(0, site.attention_BHQK.shape[3]), (stream, stream))
            for i, site in enumerate(sites)
        ]  # fmt: skip
    where, steps = slices(run.stream_sizes), {step.site: step for step in run.schedule.steps}
    result: list[Call | None] = []
    for i, site in enumerate(sites):
        step = steps.get(i)
        if step is None or step.query not in where or step.key not in where:
            result.append(None)
            continue
        asking, rows = where[step.query], site.attention_BHQK.shape[2]
        start = asking.start + (site.first_query if rows != asking.stop - asking.start else 0)
        result.append(Call(i, site, slice(start, start + rows), where[step.key], (step.query, step.key)))
    return result


Parts = tuple[str, ...] | None  # of each layer; None: all layers are over one stream of tokens


def parts_of(study: Study) -> Parts:
    """The part that each layer belongs to, in the order of the calls.

    A model with a target that is written has an "encoder", a "decoder" and "cross" attention from the decoder to the
    encoder; others are called by their streams: "text", "image", "text → image".
    """
    if not study.multi_stream or study.schedule is None:
        return None
    asked = {step.site: (step.query, step.key) for step in study.schedule.steps}
    pairs = [asked.get(i, facts.streams) for i, facts in enumerate(study.sites)]
    if any(query == "target" for query, _ in pairs):
        return tuple("encoder" if q != "target" else "decoder" if k == "target" else "cross" for q, k in pairs)
    return tuple(q if q == k else f"{q} → {k}" for q, k in pairs)


def place_of(parts: Parts, layer: int) -> dict[str, Any]:
    """Columns of a table that say where a layer stands: its part, and its number inside it; none for one stream."""
    return {} if parts is None else {"part": parts[layer], "depth": parts[:layer].count(parts[layer])}


def of_part(values_L: Array, parts: Parts, name: str) -> Array:
    """The layers of one part."""
    one_of("part", name, tuple(dict.fromkeys(parts or ("the model has one stream of tokens",))))
    return values_L[[i for i, part in enumerate(parts or ()) if part == name]]


# Texts that a model translates: what it writes is what its decoder attends over


@contextmanager
def through(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    attention_at: Mapping[str, str] | None = None,
    each_token: bool = False,
    **how: Any,
) -> Iterator[Session]:
    """A session of any number of inputs. Of a text that is translated, the decoder reads the translation: the one
    that came with it, as (source, translation), or the model's own.

    each_token: one row per token of the translation, which is what is scored there; else one row per translation.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    source = loaded.source(inputs)
    if not source.modality.generates or source.whole is not None:
        with passing_through(loaded, inputs, **how) as session:
            yield session
        return
    if (elsewhere := heads_elsewhere(loaded.model)) is not None:
        raise elsewhere
    with loaded.borrowed():
        session = Session(loaded, source, **how)
        if not each_token:
            groups = session.batch.groups or tuple(range(session.size))
            rows = [i for i, group in enumerate(groups) if i + 1 == len(groups) or groups[i + 1] != group]
            session.batch, session.size = session.batch.select(rows), len(rows)
            session.target = [session.target[i] for i in rows] if isinstance(session.target, list) else session.target
        yield session


def refuse_labels(session: Session) -> None:
    """Labels belong to inputs, and a translated text has a row for each of its tokens."""
    if session.at_once:
        raise BadInput(
            "labels are one per input, and a translation is scored token by token: give (source, translation) pairs, "
            "whose tokens are what is scored, and leave labels out."
        )


# Relevance over several streams


def stream_relevance(run: Run) -> list[Tensor]:
    """Per layer (B, H): what its heads add to the relevance of the rows that feed the head, by generic attention.

    The rules of Chefer, Gur & Wolf 2021 (engines/attention/streams.py) are linear in each map, so the row that is read
    is evaluated from its end: w holds how much each row of a state counts, r += w·Ā_h is what passes through a head.
    At a cross-attention (eq. 10) that is w·R̄_ssᵀ·Ā_h, and the encoder goes on from it, each row divided by the sum
    that R̄_qq is normalised by. All that is added, and the rows that are read, sum to generic attention's scores.
    """
    schedule, keep = run.schedule, run.by_stream(run.keep_BN)
    sites = run.record(grad=True, multi_stream=True).sites
    heads = {step.site: _heads(sites[step.site], step, keep) for step in schedule.steps if step.used}
    state, eyes = relevance_states(schedule, {site: maps.sum(1) for site, maps in heads.items()}, keep)
    # (stream, state, relevance of which stream) → (B, N) weights of its rows
    weights: dict[tuple[str, int, str], Tensor] = {}

    def add(stream: str, after: int, of: str, rows_BN: Tensor) -> None:
        at = (stream, after, of)
        weights[at] = weights[at] + rows_BN if at in weights else rows_BN
        link = schedule.link(stream)
        if after == START and link is not None and link.placed_BNM is not None:
            add(link.source, schedule.last(link.source), of, rows_BN @ link.placed_BNM.to(rows_BN))

    for stream, read_BN in run.by_stream(run.readout_BN.float()).items():
        for of in schedule.streams:
            add(stream, schedule.last(stream), of, read_BN)
    added = [torch.zeros(site.attention_BHQK.shape[:2], device=run.readout_BN.device) for site in sites]
    for step in reversed([s for s in schedule.steps if s.used]):
        maps_BHQK = heads[step.site]
        for of in schedule.streams:
            rows_BN = weights.get((step.query, step.site, of))
            if rows_BN is None:
                continue
            add(step.query, step.query_after, of, rows_BN)
            if not step.cross:
                through_BHK = torch.einsum("bq,bhqk->bhk", rows_BN, maps_BHQK)
                add(step.query, step.query_after, of, through_BHK.sum(1))
                counts = of == step.query
            elif of == step.key:
                seen_BNN = normalized(state(step.query, step.query_after)[step.query], eyes[step.query])
                through_BHK = torch.einsum("bq,bpq,bhpk->bhk", rows_BN, seen_BNN, maps_BHQK)
                sums_BN = (state(step.key, step.key_after)[step.key] - eyes[step.key]).sum(-1)
                add(step.key, step.key_after, of, through_BHK.sum(1) / sums_BN.masked_fill(sums_BN == 0, torch.inf))
                counts = True
            else:
                through_BHK = torch.einsum("bq,bhqk->bhk", rows_BN, maps_BHQK)
                add(step.key, step.key_after, of, through_BHK.sum(1))
                counts = False  # it arrives where this stream is asked in turn
            if counts:
                added[step.site] = added[step.site] + through_BHK.sum(-1)
    return added


def _heads(site: Site, step: Step, keep: Mapping[str, Tensor]) -> Tensor:
    """(B, H, Q, K) Ā of eq. 5 by head: their sum is the mean over heads of max(0, A ∘ ∂s/∂A)."""
    assert site.attention_grad_BHQK is not None
    raised = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).clamp(min=0) / site.heads
    return torch.stack([placed(raised[:, head], site, step, keep) for head in range(site.heads)], 1)
