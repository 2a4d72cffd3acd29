"""What ``whyformer explain`` was given: a text, images, a table, sound. The sub-command that fits is put in front."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from whyformer.errors import BadInput

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
KINDS = {**dict.fromkeys(IMAGES, "image"), ".csv": "table", ".wav": "sound", ".txt": "text"}
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # a path has lost one of two strokes; C:/ is none
HELP = ("-h", "--help")


class Explaining(TyperGroup):
    """``explain WORDS…`` is ``explain text WORDS…``, ``explain cat.jpg`` is ``explain image cat.jpg``, and so on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP:
            args = self.named(args)
        return list(super().parse_args(ctx, args))

    def named(self, args: list[str]) -> list[str]:
        """The arguments with their sub-command in front; a text file becomes its ``--file``."""
        inputs = self._inputs(args)
        kind = kind_of(inputs)
        if kind == "text" and inputs and all(_is_text_file(each) for each in inputs):
            if len(inputs) > 1:
                raise BadInput(f"one text file at a time: {inputs[0]!r} or {inputs[1]!r}.")
            at = args.index(inputs[0])
            args = [*args[:at], "--file", *args[at:]]
        return [kind, *args]

    def _inputs(self, args: Sequence[str]) -> list[str]:
        """The arguments that are neither options nor their values."""
        valued = {
            name
            for command in self.commands.values()
            for parameter in command.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        inputs, skip, plain = [], False, False
        for argument in args:
            if skip:
                skip = False
            elif plain or argument == "-" or not argument.startswith("-"):
                inputs.append(argument)
            elif argument == "--":
                plain = True
            else:
                skip = argument in valued
        return inputs


def kind_of(inputs: Sequence[str]) -> str:
    """text, image, table or sound, by what the first input is; others have to be of the same kind."""
    kinds = [_kind(each) for each in inputs]
    if not kinds:
        return "text"
    for other, kind in zip(inputs, kinds, strict=True):
        if kind != kinds[0]:
            raise BadInput(
                f"{inputs[0]!r} is taken for {_called(kinds[0])} and {other!r} for {_called(kind)}: give one kind at a "
                f"time, or say which it is: whyformer explain {kinds[0]} …"
            )
    return kinds[0]


def _kind(argument: str) -> str:
    refuse_address(argument)
    if argument == "-" or any(character.isspace() for character in argument.strip()):
        return "text"
    path = Path(argument)
    if path.is_dir():
        raise BadInput(
            f"{argument!r} is a folder: give files, e.g. whyformer explain {path}/*.jpg. Of a whole dataset: whyformer "
            f"batch. If it is the word that is meant: whyformer explain text {argument}"
        )
    ending = path.suffix.lower()
    if ending in KINDS:
        if not path.exists():
            raise BadInput(f"there is no file {argument!r}. If it is a text: whyformer explain text {argument}")
        return KINDS[ending]
    if path.is_file():
        raise BadInput(
            f"what is in {argument!r} cannot be told from its name: say it, whyformer explain text --file {argument}, "
            "or explain image, table or sound."
        )
    return "text"


def refuse_address(argument: str) -> None:
    """Nothing is downloaded: an address is no input."""
    if ADDRESS.match(argument.strip()) and not any(character.isspace() for character in argument.strip()):
        raise BadInput(
            f"{argument!r} is an address, and no network is used here: download it first (curl -O ADDRESS), then give "
            "the file."
        )


def _called(kind: str) -> str:
    return {"text": "a text", "image": "an image", "table": "a table", "sound": "a clip of sound"}[kind]


def _is_text_file(argument: str) -> bool:
    return argument != "-" and Path(argument).suffix.lower() == ".txt" and Path(argument).is_file()
