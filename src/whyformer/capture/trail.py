"""Keep notes beside tensors: where their axes came from.

Instead of guessing a layout from sizes, the interceptor carries a note beside every tensor: which *atoms* make up each
axis, which tensor it was projected from, and whether it is an attention map. A reshape from (2, 4, 9, 9) to (8, 9, 9)
leaves the first axis with the atoms (2, 4): batch first, then heads.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from whyformer.capture.functions import LAYOUTS, PERMUTATIONS, PROJECTIONS, UNCHANGED

# Notes beside tensors, for as long as these live.

T = TypeVar("T")


class _Beside(weakref.ref[Tensor]):
    """A weak reference that knows where its note lies: one function forgets for all of them."""

    __slots__ = ("key",)
    key: int


class Notes(Generic[T]):
    """Notes about tensors, by identity: a note is deleted with its tensor."""

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

    def knows(self, *tensors: Tensor) -> bool:
        return any(self.get(tensor) is not None for tensor in tensors)

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


# An attention map stays one through these: dropout and casts change nothing, masks zero what was hidden.
KEEPS_ATTENTION = UNCHANGED | frozenset(
    "expand expand_as masked_fill masked_fill_ mul mul_ nan_to_num nan_to_num_ __getitem__ narrow where".split()
)


@dataclass(eq=False, slots=True)
class Atom:
    """One indivisible axis; compared by identity."""

    size: int


Axis = tuple[Atom, ...]
Axes = tuple[Axis, ...]


def fresh(shape: Sequence[int]) -> Axes:
    """Axes of which nothing is known but their sizes."""
    return tuple(zip(map(Atom, shape)))  # each axis is one atom


def reshaped(axes: Axes, shape: Sequence[int]) -> Axes:
    """Axes after a reshape: atoms are merged, or split where they must be."""
    atoms = [atom for axis in axes for atom in axis if atom.size != 1]
    result: list[Axis] = []
    for size in shape:
        taken: list[Atom] = []
        rest = size
        while rest > 1:
            if not atoms or not atoms[0].size:  # an empty tensor (experts that no token chose) has no boundaries
                return fresh(shape)
            atom = atoms.pop(0)
            if rest % atom.size == 0:
                taken.append(atom)
                rest //= atom.size
            elif atom.size % rest == 0:
                taken.append(Atom(rest))
                atoms.insert(0, Atom(atom.size // rest))
                rest = 1
            else:  # sizes that share no boundary: nothing is known any more
                return fresh(shape)
        result.append(tuple(taken) or (Atom(1),))
    return tuple(result)


class ProjectionSource(NamedTuple):
    """The place in memory of a tensor that a projection read."""

    storage: StorageWeakRef  # keeps no data, but no other storage compares equal while it lives
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> ProjectionSource:
        storage = StorageWeakRef(tensor.untyped_storage())
        return cls(storage, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


Sources = tuple[ProjectionSource | None, ProjectionSource | None]  # of queries and keys


class Note(NamedTuple):
    """What is known about one tensor."""

    axes: Axes
    source: ProjectionSource | None = None
    query_key: Sources | None = None
    softmax: int | None = None  # index into the interceptor's list of softmax calls
    key_axis: Axis | None = None  # for an attention map: the axis that was normalised


class Trail(Notes[Note]):
    """What is known about the tensors of a running model."""

    _read: tuple[weakref.ref[Tensor], ProjectionSource] | None = None  # by the last projection

    def at(self, tensor: Tensor) -> Note:
        return self.get(tensor) or Note(fresh(tensor.shape))

    def follow(self, name: str, args: tuple[object, ...], out: Tensor) -> None:
        """Carry the note of the first operand over to the result of ``name``."""
        first = args[0] if args else None
        if isinstance(first, (list, tuple)):  # cat, stack: the first member that something is known about
            tensors = [t for t in first if isinstance(t, Tensor)]
            first = next((t for t in tensors if self.get(t)), tensors[0] if tensors else None)
        if not isinstance(first, Tensor) or out.is_nested:  # whose axes have no sizes
            return
        if name in PROJECTIONS:
            operand = args[1] if name == "addmm" else first
            assert isinstance(operand, Tensor)
            # Queries, keys and values are projected one after the other from the same tensor: it is looked at once.
            if self._read is None or self._read[0]() is not operand:
                self._read = weakref.ref(operand), ProjectionSource.of(operand)
            lead = self.at(operand).axes[: out.ndim - 1] if out.ndim == operand.ndim else fresh(out.shape[:-1])
            self.put(out, Note((*lead, (Atom(out.shape[-1]),)), source=self._read[1]))
        elif name == "__getitem__" and out.numel() == first.numel() and out.data_ptr() == first.data_ptr():
            self.put(out, Note(reshaped(self.at(first).axes, out.shape), *self.at(first)[1:]))  # x[:, None]
        elif (layout := name.removesuffix("_")) in LAYOUTS:
            if layout != name and self.get(first) is None:  # in place: the axes that it had are gone
                return
            note = self.at(first)
            permuted = layout in PERMUTATIONS
            moved = _permuted(layout, args, note.axes, out) if permuted else reshaped(note.axes, out.shape)
            self.put(out, Note(moved, *note[1:]))
        elif (known := self.get(first)) is not None:
            same = known.softmax is None and first.shape == out.shape
            self.put(out, known if same else _carried(name, known, first, out))


def _carried(name: str, note: Note, first: Tensor, out: Tensor) -> Note:
    """What is known of the result of a function that keeps axes where they are, and perhaps shortens them."""
    was, now = first.shape, out.shape
    if was == now:
        axes = note.axes
    elif len(was) == len(now):
        axes = tuple(a if x == y else (Atom(y),) for a, x, y in zip(note.axes, was, now, strict=True))
    else:
        axes = fresh(now)
    if note.softmax is None:
        return Note(axes, *note[1:])
    cut = _without_sink(note, first, out)
    if cut is not None:
        return cut
    if name in KEEPS_ATTENTION and note.key_axis in axes:
        return Note(axes, *note[1:])
    return Note(axes, note.source, note.query_key)


def _without_sink(note: Note, weights: Tensor, out: Tensor) -> Note | None:
    """A map without its last key, an attention sink without a value (GPT-OSS); None for longer cuts (Longformer)."""
    if note.key_axis is None or note.key_axis not in note.axes or out.ndim != weights.ndim:
        return None
    key = note.axes.index(note.key_axis)
    shorter = [x - y for x, y in zip(weights.shape, out.shape, strict=True)] == [int(i == key) for i in range(out.ndim)]
    same_memory = out.stride() == weights.stride() and out.storage_offset() == weights.storage_offset()
    if not (shorter and same_memory):
        return None
    keys: Axis = (Atom(out.shape[key]),)
    axes = (*note.axes[:key], keys, *note.axes[key + 1 :])
    return Note(axes, note.source, note.query_key, note.softmax, keys)


def _permuted(name: str, args: tuple[Any, ...], axes: Axes, out: Tensor) -> Axes:
    moved, rest, count = list(axes), args[1:], len(axes)
    if name in {"mT", "T", "t"}:
        moved[-2:] = moved[:-3:-1]
    elif name == "permute":
        dims = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest
        moved = [axes[d % count] for d in dims]
    elif name in {"movedim", "moveaxis"} or len(rest) != 2:  # or keywords: rare enough to forget what was known
        return fresh(out.shape)
    else:
        a, b = rest[0] % count, rest[1] % count
        moved[a], moved[b] = moved[b], moved[a]
    return tuple(moved)
