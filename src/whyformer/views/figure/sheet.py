"""A sheet of paper for matplotlib: one axes whose coordinates are inches from the upper left corner."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial
from io import BytesIO
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
from rich.cells import cell_len

Array = np.ndarray[Any, Any]
INK, GREY, LINE = "#1b1f24", "#57606a", "#d8dde3"
DPI = 150
SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib
FALLBACKS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans", "Arial Unicode MS"),
    *("Noto Emoji", "Segoe UI Emoji", "Symbola"),  # outlines: matplotlib draws no pictures in colours
)


def png_of(figure: Any) -> bytes:
    """What notebooks draw of a figure."""
    written = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as boxes
        figure.savefig(written, format="png")
    return written.getvalue()


class Sheet:
    """Draws text, boxes and pixels; ``finish`` cuts the paper to its height."""

    def __init__(self, width: float) -> None:
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager

        self.width = width
        # NOTE: no pyplot, which would keep every figure alive until it is closed.
        self.figure = Figure(figsize=(width, 1), dpi=DPI, facecolor="white")
        # Notebooks draw figures of pyplot; of others they would show the words "Figure size".
        self.figure._repr_png_ = partial(png_of, self.figure)  # type: ignore[attr-defined]
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        installed = {font.name for font in fontManager.ttflist}
        self._fallbacks = [name for name in FALLBACKS if name in installed]

    def finish(self, height: float) -> Any:
        self.figure.set_size_inches(self.width, height)
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(height, 0)
        return self.figure

    def text(self, x: float, y: float, words: str, *, size: float = 9, mono: bool = False, **style: Any) -> None:
        """One line; ``y`` is its baseline."""
        family = [*([MONO] if mono else []), SANS, *self._fallbacks]
        style = {"color": INK, "va": "baseline", "ha": "left"} | style
        # Dollar signs in a text are no formula.
        self.axes.text(x, y, words, fontsize=size, fontfamily=family, parse_math=False, **style)

    def paragraph(self, x: float, y: float, width: float, words: str, *, size: float = 9, **style: Any) -> float:
        """Wrapped lines from ``y`` down; returns where they end."""
        for line in self._wrapped(words, width, size, style.get("weight", "normal")):
            y += size * 1.5 / 72
            self.text(x, y, line, size=size, **style)
        return y

    def _wrapped(self, words: str, width: float, size: float, weight: str) -> list[str]:
        """Lines that are no wider than ``width`` as drawn."""

        def fits(line: str) -> bool:
            return points_wide(line, size, weight) / 72 <= width

        lines: list[str] = []
        rest, letters = words.split(), max(4, int(width / letter(size)))
        while rest:
            count = _words_that_fit(rest, letters, fits)
            if count:
                lines.append(" ".join(rest[:count]))
                letters, rest = len(lines[-1]), rest[count:]
                continue
            *pieces, last = textwrap.wrap(rest[0], max(4, int(width / letter(size) * 0.8)))  # too long for a line
            lines += pieces
            if pieces:
                rest[0] = last
            else:
                lines.append(rest.pop(0))
        return lines

    def box(self, x: float, y: float, width: float, height: float, fill: str, edge: str = "none", **style: Any) -> None:
        from matplotlib.patches import Rectangle

        style = {"linewidth": 0.6} | style
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, **style))

    def pixels(self, x: float, y: float, width: float, height: float, values: Array, smooth: bool = False) -> None:
        """``smooth``: where single pixels matter, none may be drawn wider than others."""
        how: dict[str, Any] = {"aspect": "auto", "interpolation": "antialiased" if smooth else "nearest"}
        self.axes.imshow(values, extent=(x, x + width, y + height, y), origin="upper", **how)


@lru_cache(maxsize=10_000)
def points_wide(line: str, size: float, weight: str) -> float:
    """What is shown and then saved is measured once."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=SANS, size=size, weight=weight)
    points: float = RendererAgg(1, 1, 72).get_text_width_height_descent(line, font, False)[0]
    return points


def _words_that_fit(words: list[str], letters: int, fits: Callable[[str], bool]) -> int:
    """How many of them make the longest line that fits, looked for from a line of so many ``letters``: to measure
    every line that is one word longer takes longer than to draw them all."""
    ends = accumulate(len(word) + 1 for word in words)
    count = max(1, sum(1 for _ in takewhile(lambda end: end <= letters + 1, ends)))
    if fits(" ".join(words[:count])):
        while count < len(words) and fits(" ".join(words[: count + 1])):
            count += 1
        return count
    while count and not fits(" ".join(words[:count])):
        count -= 1
    return count


@cache
def characters_drawn() -> frozenset[int]:
    """Characters that some font of a sheet has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    installed = {font.name for font in fontManager.ttflist}
    fonts = [SANS, MONO, *(name for name in FALLBACKS if name in installed)]
    return frozenset().union(*(get_font(findfont(FontProperties(family=name))).get_charmap() for name in fonts))


def letter(size: float, mono: bool = False) -> float:
    """Width of a letter in inches; of an average one where they differ."""
    return size * (0.602 if mono else 0.56) / 72


def cells(words: str) -> int:
    return cell_len(words)
