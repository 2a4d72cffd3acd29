"""Parse command-line arguments: texts, targets, options, file names, tables."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from whyformer.errors import BadInput, reading, require
from whyformer.files import IMAGES, trouble_writing

KINDS = {**dict.fromkeys(IMAGES, "image"), ".csv": "table", ".wav": "sound", ".txt": "text"}
# Endings of other files. An argument with one of them, or with a path separator, is a file name, not a text.
OTHER_FILES = (
    *(".tsv", ".json", ".jsonl", ".parquet", ".npz", ".md", ".html", ".pdf", ".log", ".docx", ".xlsx", ".xml"),
    *(".mp3", ".flac", ".ogg", ".yaml", ".yml", ".gz", ".zip", ".svg", ".heic"),
)
TABLES = (".tsv", ".jsonl", ".ndjson", ".parquet")  # a line is not a text
LONGEST_NAME = 255  # bytes
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # one slash: Path() drops the second; not the drive C:/
HELP = ("-h", "--help")
CALLED = {"text": "a text", "image": "an image", "table": "a table", "sound": "a clip of sound"}


class ExplainGroup(TyperGroup):
    """``explain WORDS…`` is ``explain text WORDS…``, ``explain cat.jpg`` is ``explain image cat.jpg``, and so on."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in HELP:
            inputs = self._inputs(args)
            kind = kind_of(inputs)
            files = [each for each in inputs if each.lower().endswith(".txt") and Path(each).is_file()]
            if files and files == inputs:  # a text file becomes the sub-command's --file
                if len(inputs) > 1:
                    raise BadInput(f"give one text file at a time: {inputs[0]!r} or {inputs[1]!r}.")
                at = args.index(inputs[0])
                args = [*args[:at], "--file", *args[at:]]
            args = [kind, *args]
        return list(super().parse_args(ctx, args))

    def _inputs(self, args: Sequence[str]) -> list[str]:
        """Return the arguments that are neither options nor their values."""
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
    """Return text, image, table or sound, by the first input; raise if the others are of another kind."""
    kinds = [_kind(each) for each in inputs]
    for other, kind in zip(inputs, kinds, strict=True):
        if kind != kinds[0]:
            raise BadInput(
                f"{inputs[0]!r} looks like {CALLED[kinds[0]]} and {other!r} like {CALLED[kind]}: give one kind at a "
                f"time, or name the kind: whyformer explain {kinds[0]} …"
            )
    return kinds[0] if kinds else "text"


def _kind(argument: str) -> str:
    refuse_address(argument)
    if argument == "-" or not argument.strip() or _has_space(argument) or _too_long(argument):
        return "text"
    path = Path(argument)
    if path.is_dir():
        raise BadInput(
            f"{argument!r} is a folder: give files, e.g. whyformer explain {path}/*.jpg. For a whole dataset: "
            f"whyformer batch. To explain the word itself: whyformer explain text {argument}"
        )
    refuse_missing(argument, f"whyformer explain text {argument}")
    ending = path.suffix.lower()
    if path.is_file() and ending in TABLES:
        raise BadInput(f"{argument!r} has columns: use whyformer batch {argument} --column NAME --out FOLDER")
    if path.is_file() and ending not in KINDS:
        raise BadInput(
            f"{argument!r} has no ending that names its kind: use whyformer explain text --file {argument}, or explain "
            "image, table or sound."
        )
    return KINDS.get(ending, "text")


def _too_long(argument: str) -> bool:
    """Whether no file can have this name: texts of some languages have no spaces, and the system would raise."""
    return len(os.fsencode(argument)) > LONGEST_NAME


def _has_space(argument: str) -> bool:
    return any(character.isspace() for character in argument.strip())


def is_file_name(argument: str) -> bool:
    """Whether an argument is the name of a file, existing or not: by its ending, or by a path separator in it."""
    if _has_space(argument) or argument != argument.strip() or _too_long(argument):
        return False
    return Path(argument).suffix.lower() in (*KINDS, *OTHER_FILES) or "/" in argument or "\\" in argument


def refuse_missing(argument: str, as_text: str) -> None:
    """Raise for the name of a file that does not exist; ``as_text``: the command that takes it as a text."""
    if is_file_name(argument) and not Path(argument).exists():
        raise BadInput(f"there is no file {argument!r}. If it is a text: {as_text}")


def refuse_files(arguments: Sequence[str], command: str) -> None:
    """Raise for addresses and missing files, before a model is loaded."""
    for argument in arguments:
        refuse_address(argument)
        refuse_missing(argument, f"echo {argument} | whyformer {command} -")


