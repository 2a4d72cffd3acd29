"""Attention itself: maps of a Record, and the relevance map of an Explanation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.parameters import OneOf, Place, Places, checked
from whyformer.results.types import AttentionMaps, Explanation, Record, Site, Units
from whyformer.shapes import Array
from whyformer.views.header import doubts, ends, facts
from whyformer.views.image_marks import require_fit, shrunk, to_pixels
from whyformer.views.marks import HeadColours, Matrix, Scale
from whyformer.views.scales import scale_of
from whyformer.views.view import Fact, Heads, Panel, View, view_of

Labels = Sequence[str] | tuple[Sequence[str], Sequence[str]] | Explanation | Units
ScaleOf = Annotated[str, OneOf("shared", "free", "full")] | tuple[float, float]
SMALL = 64  # rows and columns of a map among many
MOST_LABELLED = 48  # positions that have room for their labels
LARGE = 1000  # from here on numbers are told in the power of ten of the largest
FEW = 400  # cells that have room for their numbers
LABELLED, NUMBERED = 3, 2  # maps beside each other, with labels or with numbers
CAPTION = "Rows attend to columns. Colour: attention weight."
IN_NUMBERS = "Rows attend to columns. Numbers: attention weights."


@checked
def attention_map(
    record: Record,
    site: Place = -1,
    head: Place | Annotated[str, OneOf("mean", "max")] = "mean",
    labels: Labels | None = None,
    *,
    row: Place = 0,
    values: bool = False,
    scale: ScaleOf = "free",
) -> View:
    """One attention map with its labels.

    ``site``: number in call order; ``head``: a number, or "mean" or "max" over heads; ``labels``: of the positions (an
    Explanation's do), or a pair for rows and columns; ``row``: which input of the batch. ``values``: write the weights
    into the cells, of which there may be 400. ``scale``: "free", from 0 to the largest weight of the map; "full",
    from 0 to 1; or (low, high).
    """
    chosen = _site(record, site)
    maps = _maps(chosen, row)
    rows, columns = _label_pair(labels, maps.shape[1:], chosen.first_query)
    weights = _reduced(maps, head)
    (one_scale,) = _scales([weights], scale)
    axes, joined = ("query (attends)", "key (attended)"), rows == columns and not values
    matrix = Matrix(weights, one_scale, rows, columns, *axes, numbers=values, joined=joined)
    which = _head_words(head, f"{chosen.heads} heads")
    query, key = chosen.streams
    kind = f"{chosen.kind}-attention" + (f", {query} to {key}" if query and query != key else "")
    told = [Fact("site", chosen.path or "the model itself"), Fact("kind", kind), Fact("shown", which)]
    told += [Fact("window", f"the first of {chosen.windows}")] if chosen.windows > 1 else []
    drawn = _drawn("Attention", [Panel((matrix,), wide=True)], tuple(told), CAPTION)
    return _explorable(drawn, [(chosen.path, weights[None])], columns, which, values or rows != columns)


def _head_words(head: int | str, heads: str = "heads") -> str:
    return f"head {head}" if isinstance(head, int) else f"{head} over {heads}"


def _numbered(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """The labels, or numbers where there are not as many."""
    return tuple(labels) if len(labels) == count else tuple(map(str, range(count)))


def _explorable(
    drawn: View, sites: Sequence[tuple[str, Array]], labels: Sequence[str], named: str, still: bool
) -> View:
    """Add the data of the interactive view, which connects tokens by lines, unless ``still``."""
    return drawn if still else replace(drawn, explained=Heads(tuple(sites), tuple(labels), named))


def _scales(maps: Sequence[Array], scale: str | tuple[float, float], signed: bool = False) -> list[Scale]:
    """One per map; the same for all unless each is "free"."""
    if isinstance(scale, tuple):
        low, high = scale
        if not (np.isfinite(scale).all() and low < high):
            raise BadInput(f"scale={scale!r}: (low, high), two numbers of which the second is larger.")
        return [Scale(low, high, signed and low == -high, "attention")] * len(maps)
    if scale == "free":
        return [scale_of([one], signed, meaning="attention") for one in maps]
    largest = scale_of(maps, signed, meaning="attention")
    full = Scale(-1.0 if largest.signed else 0.0, 1.0, largest.signed, "attention")
    return [full if scale == "full" else largest] * len(maps)


def _drawn(title: str, panels: Sequence[Panel], facts: tuple[Fact, ...], caption: str, columns: int = 1) -> View:
    """A view of matrices: numbers where they fit, one legend where one scale holds for all, else a line at each map."""
    maps = [mark for panel in panels for mark in panel.marks if isinstance(mark, Matrix)]
    scales = {mark.scale for mark in maps}
    crowded = max((mark.values.size for mark in maps if mark.numbers), default=0)
    if crowded > FEW:
        caption += f" Numbers are hidden: a map has {crowded} cells, more than {FEW}."
    elif crowded:
        caption = caption.replace(CAPTION, IN_NUMBERS)
    if len(scales) > 1:
        caption += " Each map has its own scale: strengths cannot be compared between maps."
    highest = max((float(np.nanmax(np.abs(mark.values))) for mark in maps), default=0.0)
    power = math.floor(math.log10(highest)) if np.isfinite(highest) and highest >= LARGE else 0
    if power and 0 < crowded <= FEW:
        caption += f" Numbers in the cells are times 1e{power}."
    legend = scales.pop() if len(scales) == 1 else None
    fitting = []
    for panel in panels:
        marks = [
            replace(m, numbers=m.numbers and crowded <= FEW, power=power) for m in panel.marks if isinstance(m, Matrix)
        ]
        reach = [" to ".join(ends(mark.scale)) for mark in marks if legend is None]
        name = ", ".join([panel.title, *reach] if panel.title else reach)
        fitting.append(replace(panel, marks=tuple(marks), title=name))
    return View(title, tuple(fitting), facts, caption=caption, columns=columns, legend=legend)


@checked
def heads_grid(
    record: Record,
    *,
    row: Place = 0,
    sites: Places | None = None,
    labels: Labels | None = None,
    names: Sequence[str] | Explanation | Units | None = None,
    values: bool = False,
    scale: ScaleOf = "shared",
) -> View:
    """Every head of every layer, small: layers down, heads across.

    ``names``: of the positions, for the page alone, on which a head is chosen and drawn large; maps stay small.

    ``labels`` and ``values`` as for ``attention_map``: with either, maps are large, a few beside each other. More
    labels than have room are left out, and maps stay small.
    ``scale``: "shared", one for all; "free", each from 0 to its own largest weight; "full", 0 to 1; or (low, high).
    """
    numbers = range(len(record.sites)) if sites is None else sites
    chosen = [(at % len(record.sites), _site(record, at)) for at in numbers]
    whole = [_maps(site, row) for _, site in chosen]
    longest = max(max(heads.shape[1:]) for heads in whole)
    large = values or (labels is not None and longest <= MOST_LABELLED)
    # A wrong number of labels is refused, drawn or not.
    pairs = [_label_pair(labels, m.shape[1:], site.first_query) for m, (_, site) in zip(whole, chosen, strict=True)]
    maps = [[one if large else shrunk(one, SMALL, largest=True) for one in heads] for heads in whole]
    scales = iter(_scales([one for heads in maps for one in heads], scale))
    columns = min(NUMBERED if values else LABELLED if large else 10**6, max(len(m) for m in maps))
    panels: list[Panel] = []
    for (at, _), heads, pair in zip(chosen, maps, pairs, strict=True):
        shown, axes = (pair, ("query", "key")) if large else (((), ()), ("", ""))
        for head, weights in enumerate(heads):
            mark = Matrix(weights, next(scales), *shown, *axes, small=not large, numbers=values)
            panels.append(Panel((mark,), f"{at}.{head}"))
        panels += [Panel(())] * (-len(heads) % columns if large else columns - len(heads))
    shared = "each with its own scale" if scale == "free" else "one scale for all"
    shared += "; of windows the first" if any(site.windows > 1 for _, site in chosen) else ""
    facts = (Fact("sites", str(len(chosen))), Fact("titles", f"site.head, in call order; {shared}"))
    caption = CAPTION
    if longest > SMALL and not large:
        shared_cells = f"{longest} positions share {SMALL} cells: a cell shows the largest weight inside."
        caption = f"{CAPTION} {shared_cells}"
    if labels is not None and not large:
        caption += f" Labels are drawn up to {MOST_LABELLED} positions."
    named = labels if names is None else names
    named = named.units if isinstance(named, Explanation) else named
    known = named.labels if isinstance(named, Units) else pairs[0][1] if names is None else tuple(map(str, named or ()))
    words = known if named is not None and len(known) == whole[0].shape[2] else ()
    every = tuple((f"{at}: {site.path}", heads) for (at, site), heads in zip(chosen, whole, strict=True))
    drawn = _drawn("Attention, every head", panels, facts, caption, columns)
    return replace(drawn, explained=None if values else Heads(every, words))


@checked
def attention_streams(
    record: Record,
    labels: Mapping[str, Sequence[str]] | None = None,
    *,
    layer: Place = -1,
    head: Place | Annotated[str, OneOf("mean", "max")] = "mean",
    row: Place = 0,
    values: bool = False,
    scale: ScaleOf = "shared",
) -> View:
    """One map per kind of attention: encoder-self, decoder-self, cross; or each pair of streams.

    ``labels``: by stream name ("source" and "target" for encoder and decoder); ``layer``: which of a kind's sites;
    ``values`` and ``scale`` as for ``heads_grid``.
    """
    groups: dict[tuple[str, str, str], list[Site]] = {}
    has_decoder = any("decoder" in site.path for site in record.sites)
    for site in record.sites:
        groups.setdefault(_group(site, has_decoder), []).append(site)
    panels, maps = [], []
    for (name, _, _), members in groups.items():
        if not -len(members) <= layer < len(members):
            raise BadInput(f"layer={layer}: {name} has {len(members)} sites.")
        maps.append(_reduced(_maps(members[layer], row), head))
    for ((name, query, key), members), weights, its_scale in zip(
        groups.items(), maps, _scales(maps, scale), strict=True
    ):
        rows, columns = (_stream_labels(labels, *one) for one in zip((query, key), weights.shape, strict=True))
        mark = Matrix(weights, its_scale, rows, columns, query or "query", key or "key", numbers=values)
        panels.append(Panel((mark,), f"{name} ({len(members)} sites)" if len(members) > 1 else name))
    facts = (Fact("shown", f"site {layer} of each kind, {_head_words(head)}"),)
    return _drawn("Attention by kind", panels, facts, CAPTION, min(LABELLED, len(panels)))


@checked
def heads_over_image(
    record: Record, units: Units | Explanation, image: Any = None, *, site: Place = -1, query: Place = 0, row: Place = 0
) -> View:
    """Attention of each head over the image, each in its own colour: together, and one by one.

    ``units``: an Explanation of the same input, or its units (they know the patch grid); ``query``: the position that
    attends, by default the first ([CLS]).
    """
    units = units.units if isinstance(units, Explanation) else units
    if units.grid is None:
        raise BadInput("heads_over_image needs units with a patch grid: pass an Explanation of an image.")
    chosen = _site(record, site)
    maps = _maps(chosen, row)
    if chosen.windows > 1:
        raise NotOffered("this attention runs inside windows, and a map of one of them does not cover the image.")
    if maps.shape[2] != len(units):
        raise BadInput(f"the map has {maps.shape[2]} keys and the input {len(units)} units: not the same input.")
    if not -maps.shape[1] <= query < maps.shape[1]:
        raise BadInput(f"query={query}: the map has {maps.shape[1]} rows.")
    patches = [i for i, special in enumerate(units.special) if not special]
    grids = tuple(m[query][patches].reshape(units.grid) for m in maps)
    pixels = None if image is None else to_pixels(image)
    require_fit(pixels, units)
    names, numbers = tuple(f"head {i}" for i in range(len(grids))), tuple(range(len(grids)))
    everything = HeadColours(grids, names, numbers, pixels, units.image_size)
    panels = [Panel((everything,), "all heads", wide=True)]
    panels += [
        Panel((replace(everything, maps_RC=grids[i : i + 1], names=names[i : i + 1], numbers=(i,)),)) for i in numbers
    ]
    who = units.labels[query] if maps.shape[1] == len(units) else str(query)
    facts = (Fact("site", chosen.path or "the model itself"), Fact("query", f"position {query}, {who}"))
    caption = "Colour: the head. Strength of the colour: the patch's attention weight relative to the head's largest."
    columns = min(4, max(1, len(grids)))
    return View("Attention heads over the image", tuple(panels), facts, caption=caption, columns=columns)


@checked
def relevance_map(
    explanation: Explanation, streams: tuple[str, str] | None = None, *, values: bool = False, scale: ScaleOf = "shared"
) -> View:
    """The whole map of a method that has one: output positions down, input positions across.

    ``values`` and ``scale`` as for ``heads_grid``; the diagonal (a position to itself) is left out of
    a scale that is not given in numbers, and is grey where it exceeds it.
    """
    matrix = explanation.matrix
    if matrix is None:
        raise NotOffered(f"{explanation.method} returned no token-to-token map, only scores.")
    parts = matrix if isinstance(matrix, dict) else {("", ""): matrix}
    if streams is not None:
        if streams not in parts:
            raise UnknownName("pair of streams", streams, parts)
        parts = {streams: parts[streams]}
    # The diagonal often outweighs all else and would leave the rest white.
    square = [m.shape[0] == m.shape[1] > 1 for m in parts.values()]
    others = [m[~np.eye(len(m), dtype=bool)] if same else m for m, same in zip(parts.values(), square, strict=True)]
    scales = _scales(others, scale, explanation.signed)
    units, panels = explanation.units, []
    for ((query, key), cells), its_scale in zip(parts.items(), scales, strict=True):
        labels = []
        for stream, count in zip((query, key), cells.shape, strict=True):
            known = [label for label, s in zip(units.labels, units.stream, strict=True) if not stream or s == stream]
            labels.append(_numbered(known, count))
        axes = (query or "output position", key or "input position")
        mark = Matrix(cells, replace(its_scale, meaning="score"), labels[0], labels[1], *axes, numbers=values)
        panels.append(Panel((mark,), f"{query} ← {key}" if query else "", wide=len(parts) == 1))
    caption = "Rows are output positions, columns input positions."
    if scale in ("shared", "free"):
        caption += " Colours are scaled without the diagonal; diagonal cells beyond the scale are grey."
    drawn = _drawn(
        "Token-to-token relevance" if units.grid is None else "Patch-to-patch relevance",
        panels,
        facts(explanation),
        caption,
        min(2, len(panels)),
    )
    return replace(drawn, doubts=doubts(explanation))


@view_of.register(AttentionMaps)
@checked
def maps_view(maps: AttentionMaps, *, values: bool = False, scale: ScaleOf = "shared") -> View:
    """Each map with its labels; ``values`` and ``scale`` as for ``heads_grid``."""
    panels = []
    for site, its_scale in zip(maps.sites, _scales([site.attention for site in maps.sites], scale), strict=True):
        rows, columns = (_numbered(maps.labels, size) for size in site.attention.shape)
        joined = rows == columns and not values
        mark = Matrix(site.attention, its_scale, rows, columns, "query", "key", numbers=values, joined=joined)
        panels.append(Panel((mark,), f"{site.site}: {site.path}", wide=len(maps.sites) == 1))
    shown = _head_words(maps.head)
    columns_of_panels = max(1, min(LABELLED, len(panels)))
    drawn = _drawn(f"Attention: {maps.input}", panels, (Fact("shown", shown),), CAPTION, columns_of_panels)
    sites = [(f"{site.site}: {site.path}", np.asarray(site.attention)[None]) for site in maps.sites]
    return _explorable(drawn, sites, maps.labels, shown, values)


def _site(record: Record, number: int) -> Site:
    if not -len(record.sites) <= number < len(record.sites):
        raise BadInput(f"site={number}: the record has {len(record.sites)} sites.")
    return record.sites[number]


def _maps(site: Site, row: int) -> Array:
    """(H, Q, K) of one input; of its first window where attention runs in windows."""
    count = len(site.attention_BHQK) // site.windows
    if not -count <= row < count:
        raise BadInput(f"row={row}: the record holds {count} inputs.")
    maps: Array = site.attention_BHQK[(row % count) * site.windows].detach().float().cpu().numpy()
    return maps


def _reduced(maps_HQK: Array, head: int | str) -> Array:
    if not isinstance(head, int):
        return np.asarray(maps_HQK.mean(0) if head == "mean" else maps_HQK.max(0))
    if not -len(maps_HQK) <= head < len(maps_HQK):
        raise UnknownName("head", head, ["mean", "max", f"0 to {len(maps_HQK) - 1}"])
    return np.asarray(maps_HQK[head])


def _label_pair(
    labels: Labels | None, shape: tuple[int, ...], first_query: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if labels is None:
        return _numbered((), shape[0]), _numbered((), shape[1])
    if isinstance(labels, (Explanation, Units)):
        labels = (labels.units if isinstance(labels, Explanation) else labels).labels
    is_pair = len(labels) == 2 and not any(isinstance(part, str) for part in labels)
    pair = tuple(tuple(part) for part in labels) if is_pair else (tuple(labels), tuple(labels))
    rows, columns = pair
    if not is_pair and len(rows) != shape[0]:
        rows = rows[first_query : first_query + shape[0]]  # a last layer that asks for a few rows only
    for names, wanted, what in ((rows, shape[0], "rows"), (columns, shape[1], "columns")):
        if len(names) != wanted:
            raise BadInput(
                f"{len(names)} labels for {wanted} {what} of the map. Padding has a place in it too; record one "
                "input at a time to have none."
            )
    return tuple(map(str, rows)), tuple(map(str, columns))


def _group(site: Site, has_decoder: bool) -> tuple[str, str, str]:
    """Name, query stream and key stream of a kind of attention."""
    query, key = site.streams
    if query and key:
        return (f"{query} self-attention" if query == key else f"{query} attends to {key}"), query, key
    if has_decoder and site.kind == "cross":
        return "cross-attention", "target", "source"
    if has_decoder:
        side, stream = ("decoder", "target") if "decoder" in site.path else ("encoder", "source")
        return f"{side} self-attention", stream, stream
    queries, keys = site.attention_BHQK.shape[2:]
    place = re.sub(r"\.?\d+", "", site.path)  # layers of one stack share the rest of their path
    return f"{site.kind}-attention {queries} × {keys}, {place or 'the model itself'}", "", ""


def _stream_labels(labels: Mapping[str, Sequence[str]] | None, stream: str, length: int) -> tuple[str, ...]:
    names = (labels or {}).get(stream)
    if names is None:
        return _numbered((), length)
    if len(names) != length:
        raise BadInput(f"{len(names)} labels for the {length} positions of {stream!r}.")
    return tuple(map(str, names))
