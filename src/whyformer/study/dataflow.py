"""Where tensors come from and what they reach: the attention behind them, and the rows that feed the output."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.capture.functions import PRODUCTS, sdpa_operands, tensors_in
from whyformer.capture.intercept import current_path
from whyformer.capture.lineage import rooted
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import Notes
from whyformer.study.fingerprints import Fingerprints
from whyformer.study.readout import Ending, Reached, Survey
from whyformer.study.replay import Positions, Retained

QUERIES = "queries"  # positions that the model brings itself: object queries, pooling probes
JOIN = "+"  # "text+image": two streams laid end to end, one attention over both
Segments = tuple[tuple[str | None, int], ...]


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What one tensor is made of: the input whose positions it holds, and the attention it has been through."""

    stream: str | None = None
    calls: frozenset[int] = frozenset()  # attention calls in its past
    pair: tuple[Ancestry, Ancestry] | None = None  # for scores: what the queries and keys were
    segments: Segments = ()
    vectors: bool = False  # looked up or projected: no mask, and no ids


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call: where its queries and keys came from."""

    query: Ancestry
    key: Ancestry


class MarkingSurvey(Survey):
    """A survey that also marks every tensor. ``inputs``: the streams of the model's arguments."""

    def __init__(self, batch: int, names: dict[int, str], inputs: list[tuple[Tensor, str]]) -> None:
        super().__init__(batch, names)
        self.calls: list[AttentionCall] = []
        self.reached_back = -1  # the latest attention after which a state from before the previous block was read
        self.joins: list[int] = []  # per attention, how often what came of it met the state from before it
        self.went_around = -1  # the latest one after which vectors were read that had been through none
        self._first_BHKD: Tensor | None = None  # what the first attention reads
        self._marks = Notes[Ancestry]()
        self._fused: tuple[Ancestry, Ancestry] | None = None
        self.embedded: set[int] = set()  # addresses of what convolutions and lookups read before the first attention
        for tensor, stream in inputs:
            self._marks.put(tensor, Ancestry(stream))

    def first_values(self) -> Tensor | None:
        """(1, H, K, D) what the first attention read, once: nothing is held any longer."""
        first_BHKD, self._first_BHKD = self._first_BHKD, None
        return first_BHKD

    def reaching(self, logits: Tensor) -> frozenset[int]:
        """The attention calls that reach the output: all, where the flow of data was lost."""
        mark = self._marks.get(logits)
        return mark.calls if mark is not None and mark.calls else frozenset(range(len(self.calls)))

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name == "scaled_dot_product_attention":
            call = sdpa_operands(args, kwargs)
            self._fused = (self._marks.get(call["query"]) or Ancestry(), self._marks.get(call["key"]) or Ancestry())
        if name in {"conv2d", "embedding"} and not self.calls:
            read = tensors_in((*args, *(kwargs or {}).values()))[:1]
            self.embedded |= {tensor.data_ptr() for tensor in read if tensor.is_contiguous()}
        before = len(self.calls)
        out = super().__torch_function__(func, types, args, kwargs)
        self._fused = None
        if name != "multi_head_attention_forward":  # its body has marked its own results
            self._follow(name, tensors_in((*args, *(kwargs or {}).values())), out, attended=len(self.calls) > before)
        return out

    def at_site(self, site: OpenSite) -> None:
        super().at_site(site)
        if not self.calls:
            self._first_BHKD = site.value_BHKD.detach()
        scores = self._marks.get(site.attention)
        query, key = self._fused or (scores.pair if scores is not None and scores.pair else (Ancestry(), Ancestry()))
        if query.stream is None and (key.stream is not None or any(c.key.stream for c in self.calls)):
            query = replace(query, stream=QUERIES)  # asked by what the model brings itself
            key = key if key.stream is not None else replace(key, stream=QUERIES)
        self.calls.append(AttentionCall(query, key))
        self.joins.append(0)

    @staticmethod
    def _joins(marks: list[Ancestry], latest: int) -> bool:
        """Does what came of the latest attention meet the state from before it, as in a residual sum?"""
        older = (m for m in marks if (m.vectors or not latest) and latest not in m.calls)  # floats come as they are
        return any(latest in m.calls for m in marks) and any(max(m.calls, default=-1) == latest - 1 for m in older)

    def _follow(self, name: str, operands: list[Tensor], out: Any, attended: bool) -> None:
        marks = [m for m in map(self._marks.get, operands) if m is not None]
        if not marks and not attended:
            return
        calls = frozenset[int]().union(*(m.calls for m in marks))
        latest = len(self.calls) - 1
        if not attended and any(m.calls and max(m.calls) < latest - 1 for m in marks):
            self.reached_back = latest  # the residual stream of a block is no older than the attention before it
        reads = bool(tensors_in([out])) and not _makes_shape(name)
        if not attended and reads and any(m.vectors and not m.calls for m in marks):
            self.went_around = latest
        if not attended and reads and self.calls and self._joins(marks, latest):
            self.joins[latest] += 1
        if attended:  # the result belongs to who asked
            asked = self.calls[-1].query
            made = Ancestry(asked.stream, calls | {len(self.calls) - 1}, segments=asked.segments, vectors=True)
        else:
            made = self._merged(name, operands, marks, calls)
        for result in tensors_in([out]):
            self._marks.put(result, made)
        if out is None and name == "__setitem__":
            self._marks.put(operands[0], made)

    def _merged(self, name: str, operands: list[Tensor], marks: list[Ancestry], calls: frozenset[int]) -> Ancestry:
        first = next((m for m in marks if m.stream is not None), marks[0])
        pair = next((m.pair for m in marks if m.pair is not None), None)
        if name in PRODUCTS and len(operands) > 1 and all(t.ndim > 2 for t in operands[-2:]):
            left, right = (self._marks.get(t) or Ancestry() for t in operands[-2:])
            pair = (replace(left, pair=None), replace(right, pair=None))
        segments = first.segments
        stream = first.stream
        if name in {"cat", "concat", "concatenate"}:
            joined = self._joined(operands)
            if joined:
                stream, segments = JOIN.join(dict.fromkeys(s for s, _ in joined if s)), joined
        # Of ids and a table, or of numbers and a weight: however a model writes it.
        vectors = any(m.vectors for m in marks) or any(isinstance(t, nn.Parameter) for t in operands)
        vectors = vectors and not _makes_shape(name)
        return Ancestry(stream, calls, pair, segments, vectors)

    def _joined(self, operands: list[Tensor]) -> Segments:
        """Streams laid end to end along the second of three axes; a token of the model's own joins its neighbour."""
        if any(t.ndim != 3 for t in operands) or len({t.shape[2] for t in operands}) != 1:
            return ()
        parts = [(m.stream if (m := self._marks.get(t)) is not None else None, t.shape[1]) for t in operands]
        return tuple(parts) if len({s for s, _ in parts if s is not None}) > 1 else ()


