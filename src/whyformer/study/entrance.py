"""The entrance: check that each unit of the input arrives at the position that is named after it.

A model may lay patches out column by column, read a text from its end, or put a token of its own among the others. So
some units are changed, and the values that the first attention reads have to change where these units are expected. A
text takes no such pass where the embedding was seen to read the ids as given: what follows is audited (``leak_of``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import ATTENTION, Args, Function, Kwargs
from whyformer.capture.record import observe
from whyformer.capture.roles import Observe, first_values
from whyformer.errors import (
    BadInput,
    CaptureError,
    Misplaced,
    NotOffered,
    NotOverUnits,
    PartlyCaptured,
    WhyformerError,
)
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, require_shown, shifted
from whyformer.loan.borrow import known_about, modules_of
from whyformer.results.types import Units
from whyformer.study.facts import Study
from whyformer.study.readout import Passes, readout_rows
from whyformer.study.schedule import Schedule

# Padding: what a model hides by itself, and whether its head reads any.

HIDDEN = 1e-4  # of a row's attention: what a mask leaves over


def hidden_padding(modality: Modality, batch: Batch) -> Batch:
    """Find padding that a home-made model masks by itself (``ids == 0`` in its forward), where no mask was passed.

    A candidate is a run of the embedding's padding index at either end; it is padding if nobody attends to it.
    """
    if not modality.place.padding_in_doubt:
        return batch
    if not modality.read.embeds or any("mask" in name for name in batch.tensors):
        main = batch.tensors.get(modality.main)
        doubtful = [  # what attention_mask and padding masks mean is agreed upon
            name
            for name, mask in batch.tensors.items()
            if name.endswith("mask") and name != "attention_mask" and "padding" not in name
            if main is not None and mask.shape == main.shape[:2]
        ]
        return _right_way_round(modality, batch, doubtful) if doubtful else batch
    index = padding_index(modality)
    if index is None or surely_unpadded(modality, batch, index):
        return batch
    pad_BN = torch.eq(batch.tensors[modality.main], index).int()
    candidates = (pad_BN.cumprod(1) + pad_BN.flip(1).cumprod(1).flip(1)).bool()  # runs at the start and the end
    rows = candidates.any(1).nonzero()[:, 0].tolist()
    if not rows:
        return batch
    facts = known_about(modality.model)
    if "hides padding" not in facts:
        columns = [
            m[:, :, candidates[rows[0]]] for m in _maps_of(modality, batch.select(rows[:1]), candidates.shape[1])
        ]
        facts["hides padding"] = bool(columns) and not any(c.any() for c in columns)
    return replace(batch, keep_BN=~candidates) if facts["hides padding"] else batch


def _maps_of(modality: Modality, one: Batch, length: int) -> list[Tensor]:
    """(H, Q, K) attention maps of one input, of those calls that attend over so many positions, or one token more."""
    run = Passes(modality, replace(one, raw=()))  # whatever of it is explained later
    maps = [site.attention_BHQK[0] for site in observe(run, Observe(1, run.names)).sites]
    return [m[:, :, -length:] for m in maps if m.shape[-1] - length in {0, 1}]


def _right_way_round(modality: Modality, batch: Batch, doubtful: list[str]) -> Batch:
    """Invert a mask whose True means "hide", as in torch: then no position attends to what was taken for real."""
    keep_BN = batch.keep_BN
    if keep_BN is None and not modality.read.embeds:
        keep_BN = modality.place.keep(batch, batch.tensors[modality.main].shape[1], None)
    if keep_BN is None:
        return batch
    rows = (keep_BN.any(1) & ~keep_BN.all(1)).nonzero()[:, 0].tolist()  # where it hides something, but not all
    facts, shown = known_about(modality.model), bool(keep_BN.any(1).all())
    key = ("True hides", *doubtful)
    if key not in facts and (rows or not shown):
        row = rows[0] if rows else 0
        keep_N = keep_BN[row] if rows else torch.arange(keep_BN.shape[1], device=keep_BN.device) == 0
        tried = batch.select([row])
        # A mask that hides a whole input or nothing is tried with one position.
        tried = tried if rows else tried.with_tensors(**{k: keep_N[None].to(tried.tensors[k].dtype) for k in doubtful})
        maps = _maps_of(modality, tried, len(keep_N))
        attended = any(m[:, :, keep_N].any() for m in maps)
        facts[key] = bool(maps) and not attended and all(m[:, :, ~keep_N].any() for m in maps)
    if not facts.get(key):
        if not shown:
            require_shown(doubtful[0], keep_BN)
        return batch
    if batch.raw:  # the mask was made of a text by us: it is the mask that was wrong, not what is real
        return batch.with_tensors(**{name: ~batch.tensors[name].bool() for name in doubtful})
    return replace(batch, keep_BN=~keep_BN)


def surely_unpadded(modality: Modality, batch: Batch, index: int | None) -> bool:
    """Whether no row begins or ends with a padding index; False where only the GPU could tell."""
    length = batch.tensors[modality.main].shape[1]
    rows: list[list[int]] = [facts.get("ids", []) if isinstance(facts, dict) else [] for facts in batch.encodings]
    known = len(rows) == batch.size and all(len(row) == length for row in rows)
    return index is None or (known and not any(index in (row[0], row[-1]) for row in rows))


def padding_index(modality: Modality) -> int | None:
    """Return the padding index of the model's embedding, if it has one."""
    tables = [m for m in modules_of(modality.model) if isinstance(m, nn.Embedding)]
    return next((int(table.padding_idx) for table in tables if table.padding_idx is not None), None)


