"""Who joins and leaves in a game over the input: single units, words, or groups of patches; and their neighbourhood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.variants import default_replacement, maskable
from whyformer.errors import BadInput, NotOffered, require
from whyformer.inputs.image import patch_index
from whyformer.parameters import Hold
from whyformer.results.types import Units
from whyformer.run import Run
from whyformer.shapes import Array

# From scores to an order of the parts, and from there to which parts are present as more and more of them go.

FRACTIONS = tuple(i / 20 for i in range(21))  # 0, 5, …, 100 %


def order_of(scores_P: Array) -> Array:
    """Parts from the highest to the lowest score; ties keep their order."""
    return np.argsort(-np.asarray(scores_P, dtype=float), kind="stable")


def count_of(fraction: float, parts: int) -> int:
    """How many parts a fraction is: rounded up, so that any fraction above 0 is at least one."""
    return min(parts, math.ceil(fraction * parts - 1e-9))


def _first(order: Array, fractions: Sequence[float]) -> Array:
    """(F, P) the first parts of an order."""
    parts = len(order)
    chosen = np.zeros((len(fractions), parts), dtype=bool)
    for row, fraction in enumerate(fractions):
        chosen[row, order[: count_of(fraction, parts)]] = True
    return chosen


def without_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the highest scores are taken away (most relevant first)."""
    return ~_first(order_of(scores_P), fractions)


