"""The plan of a job, from the input alone: rows with ids, parts of rows, and batches of like length in a part.

Nothing here knows the machine or the engine. A row's id is a hash of its content and place, a part is a stretch of
rows, and what is run together follows from the part: so a part can be run again anywhere, with the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from whyformer.errors import BadInput
from whyformer.jobs.source import Columns, Rows, Unreadable


@dataclass(frozen=True)
class Row:
    """One input: where it stands, what it is called, and what is explained of it."""

    id: str
    place: int
    name: str
    content: Any
    target: Any = None  # of this row, where each has one of its own


@dataclass(frozen=True)
class Part:
    """Rows that are run, written and committed together."""

    number: int
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return f"part-{self.number:06d}"

    @property
    def digest(self) -> str:
        """A name for its rows."""
        return hashlib.blake2b("".join(row.id for row in self.rows).encode(), digest_size=16).hexdigest()


def parts_of(rows: Rows, columns: Columns, size: int) -> Iterator[Part]:
    """The input, ``size`` rows at a time; only these are in memory."""
    numbered = enumerate(rows.read())
    for number in count():
        stretch = [
            _row(
                place,
                columns.name(raw),
                raw if isinstance(raw, Unreadable) else columns.content(raw),
                columns.target(raw),
            )
            for place, raw in islice(numbered, size)
        ]
        if not stretch:
            return
        yield Part(number, tuple(stretch))


def _row(place: int, name: str, content: Any, target: Any) -> Row:
    digest = hashlib.blake2b(f"{place}\n".encode(), digest_size=16)
    for part in _bytes(content if target is None else (content, target)):
        digest.update(part)
    return Row(digest.hexdigest(), place, name, content, target)


def _bytes(content: Any) -> Iterator[bytes]:
    """Bytes that tell a content from others, the same in every process. A file is what it holds, not where it is."""
    if isinstance(content, str):
        yield b"text" + content.encode("utf-8", "surrogatepass")
    elif content is None or isinstance(content, (bool, int, float, np.generic)):
        yield repr(content.item() if isinstance(content, np.generic) else content).encode()
    elif isinstance(content, bytes):
        yield content
    elif isinstance(content, Path):
        try:
            yield content.read_bytes()
        except OSError as error:
            yield f"{content.name}: {error.strerror}".encode()
    elif isinstance(content, Unreadable):
        yield f"{content.reason}\n{content.content}".encode("utf-8", "surrogatepass")
    elif isinstance(content, Mapping):
        for key in content:
            yield f"\0{key}\0".encode()
            yield from _bytes(content[key])
    elif isinstance(content, (list, tuple)):
        yield f"\0{len(content)}\0".encode()
        for part in content:
            yield b"\0"
            yield from _bytes(part)
    elif isinstance(content, (np.ndarray, Tensor)):
        array = content.detach().cpu().numpy() if isinstance(content, Tensor) else content
        yield f"{array.dtype}{array.shape}".encode()
        yield array.tobytes()
    elif hasattr(content, "tobytes") and hasattr(content, "mode"):  # a picture of Pillow's
        yield f"{content.mode}{content.size}".encode()
        yield content.tobytes()
    else:
        raise BadInput(
            f"a row is a {type(content).__name__}: give texts, pictures or their paths, dicts of columns, or arrays."
        )


def batches_of(lengths: Sequence[int], tokens: int, most: int) -> list[list[int]]:
    """Rows of like length together: at most ``most`` of them, and with their padding at most ``tokens`` positions."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        last = batches[-1] if batches else []
        if last and len(last) < most and (len(last) + 1) * lengths[index] <= tokens:
            last.append(index)
        else:
            batches.append([index])
    return batches
