"""What would steer a terminal is shown as symbols, wherever it stands in a result."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import whyformer as wf
from tests.views import samples
from tests.views.results import ALL
from tests.views.test_terminal import VIEWS
from whyformer.brief import as_symbols, escaped_json
from whyformer.results.result import Result
from whyformer.run.session import tracker
from whyformer.views.terminal import terminal_page as terminal

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


@pytest.mark.parametrize("words", ["Grüße, 世界", "👩‍👩‍👧 🏳️‍🌈", "می‌خواهم", "עברית", "a\tb\nc", ""])
def test_words_of_every_script_are_as_they_were(words: str) -> None:
    assert as_symbols(words) == words


def test_json_reads_back_as_it_was() -> None:
    plain = {"".join(CONTROLS): ["".join(CONTROLS), HOSTILE, "é"]}
    written = escaped_json(json.dumps(plain, ensure_ascii=False, indent=1))
    assert json.loads(written) == plain
    assert not RAW.search(written) and "é" in written


SHOWN = {kind.__name__: make for kind, make in ALL.items()}
SHOWN |= {name: VIEWS[name] for name in ("image", "text_side_by_side", "charts")}


@pytest.mark.parametrize("coloured", [False, True])
@pytest.mark.parametrize("name", SHOWN)
def test_no_result_steers_a_terminal(
    name: str, coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"force_terminal": True, "color_system": "truecolor"} if coloured else {}
    monkeypatch.setattr(terminal, "Console", lambda **other: Console(**{**other, **how, "width": 80}))
    shown = SHOWN[name]()
    poisoned(shown.view()._page() if isinstance(shown, Result) else shown._page()).show()
    printed = COLOURS.sub("", capsys.readouterr().out)
    assert not RAW.search(printed) and "␛]0;" in printed


def test_symbols_have_the_room_they_need() -> None:
    explanation = samples.text()
    labels = tuple(f"\u202e{label}\x1b" for label in explanation.units.labels)
    shown = terminal.text(
        explanation.replace(units=dataclasses.replace(explanation.units, labels=labels)).view()._page()
    )
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert "⟨U+202E⟩" in shown


def test_what_is_no_page_passes_the_same_border(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.put(Text(f"bert.{HOSTILE}.self"))
    assert "␛]0;owned" in capsys.readouterr().out


def test_progress_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def track(steps: list[int], description: str, **how: Any) -> list[int]:
        shown.append(Text.from_markup(description).plain)
        return steps

    monkeypatch.setattr("rich.progress.track", track)
    assert list(tracker(True)([1, 2, 3], f"[red]{HOSTILE}")) == [1, 2, 3]
    assert shown == [as_symbols(f"[red]{HOSTILE}")]


def test_pages_keep_the_text_as_it_is() -> None:
    """A browser shows controls as nothing and escapes the rest: the text in a page is that of the input."""
    explanation = samples.text()
    html = explanation.replace(
        units=dataclasses.replace(explanation.units, text=None, labels=("\u202e<b>",) * 12)
    ).to_html()
    assert "\u202e&lt;b&gt;" in html


@pytest.mark.parametrize("ending", ["svg", "png", "html", "json", "npz"])
def test_files_can_be_written_and_read(ending: str, tmp_path: Path) -> None:
    """No font draws half a character, and XML has no room for controls."""
    units = dataclasses.replace(samples.text().units, text=None, labels=(HOSTILE,) * 12)
    saved = samples.text(units=units)
    path = saved.save(tmp_path / f"x.{ending}")
    if ending == "svg":
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    if ending in ("json", "npz"):
        assert wf.load(path).units == units
