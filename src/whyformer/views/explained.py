"""One explanation, several side by side, or a page of them → views, and views into files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.files import pixels_of_uri, writable_file, write_file, writing
from whyformer.parameters import Count, checked
from whyformer.registry import meaning_of
from whyformer.results.result import PICTURES
from whyformer.results.types import Explanation, Generation, Target, Units
from whyformer.shapes import Array
from whyformer.views import header
from whyformer.views import image_marks as images
from whyformer.views.generation import first_token_words, in_full_colour, is_long, reading_of, shortened_question
from whyformer.views.marks import Heat, Mark, Picture, Reading, Scale, TokenRun
from whyformer.views.scales import (
    LITTLE,
    ONE_SCALE,
    ONE_SCALE_OF_SCORES,
    OWN_SCALE,
    OWN_SCALE_OF_PATCHES,
    SHARE,
    SIGNED,
    SUPPORTS,
    UNSIGNED,
    first_token,
    headroom,
    ordinary,
    plain_units,
    scale_of,
    share,
)
from whyformer.views.table_marks import unmoved_words, unseen_panel, with_values
from whyformer.views.text_marks import By, bars, ranking, scale_for, token_run
from whyformer.views.view import Explained, Page, Panel, Terms, View, view_of
from whyformer.views.waterfall import baseline_words, has_waterfall, waterfall

TEXT = ("text", "source", "target", "a", "b")
LONGEST_TITLE = 100
MOST_TOKENS = 10_000  # of a text in one picture; each takes about half a millisecond on a page
STRONGEST = 8  # features, of which all but one may speak against what is explained
ONE_SIDED = 0.5  # of the largest score: patches that differ by less than this share one side of zero
PER_PIXEL = (
    " The map of pixels is coloured up to its 99th percentile. What repeats in every patch and jumps at its border is "
    "the patch matrix of the model, a checkerboard; it is not in the image."
)


@view_of.register(Explanation)
@checked
def explanation_view(
    explanation: Explanation,
    image: Any = None,
    by: By = "token",
    *,
    most: Count | None = None,
    detail: bool = False,
    title: str = "",
    colour_first_token: bool = False,
    specials: bool = False,
    others: Sequence[Explanation] = (),
) -> View:
    """The picture of one explanation: what the model says, the input with its scores, and the ranked list.

    ``most`` entries of the list are shown; ``specials``: list special tokens, too (otherwise one line reports them).
    ``detail``: the map of single pixels, too, of methods that have one. ``colour_first_token``: colour the first token
    of a language model, too. ``others``: explanations of the same input for other targets, such as (prediction, next
    class); on a page, a click on that class shows it.
    """
    nothing, explanation = explanation.nothing_found, _beginning(explanation)
    others = [_beginning(each) for each in others]
    said, notes, whole = header.answer(explanation), header.details(explanation), explanation
    took = first_token_words([explanation], coloured=True) if colour_first_token else ""
    explanation = in_full_colour(explanation) if took else explanation
    unseen = unseen_panel(explanation.units.unseen)
    explanation = with_values(_as_drawn(explanation))
    pixels = _pixels(image, explanation)
    has_patches = explanation.units.grid is not None
    panels = [] if pixels is None else [Panel((Picture(pixels, images.frames_of(explanation)),), "input")]
    panels += _panels(explanation, pixels, by)
    if detail and not nothing:
        whole_map = images.pixel_heat(explanation)
        close, frame, words = images.enlarged(whole_map, explanation)
        cells = zip(whole_map.values_RC.shape, explanation.units.grid or (), strict=True)
        note = f"colours from {' to '.join(header.ends(whole_map.scale))}"
        panels.append(Panel((replace(whole_map, frames=(*whole_map.frames, frame)),), "per pixel", note=note))
        sides = " × ".join(f"{pixels_there / count:g}" for pixels_there, count in cells)
        panels.append(Panel((close,), f"enlarged: {words}", note=f"of {sides} pixels each"))
    panels += _ranked(explanation, most, by, specials)
    panels += unseen
    marks = [mark for panel in panels for mark in panel.marks]
    drawn = whole.replace(signed=explanation.signed, scores=explanation.scores)
    return View(
        headline(explanation, title),
        tuple(panels),
        (said,),
        header.doubts(whole),
        nothing or caption([explanation]) + took + PER_PIXEL * detail,
        columns=3 if has_patches else 2,
        legend=None if nothing else next((m.scale for m in marks if isinstance(m, (TokenRun, Reading, Heat))), None),
        details=notes,
        explained=Explained(
            [drawn], pixels, by, others=_others(others, [whole]), specials=specials, nothing=(nothing,)
        ),
    )


def _others(others: Sequence[Explanation], shown: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """In the order of the methods that are shown; of another input they would be drawn over the wrong units."""
    labels, methods = shown[0].units.labels, [e.method for e in shown]
    for other in others:
        if other.units.labels != labels or other.method not in methods:
            raise BadInput(
                f"others= is for explanations of the same input by the methods shown ({', '.join(methods)}), and one "
                f"is by {other.method} of {len(other.units)} features."
            )
    return tuple(sorted(others, key=lambda e: methods.index(e.method)))


def _beginning(explanation: Explanation) -> Explanation:
    """Return a long text by its first tokens, with a warning: browsers and readers get no further."""
    units, count = explanation.units, len(explanation.units)
    if count <= MOST_TOKENS or units.grid is not None:
        return explanation
    parts = {f.name: getattr(units, f.name) for f in fields(units)}
    parts |= {k: v[:MOST_TOKENS] for k, v in parts.items() if isinstance(v, tuple) and len(v) == count}
    parts["text"] = None if units.text is None or units.spans is None else units.text[: units.spans[MOST_TOKENS - 1][1]]
    errors = None if explanation.errors is None else explanation.errors[:MOST_TOKENS]
    words = f"The first {MOST_TOKENS:,} of {count:,} tokens are drawn and listed; ranked() and saved data have all."
    return explanation.replace(
        **dict.fromkeys(("matrix", "layers", "detail", "hops")),
        units=Units(**parts),
        scores=explanation.scores[:MOST_TOKENS],
        errors=errors,
        warnings=(words, *explanation.warnings),
    )


def headline(explanation: Explanation, title: str = "") -> str:
    """The input in one line; where more is asked than why the prediction, the question comes first."""
    target, words = explanation.target, title or title_of(explanation)
    if header.is_predicted(explanation) and target.versus is None:
        return words
    first, second = _named(target)
    return f"Why {first}{'' if target.versus is None else f' rather than {second}'}? · {words}"


def _named(target: Target) -> tuple[str, str]:
    """The explained class or token, and the one that it is held against."""
    names = (target.label or target.index, target.versus_label or target.versus)
    first, second = (repr(name.strip()) if isinstance(name, str) else str(name) for name in names)
    return first, second


def _ranked(explanation: Explanation, most: int | None, by: str, specials: bool) -> list[Panel]:
    """The ranked list; of a contrast with a sign, what speaks for the one and what for the other."""
    if not explanation.scores.any():
        return []
    if has_waterfall(explanation):
        words = baseline_words(explanation)
        return [
            Panel(
                (waterfall(explanation, most, specials),),
                f"from the baseline{f' ({words})' if words else ''} to this row",
                wide=True,
            )
        ]
    has_patches, target = explanation.units.grid is not None, explanation.target
    scale = None if has_patches else scale_for(explanation, by)
    whole = ranking(explanation, most=most, by=by, scale=scale, specials=specials)
    if target.versus is None or not explanation.signed or has_patches:
        name = "strongest scores" if explanation.signed else "highest scores"
        return [Panel((whole,), name, wide=not has_patches)]
    bars = ranking(explanation, most=len(explanation.units), by=by, scale=scale, specials=specials).bars
    sides = ([b for b in bars if b.score > 0], [b for b in bars if b.score < 0])
    half = max(1, len(whole.bars) // 2) if whole.left_out else len(bars)
    last = sides[1] or sides[0]
    panels = []
    for side, name in zip(sides, _named(target), strict=True):
        shown = replace(whole, bars=tuple(side[:half]), left_out=max(0, len(side) - half))
        panels += [Panel((shown if side is last else replace(shown, folded=""),), f"supports {name}")] if side else []
    return panels


def _as_drawn(explanation: Explanation) -> Explanation:
    """What found nothing without colours. Patches far above zero without their sign, which would have one colour."""
    if explanation.nothing_found:
        return explanation.replace(scores=np.zeros_like(explanation.scores))
    if not explanation.signed or explanation.units.grid is None:
        return explanation
    scores = explanation.heatmap()
    apart = 0 < scores.min() and np.ptp(scores) < ONE_SIDED * scores.max() and headroom(explanation) == 1
    return explanation.replace(signed=False) if apart else explanation


def _panels(explanation: Explanation, image: Array | None, by: str) -> list[Panel]:
    """The input with its scores: patches smooth and as a grid, text as highlights; the rest has its ranked list."""
    units, found = explanation.units, bool(explanation.scores.any())
    panels: list[Panel] = []
    for stream in dict.fromkeys(units.stream):
        members = [i for i, s in enumerate(units.stream) if s == stream]
        name = f" ({stream})" if len(set(units.stream)) > 1 else ""
        if not found and stream not in TEXT:
            continue  # a map of zeros would look like a finding
        if image is not None and stream == "image" and units.boxes is not None and units.grid is None:
            panels.append(Panel((Picture(images.boxes_on(explanation, members, image)),), f"boxes{name}"))
        if units.grid is not None and (stream == "image" or len(set(units.stream)) == 1):
            name = ": time →, frequency ↑" if images.of_sound(units) else name
            panels.append(Panel((images.heat(explanation, image=image),), f"scores{name}"))
            panels.append(Panel((images.heat(explanation, image=image, interpolation="nearest"),), f"per patch{name}"))
            continue
        if images.in_time(units, stream):
            panels.append(Panel((images.time_lines(explanation),), "over time", wide=True))
            continue
        if stream in TEXT and not name and is_long(explanation):
            panels.append(Panel((reading_of(explanation, by),), "", wide=True))
        elif stream in TEXT:
            panels.append(Panel((token_run(explanation, by=by, members=members),), stream if name else "", wide=True))
    return panels


@checked
def side_by_side(
    explanations: Sequence[Explanation] | Mapping[str, Explanation],
    *,
    image: Any = None,
    shared: bool = False,
    by: By = "token",
    most: Count | None = None,
    notes: Mapping[str, str] | None = None,
    detail: bool = False,
    title: str = "",
    specials: bool = False,
    others: Sequence[Explanation] = (),
) -> View:
    """Several explanations of one input beside each other, each drawn as it is drawn alone.

    Bars and colours reach the largest score of each, and numbers are scores. ``shared=True`` draws all on one scale:
    explanations of one method by their scores, different methods, whose scores have different units, by shares (of the
    total |score| of ordinary units). Methods with and without a sign have one scale each, of the same reach.
    ``notes``: a sentence per method name, in place of the usual one.
    ``detail``: below each map that of single pixels, where a method has one, on its own scale. ``specials``: special
    tokens have bars, too. ``others``: of the same
    input and methods for other targets; on a page, a click on that class shows them.
    """
    chosen = list(explanations.values()) if isinstance(explanations, Mapping) else list(explanations)
    if not chosen:
        raise BadInput("side_by_side needs at least one explanation.")
    if detail and not any(map(images.has_pixels, chosen)):
        raise NotOffered(f"detail=True: none of {', '.join(e.method for e in chosen)} has scores of single pixels.")
    empty, chosen = [e.nothing_found for e in chosen], [_beginning(e) for e in chosen]
    alternatives = _others([_beginning(e) for e in others], chosen)
    chosen = [with_values(_as_drawn(e)) for e in chosen]
    if len({(e.units.labels, e.units.text) for e in chosen}) > 1:
        raise BadInput("side_by_side is for explanations of one input; use page([...]) for several inputs.")
    pixels = _pixels(image, chosen[0])
    mixed = len({e.method for e in chosen}) > 1
    times = [share(e) if mixed and shared else 1.0 for e in chosen]
    scales = _shared_scales(chosen, times, mixed, by) if shared else {}
    panels = []
    one_target = len({(e.target, e.scalar) for e in chosen}) == 1
    one_readout = len({e.readout for e in chosen}) == 1 and bool(chosen[0].readout)
    for explanation, factor, nothing in zip(chosen, times, empty, strict=True):
        scale = scales.get(explanation.signed)
        marks = _marks(explanation, pixels, by, scale, factor, specials)
        marks += [images.pixel_heat(explanation)] if detail and images.has_pixels(explanation) and not nothing else []
        ranked = explanation.units.grid is None and set(explanation.units.stream) != {"table"}  # those have their bars
        if ranked and explanation.scores.any():
            marks.append(ranking(explanation, by=by, scale=scale, times=factor, most=most, specials=specials))
        named = [explanation.method] * (mixed or one_target) + [header.explained(explanation)] * (not one_target)
        told = [f for f in header.facts_about_method(explanation) if f.name != "output position" or not one_readout]
        note = nothing or (notes or {}).get(explanation.method, meaning_of(explanation.method))
        panels.append(Panel(tuple(marks), " · ".join(named), False, tuple(told), header.doubts(explanation), note))
    common = [f for f in header.facts_about_method(chosen[0]) if f.name == "output position" and one_readout]
    legends = [scales[signed] for signed in (True, False) if signed in scales]
    found = [e for e, nothing in zip(chosen, empty, strict=True) if not nothing]

    def words(on_one_scale: bool) -> str:
        if not found:
            return " ".join(dict.fromkeys(empty))
        return caption(found, on_one_scale, beside=len(chosen) > 1) + PER_PIXEL * detail

    return View(
        headline(chosen[0], title) if one_target else title or title_of(chosen[0]),
        tuple(panels),
        (header.answer(chosen[0]),),
        (),
        words(shared),
        columns=min(len(panels), 2 if set(chosen[0].units.stream) == {"table"} else 4),  # columns with values are long
        legend=legends[0] if legends else None,
        second_legend=legends[1] if len(legends) > 1 else None,
        details=(*(header.facts_about_input(chosen[0]) if one_target else ()), *common),
        explained=Explained(
            chosen,
            pixels,
            by,
            others=alternatives,
            specials=specials,
            shared=shared,
            captions=(words(False), words(True)),
            nothing=tuple(empty),
        ),
    )


@checked
def page(
    explanations: Iterable[Explanation | Generation | View],
    title: str = "Explanations",
    *,
    lead: Sequence[str | Terms] = (),
    outro: Sequence[str | Terms] = (),
) -> Page:
    """Explanations and views below each other. ``.to_html()`` and ``.save()`` make one file of them."""
    views = tuple(e if isinstance(e, View) else view_of(e) for e in explanations)
    return Page(title, views, tuple(lead), tuple(outro))


def title_of(explanation: Explanation, number: int | None = None) -> str:
    """The input in one line, of a long one its beginning; ``number``: which of several pictures or rows."""
    words = _title(explanation)
    if number is not None:
        words = words.replace("table row", f"row {number}", 1) if words.startswith("table row") else words
        words = words.replace("image", f"image {number}", 1) if words.startswith("image, ") else words
    return words if len(words) <= LONGEST_TITLE else words[: LONGEST_TITLE - 1].rstrip() + "…"


def _title(explanation: Explanation) -> str:
    units = explanation.units
    if units.role is not None:
        return shortened_question(explanation)
    if units.grid is not None and images.of_sound(units):
        return f"sound, {units.grid[0]} bands × {units.grid[1]} steps"
    if units.grid is not None and units.text is None:
        image, frames = f"image, {units.grid[0]} × {units.grid[1]} patches", images.frames_of(explanation)
        return f"{frames[0].label}, query {explanation.target.position}: {image}" if frames else image
    if units.text is not None:
        return " ".join(units.text.split())
    if units.seconds is not None:
        return f"sound, {units.seconds:.2f} s"
    plain = [label for label, special in zip(units.labels, units.special, strict=True) if not special]
    if set(units.stream) <= set(TEXT):
        return "".join(p.text for p in token_run(explanation).pieces if not p.special).strip()
    if set(units.stream) == {"table"}:
        values = units.values or ("",) * len(units)
        cells = [f"{name} = {value}" if value else name for name, value in zip(units.labels, values, strict=True)]
        known = [cell for cell, special in zip(cells, units.special, strict=True) if not special and " = " in cell]
        return f"table row: {', '.join(known)}" if known else f"table row, {len(plain)} columns"
    return f"{len(plain)} features of {' and '.join(dict.fromkeys(units.stream))}"


def caption(chosen: Sequence[Explanation], shared: bool = False, beside: bool = False) -> str:
    """What the colours say; of which methods, where some have a sign and others have none. beside: others are there."""
    mixed, patches = len({e.method for e in chosen}) > 1, chosen[0].units.grid is not None
    signed, unsigned = (", ".join(dict.fromkeys(e.method for e in chosen if e.signed is s)) for s in (True, False))
    sides = _sides(chosen)
    if signed and unsigned:
        text = f"{sides or SIGNED} ({signed}). {UNSIGNED} ({unsigned}: no sign)."
    else:
        text = f"{(sides or SIGNED) if signed else UNSIGNED}."
    text += _sideless(chosen)
    # What the text shows without its colour; what it holds is said below the bars.
    names = dict.fromkeys(e.units.labels[at].lstrip("Ġ▁") for e in chosen if (at := first_token(e)) is not None)
    text += f" Hatched, not coloured: {', '.join(map(repr, names))}." if names else ""
    faint = "" if shared and mixed else faint_words(chosen)  # shares of a total are drawn in full
    text += unmoved_words(chosen) + against_words(chosen) + faint
    if len(chosen) == 1 and not beside and has_waterfall(chosen[0]):
        text += " Each bar begins where the one above it ends."
    elif not shared:
        text += (OWN_SCALE_OF_PATCHES if patches and unsigned else OWN_SCALE) * (beside or not faint)
        text += " Lengths and colours cannot be compared between maps." * beside
    elif mixed:
        text += ONE_SCALE
        text += " Bars without a sign have twice the room." if signed and unsigned and not patches else ""
    else:
        text += ONE_SCALE_OF_SCORES
    if any(len(plain_units(e.units)) == 1 for e in chosen):
        text += " The input is a single feature: its bar has no other to compare with."
    return text


def against_words(chosen: Sequence[Explanation]) -> str:
    """That almost all of the strongest features speak against the class that is explained, and what to ask then."""
    if len(chosen) > 1 or not chosen[0].signed or chosen[0].target.versus is not None:
        return ""
    strongest = sorted(ordinary(chosen[0]), key=abs)[-STRONGEST:]
    against = sum(score < 0 for score in strongest)
    if len(strongest) < STRONGEST or against < STRONGEST - 1:
        return ""
    name = _named(chosen[0].target)[0]
    return f" {against} of the {STRONGEST} strongest features speak against {name}.{chosen[0].why_not}"


def faint_words(chosen: Sequence[Explanation]) -> str:
    """That all scores are little beside the explained value, and how that is drawn."""
    faint = [e for e in chosen if headroom(e) > 1]
    if not faint:
        return ""
    share = header.percent(max(float(np.abs(e.scores).sum()) / abs(e.value) for e in faint))
    whose = f" of {', '.join(dict.fromkeys(e.method for e in faint))}" * (len(chosen) > 1)
    return (
        f" Bars and colours{whose}: weaker in proportion, since all |scores| together are {share} of the explained "
        f"value (below {100 * LITTLE:g} %)."
    )


def _sides(chosen: Sequence[Explanation]) -> str:
    """Of a contrast: which class a sign supports."""
    target = chosen[0].target
    if target.versus is None or len({e.target for e in chosen}) > 1:
        return ""
    return SUPPORTS.format(*_named(target))


def _sideless(chosen: Sequence[Explanation]) -> str:
    """Of a contrast by methods without a sign: that they support neither class."""
    unsigned = dict.fromkeys(e.method for e in chosen if not e.signed)
    if not unsigned or not _sides(chosen):
        return ""
    first, second = _named(chosen[0].target)
    return (
        f" {', '.join(unsigned)} has no sign: its scores do not show which of {first} and {second} a feature supports."
    )


def _marks(
    explanation: Explanation, image: Array | None, by: str, scale: Scale | None, times: float, specials: bool
) -> list[Mark]:
    """One mark per stream of the input, for a panel among others."""
    units, found = explanation.units, bool(explanation.scores.any())
    marks: list[Mark] = []
    for stream in dict.fromkeys(units.stream):
        members = [i for i, s in enumerate(units.stream) if s == stream]
        if not found and stream not in TEXT:  # a map of zeros would look like a finding
            marks += [Picture(image, images.frames_of(explanation))] if image is not None and stream == "image" else []
            continue
        if image is not None and stream == "image" and units.boxes is not None and units.grid is None:
            marks.append(Picture(images.boxes_on(explanation, members, image, scale, times)))
        if units.grid is not None and (stream == "image" or len(set(units.stream)) == 1):
            marks.append(images.heat(explanation, image=image, scale=scale, times=times))
        elif images.in_time(units, stream):
            marks.append(images.time_lines(explanation, times))
        elif stream in TEXT:
            marks.append(token_run(explanation, by=by, scale=scale, times=times, members=members))
        else:
            marks.append(bars(explanation, scale=scale, times=times, members=members, specials=specials))
    return marks


def _pixels(image: Any, explanation: Explanation) -> Array | None:
    """The picture that is drawn over; one that nothing could be drawn over is refused, not ignored."""
    units = explanation.units
    if image is None:
        seen = None if explanation.picture is None else pixels_of_uri(explanation.picture)
        return seen if seen is not None and images.fits(seen, units) else None
    if units.grid is None and "image" not in units.stream:
        raise BadInput("image= is for explanations of images: omit it.")
    return images.to_pixels(image)


def _shared_scales(chosen: list[Explanation], times: list[float], mixed: bool, by: str) -> dict[bool, Scale]:
    """By whether a method has a sign: what has none must not be drawn as raising the value. Both reach as far."""
    meaning = SHARE if mixed else "score"
    patches = chosen[0].units.grid is not None and len(set(chosen[0].units.stream)) == 1
    own = [None if patches else scale_for(e, by) for e in chosen]
    reaches = [
        e.heatmap() * headroom(e) if s is None else np.array([s.low, s.high]) for e, s in zip(chosen, own, strict=True)
    ]
    rooms = [headroom(e) if mixed else 1.0 for e in chosen]  # shares of a total are drawn in full
    reached = [end * t / room for end, t, room in zip(reaches, times, rooms, strict=True)]
    largest = max(float(np.abs(r).max()) for r in reached)
    both = len({e.signed for e in chosen}) > 1
    scales = {}
    for signed in {e.signed for e in chosen}:
        ranges = [r for e, r in zip(chosen, reached, strict=True) if e.signed == signed]
        named = f"{meaning}, {'with' if signed else 'without'} a sign" if both else meaning
        scale = scale_of(ranges, signed, from_zero=not patches, meaning=named)
        low = -largest if scale.signed else scale.low
        scales[signed] = replace(scale, low=low, high=largest, shares=mixed)
    return scales


def save_page(page: Page, path: str | Path) -> Path:
    """Write a picture; the ending of the file name says which kind."""
    path = writable_file(path, PICTURES)
    with writing(path):
        if path.suffix == ".html":
            # Half a character, which labels can hold, cannot be written: its number can.
            data = page.to_html().encode("utf-8", "xmlcharrefreplace")
        else:
            from whyformer.views.figure.figure_page import figure_bytes

            data = figure_bytes(page, path.suffix)
        write_file(path, data)
    return path
