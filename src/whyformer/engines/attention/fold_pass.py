"""One pass of a run whose attentions are handed on one by one, last first, and none of them is stored."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from whyformer.capture.fold import Fold, FoldedSite, HeadFusion, NotFolded, Scaled
from whyformer.capture.plan import OffPlan
from whyformer.capture.record import folded, require_sites
from whyformer.errors import NotOffered
from whyformer.loan.recomputation import recomputable, recomputing
from whyformer.output import Output
from whyformer.run import Run
from whyformer.study import require_readable
from whyformer.study.slopes import require_scaled_reached, require_scaled_slopes
from whyformer.types import Record


class NotFoldable(NotOffered):
    """A model that shows only when it is run that it cannot be folded."""


@runtime_checkable
class Take(Protocol):
    """What a method does with the attentions of a folded pass; it may have to begin anew."""

    def begin(self) -> None: ...

    def __call__(self, site: FoldedSite) -> None: ...


def fold(run: Run, fusion: HeadFusion, take: Take, multi_stream: bool = False) -> None:
    """One pass whose attentions go to ``take`` with their heads fused.

    multi_stream: ``take`` knows the rules for several streams.
    """
    study, grad = run.study, fusion.gradient
    if not study.plain:
        require_readable(study, multi_stream)
    rows, batch = (run.rows_run, run.together) if grad else (run.batch.size, run.batch)
    run.asked["logits"] = (0, 0)
    _ = run.readout_BN  # may take passes of its own
    plans, of_kind, logits = study.plans, (grad, rows > 1), None
    while logits is None:
        take.begin()
        role = Fold(rows, run.module_names, study.batch_axes, fusion=fusion)
        role.rows_attend = run.batch.reference_rows > 0
        plan = plans.plans.get(of_kind) or plans.at(of_kind, study.torch_own)
        if plan is not None and plan.paths:
            role.plan = plan
        if study.plain and not run.unpadded:
            role.keep_BN = run.keep_BN if rows == run.batch.size else run.keep_BN.any(0, keepdim=True)
        role.one_stream = study.plain
        role.measures = grad and ("slopes",) not in study.undisturbed
        run.forwards_B += rows / run.batch.size
        run.backwards_B += int(grad)
        try:
            layers = recomputable(run.modality.model) if grad and run.recomputes else []
            with recomputing(layers):
                forward, at = partial(run.output.logits, batch), partial(_hand_on, run, role, take)
                logits = folded(forward, role, partial(run.scalars, ask=False), at, rows < run.batch.size)
        except NotFolded as error:
            raise NotFoldable(
                "memory='fold': attention of this model comes in a shape that can be had as a whole map only, or "
                "it writes over what it gave to an attention. Leave memory out, or say memory='full'."
            ) from error
        except OffPlan:
            plans.missed(of_kind)
    run.said(logits)
    if not role.sites or role.unclaimed:
        require_sites(Record(tuple(role.outlines), logits, role.unclaimed))
    run.require_undisturbed(logits, graph=grad)
    if grad:
        _require_slopes(run, role, logits)
        if role.spoke_BQ is not None and run.reads_elsewhere(role.sites[-1].first_query, role.spoke_BQ):
            fold(run, fusion, take, multi_stream)


def _hand_on(run: Run, role: Fold, take: Take, site: FoldedSite) -> None:
    shares = torch.stack(role.lost_B).mean(0) if role.lost_B else torch.zeros(len(run.keep_BN))
    run.lost_to_padding(shares.to(run.keep_BN.device).expand(len(run.keep_BN)))
    take(site)


def _require_slopes(run: Run, role: Fold, logits: Tensor) -> None:
    """As ``Run.require_slopes``, along a change of each attention's size, which takes no map."""
    lost = frozenset(range(len(role.sites))).difference(role.reached)
    checks = {("slopes",): role.measures, ("lost", lost): bool(lost)}
    study = run.study
    due = [check for check, needed in checks.items() if needed and check not in study.undisturbed]
    if due:
        output = Output(run.modality, run.batch, run.scalar)

        def changed(factors: dict[int, Any]) -> Tensor:
            scaled = Scaled(run.rows_run, run.module_names, study.batch_axes, factors=factors)
            scaled.rows_attend = run.batch.reference_rows > 0
            with scaled:
                return run.scalars(output.logits(run.together))

        with torch.no_grad():
            score_B = run.scalars(logits).detach()
        for check in reversed(due):
            if check[0] == "lost":
                paths = [role.sites[i].path for i in sorted(lost)]
                run.setup_forwards += require_scaled_reached(paths, score_B, changed, lost)
            else:
                passes, doubt = require_scaled_slopes(role.reached, logits, score_B, changed)
                run.setup_forwards += passes
                study.doubts.extend([doubt] * bool(doubt))
            study.undisturbed.add(check)
    run.notes.update(study.doubts)
