"""From what a method says of a batch to one Explanation per input: predictions, units, warnings, unpadded maps."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import CaptureError, NotOffered, NotOverUnits
from whyformer.inputs.families import ENCODER_STREAMS
from whyformer.inputs.host import on_host
from whyformer.registry import Method, default_method
from whyformer.run import Attribution, Run
from whyformer.study.padding import HIDDEN
from whyformer.study.streams import cropped
from whyformer.targets import probabilities_note
from whyformer.types import Choice, Cost, Explanation, Target, Units
from whyformer.version import __version__

Array = np.ndarray[Any, Any]
FEW = 2**16  # logits: as many are ranked on the host sooner than a GPU is asked
AT_ONCE = 2**23  # numbers of a result that are put together to be fetched
NEXT = 4  # classes that are told after the predicted one


def explanations(
    run: Run, m: Method, options: dict[str, Any], attribution: Attribution, costs: list[Cost]
) -> list[Explanation]:
    """One per input. What is on a device is fetched once for all of them: each question would make it stop."""
    keep_BN = np.ones(run.keep_BN.shape, dtype=bool) if run.unpadded else on_host(run.keep_BN).numpy()
    matrix = attribution.matrix_BQK
    if isinstance(matrix, dict) and run.output.pairs is not None:  # two compared inputs: what each pair adds
        matrix = matrix | {("a", "b"): run.output.pairs}
    tensors: dict[Any, Tensor | None] = {"scores": attribution.scores_BN, "layers": attribution.layers_BLQK}
    tensors |= {"errors": attribution.errors_BN} | (matrix if isinstance(matrix, dict) else {"matrix": matrix})
    scalar, value_B = attribution.explained or (run.scalar, run.value_B)
    if value_B.dtype is torch.float32:
        tensors["values"] = value_B
    present = {k: t.detach().float() for k, t in tensors.items() if t is not None}
    near = _fetched(present) if value_B.is_cuda else present
    arrays = {k: t.cpu().numpy() for k, t in near.items()}
    values = arrays.pop("values").tolist() if "values" in arrays else value_B.tolist()
    scores_BN, errors_BN = arrays.pop("scores"), arrays.pop("errors", None)
    layers, whole = arrays.pop("layers", None), arrays.pop("matrix", None)
    maps = arrays if isinstance(matrix, dict) else None
    predictions = _predictions(run)
    output, answers = run.output, run.batch.predictions
    base = None if attribution.base_B is None else attribution.base_B.tolist()
    checks = {name: numbers.tolist() for name, numbers in attribution.checks.items()}
    notes = [*run.study.notes, *run.modality.notes(run.batch, run.length), *sorted(run.notes)]
    unpadded = run.unpadded and not (run.multi_stream or run.windowed)
    share_B: list[float] = [0.0] * run.batch.size if unpadded else run.padding_share_B.tolist()
    notes += [probabilities_note(bool(run.output.ends_in_sigmoid))] if run.gives_probabilities else []
    notes += run.output.remarks
    options = options | attribution.used
    # Which rows feed the head may differ from text to text; those of the study were of another.
    readout, chosen = run.study.readout, bool(run.batch.positions or run.batch.spans)
    each_reads = not run.multi_stream and readout is not None and (chosen or readout.kind == "rows")
    each_reads &= run.modality.lengths_vary
    same: dict[str, Any] = {
        "scalar": scalar,
        "method": m.name,
        "options": options,
        "changed": tuple(k for k, v in options.items() if repr(v) != repr(m.defaults.get(k))),
        "seed": run.seed,
        "versions": {
            "whyformer": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "signed": m.signed if attribution.signed is None else attribution.signed,
        "model": type(run.modality.model).__name__,
        "default_for": run.modality.kind if m.name == default_method(run.modality.kind) else None,
    }
    result = []
    for row, (units, keep_N) in enumerate(zip(run.units, keep_BN, strict=True)):
        scores = scores_BN[row, keep_N]
        if not np.isfinite(scores).all():
            raise NotOffered(f"{m.name} gave NaN or infinity: run the model in float32.")
        if len(units.labels) != len(scores):
            raise NotOverUnits(
                f"{m.name} scored {len(scores)} positions, and input {row} has {len(units)} units: which is which is "
                "not known. Give inputs without padding, one by one."
            )
        target, said = run.targets[row], predictions[row]
        if said.position != target.position:
            said = replace(said, position=target.position)
        warnings = list(run.batch.warnings[row]) if run.batch.warnings else []
        warnings += attribution.warnings[row] if attribution.warnings else []
        known = {name: numbers[row] for name, numbers in checks.items()}
        if output.causal:  # many language models park attention there
            known["first_token_share"] = float(np.abs(scores[0]) / max(np.abs(scores).sum(), 1e-30))
            if not run.modality.first_token:
                scores[0] = 0
        result.append(
            Explanation(
                scores=scores,
                units=units,
                target=target if target.label and target.versus is None else _with_label(run, target),
                value=values[row],
                prediction=answers[row] if answers else said,
                base=None if base is None else base[row],
                matrix=_cropped(whole, row, keep_N) if maps is None else cropped(maps, row, keep_N, run.stream_sizes),
                layers=_cropped(layers, row, keep_N),
                detail=None if attribution.detail is None else attribution.detail[row],
                errors=None if errors_BN is None else errors_BN[row, keep_N],
                interactions=None if attribution.interactions is None else attribution.interactions[row],
                cost=costs[row],
                picture=run.modality.picture(run.batch, row) if run.modality.pictured and run.batch.raw else None,
                readout=_readout(run, row, keep_N) if each_reads else run.study.rule,
                checks=known,
                warnings=(*warnings, *notes, *_doubts(run, row, scores, share_B)),
                **same,
            )
        )
    if run.modality.segments != "token":
        result = [by_segments(e, *segments) for e, segments in zip(result, run.segments, strict=True)]
    return result


def _fetched(tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
    """Those of one device that are not large, by one question: each would make it stop."""
    sizes = [t.numel() for t in tensors.values()]
    if len({t.device for t in tensors.values()}) > 1 or sum(sizes) > AT_ONCE:
        return tensors
    parts = torch.cat([t.flatten() for t in tensors.values()]).cpu().split(sizes)
    return {k: part.view(t.shape) for (k, t), part in zip(tensors.items(), parts, strict=True)}


def _predictions(run: Run) -> list[Target]:
    """What the model says about each input, and what comes next."""
    logits_BC, output = run.logits, run.output
    if 0 < run.logits_on_host.numel() < FEW:
        logits_BC = run.logits_on_host
    best_B = logits_BC.argmax(1).tolist()
    if run.batch.answers:  # of an answer as a whole nothing else is said
        return [Target(i, target.label) for i, target in zip(best_B, run.targets, strict=True)]
    if run.modality.objects and logits_BC.shape[1] > 1:
        return [_detected(run, logits_C) for logits_C in logits_BC]
    predictions = [Target(i, output.name(i) if output.speaks else output.labels.get(i, "")) for i in best_B]
    if not output.chooses or run.batch.predictions or logits_BC.shape[1] < 2:
        return predictions
    if output.independent:
        alone = logits_BC.sigmoid()
    else:  # softmax, step by step: torch's own wakes its threads for any two rows, which may take milliseconds
        powers_BC = (logits_BC - logits_BC.amax(1, keepdim=True)).exp()
        alone = powers_BC / powers_BC.sum(1, keepdim=True)
    likeliest = (logits_BC if run.gives_probabilities else alone).topk(min(1 + NEXT, logits_BC.shape[1]))
    ranked = zip(predictions, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return [
        Target(
            said.index,
            said.label,
            probability=shares[0],
            next=tuple(
                Choice(i, output.name(i) if output.speaks else output.labels.get(i, ""), p)
                for i, p in zip(indices, shares, strict=True)
                if i != said.index
            )[:NEXT],
        )
        for said, indices, shares in ranked
    ]


def _detected(run: Run, logits_C: Tensor) -> Target:
    """What a detector's query says. DETR has one class more, for no object; its successors ask of each by itself."""
    alone = len(logits_C) == getattr(run.modality.model.config, "num_labels", None)
    likely, indices = (logits_C.sigmoid() if alone else logits_C.softmax(0)).topk(min(1 + NEXT, len(logits_C)))
    nothing = None if alone else len(logits_C) - 1
    names = ["no object" if i == nothing else run.output.labels.get(i, "") for i in indices.tolist()]
    choices = [Choice(i, name, p) for i, name, p in zip(indices.tolist(), names, likely.tolist(), strict=True)]
    # "independent": one class rather than another is no question that a query can be asked.
    first = choices[0]
    return Target(first.index, first.label, independent=True, probability=first.probability, next=tuple(choices[1:]))


