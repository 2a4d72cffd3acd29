"""What the page's script draws from, beside the still picture: numbers and words as JSON, no markup."""

from __future__ import annotations

import json
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import command_for
from whyformer.files import LONGEST, jpeg_uri
from whyformer.results.codec import to_plain
from whyformer.results.types import ByMethod, Explanation, Units
from whyformer.shapes import Array
from whyformer.views.header import explained
from whyformer.views.image_marks import frames_of, of_sound, png, shrunk
from whyformer.views.scales import aside_of, headroom, position_read, share
from whyformer.views.table_marks import untried
from whyformer.views.text_marks import folded_units, folded_words, is_visible, placed, remainder_words, start_of
from whyformer.views.view import Explained, Heads, Panel, TableRows, Trust, View, view_of

DIGITS = 9  # significant, of scores: as many as tell two of them apart
MOST_CELLS = 512  # rows and columns of a map; of longer inputs, neighbours stand together
MOST_HEAD_CELLS = 500_000  # of all heads together
FEWEST_HEAD_CELLS = 24  # rows and columns of one of very many heads
MOST_LAYER_CELLS = 600_000  # of all layers together; more would make the page slow to open


@cache
def drawing() -> str:
    """The script that draws results, made by frontend/build.py; what a page begins with comes after it."""
    return (Path(__file__).parent / "whyformer.js").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script of saved pages."""
    return drawing() + (Path(__file__).parent / "saved.js").read_text(encoding="utf-8")


def live_data(view: View, caption: str | None = None) -> dict[str, Any] | None:
    """Return the data of the interactive form of a view; None without one. caption: in place of the view's."""
    if isinstance(view.explained, Explained):
        return _of_input(view if caption is None else replace(view, caption=caption), view.explained)
    if isinstance(view.explained, TableRows):
        return _of_rows(view.explained)
    return None if view.explained is None else _of_heads(view.explained)


def live_html(view: View, caption: str | None = None) -> str:
    """The data of one view in an element that browsers do not draw."""
    data = live_data(view, caption)
    if data is None:
        return ""
    return f'<script type="application/json" class="wf-data" data-kind="{data["kind"]}">{as_json(data)}</script>'


