"""Guides: what methods of few passes say, for methods that measure only some of the players."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whyformer.engines.perturbation.maskings import attributed
from whyformer.engines.perturbation.regression import KnownErrors
from whyformer.errors import AmbiguousLayout, MixedInputs, NonFinite, NotOffered, WhyformerError
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.registry import MASKINGS, Method, Passes, get_method, learned_at_hand
from whyformer.run import ATTENDING, Run
from whyformer.shapes import Array

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
