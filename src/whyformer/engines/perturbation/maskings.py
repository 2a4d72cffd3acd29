"""Methods of few passes: averaged over random maskings of their input, and as guides for methods that measure.

Averaged, what a unit gets counts where the unit is kept. A guide chooses which players are measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.players import absent_player, players_of
from whyformer.engines.perturbation.regression import KnownErrors
from whyformer.engines.perturbation.variants import Replaced, Variants
from whyformer.errors import AmbiguousLayout, MixedInputs, NonFinite, NotOffered, WhyformerError
from whyformer.inputs.batch import Batch
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.registry import MASKINGS, Method, Passes, get_method, learned_at_hand
from whyformer.run import ATTENDING, Attribution, Run
from whyformer.shapes import Array
from whyformer.study import study_of


def attributed(run: Run, m: Method, options: Mapping[str, Any]) -> Attribution:
    """Return what a method says of a batch; with ``maskings``, its mean over that many random maskings."""
    others = {name: value for name, value in options.items() if name != MASKINGS}
    count = options.get(MASKINGS)
    return m.run(run, **others) if count is None else _averaged(run, m, others, count)  # type: ignore[no-any-return]


def random_maskings(count: int, parts: int, seed: int) -> Array:
    """(M, P) what each masking keeps: shares spread evenly over (½, 1), each part masked equally often, ± 1."""
    generator = np.random.default_rng([seed, parts])
    stays, masked = np.ones((count, parts), dtype=bool), np.zeros(parts, dtype=int)
    for keeps, share in zip(stays, (np.arange(count) + 0.5) / (2 * count), strict=True):
        gone = np.lexsort((generator.random(parts), masked))[: round(share * parts)]
        keeps[gone], masked[gone] = False, masked[gone] + 1
    return stays


def _averaged(run: Run, m: Method, options: Mapping[str, Any], count: int) -> Attribution:
    """φ_i = mean, over the maskings that keep i, of the method's score of i in the masked input.

    All maskings of all inputs are one batch, or as many batches as the size asked for makes of them. ``errors_BN`` are
    the standard errors of these means.
    """
    if run.modality.read.mixes_rows or run.batch.reference_rows:
        raise NotOffered(f"{MASKINGS}={count}: rows of this table look at each other. Omit {MASKINGS}=.")
    replacement = _in_place(run)
    kept_RN, batch, remarks = _masked(run, count, replacement)
    owners = np.repeat(np.arange(run.batch.size), count)
    made: list[tuple[Attribution, Array]] = []
    size = 1 if run.study.by_content else run.batch_size
    for start in range(0, len(owners), size):
        made += _of_part(run, m, options, batch, owners, list(range(start, min(start + size, len(owners)))))
    kept_RN &= run.keep_BN.cpu().numpy()[owners]
    weights_BMN = torch.from_numpy(kept_RN).to(run.keep_BN.device).float().view(run.batch.size, count, -1)
    counts_BN = weights_BMN.sum(1)
    weights_BMN = weights_BMN / counts_BN.clamp(min=1)[:, None]

    def mean(name: str) -> Any:
        parts = [getattr(attribution, name) for attribution, _ in made]
        if any(part is None for part in parts):
            return None
        if isinstance(parts[0], dict):
            sizes = run.by_stream(weights_BMN.flatten(0, 1))
            return {pair: _mean([part[pair] for part in parts], sizes[pair[1]], count) for pair in parts[0]}
        return _mean(parts, weights_BMN.flatten(0, 1), count)

    scores_BMN = torch.cat([a.scores_BN.detach().float() for a, _ in made]).view(weights_BMN.shape)
    scores_BN = (scores_BMN * weights_BMN).sum(1)
    squares_BN = ((scores_BMN - scores_BN[:, None]).square() * weights_BMN).sum(1)
    first = made[0][0]
    warnings = [list(dict.fromkeys((*said, *w))) for said, w in zip(remarks, _said(made, owners), strict=True)]
    return Attribution(
        scores_BN,
        matrix_BQK=mean("matrix_BQK"),
        layers_BLQK=mean("layers_BLQK"),
        errors_BN=(squares_BN / (counts_BN - 1).clamp(min=1)).sqrt(),
        warnings=warnings,
        signed=first.signed,
        used=first.used,
    )


def _mean(maps: Sequence[Tensor], weights_RK: Tensor, count: int) -> Tensor:
    """(B, …, K) the mean of maps, each column over the maskings that keep its position."""
    maps_R = torch.cat([part.detach().float() for part in maps])
    weighted = maps_R * weights_RK.view(len(maps_R), *[1] * (maps_R.ndim - 2), -1).to(maps_R.device)
    return weighted.unflatten(0, (-1, count)).sum(1)


def _in_place(run: Run) -> str | int:
    """Return the replacement of masked units: that of shap, but never a deletion, which would move the others."""
    replacement = absent_player(run, None)
    if replacement != "delete":
        return replacement
    others = [name for name in run.modality.mask.replacements if name not in {"delete", "attention_mask"}]
    if not others:
        raise NotOffered(
            f"{MASKINGS}: something has to stand in place of a masked token, and this model names no mask, unk or pad "
            f"token. Omit {MASKINGS}=."
        )
    return others[0]


def _masked(run: Run, count: int, replacement: str | int) -> tuple[Array, Batch, list[list[str]]]:
    """(R, N) what each masked input keeps; all masked inputs as one batch; and remarks per input."""
    kept_RN = np.ones((run.batch.size * count, run.keep_BN.shape[1]), dtype=bool)
    changed: list[dict[str, Tensor]] = []
    absent, remarks = False, []
    _, about = Variants.used(run, replacement, True)
    for row, keep_N in enumerate(run.keep_BN.cpu().numpy()):
        held_U = np.zeros(len(run.units[row]), dtype=bool)
        members = players_of(run, row, None, True, 0, held_U).members
        kept_MP = random_maskings(count, len(members), run.seed)
        variants = Replaced(run, row, members, replacement, trim=False)
        for part, units in enumerate(members):
            places = np.flatnonzero(keep_N)[list(units)]
            kept_RN[row * count : (row + 1) * count, places] = kept_MP[:, [part]]
        as_it_is = {name: run.batch.tensors[name][[row] * count] for name in variants.part_of}
        changed.append(_drawn(variants, kept_MP, run.seed) if members else as_it_is)
        absent |= variants.absent
        remarks.append([*about, *variants.remarks])
    rows = np.repeat(np.arange(run.batch.size), count).tolist()
    tensors = {name: torch.cat([each[name] for each in changed]) for name in changed[0]}
    return kept_RN, replace(run.batch.select(rows).with_tensors(**tensors), absent=absent), remarks


def _drawn(variants: Replaced, kept_MP: Array, seed: int) -> dict[str, Tensor]:
    """Return the tensors of the masked inputs, each with one of the fillings where there are several."""
    batches = [variants.batch(kept_MP, draw).tensors for draw in range(variants.draws)]
    shares = None if variants.weights is None else variants.weights / variants.weights.sum()
    chosen = np.random.default_rng([seed, variants.draws]).choice(variants.draws, len(kept_MP), p=shares)
    names = variants.part_of
    return {name: torch.stack([batches[draw][name][row] for row, draw in enumerate(chosen)]) for name in names}


def _of_part(
    run: Run, m: Method, options: Mapping[str, Any], batch: Batch, owners: Array, rows: list[int]
) -> list[tuple[Attribution, Array]]:
    """Attributions of some masked inputs, in halves where a batch of them is refused; passes go to their owners."""
    part_batch = batch.select(rows) if run.attended is None else replace(batch.select(rows), by_input=False)
    study = (run.attended or run).study
    if study.by_content:
        study, _ = study_of(run.modality, part_batch)
    part = run.of(part_batch, study, [run.targets[owner] for owner in owners[rows]])
    part.folds = run.folds
    part = part if run.attended is None else part.by_input
    try:
        attribution = m.run(part, **options)
    except AmbiguousLayout:
        if len(rows) == 1:
            raise
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        return [each for half in halves for each in _of_part(run, m, options, batch, owners, half)]
    if attribution.scores_BN.shape[1] != run.keep_BN.shape[1]:
        raise NotOffered(f"{MASKINGS}: the model reads other units of a masked input. Omit {MASKINGS}=.")
    np.add.at(run.forwards_B, owners[rows], part.forwards_B)
    np.add.at(run.backwards_B, owners[rows], part.backwards_B)
    run.setup_forwards += part.setup_forwards
    run.notes |= part.notes
    return [(attribution, np.array(rows))]


def _said(made: Sequence[tuple[Attribution, Array]], owners: Array) -> list[list[str]]:
    """Return the warnings by input."""
    said: list[list[str]] = [[] for _ in range(owners[-1] + 1)]
    for attribution, rows in made:
        for row, warnings in zip(rows, attribution.warnings or [], strict=False):
            said[owners[row]] += warnings
    return said


AVERAGED = re.compile(rf"(.+)\({MASKINGS}=(\d+)\)")  # "attn_lrp(maskings=8)"


@dataclass(frozen=True)
class Guide:
    """Scores of a method of few passes for a batch."""

    name: str
    scores_BN: Tensor
    signed: bool
    passes_B: Array  # that were taken, those of methods before it that did not run included; a backward counts two
    errors: KnownErrors | None = None  # of a learned method


def guide_of(run: Run, wanted: str, usual: Sequence[str]) -> Guide | None:
    """Return the guide of this name; "auto" is the first that runs here, None if none does.

    First come methods that were learned for this model and certified as better than the ``usual`` ones.
    """
    if run.modality.read.mixes_rows:
        if wanted == "auto":
            return None
        raise NotOffered("rows of this table look at each other, and a guide explains one alone: leave it out.")
    before_B = run.forwards_B + 2 * run.backwards_B
    for name in (*learned_at_hand(), *usual) if wanted == "auto" else (wanted,):
        entry, options = _named(name)
        try:
            if entry.needs & {"attention_gradients", "input_gradients"}:
                refuse_without_gradients(run.modality.model, f"guide={name!r}")
            if run.attended is not None and entry.needs & ATTENDING:
                raise NotOffered(f"guide={name!r}: the model does not attend over the units of this input one by one.")
            made = attributed(run, entry, options)
        except WhyformerError as error:
            # A batch that a guide refuses as such is explained input by input, each with that guide. Where rows of
            # masked inputs change each other, so would those that are measured.
            alone = isinstance(error, AmbiguousLayout) and run.batch.size > 1
            if wanted != "auto" or alone or isinstance(error, MixedInputs):
                raise
            if isinstance(error, NonFinite):
                _ = run.value_B  # raises where that is no fault of the maskings
            continue
        passes_B = run.forwards_B + 2 * run.backwards_B - before_B
        signed = entry.signed if made.signed is None else made.signed
        errors = None if entry.errors is None else KnownErrors(*entry.errors)
        return Guide(name, made.scores_BN.detach().double().cpu(), signed, passes_B, errors)
    return None


def guide_cost(units: int, names: Sequence[str]) -> Passes:
    """Return the forwards and backwards of all of these guides."""
    costs = [entry.cost(units, **options) for entry, options in map(_named, names)]
    return sum(forwards for forwards, _ in costs), sum(backwards for _, backwards in costs)


def _named(name: str) -> tuple[Method, dict[str, Any]]:
    """Return a method and its options by name: "attn_lrp" or, averaged, "attn_lrp(maskings=8)"."""
    averaged = AVERAGED.fullmatch(name)
    entry = get_method(averaged[1] if averaged else name)
    return entry, entry.checked({MASKINGS: int(averaged[2])} if averaged else {})
