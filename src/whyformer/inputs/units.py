"""Build units: add the tokens of the model's own, join streams, group tokens into words and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.batch import Batch, Filling, SamplePool
from whyformer.inputs.chat import TEMPLATE, members, spans_of
from whyformer.results.types import Units

# Columns of a table as units, and baselines from other inputs

Column = tuple[str, int]  # of which tensor, and where in it

DRAWS = 4  # inputs drawn per variant, for "resample"


def owners_of_columns(one: Batch, columns: Iterable[tuple[int, Column]]) -> dict[str, Tensor]:
    """Return the unit of each entry (-1: none), for the tensors that hold columns of units."""
    owners = {name: torch.full(tensor.shape[1:], -1) for name, tensor in one.tensors.items()}
    for unit, (name, column) in columns:
        owners[name][column] = unit
    return {name: owner.to(one.tensors[name].device) for name, owner in owners.items() if (owner >= 0).any()}


def drawn_inputs(pool: SamplePool) -> list[int]:
    """(DRAWS,) rows of the pool, repeated only if it has fewer."""
    return [int(row) for row in np.resize(pool.generator.permutation(pool.batch.size), DRAWS)]


def resampled(names: Iterable[str], one: Batch, pool: SamplePool) -> list[Filling]:
    """Return, for each draw, the values of another input at the same places."""
    names, others = list(names), pool.batch.tensors
    for name in names:
        if others[name].shape[1:] != one.tensors[name].shape[1:]:
            raise BadInput(
                f"replace='resample' needs reference inputs of the shape of the input: {name} is "
                f"{tuple(one.tensors[name].shape[1:])}, the reference {tuple(others[name].shape[1:])}."
            )
    return [{name: others[name][row][None] for name in names} for row in drawn_inputs(pool)]


def averaged(names: Iterable[str], one: Batch, pool: Batch) -> list[Filling]:
    """Return the mean of the pool's numbers, and the most frequent of its categories, at each place."""
    names = list(names)
    if pool.size == 1 and all(torch.equal(pool.tensors[name], one.tensors[name]) for name in names):
        raise BadInput("replace='mean' of a single input is the input itself: pass reference=[…], or more inputs.")
    typical = {}
    for name in names:
        values_BX = pool.tensors[name]
        if values_BX.is_floating_point():
            typical[name] = values_BX.float().mean(0, keepdim=True).to(values_BX.dtype)
        else:
            typical[name] = values_BX.mode(0, keepdim=True).values
    return [typical]


WORD_STARTS = "▁Ġ"  # how SentencePiece and byte-level tokenizers write the space before a piece


def assemble(
    labels: Sequence[str],
    special: Sequence[bool],
    stream: str,
    extra: int,
    before: int | None,
    names: Sequence[str] = ("[CLS]",),
    **rest: Any,
) -> Units:
    """Add to the units of an input ``extra`` tokens of the model's own, ``before`` of them (None: all) in front."""
    added = [names[i] if i < len(names) else f"[EXTRA{i}]" for i in range(extra)]
    before = extra if before is None else before
    front, back = added[:before], added[before:]
    for name, filler in (("word", -1), ("spans", (0, 0)), ("role", "")):
        if rest.get(name) is not None:
            rest[name] = (*[filler] * len(front), *rest[name], *[filler] * len(back))
    return Units(
        labels=(*front, *labels, *back),
        special=(*[True] * len(front), *special, *[True] * len(back)),
        stream=(stream,) * (len(labels) + extra),
        **rest,
    )


def joined(parts: Sequence[Units]) -> Units:
    """Join units end to end. Word numbers continue; a grid, a text and its spans are kept if only one part has them."""
    texts = [p for p in parts if p.text is not None]
    grids = [p for p in parts if p.grid is not None]
    text = texts[0] if len(texts) == 1 else None
    grid = grids[0] if len(grids) == 1 else None
    word: list[int] = []
    spans: list[tuple[int, int]] = []
    boxes: list[tuple[float, ...]] = []
    for part in parts:
        offset = max(word, default=-1) + 1
        word += [w + offset if w >= 0 else -1 for w in part.word] if part.word else [-1] * len(part)
        spans += list(part.spans) if part is text and part.spans else [(0, 0)] * len(part)
        boxes += list(part.boxes) if part.boxes else [(0.0, 0.0, 0.0, 0.0)] * len(part)
    return Units(
        labels=tuple(label for p in parts for label in p.labels),
        special=tuple(s for p in parts for s in p.special),
        stream=tuple(s for p in parts for s in p.stream),
        grid=None if grid is None else grid.grid,
        image_size=None if grid is None else grid.image_size,
        picture_size=None if grid is None else grid.picture_size,
        word=tuple(word) if any(p.word for p in parts) else None,
        spans=tuple(spans) if text is not None and text.spans else None,
        text=None if text is None else text.text,
        boxes=tuple(boxes) if any(p.boxes for p in parts) else None,
    )


