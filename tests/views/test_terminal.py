"""The terminal: stored text at 80 columns without colour, and what must hold at any width."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.support.snapshots import compare
from tests.views import samples
from whyformer.results.types import Choice, Record, Site, Target, Units
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
from whyformer.views.marks import Bar, Bars, Line, Lines, Piece, Scale, TableMark, TokenRun
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


VIEWS: dict[str, Callable[[], View | Page]] = {
    "text": lambda: view_of(samples.text()),
    "text_by_word": lambda: view_of(samples.text(), by="word"),
    "text_signed": lambda: view_of(samples.text("occlusion", signed=True, **DOUBTS)),
    "text_signed_first": lambda: view_of(samples.text("occlusion", signed=True), most=4),
    "text_side_by_side": lambda: side_by_side([samples.text(), samples.text("occlusion", signed=True)]),
    "text_specials": lambda: view_of(samples.text("grad_sam", scores=[0.00099815, *[0.0001] * 11]), specials=True),
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


@pytest.mark.parametrize(("width", "note"), [(44, "typical"), (200, "typical: not tried out")])
def test_a_note_leaves_room_for_the_bars(width: int, note: str) -> None:
    how = {"scores": np.array([0.5, 0.0, -0.2], np.float32), "options": {"replace": "mean"}, "base": 0.1}
    lines = drawn(view_of(samples.table().replace(signed=True, **how)), width)
    assert lines.count("│█") == 1 and lines.count("▓│") == 1
    assert lines.count(f" {note}") == lines.count(" typical") == 1


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


def test_lines_break_at_spaces() -> None:
    run = TokenRun((Piece("one two three four", 1.0),), Scale(0, 1))
    assert ["".join(c.char for c in line).strip() for line in wrapped(characters_of(run), 9)] == [
        "one two",
        "three",
        "four",
    ]


def test_show_prints(capsys: pytest.CaptureFixture[str]) -> None:
    samples.text().show(by="word")
    printed = capsys.readouterr().out
    assert samples.TEXT in printed
    assert "\x1b" not in printed