class ReadsPadding(CaptureError, BadInput):
    """The head reads a position that is padding: whatever the method, the prediction is not about the input."""


def reads_padding(row: int, first: bool) -> ReadsPadding:
    """Return the error for a head that reads this row; first: it reads at the beginning."""
    place, other = (f"position {row}", "right") if first else ("the last position", "left")
    return ReadsPadding(
        f"the head uses {place} of each input, which is padding here (masked), so it uses no position of the input. "
        f"Pad on the {other} side, or give inputs one by one, without padding."
    )


def require_real_rows(modality: Modality, batch: Batch, keep_BN: Tensor, study: Study) -> int:
    """Raise if the head reads a fixed end of its rows and that is padding; return the passes that took."""
    if isinstance(study.trouble, ReadsPadding):
        raise ReadsPadding(*study.trouble.args)
    if not study.plain or study.readout is None:
        return 0
    # The first row or the first real one? An input without padding does not tell. Asked once per model; where
    # rows are looked up, of each input.
    first, last, facts = study.readout.kind != "last", study.sites[-1], known_about(modality.model)
    each, asked = study.readout.looked_up(modality.place.lengths_vary), ("reads real rows", first)
    padded = (~keep_BN.all(1) if each else ~keep_BN[:, 0 if first else -1]).nonzero()[:, 0].tolist()
    known = asked in facts or study.readout.kind in {"mean", "rows"}
    if not padded or (known and not each) or last.queries != last.keys:
        return 0
    padded = padded if each else padded[:1]
    for row in padded:
        rows = readout_rows(Passes(modality, batch.select([row])), len(study.sites) - 1).rows
        if rows and not keep_BN[row, rows].any():
            raise reads_padding(rows[0], rows[0] < int(keep_BN[row].int().argmax()))
    facts |= {} if each else {asked: True}
    return len(padded)


MANY = 64  # columns or steps: of more, a part is changed
ELSEWHERE = (
    "the model reorders the input: a change of {unit} does not change position {place} of its attention, as expected, "
    "but another one (patches column by column, a reversed text, an added token among the others). Attention scores "
    "would be assigned to the wrong units. Keep the order of the input in the model, or use a method without attention."
)
SORTED = (
    "the model sorts the input by its content, and a change of one unit changes several positions, so it is not known "
    "which unit each position of its attention holds. Use a method without attention."
)
NOT_OWN = (
    "the model's attention runs over {count} positions, as if over {units} units and tokens of the model's own, but "
    "position {place} changes with the input before any attention: units were mixed, so it is not known which of them "
    "each position holds. Use a method without attention."
)
CHANNELS_FIRST = (
    "the model's positions are made of the third axis of its input, whose second axis has as many entries: attention "
    "scores would be assigned to these. Use a method without attention."
)
MIXED = (
    "positions are mixed before the first attention (by a recurrent layer, a long convolution, a mean): a change of "
    "{unit} changes {count} of {all} positions there, and attention scores are those of positions."
)
NEAR = 3  # positions, as far as overlapping patches and short convolutions reach
LOOKED_AT = 8  # units, by which it is decided whether only neighbours are mixed
DESCRIBED = " With processor=wf.Table(…), the position of each column is detected."


