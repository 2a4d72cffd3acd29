"""Variants of an input with some of its parts masked, as tensors for the model: replaced by a baseline, or deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.lookups import ABSENT
from whyformer.errors import BadInput, NotOffered, UnknownName, WhyformerError, listed, refused
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Filling, SamplePool, with_deleted
from whyformer.inputs.multi_input import filling_by_stream, fitting, owners_by_stream
from whyformer.inputs.stream_inputs import fitted
from whyformer.inputs.table_reference import rows_asked
from whyformer.inputs.tokens import spans_without, without_tokens
from whyformer.inputs.units import Column
from whyformer.loan.borrow import known_about
from whyformer.results.types import ROUNDING, Units
from whyformer.run import Run
from whyformer.shapes import Array


class Variants(ABC):
    """Makes the batch of (M, P) variants; ``draws`` batches where the baseline is drawn at random."""

    draws = 1
    weights: Array | None = None  # of the draws, where some count more
    remarks: tuple[str, ...] = ()  # what a result has to say about them

    @abstractmethod
    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        """One row per variant."""

    def batches(self, present_MP: Array, size: int) -> list[list[int]]:
        """Rows that can share a batch."""
        return [list(range(i, min(i + size, len(present_MP)))) for i in range(0, len(present_MP), size)]

    def mean(self, drawn: Sequence[Array]) -> Array:
        """Return the mean over the draws, by their weights."""
        if len(drawn) == 1:
            return drawn[0]
        mean: Array = np.average(drawn, axis=0, weights=self.weights)
        return mean

    def contents(self, parts: int) -> list[Any]:
        """All that decides what the variants are: the input with everything, and with nothing."""
        ends = (np.ones((1, parts), dtype=bool), np.zeros((1, parts), dtype=bool))
        batches = [self.batch(present, draw) for present in ends for draw in range(self.draws)]
        weights = [] if self.weights is None else self.weights.tolist()
        return [type(self).__name__, *(batch.contents() for batch in batches), *weights]

    @staticmethod
    def used(run: Run, replacement: str | int, by_default: bool = False) -> tuple[str | int, list[str]]:
        """Return the baseline by a name that can be asked for again, and remarks where one name is not enough.

        It is the name that was asked for, unless every stream took one and the same other.
        """
        remarks = baseline_remarks(run.modality, replacement, by_default)
        if run.modality.read.pointers or not isinstance(replacement, (str, int)):
            return replacement, remarks
        taken: dict[str, str | int] = {run.modality.stream: replacement}
        if run.modality.read.joint or run.multi_stream:
            streams = dict.fromkeys(stream for units in run.units for stream in units.stream)
            parts = {stream: run.modality.part(stream, run.batch)[0].mask for stream in streams}
            taken = {stream: fitting(part, replacement) for stream, part in parts.items() if part.replacements}
        used = next(iter(taken.values()), replacement) if len(set(taken.values())) < 2 else replacement
        if len(set(taken.values())) < 2 and (by_default or used == replacement):
            return used, remarks
        each = ", ".join(f"{stream}: {f'token {v}' if isinstance(v, int) else v}" for stream, v in taken.items())
        return used, [f"not every stream has replace={replacement!r}; what stood for an absent unit is {each}."]


class Filled(Variants):
    """Every entry of a tensor belongs to a part (-1: to none), and is replaced by the baseline if that is masked."""

    def __init__(
        self, one: Batch, part_of: dict[str, Tensor], fillings: Sequence[Filling], weights: Array | None = None
    ) -> None:
        self.one, self.part_of, self.fillings = one, part_of, fillings
        self.draws, self.weights = len(fillings), weights
        self.absent = any(not t.is_floating_point() and bool((t == ABSENT).any()) for t in fillings[0].values())

    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        # Part -1 is the last column: entries of no part are always there.
        present_MP = np.pad(np.asarray(present_MP, dtype=bool), ((0, 0), (0, 1)), constant_values=True)
        present, changed = torch.from_numpy(present_MP), {}
        for name, part in self.part_of.items():
            here = present.to(part.device)[:, part]
            changed[name] = torch.where(here, self.one.tensors[name], self.fillings[draw][name])
        one, others = self.one, {k: v for k, v in self.one.tensors.items() if k not in changed}
        rows = replace(one, tensors=others).select([0] * len(present))
        tensors = {name: changed[name] if name in changed else rows.tensors[name] for name in one.tensors}
        return replace(rows, tensors=tensors, trunks=(), absent=self.absent)


class Replaced(Filled):
    """Units replaced by one of the modality's replacements (mask token, mean colour, zero, …).

    players: the units of each part. Units of no part are always there. trim: cut padding off.
    """

    def __init__(
        self, run: Run, row: int, players: Sequence[Sequence[int]], replacement: Any, trim: bool = True
    ) -> None:
        modality, units = run.modality, run.units[row]
        if replacement == "delete" and not modality.mask.edits_text:
            raise BadInput("replace='delete' would change the positions of what is left: use replace=<token id>.")
        if replacement == "attention_mask" and sum(map(len, players)) == len(units):
            raise NotOffered(f"a mask that hides every token leaves an empty input: use {modality.mask.in_place()}.")
        # Every variant would pay for padding: it is cut off where that changes nothing.
        one = run.batch.select([row])
        one = _trimmed(run, one) if trim and isinstance(replacement, (str, int)) else one
        owners, filling = _owners(run, units, one), _filling(run, replacement, units, one)
        parts = _parts(owners, _part_of_units(units, players)[input_span(run, row)], filling[0])
        super().__init__(one, parts, filling, modality.mask.filling_weights(replacement))
        self.remarks = _unowned(units, parts, players)


def _owners(run: Run, units: Units, one: Batch) -> dict[str, Tensor]:
    """Return the unit of each entry; queries of the model's own beside a single input (one that pools) have none."""
    by_stream = run.multi_stream and not run.modality.read.joint
    return owners_by_stream(run.modality.mask, units, one) if by_stream else run.modality.mask.owners(units, one)