def refuse_file(argument: str, command: str, piped: bool = True) -> None:
    """Raise for a file name where ``command`` takes the text itself; ``piped``: it reads stdin for '-'."""
    spaced = f"put a space before it: ' {argument}'"
    refuse_missing(argument, f"echo {argument} | whyformer {command} -" if piped else spaced)
    if is_file_name(argument) and Path(argument).is_file():
        read = f"cat {argument} | whyformer {command} -" if piped else f'"$(cat {argument})"'
        raise BadInput(
            f"{argument!r} is a file, and {command} takes the text itself: {read}. If it is a text: {spaced}"
        )


def refuse_address(argument: str) -> None:
    """Raise for a URL: whyformer downloads no inputs."""
    if ADDRESS.match(argument.strip()) and not _has_space(argument):
        raise BadInput(
            f"{argument!r} is an address, and no network is used here: download it first (curl -O ADDRESS), then give "
            "the file."
        )


DRAWN = (".png", ".svg", ".pdf")  # by matplotlib
PICTURES = (".html", *DRAWN)
DATA = (".json", ".npz")
RECODE = "Convert it first, e.g.: iconv -f latin1 -t utf-8"
# int() does not read all digits that isdigit() accepts, and refuses numbers of thousands of digits.
NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


def texts_from(arguments: list[str], file: Path | None) -> list[str]:
    """Return arguments, lines of stdin for ``-``, and lines of a file; skip blank lines."""
    texts: list[str] = []
    for argument in arguments:
        texts += _lines(text_of_stdin()) if argument == "-" else [argument]
    if file is not None:
        _refuse_columns(file)
        texts += lines_of(file)
    if not texts:
        if arguments:
            raise BadInput("there is no text to explain: the input has no line with a word in it.")
        raise typer.BadParameter("give a text, '-' to read lines from stdin, or --file FILE", param_hint="TEXT")
    return texts


def _refuse_columns(file: Path) -> None:
    """Raise for a table: its lines, header included, would be taken for texts."""
    if file.suffix.lower() in (".csv", *TABLES):
        raise BadInput(
            f"{str(file)!r} has columns, and --file reads one text per line: use whyformer batch {file} --column NAME "
            "--out FOLDER, or save the texts as a .txt file."
        )


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file that are not blank; raise if there are none."""
    try:
        lines = _lines(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(file)!r} is not a UTF-8 text file. {RECODE}") from error
    if not lines:
        raise BadInput(f"{str(file)!r} is empty: it has no line with a word in it.")
    return lines


def text_of_stdin() -> str:
    """Return all of stdin. Raise for encodings other than UTF-8: a wrong guess would change the words."""
    if sys.stdin is None:
        raise BadInput("stdin is closed, and '-' reads the text from there: give the text itself, or a pipe.")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"stdin is not UTF-8 text (byte {error.start}). {RECODE}") from None


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def object_from(target: str | None) -> Any:
    """Return the target of a detector: "7:cat" is class cat of query 7, "0.8" all objects above that probability."""
    if target is None:
        return None
    query, _, name = target.partition(":")
    if NUMBER.fullmatch(query) and name:
        return int(query), number_or_word(name)
    if re.fullmatch(r"0?\.\d+", target):
        return float(target)
    raise typer.BadParameter(
        f"{target!r}: for a detector, give one object as QUERY:CLASS, e.g. 7:cat, or a probability, e.g. 0.8, for all "
        "objects above it",
        param_hint="--target",
    )


def number_or_word(text: str) -> int | str:
    return int(text) if NUMBER.fullmatch(text) else text


def options_from(pairs: list[str]) -> dict[str, Any]:
    """Parse ``key=value`` with Python values (3, 0.5, True, [0, 1]); any other value is a string."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip().isidentifier():
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, e.g. heads=max", param_hint="--option")
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except Exception:  # not a Python value, or one too deep or too large to parse: a word
            options[key.strip()] = value.strip()
    return options


def inputs_from(arguments: list[str], file: Path | None, modality: str, command: str, demo: bool = True) -> list[Any]:
    """Return texts, or opened images for an image model; ``demo``: without texts, the sentences of the demo."""
    if modality == "text":
        if demo and not arguments and file is None:
            from whyformer.demo import SENTENCES

            return list(SENTENCES)
        texts = [text for argument in arguments for text in _texts_of(argument, command)]
        return texts if arguments and file is None else [*texts, *texts_from([], file)]
    if not arguments or file is not None:
        raise BadInput(f"this is an image model: give image files, e.g. whyformer {command} --model my-vit/ cat.jpg")
    from whyformer.files import open_image

    return [open_image(Path(path)) for path in arguments]


