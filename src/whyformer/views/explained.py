"""Views of one explanation, of several side by side, and pages of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.files import pixels_of_uri
from whyformer.parameters import Count, checked
from whyformer.registry import meaning_of
from whyformer.results.types import Explanation, Generation, Target, Units
from whyformer.shapes import Array
from whyformer.views import header, scales, text_marks
from whyformer.views import image_marks as images
from whyformer.views.generation import first_token_words, in_full_colour, is_long, reading_of, shortened_question
from whyformer.views.marks import Heat, Lines, Mark, MarkSettings, Picture, Reading, Scale, TokenRun
from whyformer.views.table_marks import unmoved_words, unseen_panel, with_values
from whyformer.views.text_marks import By
from whyformer.views.view import Explained, Page, Panel, Terms, View, view_of

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
    look = MarkSettings(by, most=most, specials=specials, image=pixels)
    for heading, mark in _marks(explanation, look, beside=False):
        panels.append(Panel((mark,), heading, wide=isinstance(mark, (TokenRun, Reading, Lines))))
    if detail and not nothing:
        whole_map = images.pixel_heat(explanation)
        close, frame, words = images.enlarged(whole_map, explanation)
        cells = zip(whole_map.values_RC.shape, explanation.units.grid or (), strict=True)
        note = f"colours from {' to '.join(header.ends(whole_map.scale))}"
        panels.append(Panel((replace(whole_map, frames=(*whole_map.frames, frame)),), "per pixel", note=note))
        sides = " × ".join(f"{pixels_there / count:g}" for pixels_there, count in cells)
        panels.append(Panel((close,), f"enlarged: {words}", note=f"of {sides} pixels each"))
    panels += _ranked(explanation, look)
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
    """Return explanations of other targets in the order of the methods shown; raise if they are of another input."""
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


def _ranked(explanation: Explanation, look: MarkSettings) -> list[Panel]:
    """Return the ranked list; of a contrast with a sign, a list for each of the two classes."""
    if not explanation.scores.any():
        return []
    if text_marks.has_waterfall(explanation):
        words = f" ({baseline})" if (baseline := text_marks.baseline_words(explanation)) else ""
        return [Panel((text_marks.waterfall(explanation, look),), f"from the baseline{words} to this row", wide=True)]
    has_patches, target = explanation.units.grid is not None, explanation.target
    look = replace(look, scale=None if has_patches else text_marks.scale_for(explanation, look.by))
    whole = text_marks.ranking(explanation, look)
    if target.versus is None or not explanation.signed or has_patches:
        name = "strongest scores" if explanation.signed else "highest scores"
        return [Panel((whole,), name, wide=not has_patches)]
    every = text_marks.ranking(explanation, replace(look, most=len(explanation.units))).bars
    sides = ([b for b in every if b.score > 0], [b for b in every if b.score < 0])
    half = max(1, len(whole.bars) // 2) if whole.left_out else len(every)
    last = sides[1] or sides[0]
    panels = []
    for side, name in zip(sides, _named(target), strict=True):
        shown = replace(whole, bars=tuple(side[:half]), left_out=max(0, len(side) - half))
        panels += [Panel((shown if side is last else replace(shown, folded=""),), f"supports {name}")] if side else []
    return panels


def _as_drawn(explanation: Explanation) -> Explanation:
    """Set uninformative scores to zero, and drop the sign of patches that are all far above zero."""
    if explanation.nothing_found:
        return explanation.replace(scores=np.zeros_like(explanation.scores))
    if not explanation.signed or explanation.units.grid is None:
        return explanation
    scores = explanation.heatmap()
    apart = 0 < scores.min() and np.ptp(scores) < ONE_SIDED * scores.max() and scales.headroom(explanation) == 1
    return explanation.replace(signed=False) if apart else explanation


def _marks(explanation: Explanation, look: MarkSettings, beside: bool) -> list[tuple[str, Mark]]:
    """Return headings and marks of the input with its scores, stream by stream.

    ``beside``: in a panel among others, with fewer pictures, and with bars for what has no map.
    """
    units, image = explanation.units, look.image
    scored, mixed = bool(explanation.scores.any()), len(set(units.stream)) > 1
    marks: list[tuple[str, Mark]] = []
    for stream in dict.fromkeys(units.stream):
        members = [i for i, s in enumerate(units.stream) if s == stream]
        name = f" ({stream})" if mixed else ""
        if not scored and stream not in TEXT:  # a map of zeros would look like a result
            if beside and image is not None and stream == "image":
                marks.append(("", Picture(image, images.frames_of(explanation))))
            continue
        if image is not None and stream == "image" and units.boxes is not None and units.grid is None:
            scores, boxes = explanation.scores[members] * np.float32(look.times), [units.boxes[i] for i in members]
            alone = scales.scale_of([scores], explanation.signed)
            scale = look.scale or scales.widened(alone, scales.headroom(explanation))
            marks.append((f"boxes{name}", Picture(images.boxes_drawn(image, boxes, scores, scale))))
        if units.grid is not None and (stream == "image" or not mixed):
            name = ": time →, frequency ↑" if images.of_sound(units) else name
            marks.append((f"scores{name}", images.heat(explanation, look)))
            if not beside:
                marks.append((f"per patch{name}", images.heat(explanation, look, interpolation="nearest")))
        elif stream == "audio" and units.grid is None and units.seconds is not None:
            marks.append(("over time", images.time_lines(explanation, look.times)))
        elif stream in TEXT and not beside and not mixed and is_long(explanation):
            marks.append(("", reading_of(explanation, look.by)))
        elif stream in TEXT:
            marks.append((stream if mixed else "", text_marks.token_run(explanation, look, members)))
        elif beside:
            marks.append(("", text_marks.bars(explanation, look, members)))
    return marks


def _marks_beside(explanation: Explanation, look: MarkSettings, detail: bool) -> tuple[Mark, ...]:
    """Return the marks of a panel among others. detail: with scores of single pixels, where there are any."""
    marks = [mark for _, mark in _marks(explanation, look, beside=True)]
    marks += [images.pixel_heat(explanation)] if detail and images.has_pixels(explanation) else []
    ranked = explanation.units.grid is None and set(explanation.units.stream) != {"table"}  # those have their bars
    if ranked and explanation.scores.any():
        marks.append(text_marks.ranking(explanation, look))
    return tuple(marks)


def _captions(chosen: Sequence[Explanation], empty: Sequence[str], more: str) -> tuple[str, str]:
    """Return the caption of explanations each on its own scale, and of all on one. empty: why one has no scores."""
    telling = [e for e, nothing in zip(chosen, empty, strict=True) if not nothing]
    if not telling:
        return (" ".join(dict.fromkeys(empty)),) * 2
    each, all_on_one = (caption(telling, on_one, beside=len(chosen) > 1) + more for on_one in (False, True))
    return each, all_on_one


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
    times = [scales.share(e) if mixed and shared else 1.0 for e in chosen]
    on_one = _shared_scales(chosen, times, mixed, by) if shared else {}
    panels = []
    one_target = len({(e.target, e.scalar) for e in chosen}) == 1
    one_readout = len({e.readout for e in chosen}) == 1 and bool(chosen[0].readout)
    for explanation, factor, nothing in zip(chosen, times, empty, strict=True):
        look = MarkSettings(by, on_one.get(explanation.signed), factor, most, specials, pixels)
        marks = _marks_beside(explanation, look, detail and not nothing)
        named = [explanation.method] * (mixed or one_target) + [header.explained(explanation)] * (not one_target)
        told = [f for f in header.facts_about_method(explanation) if f.name != "output position" or not one_readout]
        note = nothing or (notes or {}).get(explanation.method, meaning_of(explanation.method))
        panels.append(Panel(marks, " · ".join(named), False, tuple(told), header.doubts(explanation), note))
    common = [f for f in header.facts_about_method(chosen[0]) if f.name == "output position" and one_readout]
    captions = _captions(chosen, empty, PER_PIXEL * detail)
    return View(
        headline(chosen[0], title) if one_target else title or title_of(chosen[0]),
        tuple(panels),
        (header.answer(chosen[0]),),
        (),
        captions[shared],
        columns=min(len(panels), 2 if set(chosen[0].units.stream) == {"table"} else 4),  # columns with values are long
        legend=on_one.get(True, on_one.get(False)),
        second_legend=on_one.get(False) if True in on_one else None,
        details=(*(header.facts_about_input(chosen[0]) if one_target else ()), *common),
        explained=Explained(
            chosen,
            pixels,
            by,
            others=alternatives,
            specials=specials,
            shared=shared,
            captions=captions,
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
        return "".join(p.text for p in text_marks.token_run(explanation).pieces if not p.special).strip()
    if set(units.stream) == {"table"}:
        values = units.values or ("",) * len(units)
        cells = [f"{name} = {value}" if value else name for name, value in zip(units.labels, values, strict=True)]
        known = [cell for cell, special in zip(cells, units.special, strict=True) if not special and " = " in cell]
        return f"table row: {', '.join(known)}" if known else f"table row, {len(plain)} columns"
    return f"{len(plain)} features of {' and '.join(dict.fromkeys(units.stream))}"


def caption(chosen: Sequence[Explanation], shared: bool = False, beside: bool = False) -> str:
    """Return what the colours mean, by method if some have a sign and others do not. beside: other maps are shown."""
    mixed, patches = len({e.method for e in chosen}) > 1, chosen[0].units.grid is not None
    signed, unsigned = (", ".join(dict.fromkeys(e.method for e in chosen if e.signed is s)) for s in (True, False))
    sides, sideless = _sides(chosen)
    if signed and unsigned:
        text = f"{sides or scales.SIGNED} ({signed}). {scales.UNSIGNED} ({unsigned}: no sign)."
    else:
        text = f"{(sides or scales.SIGNED) if signed else scales.UNSIGNED}."
    text += sideless
    # What the text shows without its colour; what it holds is said below the bars.
    names = dict.fromkeys(e.units.labels[at].lstrip("Ġ▁") for e in chosen if (at := scales.first_token(e)) is not None)
    text += f" Hatched, not coloured: {', '.join(map(repr, names))}." if names else ""
    faint = "" if shared and mixed else faint_words(chosen)  # shares of a total are drawn in full
    text += unmoved_words(chosen) + against_words(chosen) + faint
    if len(chosen) == 1 and not beside and text_marks.has_waterfall(chosen[0]):
        text += " Each bar begins where the one above it ends."
    elif not shared:
        text += (scales.OWN_SCALE_OF_PATCHES if patches and unsigned else scales.OWN_SCALE) * (beside or not faint)
        text += " Lengths and colours cannot be compared between maps." * beside
    elif mixed:
        text += scales.ONE_SCALE
        text += " Bars without a sign have twice the room." if signed and unsigned and not patches else ""
    else:
        text += scales.ONE_SCALE_OF_SCORES
    if any(len(scales.plain_units(e.units)) == 1 for e in chosen):
        text += " The input is a single feature: its bar has no other to compare with."
    return text


def against_words(chosen: Sequence[Explanation]) -> str:
    """Return a sentence if almost all of the strongest features speak against the explained class."""
    if len(chosen) > 1 or not chosen[0].signed or chosen[0].target.versus is not None:
        return ""
    strongest = sorted(scales.ordinary(chosen[0]), key=abs)[-STRONGEST:]
    against = sum(score < 0 for score in strongest)
    if len(strongest) < STRONGEST or against < STRONGEST - 1:
        return ""
    name = _named(chosen[0].target)[0]
    return f" {against} of the {STRONGEST} strongest features speak against {name}.{chosen[0].why_not}"


def faint_words(chosen: Sequence[Explanation]) -> str:
    """Return a sentence if all scores together are small relative to the explained value."""
    faint = [e for e in chosen if scales.headroom(e) > 1]
    if not faint:
        return ""
    share = header.percent(max(float(np.abs(e.scores).sum()) / abs(e.value) for e in faint))
    whose = f" of {', '.join(dict.fromkeys(e.method for e in faint))}" * (len(chosen) > 1)
    return (
        f" Bars and colours{whose}: weaker in proportion, since all |scores| together are {share} of the explained "
        f"value (below {100 * scales.LITTLE:g} %)."
    )


def _sides(chosen: Sequence[Explanation]) -> tuple[str, str]:
    """Return which class each sign supports, and that scores without a sign show neither; "" without a contrast."""
    target = chosen[0].target
    if target.versus is None or len({e.target for e in chosen}) > 1:
        return "", ""
    first, second = _named(target)
    unsigned = ", ".join(dict.fromkeys(e.method for e in chosen if not e.signed))
    sideless = f" {unsigned} has no sign: its scores do not show which of {first} and {second} a feature supports."
    return scales.SUPPORTS.format(first, second), sideless if unsigned else ""


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
    """Return one scale for signed and one for unsigned methods, of the same reach."""
    meaning = scales.SHARE if mixed else "score"
    patches = chosen[0].units.grid is not None and len(set(chosen[0].units.stream)) == 1
    alone = [None if patches else text_marks.scale_for(e, by) for e in chosen]
    reaches = [
        e.heatmap() * scales.headroom(e) if s is None else np.array([s.low, s.high])
        for e, s in zip(chosen, alone, strict=True)
    ]
    rooms = [scales.headroom(e) if mixed else 1.0 for e in chosen]  # shares of a total are drawn in full
    reached = [end * t / room for end, t, room in zip(reaches, times, rooms, strict=True)]
    largest = max(float(np.abs(r).max()) for r in reached)
    both = len({e.signed for e in chosen}) > 1
    by_sign = {}
    for signed in {e.signed for e in chosen}:
        ranges = [r for e, r in zip(chosen, reached, strict=True) if e.signed == signed]
        named = f"{meaning}, {'with' if signed else 'without'} a sign" if both else meaning
        scale = scales.scale_of(ranges, signed, from_zero=not patches, meaning=named)
        low = -largest if scale.signed else scale.low
        by_sign[signed] = replace(scale, low=low, high=largest, shares=mixed)
    return by_sign