def by_segments(explanation: Explanation, groups: Sequence[Sequence[int]], units: Units) -> Explanation:
    """The explanation over stretches of the text: each has the sum of what stands in it."""
    scores = np.array([explanation.scores[list(group)].sum() for group in groups], dtype=np.float32)
    errors = explanation.errors  # of what joined as one they add up, and of others they are no larger than their sum
    if errors is not None:
        errors = np.array([errors[list(group)].sum() for group in groups], dtype=np.float32)
    outside = sorted(set(range(len(explanation.units))) - {i for group in groups for i in group})
    checks = explanation.checks
    if outside:
        checks = checks | {"outside_units": float(explanation.scores[outside].sum())}
    whole: dict[str, Any] = {"matrix": None, "layers": None, "detail": None}
    return explanation.replace(scores=scores, errors=errors, units=units, checks=checks, **whole)


def _with_label(run: Run, target: Target) -> Target:
    versus = "" if target.versus is None else target.versus_label or run.output.name(target.versus)
    return replace(target, label=target.label or run.output.name(target.index), versus_label=versus)


def _readout(run: Run, row: int, keep_N: Array) -> str:
    assert run.study.readout is not None
    try:
        weights_N = run.readout_BN[row].cpu().numpy()
    except CaptureError:  # the last attention says nothing about some input: what needed its row has refused already
        return ""
    rows = np.flatnonzero(weights_N[keep_N])
    return str(replace(run.study.readout, kind="rows", rows=tuple(int(i) for i in rows)))


