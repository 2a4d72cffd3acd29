"""An input with some of its parts away, as tensors for the model: replaced, filled, deleted, or left out one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered, UnknownName, listed
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, with_deleted
from whyformer.inputs.language import spans_without, without_tokens
from whyformer.inputs.similarity import fitting, without_each
from whyformer.results.types import Units
from whyformer.run import Run
from whyformer.shapes import Array


class Variants(ABC):
    """Makes the batch of (M, P) variants; ``draws`` batches where what is put in is drawn at random."""

    draws = 1
    remarks: tuple[str, ...] = ()  # what a result has to say about them

    @abstractmethod
    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        """One row per variant."""

    def batches(self, present_MP: Array, size: int) -> list[list[int]]:
        """Rows that can share a batch."""
        return [list(range(i, min(i + size, len(present_MP)))) for i in range(0, len(present_MP), size)]

    def contents(self, parts: int) -> list[Any]:
        """All that decides what the variants are: the input with everything, and with nothing."""
        ends = (np.ones((1, parts), dtype=bool), np.zeros((1, parts), dtype=bool))
        batches = [self.batch(present, draw) for present in ends for draw in range(self.draws)]
        return [type(self).__name__, *(batch.contents() for batch in batches)]

    @staticmethod
    def used(run: Run, replacement: str | int, by_default: bool = False) -> tuple[str | int, list[str]]:
        """What stood for an absent unit, in a form that can be asked for again, and what that leaves unsaid.

        It is the name that was asked for, unless every stream took one and the same other. Where streams took
        different things, one name cannot say it, and a remark does.
        """
        if run.modality.pointers:
            return replacement, pointer_remarks(run.modality, replacement, by_default)
        taken = _by_stream(run, replacement)
        if len(set(taken.values())) < 2:
            return next(iter(taken.values()), replacement), []
        each = ", ".join(f"{stream}: {f'token {v}' if isinstance(v, int) else v}" for stream, v in taken.items())
        return replacement, [f"not every stream has replace={replacement!r}; what stood for an absent unit is {each}."]


def _by_stream(run: Run, replacement: str | int) -> dict[str, str | int]:
    """Per stream of which something can be taken away."""
    if not run.modality.multi_input:
        return {run.modality.stream: replacement}
    parts = {s: run.modality.part(s, run.batch)[0] for s in dict.fromkeys(s for u in run.units for s in u.stream)}
    return {stream: fitting(part, replacement) for stream, part in parts.items() if part.replacements}


class Filled(Variants):
    """Every entry of a tensor belongs to a part (-1: to none); without it, what the filling has stands there."""

    def __init__(self, one: Batch, part_of: dict[str, Tensor], fillings: Sequence[dict[str, Tensor]]) -> None:
        self.one, self.part_of, self.fillings = one, part_of, fillings
        self.draws = len(fillings)

    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        present = torch.from_numpy(np.ascontiguousarray(present_MP, dtype=bool))
        changed = {}
        for name, part in self.part_of.items():
            absent = ~present.to(part.device)[:, part.clamp(min=0)] & (part >= 0)
            changed[name] = torch.where(absent, self.fillings[draw][name], self.one.tensors[name])
        return self.one.select([0] * len(present)).with_tensors(**changed)


class Replaced(Filled):
    """As the modality replaces a unit (mask token, mean colour, zero, …), groups of units at a time.

    players: the units of each part. Units of no part are always there.
    """

    def __init__(self, run: Run, row: int, players: Sequence[Sequence[int]], replacement: Any) -> None:
        if replacement == "delete" and not run.modality.edits_text:
            raise BadInput("replace='delete' would change the positions of what is left: use replace=<token id>.")
        units = run.units[row]
        # Every variant would pay for padding: it is cut off where that changes nothing.
        one = run.modality.trimmed(run.batch.select([row]))
        each = run.modality.without_unit(one, 0, units, replacement)
        part_U = _part_of_units(units, players)[run.input_span(row)]
        part_of, filling = {}, {}
        for name, variants in each.tensors.items():
            changed = variants != one.tensors[name]
            if changed.any():
                part_of[name], filling[name] = _owners_seen(variants, one.tensors[name], changed, part_U)
        super().__init__(one, part_of, [filling])


def _part_of_units(units: Units, players: Sequence[Sequence[int]]) -> Tensor:
    """(U,) the part that each unit belongs to, -1: none."""
    part_U = torch.full((len(units),), -1)
    for number, members in enumerate(players):
        part_U[list(members)] = number
    return part_U


def _owners_seen(variants: Tensor, original: Tensor, changed: Tensor, part_U: Tensor) -> tuple[Tensor, Tensor]:
    """For every entry of a tensor: whose it is, seen from who changes it by leaving, and what stands there then."""
    if int(changed.sum(0).max()) > 1:
        raise NotOffered("taking one unit away changes another one here, so they cannot be taken away in groups.")
    unit = changed.int().argmax(0)
    filler = torch.where(changed.any(0), variants.gather(0, unit[None])[0], original[0])
    return torch.where(changed.any(0), part_U.to(unit.device)[unit], -1), filler


class Deleted(Variants):
    """Tokens are left out and the rest moves up. Variants of one length share a batch, so nothing is padded more.

    Padding that the model reads stays. Where every token goes, one that begins or ends a text is left.
    players: the tokens of each part. one_away: no more than one part is left out at a time.
    """

    def __init__(self, run: Run, row: int, players: Sequence[Sequence[int]], one_away: bool = False) -> None:
        self.one = one = run.modality.trimmed(run.batch.select([row]))
        self.main = run.modality.main
        assert one.keep_BN is not None
        tokens = [token for members in players for token in members]
        self.positions = one.keep_BN[0].nonzero()[:, 0].cpu().numpy()[tokens]
        self.sizes = np.array([len(members) for members in players], dtype=int)
        self.owners = np.repeat(np.arange(len(players)), self.sizes)
        self.real = one.keep_BN[0].cpu().numpy()
        most = int(self.sizes.max(initial=0)) if one_away else len(tokens)
        # An answer follows something: of a prompt that goes as a whole, the last token stays.
        self.last = int(one.keep_BN[0].nonzero()[one.answers[0].start, 0]) if one.answers else None
        self.only, self.remarks = None, ()
        if most == int(self.real.sum()):
            self.only = run.modality.only_token()
            self.remarks = (only_remark(run.modality, self.only),)

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
        assert one.keep_BN is not None
        keep = one.keep_BN[0][index.to(one.keep_BN.device)]
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


class LeftOut(Variants):
    """One unit at a time, in any way that the modality knows; padding stays, so that texts fit one batch.

    Tokens that the model puts around a text are always there.
    """

    def __init__(self, run: Run, row: int, replacement: Any) -> None:
        modality, units = run.modality, run.units[row]
        self.first = run.input_span(row).start
        if replacement == "delete" and modality.takes_token_ids and len(units) == 1 and not run.batch.answers:
            self.remarks = (only_remark(modality, modality.only_token()),)
        # Queries of the model's own beside a single input (a learned query that pools) stay.
        if run.multi_stream and not modality.multi_input:
            self._stretch: Callable[[slice], Batch] = without_each(modality, run.batch, row, units, replacement).select
        else:
            self._stretch = modality.left_out(run.batch, row, units, replacement)

    def batch(self, present_MP: Array, draw: int = 0) -> Batch:
        variants, units = np.nonzero(~np.asarray(present_MP, dtype=bool))
        assert len(variants) == len(present_MP) and (np.diff(variants) == 1).all(), "one unit is away in each"
        assert (np.diff(units) == 1).all(), "and they are neighbours"
        return self._stretch(slice(int(units[0]) - self.first, int(units[-1]) + 1 - self.first))


def with_pictures(run: Run, row: int, pictures: Tensor) -> Batch:
    """One image input once per picture that is put in place of its own; the padding around it stays."""
    main = run.modality.main
    pixels = run.batch.tensors[main][row].repeat(len(pictures), 1, 1, 1)
    pixels[..., : pictures.shape[-2], : pictures.shape[-1]] = pictures
    return run.batch.select([row] * len(pictures)).with_tensors(**{main: pixels})


# Which of them a metric gets: by the name of what stands for the absent.


def replacements_of(modality: Modality) -> tuple[str, ...]:
    """Everything that can stand for an absent part; the first is the default."""
    return tuple(dict.fromkeys((*modality.replacements, *modality.fillers)))


def default_replacement(modality: Modality) -> str:
    """The first that the modality has; no deletion where arguments may hold positions."""
    known = replacements_of(modality)
    if not known:
        raise NotOffered(
            "nothing is known that could stand for an absent part of this input, so perturbation metrics cannot be "
            "computed. For token ids without a tokenizer pass replace=<token id>."
        )
    if known[0] == "delete" and modality.pointers:
        raise NotOffered(
            f"{listed(modality.pointers, 'and')} may hold positions in the text, which deleting tokens would move, and "
            "this model names no mask, unk or pad token to put in their place: pass replace=<token id>, or "
            "replace='delete' if they hold something else."
        )
    return known[0]


def pointer_remarks(modality: Modality, replacement: str | int, by_default: bool) -> list[str]:
    """What deleting tokens does, or would do, to arguments that may hold positions."""
    names = listed(modality.pointers, "and")
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


def only_remark(modality: Modality, token: int) -> str:
    """A model reads at least one token."""
    name = modality.labels([token])[0]
    return (
        f"deleting every token leaves {f'token {token}' if name == str(token) else name} as the only token, since the "
        "model needs at least one."
    )


def checked_replacement(modality: Modality, replace: str | int | None) -> str | int:
    """What was asked for, or the default; one of those that the modality has."""
    known = replacements_of(modality)
    if replace is None:
        return default_replacement(modality)
    if isinstance(replace, bool) or (isinstance(replace, int) and not modality.takes_token_ids):
        raise UnknownName("value of replace", replace, known)
    if isinstance(replace, str) and replace not in known and not modality.edits_text:
        raise UnknownName("value of replace", replace, known, "For text a token id works too.")
    return replace


def players_of_parts(run: Run, row: int, parts: Sequence[int], held_U: Array | None = None) -> list[tuple[int, ...]]:
    """The units of each part: one, or those of a segment that can be taken away and are not held."""
    if not run.segments:
        return [(part,) for part in parts]
    free = np.array(run.removable(row), dtype=bool)
    if held_U is not None:
        free &= ~held_U
    groups = run.segments[row][0]
    return [tuple(unit for unit in groups[part] if free[unit]) for part in parts]


def grouped_variants(
    run: Run, row: int, players: Sequence[Sequence[int]], replacement: str | int, one_away: bool = False
) -> Variants:
    """The variants of one input without groups of its units; one_away: one group at a time."""
    modality = run.modality
    if replacement != "delete" or modality.edits_text:
        return Replaced(run, row, players, replacement)
    if modality.multi_input or run.study.extra or run.batch.keep_BN is None:
        raise NotOffered(f"tokens can be deleted from plain text only: use {modality.in_place()}.")
    return Deleted(run, row, players, one_away)


def variants_of(
    run: Run,
    row: int,
    players: Sequence[tuple[int, ...]],
    replacement: str | int,
    pool: Batch,
    seed: Sequence[int],
) -> Variants:
    """The variants of one input of a run; players: the units of each of its parts.

    pool: what means and resampling are taken from.
    """
    modality = run.modality
    if replacement == "delete":
        return grouped_variants(run, row, players, replacement)
    if isinstance(replacement, str) and replacement in modality.fillers:
        return _filled(run, row, players, replacement, pool, seed)
    return Replaced(run, row, players, replacement)


def _filled(
    run: Run, row: int, players: Sequence[Sequence[int]], name: str, pool: Batch, seed: Sequence[int]
) -> Filled:
    if run.study.extra:  # the units of a text are its tokens and some of the model's own
        raise NotOffered("which tensor entries belong to which unit is not known here: use another replacement.")
    modality, units, one = run.modality, run.units[row], run.batch.select([row])
    part_U, part_of = _part_of_units(units, players), {}
    for tensor, unit in modality.owners(units, one).items():
        part = torch.where(unit >= 0, part_U.to(unit.device)[unit.clamp(min=0)], -1)
        if (part >= 0).any():
            part_of[tensor] = part
    return Filled(one, part_of, modality.filling(name, units, one, pool, np.random.default_rng(list(seed))))
