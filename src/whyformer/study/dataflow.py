"""Find where tensors come from and which attentions they reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, sdpa_operands, tensors_in
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import Notes
from whyformer.study.readout import Passes, Survey

# Fingerprints: a number for each position, wherever a model holds one vector per position. Two passes are compared by
# them: where a change does not reach a position, its number is the same to the last bit. Activations are not kept.


class Marks:
    """Fingerprints of positions, (N,) numbers for each place of the model, in the order in which they were met."""

    # Laid into few large blocks: hundreds of small tensors, made between activations that come and go, would keep the
    # memory in between from being used again, many times their own size.
    ROWS = 64

    def __init__(self) -> None:
        self._places: list[tuple[str, int, int]] = []  # path, length, row among those of this length
        self._blocks: dict[int, list[Tensor]] = {}
        self._counts: Counter[int] = Counter()
        self.way: list[tuple[int, ...]] = []  # shapes that the model met and choices that it made, in their order
        self.output = torch.zeros(1)  # what the model said

    def add(self, path: str, values_N: Tensor) -> None:
        length = len(values_N)
        row, blocks = self._counts[length], self._blocks.setdefault(length, [])
        if row == len(blocks) * self.ROWS:
            blocks.append(values_N.new_empty(self.ROWS, length))
        blocks[-1][row % self.ROWS] = values_N
        self._places.append((path, length, row))
        self._counts[length] += 1

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for path, length, row in self._places:
            yield path, self._blocks[length][row // self.ROWS][row % self.ROWS]


class Fingerprints:
    """Collect the marks of one pass: random projections of the vectors of ``lengths`` positions.

    read: the positions that the head reads, if known; behind the last attention what the others hold has no effect.
    """

    def __init__(
        self, lengths: Set[int], path: Callable[[], str], last: int | None = None, read: Set[int] | None = None
    ) -> None:
        self.lengths, self.marks = lengths, Marks()
        self.read, self._behind = read, False
        self.last = last  # how many attentions there will be: what enters the head after them is marked, too
        self._path = path  # where the model is
        self._weights: dict[int, Tensor] = {}

    def see(self, name: str, args: tuple[Any, ...], out: Any, sites: int) -> None:
        """Take note of a function, its operands and its result, after so many attentions."""
        self._behind |= self.last is not None and sites >= self.last
        if name in fn.CHOICES:
            indices = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor)]
            self.marks.way += [tuple(t.flatten().tolist()) for t in indices if t.dtype == torch.int64]
        if name in fn.POSITIONWISE and args:
            operand = args[1] if name == "addmm" else args[0]
            if isinstance(operand, Tensor):
                self.marks.way.append(tuple(operand.shape))
                self.add(operand)
        if self.last is not None and sites >= self.last:
            self._at_the_head(name, args, out)

    def _at_the_head(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """Mark what the head picks or pools, up to where positions are combined."""
        operand = args[0] if args else None
        if not isinstance(operand, Tensor) or not isinstance(out, Tensor):
            return
        if name == "softmax" and any(n in self.lengths for n in out.shape):
            self.last = None  # attention weights: each position depends on all others
        elif name in fn.POOLS and operand.ndim == 3 and operand.shape[1] in self.lengths:
            if operand.shape[2] == operand.shape[1]:
                return  # a map that torch's attention hands back beside its result, no vectors (WavLM)
            self.add(operand)
            if out.ndim < 2 or out.shape[1] != operand.shape[1]:
                self.last = None

    def add(self, x: Tensor) -> None:
        # Whoever watches what the model draws (loan/turns.py) is not told of these: there are more than the model's.
        unwatched = torch._C._DisableTorchDispatch() if type(x) is Tensor else None
        try:
            self._add(x)
        finally:
            del unwatched

    def _add(self, x: Tensor) -> None:
        if x.ndim == 2 and x.shape[0] in self.lengths:
            rows = x
        elif x.ndim == 3 and x.shape[0] == 1 and x.shape[1] in self.lengths:
            rows = x[0]
        elif x.ndim == 3 and x.shape[1] == 1 and x.shape[0] in self.lengths:
            rows = x[:, 0]
        else:
            return
        path, width = self._path() or "the model itself", rows.shape[1]
        if width not in self._weights:
            generator = torch.Generator().manual_seed(width)
            self._weights[width] = torch.randn(width, generator=generator, dtype=torch.float64).to(rows.device)
        prints_N = torch.mv(rows.detach().double(), self._weights[width])
        if self._behind and self.read is not None:
            unread = [p for p in range(len(prints_N)) if p not in self.read]
            prints_N[unread] = 0
        self.marks.add(path, prints_N)


POOLS = fn.REDUCTIONS | fn.LARGEST | fn.MEASURES  # what combines positions outside attention
QUERIES = "queries"  # positions that the model brings itself: object queries, pooling probes
CLOSING = frozenset("eq ne lt le gt ge isin relu clamp clamp_min hardtanh heaviside sign round".split())
GATING = frozenset("mul rmul imul where masked_fill expand expand_as lerp addcmul".split())
JOIN = "+"  # "text+image": two streams laid end to end, one attention over both


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What one tensor is made of: the input whose positions it holds, and the attention it has been through."""

    stream: str | None = None
    calls: frozenset[int] = frozenset()  # attention calls in its past
    pair: tuple[Ancestry, Ancestry] | None = None  # for scores: what the queries and keys were
    vectors: bool = False  # looked up or projected: no mask, and no ids
    closes: bool = False  # compared or cut off: it may be zero for one input and not for another


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call: where its queries and keys came from."""

    query: Ancestry
    key: Ancestry


class MarkingSurvey(Survey):
    """A survey that also marks every tensor, beginning with the model's arguments."""

    def __init__(self, run: Passes) -> None:
        super().__init__(1, run.names)
        self.reaching: frozenset[int] = frozenset()  # the attention calls that reach the output
        self.calls: list[AttentionCall] = []
        self.reached_back = -1  # the latest attention after which a state from before the previous block was read
        self.joins: list[int] = []  # per attention, how often what came of it met the state from before it
        self.went_around = -1  # the latest one after which vectors were read that had been through none
        self._first_BHKD: Tensor | None = None  # what the first attention reads
        self._marks = Notes[Ancestry]()
        self._fused: tuple[Ancestry, Ancestry] | None = None
        self.sorts = self.decides = False  # the model orders its input by content; goes a way that depends on a number
        self.gates = False  # one number that may be zero for some inputs is a factor of all positions
        self.reorders = False  # this input is not in that order
        self.pooled = 0  # after how many attentions, one at least, positions were first combined
        self.embedded: set[int] = set()  # addresses of what lookups read before the first attention
        for tensor, stream in run.modality.place.inputs(run.one):
            self._marks.put(tensor, Ancestry(stream))

    def first_values(self) -> Tensor | None:
        """Return (1, H, K, D) the values of the first attention, and forget them."""
        first_BHKD, self._first_BHKD = self._first_BHKD, None
        return first_BHKD

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        name = func.__name__
        if name == "scaled_dot_product_attention":
            call = sdpa_operands(args, kwargs)
            self._fused = (self._marks.get(call["query"]) or Ancestry(), self._marks.get(call["key"]) or Ancestry())
        if name == "embedding" and not self.calls:
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
        if query.stream is None and key.stream is None and site.attention_BHQK.shape[2] != site.attention_BHQK.shape[3]:
            key = self._marks.get(site.value) or key  # weights of a few rows (a linear layer): keys are what they weigh
        if query.stream is None and (key.stream is not None or any(c.key.stream for c in self.calls)):
            query = replace(query, stream=QUERIES)  # asked by what the model brings itself
            key = key if key.stream is not None else replace(key, stream=QUERIES)
        self.calls.append(AttentionCall(query, key))
        self.joins.append(0)

    @staticmethod
    def _joins(marks: list[Ancestry], latest: int) -> bool:
        """Whether the result of the latest attention meets the state from before it, as in a residual sum."""
        older = (m for m in marks if (m.vectors or not latest) and latest not in m.calls)  # floats come as they are
        return any(latest in m.calls for m in marks) and any(max(m.calls, default=-1) == latest - 1 for m in older)

    def _follow(self, name: str, operands: list[Tensor], out: Any, attended: bool) -> None:
        marks = [m for m in map(self._marks.get, operands) if m is not None]
        if not marks and not attended:
            return
        self._see_content(name, operands, any(m.vectors for m in marks), out)
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
            made = Ancestry(self.calls[-1].query.stream, calls | {len(self.calls) - 1}, vectors=True)
        else:
            made = self._merged(name, operands, marks, calls)
        for result in tensors_in([out]):
            self._marks.put(result, made)
        if out is None and name == "__setitem__":
            self._marks.put(operands[0], made)

    def _see_content(self, name: str, operands: list[Tensor], vectors: bool, out: Any) -> None:
        """Note what may let the structure differ from input to input."""
        self.decides |= name in {"__bool__", "item"} and (vectors or (bool(self.calls) and name == "__bool__"))
        if not self.calls and name in fn.SORTS and operands[0].numel() > 1:
            self.sorts, steps = True, [tensors_in([out])[-1].diff(dim=axis) for axis in range(operands[0].ndim)]
            self.reorders |= not any(bool((step == 1).all()) for step in steps if step.numel())
        operand, result = operands[0], next(iter(tensors_in([out])), None)
        if name.strip("_") in GATING and any(t.ndim == 3 and t.numel() > 1 for t in (*operands, *tensors_in([out]))):
            single = [self._marks.get(t) for t in operands if t.numel() == 1]
            self.gates |= any(mark is not None and mark.closes for mark in single)
        if name in POOLS and operand.ndim == 3 and len(operand) == 1 < operand.shape[1] and result is not None:
            if result.ndim < 2 or result.shape[1] != operand.shape[1]:
                self.pooled = self.pooled or len(self.calls)

    def _merged(self, name: str, operands: list[Tensor], marks: list[Ancestry], calls: frozenset[int]) -> Ancestry:
        first = next((m for m in marks if m.stream is not None), marks[0])
        pair = next((m.pair for m in marks if m.pair is not None), None)
        if name in fn.PRODUCTS and len(operands) > 1 and all(t.ndim > 2 for t in operands[-2:]):
            left, right = (self._marks.get(t) or Ancestry() for t in operands[-2:])
            pair = (replace(left, pair=None), replace(right, pair=None))
        joint = self._joint(operands) if name in {"cat", "concat", "concatenate"} else ""
        # Of ids and a table, or of numbers and a weight: however a model writes it.
        vectors = any(m.vectors for m in marks) or any(isinstance(t, nn.Parameter) for t in operands)
        vectors = vectors and not _makes_shape(name)
        closes = name.strip("_") in CLOSING or any(m.closes for m in marks)
        return Ancestry(joint or first.stream, calls, pair, vectors, closes)

    def _joint(self, operands: list[Tensor]) -> str:
        """Return the name of several streams that are laid end to end along the second of three axes, else ""."""
        if any(t.ndim != 3 for t in operands) or len({t.shape[2] for t in operands}) != 1:
            return ""
        marks = [m for m in map(self._marks.get, operands) if m is not None]
        streams = dict.fromkeys(m.stream for m in marks if m.stream)
        return JOIN.join(streams) if len(streams) > 1 else ""


def _makes_shape(name: str) -> bool:
    """Whether a function reads only the shape of its operand: zeros_like, new_zeros."""
    return name.startswith("new_") or name.endswith("_like")


def trace(run: Passes) -> MarkingSurvey:
    """Run one input once; return its sites, and which of them reach the output."""
    survey = MarkingSurvey(run)
    with torch.no_grad(), survey:
        logits = run()
    mark = survey._marks.get(logits)
    if mark is not None and mark.calls:
        survey.reaching = mark.calls
    else:  # the flow of data was lost
        survey.reaching = frozenset(range(len(survey.calls)))
    return survey
