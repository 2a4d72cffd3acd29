"""What the model said of the variants of an input, on disk: appended as it comes, so that a stopped job goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput

Array = np.ndarray[Any, Any]
Part = bytes | str | int | float | Tensor | Array | None  # what a name can be made of

FORMAT = b"whyformer variants 1"
COLUMNS = 3


class Store:
    """One file per input, of records of one size: which parts were present (bits), and a few numbers."""

    def __init__(self, path: Path, parts: int, columns: int = COLUMNS) -> None:
        self.path, self.parts = path, parts
        self.record = np.dtype([("present", "u1", ((parts + 7) // 8,)), ("said", "<f8", (columns,))])

    def load(self) -> dict[bytes, Array]:
        """What is there; half a record at the end (a job killed while writing) is cut off."""
        if not self.path.is_file():
            return {}
        data = self.path.read_bytes()
        whole = len(data) // self.record.itemsize * self.record.itemsize
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        records = np.frombuffer(data[:whole], self.record)
        present = np.unpackbits(records["present"], axis=1, count=self.parts).astype(bool)
        return {row.tobytes(): np.array(said) for row, said in zip(present, records["said"], strict=True)}

    def append(self, present_MP: Array, said_MX: Array) -> None:
        records = np.zeros(len(present_MP), self.record)
        records["present"] = np.packbits(present_MP, axis=1)
        records["said"] = said_MX
        with self.path.open("ab") as file:
            file.write(records.tobytes())


def folder_of(cache: str | Path | None) -> Path | None:
    """The folder of a cache, made if it is not there."""
    if cache is None:
        return None
    folder = Path(cache)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cache={str(cache)!r} is a file: give the folder that results are kept in.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest(*parts: Part) -> str:
    """A name for these contents."""
    found = hashlib.blake2b(FORMAT, digest_size=16)
    for part in parts:
        data = _bytes(part)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def _bytes(part: Part) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, Tensor):
        flat = part.detach().cpu().contiguous().flatten()
        # Viewed as bytes: numpy has no bfloat16.
        return f"{part.dtype}{tuple(part.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(part, np.ndarray):
        return f"{part.dtype}{part.shape}".encode() + part.tobytes()
    return repr(part).encode()


def weights_digest(model: nn.Module) -> str:
    """A name for the model as it is now: every weight and buffer counts."""
    return digest(*_named(model))


def _named(model: nn.Module) -> Iterable[str | Tensor]:
    yield type(model).__name__
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            yield name
            yield tensor
