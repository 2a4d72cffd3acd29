"""Colours that colour-blind readers can tell apart, for all backends. No library: anchors and straight lines between.

Unsigned scores run from white to blue, signed ones from orange through white to blue; so blue always means "more".
Over images, where white is no background, unsigned scores run from dark violet to yellow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.views.marks import Bar, Scale

Array = np.ndarray[Any, Any]
RGB = tuple[int, int, int]

SEQUENTIAL = ("#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac")
DIVERGING = ("#b35806", "#e08214", "#fdb863", "#fee0b6", "#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac")
HEAT = ("#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4")
MISSING = (224, 224, 224)
GREY = "#8a929b"
PALE = "#b8c4d0"  # bars that say nothing for sure
# Okabe and Ito's colours first, Tol's muted ones after them.
HEADS = (
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#f0e442",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#999999",
    "#332288",
    "#44aa99",
    "#882255",
    "#ddcc77",
    "#117733",
    "#88ccee",
    "#aa4499",
    "#cc6677",
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


def bar_colour(bar: Bar, scale: Scale) -> str:
    """Bars are told apart by length: all of one sign have the same strong colour, but for special and quiet ones."""
    if bar.special or bar.quiet:
        return GREY if bar.special else PALE
    return hexadecimal(colour(scale, scale.high * 0.8 if scale.length(bar.score) >= 0 else scale.low * 0.8))


def ink_on(background: RGB) -> str:
    """Black or white text, whichever contrasts more (WCAG relative luminance)."""
    linear = [(c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def head_colour(index: int) -> str:
    return HEADS[index % len(HEADS)]
