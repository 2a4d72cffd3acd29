"""Check files and folders that a user names, and read archives safely."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from whyformer.errors import BadInput, UnknownName
from whyformer.extras import require
from whyformer.shapes import Array

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")

# Files of words and arrays from anywhere: what they claim to hold is looked at before it is read.

DEEPEST = 100  # levels of brackets; results have about ten
TOKENS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
# What a file may unfold to however small it is, and how often its own size. More is a trap: a megabyte can unfold to
# a thousand of them, and words to objects that take twenty times as much again.
ARRAY_BYTES, WORD_BYTES, TIMES = 1 << 28, 1 << 25, 100
NUMBERS, WORDS = "biuf", "U"  # kinds of numpy's types; no objects, which would run code when they are read
ENDING = ".npy"
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LONGEST_HEADER = 1 << 16  # bytes, of one array
LONGEST_FIELD = 2**31 - 1  # of CSV; its own limit is 128 kB


class Damaged(ValueError):
    """The contents of a file are invalid; the caller adds the file's name and what to do."""


def parsed(text: str) -> Any:
    """JSON, if it is not nested so deeply that reading it would exhaust the stack."""
    depth, inside = 0, False
    for token in TOKENS.finditer(text):
        sign = token[0]
        if sign == '"':
            inside = not inside
        elif not inside and sign in "[{":
            depth += 1
            if depth > DEEPEST:
                raise Damaged(f"its brackets are nested more than {DEEPEST} deep")
        elif not inside and sign in "]}":
            depth -= 1
    try:
        return json.loads(text)
    except ValueError as error:
        raise Damaged(f"it is no JSON, or was cut off: {error}") from error


def read_json(path: Path) -> Any:
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise Damaged("it is no text in UTF-8") from error


def csv_lines(path: Path, separator: str = ",") -> Iterator[list[str]]:
    """Return the cells of each line, the header first; blank lines are skipped."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from (line for line in csv.reader(stream, delimiter=separator) if line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{str(path)!r} cannot be read as CSV ({error}): give a UTF-8 text with a header and commas."
        ) from error


def csv_header(path: Path, separator: str = ",") -> tuple[list[str], int]:
    """Return the names of the columns, and how many rows follow."""
    header = [name.strip() for name in next(csv_lines(path, separator), [])]
    rows = sum(1 for _ in csv_lines(path, separator)) - 1
    if rows < 1:
        raise BadInput(f"{str(path)!r} holds no rows under a header.")
    return header, rows


def read_arrays(path: Path) -> dict[str, Array]:
    """What ``numpy.savez`` wrote: numbers, and single strings."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            require_room(members_bytes(archive, members), path.stat().st_size)
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(ENDING)] = npy.read_array(stream, allow_pickle=False)
            return arrays
    except Damaged:
        raise
    except Exception as error:  # zip, deflate, numpy's headers: each has errors of its own
        raise Damaged(f"it is no .npz file, or was cut off: {error}") from error


