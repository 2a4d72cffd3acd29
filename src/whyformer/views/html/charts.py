"""Tables, curves and points as HTML and inline SVG."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from whyformer.views.axes import Axis, axes_of, styles, x_of
from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.marks import Lines, Scale, Scatter, Table

Array = np.ndarray[Any, Any]

GREY = "#57606a"
WIDTH, HEIGHT = 520.0, 300.0
LEFT, BOTTOM, TOP, RIGHT = 62.0, 44.0, 10.0, 12.0
SHADE = Scale(0.0, 1.6)  # the darkest blue is left out, so that numbers stay readable
MOST_TIPS = 600  # points that get a tip each
MOST_DOTS = 40  # of a curve


def table_html(mark: Table) -> str:
    head = "".join(
        f'<th style="{_cell(i)}border-bottom:1px solid #8a929b">{escape(c)}</th>' for i, c in enumerate(mark.columns)
    )
    body = []
    for r, row in enumerate(mark.rows):
        quiet = "color:var(--wf-grey);font-style:italic;" if r in mark.quiet else ""
        cells = ""
        for c, text in enumerate(row):
            cells += f'<td style="{_cell(c)}{quiet}{_tint(mark.shade(r, c))}">{escape(text)}</td>'
        body.append(f"<tr>{cells}</tr>")
    return (
        '<div style="overflow-x:auto"><table class="wf-shaded" '
        'style="border-collapse:collapse;font-size:.84em;margin:.3em 0">'
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


def lines_svg(mark: Lines) -> str:
    across, up = axes_of(mark)
    parts, keys = _axes(across, up, mark), ""
    for line, (stroke, dash) in zip(mark.lines, styles(mark.lines), strict=True):
        x = _across(across, x_of(mark, line))
        if line.low is not None and line.high is not None:
            edge = [*_path(x, _up(up, line.high)), *reversed(_path(x, _up(up, line.low)))]
            parts.append(f'<polygon fill="{stroke}" fill-opacity=".15" points="{" ".join(edge)}"/>')
        points = _path(x, _up(up, line.values))
        look = f'stroke="{stroke}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
        name = escape(line.name)
        parts.append(f'<polyline fill="none" {look} points="{" ".join(points)}"><title>{name}</title></polyline>')
        if len(points) <= MOST_DOTS and line.low is not None:
            parts += [_circle(point, stroke, 2.6) for point in points]
        stroke_line = f'<line x2="22" y1="4" y2="4" {look}/>'
        swatch = f'<svg viewBox="0 0 22 8" style="display:inline-block;width:22px;height:8px">{stroke_line}</svg>'
        keys += f'<span class="wf-key">{swatch} {name}</span> '
    return _plane(parts, keys if len(mark.lines) > 1 else "", "curves")  # a single one is named by the heading


def scatter_svg(mark: Scatter) -> str:
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
    return _plane(parts, keys, "points")


def _axes(across: Axis, up: Axis, mark: Lines | Scatter) -> list[str]:
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
    return f'<svg class="wf-wide" {size} role="img" aria-label="{name}">{"".join(parts)}</svg>' + (
        f"<p>{keys}</p>" if keys else ""
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{GREY}">{escape(words)}</text>'