def _makes_shape(name: str) -> bool:
    """Of its operand nothing but the shape is read: zeros_like, new_zeros."""
    return name.startswith("new_") or name.endswith("_like")


class Tail(MarkingSurvey):
    """A lineage that also finds the rows that feed the head: it keeps the graph behind the latest attention, from call
    ``start`` on; or all of it, for who differentiates this very pass (``retained.leaf``).
    """

    def __init__(
        self,
        batch: int,
        names: dict[int, str],
        inputs: list[tuple[Tensor, str]],
        start: int = 0,
        retained: Retained | None = None,
    ) -> None:
        super().__init__(batch, names, inputs)
        self.start = start
        self.retained = retained or Retained()
        self.lengths = Positions()
        self.prints = Fingerprints(self.lengths, partial(current_path, names), start + 1, bits=True)
        self.ending: Ending | None = None
        self._saved: dict[int, Tensor] = {}  # by autograd, since the latest attention
        self._count = 0

    def pack(self, tensor: Tensor) -> int:
        """What autograd saves is held here, under a number."""
        self._count += 1
        self._saved[self._count] = tensor
        return self._count

    def unpack(self, number: int) -> Tensor:
        return self._saved[number]

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self.ending
        out = super().__torch_function__(func, types, args, kwargs)
        if self.ending is not None and self.ending is before:
            self.ending.see(func.__name__, args, kwargs, out)
        if self.retained.whole:
            self.prints.see(func.__name__, args, out, len(self.sites))
        return out

    def at_site(self, site: OpenSite) -> None:
        super().at_site(site)
        self.lengths.count = self.facts[0].keys
        if self.retained.whole:
            self.prints.at_values(site.value_BHKD)

    @property
    def whole_graph(self) -> bool:
        return self.retained.leaf is not None

    def at_result(self, site: OpenSite, out: Tensor) -> Tensor:
        if self.whole_graph and not self.sites and out.grad_fn is None and torch.is_grad_enabled():
            return out.detach().requires_grad_().clone()  # the weight is none that the input meets: it begins here
        return out

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        whole = self.whole_graph
        with torch.set_grad_enabled(whole and torch.is_grad_enabled()):
            out = super()._sdpa(func, args, kwargs)
        self.retained.add(sdpa_operands(args, kwargs), out)
        return self._started(out, whole)

    def _claim(self, *options: Any) -> Any:
        whole = self.whole_graph
        self.retained.drop()
        with torch.no_grad():
            out = super()._claim(*options)
        return self._started(out, whole)

    def _started(self, out: Tensor, whole: bool) -> Tensor:
        """The result at the start of a graph; a copy is handed on, since models may write into it.

        whole: there was a graph of everything up to here.
        """
        if self.whole_graph:
            self.ending = Ending(self.sites[-1], self.retained.edges[-1])
            return out
        if whole:  # it is of no use: from here on as without it
            torch.set_grad_enabled(False)
            out = out.detach()
        if len(self.sites) <= self.start:
            return out
        self._saved.clear()
        torch.set_grad_enabled(True)
        self.ending = Ending(self.sites[-1], out.requires_grad_())
        return self._noted(out.clone(), out)

    def reached(self, logits: Tensor) -> Reached | None:
        """Rows of the last attention that reach the logits; None if this pass cannot tell."""
        ending, self.ending = self.ending, None
        try:
            reached = None
            if ending is not None and logits.requires_grad:
                reached = ending.reached(logits, again=self.whole_graph)
            return reached if reached is not None and reached.rows else None
        except (RuntimeError, KeyError):  # cut, without derivative, or in need of what was let go (checkpoints)
            return None
        finally:
            self._saved.clear()


