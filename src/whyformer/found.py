"""From what a method found for a batch to one Explanation per input."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import NotOffered, NotOverUnits
from whyformer.inputs.families import ENCODER_STREAMS
from whyformer.inputs.text import TextInput
from whyformer.registry import Method
from whyformer.run import Attribution, Run
from whyformer.study.streams import cropped
from whyformer.targets import PROBABILITIES
from whyformer.types import Cost, Explanation, Target
from whyformer.version import __version__

Array = np.ndarray[Any, Any]


def explanations(
    run: Run, m: Method, options: dict[str, Any], found: Attribution, costs: list[Cost]
) -> list[Explanation]:
    """One per input. What is on a device is fetched once for all of them: each question would make it stop."""
    keep_BN = run.keep_BN.cpu().numpy()
    scores_BN = _fetched(found.scores_BN)
    matrix, layers = found.matrix_BQK, None if found.layers_BLQK is None else _fetched(found.layers_BLQK)
    maps = {k: _fetched(v) for k, v in matrix.items()} if isinstance(matrix, dict) else None
    whole = _fetched(matrix) if isinstance(matrix, Tensor) else None
    predictions, values = run.logits.argmax(1).tolist(), run.value_B.tolist()
    base = None if found.base_B is None else found.base_B.tolist()
    checks = {name: numbers.tolist() for name, numbers in found.checks.items()}
    notes = [*run.study.notes, *run.modality.notes(run.batch, run.length)]
    notes += [PROBABILITIES] if run.gives_probabilities else []
    options = options | found.used
    same: dict[str, Any] = {
        "scalar": run.scalar,
        "method": m.name,
        "options": options,
        "changed": tuple(k for k, v in options.items() if repr(v) != repr(m.defaults().get(k))),
        "seed": run.seed,
        "versions": {
            "whyformer": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "signed": m.signed if found.signed is None else found.signed,
        "model": type(run.modality.model).__name__,
    }
    result = []
    for row, (units, keep_N) in enumerate(zip(run.units, keep_BN, strict=True)):
        scores = scores_BN[row, keep_N]
        _require_scores(m, scores, len(units), row)
        target = run.targets[row]
        warnings = list(run.batch.warnings[row]) if run.batch.warnings else []
        warnings += found.warnings[row] if found.warnings else []
        result.append(
            Explanation(
                scores=scores,
                units=units,
                target=_with_label(run, target),
                value=values[row],
                prediction=Target(predictions[row], run.output.name(predictions[row]), position=target.position),
                base=None if base is None else base[row],
                matrix=_cropped(whole, row, keep_N) if maps is None else cropped(maps, row, keep_N, run.stream_sizes),
                layers=_cropped(layers, row, keep_N),
                detail=None if found.detail is None else found.detail[row],
                cost=costs[row],
                readout=_readout(run, row, keep_N),
                checks={name: numbers[row] for name, numbers in checks.items()},
                warnings=(*warnings, *notes, *_doubts(scores), *_left_out(run, row)),
                **same,
            )
        )
    return result


def _fetched(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


def _require_scores(m: Method, scores: Array, units: int, row: int) -> None:
    if not np.isfinite(scores).all():
        raise NotOffered(f"{m.name} gave NaN or infinity: run the model in float32, or use another method.")
    if units != len(scores):
        raise NotOverUnits(
            f"{m.name} scored {len(scores)} positions, and input {row} has {units} units: which is which is not known. "
            "Give inputs without padding, one by one."
        )


def _with_label(run: Run, target: Target) -> Target:
    versus = "" if target.versus is None else target.versus_label or run.output.name(target.versus)
    return replace(target, label=target.label or run.output.name(target.index), versus_label=versus)


def with_pairs(run: Run, found: Attribution) -> Attribution:
    """Two compared inputs: what each pair of their units adds to the similarity, as one more map."""
    if not isinstance(found.matrix_BQK, dict):
        return found
    between = run.pairs()
    return found if between is None else replace(found, matrix_BQK=found.matrix_BQK | {("a", "b"): between})


def _readout(run: Run, row: int, keep_N: Array) -> str:
    readout = run.study.readout
    if run.multi_stream:
        rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in run.study.readouts.items()}
        return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
    if readout is not None and readout.kind == "rows" and isinstance(run.modality, TextInput):
        found = np.flatnonzero(run.readout_BN[row].cpu().numpy()[keep_N])  # those of the study were of another text
        return str(replace(readout, rows=tuple(int(i) for i in found)))
    return "" if readout is None else str(readout)


def _cropped(maps: Array | None, row: int, keep_N: Array) -> Array | None:
    """One input's map without padding: columns, and rows where there is one per position."""
    if maps is None:
        return None
    own: Array = maps[row][..., keep_N]
    return own[..., keep_N, :] if own.shape[-2] == len(keep_N) else own


def _left_out(run: Run, row: int) -> list[str]:
    """A stream of the input is among the units, or it is named: no result is of a part without saying so."""
    shown = set(run.units[row].stream)
    if not shown:
        return []  # every position is masked
    main = run.batch.tensors.get(run.modality.main)  # the units are its positions, whatever they are called
    given = dict.fromkeys(stream for tensor, stream in run.modality.inputs(run.batch) if tensor is not main)
    missing = [s for s in given if s not in shown and ENCODER_STREAMS.get(s, s) not in shown]
    return [
        f"the {stream} has no scores here: which of the model's positions are its own is not known, it was left alone."
        for stream in missing
    ]


def _doubts(scores: Array) -> list[str]:
    if len(scores) > 1 and np.ptp(scores) == 0:
        return ["all scores are equal: this explanation tells no unit from another."]
    return []
