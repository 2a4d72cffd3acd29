"""From what a method found for a batch to one Explanation per input."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import NotOffered, NotOverUnits
from whyformer.registry import Method
from whyformer.run import Attribution, Run
from whyformer.streams import cropped
from whyformer.subjects.families import ENCODER_STREAMS
from whyformer.types import Cost, Explanation, Target
from whyformer.version import __version__


def explanation(run: Run, m: Method, options: dict[str, Any], found: Attribution, row: int, cost: Cost) -> Explanation:
    keep = run.keep_BN[row]
    scores = found.scores_BN[row, keep].detach().float().cpu().numpy()
    if not np.isfinite(scores).all():
        raise NotOffered(f"{m.name} gave NaN or infinity: run the model in float32, or use another method.")
    if len(run.units[row]) != len(scores):
        raise NotOverUnits(
            f"{m.name} scored {len(scores)} positions, and input {row} has {len(run.units[row])} units: which is which "
            "is not known. Give inputs without padding, one by one."
        )
    target = run.targets[row]
    prediction = int(run.logits[row].argmax())
    warnings = list(run.batch.warnings[row]) if run.batch.warnings else []
    warnings += found.warnings[row] if found.warnings else []
    warnings += [*run.study.notes, *run.subject.notes(run.batch, run.length), *_doubts(run, m, scores)]
    warnings += _left_out(run, row)
    return Explanation(
        scores=scores,
        units=run.units[row],
        target=_with_label(run, target),
        scalar=run.scalar,
        value=float(run.value_B[row]),
        prediction=Target(prediction, run.head.name(prediction), position=target.position),
        method=m.name,
        options=options,
        changed=tuple(k for k, v in options.items() if repr(v) != repr(m.defaults().get(k))),
        seed=run.seed,
        versions={
            "whyformer": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        base=None if found.base_B is None else float(found.base_B[row]),
        matrix=_matrix(run, found.matrix_BQK, row, keep),
        layers=_cropped(found.layers_BLQK, row, keep),
        detail=None if found.detail is None else found.detail[row],
        cost=cost,
        checks={name: float(values[row]) for name, values in found.checks.items()},
        warnings=tuple(warnings),
        readout=_readout(run),
        signed=m.signed if found.signed is None else found.signed,
        model=type(run.subject.model).__name__,
    )


def _with_label(run: Run, target: Target) -> Target:
    versus = "" if target.versus is None else target.versus_label or run.head.name(target.versus)
    return replace(target, label=target.label or run.head.name(target.index), versus_label=versus)


def with_pairs(run: Run, found: Attribution) -> Attribution:
    """Two compared inputs: what each pair of their units adds to the similarity, as one more map."""
    if not isinstance(found.matrix_BQK, dict):
        return found
    between = run.pairs()
    return found if between is None else replace(found, matrix_BQK=found.matrix_BQK | {("a", "b"): between})


def _readout(run: Run) -> str:
    if run.several:
        rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in run.study.readouts.items()}
        return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
    return str(run.study.readout) if run.study.readout is not None else ""


def _matrix(
    run: Run, maps: Tensor | dict[tuple[str, str], Tensor] | None, row: int, keep: Tensor
) -> np.ndarray[Any, Any] | dict[tuple[str, str], np.ndarray[Any, Any]] | None:
    if isinstance(maps, dict):
        return cropped(maps, row, keep, run.stream_sizes)
    return _cropped(maps, row, keep)


def _cropped(maps: Tensor | None, row: int, keep: Tensor) -> np.ndarray[Any, Any] | None:
    """One input's map without padding: columns, and rows where there is one per position."""
    if maps is None:
        return None
    own = maps[row][..., keep]
    if own.shape[-2] == len(keep):
        own = own[..., keep, :]
    return own.detach().float().cpu().numpy()


def _left_out(run: Run, row: int) -> list[str]:
    """A stream of the input is among the units, or it is named: no result is of a part without saying so."""
    shown = set(run.units[row].stream)
    if not shown:
        return []  # every position is masked
    given = dict.fromkeys(stream for _, stream in run.subject.inputs(run.batch))
    missing = [s for s in given if s not in shown and ENCODER_STREAMS.get(s, s) not in shown]
    return [
        f"the {stream} has no scores here: which of the model's positions are its own is not known, it was left alone."
        for stream in missing
    ]


def _doubts(run: Run, m: Method, scores: np.ndarray[Any, Any]) -> list[str]:
    doubts = []
    if len(scores) > 1 and np.ptp(scores) == 0:
        doubts.append("all scores are equal: this explanation tells no unit from another.")
    return doubts
