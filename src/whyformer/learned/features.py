"""Features of one pass, per unit: what every attention head does with it, and its value vectors in three layers.

They are read from the record of any model that the interceptor reads, in the order of its attention calls. The
explained class enters through the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.players import held_units
from whyformer.errors import NotOffered, NotOverUnits
from whyformer.inputs.base import Modality
from whyformer.results.types import Site
from whyformer.run import Run
from whyformer.shapes import Array

KINDS = (
    "value × gradient",  # column sum of A∘∂A
    "its positive part",  # column sum of max(0, A∘∂A)
    "output row, attention × gradient",
    "output row, attention",
    "output row, gradient",
)


@dataclass(frozen=True)
class UnitFeatures:
    """Of one input."""

    heads_UF: Tensor  # float32: per attention call, kind and head
    states_US: Tensor  # float16
    members: tuple[tuple[int, ...], ...]  # tokens of each unit: one, or those of a sentence
    parts: Array  # (P,) the units that can be masked


def refuse(modality: Modality) -> None:
    """Raise for kinds of models whose record has no such features, before any pass."""
    reason = ""
    if modality.opaque:
        reason = "the model can only be called from outside (a function, a server), and features are read inside it"
    elif modality.multi_input or modality.compares:
        reason = "the model has several streams of input, and features are those of one"
    elif modality.objects:
        reason = "a detector has one explanation per object, and features are those of one output"
    elif modality.mixes_rows:
        reason = "rows of this table attend to each other, and features are those of one row"
    if reason:
        raise NotOffered(f"explanations cannot be learned here: {reason}.")


def head_counts(run: Run) -> tuple[int, ...]:
    """The number of heads of each attention call."""
    return tuple(site.heads for site in run.record(grad=True, values=True).sites)


def features_of(run: Run, device: torch.device | None = None, hold: int | None = None) -> list[UnitFeatures]:
    """Per input of a run, on its device or on another. hold: the unit that is never masked."""
    refuse(run.modality)
    if run.multi_stream or run.windowed:
        kind = "several streams of tokens" if run.multi_stream else "attention inside windows"
        raise NotOffered(f"explanations cannot be learned here: the model has {kind}, and features are per token.")
    sites = run.record(grad=True, values=True).sites
    keep_BN, readout_BN = run.keep_BN.float(), run.readout_BN.float()
    heads_BNF = torch.cat([_of_heads(site, keep_BN, readout_BN) for site in sites], 1).transpose(1, 2)
    states_BNS = _states(sites, heads_BNF).half()
    if not bool(heads_BNF.isfinite().all() & states_BNS.isfinite().all()):
        raise NotOffered("attention or its gradient holds NaN or infinity: run the model in float32.")
    heads_BNF, states_BNS = heads_BNF.to(device), states_BNS.to(device)  # in one copy
    kept, held = run.keep_BN.cpu(), held_units(run, hold)
    features = []
    for row in range(run.batch.size):
        there = torch.nonzero(kept[row])[:, 0].to(heads_BNF.device)
        heads_UF, states_US = heads_BNF[row, there], states_BNS[row, there]
        members: list[tuple[int, ...]] = [(i,) for i in range(len(heads_UF))]
        units = run.units[row]
        removable = np.array(run.removable(row), dtype=bool) & ~held[row]
        if run.segments:
            groups, units = run.segments[row]
            members = [tuple(group) for group in groups]
            heads_UF = torch.stack([heads_UF[list(group)].sum(0) for group in members])
            states_US = torch.stack([states_US[list(group)].float().mean(0).half() for group in members])
            removable = np.array([removable[list(group)].any() for group in members], dtype=bool)
        parts = np.flatnonzero(removable & ~np.array(units.special, dtype=bool))
        features.append(UnitFeatures(heads_UF, states_US, tuple(members), parts))
    return features


def _of_heads(site: Site, keep_BN: Tensor, readout_BN: Tensor) -> Tensor:
    """(B, 5H, N) in the order of KINDS."""
    attention_BHQK = site.attention_BHQK.detach().float()
    gradient = site.attention_grad_BHQK  # None: the output does not depend on this call
    gradient_BHQK = torch.zeros_like(attention_BHQK) if gradient is None else gradient.detach().float()
    if attention_BHQK.shape[-1] != keep_BN.shape[1] or attention_BHQK.shape[0] != len(keep_BN):
        raise NotOverUnits(f"attention of {site.path} does not run over the tokens: explanations cannot be learned.")
    product_BHQK = attention_BHQK * gradient_BHQK
    rows = slice(site.first_query, site.first_query + attention_BHQK.shape[2])
    real_B1Q1, read_B1Q1 = keep_BN[:, None, rows, None], readout_BN[:, None, rows, None]
    parts = [product_BHQK * real_B1Q1, product_BHQK.clamp(min=0) * real_B1Q1]
    parts += [product_BHQK * read_B1Q1, attention_BHQK * read_B1Q1, gradient_BHQK * read_B1Q1]
    return torch.cat([part.sum(2) for part in parts], 1)


def _states(sites: tuple[Site, ...], like_BNF: Tensor) -> Tensor:
    """(B, N, S) value vectors of the first, middle and last call; of width 0 where a model's values were not seen."""
    chosen = [sites[i].value_BHKD for i in sorted({0, len(sites) // 2, len(sites) - 1})]
    states = []
    for value_BHKD in chosen:
        if value_BHKD is None or value_BHKD.shape[2] != like_BNF.shape[1]:
            return like_BNF[:, :, :0]
        flat = value_BHKD.detach().float().transpose(1, 2).flatten(2)
        states.append(flat.expand(len(like_BNF), -1, -1))
    return torch.cat(states, 2).clamp(-6e4, 6e4)
