"""What a language model read, and its answer: choose a token or a sentence of it to see what it came from.

The page is whole without its script (frontend/src/dialogue.js): it shows the mean over the answer.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from whyformer.views.color import colour, hexadecimal, ink_on
from whyformer.views.facts import whole_percent
from whyformer.views.marks import LEAST, Dialogue, Part, Passage, Piece, Reading, Scale

STEPS = 10_000  # shares are written as whole numbers of these
LONGEST_CHIP = 60
HINT = "Point at a token of the answer to see what it came from; a click (or Enter) holds it, arrow keys move on."


def reading_html(mark: Reading) -> str:
    """Voice by voice under their names; folds open by a click, what a template put in is small and grey."""
    numbers = iter(range(len(mark.scored())))
    return f'<div class="wf-reading">{"".join(_part(part, mark.scale, numbers) for part in mark.parts)}</div>'


def _part(part: Part, scale: Scale, numbers: Any) -> str:
    if part.quiet:
        inner = "".join(_passage(passage, None, numbers) for passage in part.passages)
        return f'<div class="wf-quiet" title="from the chat template">{inner}</div>'
    inner = "".join(_passage(passage, scale, numbers) for passage in part.passages)
    return f'<h4 class="wf-voice">{escape(part.heading)}</h4><div class="wf-run" dir="auto">{inner}</div>'


def _passage(passage: Passage, scale: Scale | None, numbers: Any) -> str:
    inner = "".join(_piece(piece, scale, numbers) for piece in passage.pieces)
    if not passage.folded:
        return inner
    strongest = max((p.score or 0.0 for p in passage.pieces if not p.aside), key=abs, default=0.0)
    style = "" if scale is None else f' style="{_style(scale, strongest)}"'
    return f'<details class="wf-fold"><summary{style}>{escape(passage.folded)}</summary>{inner}</details>'


def _piece(piece: Piece, scale: Scale | None, numbers: Any) -> str:
    if piece.score is None:
        return escape(piece.text)
    drawn = "" if piece.aside or scale is None else f' style="{_style(scale, piece.score)}"'
    kind = "wf-token" + " wf-special" * (piece.special and scale is not None) + " wf-aside" * piece.aside
    tip = "not on the scale" if piece.aside else f"{piece.score:.4g}"
    return f'<span class="{kind}" data-piece="{next(numbers)}"{drawn} title="{tip}">{escape(piece.text)}</span>'


def _style(scale: Scale, score: float) -> str:
    background = colour(scale, score)
    return f"background:{hexadecimal(background)};color:{ink_on(background)}"


def dialogue_html(mark: Dialogue) -> str:
    whole = (0, len(mark.said))
    said = "".join(_button(text, (t, t + 1), _name(text)) for t, text in enumerate(mark.said))
    chips = [_button("the whole answer", whole, "the whole answer")]
    if len(mark.sentences) > 1:
        for number, (first, end) in enumerate(mark.sentences, 1):
            text = "".join(mark.said[first:end])
            chips.append(_button(_cut(f"{number}: {' '.join(text.split())}"), (first, end), f"sentence {number}"))
    sources = ", ".join(f"{' '.join(text.split())} {whole_percent(share)}" for text, share in mark.sources(*whole, 6))
    return (
        '<div class="wf-dialogue">'
        f'<p class="wf-said" dir="auto" role="toolbar" aria-label="the answer, token by token">{said}</p>'
        f'<p class="wf-chips">{"".join(chips)}<span class="wf-note">{HINT}</span></p>'
        f'<p class="wf-from" aria-live="polite">the whole answer ← {escape(sources or "no word in particular")}</p>'
        f"{reading_html(mark.reading)}"
        f'<script type="application/json" class="wf-data">{_data(mark)}</script></div>'
    )


def _button(text: str, tokens: tuple[int, int], name: str) -> str:
    which = f'data-first="{tokens[0]}" data-end="{tokens[1]}" data-name="{escape(name)}"'
    return f'<button type="button" {which}>{escape(text)}</button>'


def _name(text: str) -> str:
    return f"“{text.strip() or text}”"


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST_CHIP else words[: LONGEST_CHIP - 1] + "…"


def _data(mark: Dialogue) -> str:
    """What the script draws from, as JSON that cannot end its own element."""
    rounded = np.round(mark.shares * STEPS)
    shares = [[None if np.isnan(share) else int(share) for share in row] for row in rounded]
    data = {
        "signed": mark.reading.scale.signed,
        "steps": STEPS,
        "least": LEAST,
        "ordinary": [int(plain) for plain in mark.ordinary],
        "shares": shares,
        "aside": [np.flatnonzero(row).tolist() for row in mark.aside],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
