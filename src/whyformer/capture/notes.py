"""Notes beside tensors, for as long as these live."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class _Beside(weakref.ref[Tensor]):
    """A weak reference that knows where its note lies: one function forgets for all of them."""

    __slots__ = ("key",)
    key: int


class Notes(Generic[T]):
    """What is known about tensors, by identity: a note dies with its tensor, and no other tensor is taken for it.

    Small things that outlive large ones keep the system from getting memory back: if notes stayed, a rollout of
    BERT-base would take half as much memory again.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[_Beside, T]] = {}
        notes = weakref.ref(self)  # weak: in a cycle, notes would stay until the collector comes

        def forget(gone: _Beside) -> None:
            still = notes()
            if still is not None and gone.key in still._entries and still._entries[gone.key][0] is gone:
                del still._entries[gone.key]

        self._forget = forget

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, tensor: object) -> T | None:
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def put(self, tensor: Tensor, note: T) -> None:
        beside = _Beside(tensor, self._forget)
        beside.key = id(tensor)
        self._entries[beside.key] = (beside, note)

    def copy(self, tensor: object, to: Tensor) -> None:
        """What is known about one tensor is known about another, too."""
        note = self.get(tensor)
        if note is not None:
            self.put(to, note)

    def drop(self, tensor: object) -> None:
        self._entries.pop(id(tensor), None)
