"""HTML: stored, well-formed, escaped, nothing to fetch. Figures: on the paper, the same view gives the same file."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg

from tests.support.snapshots import compare
from tests.views import samples
from tests.views.test_terminal import SNAPSHOTS, VIEWS
from whyformer.views import explained, page, side_by_side
from whyformer.views.figure.sheet import Sheet, direction, spelled, visual_order
from whyformer.views.header import doubts
from whyformer.views.html.charts import matrix_svg
from whyformer.views.html.html_page import STYLE
from whyformer.views.html.live import script
from whyformer.views.marks import Matrix, Scale
from whyformer.views.view import Fact, Page, Terms

# No pictures: their bytes depend on the zlib version.
STORED = ("text", "text_signed", "text_side_by_side", "text_answer", "table", "table_side_by_side", "charts")
VOID = {"meta", "link", "input", "br", "img"}


class Balanced(HTMLParser):
    """Counts that every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(html: str) -> bool:
    parser = Balanced()
    parser.feed(html)
    return parser.open == []


def everything() -> Page:
    views = [view for build in VIEWS.values() for view in build()._page().views]
    terms = Terms((Fact("whyformer demo", "try it"),), "Next", code=True)
    return page(views, "All <of> it", lead=["Words & more"], outro=[terms])


@pytest.mark.parametrize("name", STORED)
def test_as_stored(name: str) -> None:
    drawn = samples.still(VIEWS[name]().to_html())
    compare(re.sub(r"<style>.*?</style>", "<style></style>", drawn, flags=re.DOTALL), SNAPSHOTS / f"{name}.html")


def test_a_page_is_well_formed_fetches_nothing_and_runs_nothing_but_the_script_of_the_package() -> None:
    whole = everything().to_html()
    assert balanced(whole) and "<title>patch 1,1: 0.10</title>" in whole
    drawings = re.findall(r"<svg.*?</svg>", samples.still(whole), flags=re.DOTALL)
    assert len(drawings) > 10 and all(ElementTree.fromstring(drawing) is not None for drawing in drawings)
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", whole, flags=re.DOTALL)
    running = [text for kind, text in scripts if "application/json" not in kind]
    assert [text.strip() for text in running] == [script().strip()]
    html = whole.lower()
    for forbidden in ("http://", "https://", "//cdn", "@import", "@font-face", "javascript:", " onload="):
        assert forbidden not in html
    for forbidden in ("fetch(", "xmlhttprequest", "innerhtml", "outerhtml", "insertadjacenthtml", "eval(", "import("):
        assert forbidden not in script().lower()
    html = samples.still(html)
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert sources and all(s.startswith("data:") for s in sources)
    for heading in ("h1", "h2", "h3"):
        assert re.search(rf"\.wf {heading}{{[^}}]*overflow-wrap:anywhere", STYLE)  # long words break


def test_texts_are_escaped() -> None:
    nasty = "<script>alert('x')</script> & \"quotes\" <script>1</script>"
    units = samples.text().units
    spans = ((0, 8), *((i, i + 1) for i in range(8, 8 + len(units) - 1)))
    explanation = samples.text().replace(
        units=replace(units, text=nasty, spans=tuple(spans), labels=tuple(f"<{t}>" for t in units.labels)),
        warnings=("<b>bold</b>",),
    )
    whole = explanation.to_html()
    assert whole.count("<script") == whole.count("</script>") == 2  # data, and the package's own
    html = samples.still(whole)
    assert "<script" not in html and "alert" in html
    assert "<b>bold" not in html and "&lt;b&gt;bold" in html
    assert balanced(html)


