"""Views as HTML: one file, no network, no font to fetch. Interactive with JavaScript (live.py); complete without."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.brief import STEERING, as_symbols
from whyformer.views import marks
from whyformer.views.header import decimals, ends, fixed, number
from whyformer.views.html import charts
from whyformer.views.html.charts import STEPS, reading_html
from whyformer.views.html.live import as_json, live_html, rounded, script
from whyformer.views.scales import anchors_of, bar_colour
from whyformer.views.text_marks import BarRow, placed_rows
from whyformer.views.view import Explained, Fact, Heads, Page, Panel, Terms, View, captions, rows_of

# Still pictures have a white ground on purpose: their colour scales start from it. The page's script knows scales that
# start from a dark ground, and changes both together.
STYLE = "\n" + (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
SENTENCE = re.compile(r"(?<=[.)])\s+(?=[A-Z])")


def document(page: Page, asks: bool = False) -> str:
    title = page.title or (page.views[0].title if page.views else "whyformer")
    return (
        # "only": browsers that darken pages by themselves would turn the colour scales over.
        f'<!doctype html>\n<html lang="en" style="color-scheme:only light"{" data-asks" * asks}>\n<head>\n'
        '<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty icon keeps browsers from asking for one.
        '<link rel="icon" href="data:,">\n'
        f'<title>{escape(as_symbols(title, STEERING))}</title>\n</head>\n<body class="wf-body">\n'
        f'{fragment(page)}\n<script type="module">\n{script()}</script>\n</body>\n</html>\n'
    )


def framed(page: Page) -> str:
    """The page in a frame, for notebooks: their styles stay outside, and its own inside. The script fits its height."""
    style = "width:100%;border:0;height:640px;resize:vertical"
    kind = f'class="wf-frame-host" title="whyformer" style="{style}"'
    return f'<iframe {kind} srcdoc="{escape(document(page))}"></iframe>'


def fragment(page: Page) -> str:
    parts = [f"<style>{STYLE}</style>", '<main class="wf">']
    # A single view has its title below; screen readers look for one of the first rank.
    parts.append(f"<h1>{escape(page.title)}</h1>" if page.title else '<h1 class="wf-heard">whyformer</h1>')
    parts += _words(page.lead)
    lists = [mark for view in page.views for mark in view.marks if isinstance(mark, marks.Bars)]
    if any(bar.special for mark in lists for bar in mark.bars):
        parts.append('<label class="wf-switch"><input type="checkbox" checked> special tokens in lists</label>')
    parts += [_view(view, caption) for view, caption in zip(page.views, captions(page.views), strict=True)]
    parts += _words(page.outro)
    return as_symbols("\n".join([*parts, "</main>"]), STEERING)  # a page is printed in terminals, too


def _words(blocks: Sequence[str | Terms]) -> list[str]:
    parts = []
    for block in blocks:
        if isinstance(block, str):
            parts.append(f'<p class="wf-words">{escape(block)}</p>')
            continue
        if block.level:
            parts.append(_findings(block))
            continue
        if block.title and not block.folded:
            parts.append(f"<h2>{escape(block.title)}</h2>")
        tag = "code" if block.code else "b"
        rows = "".join(f"<dt><{tag}>{escape(f.name)}</{tag}></dt><dd>{escape(f.value)}</dd>" for f in block.facts)
        listed = f'<dl class="wf-terms">{rows}</dl>'
        head = f"<summary><h2>{escape(block.title)}</h2></summary>"
        parts.append(f"<details>{head}{listed}</details>" if block.folded else listed)
    return parts


def _findings(block: Terms) -> str:
    """Findings of a check-up as cards: the first sentence of each is visible, the rest unfolds."""
    cards = []
    for fact in block.facts:
        first, *rest = SENTENCE.split(fact.value, maxsplit=1)
        head = f"<b>{escape(fact.name)}</b> {escape(first)}"
        more = f"<details><summary>{head}</summary><p>{escape(rest[0])}</p></details>" if rest else f"<p>{head}</p>"
        cards.append(f"<li>{more}</li>")
    inner = f'<ul class="wf-findings wf-{block.level}">{"".join(cards)}</ul>'
    title = f"{escape(block.title)} ({len(block.facts)})"
    if block.level != "ok":
        return f"<h2>{title}</h2>{inner}"
    return f"<details><summary><h2>{title}</h2></summary>{inner}</details>"


def _view(view: View, caption: str) -> str:
    fold = " data-folded" * view.folded
    parts = [f'<section class="wf-view"{fold}>', f'<h2 dir="auto">{escape(view.title)}</h2>']
    if view.details and not view.words_first:
        # What the model says, in large; where the script draws the classes with their probabilities, it gives way.
        source = view.explained
        drawn = isinstance(source, Explained) and source.explanations[0].prediction.probability is not None
        words = [f"<span>{escape(f.name)}</span> {escape(f.value)}" for f in view.facts]
        parts.append("".join(f'<p class="wf-answer{" wf-still" * drawn}">{each}</p>' for each in words))
    parts += [_facts(view.facts)] if not view.details and not view.words_first else []
    small = bool(view.marks) and all(isinstance(m, marks.Matrix) and m.small for m in view.marks)
    for row in rows_of(view.panels, view.columns):
        kind = ("wf-row wf-small" if small else "wf-row") + " wf-still" * _is_drawn(view, row)
        style = f' style="--columns:{1 if row[0].wide else view.columns}"'
        legends = [_own_legend(p) if not view.legends else "" for p in row]
        inner = "".join(_panel(p, legend) for p, legend in zip(row, legends, strict=True))
        parts.append(f'<div class="{kind}"{style}>{inner}</div>')
    parts += [_legend(scale, _over_images(view), view.explained is not None) for scale in view.legends]
    parts.append(live_html(view, caption))
    if caption:
        # Of heads it speaks of the small maps. Of explanations the script has it, and changes it with what is shown.
        still = " wf-still" * isinstance(view.explained, (Heads, Explained))
        parts.append(f'<p class="wf-caption{still}">{escape(caption)}</p>')
    parts += [_facts(view.facts)] if view.words_first else []
    live = isinstance(view.explained, Explained)
    parts += [_facts(view.details, still=live), _doubts(view.doubts, still=live)]
    return "\n".join(p for p in [*parts, "</section>"] if p)


def _over_images(part: View | Panel) -> bool:
    return any(isinstance(m, marks.Heat) for m in part.marks)


def _own_legend(panel: Panel) -> str:
    """The legend of one panel among others, each of which has its own scale."""
    scales = [m.scale for m in panel.marks if isinstance(m, (marks.TokenRun, marks.Heat, marks.Matrix))]
    scored = any(isinstance(m, (marks.Heat, marks.Matrix)) for m in panel.marks) or any(
        piece.score is not None for m in panel.marks if isinstance(m, marks.TokenRun) for piece in m.pieces
    )
    one = scored and len(set(scales)) == 1 and scales[0].low < scales[0].high  # nothing found: no scale
    return _legend(scales[0], _over_images(panel)) if one else ""


def _is_drawn(view: View, row: Sequence[Panel]) -> bool:
    """The script draws all that stands in these panels itself."""
    if view.explained is None:
        return False
    if isinstance(view.explained, Heads):
        return True
    kinds: tuple[type, ...] = (marks.TokenRun, marks.Bars, marks.Heat, marks.Reading)
    units = view.explained.explanations[0].units
    if units.seconds is not None or (isinstance(view.explained, Explained) and view.explained.trust):
        kinds = (*kinds, marks.Lines)  # scores over time; a curve behind each badge
    if units.grid is not None:  # boxes on a picture are drawn here only
        kinds = (*kinds, marks.Picture)
    drawn = [mark for panel in row for mark in panel.marks]
    return all(isinstance(m, kinds) and not (isinstance(m, marks.Heat) and m.fine) for m in drawn)


def _facts(facts: Sequence[Fact], still: bool = False) -> str:
    if not facts:
        return ""
    items = "".join(f"<div><dt>{escape(f.name)}</dt><dd>{escape(f.value)}</dd></div>" for f in facts)
    return f'<dl class="wf-facts{" wf-still" * still}">{items}</dl>'


def _doubts(doubts: Sequence[str], still: bool = False) -> str:
    items = "".join(f"<li>{escape(doubt)}</li>" for doubt in doubts)
    kind = "wf-doubts" + " wf-still" * still
    return f'<div class="{kind}"><b>Warnings</b><ul>{items}</ul></div>' if items else ""


def _panel(panel: Panel, legend: str = "") -> str:
    parts = ['<div class="wf-panel">']
    if panel.title:
        parts.append(f"<h3>{escape(panel.title)}</h3>")
    if panel.note:
        parts.append(f'<p class="wf-note">{escape(panel.note)}</p>')
    parts += [*(MARKS[type(mark)](mark) for mark in panel.marks), legend]
    if panel.small_print():
        parts.append(f'<p class="wf-note">{" · ".join(map(escape, panel.small_print()))}</p>')
    return "".join([*parts, _doubts(panel.doubts), "</div>"])


def _run(run: marks.TokenRun) -> str:
    digits = decimals([p.score for p in run.pieces if p.score is not None])
    parts = []
    for piece in run.pieces:
        if piece.score is None:
            parts.append(escape(piece.text))
            continue
        style = "" if piece.aside else f' style="{charts.tint(run.scale, piece.score)}"'
        tip = escape(f"{piece.text!r}: {fixed(piece.score, digits)}")
        kind = "wf-token" + " wf-special" * piece.special + " wf-aside" * piece.aside
        parts.append(f'<span class="{kind}"{style} title="{tip}">{escape(piece.text)}</span>')
    return f'<p class="wf-run" dir="auto">{"".join(parts)}</p>'


def _bars(mark: marks.Bars) -> str:
    """A row per bar; what is left out, and what has no bar, in words."""
    rows = "".join(_row(row, mark) for row in placed_rows(mark))
    more = escape(mark.more)
    rows += f'<tr><td></td><td class="wf-more" colspan="3">{more}</td></tr>' if more else ""
    folded = f'<p class="wf-note">{escape(mark.folded)}</p>' if mark.folded else ""
    return f'<table class="wf-bars">{rows}</table>{folded}'


def _row(row: BarRow, mark: marks.Bars) -> str:
    bar, scale = row.bar, mark.scale
    kind = "wf-bar wf-beyond" if row.beyond else "wf-bar"
    tip = ' title="longer than the scale of the other bars"' if row.beyond else ""
    place = f"left:{100 * row.start:.2f}%;width:{100 * row.width:.2f}%;background-color:{bar_colour(bar, scale)}"
    drawn = f'<i class="{kind}" style="{place}"{tip}></i>' + '<i class="wf-axis"></i>' * (
        scale.signed and not mark.starts
    )
    if mark.reference is not None:
        drawn += f'<i class="wf-reference" style="left:{100 * scale.place(mark.reference):.2f}%"></i>'
    if row.limits is not None:
        start, end = (100 * limit for limit in row.limits)
        place = f"position:absolute;top:50%;height:1px;background:#1b1f24;left:{start:.2f}%;width:{end - start:.2f}%"
        words = f"{number(bar.low or 0.0)} to {number(bar.high or 0.0)}"
        drawn += f'<i class="wf-limits" style="{place}" title="{words}"></i>'
    drawn += "".join(f'<i class="wf-dot" style="left:{100 * dot:.2f}%"></i>' for dot in row.dots)
    wide = ' class="wf-pair"' * (marks.PAIR in bar.label)
    special = ' class="wf-special"' * bar.special
    cells = f"<td>{row.rank}.</td>" if row.rank else ""
    cells += f'<th scope="row" dir="auto"{wide}>{escape(bar.label)}</th>'
    cells += f'<td class="wf-number">{row.number}</td><td class="wf-track">{drawn}</td>'
    cells += f'<td class="wf-end">{escape(bar.note)}</td>' if bar.note else ""
    return f"<tr{special}>{cells}</tr>"


def _legend(scale: marks.Scale, over_images: bool, still: bool = False) -> str:
    zero = "<span>0</span>" if scale.signed else ""
    sides = " (orange: below 0, blue: above 0)" * scale.signed
    low, high = ends(scale)
    ramp = f"background:linear-gradient(to right,{','.join(anchors_of(scale, over_images))})"
    kind = "wf-ramp" if over_images else "wf-ramp wf-paper"  # begins at the white of paper, but over images
    return (
        f'<div class="wf-legend{" wf-still" * still}"><span class="{kind}" style="{ramp}"></span>'
        f'<span class="wf-ends"><span>{low}</span>{zero}<span>{high}</span></span>'
        f"<span>{escape(scale.meaning)}{sides}</span></div>"
    )


HINT = "Click a step to see what drove it; click a step among its sources to walk back; arrow keys move; Esc returns."


def graph_html(mark: marks.StepGraph) -> str:
    """The page is whole without its script: it shows the sources of the last step in colour, and a list of all."""
    steps = "".join(
        f"<li><b>{escape(step)}</b><ul>{''.join(f'<li>{escape(source)}</li>' for source in sources)}</ul></li>"
        for step, sources in mark.told()
    )
    data = {
        "names": list(mark.names),
        "steps": list(mark.steps),
        "calls": list(mark.calls),
        "unit": STEPS,
        "least": marks.LEAST,
        "shares": np.round(mark.shares * STEPS).astype(int).tolist(),
        "origins": np.round(mark.origins * STEPS).astype(int).tolist(),
        "drops": [[None if np.isnan(drop) else rounded(drop) for drop in row] for row in mark.drops],
    }
    run, drawn = reading_html(mark.reading), as_json(data)
    return (
        f'<div class="wf-graph"><p class="wf-note wf-graph-hint">{HINT}</p><div class="wf-graph-columns">'
        f'<div class="wf-graph-run">{run}</div><div class="wf-why" aria-live="polite"></div></div>'
        f'<ol class="wf-graph-told">{steps}</ol><script type="application/json" class="wf-data">{drawn}</script></div>'
    )


MARKS: dict[type[marks.Mark], Callable[[Any], str]] = {
    marks.TokenRun: _run,
    marks.Bars: _bars,
    marks.Picture: charts.picture_svg,
    marks.Heat: charts.heat_svg,
    marks.Matrix: charts.matrix_svg,
    marks.HeadColours: charts.heads_html,
    marks.TableMark: charts.table_html,
    marks.Lines: charts.lines_svg,
    marks.Scatter: charts.scatter_svg,
    marks.Reading: charts.reading_html,
    marks.Dialogue: charts.dialogue_html,
    marks.StepGraph: graph_html,
}
