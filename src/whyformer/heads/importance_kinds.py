"""Scores of heads by gradient, ablation, confidence or relevance, and the sites that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.capture.record import record, require_sites
from whyformer.capture.roles import Gate, HeldAttention, Recorder
from whyformer.engines.attention.maps import normalized, placed, real, relevance_states
from whyformer.errors import AmbiguousLayout, BadInput, NotOffered
from whyformer.loan.borrow import module_names
from whyformer.loan.spread import heads_elsewhere
from whyformer.results.types import Record, Site
from whyformer.run import Run, require_undisturbed
from whyformer.run.session import LoadedModel, Session, loaded_as, passing_through
from whyformer.shapes import Array
from whyformer.study import Study
from whyformer.study.schedule import START, Step
from whyformer.study.streams import slices
from whyformer.targets import resolve_targets, scalar_of

# A model with several streams of tokens has heads over each of them and between them, so every attention call comes
# with the positions of its queries and keys.


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
    """The part of each layer: "encoder", "decoder" or "cross" where a target is written, else its streams."""
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


@contextmanager
def through(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    attention_at: Mapping[str, str] | None = None,
    each_token: bool = False,
    **options: Any,
) -> Iterator[Session]:
    """A session of any number of inputs. The decoder reads the translation that came with a text, or the model's own.

    each_token: one row per token of a translation, which is what is scored; else one row per translation.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    source = loaded.source(inputs)
    if not source.modality.mean.generates or source.whole is not None:
        with passing_through(loaded, inputs, **options) as session:
            yield session
        return
    if (elsewhere := heads_elsewhere(loaded.model)) is not None:
        raise elsewhere
    with loaded.borrowed():
        session = Session(loaded, source, **options)
        if not each_token:
            groups = session.batch.groups or tuple(range(session.size))
            rows = [i for i, group in enumerate(groups) if i + 1 == len(groups) or groups[i + 1] != group]
            session.batch, session.size = session.batch.select(rows), len(rows)
            session.target = [session.target[i] for i in rows] if isinstance(session.target, list) else session.target
        yield session


