"""Attention itself: maps of a Record, and the relevance map of an Explanation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.parameters import OneOf, Place, Places, checked
from whyformer.types import Explanation, Record, Site, Units
from whyformer.views.image import require_fit, to_pixels
from whyformer.views.view import Fact, HeadColours, Matrix, Panel, View, scale_of

Array = np.ndarray[Any, Any]
Labels = Sequence[str] | tuple[Sequence[str], Sequence[str]] | Explanation | Units
SMALL = 64  # rows and columns of a map among many
CAPTION = "Each row is a position that looks; the colour says how much of its attention each column gets."


@checked
def attention_map(
    record: Record,
    site: Place = -1,
    head: Place | Annotated[str, OneOf("mean", "max")] = "mean",
    labels: Labels | None = None,
    *,
    row: Place = 0,
) -> View:
    """One attention map with its labels.

    ``site``: number in call order; ``head``: a number, or "mean" or "max" over heads; ``labels``: of the positions (an
    Explanation's do), or a pair for rows and columns; ``row``: which input of the batch.
    """
    chosen = _site(record, site)
    values = _maps(chosen, row)
    rows, columns = _label_pair(labels, values.shape[1:], chosen.first_query)
    matrix = _matrix(_reduced(values, head), rows, columns)
    which = f"head {head}" if isinstance(head, int) else f"{head} over {chosen.heads} heads"
    facts = (Fact("site", chosen.path or "the model itself"), Fact("kind", _kind(chosen)), Fact("shown", which))
    return View("Attention", (Panel((matrix,), wide=True),), facts, caption=CAPTION, legend=matrix.scale)


@checked
def heads_grid(record: Record, *, row: Place = 0, sites: Places | None = None) -> View:
    """Every head of every layer, small, on one scale: layers down, heads across."""
    numbers = range(len(record.sites)) if sites is None else sites
    chosen = [(number % len(record.sites), _site(record, number)) for number in numbers]
    whole = [_maps(site, row) for _, site in chosen]
    maps = [[_largest(one, SMALL) for one in heads] for heads in whole]
    scale = scale_of([one for heads in maps for one in heads], meaning="attention")
    longest = max(max(heads.shape[1:]) for heads in whole)
    columns = max(len(m) for m in maps)
    panels: list[Panel] = []
    for (number, _), heads in zip(chosen, maps, strict=True):
        for head, values in enumerate(heads):
            panels.append(Panel((Matrix(values, scale, small=True),), f"{number}.{head}"))
        panels += [Panel(())] * (columns - len(heads))
    facts = (Fact("sites", str(len(chosen))), Fact("titles", "site.head, in call order; one scale for all"))
    caption = CAPTION
    if longest > SMALL:
        caption = (
            f"Rows look at columns. {longest} positions share {SMALL} cells: a colour is the largest weight inside."
        )
    return View("Attention, every head", tuple(panels), facts, caption=caption, columns=columns, legend=scale)


def _largest(values: Array, longest: int) -> Array:
    """At most so many rows and columns: a mean would fade single weights, and the scale would be that of means."""
    for axis in (0, 1):
        if values.shape[axis] > longest:
            starts = [int(part[0]) for part in np.array_split(np.arange(values.shape[axis]), longest)]
            values = np.maximum.reduceat(values, starts, axis)
    return values


@checked
def attention_streams(
    record: Record,
    labels: Mapping[str, Sequence[str]] | None = None,
    *,
    layer: Place = -1,
    head: Place | Annotated[str, OneOf("mean", "max")] = "mean",
    row: Place = 0,
) -> View:
    """One map per kind of attention: encoder-self, decoder-self, cross; or each pair of streams.

    ``labels``: by stream name ("source" and "target" for encoder and decoder); ``layer``: which of a kind's sites.
    """
    groups: dict[tuple[str, str, str], list[Site]] = {}
    has_decoder = any("decoder" in site.path for site in record.sites)
    for site in record.sites:
        groups.setdefault(_group(site, has_decoder), []).append(site)
    panels, maps = [], []
    for (name, query, key), members in groups.items():
        if not -len(members) <= layer < len(members):
            raise BadInput(f"layer={layer}: {name} has {len(members)} sites.")
        maps.append((name, query, key, _reduced(_maps(members[layer], row), head), members))
    scale = scale_of([m[3] for m in maps], meaning="attention")
    for name, query, key, values, members in maps:
        rows, columns = _stream_labels(labels, query, values.shape[0]), _stream_labels(labels, key, values.shape[1])
        mark = Matrix(values, scale, rows, columns, query or "query", key or "key")
        panels.append(Panel((mark,), f"{name} ({len(members)} sites)" if len(members) > 1 else name))
    shown = f"head {head}" if isinstance(head, int) else f"{head} over heads"
    facts = (Fact("shown", f"site {layer} of each kind, {shown}"),)
    return View("Attention by kind", tuple(panels), facts, caption=CAPTION, columns=min(3, len(panels)), legend=scale)


@checked
def heads_over_image(
    record: Record,
    units: Units | Explanation,
    image: Any = None,
    *,
    site: Place = -1,
    query: Place = 0,
    row: Place = 0,
) -> View:
    """Where each head looks, each in its own colour: together, and one by one.

    ``units``: an Explanation of the same input, or its units (they know the patch grid); ``query``: the position that
    looks, the first ([CLS]) unless told.
    """
    units = units.units if isinstance(units, Explanation) else units
    if units.grid is None:
        raise BadInput("heads_over_image needs units with a patch grid: pass an Explanation of an image.")
    chosen = _site(record, site)
    maps = _maps(chosen, row)
    if maps.shape[2] != len(units):
        raise BadInput(f"the map has {maps.shape[2]} keys and the input {len(units)} units: not the same input.")
    if not -maps.shape[1] <= query < maps.shape[1]:
        raise BadInput(f"query={query}: the map has {maps.shape[1]} rows.")
    patches = [i for i, special in enumerate(units.special) if not special]
    grids = [m[query][patches].reshape(units.grid) for m in maps]
    pixels = None if image is None else to_pixels(image)
    require_fit(pixels, units)
    names = [f"head {i}" for i in range(len(grids))]
    everything = HeadColours(tuple(grids), tuple(names), tuple(range(len(grids))), pixels, units.image_size)
    panels = [Panel((everything,), "all heads", wide=True)]
    panels += [
        Panel((HeadColours((grid,), (names[i],), (i,), pixels, units.image_size),)) for i, grid in enumerate(grids)
    ]
    who = units.labels[query] if maps.shape[1] == len(units) else str(query)
    facts = (Fact("site", chosen.path or "the model itself"), Fact("looking", f"position {query}, {who}"))
    caption = (
        "Colour: the head. Its strength: how much of the head's attention a patch gets, next to the head's own highest."
    )
    return View("Where the heads look", tuple(panels), facts, caption=caption, columns=min(4, max(1, len(grids))))


@checked
def relevance_map(explanation: Explanation, streams: tuple[str, str] | None = None) -> View:
    """The whole map of a method that has one: output positions down, input positions across."""
    from whyformer.views.facts import doubts, facts

    matrix = explanation.matrix
    if matrix is None:
        raise NotOffered(f"{explanation.method} has no map of positions by positions; its scores are all there is.")
    parts = matrix if isinstance(matrix, dict) else {("", ""): matrix}
    if streams is not None:
        if streams not in parts:
            raise UnknownName("pair of streams", streams, parts)
        parts = {streams: parts[streams]}
    scale = scale_of([_off_diagonal(m) for m in parts.values()], explanation.signed)
    panels = []
    for (query, key), values in parts.items():
        rows, columns = (_unit_labels(explanation.units, s, n) for s, n in zip((query, key), values.shape, strict=True))
        mark = Matrix(values, scale, rows, columns, query or "output position", key or "input position")
        panels.append(Panel((mark,), f"{query} ← {key}" if query else "", wide=len(parts) == 1))
    return View(
        "Relevance map",
        tuple(panels),
        facts(explanation),
        doubts(explanation),
        "Rows are output positions, columns input positions. Colours are scaled to the entries off the diagonal.",
        columns=min(2, len(panels)),
        legend=scale,
    )


def _off_diagonal(values: Array) -> Array:
    """What a position gets from itself often outweighs all else and would leave the rest white."""
    if values.shape[0] != values.shape[1] or len(values) < 2:
        return values
    rest: Array = values[~np.eye(len(values), dtype=bool)]
    return rest


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
    if head in ("mean", "max"):
        reduced: Array = maps_HQK.mean(0) if head == "mean" else maps_HQK.max(0)
        return reduced
    if not isinstance(head, int) or not -len(maps_HQK) <= head < len(maps_HQK):
        raise UnknownName("head", head, ["mean", "max", f"0 to {len(maps_HQK) - 1}"])
    one: Array = maps_HQK[head]
    return one


def _matrix(values: Array, rows: tuple[str, ...], columns: tuple[str, ...]) -> Matrix:
    return Matrix(values, scale_of([values], meaning="attention"), rows, columns, "query (looks)", "key (is looked at)")


def _label_pair(
    labels: Labels | None, shape: tuple[int, ...], first_query: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if labels is None:
        return tuple(map(str, range(shape[0]))), tuple(map(str, range(shape[1])))
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
        return (f"{query} self-attention" if query == key else f"{query} looks at {key}"), query, key
    if has_decoder and site.kind == "cross":
        return "cross-attention", "target", "source"
    if has_decoder:
        side, stream = ("decoder", "target") if "decoder" in site.path else ("encoder", "source")
        return f"{side} self-attention", stream, stream
    queries, keys = site.attention_BHQK.shape[2:]
    place = re.sub(r"\.?\d+", "", site.path)  # layers of one stack share the rest of their path
    return f"{site.kind}-attention {queries} × {keys}, {place or 'the model itself'}", "", ""


def _kind(site: Site) -> str:
    query, key = site.streams
    return f"{site.kind}-attention" + (f", {query} to {key}" if query and query != key else "")


def _stream_labels(labels: Mapping[str, Sequence[str]] | None, stream: str, length: int) -> tuple[str, ...]:
    names = (labels or {}).get(stream)
    if names is None:
        return tuple(map(str, range(length)))
    if len(names) != length:
        raise BadInput(f"{len(names)} labels for the {length} positions of {stream!r}.")
    return tuple(map(str, names))


def _unit_labels(units: Units, stream: str, length: int) -> tuple[str, ...]:
    chosen = [label for label, s in zip(units.labels, units.stream, strict=True) if not stream or s == stream]
    return tuple(chosen) if len(chosen) == length else tuple(map(str, range(length)))
