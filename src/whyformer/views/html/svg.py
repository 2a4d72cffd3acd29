"""Pictures and matrices as inline SVG: pixels in an embedded PNG, labels and tips as text."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any

import numpy as np

from whyformer.views.color import colours, ink_on
from whyformer.views.facts import decimals, fixed, short
from whyformer.views.image import canvas_size, painted, painted_heads, picture, png
from whyformer.views.marks import Frame, HeadColours, Heat, Matrix, Picture

Array = np.ndarray[Any, Any]
LONGEST = 320  # pixels of the longer side of a picture
MOST_TIPS = 1024  # cells that get a tip each
CELL, LETTER = 22.0, 7.4  # of a labelled matrix: side of a cell, width of a letter
NUMBERED = 40.0  # side of a cell with its number in it
MOST_NUMBERS = 400
UPRIGHT = 3  # letters of a column's label that need not be slanted
LONGEST_LABEL = 16
FEW_LABELS, LONGEST_OF_FEW = 12, 26  # names of methods are to be read whole
MOST_LABELS = 48
NAME = 16  # height of the name at a box


def picture_svg(mark: Picture) -> str:
    size = canvas_size(mark, LONGEST)
    return _framed(size, _image(picture(mark, size), size) + _boxes(mark.frames, size), "the image")


def heat_svg(mark: Heat) -> str:
    size = canvas_size(mark, LONGEST)
    tips = _tips(mark, size) if mark.interpolation == "nearest" and not mark.fine else ""
    return _framed(size, _image(painted(mark, size), size) + _boxes(mark.frames, size) + tips, "scores over the image")


def heads_svg(mark: HeadColours) -> str:
    size = canvas_size(mark, LONGEST)
    return _framed(size, _image(painted_heads(mark, size), size), "attention heads over the image")


def _tips(mark: Heat, size: tuple[int, int]) -> str:
    rows, columns = mark.values_RC.shape
    if rows * columns > MOST_TIPS:
        return ""
    digits = decimals(mark.values_RC.ravel().tolist())
    height, width = size[0] / rows, size[1] / columns
    return "".join(
        f'<rect x="{c * width:.2f}" y="{r * height:.2f}" width="{width:.2f}" height="{height:.2f}" fill="none" '
        f'pointer-events="all"><title>patch {row},{c}: {fixed(mark.values_RC[r, c], digits)}</title></rect>'
        for r, row in zip(range(rows), range(rows)[::-1] if mark.upwards else range(rows), strict=True)
        for c in range(columns)
    )


def _boxes(frames: tuple[Frame, ...], size: tuple[int, int]) -> str:
    """White on a dark line, which shows on every colour; the name above the box, or inside where there is no room."""
    height, width = size
    parts = []
    for frame in frames:
        left, top, right, bottom = (
            edge * full for edge, full in zip(frame.box, (width, height, width, height), strict=True)
        )
        place = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" fill="none"'
        parts.append(f'<rect {place} stroke="#000" stroke-width="4"/><rect {place} stroke="#fff" stroke-width="2"/>')
        long = len(frame.label) * LETTER + 8
        x, y = max(0.0, min(left, width - long)), top - NAME if top >= NAME else top
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{long:.1f}" height="{NAME}" fill="#000"/>'
            f'<text x="{x + 4:.1f}" y="{y + NAME - 4:.1f}" font-size="12" fill="#fff">{escape(frame.label)}</text>'
        )
    return "".join(parts)


def _framed(size: tuple[int, int], inner: str, name: str) -> str:
    return f'<svg viewBox="0 0 {size[1]} {size[0]}" role="img" aria-label="{escape(name)}">{inner}</svg>'


def _image(pixels: Array, size: tuple[float, float], x: float = 0, y: float = 0, blocky: bool = False) -> str:
    data = b64encode(png(pixels)).decode()
    style = ' style="image-rendering:pixelated"' if blocky else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{size[1]:.1f}" height="{size[0]:.1f}"'
    return f'<image {place} preserveAspectRatio="none"{style} href="data:image/png;base64,{data}"/>'


def matrix_svg(mark: Matrix) -> str:
    pixels = colours(mark.scale, mark.values)
    rows, columns = mark.values.shape
    if mark.small:
        frame = (
            f'<rect width="{columns}" height="{rows}" fill="none" stroke="#d8dde3" stroke-width="{columns / 100:.2f}"/>'
        )
        drawn = _image(pixels, (rows, columns), blocky=True) + frame
        return _framed((rows, columns), drawn, "attention map").replace("<svg", '<svg class="wf-map-small"', 1)
    labelled = max(rows, columns) <= MOST_LABELS
    longest = LONGEST_LABEL if max(rows, columns) > FEW_LABELS else LONGEST_OF_FEW
    row_labels = [_short(x, longest) for x in mark.row_labels] if labelled else []
    column_labels = [_short(x, longest) for x in mark.column_labels] if labelled else []
    numbered = mark.numbers and rows * columns <= MOST_NUMBERS
    cell = NUMBERED if numbered else CELL if labelled else 480 / max(rows, columns)
    slanted = max((len(x) for x in column_labels), default=0) > UPRIGHT
    left = 22 + max((len(x) for x in row_labels), default=0) * LETTER + (8 if mark.row_axis else 0)
    top = 22 + (max(len(x) for x in column_labels) * LETTER * 0.8 if slanted else 0)
    height, width = rows * cell, columns * cell
    parts = [_image(pixels, (height, width), left, top, blocky=True)]
    parts.append(
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="#d8dde3"/>'
    )
    for i, label in enumerate(row_labels):
        y = top + (i + 0.68) * cell
        parts.append(f'<text x="{left - 5:.1f}" y="{y:.1f}" text-anchor="end">{escape(label)}</text>')
    for i, label in enumerate(column_labels):
        at = f"{left + (i + (0.6 if slanted else 0.5)) * cell:.1f},{top - 6:.1f}"
        turned = "rotate(-55)" if slanted else ""
        anchor = "" if slanted else ' text-anchor="middle"'
        parts.append(f'<text transform="translate({at}) {turned}"{anchor}>{escape(label)}</text>')
    if numbered:
        parts += _numbers(mark, pixels, left, top)
    if labelled and rows * columns <= MOST_TIPS:
        parts += _cell_tips(mark, left, top, cell)
    grey = 'fill="#57606a" text-anchor="middle"'
    # The names of the axes can be longer than the axes.
    half_across, half_down = (len(axis) * LETTER / 2 for axis in (mark.column_axis, mark.row_axis))
    across, down = max(left + width / 2, 22 + half_across), max(top + height / 2, half_down)
    end = max(top + height, down + half_down)
    if mark.column_axis:
        parts.append(f'<text x="{across:.1f}" y="{end + 16:.1f}" {grey}>{escape(mark.column_axis)}</text>')
    if mark.row_axis:
        parts.append(f'<text transform="translate(11.0,{down:.1f}) rotate(-90)" {grey}>{escape(mark.row_axis)}</text>')
    # Slanted labels of the last columns reach out to the right.
    reach = max((len(x) for x in column_labels[-3:]), default=0) * LETTER * 0.6 if slanted else 0
    total = max(left + width + reach, across + half_across) + 6
    body = f'<g font-family="inherit" font-size="12" fill="#1b1f24">{"".join(parts)}</g>'
    return (
        f'<svg class="wf-wide" style="max-width:{total * 1.15:.0f}px" '
        f'viewBox="0 0 {total:.1f} {end + 24:.1f}" '
        f'role="img" aria-label="attention map">{body}</svg>'
    )


def _numbers(mark: Matrix, pixels: Array, left: float, top: float) -> list[str]:
    told = mark.told()
    return [
        f'<text x="{left + (c + 0.5) * NUMBERED:.1f}" y="{top + (r + 0.5) * NUMBERED + 4:.1f}" text-anchor="middle" '
        f'fill="{ink_on((int(red), int(green), int(blue)))}">{short(float(told[r, c]))}</text>'
        for r, row in enumerate(pixels)
        for c, (red, green, blue) in enumerate(row)
    ]


def _cell_tips(mark: Matrix, left: float, top: float, cell: float) -> list[str]:
    def name(labels: tuple[str, ...], i: int) -> str:
        return labels[i] if i < len(labels) else str(i)

    digits = min(4, decimals([float(x) for x in mark.values.ravel()]))

    return [
        f'<rect x="{left + c * cell:.1f}" y="{top + r * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" fill="none" '
        f'pointer-events="all"><title>{escape(name(mark.row_labels, r))} → {escape(name(mark.column_labels, c))}: '
        f"{fixed(float(mark.values[r, c]), digits)}</title></rect>"
        for r in range(mark.values.shape[0])
        for c in range(mark.values.shape[1])
        if not np.isnan(mark.values[r, c])
    ]


def _short(label: str, longest: int) -> str:
    longest = max(longest, 2 * LONGEST_LABEL) if " = " in label else longest  # a column and its value
    return label if len(label) <= longest else label[: longest - 1] + "…"
