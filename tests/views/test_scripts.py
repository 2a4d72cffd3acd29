"""Writing on figures: words from right to left in their places, signs without a font by their names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.views import samples
from whyformer.results.types import Units
from whyformer.views.figure.sheet import direction, spelled, visual_order

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