def stream_relevance(run: Run) -> list[Tensor]:
    """Per layer (B, H): what its heads add to the relevance of the rows that feed the head, by generic attention.

    Its rules are linear in each map, so the row that is read is evaluated from its end: w is how much each row of a
    state counts, and r += w·Ā_h is what passes through a head. At a cross-attention (eq. 10) that is w·R̄_ssᵀ·Ā_h, and
    the encoder goes on from it, each row divided by the sum that R̄_qq is normalised by.
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
            if step.cross and of == step.key:
                seen_BNN = normalized(state(step.query, step.query_after)[step.query], eyes[step.query])
                through_BHK = torch.einsum("bq,bpq,bhpk->bhk", rows_BN, seen_BNN, maps_BHQK)
                sums_BN = (state(step.key, step.key_after)[step.key] - eyes[step.key]).sum(-1)
                add(step.key, step.key_after, of, through_BHK.sum(1) / sums_BN.masked_fill(sums_BN == 0, torch.inf))
            else:
                through_BHK = torch.einsum("bq,bhqk->bhk", rows_BN, maps_BHQK)
                place = (step.key, step.key_after) if step.cross else (step.query, step.query_after)
                add(*place, of, through_BHK.sum(1))
            if of == step.key:  # relevance of another stream is counted where that stream is the key
                added[step.site] = added[step.site] + through_BHK.sum(-1)
    return added


def _heads(site: Site, step: Step, keep: Mapping[str, Tensor]) -> Tensor:
    """(B, H, Q, K) Ā of eq. 5 by head: their sum is the mean over heads of max(0, A ∘ ∂s/∂A)."""
    assert site.attention_grad_BHQK is not None
    raised = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).clamp(min=0) / site.heads
    return torch.stack([placed(raised[:, head], site, step, keep) for head in range(site.heads)], 1)


SCALARS = ("logit", "loss")


def checked_labels(labels: Any, size: int) -> list[Any]:
    """Labels as a list, one per input; arrays and tensors are taken apart."""
    listed = labels.tolist() if callable(getattr(labels, "tolist", None)) else labels
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        listed = [listed]
    label_list = list(listed)
    if len(label_list) != size:
        raise BadInput(f"{len(label_list)} labels for {size} inputs: give one label per input.")
    if None in label_list:
        raise BadInput(f"labels[{label_list.index(None)}] is None: give every input its class, by name or number.")
    return label_list


def labels_at(labels: list[Any] | None, rows: Sequence[int]) -> list[Any] | None:
    return None if labels is None else [labels[row] for row in rows]


def label_indices(labels: list[Any], logits_BC: Tensor, run: Run) -> Tensor:
    """(B,) class indices of labels given as names or numbers; for a single logit, 0 or 1."""
    if logits_BC.shape[1] == 1:
        if any(label not in (0, 1) for label in labels):
            raise BadInput(f"the model has one logit, so labels are 0 or 1; got {sorted(set(map(str, labels)))[:5]}.")
        return torch.tensor([int(label) for label in labels], device=logits_BC.device)
    targets = resolve_targets(list(labels), logits_BC, run.output.labels, None, run.output.token_id)
    return torch.tensor([t.index for t in targets], device=logits_BC.device)


def loss_of(logits_BC: Tensor, label_B: Tensor) -> Tensor:
    """(B,) cross-entropy; of a single logit, the binary one."""
    logits_BC = logits_BC.float()
    if logits_BC.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits_BC[:, 0], label_B.float(), reduction="none")
    return F.cross_entropy(logits_BC, label_B, reduction="none")


def prediction_of(logits_BC: Tensor) -> Tensor:
    """(B,) predicted class; of a single logit, whether it is positive."""
    if logits_BC.shape[1] == 1:
        return (logits_BC[:, 0] > 0).long()
    return logits_BC.argmax(1)


def score_of(run: Run, logits_BC: Tensor, rows: list[int] | None, labels: list[Any] | None) -> Tensor:
    """(n,) loss at ``labels`` where they are given, else the explained logit. ``rows``: whose logits (None: all)."""
    if labels is not None:
        return loss_of(logits_BC, label_indices(labels, logits_BC.detach(), run))
    if rows is None:
        return run.scalars(logits_BC)
    return scalar_of(logits_BC.float(), [run.targets[row] for row in rows], run.reading)


def ablation(
    run: Run, open_LH: Tensor, heads: list[tuple[int, int]], labels: list[Any] | None, keep_one: bool
) -> Tensor:
    """(B, L, H) s(x) - s(x without the head), or the added loss; keep_one: without the layer's others. NaN: no head."""
    with torch.no_grad():
        whole = run.value_B if labels is None else score_of(run, run.logits, None, labels)
    sign = 1 if labels is None else -1
    result = torch.full((run.batch.size, *open_LH.shape), torch.nan)
    variants = [(row, layer, head) for layer, head in heads for row in range(run.batch.size)]
    step = max(run.batch_size, run.batch.size)
    for start in run.track(range(0, len(variants), step), "ablating heads"):
        chunk = variants[start : start + step]
        rows = [row for row, _, _ in chunk]
        gates = open_LH.repeat(len(chunk), 1, 1)
        for i, (_, layer, head) in enumerate(chunk):
            gates[i, layer, head] = 0
            if keep_one:
                gates[i, layer] = 1 - gates[i, layer]
        with torch.no_grad():
            score = score_of(run, gated(run, rows, gates), rows, labels_at(labels, rows))
        for (row, layer, head), value in zip(chunk, score.tolist(), strict=True):
            result[row, layer, head] = sign * (float(whole[row]) - value)
    return result


