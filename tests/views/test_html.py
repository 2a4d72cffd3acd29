"""HTML: stored structure, well-formed, escaped, and nothing to fetch."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.snapshots import compare
from tests.views import samples
from tests.views.test_terminal import SNAPSHOTS, VIEWS
from whyformer.views import page, view_of
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


def everything() -> Page:
    views = [view for build in VIEWS.values() for view in build()._page().views]
    terms = Terms((Fact("whyformer demo", "try it"),), "Next", code=True)
    return page(views, "All <of> it", lead=["Words & more"], outro=[terms])


def without_style(html: str) -> str:
    return re.sub(r"<style>.*?</style>", "<style></style>", html, flags=re.DOTALL)


@pytest.mark.parametrize("name", STORED)
def test_as_stored(name: str) -> None:
    compare(without_style(samples.still(VIEWS[name]().to_html())), SNAPSHOTS / f"{name}.html")


def test_a_page_is_well_formed_fetches_nothing_and_runs_nothing_but_the_script_of_the_package() -> None:
    whole, parser = everything().to_html(), Balanced()
    parser.feed(whole)
    assert parser.open == []
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
    assert sources
    assert all(s.startswith("data:") for s in sources)


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
    assert "<b>bold" not in html
    assert "&lt;b&gt;bold" in html
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_a_small_error_of_the_method_is_no_doubt() -> None:
    checks = {"additivity_error": 0.0, "completeness_error": 2e-6, "completeness_error_relative": 1e-6, "masks": 30.0}
    fine = samples.text(checks=checks)
    assert doubts(fine) == ()
    assert "What to doubt" not in samples.still(fine.to_html())
    missing = "missing from the sum of scores"
    checked = f"{missing} 0, {missing} 2e-06 (&lt; 0.1 %), masks 30"
    assert f"<dt>checked</dt><dd>{checked}</dd>" in fine.to_html()
    (large,) = doubts(samples.text(checks={"completeness_error": 2e-6, "completeness_error_relative": 0.06}))
    assert "6.0 % of it is missing (completeness error 2e-06)" in large and "Read which parts come first" in large
    (vague,) = doubts(samples.text(checks={"standard_error": 0.2}))  # scores reach 1.25
    assert "come out differently by about 0.2 the next time (standard error)" in vague


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


def test_long_words_of_headings_break() -> None:
    for heading in ("h1", "h2", "h3"):
        assert re.search(rf"\.wf {heading}{{[^}}]*overflow-wrap:anywhere", STYLE)


def test_grid_cells_and_words_carry_their_scores() -> None:
    assert "<title>patch 0,0: 0.10</title>" in view_of(samples.image()).to_html()
    assert 'title="&#x27;not&#x27;: 0.300"' in view_of(samples.text()).to_html()