def _texts_of(argument: str, command: str) -> list[str]:
    """Return the text itself, or one text per line of a .txt file or of stdin ('-')."""
    refuse_files([argument], command)
    if argument != "-" and is_file_name(argument) and Path(argument).is_file():
        _refuse_columns(Path(argument))
        if Path(argument).suffix.lower() != ".txt":
            raise BadInput(
                f"{argument!r} is a file, and this model takes texts: give --file {argument} if it has one text per "
                "line, or --model with an image model."
            )
        return texts_from([], Path(argument))
    return texts_from([argument], None)


def drawn_faces() -> dict[str, Any]:
    """Return example inputs for the shipped model of cats and dogs: drawings, since its photos may not be shipped."""
    from whyformer.demo.pictures import face

    require("transformers", "PIL", "whyformer_models", why="the shipped model of cats and dogs")
    from PIL import Image

    return {f"a drawn {animal}": Image.fromarray(face(animal)) for animal in ("cat", "dog")}


def check_out(out: Path | None, endings: tuple[str, ...] = (*PICTURES, *DATA), flag: str = "--out") -> Path | None:
    """Raise for a file that cannot be written: of another type, or in a folder that does not exist."""
    if out is None:
        return None
    if out.suffix not in endings:
        words = f"{out.name!r}: the ending selects the format; use {', '.join(endings)}"
        raise typer.BadParameter(words, param_hint=flag)
    if out.suffix in DRAWN:
        require("matplotlib", why=f"writing {out.name!r}")
    if trouble := trouble_writing(out):
        raise typer.BadParameter(f"{str(out)!r} cannot be written: {trouble}", param_hint=flag)
    return out


MOST = 10  # rows that are all explained without --row
FIRST = 3  # rows that are explained of a longer table


def load_table(name: str | None) -> tuple[Any, Any]:
    """Return model and Table: shipped, from a folder, or from the user's function."""
    from whyformer.inputs.table_schema import Table

    if name is None:
        from whyformer.demo import load_adult

        return load_adult()
    if ":" not in name or Path(name).is_dir():
        from whyformer.tables import load_model

        return load_model(name)
    made = made_by(name)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Table):
        raise BadInput(f"{name} must return (model, whyformer.Table).")
    return made[0], made[1]


def made_by(name: str) -> Any:
    """Return what the function makes that ``file.py:function`` or ``module:function`` names."""
    module, _, function = name.rpartition(":")
    if not module or not function:
        raise BadInput(f"{name!r} names no function: give --model file.py:function, or a folder.")
    with reading(f"{module!r} cannot be imported", "Give file.py:function, or a folder."):
        load = getattr(_module(module), function, None)
    if not callable(load):
        is_what = "not there" if load is None else f"of type {type(load).__name__}"
        raise BadInput(f"{function!r} of {module!r} is {is_what}: --model {module}:NAME names a function.")
    with reading(f"{name} failed", "It is called without arguments, and returns the model and its processor or table."):
        return load()


def _module(name: str) -> Any:
    path = Path(name)
    if path.suffix != ".py":
        return import_module(name)
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"there is no file {name!r}.")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def rows_of(path: Path | None, table: Any, size: int) -> Any:
    """Return the rows of the file, or the shipped ones."""
    from whyformer.demo.census import rows_file
    from whyformer.tables.global_explanation import CsvRows

    return CsvRows(path or rows_file(), table, size)


def chosen_rows(path: Path | None, model: str | None, numbers: list[int]) -> tuple[Any, list[Any], list[str]]:
    from whyformer.verbs import Explainer

    loaded, table = load_table(model)
    rows = rows_of(path, table, 1024)
    shown = rows.rows if rows.rows <= MOST else FIRST
    if not numbers and shown < rows.rows:
        others = "Choose others with --row N, or average all with --overall."
        typer.echo(f"Explaining the first {shown} of {rows.rows} rows. {others}", err=True)
    wanted = numbers or list(range(shown))
    beyond = [n for n in wanted if n >= rows.rows]
    if beyond:
        raise BadInput(f"--row {beyond[0]}: the file has {rows.rows} rows, numbered 0 to {rows.rows - 1}.")
    picked: dict[int, dict[str, Any]] = {}
    for start, piece in zip(range(0, rows.rows, rows.size), rows, strict=False):
        for n in wanted:
            if start <= n < start + rows.size:
                picked[n] = {name: values[n - start] for name, values in piece.items()}
    return Explainer(loaded, table), [picked[n] for n in wanted], [f"row {n}" for n in wanted]