def pick(units: Units, index: list[int]) -> Units:
    """Some of the units."""

    def of(values: Any) -> Any:
        return None if values is None else tuple(values[i] for i in index)

    return Units(
        of(units.labels), of(units.special), of(units.stream), units.grid, of(units.word), of(units.spans), units.text,
        units.image_size, of(units.boxes), role=of(units.role),
    )  # fmt: skip


def distinct_words(words: list[int], sequences: list[int | None]) -> list[int]:
    """Number the words of a second text after those of the first."""
    offset = max((w for w, s in zip(words, sequences, strict=True) if s == 0), default=-1) + 1
    return [w + offset if s == 1 and w >= 0 else w for w, s in zip(words, sequences, strict=True)]


def words_of(labels: list[str], special: list[bool]) -> tuple[int, ...]:
    """Return word numbers from the spelling of the pieces, for tokenizers that don't number them."""
    marks_start = any(re.match(r"[▁Ġ]", label) for label in labels)
    word, result = -1, []
    for label, is_special in zip(labels, special, strict=True):
        if is_special:
            result.append(-1)
            continue
        continues = not label.startswith(("▁", "Ġ")) if marks_start else label.startswith("##")
        if not continues or word < 0:
            word += 1
        result.append(word)
    return tuple(result)


def segmented(units: Units, by: str | Sequence[Any], whole: str | None = None) -> tuple[list[list[int]], Units]:
    """Group units by word, sentence, role or chosen range of the text; return the groups, and these as units.

    Special tokens and those of a chat template are groups of their own; a space or line break joins what is before it.
    whole: the text that this one is the beginning of, which decides where words end ("3." in "3.14").
    """
    if units.text is None or units.spans is None:
        raise NotOffered(
            "units= divides a text into words, sentences or ranges, and where its tokens stand in it is not known: "
            "give a text (not tensors) with a fast tokenizer."
        )
    roles = units.role or ("",) * len(units)
    if by == "role" and units.role is None:
        raise NotOffered('units="role" goes by who says what: give a chat (messages with roles), or an answer.')
    ranges = spans_of(whole or units.text, by) if isinstance(by, str) else spans_of(units.text, by)
    chosen = members(units.spans, ranges)
    if by == "role":
        groups = [list(run) for _, run in groupby(range(len(units)), roles.__getitem__)]
    elif not isinstance(by, str):
        empty = [span for span, tokens in zip(ranges, chosen, strict=True) if not tokens]
        if empty:
            raise BadInput(f"units: {empty[0]} holds no token of its own. Let it begin and end with words.")
        groups = chosen
    else:
        groups = _completed(units, roles, chosen)
    apart = [len(group) == 1 and units.special[group[0]] for group in groups]
    texts = [units.labels[g[0]] if alone else units.text_of(g) for g, alone in zip(groups, apart, strict=True)]
    spans = tuple((units.spans[g[0]][0], max(units.spans[i][1] for i in g)) for g in groups)
    return groups, Units(
        labels=tuple(texts),
        special=tuple(all(units.special[i] for i in g) or roles[g[0]] == TEMPLATE for g in groups),
        stream=tuple(units.stream[g[0]] for g in groups),
        word=tuple(-1 if alone else number for number, alone in enumerate(apart)),
        spans=spans,
        text=units.text,
        role=None if units.role is None else tuple(roles[g[0]] for g in groups),
    )


def _completed(units: Units, roles: Sequence[str], chosen: list[list[int]]) -> list[list[int]]:
    """Return all units in order, grouped by stretch; special tokens and roles divide a stretch."""
    of = {token: number for number, group in enumerate(chosen) for token in group}
    groups: list[list[int]] = []
    last: tuple[Any, ...] | None = None
    for token in range(len(units)):
        role = roles[token]
        if units.special[token]:
            key: tuple[Any, ...] | None = ("special", token)
        elif role == TEMPLATE:
            key = ("template",)
        elif token in of:
            key = (of[token], role)
        else:  # a space or line break
            key = last if last is not None and last[0] not in {"special", "template"} else ("space", role)
        if key == last:
            groups[-1].append(token)
        else:
            groups.append([token])
        last = key
    return groups
