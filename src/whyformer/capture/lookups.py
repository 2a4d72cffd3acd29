"""Word embeddings and columns as a model looks them up: replaced by other vectors, or by leaves of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import Args, Function, Kwargs
from whyformer.loan.spread import local_of, placed_like, whole_of

LOOKUPS = frozenset(("embedding", "embedding_bag", "__getitem__"))


class SwapEmbedding(TorchFunctionMode):
    """Replace the embedding of the input ids by ``replace(embedding)``, at every lookup of them in the same table."""

    def __init__(
        self,
        ids: Tensor,
        table: nn.Module | None,
        replace: Callable[[Tensor], Tensor],
        covered: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.ids, self.table, self.replace = ids, table, replace
        self.covered = covered  # ids that the model may exchange: it puts the vectors of an image there
        self.weight_used: Tensor | None = None  # the table that the ids were looked up in, once they were
        self.lookups = 0
        self.missed = ""  # a function that read the table at these ids in a way that cannot be replaced
        self.other_tables = 0  # in which the same ids were looked up, too
        self.vectors: Tensor | None = None  # what stands in place of the embedding, inputs first

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **kwargs) if kwargs else func(*args)
        if func.__name__ not in LOOKUPS:
            return out
        lookup = lookup_of(func, args, kwargs)
        other = None if lookup is None else self.swapped(out, lookup)
        return out if other is None else other

    def swapped(self, out: Tensor, lookup: Lookup, again: bool = True) -> Tensor | None:
        """Return what replaces ``out``, or None for another lookup; ``again``: also if this one was replaced before."""
        if self.weight_used is not None and not again:
            return None
        indices, length, like = local_of(lookup.ids), self.ids.shape[1], out
        if not self._is_table(lookup):
            # The very ids, not others that happen to be equal (positions).
            same = indices.shape == self.ids.shape and indices.data_ptr() == self.ids.data_ptr()
            self.other_tables += lookup.name == "embedding" and self.weight_used is not None and same
            return None
        out, replacement = whole_of(out), None
        if lookup.name == "embedding_bag":
            replacement = self._pooled(out, lookup)
        elif self._is_input(indices, self.ids):
            replacement = self._other(out)
        elif self._is_input(indices, self.ids.t()):  # models that put the sequence first
            replacement = self._other(out.transpose(0, 1)).transpose(0, 1)
        elif indices.ndim == 2 and indices.shape[1] > length and self._is_input(indices[:, :length], self.ids):
            # models that pad their input themselves (Longformer)
            replacement = torch.cat([self._other(out[:, :length]), out[:, length:]], 1)
        if replacement is not None:
            self.weight_used = lookup.weight
            self.lookups += 1
        elif not self.missed and self._is_made_of_input(indices):
            self.missed = "looking up a part of the input ids, or other ids made of them"
        return None if replacement is None else placed_like(replacement, like)

    def _other(self, embedding: Tensor) -> Tensor:
        if self.vectors is None:
            self.vectors = self.replace(embedding)
        # A leaf must not be written into, and some models do that (CTRL scales what it looked up in place).
        other = self.vectors
        return other.clone() if self.lookups or (other.is_leaf and other.requires_grad) else other

    def _pooled(self, out: Tensor, lookup: Lookup) -> Tensor | None:
        """nn.EmbeddingBag on the table of an earlier lookup; what it does besides adding up is not known here."""
        if not self._is_input(lookup.ids, self.ids):
            return None
        if self.vectors is None or not lookup.plain_bag:
            self.missed = "embedding_bag"
            return None
        pooled: Tensor = getattr(torch, lookup.mode)(self.vectors, 1)
        return pooled.to(out.dtype)

    def _is_table(self, lookup: Lookup) -> bool:
        # Read at each lookup: an offloaded weight is another tensor in each pass.
        weight = getattr(self.table, "weight", None)
        weight = self.weight_used if weight is None else weight
        return lookup.name == "embedding" if weight is None else lookup.weight is weight

    def _is_input(self, indices: Tensor, ids: Tensor) -> bool:
        if indices.shape != ids.shape:
            return False
        if self.covered is not None and self.covered.shape == ids.shape:
            return bool(((indices == ids) | self.covered).all())
        same = indices is ids or (indices.data_ptr(), indices.stride()) == (ids.data_ptr(), ids.stride())
        return same or torch.equal(indices, ids)  # which waits for a GPU

    def _is_made_of_input(self, indices: Tensor) -> bool:
        """Whether other ids are a view of the input's, or several of its values: a single one may be a constant."""
        if indices.untyped_storage().data_ptr() == self.ids.untyped_storage().data_ptr():
            return True
        values = indices.unique()
        return len(values) > 1 and bool(torch.isin(values, self.ids).all())