def as_json(data: Any) -> str:
    """JSON that can neither end its own element nor begin another."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _of_input(view: View, source: Explained) -> dict[str, Any]:
    first = source.explanations[0]
    said, maps = first.prediction, _maps(view, source)
    for each, trust in zip(maps, source.trust, strict=False):
        each["trust"] = _trust(trust)
        each["small"] = each["small"].removeprefix(str(trust.standing)).removeprefix(". ")  # which the badge says
    names = [m["method"] for m in maps]
    for each in maps:
        twice = names.count(each["method"]) > 1
        each["name"] = f"{each['method']} · {each['explained']}" if twice else each["method"]
    by_target: dict[Any, list[Explanation]] = {}
    for other in source.others:
        by_target.setdefault((other.target.index, other.target.versus), []).append(other)
    questions = [question_of(group) for group in by_target.values()]
    size = source.image.shape[:2] if source.image is not None else first.units.image_size or first.units.grid
    return {
        "kind": "explanation",
        "units": _units(first.units),
        "maps": maps,
        "prediction": {
            "label": str(said),
            "probability": said.probability,
            "next": [[str(choice), choice.probability] for choice in said.next or ()],
            "asks": not said.independent and said.end is None,
        },
        "picture": None if source.image is None else picture_uri(source.image),
        "size": None if size is None else [int(size[0]), int(size[1])],
        "frames": [{"box": list(frame.box), "label": frame.label} for frame in frames_of(first)],
        "by": source.by,
        "specials": source.specials,
        "others": [question for question in questions if question is not None],
        "footer": _footer(view, source),
        "shared": source.shared,
    }


def _maps(view: View, source: Explained) -> list[dict[str, Any]]:
    # Side by side, each method has a panel with what is to be said about it; a single one has its words in the header.
    beside = len(source.explanations) > 1
    words = [panel for panel in view.panels if panel.facts] if beside else []
    words = words if len(words) == len(source.explanations) else []
    nothing = source.nothing or ("",) * len(source.explanations)
    return [
        _map(e, words[i] if words else None, why)
        for i, (e, why) in enumerate(zip(source.explanations, nothing, strict=True))
    ]


def _footer(view: View, source: Explained) -> dict[str, Any]:
    """Return the text below the maps: both captions (own scales, one scale), details and warnings."""
    apart, one = source.captions or (view.caption, view.caption)
    told = view.caption.removeprefix(one if source.shared else apart)  # striped bars, which the page adds
    return {
        "caption": apart + told,
        "shared": one + told,
        "details": [[fact.name, fact.value] for fact in view.details],
        "doubts": list(view.doubts),
    }


def question_of(explanations: list[Explanation]) -> dict[str, Any] | None:
    """Why not another class: what a click on it shows. None of explanations of the prediction alone."""
    target, said = explanations[0].target, explanations[0].prediction
    asked = [i for i in (target.index, target.versus) if i is not None and i != said.index]
    if not asked:
        return None
    names = {target.index: target.label, target.versus: target.versus_label}
    names |= {choice.index: choice.label for choice in said.next or ()}
    first, second = (names[i] or str(i) for i in (target.index, asked[0]))
    words = f"Why {second}?" if target.versus is None else f"Why {first} rather than {names[target.versus]}?"
    beside = ByMethod({str(number): e for number, e in enumerate(explanations)})
    view = view_of(explanations[0] if len(explanations) == 1 else beside)
    assert isinstance(view.explained, Explained)
    maps = [each | {"name": each["method"]} for each in _maps(view, view.explained)]
    return {"label": second, "words": words, "maps": maps, "footer": _footer(view, view.explained)}


def _units(units: Units) -> dict[str, Any]:
    (first, last), text = placed(units), units.text or ""
    made: dict[str, Any] = {"special": [int(s) for s in units.special], "upwards": of_sound(units)}
    made["outside"] = [any(map(is_visible, text[:first])), any(map(is_visible, text[last:]))]  # of all units
    names = "labels special stream word spans text grid upwards values outside seconds wave".split()
    return {name: made[name] if name in made else to_plain(getattr(units, name)) for name in names}


def _map(explanation: Explanation, panel: Panel | None, nothing: str = "") -> dict[str, Any]:
    matrix = explanation.matrix if isinstance(explanation.matrix, np.ndarray) else None
    layers = explanation.layers
    if layers is not None and layers.size > MOST_LAYER_CELLS:
        layers = None
    remainder, about = remainder_words(explanation)
    notes = [] if panel is None else [panel.note, " · ".join(panel.small_print())]
    notes = [note for note in (*notes, about) if note and note != nothing]
    target = explanation.target
    return {
        "method": explanation.method,
        "scores": [rounded(s) for s in explanation.scores],
        "errors": None if explanation.errors is None else [rounded(e) for e in explanation.errors],
        "signed": explanation.signed,
        "value": rounded(explanation.value),
        "base": None if (start := start_of(explanation)) is None else rounded(start),
        "remainder": remainder,
        "explained": explained(explanation),
        "nothing": nothing,
        "sides": None
        if target.versus is None
        else [str(replace(target, versus=None)), target.versus_label or str(target.versus)],
        "share": rounded(share(explanation)),
        "headroom": rounded(headroom(explanation)),
        "aside": sorted(aside_of(explanation)),
        "folded": folded_units(explanation),
        "folded_words": folded_words(explanation),
        "untried": untried(explanation),
        "matrix": None if matrix is None or matrix.ndim != 2 else _grid(matrix),
        "layers": None if layers is None or layers.ndim != 3 else [_grid(layer) for layer in layers],
        "read": position_read(explanation),
        "small": ". ".join(notes),
        "doubts": [] if panel is None else list(panel.doubts),
        "trust": None,
    }


def _trust(trust: Trust) -> dict[str, Any]:
    deletion, name = trust.deletion, trust.name
    curve: dict[str, Any] | None = None
    if deletion is not None:
        curve = {"counts": list(deletion.counts), "order": list(deletion.orders[name])}
        curve |= {"curve": [rounded(v) for v in deletion.curves[name]]}
        curve |= {key: [rounded(v) for v in getattr(deletion, key)] for key in ("low", "mean", "high")}
        curve |= {"beaten": deletion.beaten[name], "draws": deletion.draws, "value": deletion.value}
    return {"badge": str(trust.standing), "verdict": trust.standing.verdict, "deletion": curve}


def rounded(value: Any) -> float:
    number = float(f"{float(value):.{DIGITS}g}")
    return number if np.isfinite(number) else 0.0


def _grid(values: Array) -> dict[str, Any]:
    """A map, shrunk where it is large. Rows are listed by their numbers, beside a diagonal a hundred times larger."""
    return packed(shrunk(np.asarray(values, np.float32), MOST_CELLS))


def packed(values: Array) -> dict[str, Any]:
    """A matrix as two bytes per cell, with the numbers that the least and the greatest of them stand for."""
    cells = np.nan_to_num(np.asarray(values, np.float32))
    low, high = rounded(cells.min(initial=0.0)), rounded(cells.max(initial=0.0))
    steps = np.rint((cells.clip(low, high) - low) / ((high - low) or 1.0) * 65535).astype("<u2")
    data = b64encode(steps.tobytes()).decode()
    return {"rows": len(cells), "columns": cells.shape[1], "low": low, "high": high, "data": data}


def _of_rows(rows: TableRows) -> dict[str, Any]:
    first = rows.explanations[0].units
    plain = [i for i, special in enumerate(first.special) if not special]
    return {
        "kind": "rows",
        "labels": [first.labels[i] for i in plain],
        "values": [[(e.units.values or ("",) * len(first))[i] for i in plain] for e in rows.explanations],
        "scores": [[rounded(e.scores[i]) for i in plain] for e in rows.explanations],
        "names": [f"row {number}" for number in range(len(rows.explanations))],
    }


def _of_heads(heads: Heads) -> dict[str, Any]:
    """Maps of all heads; of long inputs, the largest weight of neighbours."""
    count = sum(len(maps) for _, maps in heads.sites)
    most = max(FEWEST_HEAD_CELLS, min(MOST_CELLS, int((MOST_HEAD_CELLS / count) ** 0.5)))
    return {
        "kind": "heads",
        "labels": list(heads.labels),
        "named": heads.named,
        "sites": [
            {
                "name": name,
                "queries": maps.shape[1],
                "keys": maps.shape[2],
                "heads": [_grid(shrunk(np.asarray(one, np.float32), most, largest=True)) for one in maps],
            }
            for name, maps in heads.sites
        ],
    }


def picture_uri(pixels: Array) -> str:
    """A picture as a data URI: JPEG where Pillow is there to write one, which is a tenth of the size."""
    try:
        return jpeg_uri(pixels)
    except ImportError:
        small = shrunk(pixels.astype(float), LONGEST).round().clip(0, 255).astype(np.uint8)
        return f"data:image/png;base64,{b64encode(png(small)).decode()}"


# A page as a widget in a running notebook: the kernel answers its questions. A saved notebook keeps the page alone.

Ask = Callable[..., Any]


def widget_of(drawn: Any, ask: Ask | None = None) -> Any:
    """Return a View or Page as a widget, itself without anywidget or a kernel; ``ask`` is called with ``target=``."""
    kernel = _has_kernel()
    kind = widget_kind() if kernel else None
    if kind is None:
        if kernel and ask is not None:
            warnings.warn(f"without anywidget, clicks are not answered: {command_for('anywidget')}", stacklevel=4)
        return drawn
    widget = kind(page=drawn.to_html(asks=ask is not None))
    if ask is not None:
        widget.on_msg(lambda _, told, __: widget.send(answer(drawn, ask, told)))
    return widget


def answer(drawn: Any, ask: Ask, told: Any) -> dict[str, Any]:
    """Answer a click on a class: its maps, or the error."""
    number, label, place = str(told.get("number", "")), str(told.get("label", "")), int(told.get("place", 0))
    try:
        sources = [view.explained for view in drawn._page().views if isinstance(view.explained, Explained)]
        said = sources[place].explanations[0].prediction
        other = next(choice.index for choice in said.next or () if str(choice) == label)  # labels may be missing
        answered = ask(target=(None, other))
        parts = list(answered.values()) if isinstance(answered, dict) else [answered]
        question = question_of([part[place] if isinstance(part, list) else part for part in parts])
    except Exception as error:  # whatever it is, the page waits for it
        return {"number": number, "error": f"{type(error).__name__}: {error}"}
    return {"number": number, "question": question and question | {"label": label}}


def _has_kernel() -> bool:
    """IPython is there where somebody runs it; a terminal has no place for widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


@cache
def widget_kind() -> Any:
    """The class of widgets; None without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None

    class PageWidget(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = (Path(__file__).parent / "widget.js").read_text(encoding="utf-8")
        page = traitlets.Unicode().tag(sync=True)

    return PageWidget
