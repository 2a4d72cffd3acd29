"""Run a model once and come back with a Record, or with an error that says why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from whyformer.capture.fold import At, Fold, NotFolded
from whyformer.capture.functions import all_weights
from whyformer.capture.intercept import Intercept
from whyformer.capture.leaves import REENTRANT
from whyformer.capture.roles import Observe, Recorder
from whyformer.capture.site import HATCH, OffPlan
from whyformer.errors import NothingCaptured, NotOffered, PartlyCaptured
from whyformer.results.types import Record, Site

Forward = Callable[[], Tensor]
Score = Callable[[Tensor], Tensor]  # logits → the explained number of each input


def observe(forward: Forward, intercept: Observe, values: bool = False) -> Record:
    """Attention maps of one forward pass, without gradients."""
    intercept.keeps_values = values
    with torch.no_grad(), intercept:
        logits = intercept.differentiate(forward())
    unclaimed = intercept.unclaimed if intercept.softmaxes else ()
    return Record(tuple(sites_of(intercept, values)), logits, unclaimed)


def record(
    forward: Forward,
    intercept: Recorder,
    scalar: Score,
    values: bool = False,
    shared: bool = False,
    ran: bool = False,
    again: bool = False,
) -> Record:
    """Attention maps and their gradients.

    shared: all inputs are beginnings of the one row that is run. ran: ``intercept`` has seen the pass already. again:
    another scalar of the pass follows.
    """
    with torch.enable_grad():
        with nullcontext() if ran else intercept:
            logits = forward()
        if not intercept.sites and intercept.plan is None:
            return Record((), logits.detach(), intercept.unclaimed)
        values_B = scalar(logits)
        if not values_B.requires_grad:
            raise NotOffered(NO_GRADIENT)
        try:
            scores = values_B if shared else [values_B.sum()]
            each = [intercept.gradients(score, again=shared or again) for score in scores]
        except RuntimeError as error:
            raise _of_recomputation(error)  # noqa: B904  (it may be the error itself)
    rows = [sites_of(intercept, values, gradients) for gradients in each]
    sites = [_side_by_side(site) for site in zip(*rows, strict=True)] if shared else rows[0]
    return Record(tuple(sites), logits.detach(), intercept.unclaimed if intercept.softmaxes else ())


def folded(
    forward: Forward, fold: Fold, scalar: Score, at: At, shared: bool = False, ran: bool = False, again: bool = False
) -> Tensor:
    """Logits of one pass whose attentions were handed to ``at`` one by one, last first, and none of them kept.

    shared, ran, again: see ``record``.
    """
    with torch.set_grad_enabled(fold.fusion.gradient):
        with nullcontext() if ran else fold:
            logits = forward()
        if fold.plan is not None and len(fold.sites) != len(fold.plan.sites):
            raise OffPlan
        if not fold.sites or fold.unclaimed:
            return logits.detach()
        if not fold.fusion.gradient:
            logits = fold.differentiate(logits)
            fold.hand_on_all(at)
            return logits
        values_B = scalar(logits)
        if not values_B.requires_grad:
            raise NotOffered(NO_GRADIENT)
        try:
            if shared:
                for row, value in enumerate(values_B):
                    fold.backward(value, at, again=True, inputs=range(row, row + 1))
            else:
                fold.backward(values_B.sum(), at, again)
        except RuntimeError as error:
            if "inplace operation" in str(error):
                raise NotFolded from error
            raise _of_recomputation(error)  # noqa: B904  (it may be the error itself)
    return logits.detach()


NO_GRADIENT = (
    "the explained output does not depend on any captured attention with gradients. If the model computes under "
    "torch.no_grad() or detaches its features, remove that."
)


def _of_recomputation(error: RuntimeError) -> Exception:
    """What went wrong where a model recomputes its layers in backward, in words; other errors as they are."""
    if isinstance(error, torch.utils.checkpoint.CheckpointError):
        return NotOffered(
            "the model recomputes its layers in backward (gradient checkpointing) in a way that cannot be followed. "
            "Turn it off for explaining: model.gradient_checkpointing_disable(), or don't wrap layers in checkpoint()."
        )
    return NotOffered(REENTRANT) if "use_reentrant" in str(error) else error


def _side_by_side(sites: Sequence[Site]) -> Site:
    """One attention call with the gradients of several scores; its map is held once."""
    first, count = sites[0], len(sites)
    gradients = [site.attention_grad_BHQK for site in sites if site.attention_grad_BHQK is not None]
    return replace(
        first,
        attention_BHQK=first.attention_BHQK.expand(count, -1, -1, -1),
        value_BHKD=None if first.value_BHKD is None else first.value_BHKD.expand(count, -1, -1, -1),
        attention_grad_BHQK=torch.cat(gradients),
    )


def sites_of(intercept: Intercept, values: bool, gradients: list[Tensor] | None = None) -> list[Site]:
    """Canonical sites; heads that the model computes one by one are joined into one site."""
    plan = intercept.plan
    if plan is not None and len(intercept.sites) != len(plan.sites):
        raise OffPlan
    waiting = [(site, site.call) for site in intercept.sites if site.waits and site.call is not None]
    if waiting:  # maps of torch's own attention are computed now, those of all layers together
        calls = [call for _, call in waiting]
        written = any(call.version != call.written() for call in calls)
        places = [tensor.data_ptr() for call in calls for tensor in (call.query, call.key)]
        # A buffer that is used again may hold something else.
        if written or (len(set(places)) < len(places) and len(calls) > 1):
            raise OffPlan
        for (site, _), weights in zip(waiting, all_weights(calls), strict=True):
            site.attention, site.waits = weights, False
    sites: list[Site] = []
    facts = [fact for fact in intercept.facts if not fact.parallel]
    facts = facts if len(facts) == sum(not seen.parallel for seen in intercept.sites) else []
    for index, seen in enumerate(intercept.sites):
        attention = seen.attention.detach() if seen.attention.requires_grad else seen.attention
        fact = facts[len(sites) - seen.parallel] if facts else None
        joined = Site(
            path=seen.path,
            kind=seen.kind if fact is None else fact.kind,
            streams=("", "") if fact is None else fact.streams,
            attention_BHQK=seen.layout.to_canonical(attention),
            value_BHKD=seen.value_BHKD.detach() if values else None,
            attention_grad_BHQK=None if gradients is None else seen.layout.to_canonical(gradients[index]),
            windows=seen.layout.windows,
            first_query=seen.first_query,
        )
        if seen.parallel:
            sites[-1] = _joined(sites[-1], joined)
        else:
            sites.append(joined)
    return sites


def _joined(left: Site, right: Site) -> Site:
    def cat(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.cat([a, b], dim=1)

    parts = zip(left.path.split("."), right.path.split("."), strict=False)
    shared = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], parts)]
    return replace(
        left,
        path=".".join(shared),
        attention_BHQK=torch.cat([left.attention_BHQK, right.attention_BHQK], dim=1),
        value_BHKD=cat(left.value_BHKD, right.value_BHKD),
        attention_grad_BHQK=cat(left.attention_grad_BHQK, right.attention_grad_BHQK),
    )


def require_sites(record: Record) -> None:
    """No method returns a map when capture was empty or partial."""
    if not record.sites:
        ledger = "".join(f"\n  {line}" for line in record.unclaimed)
        raise NothingCaptured(
            "no attention was captured: the model never multiplied a softmax over positions with values."
            + (f" Softmaxes that led nowhere:{ledger}" if ledger else "")
            + " State-space and convolutional models (Mamba, ResNet) have none. If the model attends in another thread "
            f"or in a compiled kernel, run it in the calling thread and uncompiled. {HATCH}"
        )
    if record.unclaimed:
        raise PartlyCaptured(
            f"{len(record.sites)} attention maps were captured, but {len(record.unclaimed)} softmaxes over positions "
            "could not be matched with the value tensors they weight, so a map would be partial:\n  "
            + "\n  ".join(record.unclaimed[:8])
            + f"\n{HATCH}"
        )
