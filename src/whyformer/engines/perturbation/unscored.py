"""What of the explained value no score stands for: inputs that are no units, and units that matter only together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.variants import default_replacement, grouped_variants
from whyformer.errors import NotOffered, WhyformerError, listed
from whyformer.inputs.units import Column
from whyformer.results.types import ROUNDING
from whyformer.run import Run

UNSCORED = (
    "{share:.0%} of the value depends on {names}, which {are} not scored: the value changes by {change} when {they} "
    "masked as a whole{units}."
)
UNKNOWN = "the model also reads {names}, which {are} not scored; how much of the value depends on {them} is not known."
LEAST = 0.005  # of the value; less is not worth a warning
MOVED = 100  # roundings of the value, by which it moves where anything matters
TOGETHER = (
    "{method} gives 0 to every unit of input {row}, although the value changes by {change:.3g} when all of them are "
    "masked: each is repeated by others, so that none matters alone."
)


def remarks_about_unscored(run: Run) -> list[list[str]]:
    """Return, per input, which share of the explained value depends on inputs that are no units; measured once."""
    if run.unscored is None:
        beside = {} if run.modality.opaque else run.modality.beside(run.batch, run.input_length or 0)
        run.unscored = [
            _remarks(run, row, beside) if beside and row in run.explained else [] for row in range(run.batch.size)
        ]
    return run.unscored


def _remarks(run: Run, row: int, beside: Mapping[str, Column]) -> list[str]:
    many = len(beside) > 1
    words = {"names": listed(list(beside), "and"), "are": "are" if many else "is", "them": "them" if many else "it"}
    words["they"] = "they are" if many else "it is"
    change = _change(run, row, lambda: _without(run, row, beside))
    if change is None:
        return [UNKNOWN.format(**words)]
    units = _change_without_units(run, row)
    share = abs(change) / max(abs(change) + abs(units or 0.0), 1e-30)
    if abs(change) <= _rounding(run, row) or share < LEAST:
        return []
    said = "" if units is None else f" (all units: {-units:+.3g})"
    return [UNSCORED.format(share=share, change=f"{-change:+.3g}", units=said, **words)]


def _without(run: Run, row: int, beside: Mapping[str, Column]) -> float:
    """Return the explained value without these numbers: zeros, or others where zeros stand already."""
    one = run.batch.select([row])
    changed = {name: tensor[0].clone() for name, tensor in one.tensors.items()}
    for name, where in beside.values():
        values = changed[name][where]
        changed[name][where] = torch.zeros_like(values) if bool(values.any()) else torch.ones_like(values)
    named = {name: changed[name][None] for name, _ in beside.values()}
    return float(run.score(one.with_tensors(**named), row)[0])


def _change_without_units(run: Run, row: int) -> float | None:
    """Return by how much the value falls when all units are masked; None where they cannot be."""

    def masked() -> float:
        free = np.array(run.removable(row)) & ~np.array(run.units[row].special, dtype=bool)
        players = [np.flatnonzero(free).tolist()]
        variants = grouped_variants(run, row, players, default_replacement(run.modality))
        drawn = [run.score(variants.batch(np.array([[False]]), draw), row).numpy() for draw in range(variants.draws)]
        return float(variants.mean(drawn)[0])

    return _change(run, row, masked)


def _change(run: Run, row: int, masked: Callable[[], float]) -> float | None:
    """Return the explained value minus the one that ``masked`` computes; None where it cannot be. Passes are set-up."""
    value, before = float(run.value_B[row]), run.forwards_B.copy()
    try:
        return value - masked()
    except (WhyformerError, RuntimeError, IndexError, ValueError):  # not every number is an input of the model
        return None
    finally:
        run.setup_forwards += round(float((run.forwards_B - before).sum()))
        run.forwards_B[:] = before


def _rounding(run: Run, row: int) -> float:
    value = abs(float(run.value_B[row]))
    return ROUNDING * (value if run.scalar == "probability" else max(value, 1.0))


def require_moved(run: Run, method: str, scores_BN: Tensor) -> None:
    """Raise if a method that masks units gives all of them 0, although masking all of them changes the value."""
    keep_BN = run.keep_BN
    largest = torch.where(keep_BN, scores_BN.to(keep_BN.device), 0).abs().amax(1).tolist()
    for row, size in enumerate(largest):
        least = _rounding(run, row)
        if size > least or run.modality.opaque:
            continue
        change = _change_without_units(run, row)
        if change is not None and abs(change) > MOVED * least:
            raise NotOffered(TOGETHER.format(method=method, row=run.numbers[row], change=change))
