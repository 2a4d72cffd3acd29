"""Tables, curves, points, matrices and dialogues as HTML and inline SVG."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any

import numpy as np

from whyformer.shapes import Array
from whyformer.views import marks
from whyformer.views.header import decimals, fixed, short, whole_percent
from whyformer.views.html.live import MOST_LAYER_CELLS, as_json, packed, picture_uri
from whyformer.views.image_marks import canvas_size, painted, painted_heads, picture, png
from whyformer.views.scales import Axis, axes_of, colour, colours, head_colour, hexadecimal, ink_on, styles, x_of

LONGEST = 320  # pixels of the longer side of a picture
MOST_CELL_TIPS = 1024  # cells that get a tip each
CELL, LETTER = 22.0, 7.4  # of a labelled matrix: side of a cell, width of a letter
NUMBERED = 40.0  # side of a cell with its number in it
MOST_NUMBERS = 400
UPRIGHT = 3  # letters of a column's label that need not be slanted
LONGEST_LABEL = 16
FEW_LABELS, LONGEST_OF_FEW = 12, 26  # names of methods are to be read whole
MOST_LABELS = 48
NAME = 16  # height of the name at a box
MOST_JOINED, MOST_JOINS = 64, 300  # tokens that are joined by lines, and lines: the strongest
JOIN_HIGH, FAINTEST = 20, 0.04  # height of a token, and share of the largest weight that is drawn


def picture_svg(mark: marks.Picture) -> str:
    size = canvas_size(mark, LONGEST)
    return _framed(size, _image(picture(mark, size), size) + _boxes(mark.frames, size), "the image")


def heat_svg(mark: marks.Heat) -> str:
    size = canvas_size(mark, LONGEST)
    tips = _tips(mark, size) if mark.interpolation == "nearest" and not mark.fine else ""
    inner = _image(painted(mark, size), size) + _boxes(mark.frames, size) + tips
    tokens = "" if mark.tokens is None else ' data-first="{}" data-end="{}"'.format(*mark.tokens)
    return _framed(size, inner, "scores over the image", tokens)


def heads_html(mark: marks.HeadColours) -> str:
    size = canvas_size(mark, LONGEST)
    keys = "".join(
        f'<span class="wf-key"><i style="background:{head_colour(i)}"></i>{escape(name)}</span>'
        for i, name in zip(mark.numbers, mark.names, strict=True)
    )
    drawn = _image(painted_heads(mark, size), size)
    return f"{_framed(size, drawn, 'attention heads over the image')}<p>{keys}</p>"


def _tips(mark: marks.Heat, size: tuple[int, int]) -> str:
    rows, columns = mark.values_RC.shape
    if rows * columns > MOST_CELL_TIPS:
        return ""
    digits = decimals(mark.values_RC.ravel().tolist())
    height, width = size[0] / rows, size[1] / columns
    return "".join(
        f'<rect x="{c * width:.2f}" y="{r * height:.2f}" width="{width:.2f}" height="{height:.2f}" fill="none" '
        f'pointer-events="all"><title>patch {row + 1},{c + 1}: {fixed(mark.values_RC[r, c], digits)}</title></rect>'
        for r, row in zip(range(rows), range(rows)[::-1] if mark.upwards else range(rows), strict=True)
        for c in range(columns)
    )


def _boxes(frames: tuple[marks.Frame, ...], size: tuple[int, int]) -> str:
    """Draw boxes white on black, visible on every colour; names are above the box, or inside if there is no room."""
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


def _framed(size: tuple[int, int], inner: str, name: str, more: str = "") -> str:
    return f'<svg{more} viewBox="0 0 {size[1]} {size[0]}" role="img" aria-label="{escape(name)}">{inner}</svg>'


def _image(pixels: Array, size: tuple[float, float], x: float = 0, y: float = 0, blocky: bool = False) -> str:
    data = b64encode(png(pixels)).decode()
    style = ' style="image-rendering:pixelated"' if blocky else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{size[1]:.1f}" height="{size[0]:.1f}"'
    return f'<image {place} preserveAspectRatio="none"{style} href="data:image/png;base64,{data}"/>'


def matrix_svg(mark: marks.Matrix) -> str:
    pixels = colours(mark.scale, mark.coloured())
    rows, columns = mark.values.shape
    if mark.small:
        frame = (
            f'<rect width="{columns}" height="{rows}" fill="none" stroke="#d8dde3" stroke-width="{columns / 100:.2f}"/>'
        )
        drawn = _image(pixels, (rows, columns), blocky=True) + frame
        return _framed((rows, columns), drawn, f"map of {mark.scale.meaning}", ' class="wf-map-small"')
    labelled = max(rows, columns) <= MOST_LABELS
    longest = LONGEST_LABEL if max(rows, columns) > FEW_LABELS else LONGEST_OF_FEW
    row_labels = [short_label(x, longest) for x in mark.row_labels] if labelled else []
    column_labels = [short_label(x, longest) for x in mark.column_labels] if labelled else []
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
        parts += [
            f'<text x="{left + (c + 0.5) * NUMBERED:.1f}" y="{top + (r + 0.5) * NUMBERED + 4:.1f}" '
            f'text-anchor="middle" fill="{ink_on([int(part) for part in pixels[r, c]])}">{short(float(value))}</text>'
            for (r, c), value in np.ndenumerate(mark.told())
        ]
    if labelled and rows * columns <= MOST_CELL_TIPS:
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
    joined = joined_svg(mark) if mark.joined and rows == columns <= MOST_JOINED else ""
    return (
        f'<svg class="wf-wide" style="max-width:{total * 1.15:.0f}px" '
        f'viewBox="0 0 {total:.1f} {end + 24:.1f}" '
        f'role="img" aria-label="{escape(f"map of {mark.scale.meaning}")}">{body}</svg>{joined}'
    )


def joined_svg(mark: marks.Matrix) -> str:
    """Lines from each row to its columns. The style alone hides those of other rows while one is hovered."""
    count, high = len(mark.values), float(np.nanmax(mark.values)) or 1.0
    strong = np.sort(mark.values, axis=None)[-MOST_JOINS:][0]
    groups = []
    for r, row in enumerate(mark.values):
        y = JOIN_HIGH * (r + 1)
        lines = "".join(
            f'<line x1="130" y1="{y}" x2="250" y2="{JOIN_HIGH * (c + 1)}" stroke-opacity="{weight / high:.2f}">'
            f"<title>{escape(mark.row_labels[r])} → {escape(mark.column_labels[c])}: {weight:.3g}</title></line>"
            for c, weight in enumerate(row)
            if weight >= max(FAINTEST * high, strong)
        )
        name = f'<text x="124" y="{y + 4}" text-anchor="end">{escape(short_label(mark.row_labels[r]))}</text>'
        touch = f'<rect class="wf-touch" y="{y - JOIN_HIGH // 2}" width="130" height="{JOIN_HIGH}"/>'
        groups.append(f'<g class="wf-from-one">{lines}{name}{touch}</g>')
    right = "".join(
        f'<text x="256" y="{JOIN_HIGH * (c + 1) + 4}">{escape(short_label(label))}</text>'
        for c, label in enumerate(mark.column_labels)
    )
    return (
        '<p class="wf-note">Left attends to right. Hover a token for its lines only.</p>'
        f'<svg class="wf-joined" viewBox="0 0 380 {JOIN_HIGH * (count + 1)}" role="img" '
        f'aria-label="lines from each token (left) to the tokens it attends to (right)">{"".join(groups)}{right}</svg>'
    )


def _cell_tips(mark: marks.Matrix, left: float, top: float, cell: float) -> list[str]:
    def name(labels: tuple[str, ...], i: int) -> str:
        return escape(labels[i] if i < len(labels) else str(i))

    digits = min(4, decimals([float(x) for x in mark.values.ravel()]))
    return [
        f'<rect x="{left + c * cell:.1f}" y="{top + r * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" fill="none" '
        f'pointer-events="all"><title>{name(mark.row_labels, r)} → {name(mark.column_labels, c)}: '
        f"{fixed(float(value), digits)}</title></rect>"
        for (r, c), value in np.ndenumerate(mark.values)
        if not np.isnan(value)
    ]


def short_label(label: str, longest: int = LONGEST_LABEL) -> str:
    longest = max(longest, 2 * LONGEST_LABEL) if marks.PAIR in label else longest  # a column and its value
    return marks.shortened(label, longest)


# What a language model read, and its answer: choose a token or a sentence of it to see what it came from.
#
# The page is whole without its script (frontend/src/dialogue.js): it shows the mean over the answer.

STEPS = 10_000  # shares are written as whole numbers of these
LONGEST_CHIP = 60
HINT = "Hover a token of the answer for its sources; click to pin; arrow keys move; Esc unpins."
PATCH_HINT = "Hover a patch of the image for its share."


def reading_html(mark: marks.Reading) -> str:
    """Voice by voice under their names; folds open by a click, what a template put in is small and grey."""
    numbers = iter(range(len(mark.scored())))
    return f'<div class="wf-reading">{"".join(_part(part, mark.scale, numbers) for part in mark.parts)}</div>'


def _part(part: marks.Utterance, scale: marks.Scale, numbers: Any) -> str:
    inner = "".join(_passage(passage, None if part.quiet else scale, numbers) for passage in part.passages)
    if part.quiet:
        return f'<div class="wf-quiet" title="from the chat template">{inner}</div>'
    return f'<h4 class="wf-voice">{escape(part.heading)}</h4><div class="wf-run" dir="auto">{inner}</div>'


def _passage(passage: marks.Passage, scale: marks.Scale | None, numbers: Any) -> str:
    inner = "".join(_piece(piece, scale, numbers) for piece in passage.pieces)
    if not passage.folded:
        return inner
    strongest = max((p.score or 0.0 for p in passage.pieces if not p.aside), key=abs, default=0.0)
    style = "" if scale is None else f' style="{tint(scale, strongest)}"'
    return f'<details class="wf-fold"><summary{style}>{escape(passage.folded)}</summary>{inner}</details>'


def _piece(piece: marks.Piece, scale: marks.Scale | None, numbers: Any) -> str:
    if piece.score is None:
        return escape(piece.text)
    drawn = "" if piece.aside or scale is None else f' style="{tint(scale, piece.score)}"'
    kind = "wf-token" + " wf-special" * (piece.special and scale is not None) + " wf-aside" * piece.aside
    tip = "off the scale" if piece.aside else f"{piece.score:.4g}"
    return f'<span class="{kind}" data-piece="{next(numbers)}"{drawn} title="{tip}">{escape(piece.text)}</span>'


def tint(scale: marks.Scale, score: float) -> str:
    """The colours of a score as CSS."""
    background = colour(scale, score)
    return f"background:{hexadecimal(background)};color:{ink_on(background)}"


def dialogue_html(mark: marks.Dialogue) -> str:
    whole = (0, len(mark.said))
    said = "".join(_button(text, (t, t + 1), f"“{text.strip() or text}”") for t, text in enumerate(mark.said))
    chips = [_button("whole answer", whole, "whole answer")]
    if len(mark.sentences) > 1:
        for number, (first, end) in enumerate(mark.sentences, 1):
            text = "".join(mark.said[first:end])
            words = marks.shortened(f"{number}: {' '.join(text.split())}", LONGEST_CHIP)
            chips.append(_button(words, (first, end), f"sentence {number}"))
    sources = ", ".join(f"{' '.join(text.split())} {whole_percent(share)}" for text, share in mark.sources(*whole, 6))
    hint = HINT if mark.image is None else f"{HINT} {PATCH_HINT}"
    return (
        '<div class="wf-dialogue">'
        f'<p class="wf-said" dir="auto" role="toolbar" aria-label="the answer, token by token">{said}</p>'
        f'<p class="wf-chips">{"".join(chips)}<span class="wf-note">{hint}</span></p>'
        f'<p class="wf-from" aria-live="polite">whole answer ← {escape(sources or "no single source")}</p>'
        f"{reading_html(mark.reading)}"
        f'<script type="application/json" class="wf-data">{_data(mark)}</script></div>'
    )


def _button(text: str, tokens: tuple[int, int], name: str) -> str:
    which = f'data-first="{tokens[0]}" data-end="{tokens[1]}" data-name="{escape(name)}"'
    return f'<button type="button" {which}>{escape(text)}</button>'


def _data(mark: marks.Dialogue) -> str:
    """Return the data for the script."""
    rounded = np.round(mark.shares * STEPS)
    shares = [[None if np.isnan(share) else int(share) for share in row] for row in rounded]
    data = {
        "signed": mark.reading.scale.signed,
        "steps": STEPS,
        "least": marks.LEAST,
        "ordinary": [int(plain) for plain in mark.ordinary],
        "shares": shares,
        "aside": [np.flatnonzero(row).tolist() for row in mark.aside],
        "image": None if mark.image is None else _answer_image(mark.image),
    }
    return as_json(data)


def _answer_image(seen: marks.AnswerImage) -> dict[str, Any] | None:
    """The image with shares of its patches per token; None where they are too many for a page."""
    tokens, rows, columns = seen.shares_TRC.shape
    if seen.shares_TRC.size > MOST_LAYER_CELLS:
        return None
    size = (rows, columns) if seen.size is None else seen.size
    return {
        "grid": [rows, columns],
        "size": [int(side) for side in size],
        "labels": list(seen.labels),
        "picture": None if seen.image is None else picture_uri(seen.image),
        "shares": packed(seen.shares_TRC.reshape(tokens, -1)),
    }


GREY = "#57606a"
WIDTH, HEIGHT = 520.0, 300.0
LEFT, BOTTOM, TOP, RIGHT = 62.0, 44.0, 10.0, 12.0
SHADE = marks.Scale(0.0, 1.6)  # the darkest blue is left out, so that numbers stay readable
MOST_TIPS = 600  # points that get a tip each
MOST_DOTS = 40  # of a curve


def table_html(mark: marks.TableMark) -> str:
    head = "".join(
        f'<th style="{_cell(i)}border-bottom:1px solid #8a929b">{escape(c)}</th>' for i, c in enumerate(mark.columns)
    )
    body = []
    for r, row in enumerate(mark.rows):
        quiet = "color:var(--wf-grey);font-style:italic;" if r in mark.quiet else ""
        cells = ""
        for c, text in enumerate(row):
            shade = mark.shade(r, c)
            tinted = "" if shade is None else f"{tint(SHADE, shade)};"
            cells += f'<td style="{_cell(c)}{quiet}{tinted}">{escape(text)}</td>'
        body.append(f"<tr>{cells}</tr>")
    return (
        '<div class="wf-scroll" tabindex="0"><table class="wf-shaded" '
        'style="border-collapse:collapse;font-size:.84em;margin:.3em 0">'
        f"<tr>{head}</tr>{''.join(body)}</table></div>"
    )


def _cell(column: int) -> str:
    side = "left" if column == 0 else "right"
    return f"text-align:{side};padding:3px 6px;white-space:nowrap;font-variant-numeric:tabular-nums;"


def lines_svg(mark: marks.Lines) -> str:
    across, up = axes_of(mark)
    parts, keys = _axes(across, up, mark), ""
    for line, (stroke, dash) in zip(mark.lines, styles(mark.lines), strict=True):
        x = _across(across, x_of(mark, line))
        if line.low is not None and line.high is not None:
            edge = [*_path(x, _up(up, line.high)), *reversed(_path(x, _up(up, line.low)))]
            parts.append(f'<polygon fill="{stroke}" fill-opacity=".15" points="{" ".join(edge)}"/>')
        points = _path(x, _up(up, line.values))
        look = f'stroke="{stroke}" stroke-width="{1 if line.faint else 2}"' + (
            f' stroke-dasharray="{dash}"' if dash else ""
        )
        name = escape(line.name)
        parts.append(f'<polyline fill="none" {look} points="{" ".join(points)}"><title>{name}</title></polyline>')
        if len(points) <= MOST_DOTS and line.low is not None:
            parts += [_circle(point, stroke, 2.6) for point in points]
        if line.faint:
            continue
        stroke_line = f'<line x2="22" y1="4" y2="4" {look}/>'
        swatch = f'<svg viewBox="0 0 22 8" style="display:inline-block;width:22px;height:8px">{stroke_line}</svg>'
        keys += f'<span class="wf-key">{swatch} {name}</span> '
    # A single one is named by the heading.
    return _plane(parts, keys if len(mark.lines) > 1 else "", f"{mark.y_axis} against {mark.x_axis}")


def scatter_svg(mark: marks.Scatter) -> str:
    """Points with tips; a crowd is one path, which keeps pages small."""
    across, up = axes_of(mark)
    parts, keys = _axes(across, up, mark), ""
    crowded = sum(len(group.x) for group in mark.groups) > MOST_TIPS
    for group, (ink, _) in zip(mark.groups, styles(mark.groups), strict=True):
        points = _path(_across(across, group.x), _up(up, group.y))
        if crowded:
            drawn = "".join(f"M{point}h0" for point in points)
            look = f'fill="none" stroke="{ink}" stroke-width="4.4" stroke-linecap="round" stroke-opacity=".55"'
            parts.append(f'<path {look} d="{drawn}"/>')
        else:
            known = np.isfinite(across.shares(group.x)) & np.isfinite(up.shares(group.y))
            tips = [tip for tip, there in zip(group.labels or ("",) * len(known), known, strict=True) if there]
            parts += [_circle(p, ink, 4.5, tip or group.name) for p, tip in zip(points, tips, strict=True)]
        keys += f'<span class="wf-key"><i style="background:{ink}"></i>{escape(group.name)}</span> '
    return _plane(parts, keys, f"{mark.y_axis} against {mark.x_axis}")


def _axes(across: Axis, up: Axis, mark: marks.Lines | marks.Scatter) -> list[str]:
    parts = []
    for value in up.ticks():
        y = float(_up(up, value))
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e8ec"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:.4g}", "end"))
    for value in across.ticks():
        parts.append(_text(float(_across(across, value)), HEIGHT - BOTTOM + 16, f"{value:.4g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, mark.x_axis, "middle"))
    size = min(12.0, (HEIGHT - BOTTOM) / max(len(mark.y_axis), 1) / 0.55)  # the whole name, along the axis
    parts.append(
        f'<text transform="translate(12 {(HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle" '
        f'font-size="{size:.3g}" fill="{GREY}">{escape(mark.y_axis)}</text>'
    )
    return parts


def _across(axis: Axis, values: Any) -> Array:
    return LEFT + axis.shares(values) * (WIDTH - LEFT - RIGHT)


def _up(axis: Axis, values: Any) -> Array:
    return TOP + (1 - axis.shares(values)) * (HEIGHT - TOP - BOTTOM)


def _path(x: Array, y: Array) -> list[str]:
    """Points that are known."""
    return [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(a) and np.isfinite(b)]


def _circle(point: str, fill: str, radius: float, tip: str = "") -> str:
    x, _, y = point.partition(",")
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    opacity = ' fill-opacity=".7"' if tip else ""
    return f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}"{opacity}>{inner}</circle>'


def _plane(parts: list[str], keys: str, name: str) -> str:
    size = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"'
    return f'<svg class="wf-wide" {size} role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>' + (
        f"<p>{keys}</p>" if keys else ""
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{GREY}">{escape(words)}</text>'
