"""Where queries and keys come from: the input whose positions they hold, and the attention they have been through.

Beside every tensor goes a mark: the stream of positions it belongs to (that of the model argument it was made from) and
the attention calls in its past. The result of an attention belongs to the stream of its queries; keys only leave their
attention calls behind. So one forward pass tells, for each attention call, which stream asks, which is asked, and which
earlier calls either of them has seen: the whole schedule of a model with several streams, without knowing its class.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from whyformer.capture.probe import Survey
from whyformer.capture.site import OpenSite

OWN = "queries"  # positions that the model brings itself: object queries, pooling probes
JOIN = "+"  # "text+image": two streams laid end to end, one attention over both
Segments = tuple[tuple[str | None, int], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """What one tensor is made of."""

    stream: str | None = None
    calls: frozenset[int] = frozenset()  # attention calls in its past
    pair: tuple[Mark, Mark] | None = None  # for scores: what the queries and keys were
    segments: Segments = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One attention call: where its queries and keys came from."""

    query: Mark
    key: Mark


class Lineage(Survey):
    """A survey that also marks every tensor. ``inputs``: the streams of the model's arguments."""

    def __init__(self, batch: int, names: dict[int, str], inputs: list[tuple[Tensor, str]]) -> None:
        super().__init__(batch, names)
        self.calls: list[Call] = []
        self.reached_back = -1  # the latest attention after which a state from before the previous block was read
        self._first_BHKD: Tensor | None = None  # what the first attention reads
        self._marks: dict[int, tuple[weakref.ref[Tensor], Mark]] = {}
        self._fused: tuple[Mark, Mark] | None = None
        for tensor, stream in inputs:
            self._put(tensor, Mark(stream))

    def mark(self, tensor: Any) -> Mark | None:
        entry = self._marks.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def first_values(self) -> Tensor | None:
        """(1, H, K, D) what the first attention read, once: nothing is held any longer."""
        first_BHKD, self._first_BHKD = self._first_BHKD, None
        return first_BHKD

    def reaching(self, logits: Tensor) -> frozenset[int]:
        """The attention calls that reach the output: all, where the flow of data was lost."""
        mark = self.mark(logits)
        return mark.calls if mark is not None and mark.calls else frozenset(range(len(self.calls)))

    def _put(self, tensor: Tensor, mark: Mark) -> None:
        self._marks[id(tensor)] = (weakref.ref(tensor), mark)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        whole = name == "scaled_dot_product_attention"
        if whole:
            named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
            self._fused = (self.mark(named["query"]) or Mark(), self.mark(named["key"]) or Mark())
        before = len(self.calls)
        out = super().__torch_function__(func, types, args, kwargs)
        self._fused = None
        if name != "multi_head_attention_forward":  # its body has marked its own results
            self._follow(name, _flat((*args, *(kwargs or {}).values())), out, attended=len(self.calls) > before)
        return out

    def at_site(self, site: OpenSite) -> None:
        super().at_site(site)
        if not self.calls:
            self._first_BHKD = site.value_BHKD
        scores = self.mark(site.attention)
        query, key = self._fused or (scores.pair if scores is not None and scores.pair else (Mark(), Mark()))
        if query.stream is None and (key.stream is not None or any(c.key.stream for c in self.calls)):
            query = replace(query, stream=OWN)  # asked by what the model brings itself
            key = key if key.stream is not None else replace(key, stream=OWN)
        self.calls.append(Call(query, key))

    def _follow(self, name: str, operands: list[Tensor], out: Any, attended: bool) -> None:
        marks = [m for m in map(self.mark, operands) if m is not None]
        if not marks and not attended:
            return
        calls = frozenset[int]().union(*(m.calls for m in marks))
        latest = len(self.calls) - 1
        if not attended and any(m.calls and max(m.calls) < latest - 1 for m in marks):
            self.reached_back = latest  # the residual stream of a block is no older than the attention before it
        if attended:  # the result belongs to who asked
            asked = self.calls[-1].query
            made = Mark(asked.stream, calls | {len(self.calls) - 1}, segments=asked.segments)
        else:
            made = self._merged(name, operands, marks, calls)
        for result in _flat([out]):
            self._put(result, made)
        if out is None and name == "__setitem__":
            self._put(operands[0], made)

    def _merged(self, name: str, operands: list[Tensor], marks: list[Mark], calls: frozenset[int]) -> Mark:
        first = next((m for m in marks if m.stream is not None), marks[0])
        pair = next((m.pair for m in marks if m.pair is not None), None)
        if name in PRODUCTS and len(operands) > 1 and all(t.ndim > 2 for t in operands[-2:]):
            left, right = (self.mark(t) or Mark() for t in operands[-2:])
            pair = (replace(left, pair=None), replace(right, pair=None))
        segments = first.segments
        stream = first.stream
        if name in {"cat", "concat", "concatenate"}:
            joined = self._joined(operands)
            if joined:
                stream, segments = JOIN.join(dict.fromkeys(s for s, _ in joined if s)), joined
        return Mark(stream, calls, pair, segments)

    def _joined(self, operands: list[Tensor]) -> Segments:
        """Streams laid end to end along the second of three axes; a token of the model's own joins its neighbour."""
        if any(t.ndim != 3 for t in operands) or len({t.shape[2] for t in operands}) != 1:
            return ()
        parts = [(m.stream if (m := self.mark(t)) is not None else None, t.shape[1]) for t in operands]
        return tuple(parts) if len({s for s, _ in parts if s is not None}) > 1 else ()


PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})


def _flat(values: Any) -> list[Tensor]:
    flat: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat.extend(v for v in value if isinstance(v, Tensor))
    return flat
