"""Figures: they draw without a warning, keep on the paper, and the same view gives the same file."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

from tests.views import samples
from tests.views.test_terminal import VIEWS
from whyformer.results.types import Units
from whyformer.views.figure.sheet import Sheet, direction, spelled, visual_order


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_leaves_the_paper(name: str) -> None:
    figure = VIEWS[name]().plot()
    box, ruler = figure.bbox, FigureCanvasAgg(figure).get_renderer()  # each text would make one for itself
    for words in figure.axes[0].texts:
        extent = words.get_window_extent(ruler)
        assert extent.x0 >= 0, words.get_text()
        assert extent.x1 <= box.x1 + 1, words.get_text()
        assert extent.y0 >= 0, words.get_text()
        assert extent.y1 <= box.y1, words.get_text()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_same_view_same_file(tmp_path: Path, ending: str) -> None:
    view = VIEWS["image_side_by_side"]()
    first, second = (view.save(tmp_path / f"{i}.{ending}").read_bytes() for i in range(2))
    assert first == second


def test_pyplot_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it raises, also where another test did
    samples.text().plot()


def test_scripts_without_glyphs_are_saved_without_a_warning(tmp_path: Path) -> None:
    units = samples.Units(("我", "喜欢"), (False,) * 2, ("text",) * 2)
    explanation = samples.text().replace(units=units, scores=np.array([0.2, 0.4], np.float32))
    assert explanation.save(tmp_path / "cjk.png").stat().st_size > 1000


def test_notebooks_draw_the_figure() -> None:
    """Not the words "Figure size": they know figures of pyplot only."""
    assert samples.text().plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [1.5, 6.0])
def test_lines_hold_as_many_words_as_they_can(width: float) -> None:
    from matplotlib.font_manager import FontProperties

    sheet, font = Sheet(6), FontProperties(family="DejaVu Sans", size=9, weight="bold")
    ruler = RendererAgg(1, 1, 72)

    def inches(line: str) -> float:
        return ruler.get_text_width_height_descent(line, font, False)[0] / 72

    words = "Which tokens that came from; iiiii WWWWW " * 8
    lines = sheet._wrapped(words, width, 9, "bold")
    assert " ".join(lines) == words.strip() and inches(lines[-1]) <= width
    for line, following in pairwise(lines):
        assert inches(line) <= width < inches(f"{line} {following.split()[0]}")
    pieces = sheet._wrapped(f"one {'long' * 60} word", width, 9, "bold")
    assert "".join(pieces).replace(" ", "") == f"one{'long' * 60}word" and max(map(inches, pieces)) <= width


SHALOM, OLAM, MARHABA = "\u05e9\u05dc\u05d5\u05dd", "\u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627"


@pytest.mark.parametrize(
    ("pieces", "base", "seen"),
    [
        (["I", " ", "like"], "L", ["I", " ", "like"]),
        ([SHALOM, " ", OLAM], "R", [OLAM, " ", SHALOM]),
        ([SHALOM, " ", "very", " ", "good", " ", OLAM], "R", [OLAM, " ", "very", " ", "good", " ", SHALOM]),
        (["say", " ", SHALOM, " ", OLAM, "!"], "L", ["say", " ", OLAM, " ", SHALOM, "!"]),
        ([SHALOM, "."], "R", [".", SHALOM]),
    ],
)
def test_pieces_stand_where_they_are_read(pieces: list[str], base: str, seen: list[str]) -> None:
    assert [pieces[i] for i in visual_order(pieces, base)] == seen


def test_the_first_letter_says_where_a_text_runs() -> None:
    assert [direction(words) for words in ("12 " + MARHABA, "a" + MARHABA, "12 !")] == ["R", "L", ""]


def test_signs_that_no_font_has_are_spelled() -> None:
    thumb = "\U0001f44d\U0001f3fd"
    assert (
        spelled(f"good {thumb} \u2192 \u00e9", lambda char: char == "\u2192") == "good :thumbs up sign: \u2192 \u00e9"
    )
    assert spelled(thumb, lambda char: True) == thumb
    assert spelled(SHALOM, lambda char: False) == SHALOM  # letters have no name that could be read in their place


def test_a_figure_has_them_in_their_places() -> None:
    words = (SHALOM, "\U0001f389", "good", OLAM)
    text, spans = " ".join(words), []
    for word in words:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(word)))
    units = Units(words, (False,) * 4, ("text",) * 4, word=(0, 1, 2, 3), spans=tuple(spans), text=text)
    shown = samples.text(scores=np.linspace(0.1, 1, 4)).replace(units=units, readout="")
    drawn = {t.get_text(): t.get_position()[0] for t in reversed(shown.plot().axes[0].texts)}
    assert drawn[OLAM] < drawn["good"] < drawn[SHALOM] and ":party popper:" in drawn