def trace(
    forward: Callable[[], Tensor],
    names: dict[int, str],
    inputs: list[tuple[Tensor, str]],
    retained: Retained | None = None,
) -> tuple[MarkingSurvey, frozenset[int], Reached | None]:
    """One forward pass on a single input: its sites, the attention calls that reach the output, and their last rows.

    A model that has fewer attention calls than layers leaves its rows open; so does one that cannot run with gradients
    (weights of inference mode, functions without derivatives), which runs once more without them. ``retained``: what
    the attentions were given, and what they and the model said, for who can use it.
    """
    tail = Tail(1, names, inputs, likely_last(names), retained)
    leaf = tail.retained.leaf
    try:
        if leaf is not None:
            with torch.enable_grad(), rooted(leaf), tail:
                logits = forward()
        else:
            with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(tail.pack, tail.unpack), tail:
                logits = forward()
    except Exception:  # whatever is wrong with the model itself is said by the second pass
        tail.retained.drop()
        if leaf is not None:
            return trace(forward, names, inputs)
        plain = MarkingSurvey(1, names, inputs)
        with torch.no_grad(), plain:
            logits = forward()
        return plain, plain.reaching(logits), None
    tail.prints.marks.output = logits.detach()
    tail.retained.logits = logits if tail.whole_graph else logits.detach()
    reached = tail.reached(logits)
    if len(tail.sites) != tail.start + 1 or not tail.retained.intact():
        tail.retained.drop()
    return tail, tail.reaching(logits), reached


def likely_last(names: dict[int, str]) -> int:
    """A guess at the number of the last attention call: as if each of the model's layers had one.

    It decides what a study costs, never what it finds: too small, graphs are kept in vain; too large, the rows take a
    pass of their own.
    """
    layers = [re.match(r"\D*?(?:^|\.)(\d+)\.", name) for name in names.values()]
    return max((int(match[1]) for match in layers if match), default=0)