def misplaced(
    run: Passes, first_BHKD: Tensor, front: int | None, grid: tuple[int, int] | None, reorders: bool = False
) -> NotOverUnits | tuple[str, ...]:
    """The error that units are not at their positions, by the values that the first attention read, or warnings.

    reorders: the model sorts by content, and the input is not in that order.
    """
    one, length, modality = run.one, first_BHKD.shape[2], run.modality
    units = modality.place.units(one, length, front, grid)[0]
    places = modality.place.keep(one, length, front)[0].nonzero()[:, 0].tolist()
    try:
        owners = _owners(modality, units, one, length, front)
    except NotOffered:
        return ()
    there = sorted({int(u) for owner in owners.values() for u in owner.unique() if u >= 0})
    plain = [u for u in there if not units.special[u]]
    there = plain if len(plain) > 1 else there
    if len(there) < 2 or len(places) != len(units):
        return ()
    added = {place for place, special in zip(places, units.special, strict=True) if special}
    # A single unit far from where other orders would put it: a corner of a picture, no middle of a text.
    corner = grid is not None and len(there) == grid[0] * grid[1] and min(grid) > 1
    aside = there[grid[1] - 1] if grid is not None and corner else there[len(there) // 4]
    row = grid is None and len(there) <= MANY  # sets tell any two of its units apart
    sets, clean = _sets(there, row), True
    sets = [[unit] for unit in there[:MANY]] if reorders else [there, *sets] if row else sets
    others = [(first_BHKD, set[int]())]  # values that a set is compared with, and positions that were changed there
    for chosen in [*sets, [aside]]:
        variant, touched = _changed(one, owners, chosen)
        try:
            after_BHKD = run.values(variant)
        except (WhyformerError, RuntimeError, IndexError, ValueError):  # not every number is an input of this model
            return ()
        if after_BHKD.shape != first_BHKD.shape:
            return ()
        moved, expected = moved_at(first_BHKD, after_BHKD), {places[u]: u for u in touched}
        if modality.place.pixels and (not_own := moved & added):
            return Misplaced(NOT_OWN.format(count=length, units=len(there), place=min(not_own)))
        if (place := _first_unmoved(moved, expected)) is not None:
            message = ELSEWHERE.format(unit=_named(units, expected[place]), place=place)
            return Misplaced(message + (DESCRIBED if modality.stream == "table" else ""))
        # Convolutions mix neighbours, so a single changed unit is located better.
        clean &= all(moved_at(before, after_BHKD) <= expected.keys() ^ changed for before, changed in others)
        if chosen is there:
            others.append((after_BHKD, {*expected}))
        if clean and chosen is sets[-1]:
            return ()
    if _along_last_axis(run, first_BHKD):
        return Misplaced(CHANNELS_FIRST)
    if reorders and not clean:
        return Misplaced(SORTED)
    return () if clean else _mixed(run, first_BHKD, owners, {u: places[u] for u in there}, units, grid)


def _mixed(
    run: Passes,
    before_BHKD: Tensor,
    owners: dict[str, Tensor],
    places: Mapping[int, int],
    units: Units,
    grid: tuple[int, int] | None,
) -> tuple[str, ...]:
    """Return the warning that a unit changes positions before any attention that are not close to it."""
    first, across = min(places.values()), 1 if grid is None else grid[1]
    for unit in list(places)[:: -(-len(places) // LOOKED_AT) if len(places) > MANY or grid is not None else 1]:
        moved = moved_at(before_BHKD, run.values(_changed(run.one, owners, [unit])[0]))
        row, column = divmod(places[unit] - first, across)
        rows_and_columns = [divmod(place - first, across) for place in moved]
        if any(max(abs(a - row), abs(b - column)) > NEAR for a, b in rows_and_columns):
            return (MIXED.format(unit=_named(units, unit), count=len(moved), all=before_BHKD.shape[2]),)
    return ()


def _along_last_axis(run: Passes, before_BHKD: Tensor, site: int = 0) -> bool:
    """Whether steps of the third axis of a sequence move fewer positions than those of the second do."""
    name = run.modality.main
    numbers = run.one.tensors.get(name)
    if run.modality.stream != "sequence" or numbers is None or not numbers.is_floating_point() or numbers.ndim != 3:
        return False
    moved = []
    for axis in (1, 2):
        other = numbers.clone()
        other.select(axis, 0).copy_(shifted(numbers).select(axis, 0))
        moved.append(len(moved_at(before_BHKD, run.values(run.one.with_tensors(**{name: other}), site))))
    return 0 < moved[1] < moved[0]


def misplaced_in_streams(
    run: Passes, schedule: Schedule, embedded: Set[int], grid: tuple[int, int] | None, first_BHKD: Tensor
) -> CaptureError | tuple[str, ...]:
    """Return the error of ``misplaced`` for several streams, or that words are mixed before any attention; or notes.

    embedded: addresses of texts that a lookup read as given, so that their words are in order.
    """
    notes: tuple[str, ...] = ()
    for step in schedule.steps:
        stream = step.key
        if any(s.query == s.key == stream for s in schedule.steps[: step.site]):
            continue
        try:
            part, view = run.modality.part(stream, run.one)
            words = part.read.embeds and view.keep_BN is not None and part.main in run.one.tensors  # T5 makes its own
            in_order = words and run.one.tensors[part.main].data_ptr() in embedded
            before = run.values(site=step.site) if step.site else first_BHKD
            length = before.shape[2]
            if not in_order and stream == run.modality.stream and _along_last_axis(run, before, step.site):
                return Misplaced(CHANNELS_FIRST)
            beside = stream == run.modality.stream and length > part.place.length(view)  # positions that are no steps
            if not (words or part.place.pixels or beside):
                continue
            units = None if words else part.place.units(view, length, None, grid)[0]
            owners, places = _words(part, view, run.one) if units is None else _patches(part, view, units, length)
            plain = [u for u in range(len(places)) if units is None or not units.special[u]]
            variant, touched = _changed(run.one, owners, _sets(plain)[0])
            after = run.values(variant, step.site)
        except (WhyformerError, RuntimeError, IndexError, ValueError):  # not every number is an input of it
            continue
        if before.shape != after.shape or (words and length != run.one.tensors[part.main].shape[1]):
            continue
        moved, expected = moved_at(before, after), {places[u]: u for u in touched}
        if in_order and moved - expected.keys():
            some = f"{len(touched)} words of the {stream}"
            mixed = MIXED.format(unit=some, count=len(moved), all=length)
            if not step.cross:
                return PartlyCaptured(mixed)
            notes += (mixed,)  # whose states a query of the model's own reads
            continue
        not_own = {place for place in moved if units is not None and place < min(places[u] for u in plain)}
        if not_own:
            return Misplaced(NOT_OWN.format(count=length, units=len(plain), place=min(not_own)))
        if (place := _first_unmoved(moved, expected)) is not None:
            unit = expected[place]
            named = f"word {unit} of the {stream}" if units is None else _named(units, unit)
            return Misplaced(ELSEWHERE.format(unit=named, place=place))
    return notes


class NoAttention(TorchFunctionMode):
    """Attention whose result is zero, so that positions do not mix, in any layout of heads."""

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        attends = func.__name__ in ATTENTION or (func.__name__ == "softmax" and out.ndim > 2)
        return torch.zeros_like(out) if attends and isinstance(out, Tensor) else out


def misplaced_pieces(run: Passes) -> NotOverUnits | None:
    """Return the error of ``misplaced`` for images in a text: a piece that is changed has to change its token."""
    modality: Any = run.modality
    one = run.one
    for kind, token_of in modality.place.pieces(one).items():
        count = int(max(owner.max() for owner in token_of.values())) + 1
        chosen = _sets(range(count))[0]
        variant, touched = _changed(one, token_of, chosen)
        try:
            with torch.no_grad(), NoAttention():
                before, after = modality.read.vectors(one, kind), modality.read.vectors(variant, kind)
        except (WhyformerError, RuntimeError, IndexError, ValueError):  # an encoder that does not run without attention
            return None
        moved = set((before != after).any(-1).nonzero()[:, 0].tolist())
        if (token := _first_unmoved(moved, {t: t for t in touched})) is not None:
            return NotOverUnits(
                ELSEWHERE.format(
                    unit=f"the patch in row {modality.place.row_and_column(one, kind, token)}", place=token
                )
            )
    return None


def moved_at(before_BHKD: Tensor, after_BHKD: Tensor) -> set[int]:
    """Positions whose values changed."""
    return set((before_BHKD != after_BHKD).any(-1).any(1)[0].nonzero()[:, 0].tolist())


def in_parts(run: Passes, first_BHKD: Tensor, length: int) -> bool:
    """Return whether "heads" hold different parts of the input: the first step changes some of them only."""
    _, heads, keys, _ = first_BHKD.shape
    if not keys < length or length % keys or heads % (length // keys) or run.modality.main not in run.one.tensors:
        return False
    if run.modality.read.embeds:
        after_BHKD = first_values(partial(run.shifted, [0]), run.names)
    else:
        main = run.modality.main
        owner = torch.arange(run.one.tensors[main].shape[1]).view(-1, *[1] * (run.one.tensors[main].ndim - 2))
        after_BHKD = run.values(_changed(run.one, {main: owner}, [0])[0])
    moved_H = (first_BHKD != after_BHKD).flatten(2).any(2)[0]
    return bool(moved_H.any() and not moved_H.all())


def _first_unmoved(moved: set[int], expected: Mapping[int, int]) -> int | None:
    """The first position that should have changed and did not, where another one changed instead."""
    unmoved = expected.keys() - moved
    return min(unmoved) if unmoved and moved - expected.keys() else None


def _words(part: Modality, view: Batch, one: Batch) -> tuple[dict[str, Tensor], list[int]]:
    """Return the number of each token id of a text, and the position of each."""
    assert view.keep_BN is not None
    places = view.keep_BN[0].nonzero()[:, 0].tolist()
    owner = torch.full_like(one.tensors[part.main][0], -1)
    owner[places] = torch.arange(len(places), device=owner.device)
    return {part.main: owner}, places


def _patches(part: Modality, view: Batch, units: Units, length: int) -> tuple[dict[str, Tensor], list[int]]:
    """Return the patch that each pixel lies in, and the position of each patch."""
    places = part.place.keep(view, length, None)[0].nonzero()[:, 0].tolist()
    if len(places) != len(units):
        raise IndexError("some positions are of no unit")
    return part.mask.owners(units, view), places


def _sets(there: Sequence[int], apart: bool = False) -> list[list[int]]:
    """Return sets of units to change together. apart: of any two units, one set holds just one."""
    # Half of the patches or words at random: hardly an order but the right one leaves such a set where it is.
    if not apart:
        return [np.random.default_rng(0).permutation(there)[: len(there) // 2].tolist()]
    digits = range((len(there) - 1).bit_length())
    return [[unit for number, unit in enumerate(there) if number >> digit & 1] for digit in digits]


def _owners(modality: Modality, units: Units, one: Batch, length: int, front: int | None) -> dict[str, Tensor]:
    """Return the unit that each entry of the input belongs to, also where the model puts tokens around a text."""
    if not modality.read.embeds or one.keep_BN is None:
        return modality.mask.owners(units, one) if modality.mask.fillers else {}
    extra = length - one.keep_BN.shape[1]
    unit = torch.full_like(one.tensors[modality.main][0], -1)
    ranks = torch.arange(int(one.keep_BN[0].sum()), device=unit.device)
    unit[one.keep_BN[0]] = ranks + (extra if front is None else front) if extra > 0 else ranks
    return {modality.main: unit}


def _changed(one: Batch, owners: dict[str, Tensor], chosen: Sequence[int]) -> tuple[Batch, set[int]]:
    """Return the input with other numbers at these units, and which of them really changed."""
    tensors, touched = {}, set[int]()
    for name, shared in owners.items():
        before = one.tensors[name]
        owner = shared.expand(before.shape[1:])  # the channels of a pixel have one
        here = torch.isin(owner, torch.tensor(list(chosen), device=owner.device))[None]
        if before.is_floating_point():
            other = shifted(before)
        elif before.dtype == torch.bool:
            other = ~before
        elif before.ndim == 2 and len(owners) == 1:  # ids: those of its own that stand elsewhere
            other = before.clone()
            other[:, owner >= 0] = before[:, owner >= 0].roll(1, 1)
        else:  # codes of categories: of any two, one is lower
            other = torch.where(before > 0, before - 1, before + 1)
        tensors[name] = torch.where(here, other, before)
        touched |= {int(u) for u in owner[None][tensors[name] != before].unique()}
    return one.with_tensors(**tensors), touched


def _named(units: Units, unit: int) -> str:
    if units.grid is None:
        return repr(units.labels[unit])
    patch = unit - list(units.special).index(False)
    return f"the patch in row {patch // units.grid[1]}, column {patch % units.grid[1]}"
