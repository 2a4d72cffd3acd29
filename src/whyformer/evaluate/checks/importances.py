"""What attention is compared with: gradients, leave-one-out, and how much passes through it at all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.impose import Impose
from whyformer.capture.paths import module_names
from whyformer.errors import NotOffered
from whyformer.evaluate.checks.divergence import Array, probabilities, tvd
from whyformer.evaluate.checks.rows import LayerRows
from whyformer.methods.value_norms import mixing_ratio
from whyformer.run import Run
from whyformer.subjects.image import ImageSubject


def gradient_x_input(run: Run) -> Array:
    """(U,) |Σ_d x_d · ∂s/∂x_d| with attention held constant, as the authors have it; NaN where there is no gradient."""
    constant = Impose(1, module_names(run.subject.model), run.study.batch_axes, rewrite=lambda _, __, a: a.detach())
    try:
        run.require_one_input()
        trace = run.traced(constant)
        whole = len(trace.leaves) == 1 and _has_units(run, trace.leaves[0])
        inputs = trace.leaves[0] if whole else trace.tokens()
        (grad,) = run.differentiated(trace, [inputs])
    except NotOffered:
        return np.full(int(run.keep_BN[0].sum()), np.nan)
    detail = (inputs.detach() * grad).float()
    scores = run.per_unit(detail) if whole else trace.batch_first(detail).sum(2)
    kept: Array = scores[0, run.keep_BN[0]].abs().cpu().numpy()
    return kept


def _has_units(run: Run, leaf: Tensor) -> bool:
    """Can the numbers of the input be shared out to units? Those of raw audio cannot."""
    return isinstance(run.subject, ImageSubject) or (leaf.ndim > 1 and leaf.shape[1] <= run.length)


def leave_one_out(run: Run) -> Array:
    """(U,) |Δp| when a unit is replaced; NaN where units cannot be taken away."""
    replacements = run.subject.replacements
    if not replacements:
        return np.full(len(run.units[0]), np.nan)
    before = probabilities(run.logits)
    variants = run.subject.without_unit(run.batch, 0, run.units[0], replacements[0])
    parts = [range(i, min(i + run.batch_size, variants.size)) for i in range(0, variants.size, run.batch_size)]
    after = torch.cat([probabilities(run.forward(variants.select(p), [0] * len(p))) for p in parts])
    changes: Array = tvd(after, before).cpu().numpy()
    return changes


def mixing(run: Run, place: LayerRows) -> float:
    """Kobayashi et al. 2021's mixing ratio of the rows in this layer; NaN where blocks cannot be taken apart."""
    try:
        ratio = mixing_ratio(run, level="attn_res_ln")[0, place.layer]
    except NotOffered:
        return float("nan")
    first = run.record().sites[place.layer].first_query
    rows = torch.tensor(place.rows, device=ratio.device) + first
    return float((ratio[rows] * place.read_R.to(ratio)).sum())