def _cropped(maps: Array | None, row: int, keep_N: Array) -> Array | None:
    """One input's map without padding: columns, and rows where there is one per position."""
    if maps is None:
        return None
    if keep_N.all():
        return maps[row] if len(maps) == 1 else maps[row].copy()
    columns: Array = maps[row][..., keep_N]
    return columns[..., keep_N, :] if columns.shape[-2] == len(keep_N) else columns


def _doubts(run: Run, row: int, scores: Array, share_B: list[float]) -> list[str]:
    """A stream of the input is among the units, or it is named: no result is of a part without saying so."""
    doubts = []
    if len(scores) > 1 and scores.max() == scores.min():
        doubts.append("all scores are equal: this explanation tells no unit from another.")
    if share_B[row] > HIDDEN:
        doubts.append(
            f"{share_B[row]:.0%} of this input's attention goes to padding, which the model does not hide from it: "
            "that share belongs to no unit. Give inputs one by one, without padding, to be rid of it."
        )
    shown = set(run.units[row].stream)
    if not shown:
        return doubts  # every position is masked
    if all(name == run.modality.main or "mask" in name for name in run.batch.tensors):
        return doubts  # there is nothing else
    main = run.batch.tensors.get(run.modality.main)  # the units are its positions, whatever they are called
    streams = dict.fromkeys(stream for tensor, stream in run.modality.inputs(run.batch) if tensor is not main)
    missing = [s for s in streams if s not in shown and ENCODER_STREAMS.get(s, s) not in shown]
    return doubts + [
        f"the {stream} has no scores here: which of the model's positions are its own is not known, it was left alone."
        for stream in missing
    ]
