"""Gradient importance: what the score would lose, to first order, if a head were faded out.

A mask ξ_h multiplies the result of head h, o_h = A_h V_h. At ξ = 1,

    ∂s/∂ξ_h = Σ_q o_hq · ∂s/∂o_hq = Σ_q Σ_k A_hqk (V_hk · ∂s/∂o_hq) = Σ_qk A_hqk · ∂s/∂A_hqk,

so the attention maps and their gradients hold it already: no mask is needed, and no pass beyond the recorded one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.capture import record, require_sites
from whyformer.capture.paths import module_names
from whyformer.capture.roles import Recorder
from whyformer.heads.score import score_of
from whyformer.run import Run
from whyformer.types import Record, Site


def recorded(run: Run, labels: list[Any] | None = None, role: type[Recorder] = Recorder) -> Record:
    """Maps and gradients of the score, of models with one stream of tokens or several: a head is a head."""
    recorder = role(run.batch.size, module_names(run.subject.model), run.study.batch_axes)
    found = record(lambda: run.head.logits(run.batch), recorder, lambda logits: score_of(run, logits, None, labels))
    everyone = list(range(run.batch.size))
    np.add.at(run.forwards_B, everyone, 1)
    np.add.at(run.backwards_B, everyone, 1)
    require_sites(found)
    return found


def row_products(site: Site) -> Tensor:
    """(B, H, W·Q) Σ_k A ∘ ∂s/∂A: what each query row of each head adds to ∂s/∂ξ; W windows stay with their input."""
    assert site.attention_grad_BHQK is not None
    rows = (site.attention_BHQK.float() * site.attention_grad_BHQK.float()).sum(-1)
    windows, heads, queries = site.windows, *rows.shape[1:]
    return rows.view(-1, windows, heads, queries).transpose(1, 2).reshape(-1, heads, windows * queries)


def table(layers: list[Tensor]) -> Tensor:
    """(B, L, H) from one (B, H) per layer; NaN where a layer has fewer heads than the widest."""
    widest = max(layer.shape[1] for layer in layers)
    pad = [torch.nn.functional.pad(layer, (0, widest - layer.shape[1]), value=torch.nan) for layer in layers]
    return torch.stack(pad, 1)


def mask_gradient(found: Record) -> Tensor:
    """(B, L, H) ∂s/∂ξ, signed: positive where more of the head would raise the score."""
    return table([row_products(site).sum(-1) for site in found.sites])


def token_sums(found: Record) -> Tensor:
    """(B, L, H) Σ_q |o_q · ∂s/∂o_q|: the absolute value taken per token, as in Michel's code."""
    return table([row_products(site).abs().sum(-1) for site in found.sites])


def token_counts(run: Run, layers: int) -> Tensor:
    """(B, L) tokens that the sums run over: all real ones, and in the last layer those that feed the head.

    NOTE[DIFF] Michel's code divides the last layer by the number of examples, since only [CLS] has a gradient there;
    for other readouts (mean pooling) that becomes the number of rows that are read.
    """
    counts = run.keep_BN.sum(1)[:, None].repeat(1, layers).float()
    counts[:, -1] = (run.readout_BN > 0).sum(1).float()
    return counts
