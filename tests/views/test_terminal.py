"""The terminal: stored text at 80 columns without colour, and what must hold at any width."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.support.snapshots import compare
from tests.views import samples
from whyformer.results.types import Choice, Target, Units
from whyformer.views import attention_map, attention_streams, heads_grid, page, side_by_side, view_of
from whyformer.views.marks import Line, Lines, Piece, Scale, TokenRun
from whyformer.views.terminal.terminal_page import PageOnTerminal, text
from whyformer.views.text_marks import characters_of, wrapped
from whyformer.views.view import Page, Panel, View

SNAPSHOTS = Path(__file__).parent / "snapshots"
DOUBTS = {"warnings": ("the text was cut.",), "checks": {"completeness_error": 0.12, "split_error": 0.0012}}
VIEWS = {
    "text": lambda: view_of(samples.text()),
    "text_by_word": lambda: view_of(samples.text(), by="word"),
    "text_signed": lambda: view_of(samples.text("occlusion", signed=True, **DOUBTS)),
    "text_side_by_side": lambda: side_by_side([samples.text(), samples.text("occlusion", signed=True)]),
    "image": lambda: view_of(samples.image(), image=samples.picture()),
    "image_signed": lambda: view_of(samples.image("occlusion", signed=True)),
    "table": lambda: view_of(samples.table()),
    "attention_map": lambda: attention_map(samples.encoder_record(), labels=["[CLS]", "so", "boring", "[SEP]"]),
    "heads_grid": lambda: heads_grid(samples.encoder_record()),
    "generation": lambda: view_of(samples.generation()),
    "generation_signed": lambda: view_of(samples.generation(signed=True, method="occlusion")),
    "attention_streams": lambda: attention_streams(
        samples.encoder_decoder_record(), {"source": ["a", "b", "c", "d", "e"], "target": ["x", "y", "z"]}
    ),
}


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


def test_special_tokens_have_no_bar_but_a_line_with_what_they_hold() -> None:
    scores = [0.00099815, *[0.0001] * (len(samples.TOKENS) - 1)]
    lines = drawn(view_of(samples.text("grad_sam", scores=scores)))
    assert "1. i " in lines and "[CLS] 0" not in lines
    held = (0.00099815 + 0.0001) / (0.00099815 + 0.0011)
    told = f"[CLS] and [SEP], added by the tokenizer, hold {100 * held:.1f} % of all scores (0.001098) and have no bar."
    assert told in " ".join(lines.split())
    listed = drawn(view_of(samples.text("grad_sam", scores=scores), specials=True))
    assert "1. [CLS] " in listed and "0.000998" in listed and "no bar" not in listed


@pytest.mark.parametrize(("width", "note"), [(44, "typical"), (200, "typical: not tried out")])
def test_a_note_leaves_room_for_the_bars(width: int, note: str) -> None:
    how = {"scores": np.array([0.5, 0.0, -0.2], np.float32), "options": {"replace": "mean"}, "base": 0.1}
    lines = drawn(view_of(samples.table().replace(signed=True, **how)), width)
    assert lines.count("│█") == 1 and lines.count("▓│") == 1
    assert lines.count(f" {note}") == lines.count(" typical") == 1


def test_blocks_stand_under_the_words_they_belong_to() -> None:
    run = drawn(view_of(samples.text())).split("\n\n")[1].splitlines()
    words, blocks = run[0], run[1].ljust(len(run[0]))
    assert words == samples.TEXT
    strongest = [w for w, b in zip(words, blocks, strict=True) if b == "█"]
    assert "".join(strongest) == "not"


def test_the_caption_speaks_of_what_is_drawn() -> None:
    words = drawn(view_of(samples.text("occlusion", signed=True)))
    assert "A block above a word (a bar to the right) raises" in words.replace("\n", " ")
    for view in (view_of(samples.table()), side_by_side([samples.table(), samples.table(method="shap")])):
        words = drawn(view)
        assert "A bar to the right raises the explained value, one to the left lowers it." in words.replace("\n", " ")
        assert "above" not in words and "Blocks" not in words
    bare = samples.table(signed=False, scores=np.array([0.4, 0.2, 0.1], np.float32))
    assert "The longer the bar, the higher the score." in drawn(view_of(bare))


def test_both_ends_of_curves_are_shown() -> None:
    names = ("transformer_attribution", "raw_attention")
    lines = tuple(Line(name, np.linspace(0.99123, 0.00012341, 21)) for name in names)
    panel = Panel((Lines(np.linspace(0, 100, 21), lines, "% of the parts", "probability"),), "Taken away")
    shown = drawn(View("Curves", (panel, panel), columns=2))
    assert shown.count("0.9912 → 0.0001234") == 4


def test_columns_stand_with_their_values() -> None:
    units = replace(samples.table().units, labels=("marital-status",) * 3, values=("Married-civ-spouse",) * 3)
    beside = side_by_side([samples.table(units=units, method=name) for name in ("occlusion", "shap", "saliency")])
    assert beside.columns == 2
    _, rows = drawn(beside).split("\n", 1)  # below the title
    assert rows.count("marital-status = Married-civ-spouse") == 9
    assert 'class="wf-pair"' in beside.to_html()


def test_scores_with_a_sign_are_listed_by_their_size() -> None:
    lines = drawn(view_of(samples.text("occlusion", signed=True), most=4))
    assert [line.split()[1:3] for line in lines.splitlines() if re.match(r" *\d\. ", line)] == [
        ["not", "-0.300"], ["##believable", "-0.200"], ["un", "0.150"], ["like", "0.120"],
    ]  # fmt: skip
    assert "… 6 more" in lines


def test_the_answer_comes_first_and_how_it_was_found_last() -> None:
    said = Target(1, "positive", probability=0.9687, next=(Choice(0, "negative", 0.0313),))
    lines = drawn(view_of(samples.text(prediction=said, default_for="text"))).splitlines()
    assert lines[1].split(maxsplit=1) == ["prediction", "positive (96.9 %), next negative (3.1 %)"]
    first_bar = next(i for i, line in enumerate(lines) if line.startswith(" 1. not"))
    method = next(i for i, line in enumerate(lines) if line.startswith("method: generic_attention, the default for"))
    doubt = next(i for i, line in enumerate(lines) if line.startswith("doubt: not tested."))
    assert 1 < first_bar < method < doubt and "1 forward + 1 backward, 12 ms" in " ".join(lines[method:doubt])


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


def test_tokens_stand_in_where_the_string_is_not_known() -> None:
    units = samples.text().units
    bare = Units(units.labels, units.special, units.stream)
    joined = drawn(view_of(samples.text().replace(units=bare)))
    assert "unbelievable" in joined.replace("##", "")
    marked = Units(("<s>", "ĠI", "Ġlike", "Ġun", "believable"), (True, *[False] * 4), ("text",) * 5)
    few = samples.text().replace(units=marked, scores=samples.text().scores[:5])
    assert "I like unbelievable" in drawn(view_of(few))


def test_a_page_says_its_caption_once() -> None:
    both = drawn(page([samples.text(), samples.text()], "Two"))
    assert both.count("the higher the score") == 1
    assert both.startswith("Two\n")


def test_show_prints(capsys: pytest.CaptureFixture[str]) -> None:
    samples.text().show(by="word")
    printed = capsys.readouterr().out
    assert samples.TEXT in printed
    assert "\x1b" not in printed
