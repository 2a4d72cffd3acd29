"""What attention is compared with: gradients, leave-one-out, and how much passes through it at all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.intercept import module_names
from whyformer.capture.roles import Impose
from whyformer.checks.attention_rows import LayerRows
from whyformer.checks.distances import Array, tvd
from whyformer.checks.watched import said_of
from whyformer.engines.perturbation.variants import Filled, default_replacement
from whyformer.errors import NotOffered
from whyformer.inputs.image import ImageInput, patch_index
from whyformer.methods.value_norms import mixing_ratio
from whyformer.run import Run


def gradient_x_input(run: Run, patches_PN: Tensor | None = None) -> Array:
    """(U,) |Σ_d x_d · ∂s/∂x_d| with attention held constant, as the authors have it; NaN where there is no gradient.

    patches_PN: of tokens that were merged of patches, instead of units.
    """
    constant = Impose(1, module_names(run.modality.model), run.study.batch_axes, rewrite=lambda _, __, a: a.detach())
    try:
        run.require_one_input()
        trace = run.traced(constant)
        whole = len(trace.leaves) == 1 and _has_units(run, trace.leaves[0])
        inputs = trace.leaves[0] if whole else trace.tokens()
        (grad,) = run.differentiated(trace, [inputs])
        run.require_input_slopes()
    except NotOffered:
        return np.full(int(run.keep_BN[0].sum()) if patches_PN is None else len(patches_PN), np.nan)
    detail = (inputs.detach() * grad).float()
    scores = run.per_unit(detail) if whole else trace.batch_first(detail).sum(2)
    if patches_PN is not None:
        scores = scores @ (patches_PN > 0).to(scores).T
    sizes_U: Array = (scores[0] if patches_PN is not None else scores[0, run.keep_BN[0]]).abs().cpu().numpy()
    return sizes_U


def _has_units(run: Run, leaf: Tensor) -> bool:
    """Can the numbers of the input be shared out to units? Those of raw audio cannot."""
    return run.modality.pixels or (leaf.ndim > 1 and leaf.shape[1] <= run.length)


def leave_one_out(run: Run, patches_PN: Tensor | None = None) -> Array:
    """(U,) |Δp| when a unit is replaced; NaN where units cannot be taken away.

    patches_PN: of tokens that were merged of patches, instead of units.
    """
    replacements, count = run.modality.replacements, len(run.units[0] if patches_PN is None else patches_PN)
    span = run.input_span(0) if patches_PN is None else slice(0, count)
    try:
        if not replacements:
            return np.full(count, np.nan)
        if patches_PN is None:
            every = run.modality.without_unit(run.batch, 0, run.units[0], default_replacement(run.modality))
        else:
            tokens = _without_tokens(run, patches_PN, replacements[0])
    except NotOffered:
        return np.full(count, np.nan)
    said, after = said_of(run), []
    for start in range(0, span.stop - span.start, run.batch_size):
        rows = range(start, min(start + run.batch_size, span.stop - span.start))
        variants = every.select(rows) if patches_PN is None else tokens.batch(~np.eye(count, dtype=bool)[rows], 0)
        after.append(said(run.forward(variants, [0] * len(rows))))
    changes: Array = np.zeros(count, dtype=np.float32)  # what the model puts around a text stays
    changes[span] = tvd(torch.cat(after), said(run.logits)).cpu().numpy()
    return changes


def _without_tokens(run: Run, patches_PN: Tensor, replacement: str) -> Filled:
    """One image without some of the tokens that its patches were merged into."""
    assert isinstance(run.modality, ImageInput)
    name, units = run.modality.main, run.units[0]
    assert units.grid is not None
    pixels = run.batch.tensors[name]
    token_of_patch = patches_PN.argmax(0).to(pixels.device)
    owner = token_of_patch[patch_index(units.grid, *pixels.shape[-2:]).to(pixels.device)]
    filling = run.modality.background(pixels, replacement)
    return Filled(run.batch, {name: owner.expand(pixels.shape[1:])}, [{name: filling}])


def mixing(run: Run, place: LayerRows) -> float:
    """Kobayashi et al. 2021's mixing ratio of the rows in this layer; NaN where blocks cannot be taken apart."""
    if run.multi_stream or run.windowed:
        return float("nan")
    try:
        ratio = mixing_ratio(run, level="attn_res_ln")[0, place.layer]
    except NotOffered:
        return float("nan")
    first = run.record().sites[place.layer].first_query
    rows = torch.tensor(place.rows, device=ratio.device) + first
    return float((ratio[rows] * place.read_R.to(ratio)).sum())
