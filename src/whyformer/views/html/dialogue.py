"""What a language model read, and its answer: choose a token or a sentence of it to see what it came from.

The page is whole without its script: it shows the mean over the answer. The script asks nothing of any network.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from whyformer.views.color import DIVERGING, SEQUENTIAL, colour, hexadecimal, ink_on
from whyformer.views.facts import whole_percent
from whyformer.views.view import LEAST, Dialogue, Part, Passage, Piece, Reading, Scale

STEPS = 10_000  # shares are written as whole numbers of these
LONGEST_CHIP = 60
HINT = "Point at a token of the answer to see what it came from; a click (or Enter) holds it, arrow keys move on."

SCRIPT = r"""
(function () {
  function hex(c) { return [1, 3, 5].map(function (i) { return parseInt(c.slice(i, i + 2), 16); }); }
  function ink(c) {
    var l = c.map(function (v) { v /= 255; return v <= 0.04 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); });
    var y = 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
    return (y + 0.05) / 0.05 > 1.05 / (y + 0.05) ? "#000" : "#fff";
  }
  function start(root) {
    var d = JSON.parse(root.querySelector(".wf-data").textContent), ramp = d.ramp.map(hex);
    var pieces = [].slice.call(root.querySelectorAll("[data-piece]"));
    var tokens = [].slice.call(root.querySelectorAll(".wf-said button"));
    var chips = [].slice.call(root.querySelectorAll(".wf-chips button"));
    var folds = [].slice.call(root.querySelectorAll(".wf-fold"));
    var from = root.querySelector(".wf-from"), pinned = chips[0];
    function tint(share) {
      var at = Math.min(1, Math.max(0, share)) * (ramp.length - 1), low = Math.min(Math.floor(at), ramp.length - 2);
      return ramp[low].map(function (v, i) { return Math.round(v + (ramp[low + 1][i] - v) * (at - low)); });
    }
    function paint(element, value, reach) {
      var c = tint(!reach ? (d.signed ? 0.5 : 0) : d.signed ? 0.5 + value / reach / 2 : value / reach);
      element.style.background = "rgb(" + c.join() + ")";
      element.style.color = ink(c);
    }
    function range(button) {
      return [+button.getAttribute("data-first"), +button.getAttribute("data-end")];
    }
    function over(first, end) {
      return pieces.map(function (_, p) {
        var sum = 0, there = false, on = false;
        for (var t = first; t < end; t++) {
          var share = d.shares[t][p];
          if (share === null) continue;
          there = true;
          if (d.aside[t].indexOf(p) < 0) { on = true; sum += share; }
        }
        return { value: sum / (end - first) / d.steps, there: there, aside: there && !on };
      });
    }
    function percent(value) { return Math.round(100 * value) + "\u00a0%"; }
    function draw(button) {
      var r = range(button), all = over(r[0], r[1]), reach = 0;
      all.forEach(function (x, p) { if (d.ordinary[p] && !x.aside) reach = Math.max(reach, Math.abs(x.value)); });
      all.forEach(function (x, p) {
        var e = pieces[p], quiet = !d.ordinary[p];
        e.style.background = e.style.color = "";
        e.classList.toggle("wf-aside", x.aside);
        e.style.opacity = x.there ? "" : 0.35;
        if (x.there && !x.aside && !quiet) paint(e, x.value, reach);
        e.title = x.there ? (x.aside ? "not on the scale" : percent(x.value)) : "not yet said";
      });
      folds.forEach(function (fold) {
        var best = 0;
        [].forEach.call(fold.querySelectorAll("[data-piece]"), function (e) {
          var x = all[+e.getAttribute("data-piece")];
          if (!x.aside && Math.abs(x.value) > Math.abs(best)) best = x.value;
        });
        paint(fold.querySelector("summary"), best, reach);
      });
      var order = all.map(function (x, p) { return p; }).filter(function (p) {
        return d.ordinary[p] && !all[p].aside && Math.abs(all[p].value) >= d.least;
      }).sort(function (a, b) { return Math.abs(all[b].value) - Math.abs(all[a].value); }).slice(0, 6);
      var words = order.map(function (p) {
        return pieces[p].textContent.trim() + " " + percent(all[p].value);
      });
      from.textContent = button.getAttribute("data-name") + " \u2190 " + (words.join(", ") || "no word in particular");
      var part = r[1] - r[0] < tokens.length;
      tokens.forEach(function (e, t) { e.classList.toggle("wf-chosen", part && t >= r[0] && t < r[1]); });
    }
    function pin(button) {
      pinned = button;
      tokens.concat(chips).forEach(function (e) { e.setAttribute("aria-pressed", String(e === button)); });
      draw(button);
    }
    function reach(to) {
      tokens.forEach(function (e) { e.tabIndex = -1; });
      tokens[to].tabIndex = 0;
      tokens[to].focus();
    }
    root.classList.add("wf-live");
    tokens.concat(chips).forEach(function (e) {
      e.addEventListener("mouseenter", function () { draw(e); });
      e.addEventListener("mouseleave", function () { draw(pinned); });
      e.addEventListener("focus", function () { draw(e); });
      e.addEventListener("blur", function () { draw(pinned); });
      e.addEventListener("click", function () { pin(pinned === e ? chips[0] : e); });
    });
    tokens.forEach(function (e, t) {
      e.tabIndex = t ? -1 : 0;
      e.addEventListener("keydown", function (event) {
        var to = { ArrowRight: t + 1, ArrowLeft: t - 1, Home: 0, End: tokens.length - 1 }[event.key];
        if (to !== undefined && tokens[to]) { event.preventDefault(); reach(to); }
      });
    });
    root.addEventListener("keydown", function (event) { if (event.key === "Escape") pin(chips[0]); });
    pin(chips[0]);
  }
  [].forEach.call(document.querySelectorAll(".wf-dialogue:not(.wf-live)"), start);
})();
"""


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
        f'<script type="application/json" class="wf-data">{_data(mark)}</script><script>{SCRIPT}</script></div>'
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
    signed = mark.reading.scale.signed
    rounded = np.round(mark.shares * STEPS)
    shares = [[None if np.isnan(share) else int(share) for share in row] for row in rounded]
    data = {
        "signed": signed,
        "ramp": DIVERGING if signed else SEQUENTIAL,
        "steps": STEPS,
        "least": LEAST,
        "ordinary": [int(plain) for plain in mark.ordinary],
        "shares": shares,
        "aside": [np.flatnonzero(row).tolist() for row in mark.aside],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