def _filling(run: Run, replacement: Any, units: Units, one: Batch) -> list[Filling]:
    """Return the baseline of one input: by its name, or the numbers that were given, of one argument or by argument."""
    by_stream = run.multi_stream and not run.modality.read.joint
    named = partial(filling_by_stream, run.modality.mask) if by_stream else run.modality.mask.filling
    if isinstance(replacement, (str, int)):
        return named(replacement, units, one)
    filling = named(default_replacement(run.modality, run.batch), units, one)
    names = [name for name in filling[0] if one.tensors[name].is_floating_point()]
    if len(filling) > 1 or not names:
        raise BadInput("replace= is a tensor, and this input is no tensor of floats: give the name of a baseline.")
    if not isinstance(replacement, Mapping) and len(names) > 1:
        each = ", ".join(f"{name!r}: …" for name in names)
        raise BadInput(
            f"one tensor cannot be the baseline of several arguments: give one for each, replace={{{each}}}."
        )
    for name, numbers in (replacement if isinstance(replacement, Mapping) else {names[0]: replacement}).items():
        if name not in names:
            raise UnknownName("argument", name, names)
        filling[0][name] = fitted(numbers, one.tensors[name][0], f"replace of {name!r}")[None]
    return filling


def _unowned(units: Units, parts: dict[str, Tensor], players: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Return a remark about units that hold no number of the input: masking them would change nothing."""
    there = {int(number) for part in parts.values() for number in part.unique()}
    lost = [units.text_of(members) for i, members in enumerate(players) if len(members) and i not in there]
    return (f"no number of the input belongs to {listed(lost[:8], 'and')}: masking changes nothing there.",) * bool(
        lost
    )


def _part_of_units(units: Units, players: Sequence[Sequence[int]]) -> Tensor:
    """(U,) the part that each unit belongs to, -1: none."""
    part_U = np.full(len(units), -1)
    for number, members in enumerate(players):
        part_U[list(members)] = number
    return torch.from_numpy(part_U)


def _parts(owners: dict[str, Tensor], part_U: Tensor, filling: Filling) -> dict[str, Tensor]:
    """Return the part of each entry of the tensors that change; -1: none."""
    part_U = torch.cat([part_U, torch.tensor([-1])])  # the last one is that of unit -1
    return {name: part_U.to(owner.device)[owner] for name, owner in owners.items() if name in filling}


class Deleted(Variants):
    """Tokens are deleted and the rest moves up. Variants of one length share a batch, so nothing is padded more.

    Padding that the model reads stays. Where every token is deleted, one that begins or ends a text is left.
    players: the tokens of each part. one_away: no more than one part is deleted at a time. trim: cut padding off.
    """

    def __init__(
        self, run: Run, row: int, players: Sequence[Sequence[int]], one_away: bool = False, trim: bool = True
    ) -> None:
        one = run.batch.select([row])
        self.one = one = _trimmed(run, one) if trim else one
        self.main = run.modality.main
        tokens = [token for members in players for token in members]
        self.positions = one.real_BN[0].nonzero()[:, 0].cpu().numpy()[tokens]
        self.sizes = np.array([len(members) for members in players], dtype=int)
        self.owners = np.repeat(np.arange(len(players)), self.sizes)
        self.real = one.real_BN[0].cpu().numpy()
        most = int(self.sizes.max(initial=0)) if one_away else len(tokens)
        # An answer follows something: of a prompt that goes as a whole, the last token stays.
        self.last = int(one.real_BN[0].nonzero()[one.answers[0].start, 0]) if one.answers else None
        self.only, self.remarks = None, ()
        if most == int(self.real.sum()):
            self.only = run.modality.mask.only_token()
            name = run.modality.read.labels([self.only])[0]
            self.remarks = (
                f"deleting every token leaves {f'token {self.only}' if name == str(self.only) else name} as the only "
                "token, since the model needs at least one.",
            )

    def batches(self, present_MP: Array, size: int) -> list[list[int]]:
        left = present_MP @ self.sizes
        together: list[list[int]] = []
        for count in np.unique(left):
            rows = np.flatnonzero(left == count).tolist()
            together += [rows[i : i + size] for i in range(0, len(rows), size)]
        return together

    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        width = len(self.real)
        there = np.ones((len(present_MP), width), dtype=bool)
        there[:, self.positions] = np.asarray(present_MP)[:, self.owners]
        if self.last is not None:
            there[~(there & self.real)[:, : self.last + 1].any(1), self.last] = True
        empty = ~there[:, self.real].any(1)
        there[empty, self.real.argmax()] = True
        index = torch.from_numpy(np.stack([np.flatnonzero(row) for row in there]))
        tensors = with_deleted(self.one.tensors, width, index)
        # Counted among the real tokens.
        one = self.one
        keep = one.real_BN[0][index.to(one.real_BN.device)]
        if empty.any():
            assert self.only is not None
            only_left = torch.from_numpy(empty).to(keep.device)[:, None] & keep
            tensors[self.main] = torch.where(only_left, self.only, tensors[self.main])
        gone = [np.flatnonzero(~row[self.real]).tolist() for row in there] if one.positions or one.spans else []
        chosen = without_tokens(one.positions * len(gone), gone) if one.positions else ()
        spans = spans_without(one.spans * len(gone), gone) if one.spans else ()
        lost = width - index.shape[1]  # all before the answer, which stays
        answers = tuple(answer.moved(-lost) for answer in one.answers * len(index))
        return Batch(tensors, keep_BN=keep, constants=one.constants, positions=chosen, spans=spans, answers=answers)


def left_out(run: Run, row: int, replacement: Any) -> Variants:
    """Return the variants in which single units are masked; padding stays, so that texts fit one batch.

    Tokens that the model puts around a text are always there.
    """
    modality, units, one, span = run.modality, run.units[row], run.batch.select([row]), input_span(run, row)
    if replacement == "delete" and modality.read.embeds and not run.multi_stream and not modality.read.joint:
        if one.answers and one.answers[0].start == 0:
            raise NotOffered(
                "replace='delete': the prompt has one token, and without it the answer follows nothing. Use "
                "replace=<token id>."
            )
        tokens = [[i - span.start] if span.start <= i < span.stop else [] for i in range(len(units))]
        return Deleted(run, row, tokens, one_away=True, trim=False)
    owners, filling = _owners(run, units, one), _filling(run, replacement, units, one)
    parts = _parts(owners, torch.arange(len(units))[span], filling[0])
    left = Filled(one, parts, filling, modality.mask.filling_weights(replacement))
    free = [may and not special for may, special in zip(maskable(run, row), units.special, strict=True)]
    left.remarks = _unowned(units, parts, [[i] if may else [] for i, may in enumerate(free)])
    return left


def with_pictures(run: Run, row: int, pictures: Tensor) -> Batch:
    """One image input once per picture that is put in place of its own; the padding around it stays."""
    main = run.modality.main
    pixels = run.batch.tensors[main][row].repeat(len(pictures), 1, 1, 1)
    pixels[..., : pictures.shape[-2], : pictures.shape[-1]] = pictures
    return run.batch.select([row] * len(pictures)).with_tensors(**{main: pixels})


# The variants of a metric, by the name of the baseline


def replacements_of(modality: Modality, batch: Batch) -> tuple[str, ...]:
    """Return the names of all baselines; the first is the default."""
    return tuple(dict.fromkeys((*modality.mask.offered(batch.asked.segments), *modality.mask.fillers)))


def default_replacement(modality: Modality, batch: Batch) -> str:
    """The first that the modality has; no deletion where arguments may hold positions."""
    known = replacements_of(modality, batch)
    if not known:
        raise NotOffered(
            "nothing is known that could stand for an absent part of this input, so perturbation metrics cannot be "
            "computed. For token ids without a tokenizer pass replace=<token id>."
        )
    pointers = modality.read.pointers
    if known[0] == "delete" and pointers:
        raise NotOffered(
            f"{listed(pointers, 'and')} may hold positions in the text, which deleting tokens would move, and "
            "this model names no mask, unk or pad token to put in their place: pass replace=<token id>, or "
            "replace='delete' if they hold something else."
        )
    return known[0]


def baseline_remarks(modality: Modality, replacement: str | int, by_default: bool) -> list[str]:
    """What a masked unit holds, and what deleting tokens does, or would do, to arguments that may hold positions."""
    if not modality.read.pointers:
        return list(modality.mask.about_baseline(replacement)) if by_default else []
    names = listed(modality.read.pointers, "and")
    if replacement == "delete":
        return [
            f"{names} may hold positions in the text: where a token before such a position was deleted, it is that of "
            "another token. A replacement that keeps tokens in place (replace=<token id>) does not move them."
        ]
    if not by_default:
        return []
    return [
        f"tokens were replaced in place ({replacement}), not deleted, since {names} may hold positions in the text: "
        "deleting moves the tokens that stand there."
    ]


def checked_replacement(modality: Modality, batch: Batch, replace: str | int | None) -> str | int:
    """What was asked for, or the default; one of those that the modality has."""
    known = replacements_of(modality, batch)
    if replace is None:
        return default_replacement(modality, batch)
    replace = modality.mask.replacement(replace)
    if isinstance(replace, bool) or (isinstance(replace, int) and not modality.mask.takes_token_ids):
        raise UnknownName("value of replace", replace, known)
    if isinstance(replace, str) and replace not in known and not modality.mask.edits_text and not rows_asked(replace):
        raise UnknownName("value of replace", replace, known, "For text a token id works too.")
    return replace


def players_of_parts(run: Run, row: int, parts: Sequence[int], held_U: Array | None = None) -> list[tuple[int, ...]]:
    """Return the units of each part: one, or those of a segment that can be masked and are not held."""
    if not run.segments:
        return [(part,) for part in parts]
    free = np.array(maskable(run, row), dtype=bool)
    if held_U is not None:
        free &= ~held_U
    groups = run.segments[row][0]
    return [tuple(unit for unit in groups[part] if free[unit]) for part in parts]


def grouped_variants(
    run: Run, row: int, players: Sequence[Sequence[int]], replacement: str | int, one_away: bool = False
) -> Variants:
    """Return the variants of one input without groups of its units; one_away: one group at a time."""
    modality = run.modality
    if replacement != "delete" or modality.mask.edits_text:
        return Replaced(run, row, players, replacement)
    if modality.read.joint or run.multi_stream or run.study.extra or run.batch.keep_BN is None:
        raise NotOffered(f"tokens can be deleted from plain text only: use {modality.mask.in_place()}.")
    return Deleted(run, row, players, one_away)


def variants_of(
    run: Run,
    row: int,
    players: Sequence[tuple[int, ...]],
    replacement: str | int,
    pool: Batch,
    seed: Sequence[int],
    trim: bool = True,
) -> Variants:
    """Return the variants of one input of a run; players: the units of each of its parts.

    pool: what means and resampling are taken from. trim: cut padding off, so that no variant pays for it.
    """
    modality = run.modality
    if replacement == "delete":
        return grouped_variants(run, row, players, replacement)
    if not isinstance(replacement, str) or replacement not in modality.mask.fillers:
        return Replaced(run, row, players, replacement, trim)
    if run.study.extra:  # the units of a text are its tokens and some of the model's own
        raise NotOffered("which tensor entries belong to which unit is not known here: use another replacement.")
    units, one = run.units[row], run.batch.select([row])
    fillings = modality.mask.filling(replacement, units, one, SamplePool(pool, np.random.default_rng(list(seed))))
    return Filled(one, _parts(_owners(run, units, one), _part_of_units(units, players), fillings[0]), fillings)


# What of the explained value no score stands for: inputs that are no units, and units that matter only together.


UNSCORED = (
    "{share:.0%} of the value depends on {names}, which {are} not scored: the value changes by {change} when {they} "
    "masked {part}{units}."
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
        beside = {} if run.modality.read.opaque else run.modality.place.beside(run.batch, run.input_length or 0)
        run.unscored = [
            _remarks(run, row, beside) if beside and row in run.batch.explained else [] for row in range(run.batch.size)
        ]
    return run.unscored


def _remarks(run: Run, row: int, beside: Mapping[str, Column]) -> list[str]:
    many = len(beside) > 1
    words = {"names": listed(list(beside), "and"), "are": "are" if many else "is", "them": "them" if many else "it"}
    words["they"] = "they are" if many else "it is"
    changes = [_change(run, row, partial(_without, run, row, beside, half)) for half in (False, True)]
    change = max((c for c in changes if c is not None), key=abs, default=None)
    if change is None:
        return [UNKNOWN.format(**words)]
    words["part"] = "as a whole" if change == changes[0] else "in part"
    units = _change_without_units(run, row)
    share = abs(change) / max(abs(change) + abs(units or 0.0), 1e-30)
    if abs(change) <= _rounding(run, row) or share < LEAST:
        return []
    said = "" if units is None else f" (all units: {-units:+.3g})"
    return [UNSCORED.format(share=share, change=f"{-change:+.3g}", units=said, **words)]


def _without(run: Run, row: int, beside: Mapping[str, Column], half: bool) -> float:
    """Return the explained value without these numbers: zeros, or others where zeros stand already.

    half: of each, the first half of its numbers, because the effects of all may cancel out.
    """
    one = run.batch.select([row])
    changed = {name: tensor[0].clone() for name, tensor in one.tensors.items()}
    for name, where in beside.values():
        values = changed[name][where]
        other = torch.zeros_like(values) if bool(values.any()) else torch.ones_like(values)
        if half:
            other.view(-1)[(values.numel() + 1) // 2 :] = values.reshape(-1)[(values.numel() + 1) // 2 :]
        changed[name][where] = other
    named = {name: changed[name][None] for name, _ in beside.values()}
    return float(run.score(one.with_tensors(**named), row)[0])


def _change_without_units(run: Run, row: int) -> float | None:
    """Return by how much the value falls when all units are masked; None where they cannot be."""

    def masked() -> float:
        free = np.array(maskable(run, row)) & ~np.array(run.units[row].special, dtype=bool)
        players = [np.flatnonzero(free).tolist()]
        variants = grouped_variants(run, row, players, default_replacement(run.modality, run.batch))
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
        if size > least or run.modality.read.opaque:
            continue
        change = _change_without_units(run, row)
        if change is not None and abs(change) > MOVED * least:
            said = TOGETHER.format(method=method, row=run.numbers[row], change=change)
            raise refused(NotOffered(said), run.batch.size)


def input_span(run: Run, row: int) -> slice:
    """Return the units that are the input's own tokens: a model may add others around a text (a learned [CLS])."""
    count, extra = len(run.units[row]), run.study.extra
    if run.multi_stream or run.modality.read.joint or not run.modality.read.embeds or extra <= 0:
        return slice(0, count)
    before = extra if run.front is None else run.front
    return slice(before, count - (extra - before))


def maskable(run: Run, row: int) -> list[bool]:
    """Return, per unit of one input, whether it can be masked."""
    units, span = run.units[row], input_span(run, row)
    may = run.modality.mask.removable(units, run.batch)
    if run.batch.answers:  # tokens that are explained stay
        may = [may[i] and i - span.start <= run.batch.answers[row].start for i in range(len(units))]
    return [may[i] and span.start <= i < span.stop for i in range(len(units))]


def _trimmed(run: Run, one: Batch) -> Batch:
    """Return one input without its padding, where padding changes nothing, which takes two passes once."""
    known = known_about(run.modality.model)
    before = len(known)
    one = run.modality.read.trimmed(one)
    run.setup_forwards += 2 * (len(known) > before)
    return one
