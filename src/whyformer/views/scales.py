"""Colours, axes and scales of views, and units that are shown separately: [CLS], a first token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whyformer.results.types import Explanation, Units
from whyformer.shapes import Array
from whyformer.views.marks import Bar, Line, Lines, Points, Scale, Scatter

# Colours that colour-blind readers can tell apart, for all backends. No library: anchors and straight lines between.
#
# Unsigned scores run from white to blue, signed ones from orange through white to blue; so blue always means "more".
# Over images, where white is no background, unsigned scores run from dark violet to yellow.

RGB = tuple[int, int, int]

SEQUENTIAL = ("#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac")
DIVERGING = ("#b35806", "#e08214", "#fdb863", "#fee0b6", "#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac")
HEAT = ("#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4")
MISSING = (224, 224, 224)
GREY = "#8a929b"
FAINT = "#d0d5da"  # curves that are not named
PALE = "#b8c4d0"  # bars that say nothing for sure
# Okabe and Ito's colours first, Tol's muted ones after them.
HEADS = (
    *("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"),
    *("#332288", "#44aa99", "#882255", "#ddcc77", "#117733", "#88ccee", "#aa4499", "#cc6677"),
)


def rgb(hexadecimal: str) -> RGB:
    digits = hexadecimal.lstrip("#")
    return int(digits[0:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)


def hexadecimal(colour: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def ramp(anchors: tuple[str, ...], positions: Array) -> Array:
    """Positions in 0..1 → uint8 colours (…, 3)."""
    table = np.array([rgb(a) for a in anchors], float)
    at = np.clip(positions, 0, 1) * (len(table) - 1)
    low = np.minimum(at.astype(int), len(table) - 2)
    part = (at - low)[..., None]
    return bytes_of(table[low] * (1 - part) + table[low + 1] * part)


def bytes_of(colours: Array) -> Array:
    """Colours as floats in 0..255 → uint8."""
    rounded: Array = np.rint(colours).clip(0, 255).astype(np.uint8)
    return rounded


def colours(scale: Scale, scores: Array) -> Array:
    """Scores → uint8 colours on a white ground; grey where there is no score (NaN)."""
    scores = np.asarray(scores, float)
    missing = np.isnan(scores)
    drawn = ramp(DIVERGING if scale.signed else SEQUENTIAL, scale.positions(np.where(missing, 0.0, scores)))
    drawn[missing] = MISSING
    return drawn


def colour(scale: Scale, score: float) -> RGB:
    red, green, blue = colours(scale, np.array(score))
    return int(red), int(green), int(blue)


def anchors_of(scale: Scale, over_images: bool) -> tuple[str, ...]:
    return DIVERGING if scale.signed else HEAT if over_images else SEQUENTIAL


def bar_colour(bar: Bar, scale: Scale) -> str:
    """Bars differ in length: all of one sign have the same strong colour, except special and quiet ones."""
    if bar.special or bar.quiet:
        return GREY if bar.special else PALE
    return hexadecimal(colour(scale, scale.high * 0.8 if scale.length(bar.score) >= 0 else scale.low * 0.8))


def ink_on(background: Sequence[int]) -> str:
    """Black or white text, whichever contrasts more (WCAG relative luminance)."""
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def head_colour(index: int) -> str:
    return HEADS[index % len(HEADS)]


# Axes of curves and points: ranges, round ticks and colours, the same in every backend.

# Okabe and Ito's colours without yellow, which white paper swallows; then Tol's muted ones.
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
DASHES = ("", "5 3", "2 3", "7 3 2 3")  # colours repeat with another dash
ROOM = 0.05  # beyond the outermost values, as a share of their distance


@dataclass(frozen=True)
class Axis:
    """From ``start`` to ``end``, which may lie below it (all heads on the left, none on the right)."""

    start: float
    end: float
    log: bool = False
    whole: bool = False  # ticks at whole numbers only

    def shares(self, values: Any) -> Array:
        """Return positions of values: 0 at the start, 1 at the end, NaN if they cannot be drawn."""
        ends = np.array([self.start, self.end], float)
        at = np.asarray(values, float)
        if self.log:
            ends, at = np.log10(ends), np.log10(np.where(at > 0, at, np.nan))
        if ends[0] == ends[1]:
            return np.where(np.isnan(at), np.nan, 0.5)
        placed: Array = (at - ends[0]) / (ends[1] - ends[0])
        return placed

    def ticks(self) -> list[float]:
        low, high = sorted((self.start, self.end))
        if low == high:
            return [low]
        if not self.log:
            return ticks(low, high, 1.0 if self.whole else 0.0)
        powers = [10.0**p for p in range(int(np.ceil(np.log10(low))), int(np.floor(np.log10(high))) + 1)]
        return powers if len(powers) > 1 else [t for t in ticks(low, high) if t > 0]


def ticks(low: float, high: float, smallest: float = 0.0) -> list[float]:
    """Round numbers (steps of 1, 2 or 5) within a range, about five of them."""
    rough = max((high - low) / 5, smallest)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = int(np.ceil(low / step - 1e-9))
    return [float(i * step) for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def axes_of(mark: Lines | Scatter) -> tuple[Axis, Axis]:
    """Across and up."""
    if isinstance(mark, Scatter):
        across, up = ([getattr(group, name) for group in mark.groups] for name in ("x", "y"))
        low, high = _ends([x[x > 0] for x in map(np.asarray, across)] if mark.log_x else across)
        if mark.log_x:
            room = (high / low) ** ROOM
            return Axis(low / room, high * room, log=True), _with_room(*_ends(up))
        return _with_room(low, high), _with_room(*_ends(up))
    low, high = _ends(x_of(mark, line) for line in mark.lines)
    first = x_of(mark, mark.lines[0])
    if len(first) > 1 and first[0] > first[-1]:
        low, high = high, low
    return Axis(low, high, whole=mark.whole_x), Axis(*limits(mark))


def x_of(mark: Lines, line: Line) -> Array:
    return np.asarray(mark.x if line.x is None else line.x)


def limits(mark: Lines) -> tuple[float, float]:
    """The range of the curves and their bands, with a little room."""
    parts = [part for line in mark.lines for part in (line.values, line.low, line.high) if part is not None]
    low, high = _ends([*parts, np.zeros(1)] if mark.from_zero else parts)
    up = _with_room(low, high)
    return (0.0 if mark.from_zero and low >= 0 else up.start), up.end


def _ends(parts: Iterable[Any]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(part, float).ravel() for part in parts] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def _with_room(low: float, high: float) -> Axis:
    room = (high - low or 1.0) * ROOM
    return Axis(low - room, high + room)


def styles(named: Sequence[Line | Points]) -> list[tuple[str, str]]:
    """(colour, dash) of each curve or group; quiet ones are grey and dashed, faint ones pale."""
    pairs, loud, quiet = [], 0, 0
    for one in named:
        if isinstance(one, Line) and one.faint:
            pairs.append((FAINT, ""))
        elif one.quiet:
            pairs.append((GREY, DASHES[1 + quiet % 3]))
            quiet += 1
        else:
            pairs.append((INKS[loud % len(INKS)], DASHES[loud // len(INKS) % len(DASHES)]))
            loud += 1
    return pairs


SIGNED = "Blue raises the explained value, orange lowers it"
UNSIGNED = "The stronger the colour, the higher the score"
SUPPORTS = "Blue supports {}, orange supports {}"  # of a contrast
OWN_SCALE = " Bars and colours: relative to the largest |score| on display."
OWN_SCALE_OF_PATCHES = (
    " Bars: relative to the largest |score| on display. Colours: from the lowest score of the patches to the highest."
)
SHARE = "share of the method's total |score|, hidden tokens left out"
ONE_SCALE = f" Bars, colours and numbers: {SHARE}, on one scale."
ONE_SCALE_OF_SCORES = " Bars and colours: relative to the largest |score| on display, on one scale for all maps."
LITTLE = 0.05  # of the explained value, from which the largest |score| of all has full length
OUTSHINES = 3  # times the highest of the others
FIRST_TOKEN = "first_token_share"  # what is known of an explanation of a causal language model
ANSWERED = "log_probability"  # what is explained of an answer as a whole
TEMPLATE = "template"  # the role of what stands around the messages of a chat


def scale_of(scores: Sequence[Array], signed: bool = False, from_zero: bool = True, meaning: str = "score") -> Scale:
    """One scale for all of ``scores``: symmetric if signed, else from zero (or the lowest) to the highest."""
    known = [np.asarray(s, float).ravel() for s in scores if np.size(s)]
    values = np.concatenate(known) if known else np.zeros(1)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    if signed or values.min() < 0:
        reach = float(np.abs(values).max())
        return Scale(-reach, reach, True, meaning)
    return Scale(0.0 if from_zero else float(values.min()), float(values.max()), False, meaning)


def headroom(explanation: Explanation) -> float:
    """Return the length of the scale relative to the largest |score|: 1, or more for small effects.

    On a scale that ends at the largest |score|, effects of 0.001 on a logit of 3.6 look like effects of 3. So all
    |scores| together are compared with the explained value, and where they are less than 5 % of it, bars and colours
    are weaker in proportion. Together, since each token of a long text is worth little. Not for a model without
    classes, such as a regression: its zero is arbitrary (a year, a temperature); nor for scores of another unit.
    """
    if not explanation.signed or explanation.prediction.probability is None or "norm" in explanation.options:
        return 1.0
    total = float(np.abs(explanation.scores).sum())
    return max(1.0, LITTLE * abs(explanation.value) / total) if total else 1.0


def widened(scale: Scale, times: float) -> Scale:
    return replace(scale, low=scale.low * times, high=scale.high * times)


def ordinary(explanation: Explanation) -> Array:
    """Scores of the units that are not special; of all where there are no others."""
    # What [CLS] gets is often tens of times what any word gets, and would leave every word white. So would what the
    # position that is read gives itself.
    left_out = aside_of(explanation)
    plain = plain_units(explanation.units)
    return np.asarray(explanation.scores[[i for i in plain if i not in left_out] or slice(None)], float)


def aside_of(explanation: Explanation) -> set[int]:
    """Units beyond the scale of the others: the one that is read, and a language model's first token."""
    return {i for i in (outshining(explanation), first_token(explanation)) if i is not None}


