"""The terminal: stored text at 80 columns without colour, what must hold at any width, and symbols for controls."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

import whyformer as wf
from tests.support.snapshots import compare
from tests.views import samples
from tests.views.results import ALL
from whyformer.brief import as_symbols, escaped_json
from whyformer.results.result import Result
from whyformer.results.types import Choice, Record, Site, Target, Units
from whyformer.run.session import tracker
from whyformer.views import (
    attention_map,
    attention_streams,
    heads_grid,
    heads_over_image,
    page,
    relevance_map,
    side_by_side,
    view_of,
)
from whyformer.views.marks import Bar, Bars, Line, Lines, Scale, TableMark
from whyformer.views.terminal import terminal_page as terminal
from whyformer.views.terminal.terminal_page import PageOnTerminal, text
from whyformer.views.text_marks import characters_of, wrapped
from whyformer.views.view import Page, Panel, View

SNAPSHOTS = Path(__file__).parent / "snapshots"
DOUBTS = {"warnings": ("the text was cut.",), "checks": {"completeness_error": 0.12, "split_error": 0.0012}}
FRANCE = ["The", "capital", "of", "France"]
SAID = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313),))
WITH_OPTIONS = {"options": {"steps": 50, "baseline": "mask", "replace": None, "normalize": True}, "changed": ("steps",)}
BARE = Units(samples.TOKENS, samples.text().units.special, samples.text().units.stream)
MARKED = Units(("<s>", "ĠI", "Ġlike", "Ġun", "believable"), (True, *[False] * 4), ("text",) * 5)
LONG_PAIRS = replace(samples.table().units, labels=("marital-status",) * 3, values=("Married-civ-spouse",) * 3)
LARGE = np.where(np.arange(144).reshape(12, 12) == 1, 8.1234e14, 3.1e13)
TABLE = TableMark(
    ("method", "aopc ↑", "cost"),
    (("raw <b>", "0.12", "1"), ("greedy", "0.99", "")),
    shades=((None, 0.4, None), (None, None, None)),
    quiet=(1,),
)
FALL = Line("transformer_attribution", np.linspace(0.99123, 0.00012341, 21))
CURVES = Lines(
    np.linspace(0, 100, 21), (FALL, Line("random", np.linspace(1, 0.8, 21), quiet=True)), "% taken away", "probability"
)
STRIPED = Bars((*(Bar(name, 9.0) for name in "abcde"), Bar("f", 0.5)), Scale(0, 1))


def over_image() -> View:
    site = Site("vit", "self", ("", ""), samples.attention(heads=3, queries=13, keys=13))
    return heads_over_image(Record((site,), samples.encoder_record().logits), samples.image(), samples.picture())


FALLING = [1e-4 - 3e-7 * i for i in range(11)]  # a map whose scores are all equal is not drawn
VIEWS: dict[str, Callable[[], View | Page]] = {
    "text": lambda: view_of(samples.text()),
    "text_by_word": lambda: view_of(samples.text(), by="word"),
    "text_signed": lambda: view_of(samples.text("occlusion", signed=True, **DOUBTS)),
    "text_signed_first": lambda: view_of(samples.text("occlusion", signed=True), most=4),
    "text_side_by_side": lambda: side_by_side([samples.text(), samples.text("occlusion", signed=True)]),
    "text_specials": lambda: view_of(samples.text("grad_sam", scores=[0.00099815, *FALLING]), specials=True),
    "text_answer": lambda: view_of(samples.text(prediction=SAID, default_for="text", base=0.6725, **WITH_OPTIONS)),
    "text_other_class": lambda: view_of(samples.text(target=Target(0, "negative"), prediction=SAID)),
    "text_unknown": lambda: view_of(samples.text(units=BARE)),
    "text_marked": lambda: view_of(samples.text().replace(units=MARKED, scores=samples.text().scores[:5])),
    "text_long": lambda: view_of(samples.long_text(60)),
    "text_dollars": lambda: view_of(samples.text(warnings=("costs $5 or $10, x_i^2",))),
    "text_page": lambda: page([samples.text(), samples.text()], "Two", lead=["Words & more"]),
    "four_methods": lambda: side_by_side([samples.text(m) for m in ("a_method", "b", "c", "d")]),
    "image": lambda: view_of(samples.image(), image=samples.picture()),
    "image_signed": lambda: view_of(samples.image("occlusion", signed=True)),
    "image_side_by_side": lambda: side_by_side(
        [samples.image(), samples.image("occlusion", signed=True)], image=samples.picture()
    ),
    "table": lambda: view_of(samples.table()),
    "table_unsigned": lambda: view_of(samples.table(signed=False, scores=np.array([0.4, 0.2, 0.1], np.float32))),
    "table_side_by_side": lambda: side_by_side(
        [samples.table(units=LONG_PAIRS, method=name) for name in ("occlusion", "shap", "saliency")]
    ),
    "attention_map": lambda: attention_map(samples.encoder_record(), labels=["[CLS]", "so", "boring", "[SEP]"]),
    "attention_numbers": lambda: attention_map(
        samples.encoder_record(), 0, 1, ["[CLS]", "so", "extraordinarily", "[SEP]"], values=True
    ),
    "heads_grid": lambda: heads_grid(samples.encoder_record()),
    "heads_grid_free": lambda: heads_grid(samples.encoder_record(), labels=list("abcd"), scale="free"),
    "heads_over_image": over_image,
    "relevance_map": lambda: relevance_map(samples.text(matrix=np.eye(12, dtype=np.float32) + 0.1), scale="full"),
    "relevance_large": lambda: relevance_map(samples.text(matrix=LARGE), values=True),
    "generation": lambda: view_of(samples.generation()),
    "generation_signed": lambda: view_of(samples.generation(signed=True, method="occlusion")),
    "generation_step": lambda: view_of(samples.generation().tokens[-1]),
    "generation_whole": lambda: view_of(samples.generation().tokens[-1].replace(
        scalar="log_probability", value=-3.2, target=Target(2, "In Lisbon. Ask him."))),
    "prompt": lambda: view_of(samples.prompt([9.0, 0.2, 0.5, 0.3], FRANCE)),
    "prompt_coloured": lambda: view_of(samples.prompt([9.0, 0.2, 0.5, 0.3], FRANCE), colour_first_token=True),
    "prompt_spaces": lambda: view_of(samples.prompt([1.0, 0.2, 0.5, 0.3, 0.1], ["The", "Ġcapital", "Ċ", "▁of", "Ġ"])),
    "prompt_side_by_side": lambda: side_by_side(
        [samples.prompt([8.0, 1, 1, 0], FRANCE), samples.prompt([2.0, 1, 1, 0], FRANCE, method="attn_lrp")]
    ),
    "prompt_long": lambda: view_of(samples.long_prompt(strong=500)),
    "contrast": lambda: view_of(samples.contrast(True)),
    "contrast_side_by_side": lambda: side_by_side([samples.contrast(True), samples.contrast(False)]),
    "contrast_image": lambda: view_of(samples.image(target=Target(2, "zebra", versus=1, versus_label="horse"))),
    "attention_streams": lambda: attention_streams(
        samples.encoder_decoder_record(), {"source": ["a", "b", "c", "d", "e"], "target": ["x", "y", "z"]}
    ),
    "charts": lambda: View("both", (Panel((TABLE,), wide=True), Panel((CURVES,), "one"), Panel((CURVES,), "two")),
                           columns=2),
    "striped_bars": lambda: View("", (Panel((STRIPED,)),), caption="Words."),
}  # fmt: skip


def drawn(view: View | Page, width: int = 80) -> str:
    return text(view._page(), width)


@pytest.mark.parametrize("name", VIEWS)
def test_as_stored_within_any_width_and_in_colour(name: str) -> None:
    view, buffer = VIEWS[name](), io.StringIO()
    compare(drawn(view), SNAPSHOTS / f"{name}.txt")
    for width in (40, 80, 200):
        for line in drawn(view, width).splitlines():
            assert cell_len(line) <= width and "\x1b" not in line and line == line.rstrip()
    console = Console(file=buffer, width=80, force_terminal=True, color_system="truecolor")
    console.print(PageOnTerminal(view._page()))
    assert "\x1b[" in buffer.getvalue()


@pytest.mark.parametrize("width", [32, 44, 200])
def test_a_note_leaves_room_for_the_bars(width: int) -> None:
    how = {"scores": np.array([0.5, 0.0, -0.2], np.float32), "options": {"replace": "mean"}}
    lines = drawn(view_of(samples.table().replace(signed=True, **how)), width)
    assert lines.count("│█") == 1 and lines.count("▓│") == 1
    assert lines.count(" no effect") == 1


ODD_TEXTS = {
    "chinese": "我喜欢这部电影" * 12,
    "emoji": "emoji 🙂🙂 and accents éèê in a text that is longer than one line",
    "lines": "line one\nline two\n\n\tindented",
    "one long word": "x" * 300,
    "unprintable": "tab\tand\x07bell",
}


@pytest.mark.parametrize("words", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_any_text_keeps_within_the_width_and_loses_nothing(words: str) -> None:
    units = Units(labels=(words[:3],), special=(False,), stream=("text",), spans=((0, len(words)),), text=words)
    explanation = samples.text().replace(units=units, scores=samples.text().scores[3:4])
    run = view_of(explanation).panels[0].marks[0]
    lines = ["".join(c.char for c in line) for line in wrapped(characters_of(run), 20)]
    assert all(cell_len(line) <= 20 for line in lines)
    assert "".join("".join(lines).split()) == "".join(words.replace("\x07", " ").split())
    for line in drawn(view_of(explanation), 40).splitlines():
        assert cell_len(line) <= 40


# What would steer a terminal is shown as symbols, wherever it stands in a result

CODES = (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
CONTROLS = [chr(code) for code in CODES]
HARMLESS = "\n\t"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\r\u2066\x00\x7f\ud83d"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COLOURS = re.compile("\x1b\\[[0-9;]*m")  # what rich itself writes


def poisoned(part: Any) -> Any:
    """Every word of a view, with characters in it that would steer a terminal."""
    if isinstance(part, str):
        return part[:3] + HOSTILE + part[3:]
    if isinstance(part, tuple):
        return tuple(map(poisoned, part))
    if not dataclasses.is_dataclass(part):
        return part
    words = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    fixed = {"interpolation"}  # a name of ours, not of the input
    return type(part)(**{name: value if name in fixed else poisoned(value) for name, value in words.items()})


def test_every_control_has_a_symbol() -> None:
    for control in CONTROLS:
        shown = as_symbols(f"a{control}b")
        assert shown == f"a{control}b" if control in HARMLESS else not RAW.search(shown) and len(shown) > 2, repr(shown)
    assert as_symbols("\x1b\x00\x7f\x9b\u202e") == "␛␀␡⟨U+009B⟩⟨U+202E⟩"
    assert as_symbols("two\r\nlines") == "two\nlines"
    for words in ("Grüße, 世界", "👩‍👩‍👧 🏳️‍🌈", "می‌خواهم", "עברית", "a\tb\nc", ""):
        assert as_symbols(words) == words


def test_json_reads_back_as_it_was() -> None:
    plain = {"".join(CONTROLS): ["".join(CONTROLS), HOSTILE, "é"]}
    written = escaped_json(json.dumps(plain, ensure_ascii=False, indent=1))
    assert json.loads(written) == plain
    assert not RAW.search(written) and "é" in written


SHOWN = {kind.__name__: make for kind, make in ALL.items()}
SHOWN |= {name: VIEWS[name] for name in ("image", "text_side_by_side", "charts")}


@pytest.mark.parametrize("name", SHOWN)
def test_no_result_steers_a_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coloured = list(SHOWN).index(name) % 2  # every other one: characters are replaced before anything is laid out
    how = {"force_terminal": True, "color_system": "truecolor"} if coloured else {}
    monkeypatch.setattr(terminal, "Console", lambda **other: Console(**{**other, **how, "width": 80}))
    shown = SHOWN[name]()
    poisoned(shown.view()._page() if isinstance(shown, Result) else shown._page()).show()
    printed = COLOURS.sub("", capsys.readouterr().out)
    assert not RAW.search(printed) and "␛]0;" in printed
    assert max(map(cell_len, printed.splitlines())) <= 80  # symbols have the room they need


def test_what_is_no_page_passes_the_same_border(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def add_task(self: Progress, description: str, **how: Any) -> Any:
        shown.append(Text.from_markup(description).plain)
        return add(self, description, **how)

    add = Progress.add_task
    monkeypatch.setattr(Progress, "add_task", add_task)
    assert list(tracker(True)([1, 2, 3], f"[red]{HOSTILE}")) == [1, 2, 3]
    assert shown == [as_symbols(f"[red]{HOSTILE}")]
    shown.clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    clock = iter(range(100))
    monkeypatch.setattr("whyformer.run.session.time.monotonic", lambda: next(clock) * 0.9)
    assert [(a, b) for a in tracker(None)([1, 2, 3, 4], "outer") for b in tracker(None)([1, 2], "inner")][-1] == (4, 2)
    assert shown == ["outer"], "from two seconds on, one bar at a time"
    terminal.put(Text(f"bert.{HOSTILE}.self"))
    assert "␛]0;owned" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["svg", "png", "html", "json", "npz"])
def test_files_can_be_written_and_read(ending: str, tmp_path: Path) -> None:
    """No font draws half a character, and XML has no room for controls."""
    units = replace(samples.text().units, text=None, labels=(HOSTILE,) * 12)
    path = samples.text(units=units).save(tmp_path / f"x.{ending}")
    if ending == "html":  # the text in a page is that of the input, but for what would steer a terminal
        written = path.read_text(encoding="utf-8")
        assert "\u202etxt" in written and "␛]0;" in written and "\x1b" not in written
    if ending == "svg":
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    if ending in ("json", "npz"):
        assert wf.load(path).units == units