def recorded(run: Run, labels: list[Any] | None = None, role: type[Recorder] = Recorder) -> Record:
    """Maps and gradients of the score, of models with one stream of tokens or several: a head is a head."""
    recorder = role(run.batch.size, module_names(run.modality.model), run.study.batch_axes)

    def score(logits_BC: Tensor) -> Tensor:
        return score_of(run, logits_BC, None, labels)

    maps = record(lambda: run.output.logits(run.batch), recorder, score)
    run.forwards_B += 1
    run.backwards_B += 1
    require_sites(maps)
    require_undisturbed(run, maps.logits, graph=True)
    run.require_slopes(maps, recorder, score)
    return maps


def row_products(site: Site) -> Tensor:
    """(B, H, W·Q) Σ_k A ∘ ∂s/∂A: what each query row of each head adds to ∂s/∂ξ; W windows stay with their input."""
    assert site.attention_grad_BHQK is not None
    rows = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).sum(-1)
    windows, heads, queries = site.windows, *rows.shape[1:]
    return rows.view(-1, windows, heads, queries).transpose(1, 2).reshape(-1, heads, windows * queries)


def rows_of(**columns_LH: Array) -> list[dict[str, Any]]:
    """One dict per head with its numbers of each column, by layer; heads that a layer does not have are left out."""
    known = np.argwhere(~np.isnan(next(iter(columns_LH.values()))))
    return [
        {"layer": int(i), "head": int(j)} | {name: float(values_LH[i, j]) for name, values_LH in columns_LH.items()}
        for i, j in known
    ]


def table(layers: list[Tensor]) -> Tensor:
    """(B, L, H) from one (B, H) per layer; NaN where a layer has fewer heads than the widest."""
    widest = max(layer.shape[1] for layer in layers)
    pad = [torch.nn.functional.pad(layer, (0, widest - layer.shape[1]), value=torch.nan) for layer in layers]
    return torch.stack(pad, 1)


def mask_gradient(maps: Record) -> Tensor:
    """(B, L, H) ∂s/∂ξ, signed: positive where more of the head would raise the score."""
    return table([row_products(site).sum(-1) for site in maps.sites])


def token_counts(run: Run, layers: int) -> Tensor:
    """(B, L) tokens that the sums run over: all real ones that ask, and in the last layer those that feed the head.

    NOTE[DIFF] Michel's code divides the last layer by the number of examples, since only [CLS] has a gradient there;
    for other readouts (mean pooling) that becomes the number of rows that are read.
    """
    if not run.multi_stream:
        counts = run.keep_BN.sum(1)[:, None].repeat(1, layers).float()
        counts[:, -1] = (run.readout_BN > 0).sum(1).float()
        return counts
    keep, read, schedule = run.by_stream(run.keep_BN), run.by_stream(run.readout_BN), run.schedule
    counts = torch.full((run.batch.size, layers), torch.nan, device=run.keep_BN.device)
    for step in schedule.steps:
        if step.query not in keep:  # positions that are no units
            continue
        # After the last self-attention of a stream that is read, nothing carries one of its rows to another.
        last = max(schedule.between(step.query, step.query), default=step.site)
        alone = step.site >= last and bool((read[step.query] > 0).any())
        counts[:, step.site] = ((read[step.query] > 0) if alone else keep[step.query]).sum(1).float()
    return counts


def confidence(run: Run) -> Tensor:
    """(B, L, H) mean over real query rows of max_k A, special tokens ([CLS], [SEP], </s>) left out of the max."""
    keep_BN = run.keep_BN
    looked_at = keep_BN & ~run.special_BN
    layers = []
    for call, site in zip(calls(run), run.record(multi_stream=run.multi_stream).sites, strict=True):
        if call is None:
            layers.append(torch.full((run.batch.size, site.heads), torch.nan, device=keep_BN.device))
            continue
        attention = site.attention_BHQK.float()
        strongest_BHQ = (attention * looked_at[:, None, None, call.keys]).amax(-1)
        rows_BQ = keep_BN[:, call.queries].float()
        layers.append((strongest_BHQ * rows_BQ[:, None]).sum(-1) / rows_BQ.sum(1).clamp(min=1)[:, None])
    return table(layers)


