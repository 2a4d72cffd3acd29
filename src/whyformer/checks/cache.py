"""Finished pieces of a check-up on disk, so that one that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from whyformer.codec import is_whole, read_piece, write_piece
from whyformer.engines.perturbation.game import cached_file


class Cache:
    """One file per piece: a whole check, one input of it, one set of random weights.

    about: a name for all that the pieces depend on, besides their own keys.
    """

    def __init__(self, folder: Path | None, about: str) -> None:
        self.folder, self._about = folder, about

    def __call__(self, kind: Any, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What is on disk under ``key``, as ``kind`` (a dataclass, a tuple of numbers, …); else made, and written."""
        if self.folder is None:
            return make()
        path = cached_file(self.folder, "check.json", about=self._about, key=key)
        if path is None:
            return make()
        if is_whole(path):
            return read_piece(kind, path)
        made = make()
        write_piece(made, path)
        return made
