"""Reading what the user typed: texts, targets, options, file names."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import typer

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.files.paths import trouble_writing

PICTURES = (".html", ".png", ".svg", ".pdf")
DRAWN = (".png", ".svg", ".pdf")  # by matplotlib
DATA = (".json", ".npz")
RECODE = "Convert it first, e.g.: iconv -f latin1 -t utf-8"
REPORT = (*PICTURES, ".json")  # a result that is drawn, or kept as data
# Of the digits that isdigit() knows, int() reads some, and none where there are thousands of them.
NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


def texts_from(arguments: list[str], file: Path | None) -> list[str]:
    """Arguments, lines of stdin for ``-``, lines of a file; blank lines are skipped."""
    texts: list[str] = []
    for argument in arguments:
        texts += _lines(text_of_stdin()) if argument == "-" else [argument]
    if file is not None:
        try:
            texts += _lines(file.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{str(file)!r} is no UTF-8 text file. {RECODE}") from error
    if not texts:
        if arguments or file is not None:
            raise BadInput("there is no text to explain: the input holds no line with a word in it.")
        raise typer.BadParameter("give a text, '-' to read lines from stdin, or --file FILE", param_hint="TEXT")
    return texts


def text_of_stdin() -> str:
    """All of it; other encodings are refused, where guessing would explain words that nobody wrote."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"what came from stdin is no UTF-8 text (byte {error.start}). {RECODE}") from None


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def target_from(target: str | None, versus: str | None) -> Any:
    """A class index or label; with ``versus``, the first rather than the second."""
    if versus is None:
        return None if target is None else number_or_word(target)
    return (None if target is None else number_or_word(target), number_or_word(versus))


def layer_from(layer: str) -> int | str:
    """An attention block by its number, or a module by its name."""
    return number_or_word(layer)


def units_from(units: str) -> str:
    """What gets a score in a text."""
    if units not in ("token", "word", "sentence", "role"):
        raise typer.BadParameter(f"{units!r} is none of token, word, sentence and role", param_hint="--units")
    return units


def object_from(target: str | None) -> Any:
    """Of a detector: "7:cat" is what query 7 says about cats, "0.8" all objects that are more probable than that."""
    if target is None:
        return None
    query, _, name = target.partition(":")
    if NUMBER.fullmatch(query) and name:
        return int(query), number_or_word(name)
    if re.fullmatch(r"0?\.\d+", target):
        return float(target)
    raise typer.BadParameter(
        f"{target!r}: a detector is asked for one object by QUERY:CLASS, as 7:cat, or for all above a probability, "
        "as 0.8",
        param_hint="--target",
    )


def number_or_word(text: str) -> int | str:
    """A whole number where the text is one, else the text itself."""
    return int(text) if NUMBER.fullmatch(text) else text


def options_from(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` with Python values (3, 0.5, True, [0, 1]); anything else is a string."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip().isidentifier():
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, e.g. heads=max", param_hint="--option")
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except Exception:  # no Python value, or one that is too deep or too large to be read: a word
            options[key.strip()] = value.strip()
    return options


def inputs_from(arguments: list[str], file: Path | None, modality: str, command: str, demo: bool = True) -> list[Any]:
    """Texts, or opened images for a model of images; ``demo``: without texts, the sentences of the demo."""
    if modality == "text":
        if demo and not arguments and file is None:
            from whyformer.demo import SENTENCES

            return list(SENTENCES)
        return texts_from(arguments, file)
    if not arguments or file is not None:
        raise BadInput(f"this is a model of images: give image files, e.g. whyformer {command} --model my-vit/ cat.jpg")
    from whyformer.files.image_file import open_image

    return [open_image(Path(path)) for path in arguments]


def drawn_faces() -> dict[str, Any]:
    """What the shipped model of cats and dogs is tried on: drawings, since its photos may not be passed on."""
    from whyformer.demo.faces import face

    require("transformers", "PIL", "whyformer_models", why="the shipped model of cats and dogs")
    from PIL import Image

    return {f"a drawn {animal}": Image.fromarray(face(animal)) for animal in ("cat", "dog")}


def check_out(
    out: Path | None, endings: tuple[str, ...] = (*PICTURES, *DATA), why: str = "", hint: str = "--out"
) -> None:
    """A file type that can be written, in a folder that exists; asked before long work."""
    if out is None:
        return
    if out.suffix not in endings:
        raise typer.BadParameter(
            f"{out.name!r}: the ending says what is written; use {', '.join(endings)}{why}", param_hint=hint
        )
    if out.suffix in DRAWN:
        require("matplotlib", why=f"writing {out.name!r}")
    if trouble := trouble_writing(out):
        raise typer.BadParameter(f"{str(out)!r} cannot be written: {trouble}", param_hint=hint)
