"""Tables and curves as HTML and inline SVG."""

from __future__ import annotations

from html import escape

import numpy as np

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.view import Lines, Scale, Table

GREY = "#57606a"
WIDTH, HEIGHT = 520.0, 300.0
LEFT, BOTTOM, TOP, RIGHT = 62.0, 44.0, 10.0, 12.0
# Okabe and Ito's colours without yellow, which white paper swallows; then Tol's muted ones.
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#332288", "#882255")
SHADE = Scale(0.0, 1.6)  # the darkest blue is left out, so that numbers stay readable
DASHES = ("", "5 3", "2 3", "7 3 2 3")  # colours repeat with another dash


def table_html(mark: Table) -> str:
    head = "".join(
        f'<th style="{_cell(i)}border-bottom:1px solid #8a929b">{escape(c)}</th>' for i, c in enumerate(mark.columns)
    )
    body = []
    for r, row in enumerate(mark.rows):
        quiet = f"color:{GREY};font-style:italic;" if r in mark.quiet else ""
        cells = ""
        for c, text in enumerate(row):
            cells += f'<td style="{_cell(c)}{quiet}{_tint(mark.shade(r, c))}">{escape(text)}</td>'
        body.append(f"<tr>{cells}</tr>")
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.84em;margin:.3em 0">'
        f"<tr>{head}</tr>{''.join(body)}</table></div>"
    )


def _cell(column: int) -> str:
    side = "left" if column == 0 else "right"
    return f"text-align:{side};padding:3px 6px;white-space:nowrap;font-variant-numeric:tabular-nums;"


def _tint(shade: float | None) -> str:
    if shade is None:
        return ""
    background = colour(SHADE, shade)
    return f"background:{hexadecimal(background)};color:{ink_on(background)};"


def limits(mark: Lines) -> tuple[float, float]:
    """The range of the curves, with a little room, rounded to what can be written."""
    values = np.concatenate([line.values for line in mark.lines])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = (high - low or 1.0) * 0.05
    return low - room, high + room


def ticks(low: float, high: float) -> list[float]:
    """Round numbers (steps of 1, 2 or 5) within a range, about five of them."""
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = int(np.ceil(low / step - 1e-9))
    return [float(i * step) for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def styles(mark: Lines) -> list[tuple[str, str]]:
    """(colour, dash) of each line; quiet ones are grey and dashed."""
    found, loud, quiet = [], 0, 0
    for line in mark.lines:
        if line.quiet:
            found.append(("#8a929b", DASHES[1 + quiet % 3]))
            quiet += 1
        else:
            found.append((INKS[loud % len(INKS)], DASHES[loud // len(INKS) % len(DASHES)]))
            loud += 1
    return found


def lines_svg(mark: Lines) -> str:
    low, high = limits(mark)
    x0, x1 = float(mark.x[0]), float(mark.x[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x0) / ((x1 - x0) or 1) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in ticks(low, high):
        y = at(x0, value)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e8ec"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:.4g}", "end"))
    for value in ticks(x0, x1):
        parts.append(_text(at(value, low)[0], HEIGHT - BOTTOM + 16, f"{value:.4g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, mark.x_axis, "middle"))
    parts.append(
        f'<text transform="translate(12 {(HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle" font-size="12" '
        f'fill="{GREY}">{escape(mark.y_axis)}</text>'
    )
    keys = ""
    for line, (stroke, dash) in zip(mark.lines, styles(mark), strict=True):
        points = " ".join(
            "{:.1f},{:.1f}".format(*at(float(x), float(y))) for x, y in zip(mark.x, line.values, strict=True)
        )
        look = f'stroke="{stroke}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
        parts.append(f'<polyline fill="none" {look} points="{points}"><title>{escape(line.name)}</title></polyline>')
        stroke_line = f'<line x2="22" y1="4" y2="4" {look}/>'
        swatch = f'<svg viewBox="0 0 22 8" style="display:inline-block;width:22px;height:8px">{stroke_line}</svg>'
        keys += f'<span class="wf-key">{swatch} {escape(line.name)}</span> '
    size = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"'
    drawn = f'<svg class="wf-wide" {size} role="img" aria-label="curves">{"".join(parts)}</svg>'
    return f"{drawn}<p>{keys}</p>"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{GREY}">{escape(words)}</text>'
