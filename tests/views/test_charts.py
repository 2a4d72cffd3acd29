"""Tables and curves in every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from whyformer.views.html.charts import limits, ticks
from whyformer.views.terminal.page import text
from whyformer.views.view import Line, Lines, Page, Panel, Table, View

TABLE = Table(
    ("method", "aopc ↑", "cost"),
    (("raw <b>", "0.12", "1"), ("greedy", "0.99", "")),
    shades=((None, 0.4, None), (None, None, None)),
    quiet=(1,),
)
CURVES = Lines(
    np.array([0.0, 50.0, 100.0]),
    (Line("raw", np.array([1.0, 0.4, 0.2])), Line("random", np.array([1.0, 0.8, 0.2]), quiet=True)),
    "% taken away",
    "probability",
)


def page() -> Page:
    return Page("charts", (View("both", (Panel((TABLE,), wide=True), Panel((CURVES,), "curves"))),))


def test_html_is_escaped_and_complete() -> None:
    html = page().to_html()
    assert "raw &lt;b&gt;" in html and "<b>0.12" not in html
    assert html.count("<polyline") == 2 and "stroke-dasharray" in html
    for words in ("% taken away", "probability", "aopc ↑", "greedy"):
        assert words in html


def test_terminal_shows_numbers_and_shapes() -> None:
    shown = text(page())
    assert "raw <b>" in shown and "0.99" in shown
    assert "▁" in shown and "→" in shown and "% taken away" in shown


def test_wide_tables_go_on_below() -> None:
    columns = ("method", *(f"a long heading {i}" for i in range(8)))
    wide = Table(columns, (("x", *(str(i) for i in range(8))),))
    shown = text(Page("", (View("wide", (Panel((wide,)),)),)), width=60)
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert shown.count("method") > 1
    assert all(f"a long heading {i}" in shown for i in range(8))


def test_figures_are_drawn(tmp_path: Path) -> None:
    for ending in ("png", "svg"):
        assert page().save(tmp_path / f"x.{ending}").stat().st_size > 3000


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert np.allclose(ticks(0.27, 1.03), [0.4, 0.6, 0.8, 1.0])
    assert np.allclose(ticks(-0.02, 0.02), [-0.02, -0.01, 0, 0.01, 0.02])
    flat = Lines(np.array([0.0, 1.0]), (Line("flat", np.array([2.0, 2.0])),))
    assert limits(flat)[0] < 2 < limits(flat)[1]