def members_bytes(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> tuple[int, int]:
    """Bytes of all numbers and of all words, by the headers alone; headers that contradict themselves are refused."""
    numbers = words = 0
    names = [member.filename for member in members]
    for member in members:
        name = member.filename
        if not name.endswith(ENDING) or names.count(name) > 1:
            raise Damaged(f"{name!r} in it is no array, or is there twice")
        with archive.open(member) as stream:
            version = npy.read_magic(stream)
            if version not in HEADERS:
                raise Damaged(f"it is of version {version} of numpy's format, which is not read here")
            shape, _, kind = HEADERS[version](stream, max_header_size=LONGEST_HEADER)
            if kind.kind not in NUMBERS and (kind.kind != WORDS or shape):
                raise Damaged(f"{name!r} in it holds {kind}, not numbers")
            size = math.prod(shape) * kind.itemsize
            if min(shape, default=0) < 0 or stream.tell() + size != member.file_size:
                raise Damaged(f"the size of {name!r} in it is not what its shape {shape} says")
        if kind.kind == WORDS:
            words += size
        else:
            numbers += size
    return numbers, words


def require_room(unfolded: tuple[int, int], size: int) -> None:
    """Raise if a file would decompress to far more than its size."""
    for wanted, free in zip(unfolded, (ARRAY_BYTES, WORD_BYTES), strict=True):
        if wanted > max(free, TIMES * size):
            raise Damaged(f"its {size / 1e6:.1f} MB would take {wanted / 1e6:.0f} MB of memory")


# While a model is loaded: no progress bars and notices of transformers, in terminals and below cells of notebooks.


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers (warnings, progress bars), and restore its settings."""
    require("transformers", why="loading models")
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def path_of(value: Any, name: str = "path") -> Path:
    """Return a Path; raise for other types, empty names and characters that no system accepts."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if isinstance(text, bytes):
        raise BadInput(f"{name}={value!r} is bytes: give a string, os.fsdecode({value!r}), or a pathlib.Path.")
    if not isinstance(text, str):
        raise BadInput(
            f"{name}={value!r} is no path but of type {type(value).__name__}: give a string or a pathlib.Path."
        )
    if not text.strip():
        raise BadInput(f"{name}={text!r} is empty: give the name of a file or folder.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise BadInput(f"{name}={text!r} holds a character that no file name can have: choose another.") from None
    if "\0" in text:
        raise BadInput(f"{name}={text!r} holds a zero byte, which no file name can have: choose another.")
    return Path(text)


def is_file(path: Path) -> bool:
    """``Path.is_file``, False where the system raises (a name too long, a folder without permission)."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """``Path.is_dir`` in the same way."""
    try:
        return path.is_dir()
    except OSError:
        return False


def readable_file(value: Any, what: str = "file", name: str = "path") -> Path:
    """A file that is there and may be read."""
    path = path_of(value, name)
    if is_folder(path):
        raise BadInput(f"{str(path)!r} is a folder: name a file in it.")
    if not is_file(path):
        raise BadInput(f"no {what} at {str(path)!r}: there is no file of that name.")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{str(path)!r} may not be read by this user: change its permissions, or give a copy.")
    return path


def readable_folder(value: Any, what: str = "folder", name: str = "folder") -> Path:
    """A folder that is there."""
    path = path_of(value, name)
    if is_file(path):
        raise BadInput(f"{str(path)!r} is a file: give the folder that it is in.")
    if not is_folder(path):
        raise BadInput(f"there is no {what} {str(path)!r}.")
    return path


def writable_file(value: Any, endings: tuple[str, ...] = (), name: str = "path") -> Path:
    """A file that can be written: of a known type, in a folder that is there, and no folder itself."""
    path = path_of(value, name)
    if endings and path.suffix not in endings:
        raise UnknownName("file type", path.suffix or str(path), endings)
    if trouble := trouble_writing(path):
        raise BadInput(f"{str(path)!r} cannot be written: {trouble}.")
    return path


def trouble_writing(path: Path) -> str:
    """Why a file cannot be written, and what to do; "" where nothing is in the way."""
    if is_folder(path):
        return "it is a folder. Name a file in it"
    if not is_folder(path.parent):
        return f"there is no folder {str(path.parent)!r}. Make it first"
    if is_file(path) and not os.access(path, os.W_OK):
        return "the file is there and may not be changed. Choose another name"
    if not is_file(path) and not os.access(path.parent, os.W_OK):
        return f"nothing may be written into {str(path.parent)!r}. Choose another folder"
    return ""


def made_folder(value: Any, name: str = "folder") -> Path:
    """A folder to write into, made if it is not there."""
    folder = path_of(value, name)
    if is_file(folder):
        raise BadInput(f"{name}={str(folder)!r} is a file: give the name of a folder.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BadInput(f"nothing may be written into {name}={str(folder)!r}: choose another folder.")
    return folder


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system while a file is written (a full disk, a name too long) into BadInput."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{str(path)!r} cannot be written ({reason}): choose another name or folder.") from error