def first_token(explanation: Explanation) -> int | None:
    """The first token of a language model's text, where it is a unit of its own: many models park attention there."""
    units = explanation.units
    begins = units.spans is None or not units.spans or units.spans[0][0] == 0  # chosen ranges may begin anywhere
    if not explanation.checks.get(FIRST_TOKEN) or not begins or len(units.labels[0].split()) > 1:
        return None
    return 0 if any(i > 0 for i in plain_units(units)) else None


def outshining(explanation: Explanation) -> int | None:
    """The unit that is read, where it is an ordinary one without a sign and all others would be white beside it."""
    # What a position gives itself is 1 and more by construction in methods that follow attention.
    at = None if explanation.signed else position_read(explanation)
    if at is None:
        return None
    plain, first = plain_units(explanation.units), first_token(explanation)
    others = [float(explanation.scores[i]) for i in plain if i not in (at, first)]
    if at not in plain or not others:
        return None
    return at if float(explanation.scores[at]) > OUTSHINES * max(others) else None


def position_read(explanation: Explanation) -> int | None:
    """The unit whose output row is read, where it is a single one ("first position", "target: last position")."""
    if explanation.scalar == ANSWERED:  # read at the position before each of its tokens
        return None
    stream, _, place = explanation.readout.rpartition(": ")
    members = [i for i, s in enumerate(explanation.units.stream) if stream in ("", s)]
    at = {"first position": 0, "last position": -1}.get(place)
    return None if at is None or not members else members[at]


def plain_units(units: Units) -> list[int]:
    """Units that are neither special tokens nor what a chat template put in."""
    return [i for i, special in enumerate(units.special) if not special and not in_template(units, i)]


def in_template(units: Units, index: int) -> bool:
    return units.role is not None and units.role[index] == TEMPLATE


def share(explanation: Explanation) -> float:
    """The factor by which sizes of scores of ordinary units add up to one: shares of all methods have one scale."""
    total = float(np.abs(ordinary(explanation)).sum())
    return 1 / total if total else 1.0