def test_a_small_error_of_the_method_is_no_doubt() -> None:
    checks = {"additivity_error": 0.0, "completeness_error": 2e-6, "completeness_error_relative": 1e-6, "masks": 30.0}
    fine = samples.text(checks=checks)
    assert doubts(fine) == ()
    assert "Warnings" not in samples.still(fine.to_html())
    whole = "the expected sum"
    checked = f"additivity error 0, completeness error 2e-06 (&lt; 0.1 % of {whole}), masks 30"
    assert f"<dt>checked</dt><dd>{checked}</dd>" in fine.to_html()
    (large,) = doubts(samples.text(checks={"completeness_error": 2e-6, "completeness_error_relative": 0.06}))
    assert "their sum differs by 6.0 % of it (completeness error 2e-06)" in large and "Trust the order" in large
    (vague,) = doubts(samples.text(checks={"standard_error": 0.2}))  # scores reach 1.25
    assert "with a standard error of 0.2: features whose scores differ by less are tied" in vague


def test_names_of_axes_are_not_cut_off_where_there_are_few_columns() -> None:
    mark = Matrix(np.eye(2), Scale(0, 1), (), ("a", "b"), "rows, by the first column", "columns, by importance")
    svg = ElementTree.fromstring(matrix_svg(mark))
    width, height = (float(x) for x in svg.attrib["viewBox"].split()[2:])
    across, down = [e for e in svg.iter("text") if e.get("fill") == "#57606a"]
    half = len(mark.column_axis) * 6.6 / 2  # 12 px letters
    assert half <= float(across.attrib["x"]) <= width - half
    at = float(re.findall(r"[\d.]+", down.attrib["transform"])[1])
    half = len(mark.row_axis) * 6.6 / 2
    assert half <= at <= height - half


# Figures


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_leaves_the_paper(name: str) -> None:
    figure = VIEWS[name]().plot()
    box, ruler = figure.bbox, FigureCanvasAgg(figure).get_renderer()  # each text would make one for itself
    for words in figure.axes[0].texts:
        extent = words.get_window_extent(ruler)
        inside = extent.x0 >= 0 and extent.x1 <= box.x1 + 1 and extent.y0 >= 0 and extent.y1 <= box.y1
        assert inside, words.get_text()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_same_view_same_file_without_pyplot(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it raises, also where another test did
    view = VIEWS["image_side_by_side"]()
    first, second = (view.save(tmp_path / f"{i}.{ending}").read_bytes() for i in range(2))
    assert first == second and view.plot()._repr_png_().startswith(b"\x89PNG")  # which notebooks draw


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
    assert [direction(words) for words in ("12 " + MARHABA, "a" + MARHABA, "12 !")] == ["R", "L", ""]


def test_signs_that_no_font_has_are_spelled_in_their_places(tmp_path: Path) -> None:
    thumb = "\U0001f44d\U0001f3fd"
    words = f"good {thumb} \u2192 \u00e9"
    assert spelled(words, lambda char: char == "\u2192") == "good :thumbs up sign: \u2192 \u00e9"
    assert spelled(thumb, lambda char: True) == thumb
    assert spelled(SHALOM, lambda char: False) == SHALOM  # letters have no name that could be read in their place
    shown = samples.prompt(np.linspace(0.1, 1, 4), [SHALOM, "\U0001f389", "good", OLAM], readout="", checks={})
    drawn = {t.get_text(): t.get_position()[0] for t in reversed(shown.plot().axes[0].texts)}
    assert drawn[OLAM] < drawn["good"] < drawn[SHALOM] and ":party popper:" in drawn
    chinese = samples.prompt([0.2, 0.4], ["\u6211", "\u559c\u6b22"])  # without glyphs, and without a warning
    assert chinese.save(tmp_path / "x.png").stat().st_size > 1000


def test_a_long_text_is_drawn_by_its_beginning_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained, "MOST_TOKENS", 5)
    why = samples.text()
    count = len(why.units)
    assert count > 5
    for view in (why.view(), side_by_side([why, why.replace(method="saliency")])):
        told = view.to_html()
        assert f"The first 5 of {count} tokens are drawn and listed" in told
        assert "like" in told and "believable" not in told