def without_bottom(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the lowest scores are taken away (least relevant first)."""
    return ~_first(order_of(scores_P)[::-1], fractions)


def only_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when nothing but the highest scores is kept."""
    return _first(order_of(scores_P), fractions)


def leave_one_out(parts: int) -> Array:
    """(P + 1, P) everything, then everything without part 0, 1, …"""
    return np.concatenate([np.ones((1, parts), dtype=bool), ~np.eye(parts, dtype=bool)])


def random_sets(parts: int, sets: int, share: float | None, seed: int) -> Array:
    """(M, P) random sets of parts that go (True), the same for every method; of one size, or (None) of any."""
    generator = np.random.default_rng([seed, parts])
    gone = np.zeros((sets, parts), dtype=bool)
    for row in gone:
        size = int(generator.integers(1, parts + 1)) if share is None else max(1, count_of(share, parts))
        row[generator.permutation(parts)[:size]] = True
    return gone


def area(values_F: Array, fractions: Sequence[float]) -> float:
    """Area under a curve by trapezoids, divided by the width of its range."""
    x = np.asarray(fractions, dtype=float)
    if len(x) == 1:
        return float(values_F[0])
    widths = np.diff(x)
    return float((widths * (values_F[1:] + values_F[:-1]) / 2).sum() / (x[-1] - x[0]))


BY = ("token", "patch", "column", "word", "superpixel")


@dataclass(frozen=True)
class Players:
    """The units of each player, where they are, and how many units there are in all."""

    members: tuple[tuple[int, ...], ...]
    places: Array  # (players, 1 or 2) position in a text, row and column in an image
    units: int
    fallback: str  # the algorithm for many

    def per_unit(self, values: Array) -> Tensor:
        """(U,) the values of the players, each split evenly among its units."""
        scores = np.zeros(self.units)
        for members, value in zip(self.members, values, strict=True):
            scores[list(members)] = float(value) / len(members)
        return torch.from_numpy(scores).float()

    def tree(self) -> Array:
        """Neighbours joined in pairs, in the format of scipy's linkage: (left, right, height, size) per join.

        Places are halved again and again along their longer side, so every group is a stretch of text or a rectangle.
        """
        joins: list[tuple[float, float, float, float]] = []
        count = len(self.members)

        def join(players: Array) -> tuple[int, int]:
            """Number and height of the node over some players."""
            if len(players) == 1:
                return int(players[0]), 0
            spans = np.ptp(self.places[players], axis=0)
            axis = int(spans.argmax())
            order = players[np.lexsort((players, self.places[players, axis]))]
            (left, low), (right, high) = join(order[: len(order) // 2]), join(order[len(order) // 2 :])
            height = max(low, high) + 1
            joins.append((left, right, height, len(players)))
            return count + len(joins) - 1, height

        join(np.arange(count))
        return np.array(joins, dtype=float)


def players_of(
    run: Run, row: int, by: str | None, keep_special: bool | Sequence[int], superpixels: int, held_U: Array
) -> Players:
    """The players of one input: its units, its words, or about so many superpixels; ``held_U`` do not play."""
    units = run.units[row]
    free = np.array(maskable(run, row)) & ~_always_there(run, row, keep_special) & ~held_U
    members: list[tuple[int, ...]]
    if run.segments:
        groups = [tuple(int(i) for i in group if free[i]) for group in run.segments[row][0]]
        members = [group for group in groups if group]
    elif by == "word":
        members = _words(run, row, free)
    elif by == "superpixel":
        members = _superpixels(run, row, free, superpixels)
    else:
        members = [(int(i),) for i in np.flatnonzero(free)]
    places = _places(run, row)
    if all(len(each) == 1 for each in members):
        centres = places[[each[0] for each in members]].astype(float) if members else np.zeros((0, 1))
    else:
        centres = np.array([places[list(each)].mean(0) for each in members])
    table = run.modality.stream == "table"
    return Players(tuple(members), centres, len(units), "permutation" if table else "partition")


def absent_player(run: Run, replace: Any) -> Any:
    """Return the replacement of absent players: as asked for, or the first that can stand for several at once."""
    if replace is not None:
        return run.modality.mask.replacement(replace)
    if run.modality.read.pointers:
        return default_replacement(run.modality, run.batch)
    masked = any("mask" in name for name in run.batch.tensors)
    for name in run.modality.mask.offered(run.batch.asked.segments):
        deletes = run.segments or run.modality.mask.edits_text
        if (name != "delete" or deletes) and (masked or name != "attention_mask"):
            return name
    raise NotOffered(
        "something has to stand in place of an absent token, and this model names no mask, unk or pad token: pass "
        "replace=<token id>, or the attention_mask among the inputs."
    )


def special_doubts(run: Run, keep_special: bool | Sequence[int]) -> list[str]:
    """Ids without their tokenizer: a config may name none of the special ones, and then all tokens join."""
    if keep_special is not True or not run.modality.read.special_unknown:
        return []
    return [
        "no tokenizer was given and the model's config names no special tokens, so [CLS], [SEP] and their like joined "
        "as words do: pass processor=, or keep_special=[their ids] (keep_special=False if that is meant)."
    ]


def _always_there(run: Run, row: int, keep_special: bool | Sequence[int]) -> Array:
    """Return (U,) the units that do not play."""
    special = np.array(run.units[row].special, dtype=bool)
    if keep_special is True:
        return special
    none = np.zeros_like(special)
    if keep_special is False:
        return none
    ids_U = None if run.study.extra else run.modality.mask.token_ids(run.units[row], run.batch.select([row]))
    if ids_U is None:
        raise BadInput("keep_special takes token ids for plain text only: use True or False here.")
    return np.isin(ids_U.cpu().numpy(), list(keep_special))


def held_units(run: Run, hold: Hold) -> list[Array]:
    """(U,) of each input, the units that were said to be always there."""
    wanted = [] if hold is None else [hold] if isinstance(hold, (str, int)) else list(hold)
    return [_held(run, row, wanted) for row in range(run.batch.size)]


def held_remark(units: Units, held_U: Array) -> list[str]:
    """Return the remark that units are held, since their score of 0 would pass for no effect."""
    named = held_text(units, held_U)
    return [f"{named} was held: always there, so that nothing is known of what it does."] if named else []


def held_text(units: Units, held_U: Array) -> str:
    """What is held, as it stands in the input: 'the question', 'another stretch'."""
    held = np.flatnonzero(held_U).tolist()
    stretches = np.split(held, np.flatnonzero(np.diff(held) > 1) + 1) if held else []
    return ", ".join(repr(units.text_of(stretch.tolist())) for stretch in stretches)


def _held(run: Run, row: int, wanted: Sequence[str | int]) -> Array:
    units = run.units[row]
    held_U = np.zeros(len(units), dtype=bool)
    if not wanted:
        return held_U
    number = run.numbers[row]
    groups, named = run.segments[row] if run.segments else ([[i] for i in range(len(units))], units)
    removable_U = np.array(maskable(run, row), dtype=bool)
    for one in wanted:
        members = [i for group in _named(groups, units, named, one, number) for i in group]
        if not removable_U[members].any():
            raise BadInput(
                f"hold={one!r} is {units.text_of(members)!r} in input {number}, which is never masked (an answer, "
                "for example). Give the text of what should stay, or its number among explanation.units."
            )
        held_U[members] = True
    free_U = removable_U & ~np.array(units.special, dtype=bool) & ~held_U
    if not any(free_U[i] for group in groups for i in group):
        named_parts = repr(wanted[0] if len(wanted) == 1 else list(wanted))
        raise BadInput(f"hold={named_parts} is all of input {number}: nothing is left that could be away.")
    return held_U


def _named(
    groups: Sequence[Sequence[int]], units: Units, named: Units, one: str | int, number: int
) -> list[Sequence[int]]:
    """The groups of units that a number, a label or a stretch of the text stands for."""
    if not isinstance(one, str):
        if not -len(groups) <= one < len(groups):
            raise BadInput(
                f"hold={one}: input {number} has {len(groups)} units, numbered from 0, or from -1 backwards."
            )
        return [groups[one]]
    labelled = [group for group, label in zip(groups, named.labels, strict=True) if label == one]
    if len(labelled) == 1:
        return labelled
    times = len(labelled)
    if units.text is not None and units.spans is not None:
        times = units.text.count(one)
        if times == 1:
            start = units.text.index(one)
            end = start + len(one)
            return [[i for i, (a, b) in enumerate(units.spans) if a < end and start < b and not units.special[i]]]
    if not times:
        raise BadInput(
            f"hold={one!r} is not in input {number}. Write it as it stands there, or give numbers of units (see "
            "explanation.units.labels; -1 is the last one)."
        )
    raise BadInput(
        f"hold={one!r} is {times} times in input {number}. Write more of the text around it, or give numbers of units "
        "(see explanation.units.labels; -1 is the last one)."
    )


def _words(run: Run, row: int, free: Array) -> list[tuple[int, ...]]:
    units = run.units[row]
    if units.word is None:
        raise NotOffered("which tokens make a word is not known here: pass text with its tokenizer, or leave by=None.")
    numbered: dict[int, list[int]] = {}
    for i, word in enumerate(units.word):
        numbered.setdefault(word if word >= 0 else ~i, []).append(i)
    members = (tuple(i for i in group if free[i]) for group in numbered.values())
    return [group for group in members if group]


def _superpixels(run: Run, row: int, free: Array, wanted: int) -> list[tuple[int, ...]]:
    """Neighbouring patches of like colour, about ``wanted`` groups (Ward linkage over the grid)."""
    units = run.units[row]
    if units.grid is None or set(units.stream) == {"audio"}:
        raise NotOffered("superpixels are groups of image patches, and this input has none. Leave by=None.")
    require("sklearn", why="by='superpixel'")
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.feature_extraction.image import grid_to_graph

    rows, columns = units.grid
    pixels = run.batch.tensors[run.modality.main][row].float().cpu()
    high, wide = units.image_size or pixels.shape[-2:]  # less than the tensor's where smaller images were padded
    pixels = pixels[:, :high, :wide]
    index = patch_index(units.grid, *pixels.shape[-2:]).flatten()
    flat = pixels.flatten(1)
    sums = torch.zeros(len(flat), rows * columns).index_add_(1, index, flat)
    colours = (sums / torch.bincount(index, minlength=rows * columns)).T.numpy()
    if wanted >= rows * columns:
        labels = np.arange(rows * columns)
    else:
        graph = grid_to_graph(rows, columns)
        labels = AgglomerativeClustering(n_clusters=wanted, connectivity=graph, linkage="ward").fit_predict(colours)
    patches = np.flatnonzero(~np.array(units.special, dtype=bool))
    groups = [tuple(int(i) for i in patches[labels == g] if free[i]) for g in range(labels.max() + 1)]
    return [g for g in groups if g]


def _places(run: Run, row: int) -> Array:
    """(U, 1 or 2) where each unit is."""
    units = run.units[row]
    if units.grid is None:
        return np.arange(len(units), dtype=float)[:, None]
    places = np.zeros((len(units), 2))
    patches = np.flatnonzero(~np.array(units.special, dtype=bool))
    places[patches] = np.stack(np.divmod(np.arange(len(patches)), units.grid[1]), 1)
    return places
