"""Study a model once: the row that feeds its head, where its text starts, and whether it leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, floor

import torch
from torch import Tensor

from whyformer.capture.roles import Intervene, first_values
from whyformer.capture.site import OpenSite
from whyformer.errors import CaptureError, NothingCaptured, NotOverUnits, PartlyCaptured
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.families import says_tokens
from whyformer.inputs.tokens import BY_CONTENT, is_causal
from whyformer.loan.borrow import known_about
from whyformer.loan.spread import heads_elsewhere
from whyformer.study import readout as readouts
from whyformer.study.dataflow import MarkingSurvey, trace
from whyformer.study.entrance import (
    ReadsPadding,
    in_parts,
    misplaced,
    misplaced_in_streams,
    misplaced_pieces,
    moved_at,
    reads_padding,
)
from whyformer.study.facts import ROUNDING, Study, leak_of, noting_calls, unseen
from whyformer.study.interference import MIXES, SINGLY
from whyformer.study.schedule import IN_PARTS, START, Schedule, Step, kind_of, schedule_of
from whyformer.study.streams import study_several

WEIGHED = (
    "the head weights the positions itself (attention pooling, {path}); here they are weighted evenly, so its own "
    "weights are not part of the scores."
)
POOLED_BESIDES = (
    "the head uses the {rule} and also pools other positions; attention methods use the {rule} only, and miss the "
    "others."
)
SEVERAL_LAYERS = (
    "the head uses the output of several layers, not only of the last one; attention methods use the last one only, "
    "and miss direct contributions of earlier layers."
)
ONE_TOKEN = (
    "the whole row is one of the {count} tokens that the model attends over; the others are rows of its own (training "
    "examples, as in TabPFN), so attention cannot score columns."
)
AROUND = (
    "the head also uses vectors of the input that went through no attention (for example, a sum of the embeddings); "
    "attention methods miss this contribution."
)

OWN_KEYS = (
    "{path}: attention over {keys} keys from {queries} positions: the model adds keys that are not positions (prefix "
    "tuning, a learned memory, add_bias_kv or add_zero_attn of nn.MultiheadAttention), so maps of its layers cannot be "
    "multiplied."
)
FEWER = (
    "{path}: attention over {keys} positions of {count} tokens or patches (a stride, a choice of them, channels), so "
    "it is not known which position holds which."
)

OPAQUE = "the model is called remotely (a function, a server): its attention cannot be captured."


def beside_others(modality: Modality, one: Batch) -> Study:
    """Study the column attention of a model whose rows attend to each other (SAINT), beside reference rows."""
    # Row attention is left aside. The leak through it, which mixes all columns of a row, is known of these models: it
    # is a note on the results (TableInput.notes), not an error.
    run = readouts.Passes(modality, modality.read.beside_reference_rows(one))
    survey = readouts.Survey(run.one.size, run.names)
    survey.rows_attend = True
    with torch.no_grad(), survey:
        run()
    stream, last = modality.stream, len(survey.facts) - 1
    sites = tuple(replace(site, streams=(stream, stream), kind="self") for site in survey.facts)
    steps = tuple(Step(i, stream, stream, i - 1 if i else START) for i in range(len(sites)))
    finder = readouts.ReadoutFinder(run.one.size, run.names, last)
    finder.rows_attend = True
    with torch.no_grad(), finder:
        logits = run()
    if finder.ending is None or not logits.requires_grad:
        raise CaptureError("the last column attention does not reach the model's output.")
    with torch.enable_grad():
        reached = finder.ending.reached(logits[0])
    keys = sites[0].keys
    return Study(
        sites,
        readouts.readout_of(reached.rows, keys, keys, reached.slots),
        unclaimed=survey.unclaimed,
        input_length=sum(v.shape[1] for v in one.tensors.values()),
        forwards=3,
        schedule=Schedule(steps, {stream: keys}),
    )


def patches_start(
    run: readouts.Passes, before_BHKD: Tensor, grid: tuple[int, int] | None, readout: readouts.Readout
) -> int | None:
    """The first patch, where it is in doubt: what the model adds may also come after the patches (YOLOS)."""
    if grid is None:
        return None
    added = before_BHKD.shape[2] - grid[0] * grid[1]
    # A single added token is in front if it is the first position that is read, and behind if it is the last.
    if added < 1 or (added == 1 and readout.kind in {"first", "last"}):
        return None
    changed = run.modality.place.first_changed(run.one, grid)
    return None if changed is None else min(moved_at(before_BHKD, run.values(changed)), default=None)


def study_one(modality: Modality, one: Batch) -> Study:
    """Study one input; attention that was captured in part is refused."""
    if modality.read.opaque:
        return Study(grid=modality.place.cells(one), input_length=modality.place.length(one)).refused(
            NothingCaptured(OPAQUE)
        )
    if (elsewhere := heads_elsewhere(modality.model)) is not None:
        return Study(grid=modality.place.cells(one), input_length=modality.place.length(one)).refused(elsewhere)
    run = readouts.Passes(modality, one)
    try:
        with noting_calls() as called:
            survey = trace(run)
    except CaptureError as error:  # other methods need no map
        return Study(
            grid=modality.place.cells(one), input_length=modality.place.length(one), forwards=run.count
        ).refused(error)
    # A gate that is closed on this input may let positions exchange information on another one.
    gated = run.modality.read.embeds and 0 < survey.pooled < len(survey.calls)
    if survey.decides:  # for all inputs of a batch at once, perhaps
        known_about(modality.model)[MIXES] = True
    single = not modality.read.joint  # a model may encode two texts one after the other
    by_content = survey.gates or (single and (gated or survey.decides or survey.sorts))
    if by_content:
        known_about(modality.model)[BY_CONTENT] = True
    study = replace(_followed(run, survey), by_content=by_content, forwards=run.count)
    hidden = unseen(modality.model, called, [site.path for site in study.sites])
    if hidden is not None and study.sites:
        return study.refused(hidden, hidden=True)
    if study.trouble is not None and study.sites and modality.place.reads_other_steps(one, study.sites[0].keys):
        return replace(study, sites=(), grid=None)  # nobody reads the model's positions: units are the input's own
    return study


def _followed(run: readouts.Passes, survey: MarkingSurvey) -> Study:
    """Study the attention that was seen: streams, the rows that feed the head, leaks, and where the units are."""
    modality, one, first_BHKD = run.modality, run.one, survey.first_values()
    length = modality.place.length(one)
    schedule = schedule_of(survey.facts, survey.calls, survey.reaching, modality.stream)
    sites = tuple(
        replace(site, streams=(step.query, step.key), kind=kind_of(site, step, call))
        for site, step, call in zip(survey.facts, schedule.steps, survey.calls, strict=True)
    )
    grid = survey.grid if sites else modality.place.cells(one)
    study = Study(
        sites, grid=grid, unclaimed=survey.unclaimed, input_length=length, schedule=schedule, fused=not survey.softmaxes
    )
    if first_BHKD is None:
        return study
    count = 0 if grid is None or not modality.place.pixels or sites[0].windows > 1 else grid[0] * grid[1]
    if sites[0].keys < count != sites[0].queries and not _is_pooled(grid, sites[0].keys):
        return Study(grid=grid, input_length=length).refused(_fewer(sites[0], count))
    modality.place.locate(one, sites[0].keys, run.vectors)
    if not study.one_stream:
        return _several_followed(run, survey, study, schedule, first_BHKD)
    if modality.place.is_one_token(one, sites[0].keys, run.values):
        return Study(input_length=length).refused(NotOverUnits(ONE_TOKEN.format(count=sites[0].keys)))
    others = _other_positions(run, sites, first_BHKD, length)
    if others is not None:
        return Study(grid=modality.place.cells(one), input_length=length).refused(others)
    extra = sites[0].keys - length if modality.place.lengths_vary else 0
    if extra < 0 and modality.read.embeds:
        return Study(input_length=length).refused(_fewer(sites[0], length))
    front = None
    if extra > 0 and modality.read.embeds:  # the first that changes with the first token; further where the model sorts
        moved = moved_at(first_BHKD, first_values(partial(run.shifted, [0]), run.names))
        front = min(*moved, extra) if moved else 0
    real = modality.place.keep(one, sites[0].keys, front)[0].cpu()
    try:
        readout, read, notes = _readout(run, survey, real)
        readout = readouts.confirmed(run, readout, sites, extra, front)
    except CaptureError as error:
        return study.refused(_unread(schedule, sites) or error, extra=extra, front=front)
    leak = leak_of(run, len(sites), real, read, extra, front)
    if not modality.read.embeds:
        front = patches_start(run, first_BHKD, grid, readout)
        if front is None and readout.kind == "last":
            front = 0  # the model's own token comes last
    notes += _notes(survey, readout, sites[-1].queries)
    if any(note.startswith(WEIGHED[: WEIGHED.index("{")]) for note in notes):  # which names the reason
        notes = tuple(note for note in notes if note != readouts.UNEVEN)
    study = replace(study, readout=readout, leak=leak, extra=extra, front=front, notes=notes)
    if (apart := _side_by_side(survey, schedule)) is not None:
        return study.refused(apart)
    # An embedding that reads the ids of a text as they were given keeps their order, and what follows was audited.
    embedded = modality.read.embeds and not extra and one.tensors[modality.main].data_ptr() in survey.embedded
    in_order = embedded and not survey.reorders
    # Which column is which token was found out by running the model (TableInput.tokens).
    if leak.found or in_order or modality.place.named_columns:
        elsewhere = misplaced_pieces(run)
        return study if elsewhere is None else study.refused(elsewhere)
    unlike = misplaced(run, first_BHKD, front, grid, survey.reorders)
    if survey.sorts:  # of another input, other positions
        modality.place.forget_places(one)
    # Where the positions depend on the content, the model's own tokens have no place among the units either.
    if isinstance(unlike, tuple):
        return replace(study, notes=notes + unlike)
    return study.refused(unlike, front=None if survey.sorts else front)


def _other_positions(
    run: readouts.Passes, sites: Sequence[readouts.SiteFacts], first_BHKD: Tensor, length: int
) -> NotOverUnits | None:
    """Return the error for attention over more than the positions of the input, or over parts of them."""
    # A layer that looks at more than positions; the last layer may ask from a few of them only.
    uneven = [s for s in sites if s.queries != s.keys and (s is not sites[-1] or s.queries == length < s.keys)]
    if uneven:
        return NotOverUnits(OWN_KEYS.format(path=uneven[0].path, keys=uneven[0].keys, queries=uneven[0].queries))
    if in_parts(run, first_BHKD, length):
        return NotOverUnits(IN_PARTS.format(path=sites[0].path or "the model itself"))
    return None


def _several_followed(
    run: readouts.Passes, survey: MarkingSurvey, study: Study, schedule: Schedule, first_BHKD: Tensor
) -> Study:
    """Study several streams, or attention inside windows."""
    # The leak audit of one stream also finds attention that was not seen; with several, this is looked for first.
    lost = _lost(run, schedule, study.sites)
    if lost is not None:
        return study.refused(lost, hidden=True)
    elsewhere: CaptureError | tuple[str, ...] = ()
    if all(site.windows == 1 for site in study.sites):  # those of a window are followed to their places (Shadows)
        elsewhere = misplaced_in_streams(run, schedule, survey.embedded, study.grid, first_BHKD)
    several = study_several(run, study, schedule)
    if several.trouble is None and isinstance(elsewhere, CaptureError):
        return several.refused(elsewhere)
    return replace(several, notes=several.notes + elsewhere) if isinstance(elsewhere, tuple) else several


def _is_pooled(grid: tuple[int, int] | None, keys: int) -> bool:
    """Whether there are as many positions, and at most one more, as a smaller grid with the same proportions."""
    assert grid is not None
    sizes = {round_(grid[0] / k) * round_(grid[1] / k) for k in range(2, min(grid) + 1) for round_ in (floor, ceil)}
    return keys > 3 and not sizes.isdisjoint({keys, keys - 1})


def _fewer(site: readouts.SiteFacts, count: int) -> NotOverUnits:
    return NotOverUnits(FEWER.format(path=site.path or "the model itself", keys=site.keys, count=count))


def _readout(
    run: readouts.Passes, survey: MarkingSurvey, real: Tensor
) -> tuple[readouts.Readout, set[int] | None, tuple[str, ...]]:
    """The rule for rows of the last attention that feed the head, the positions that it reads, what it leaves out."""
    last = survey.sites[-1]
    queries, keys = readouts.positions_of(last)
    reached = readouts.readout_rows(run, len(survey.sites) - 1)
    rows, count, slots = reached.rows, reached.of, reached.slots
    read = None if reached.maximum else set(rows)  # None: which positions it would read is not known
    # Rows are numbered among the real positions, so that padding on the left does not count.
    rank = {int(p): i for i, p in enumerate(real.nonzero()[:, 0])}
    if queries == keys:
        if rows and rank and not any(row in rank for row in rows):
            raise reads_padding(rows[0], rows[0] < min(rank))
        rows, slots = [rank[r] for r in rows if r in rank], {rank[s] for s in slots if s in rank}
        if reached.maximum and len(rows) > 1:  # which rows hold the largest depends on the input
            return readouts.Readout("rows", tuple(rows), varies=True), read, reached.notes
        readout = readouts.readout_of(rows, count, len(rank), slots)
        readout = replace(readout, besides=readouts.pooled_besides(rows, slots))
        return readout, read, (POOLED_BESIDES.format(rule=readout),) if readout.besides else reached.notes
    # The last layer asks for a few rows only; they are named by where their query came from.
    asked = range(last.first_query, last.first_query + queries)
    readout = readouts.readout_of(list(asked), len(rank), len(rank), set())
    return readout, None if reached.maximum else set(asked), reached.notes


def _unread(schedule: Schedule, sites: Sequence[readouts.SiteFacts]) -> CaptureError | None:
    """Return the error that the head reads the state before the last layers, as in ``hidden_states[-2]``."""
    unread = [step.site for step in schedule.steps if not step.used]
    if not unread or unread[-1] != len(sites) - 1 or len(unread) == len(sites):
        return None
    return CaptureError(
        f"{len(unread)} of {len(sites)} attention layers, the last of them {sites[-1].path}, do not reach the "
        "model's output: its head uses the output of an earlier layer."
    )


def _lost(run: readouts.Passes, schedule: Schedule, sites: Sequence[readouts.SiteFacts]) -> CaptureError | None:
    """Return the error that attention reaches the output on a path out of sight, which may be attention itself."""
    unused = {step.site for step in schedule.steps if not step.used}
    if not unused:
        return None

    def logits(share: float) -> Tensor:
        def edit(index: int, site: OpenSite) -> None:
            if index in unused:
                site.attention = site.attention * share

        with torch.no_grad(), Intervene(1, run.names, edit=edit):
            return run()

    whole, half = logits(1.0), logits(0.5)
    if torch.allclose(whole, half, rtol=ROUNDING, atol=ROUNDING * float(whole.abs().max())):
        return None
    paths = ", ".join(sites[i].path or "the model itself" for i in sorted(unused)[:8])
    return PartlyCaptured(
        f"the attention of {paths} reaches the output on a path that was not captured, so positions may exchange "
        "information outside the captured attention there."
    )


def _side_by_side(survey: MarkingSurvey, schedule: Schedule) -> CaptureError | None:
    """Return the error that a layer does not start from the result of the one before: maps are multiplied in order."""
    for index, (step, site, call) in enumerate(zip(schedule.steps, survey.facts, survey.calls, strict=True)):
        if not index or call.query.stream is None:  # of a flow of data that was lost nothing is known
            continue
        follows = step.query_after == index - 1
        if site.parallel and follows:
            return NotOverUnits(
                f"{site.path}: this attention looks like another head of the layer before, but its input is the output "
                "of that layer."
            )
        if not site.parallel and not follows:
            return NotOverUnits(
                f"{site.path}: this attention has the same input as the one before it, so the two are not consecutive "
                "layers (differential attention, a second stream of vectors for the layout)."
            )
    return None


def _notes(survey: MarkingSurvey, readout: readouts.Readout, positions: int) -> tuple[str, ...]:
    """What attention methods miss of how the head reads the layers."""
    notes = []
    if readout.kind in {"mean", "rows"}:  # a softmax over the positions after the last attention
        after = [c for c in survey.softmaxes[survey.before_last :] if c.pools or not c.claimed]
        after = [c for c in after if c.shape[c.axis] == positions]
        notes = [WEIGHED.format(path=call.path or "in the model itself") for call in after[:1]]
    if any(site.parallel for site in survey.facts):  # heads: their calls are no layers
        return tuple(notes)
    last = len(survey.calls) - 1
    # A weighted sum of all hidden states (SUPERB's models), or the last ones of them laid end to end. After the last
    # attention, the state from before it is met as often as in other layers (the residual sum), and once more where the
    # head reads it.
    once_more = len(survey.joins) > 1 and survey.joins[-1] > max(survey.joins[:-1])
    if survey.reached_back == last >= 2 or once_more:
        notes.append(SEVERAL_LAYERS)
    if survey.went_around == last >= 1:
        notes.append(AROUND)
    return tuple(notes)


def rows_of_each(modality: Modality, batch: Batch, study: Study, length: int) -> Tensor:
    """(B, N) readout weights found input by input, for heads that read a position that is no fixed rule."""
    weights = torch.zeros(batch.size, length, device=next(iter(batch.tensors.values())).device)
    for row in range(batch.size):
        rows = readouts.readout_rows(readouts.Passes(modality, batch.select([row])), len(study.sites) - 1).rows
        if not rows:
            raise CaptureError(
                f"the last attention does not reach the output for input {row}, so there is no output position: a "
                "model that halts early on some inputs (a Universal Transformer) has no last layer for them."
            )
        weights[row, rows] = 1 / len(rows)
    return weights


FEW = 4  # tokens: a study that fails on fewer is not kept
STUDIED = 2048  # tokens of a longer text
CONTENT = "content"  # that a study of one model is of, where it depends on it: not of a copy


def _same(tensors: dict[str, Tensor] | None, batch: Batch) -> bool:
    """Whether a study that depends on the content was made of this batch."""
    if tensors is None or tensors.keys() != batch.tensors.keys():
        return False
    pairs = [(tensor, batch.tensors[name]) for name, tensor in tensors.items()]
    return all(one.device == other.device and torch.equal(one, other) for one, other in pairs)


def study_of(modality: Modality, batch: Batch) -> tuple[Study, bool]:
    """Return the study of this model for this kind of input, and whether it was made now; the loan caches it."""
    facts = known_about(modality.model)
    mixes = modality.read.mixes_rows  # asked before any mode is on: the answer may take a pass
    shapes = tuple(
        (k, v.ndim, () if modality.place.lengths_vary else tuple(v.shape[1:])) for k, v in batch.tensors.items()
    )
    # What the model itself is like is not part of the key: when it changes, all that is known of it goes (borrow.py).
    key = (modality.parts, modality.main, shapes, modality.place.form(batch))
    if key in facts and (not facts[key].by_content or _same(facts.get((CONTENT, id(modality.model), key)), batch)):
        facts.move_to_end(key)
        study = facts[key]
        if facts.get(MIXES) and SINGLY not in study.notes:  # found out since
            study = facts[key] = replace(study, notes=(*study.notes, SINGLY))
        return study, False
    one = batch.select([0 if batch.keep_BN is None else int(batch.keep_BN.sum(1).argmax())])
    if mixes:
        study = beside_others(modality, one)
    else:
        # Of a long text a piece tells as much where only the last token speaks; other heads may look anywhere.
        long = modality.place.lengths_vary and modality.place.length(one) > STUDIED
        piece = long and says_tokens(modality.model) and is_causal(modality.mean, one)
        study = study_one(modality, one.beginning(STUDIED) if piece else one)
        if study.sites:
            study = replace(study, forwards=study.forwards + modality.place.settle(one, study.grid))
    if facts.get(MIXES):
        study = replace(study, notes=(*study.notes, SINGLY))
    # A single position teaches nothing about rows; what fails on a few may work on more (a head that skips both ends).
    short = study.trouble is not None and modality.place.lengths_vary and study.input_length < FEW
    if study.input_length > 1 and not short and not isinstance(study.trouble, ReadsPadding):  # of this input alone
        facts[key] = study
        if study.by_content:
            facts[CONTENT, id(modality.model), key] = {name: tensor.clone() for name, tensor in batch.tensors.items()}
    return study, True