class SwapEmbeddings(TorchFunctionMode):
    """Several streams of ids at once. A lookup serves the first that waits for it: two streams may hold equal ids."""

    def __init__(self, swaps: Sequence[SwapEmbedding]) -> None:
        super().__init__()
        self.swaps = swaps

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        lookup = lookup_of(func, args, kwargs)
        if lookup is None:
            return out
        tried = (swap.swapped(out, lookup, again) for again in (False, True) for swap in self.swaps)
        return next((other for other in tried if other is not None), out)


@dataclass(frozen=True)
class Lookup:
    """Ids that are looked up in a table."""

    name: str
    ids: Tensor
    weight: Tensor
    mode: str = ""  # of a bag
    plain_bag: bool = False  # one bag per row, nothing weighed or left out


def lookup_of(func: Any, args: Args, kwargs: Kwargs | None) -> Lookup | None:
    """The lookup that a function makes; None where it makes none."""
    name = func.__name__
    if name == "__getitem__" and isinstance(args[1], Tensor) and not args[1].is_floating_point():
        return Lookup(name, args[1], args[0])  # weight[ids]
    if name not in {"embedding", "embedding_bag"}:
        return None
    signature = ("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse")
    call = dict(zip((*signature, "per_sample_weights"), args, strict=False)) | (kwargs or {})
    if name == "embedding":
        return Lookup(name, call["input"], call["weight"])
    mode = call.get("mode", "mean")
    others = (call.get(option) for option in ("offsets", "per_sample_weights", "padding_idx"))
    plain = mode in {"sum", "mean"} and all(option is None for option in others)
    return Lookup(name, call["input"], call["weight"], mode, plain)


ABSENT = -(2**30)  # in place of an id: that of a masked unit, of which no id is known


class MeanVectors(TorchFunctionMode):
    """Look masked ids up as the mean vector of their table: each id of a vocabulary, each category alike."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0  # masked ids that were looked up

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs, lookup, one_hot = kwargs or {}, lookup_of(func, args, kwargs), func.__name__ == "one_hot"
        ids = args[0] if one_hot else None if lookup is None or lookup.name == "embedding_bag" else lookup.ids
        if ids is None or ids.dtype not in {torch.int32, torch.int64}:
            return func(*args, **kwargs)
        absent = ids < ABSENT // 2  # a column may have an offset into a table of all columns
        if not absent.any():
            return func(*args, **kwargs)
        first = ids.clamp(min=0)
        kwargs = {k: first if value is ids else value for k, value in kwargs.items()}
        out = func(*(first if value is ids else value for value in args), **kwargs)
        if not one_hot and not out.is_floating_point():
            return out
        self.seen += int(absent.sum())
        mean = torch.full(out.shape[-1:], 1 / out.shape[-1]) if lookup is None else lookup.weight.mean(0)
        return torch.where(absent.view(*absent.shape, *[1] * (out.ndim - absent.ndim)), mean.to(out.device), out)


class ShiftEmbedding(TorchFunctionMode):
    """Add ``delta(ids)`` to the word embeddings at every lookup, in all passes of an explanation."""

    def __init__(self, table: nn.Embedding, delta: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.delta = table, delta

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        lookup = lookup_of(func, args, kwargs) if func.__name__ == "embedding" else None
        return out if lookup is None or lookup.weight is not self.table.weight else out + self.delta(lookup.ids).to(out)


class LookupLeaves(TorchFunctionMode):
    """Replace every looked-up embedding (categorical columns) by a leaf; without ids, 0, 1, 2, … are positions."""

    def __init__(self, leaf: Callable[[Tensor], Tensor], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.leaf = leaf
        self.ids = any(not t.is_floating_point() and "mask" not in name for name, t in tensors.items())

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding" or out.requires_grad:
            return out
        indices = args[0] if args else (kwargs or {})["input"]
        if not self.ids:
            running = torch.arange(indices.shape[-1], device=indices.device)
            if torch.equal(indices, running.expand_as(indices)):
                return out
        return self.leaf(out).clone()  # a leaf itself must not be written into, and some models do that