def lrp_relevance(run: Run) -> Tensor:
    """(B, L, H) share of its layer's relevance that reaches each head's result, in absolute value.

    R_h = Σ_q o_hq · ∂s/∂o_hq under the gradient rules of CP-LRP (capture/lrp/changed_gradients.py).

    NOTE[DIFF] Voita et al. 2019 use the αβ rule with α = β = ½ and rescale each layer; the ε rule (ε → 0) conserves by
    itself. They do not say what becomes of negative relevance: here the absolute value is taken per head.
    """
    rules = GradientRules(attention_is_constant=True)
    role = HeldAttention(run.batch.size, module_names(run.modality.model), run.study.batch_axes)
    with torch.enable_grad():
        with rules, role:
            logits = run.output.logits(run.batch)
        total = run.scalars(logits).sum()
        run.forwards_B += 1
        run.backwards_B += 1
        if not role.sites or not total.requires_grad:
            raise NotOffered("the explained output does not depend on any captured attention with gradients.")
        layers = role.gradient_times_value(total)
    run.require_input_slopes()
    return table([shares_of(relevance_BH.abs()) for relevance_BH in layers])


def relevance_rows(run: Run) -> list[Tensor]:
    """Per layer (B, H): relevance that reaches the readout row through that layer's heads, by generic attention."""
    # r = e·(I + Ā_L) ··· (I + Ā_1) from the left: r_l = r_{l+1} + r_{l+1}·Ā_l. Ā is a mean over heads, so what layer l
    # adds, Σ_j (r_{l+1}·Ā_l)_j, is a sum over heads.
    if run.multi_stream:
        return stream_relevance(run)
    row_BN = run.readout_BN.float()
    added: list[Tensor] = []
    for site in reversed(run.record(grad=True).sites):
        assert site.attention_grad_BHQK is not None
        raised = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).clamp(min=0)
        heads = [real(raised[:, head], run.keep_BN, site) / raised.shape[1] for head in range(raised.shape[1])]
        queries = row_BN[:, site.first_query : site.first_query + raised.shape[2]]
        through_BHK = torch.stack([torch.einsum("bq,bqk->bk", queries, head) for head in heads], 1)
        added.append(through_BHK.sum(-1))
        row_BN = row_BN + through_BHK.sum(1)
    return added[::-1]


def relevance_share(run: Run) -> Tensor:
    """(B, L, H) relevance through each head, divided by that of its layer; a layer without any is zero."""
    return table([shares_of(added_BH) for added_BH in relevance_rows(run)])


def shares_of(values_BX: Tensor) -> Tensor:
    """Divide rows by their sum; a row without any stays zero."""
    total_B1 = values_BX.sum(1, keepdim=True)
    return torch.where(total_B1 == 0, 0.0, values_BX / torch.where(total_B1 == 0, 1.0, total_B1))


def open_gates(session: Session) -> Tensor:
    """(L, H) ones, as wide as the widest layer."""
    device = next(session.model.parameters(), torch.empty(0)).device
    return torch.ones(len(session.layers), max(heads for _, heads in session.layers), device=device)


def gated(run: Run, rows: Sequence[int], gates: Tensor) -> Tensor:
    """(n, C) logits of the run's inputs ``rows`` (repeats allowed) with heads gated; gates (L, H) or (n, L, H)."""
    batch = run.batch.select(list(rows))
    np.add.at(run.forwards_B, list(rows), 1)
    try:
        with Gate(batch.size, module_names(run.modality.model), run.study.batch_axes, gates=gates):
            return run.output.logits(batch)
    except AmbiguousLayout:
        if batch.size == 1:
            raise
    np.add.at(run.forwards_B, list(rows), -1)
    # Batch and heads have the same size here and cannot be distinguished; with one input at a time they can.
    return torch.cat([gated(run, [row], gates if gates.ndim == 2 else gates[i : i + 1]) for i, row in enumerate(rows)])
