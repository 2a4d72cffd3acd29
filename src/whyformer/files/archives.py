"""Files of words and arrays from anywhere: what they claim to hold is looked at before it is read."""

from __future__ import annotations

import json
import math
import re
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

Array = np.ndarray[Any, Any]
DEEPEST = 100  # levels of brackets; results have about ten
TOKENS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
# What a file may unfold to however small it is, and how often its own size. More is a trap: a megabyte can unfold to
# a thousand of them, and words to objects that take twenty times as much again.
ARRAY_BYTES, WORD_BYTES, TIMES = 1 << 28, 1 << 25, 100
NUMBERS, WORDS = "biuf", "U"  # kinds of numpy's types; no objects, which would run code when they are read
ENDING = ".npy"
LONGEST_HEADER = 1 << 16  # bytes, of one array


class Damaged(ValueError):
    """What is wrong with the contents of a file; whoever opened it says which one, and what to do."""


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
            shape, kind = _array_header(stream)
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
    """Refuse a file that would unfold to far more than it is."""
    for wanted, free in zip(unfolded, (ARRAY_BYTES, WORD_BYTES), strict=True):
        if wanted > max(free, TIMES * size):
            raise Damaged(f"its {size / 1e6:.1f} MB would take {wanted / 1e6:.0f} MB of memory")


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise Damaged(f"it is of version {version} of numpy's format, which is not read here")
    shape, _, kind = read(stream, max_header_size=LONGEST_HEADER)
    return shape, kind
