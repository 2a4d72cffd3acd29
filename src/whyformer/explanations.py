"""Turn the attributions of a batch into one Explanation per input; contrast two answers of a language model."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.choices import answers, default_method
from whyformer.engines.attention.chain import NotFoldable
from whyformer.engines.perturbation.maskings import attributed
from whyformer.engines.perturbation.variants import remarks_about_unscored, require_moved
from whyformer.errors import (
    AmbiguousLayout,
    BadInput,
    CaptureError,
    MixedInputs,
    ModelFailed,
    NotOffered,
    NotOverUnits,
    WhyformerError,
)
from whyformer.estimates import folding
from whyformer.inputs.batch import Batch, array_of, on_host
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.decoding import Continuation
from whyformer.inputs.exchanges import ANSWER
from whyformer.inputs.families import ENCODER_STREAMS, says_tokens
from whyformer.inputs.modalities import Source
from whyformer.inputs.tokens import shortened
from whyformer.inputs.units import by_segments, pick
from whyformer.loan.spread import LONG, PEAK_ON_CPU, Peak
from whyformer.options import Request
from whyformer.registry import AUTO, Chosen, Method, get_method
from whyformer.results.types import Choice, Cost, Explanation, Explanations, Target, Units, scalar_name
from whyformer.run import ATTENDING, Attribution, Run
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.study.entrance import HIDDEN, require_real_rows
from whyformer.study.interference import Rerounded, rounding_step
from whyformer.study.streams import cropped
from whyformer.targets import probabilities_note
from whyformer.version import __version__

FEW = 2**16  # logits: as many are ranked on the host sooner than a GPU is asked
AT_ONCE = 2**23  # numbers of a result that are put together to be fetched
DIFFERENCE = (
    "scores are those of the first answer's {} minus those of the second's, over the tokens of the prompt; tokens of "
    "the answers have no scores."
)
COARSE, LARGE_FLOOR = 1e-5, 0.05  # steps that are no float32's; share of the largest score that is a warning
DRAWS = 8  # passes that are rounded otherwise
ROUNDED = (
    "rounding in half precision moves scores by about {:.2g}, and the largest is {:.2g}: differences of that size are "
    "noise. Load the model in float32."
)
NEXT = 4  # classes that are listed after the predicted one
VERSIONS = {"whyformer": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def explanations(run: Run, c: Chosen, attribution: Attribution, costs: list[Cost]) -> list[Explanation]:
    """One per input, of the numbers that a method found."""
    m, output, answers = c.method, run.output, run.batch.predictions
    keep_BN = np.ones(run.keep_BN.shape, dtype=bool) if run.unpadded else on_host(run.keep_BN).numpy()
    scores_BN, fields = _numbers(run, attribution, keep_BN)
    predictions, targets, header = _predictions(run), run.targets, _header(run, c, attribution)
    checks = {name: of_B.tolist() for name, of_B in attribution.checks.items()}
    notes, readout, varies = _notes(run, m), run.study.readout, run.modality.place.lengths_vary
    # The rows that feed the head may differ from input to input; those of the study were of another.
    apart = (varies and bool(run.batch.positions or run.batch.spans)) or (readout and readout.looked_up(varies))
    each_reads = not run.multi_stream and readout is not None and apart
    unpadded = run.unpadded and not (run.multi_stream or run.windowed)
    share_B: list[float] = [0.0] * run.batch.size if unpadded else run.padding_share_B.tolist()
    others = any(name != run.modality.main and "mask" not in name for name in run.batch.tensors)
    main = run.batch.tensors.get(run.modality.main)  # whose positions are the units, whatever they are called
    beside = [stream for tensor, stream in run.modality.place.inputs(run.batch) if tensor is not main] if others else []
    streams = list(dict.fromkeys(beside))
    full, finite = bool(keep_BN.all()), bool(np.isfinite(scores_BN).all())
    result: list[Explanation] = []
    for row, (units, keep_N) in enumerate(zip(run.units, keep_BN, strict=True)):
        scores = scores_BN[row].copy() if full else scores_BN[row, keep_N]
        if not finite and not np.isfinite(scores).all():  # at padding there may be anything
            raise NotOffered(f"{m.name} returned NaN or infinity: run the model in float32.")
        if len(units.labels) != len(scores):
            raise NotOverUnits(
                f"{m.name} scored {len(scores)} positions, and input {row} has {len(units)} units: they cannot be "
                "matched. Give inputs one by one, without padding."
            )
        target, said = targets[row], predictions[row]
        if said.position != target.position:
            said = replace(said, position=target.position)
        if not target.label or target.versus is not None:
            versus = "" if target.versus is None else target.versus_label or output.name(target.versus)
            target = replace(target, label=target.label or output.name(target.index), versus_label=versus)
        warnings = [*remarks_about_unscored(run)[row], *(run.batch.warnings[row] if run.batch.warnings else ())]
        warnings += attribution.warnings[row] if attribution.warnings else []
        known = {name: of_B[row] for name, of_B in checks.items()}
        if output.causal:  # many language models park attention there
            known["first_token_share"] = float(np.abs(scores[0]) / max(np.abs(scores).sum(), 1e-30))
            if not run.batch.asked.first_token:
                scores[0] = 0
        result.append(
            Explanation(
                scores=scores,
                units=units,
                target=target,
                prediction=answers[row] if answers else said,
                cost=costs[row],
                picture=run.modality.place.picture(run.batch, row) if run.batch.raw else None,
                readout=_readout(run, row, keep_N) if each_reads else run.study.rule,
                checks=known,
                warnings=(*warnings, *notes, *_warnings(scores, share_B[row], streams, units)),
                **{name: of_rows[row] for name, of_rows in fields.items()},
                **header,
            )
        )
    if run.batch.asked.segments != "token":
        result = [by_segments(e, *segments) for e, segments in zip(result, run.segments, strict=True)]
    return result


def _header(run: Run, c: Chosen, attribution: Attribution) -> dict[str, Any]:
    """What is the same for all inputs."""
    modality, used = run.modality, attribution.used
    chosen = Chosen(c.method, c.options | used) if used else c  # with what was taken for options that were left open
    return {
        "scalar": run.scalar if attribution.explained is None else attribution.explained[0],
        "method": c.method.name,
        "options": dict(chosen.options),
        "changed": chosen.changed,
        "seed": run.seed,
        "versions": dict(VERSIONS),
        "signed": c.method.signed if attribution.signed is None else attribution.signed,
        "model": type(modality.model).__name__,
        "default_for": modality.kind if c.method.name == default_method(modality.kind) else None,
    }


def _notes(run: Run, m: Method) -> list[str]:
    """Warnings that hold for all inputs. Methods without attention miss nothing of how a head reads its positions."""
    study = run.study if m.needs & ATTENDING else run.study.by_input
    notes = [*study.notes, *run.modality.mean.notes(run.batch, run.length), *sorted(run.notes)]
    notes += [probabilities_note(bool(run.output.ends_in_sigmoid))] if run.gives_probabilities else []
    return notes + list(run.output.remarks)


def _numbers(run: Run, attribution: Attribution, keep_BN: Array) -> tuple[Array, dict[str, Any]]:
    """Scores, and by the name of a field what else there is of each input, without padding.

    What is on a device is fetched once for all of them: each question would make it stop.
    """
    matrix, detail = attribution.matrix_BQK, attribution.detail
    if isinstance(matrix, dict) and run.output.pairs is not None:  # two compared inputs: what each pair adds
        matrix = matrix | {("a", "b"): run.output.pairs}
    tensors: dict[Any, Tensor | None] = {"scores": attribution.scores_BN, "layers": attribution.layers_BLQK}
    tensors |= {"errors": attribution.errors_BN} | (matrix if isinstance(matrix, dict) else {"matrix": matrix})
    value_B = run.value_B if attribution.explained is None else attribution.explained[1]
    if value_B.dtype is torch.float32:
        tensors["value"] = value_B
    present = {k: t.detach().float() for k, t in tensors.items() if t is not None}
    near = _fetched(present) if value_B.is_cuda else present
    arrays = {k: t.cpu().numpy() for k, t in near.items()}
    values, scores_BN, rows = arrays.pop("value", None), arrays.pop("scores"), list(enumerate(keep_BN))
    errors_BN, layers, whole = (arrays.pop(name, None) for name in ("errors", "layers", "matrix"))
    several = isinstance(matrix, dict)
    fields: dict[str, Any] = {
        "value": value_B.tolist() if values is None else values.tolist(),
        "base": None if attribution.base_B is None else attribution.base_B.tolist(),
        "matrix": [cropped(arrays, *row, run.stream_sizes) if several else _cropped(whole, *row) for row in rows],
        "layers": [_cropped(layers, *row) for row in rows],
        "detail": array_of(detail) if isinstance(detail, Tensor) else detail,
        "errors": None if errors_BN is None else [errors_BN[row, keep_N] for row, keep_N in rows],
        "interactions": attribution.interactions,
    }
    return scores_BN, {name: of_rows for name, of_rows in fields.items() if of_rows is not None}


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
    if run.batch.answers or run.modality.kind == "prompt":  # an answer as a whole is the only class
        return [Target(i, target.label) for i, target in zip(best_B, run.targets, strict=True)]
    if run.modality.mean.outcome == "objects" and logits_BC.shape[1] > 1:
        return [_detected(run, logits_C) for logits_C in logits_BC]
    if run.modality.read.either and logits_BC.shape[1] == 1:
        first, second = run.modality.read.either
        shares = logits_BC[:, 0].sigmoid().tolist()  # of the second, by the only output
        pairs = [sorted([Choice(0, second, p), Choice(1, first, 1 - p)], key=lambda c: -c.probability) for p in shares]
        return [Target(one.index, one.label, probability=one.probability, next=(other,)) for one, other in pairs]
    names: Callable[[int], str] = output.name if output.speaks else lambda i: output.labels.get(i, "")
    if not output.chooses or run.batch.predictions or logits_BC.shape[1] < 2:
        return [Target(i, names(i)) for i in best_B]
    if output.independent:
        alone = logits_BC.sigmoid()
    else:  # softmax, step by step: torch's own wakes its threads for any two rows, which may take milliseconds
        powers_BC = (logits_BC - logits_BC.amax(1, keepdim=True)).exp()
        alone = powers_BC / powers_BC.sum(1, keepdim=True)
    likeliest = (logits_BC if run.gives_probabilities else alone).topk(min(1 + NEXT, logits_BC.shape[1]))
    ranked = zip(best_B, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return [
        Target(
            best,
            names(best),
            probability=shares[0],
            next=tuple([Choice(i, names(i), p) for i, p in zip(indices, shares, strict=True) if i != best][:NEXT]),
        )
        for best, indices, shares in ranked
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


def _rounding(session: Session, run: Run, m: Method, options: dict[str, Any], scores_BN: Tensor) -> Tensor | None:
    """(B,) standard errors by rounding of coarse numbers, measured by rounding otherwise; None: not measured."""
    differs = "perturbation" in m.needs  # scores are differences of two values; or many products, one after the other
    if run.modality.read.opaque:
        return None
    if (step := rounding_step(run.modality.model, run.logits)) <= COARSE:
        return None
    with (
        suppress(WhyformerError),
        torch.no_grad(),
        Rerounded(run.device, step),
    ):  # an error: it went too far for a check
        if differs:
            run.setup_forwards += DRAWS * run.rows_run
            values = [run.scalars(run.output.logits(run.together)) for _ in range(DRAWS)]
            return 2**0.5 * torch.stack(values).std(0)
        other = session.run(run.numbers)
        moved_BN = (attributed(other, m, options).scores_BN - scores_BN) * run.keep_BN
        run.setup_forwards += math.ceil(other.forwards_B.sum())
        return (moved_BN.square().sum(1) / run.keep_BN.sum(1)).sqrt()
    return None


def _warnings(scores: Array, padding_share: float, streams: list[str], units: Units) -> list[str]:
    """Return warnings about one input: equal scores, attention to padding, streams without scores."""
    warnings = []
    if len(scores) > 1 and scores[0] == scores[-1] != 0 and (scores == scores[0]).all():
        warnings.append("all scores are equal: this explanation does not rank the units.")
    if padding_share > HIDDEN:
        warnings.append(
            f"{padding_share:.0%} of this input's attention goes to padding, which the model does not mask: this share "
            "is not assigned to any unit. To avoid it, give inputs one by one, without padding."
        )
    shown = set(units.stream) if streams else set()
    if not shown:
        return warnings  # there is nothing else, or every position is masked
    missing = [s for s in streams if s not in shown and ENCODER_STREAMS.get(s, s) not in shown]
    return warnings + [
        f"the {stream} has no scores here, because its positions in the model are not known; it was not changed."
        for stream in missing
    ]


ONE_GRADIENT = (
    "one_pass: the gradient is that of the whole answer's log-probability; each token uses its own row of the map."
)


def of_run(session: Session, chosen: Sequence[Chosen], run: Run, rows: list[int]) -> dict[str, list[Explanation]]:
    """Explanations of one batch by method: one record for all that need it, and what each of them cost."""
    started, peak = time.perf_counter(), Peak(run.device) if run.device.type == "cuda" or PEAK_ON_CPU.get() else None
    run.alone = len(chosen) == 1
    chosen_rows = run.output.causal or run.batch.positions or run.batch.spans
    if not (run.batch.raw or run.unpadded or chosen_rows):  # raw texts are padded on a safe side
        run.setup_forwards += require_real_rows(run.modality, run.batch, run.keep_BN, run.study)
    folded: frozenset[str] = frozenset()
    if session.memory == "fold" or (session.memory == "auto" and run.length >= LONG):
        folded = folding(session, run, chosen)
    stored = [c.method for c in chosen if c.method.name not in folded]
    if any("attention_gradients" in m.needs for m in stored) and not run.batch.asked.decoding.one_pass:
        values = any({"attention_gradients", "values"} <= m.needs for m in stored)
        run.record(grad=True, values=values, multi_stream=True)  # one record serves every method that follows
    elif len(stored) > 1 and any({"attention", "values"} <= m.needs for m in stored):
        run.anatomy()  # likewise, for those that need the blocks around attention as well
    shared = time.perf_counter() - started
    results = {}
    for c in chosen:
        m = c.method
        if m.name == AUTO:
            results[AUTO] = _answered(session, c.options["passes"], run, rows)
            continue
        if not m.needs & ATTENDING and (other := run.by_input) is not run:
            results |= of_run(session, [c], other, rows)
            run.setup_forwards, other.setup_forwards = run.setup_forwards + other.setup_forwards, 0
            continue
        if run.modality.read.opaque:
            run.modality.mean.announce(m.cost(max(map(len, run.units)), **c.options)[0], run.batch)
        started, before = time.perf_counter(), (run.forwards_B.copy(), run.backwards_B.copy())
        run.asked, run.folds = {}, m.name in folded
        attribution = _attributed(session, run, m, c.options)
        seconds = time.perf_counter() - started
        if m.needs & {"attention", "attention_gradients"}:
            seconds += shared
        # As many as it takes alone: its own passes, and those of others that it needs as well.
        forwards = run.forwards_B - before[0] + sum(owed for owed, _ in run.asked.values())
        backwards = run.backwards_B - before[1] + sum(owed for _, owed in run.asked.values())
        remarks_about_unscored(run)  # here, so that its passes are counted
        each, highest = seconds / run.batch.size, 0 if peak is None else peak.bytes
        setup = session.setup_forwards + run.setup_forwards
        costs = [Cost(f, b, each, highest, setup) for f, b in zip(forwards.tolist(), backwards.tolist(), strict=True)]
        results[m.name] = explanations(run, c, attribution, costs)[: len(rows)]
    return results


def _attributed(session: Session, run: Run, m: Method, options: dict[str, Any]) -> Attribution:
    """Run one method, check that its scores moved, and add what rounding in half precision moves them by."""
    several = run.batch.size > 1 or (bool(session.batch.groups) and run.batch.asked.decoding.one_pass)
    before = (run.forwards_B.copy(), run.backwards_B.copy())
    if run.batch.trunks and several and _reads_rows(run.batch, m, options):
        attribution = _by_rows(session, run, m, options)
    else:
        try:
            attribution = attributed(run, m, options)
        except NotFoldable:
            if session.memory == "fold":
                raise
            run.folds, run.forwards_B[:], run.backwards_B[:] = False, *before
            attribution = attributed(run, m, options)
    # What was explained belongs to the cost, also of methods that never ask for it. Names of units take no answer of a
    # device, which is still at work.
    _ = run.units, run.value_B
    chosen = options.get("hold") or options.get("keep_special", True) not in (True, False)  # units that always stay
    if "perturbation" in m.needs and not chosen:
        require_moved(run, m.name, attribution.scores_BN)
    coarse = "perturbation" in m.needs or ("values" in m.needs and "attention_gradients" not in m.needs)
    if coarse and (moved_B := _rounding(session, run, m, options, attribution.scores_BN)) is not None:
        known_BN = 0 if attribution.errors_BN is None else attribution.errors_BN.square()
        attribution.errors_BN = (known_BN + moved_B[:, None].square()).sqrt().expand_as(attribution.scores_BN)
        largest = attribution.scores_BN.abs().amax(1).tolist()
        each = zip(attribution.warnings or [[] for _ in largest], moved_B.tolist(), largest, strict=True)
        attribution.warnings = [
            [*said, ROUNDED.format(moved, high)] if moved > LARGE_FLOOR * high else said for said, moved, high in each
        ]
    return attribution


def _answered(session: Session, passes: int | None, run: Run, rows: list[int]) -> list[Explanation]:
    """Explanations by what ``answers`` names for each input. Where a method is refused or finds nothing, the next."""
    kind = run.modality.kind
    counts = [len(groups) for groups, _ in run.segments] if run.segments else list(map(len, run.by_input.units))
    choices = [answers(kind, count, passes) for count in counts]
    if run.by_input is not run:  # first those that score every unit
        choices = [sorted(each, key=lambda choice: bool(get_method(choice[0]).needs & ATTENDING)) for each in choices]
    made: dict[int, Explanation] = {}
    for same in (choice for i, choice in enumerate(choices) if choice not in choices[:i]):
        left, refusal = [place for place, choice in enumerate(choices) if choice == same], None
        for name, options in same:
            try:
                explained = _by_choice(session, get_method(name), options, run, rows, left)
            except MixedInputs:
                raise
            except (NotOffered, CaptureError, ModelFailed) as error:  # a model may fail where everything is masked
                if isinstance(error, AmbiguousLayout) and len(rows) > 1:
                    raise
                refusal = refusal or error
                continue
            for place, e in zip(left, explained, strict=True):
                before = made.get(place)
                cost = e.cost if before is None else Cost.of_all([before.cost, e.cost])
                chosen = e if before is None or not e.nothing_found else before
                made[place] = chosen.replace(cost=cost, default_for=kind)
            left = [place for place in left if made[place].nothing_found and not made[place].barely_moved]
            if not left:
                break
        if refusal is not None and any(place not in made for place in left):
            raise refusal
    return [made[place] for place in range(len(rows))]


def _by_choice(
    session: Session, m: Method, options: dict[str, Any], run: Run, rows: list[int], places: list[int]
) -> list[Explanation]:
    """Explanations of some inputs of a run by one method."""
    if session.modality.read.mixes_rows and not m.needs <= {"perturbation"}:  # each beside the rows that it looks at
        runs = [(session.run([rows[place]], beside=True), [rows[place]]) for place in places]
    else:
        indices = [rows[place] for place in places]
        runs = [(run if len(indices) == len(rows) else session.run(indices), indices)]
    explained = []
    for each, indices in runs:
        explained += of_run(session, [Chosen(m, m.checked(options))], each, indices)[m.name]
        if each is not run:
            session.forwards += float(each.forwards_B.sum())
            session.backwards += float(each.backwards_B.sum())
            run.setup_forwards += each.setup_forwards
    return explained


def take_all_tokens(session: Session, chosen: Sequence[Chosen]) -> None:
    """Where one map serves all tokens of an answer, they are explained together, however many there are."""
    if all(_reads_rows(session.batch, c.method, c.options) for c in chosen):
        session.step = max(session.step, session.size)


def _reads_rows(batch: Batch, m: Method, options: dict[str, Any]) -> bool:
    """One map serves every token of an answer: it does not depend on what is explained, or one gradient is asked for"""
    if m.rowwise is not None and m.rowwise(**options):
        return True
    return batch.asked.decoding.one_pass and "attention_gradients" in m.needs


def _by_rows(session: Session, run: Run, m: Method, options: dict[str, Any]) -> Attribution:
    """Tokens of one answer explained by the rows of one map, in which they are said."""
    keep_BN, shared = run.batch.keep_BN, bool(m.needs & {"attention_gradients"})
    assert keep_BN is not None
    rows = keep_BN.sum(1) - 1
    whole = _whole_answer(session, run.batch.trunks[0]) if shared else run.together.shared
    assert whole is not None
    one = session.run_of(whole, "log_probability" if shared else None)
    one.folds, one.rows_read = run.folds, rows if run.folds else None
    attribution = attributed(one, m, options)
    run.forwards_B += one.forwards_B[0] / run.batch.size
    run.backwards_B += one.backwards_B[0] / run.batch.size
    run.setup_forwards += one.setup_forwards
    matrix = attribution.matrix_BQK
    if not isinstance(matrix, Tensor) or (matrix.shape[1] != matrix.shape[2] and not one.folds):
        raise NotOffered(f"one_pass uses the rows of a map, and {m.name} has none here. Omit one_pass=.")
    rows_BN = matrix[0] if one.folds else matrix[0, rows.to(matrix.device)]
    scores_BN = rows_BN[:, : run.keep_BN.shape[1]] * run.keep_BN
    doubts = [[ONE_GRADIENT]] * run.batch.size if shared else None
    return Attribution(scores_BN, checks={}, warnings=doubts, signed=attribution.signed, used=attribution.used)


def _whole_answer(session: Session, text: int) -> Batch:
    """The longest row of one text with all that is said in it, also where a batch holds a part of its tokens."""
    batch = session.batch
    rows = [row for row, trunk in enumerate(batch.trunks) if trunk == text]
    assert batch.keep_BN is not None
    start = int(batch.keep_BN[rows[0]].sum()) - 1
    answer = Continuation(tuple(session.target[row] for row in rows), start)
    return replace(shortened(batch.select(rows[-1:])), answers=(answer,))


def is_of_answers(source: Source, target: Any) -> bool:
    """``target=(a, b)`` names texts of which one at least is no single token of a language model."""
    modality = source.modality
    if not source.raw or not says_tokens(modality.model) or modality.processor is None:
        return False
    if modality.read.joint and modality.kind != "language":
        return False
    texts = [text for text in target if isinstance(text, str)]
    tokenizer = getattr(modality.processor, "tokenizer", modality.processor)
    return len(texts) == 2 and any(
        len(processed(tokenizer, t, add_special_tokens=False)["input_ids"]) > 1 for t in texts
    )


def contrast(explain: Callable[[Any, Request], Any], source: Source, request: Request) -> dict[str, Any]:
    """Explain why the first answer, not the second, by method; explain: ``CoreExplainer.answer``."""
    target: Any = request.target
    if any(not source.modality.read.is_prompt(prompt) for prompt in source.raw):
        raise BadInput("target=(one answer, another) needs a prompt alone: give it without an answer.")
    if target[0] == target[1]:
        raise BadInput(f"target=({target[0]!r}, {target[1]!r}): both answers are the same. Give two different ones.")
    if request.generate is not None or request.choices is not None:
        raise BadInput("target=(one answer, another) names both answers: omit generate= and choices=.")
    if request.span not in (True, False):
        raise BadInput("target=(one answer, another) explains whole answers: omit span=.")
    whole = replace(request, target=None, span=True, one_pass=False, keep_layers=False, by_method=True)
    one, other = (explain([(prompt, text) for prompt in source.raw], whole) for text in target)
    both = {name: Explanations(map(_difference, one[name], other[name])) for name in one}
    return {name: each[0] if source.single else each for name, each in both.items()}


def _difference(one: Explanation, other: Explanation) -> Explanation:
    roles = one.units.role or ()
    prompt = [index for index, role in enumerate(roles) if role != ANSWER]
    units = pick(one.units, prompt)
    if units.text is not None and units.spans is not None and len(units):  # without the answer behind the prompt
        units = replace(units, text=units.text[: max(end for _, end in units.spans)])
    scores: Any = (one.scores[prompt] - other.scores[prompt]).astype(np.float32)
    value = one.value - other.value
    target = Target(0, one.target.label, 1, other.target.label, one.target.position)
    likelier = one if value >= 0 else other
    return one.replace(
        scores=scores,
        units=units,
        target=target,
        value=value,
        prediction=Target(0 if likelier is one else 1, likelier.target.label, position=one.target.position),
        cost=Cost.of_all([one.cost, other.cost]),
        checks={one.scalar: one.value, f"{one.scalar}_versus": other.value},
        warnings=(*dict.fromkeys((*one.warnings, *other.warnings)), DIFFERENCE.format(scalar_name(one.scalar))),
        matrix=None,
        layers=None,
        detail=None,
        signed=True,
    )
