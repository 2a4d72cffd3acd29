"""Finished pieces of a check-up on disk, so that one that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whyformer.codec import is_whole, read_piece, write_piece
from whyformer.loan.fingerprint import Part, digest, weights_digest
from whyformer.version import __version__


class Cache:
    """One file per piece: a whole check, one input of it, one set of random weights.

    about: all that the pieces depend on, besides their own keys.
    """

    def __init__(self, folder: Path | None, about: Iterable[Part]) -> None:
        self.folder = folder
        self._about = "" if folder is None else digest(__version__, *about)

    def __call__(self, kind: Any, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is on disk under ``key``, as ``kind`` (a dataclass, a tuple of numbers, …); else made, and written."""
        if self.folder is None:
            return make()
        path = self.folder / f"{digest(self._about, *map(_told, key))}.check.json"
        if is_whole(path):
            return read_piece(kind, path)
        made = make()
        write_piece(made, path)
        return made


def _told(value: Any) -> Part:
    """An option in a form that can be told from others: models (and pipelines) by their weights."""
    inner = value if isinstance(value, nn.Module) else getattr(value, "model", None)
    if isinstance(inner, nn.Module):
        return weights_digest(inner)
    if isinstance(value, Mapping):
        return digest(*(part for k in sorted(value) for part in (str(k), _told(value[k]))))
    if isinstance(value, (list, tuple)):
        return digest(*map(_told, value))
    return value if isinstance(value, (str, Tensor)) else repr(value)
