"""One batch by several methods: one record for all that need it, and what each of them cost."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torch import Tensor

from whyformer.engines.attention.fold_pass import NotFoldable
from whyformer.errors import NotOffered
from whyformer.estimate import folding
from whyformer.explanations import explanations
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Continuation
from whyformer.inputs.language import shortened
from whyformer.memory import LONG, Peak
from whyformer.registry import Method
from whyformer.run import Attribution, Run
from whyformer.session import Session
from whyformer.types import Cost, Explanation

Settings = dict[str, dict[str, Any]]  # options by method
ONE_GRADIENT = (
    "one_pass: the gradient is that of the whole answer's log-probability, and each token reads its row of the map."
)


def of_run(
    session: Session, chosen: list[Method], settings: Settings, run: Run, rows: list[int]
) -> dict[str, list[Explanation]]:
    """Explanations of one batch by method: one record for all that need it, and what each of them cost."""
    started, peak = time.perf_counter(), Peak(next(iter(run.batch.tensors.values())).device)
    run.alone, run.settles_later = len(chosen) == 1, True
    folded: frozenset[str] = frozenset()
    if session.memory == "fold" or (session.memory == "auto" and run.length >= LONG):
        folded = folding(session, run, chosen, settings)
    stored = [m for m in chosen if m.name not in folded] if folded else chosen
    if any("attention_gradients" in m.needs for m in stored) and not run.modality.decoding.one_pass:
        run.record(grad=True, multi_stream=True)  # one record serves every method that follows
    elif len(stored) > 1 and any({"attention", "values"} <= m.needs for m in stored):
        run.anatomy()  # likewise, for those that need the blocks around attention as well
    shared = time.perf_counter() - started
    results = {}
    for m in chosen:
        started, before = time.perf_counter(), (run.forwards_B.copy(), run.backwards_B.copy())
        run.asked, run.folds, readings = {}, m.name in folded, run.readings
        several = run.batch.size > 1 or (bool(session.batch.groups) and run.modality.decoding.one_pass)
        if run.batch.trunks and several and _reads_rows(run.modality, m, settings[m.name]):
            attribution = _by_rows(session, run, m, settings[m.name])
        else:
            try:
                attribution = m.run(run, **settings[m.name])
            except NotFoldable:
                if session.memory == "fold":
                    raise
                run.folds, run.forwards_B, run.backwards_B = False, before[0].copy(), before[1].copy()
                attribution = m.run(run, **settings[m.name])
        # What was explained belongs to the cost, also of methods that never ask for it. Names of units take no answer
        # of a device, which is still at work.
        _ = run.units, run.value_B
        while run.readings != readings:
            readings = run.readings
            attribution = m.run(run, **settings[m.name])
            _ = run.value_B
        seconds = time.perf_counter() - started
        if m.needs & {"attention", "attention_gradients"}:
            seconds += shared
        highest, setup = peak.bytes, session.setup_forwards + run.setup_forwards
        # As many as it takes alone: its own passes, and those of others that it needs as well.
        forwards = run.forwards_B - before[0] + sum(owed for owed, _ in run.asked.values())
        backwards = run.backwards_B - before[1] + sum(owed for _, owed in run.asked.values())
        each = seconds / run.batch.size
        costs = [Cost(f, b, each, highest, setup) for f, b in zip(forwards.tolist(), backwards.tolist(), strict=True)]
        results[m.name] = explanations(run, m, settings[m.name], attribution, costs)[: len(rows)]
    return results


def take_all_tokens(session: Session, chosen: list[Method], settings: Settings) -> None:
    """Where one map serves all tokens of an answer, they are explained together, however many there are."""
    if all(_reads_rows(session.modality, m, settings[m.name]) for m in chosen):
        session.step = max(session.step, session.size)


def _reads_rows(modality: Modality, m: Method, options: dict[str, Any]) -> bool:
    """One map serves every token of an answer: it does not depend on what is explained, or one gradient is asked for"""
    if m.rowwise is not None and m.rowwise(**options):
        return True
    return modality.decoding.one_pass and "attention_gradients" in m.needs


def _by_rows(session: Session, run: Run, m: Method, options: dict[str, Any]) -> Attribution:
    """Tokens of one answer explained by the rows of one map, in which they are said."""
    keep_BN, shared = run.batch.keep_BN, bool(m.needs & {"attention_gradients"})
    assert keep_BN is not None
    rows = keep_BN.sum(1) - 1
    whole = _whole_answer(session, run.batch.trunks[0]) if shared else run.together.shared
    assert whole is not None
    one = session.run_of(whole, "log_probability" if shared else None)
    one.folds, one.rows_read = run.folds, rows if run.folds else None
    attribution = m.run(one, **options)
    run.forwards_B += one.forwards_B[0] / run.batch.size
    run.backwards_B += one.backwards_B[0] / run.batch.size
    run.setup_forwards += one.setup_forwards
    matrix = attribution.matrix_BQK
    if not isinstance(matrix, Tensor) or (matrix.shape[1] != matrix.shape[2] and not one.folds):
        raise NotOffered(f"one_pass reads the rows of a map, and {m.name} has none here. Leave one_pass out.")
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
