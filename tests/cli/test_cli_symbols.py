"""What would steer a terminal is shown as symbols by the command line: in results, errors, wrong usage and bugs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.test_cli import run

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
ERRORS = [
    ("explain", "text", "a", "-m", f"grad{ESCAPE}"),
    ("explain", "text", "a", "-t", f"posi{ESCAPE}"),
    ("explain", "text", "a", "--model", f"./no{ESCAPE}/"),
    ("explain", "text", "a", "--model", f"no{ESCAPE}"),
    ("explain", "text", "a", "--scalar", ESCAPE),
    ("explain", "text", "a", "-o", f"heads={ESCAPE}", "-m", "raw_attention"),
    ("explain", "image", f"{ESCAPE}.png", "--model", "./nowhere/"),
    ("explain", "table", f"{ESCAPE}.csv"),
    ("explain", "table", "--model", f"{ESCAPE}.py:load"),
    ("explain", "table", "--model", f"{ESCAPE}:load"),
    ("methods", ESCAPE),
    ("metrics", ESCAPE),
    ("heads", "--what", ESCAPE),
    ("recommend", "--scope", ESCAPE),
    ("compare", "--metric", ESCAPE),
    ("check", "a", "-c", ESCAPE),
    ("explain", f"{ESCAPE}.jpg"),
]
WRONG_USAGE = [
    (ESCAPE,),
    (f"--{ESCAPE}",),
    ("explain", f"--{ESCAPE}"),
    ("explain", "text", f"--{ESCAPE}"),
    ("explain", "text", "a", "--out", f"x.{ESCAPE}"),
    ("explain", "text", "a", "--out", f"{ESCAPE}/x.html"),
    ("explain", "text", "a", "--option", ESCAPE),
    ("explain", "text", "a", "--by", ESCAPE),
    ("explain", "text", "a", "--batch-size", ESCAPE),
    ("explain", "text", "--file", ESCAPE),
    ("tcav", "--random", ESCAPE),
    ("demo", "--out", ESCAPE),
]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [*((arguments, 1) for arguments in ERRORS), *((arguments, 2) for arguments in WRONG_USAGE)],
    ids=lambda value: "-".join(value[:2]).replace(ESCAPE, "X") if isinstance(value, tuple) else None,
)
def test_refusals(arguments: tuple[str, ...], code: int) -> None:
    shown = run(*arguments, code=code).stderr
    assert not RAW.search(shown), repr(shown)
    assert shown.startswith("Error: ") if code == 1 else "Error: " in shown


def test_texts_and_names_of_files(tmp_path: Path) -> None:
    text = f"I like\x1b[2J the {ESCAPE}movie"
    shown = run("explain", "text", text, "-m", "random", "-m", "raw_attention")
    assert not RAW.search(shown.stdout)
    assert "␛[2J" in shown.stdout
    out = tmp_path / f"why{ESCAPE}.html"
    assert "why␛]0;owned␇⟨U+009B⟩31m⟨U+202E⟩.html" in run("explain", "text", "a", "--out", out).stderr
    assert out.is_file()


def test_json_is_what_it_was() -> None:
    text = f"I like the {ESCAPE}movie"
    shown = run("explain", "text", text, "-m", "random", "--json").stdout
    assert not RAW.search(shown)
    assert json.loads(shown)[0]["units"]["text"] == text
