"""Estimate bytes and passes before explaining, and suggest other methods if one is not supported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.fold import Fold, NotFolded, tile_bytes
from whyformer.capture.functions import HeadFusion
from whyformer.capture.roles import Recorder
from whyformer.choices import INSTEAD, answers, guides
from whyformer.errors import CaptureError, NotOffered, WhyformerError, listed
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import known_about
from whyformer.loan.spread import LONG, SavedBytes, free_bytes, recomputable
from whyformer.registry import AUTO, MASKINGS, Chosen, Method, get_method, list_methods, over_maskings
from whyformer.run import Run
from whyformer.run.session import Session
from whyformer.study.entrance import ReadsPadding

# What to do instead, where a method refuses: only what was tried on this model and this input, and ran.

FEWER_STEPS: dict[str, dict[str, Any]] = {"integrated_gradients": {"steps": 1}}  # the same code on fewer points
WORDS = {"gradient": "gradient", "black box": "perturbation"}
Way = tuple[Method, dict[str, Any]]


def advise(refusal: NotOffered | CaptureError, session: Session, refused: Sequence[str] = ()) -> None:
    """Add to an error which methods explain this model on the first of these inputs; ``refused`` are not tried."""
    message = str(refusal)
    if isinstance(refusal, ReadsPadding):
        return  # its prediction is not about the input, whatever explains it
    try:
        _ = session.run([0]).value_B
    except Exception:
        return  # there is nothing that could be explained: what to do about that, the error says itself
    refusal.args = (f"{message.rstrip()} {_sentence(alternatives(session, refused), message)}",)


def alternatives(session: Session, refused: Sequence[str] = ()) -> list[Way]:
    """Return one method of each kind that runs on the first input, found by trying it there."""
    known, running = list_methods(), []
    for way in INSTEAD:
        for name, options in way:
            if (options or name not in refused) and not trouble_with(known[name], session, options):
                running.append((known[name], options))
                break
    return running


def trouble_with(m: Method, session: Session, options: dict[str, Any]) -> str:
    """Return why a method does not explain the first input, "" if it does; found in a few passes."""
    try:
        if m.needs & {"attention_gradients", "input_gradients"}:
            refuse_without_gradients(session.model, m.name)
        run = session.run([0], beside=session.modality.read.mixes_rows and not m.needs <= {"perturbation"})
        run = run.for_needs(m.needs)
        _ask_once(run)
        scores_BN = m.run(run, **m.checked(FEWER_STEPS.get(m.name, {}) | options)).scores_BN
        counts = [int(keep_N.sum()) for keep_N in run.keep_BN]
        if counts != [len(units) for units in run.units]:
            return "its scores do not match the units of this input."
        return "" if torch.isfinite(scores_BN[run.keep_BN]).all() else "its scores are not finite here."
    except Exception as error:  # whatever stands in the way, of whoever's making: it is not recommended
        return str(error) or type(error).__name__


def _ask_once(run: Run) -> None:
    """Run one perturbed input only, and use its value for all others, which are made but not run."""
    score = run.score
    said: list[Tensor] = []

    def rehearsed(batch: Batch, owner: int, *settings: Any, **named: Any) -> Tensor:
        if not said:
            said.append(score(batch.select([0]), owner, *settings, **named))
        return said[0].expand(batch.size)

    run.__dict__["score"] = rehearsed


def _sentence(ways: Sequence[Way], message: str) -> str:
    if not ways:
        tried = dict.fromkeys(name for way in INSTEAD for name, _ in way)
        return f"Other methods are not supported, either ({listed(list(tried), 'and')} were tried)."
    named = [m.name + (f"({', '.join(f'{k}={v!r}' for k, v in o.items())})" if o else "") for m, o in ways]
    kinds = list(dict.fromkeys(WORDS.get(m.specificity, "") for m, _ in ways))
    use = "Or use" if re.search(r"\b[Uu]se\b", message) else "Use"
    if "" in kinds:
        return f"{use} {listed(named, 'or')}."
    return f"{use} a {' or '.join(kinds)} method: {listed(named, 'or')}."


SHARE = 0.25  # of the free memory that stored maps may take before they are folded
FULL = 0.85  # of the free memory that a pass may take before its layers are computed again
SHORT = 256  # positions of the piece that a forward pass is measured on


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of an explanation of these inputs. ``peak_bytes``: above the memory in use now, for one batch.

    full_bytes: with every attention map stored. fold_bytes: without; None if the method or the model does not support
    it, with the reason in ``reason``. route: the choice of ``memory="auto"``.
    """

    method: str
    route: str  # "full" or "fold"
    full_bytes: int
    fold_bytes: int | None
    free_bytes: int
    forwards: float  # per input
    backwards: float
    at_most: bool  # how many there are depends on the input
    batch_size: int  # inputs that are run together
    reason: str = ""
    samples: int = 0  # answers that a chat server is asked for in each forward

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the chosen route."""
        return self.fold_bytes if self.route == "fold" and self.fold_bytes is not None else self.full_bytes

    @property
    def fits(self) -> bool:
        """Whether the device has enough free memory."""
        return self.peak_bytes <= self.free_bytes

    def __str__(self) -> str:
        if self.samples:
            answers = (
                f"{self.forwards:g} contexts × {self.samples} answers = {self.forwards * self.samples:,.0f} answers"
            )
            return f"{self.method}: {answers} per input."
        fold = "not supported" if self.fold_bytes is None else _gib(self.fold_bytes)
        return (
            f"{self.method}: {'at most ' * self.at_most}{round(self.forwards, 2):g} forwards + "
            f"{round(self.backwards, 2):g} backwards per input, {self.batch_size} "
            f"input{'s' * (self.batch_size != 1)} at a time. Maps stored {_gib(self.full_bytes)}, folded {fold}, free "
            f"{_gib(self.free_bytes)}: memory={self.route!r}" + ("" if self.fits else ", which does not fit") + "."
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def map_bytes(run: Run, grad: bool) -> int:
    """Bytes of all attention maps of a batch, with their gradients or without."""
    study, batch, total = run.study, run.batch.size, 0
    sizes, placed = (run.stream_sizes, run.schedule.steps) if run.multi_stream else ({}, ())
    steps = {step.site: (sizes.get(step.query), sizes.get(step.key)) for step in placed}
    for number, site in enumerate(study.sites):
        queries, keys = steps.get(number, (None, None))
        if not steps and not run.windowed and site.queries == site.keys:
            queries = keys = run.length
        count = (queries or site.queries) * (keys or site.keys)
        # A map in the model's numbers, and with gradients its softmax in float32 and the gradient; fused in float32.
        each = (8 if grad else run.bytes_per_number) * site.heads * site.windows + 4
        total += batch * count * each
    largest = max((site.heads for site in study.sites), default=1) * batch * run.length**2
    return total + (3 if grad else 2) * 4 * largest


def why_not_folded(run: Run, m: Method, options: Mapping[str, Any]) -> str:
    """Why a method needs stored maps; "" if it does not."""
    if m.folds is None:
        return f"{m.name} needs whole attention maps, or none: it cannot be folded."
    if not m.folds(**options):
        return f"{m.name} needs whole maps with these options, and only sums over them can be folded."
    if run.keep_layers:
        return "keep_layers=True needs whole maps."
    if run.windowed:
        return "attention runs inside windows, whose maps are small."
    if run.batch.reference_rows:
        return "rows of the table attend to each other."
    if any(site.parallel for site in run.study.sites):
        return "the model computes its heads one by one."
    if options.get("read", "row") != "row" and any(site.queries != site.keys for site in run.study.sites):
        return "a layer that computes a few rows only has no columns."
    return ""


def foldable(chosen: Sequence[Chosen]) -> bool:
    """Can all of these methods do without stored maps?"""
    return all(c.method.folds is not None and c.method.folds(**c.options) for c in chosen)


def folding(session: Session, run: Run, chosen: Sequence[Chosen]) -> frozenset[str]:
    """Names of the methods that are run without storing maps."""
    names = set()
    for m, options in ((c.method, c.options) for c in chosen):
        reason = why_not_folded(run, m, options)
        if session.memory == "fold" and reason:
            raise NotOffered(f"memory='fold': {reason} Omit memory=, or use memory='full'.")
        if not reason and (session.memory == "fold" or not _has_room(run, m)):
            names.add(m.name)
    if any(c.method.name in names and "attention_gradients" in c.method.needs for c in chosen):
        # Layers are computed again in backward if the user turned that on, or if their results would not fit.
        layers = recomputable(run.modality.model)
        run.recomputes = any(getattr(layer, "gradient_checkpointing", False) for layer in layers)
        if layers and not run.recomputes and run.length >= 8 * LONG:
            run.recomputes = activations(run, grad=True) > FULL * free_bytes(run.device)
    return frozenset(names)


def _has_room(run: Run, m: Method) -> bool:
    return map_bytes(run, "attention_gradients" in m.needs) <= SHARE * free_bytes(run.device)


def estimate(session: Session, chosen: Chosen) -> Estimate:
    """For the first batch of a session, which holds the longest of its inputs where they are encoded together."""
    rows, m, options = session.parts()[0], chosen.method, chosen.options
    run = session.run(rows)
    units = max(len(groups) for groups, _ in run.segments) if run.segments else max(map(len, run.units))
    if m.name == AUTO:
        name, more = answers(session.modality.kind, units, options["passes"])[0]
        m = get_method(name)
        options = m.checked(more)
    if m.name == "two_ended" and options["guide"] == "auto":
        options = {**options, "guide": guides(options["passes"])[0]}
    if "replace" in m.options:  # the number of baselines is part of its full name
        options = {**options, "replace": run.modality.mask.replacement(options.get("replace"))}
    (forwards, backwards), at_most = m.cost(units, **options), m.at_most
    if m.works and run.length <= SHORT:
        with suppress(WhyformerError):  # refused: what is declared
            one = session.run([max(rows, key=lambda row: len(run.units[rows.index(row)]))]).for_needs(m.needs)
            m.run(one, **{name: value for name, value in options.items() if name != MASKINGS})
            done, at_most = (float(one.forwards_B[0]), float(one.backwards_B[0])), False
            forwards, backwards = over_maskings(lambda units: done)(units, options.get(MASKINGS))
    grad = bool(m.needs & {"attention_gradients", "input_gradients"})
    activated = 0 if run.modality.read.opaque else activations(run, grad)
    maps = bool(m.needs & {"attention", "attention_gradients"}) and bool(run.study.sites)
    full = activated + (map_bytes(run, "attention_gradients" in m.needs) if maps else 0)
    reason = why_not_folded(run, m, options)
    fold = None if reason else activated + 4 * tile_bytes(run.device)
    if fold is not None and not grad:  # queries and keys of all layers stay; with gradients, the graph holds them
        width = getattr(getattr(session.model, "config", None), "hidden_size", None) or 0
        fold += 2 * len(run.study.sites) * run.batch.size * run.length * width * run.bytes_per_number
    free = free_bytes(run.device)
    folds = session.memory == "fold" or (session.memory == "auto" and run.length >= LONG and not _has_room(run, m))
    if session.memory == "fold" and reason:
        raise NotOffered(f"memory='fold': {reason} Omit memory=, or use memory='full'.")
    return Estimate(
        method=m.name,
        route="fold" if folds and not reason else "full",
        full_bytes=full,
        fold_bytes=fold,
        free_bytes=free,
        forwards=forwards,
        backwards=backwards,
        at_most=at_most,
        batch_size=run.batch.size,
        reason=reason,
        samples=run.modality.mean.samples,
    )


def activations(run: Run, grad: bool) -> int:
    """Bytes that the model's own pass keeps for backward: measured on a short piece, and in proportion to length."""
    facts, key = known_about(run.modality.model), (SavedBytes, grad)
    if key not in facts or not run.modality.place.lengths_vary:
        one = replace(run.batch.select([0]), answers=(), spans=(), trunks=(), shared=None)
        piece, length = one.beginning(SHORT), SHORT
        run.setup_forwards += 1
        try:
            saved = None if piece is one else _saved(run, piece, grad)
        except WhyformerError:  # not every length is one of this model's
            saved = None
            run.setup_forwards += 1
        if saved is None:
            saved, length = _saved(run, one, grad), run.length
        facts[key] = saved / length
    return int(facts[key] * run.length * run.batch.size)


def _saved(run: Run, one: Batch, grad: bool) -> int:
    saved = SavedBytes(run.modality.model)
    folds = not (run.windowed or any(site.parallel for site in run.study.sites))
    fusion = HeadFusion(lambda a, _: a.mean(1), grad)
    names, axes = run.module_names, run.study.batch_axes
    # What cannot be folded is taken with its maps, which are too much rather than too little.
    role = Fold(1, names, axes, fusion=fusion) if folds else Recorder(1, names, axes)
    with torch.set_grad_enabled(grad), saved:
        try:
            with role:
                Output(run.modality, one, run.scalar).logits(one)
        except NotFolded:
            with Recorder(1, names, axes):
                Output(run.modality, one, run.scalar).logits(one)
    return saved.total
