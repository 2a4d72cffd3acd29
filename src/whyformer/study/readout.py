"""Sites and the row that feeds the head, found by running the model on one input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.record import Forward
from whyformer.capture.roles import Intervene, Outline
from whyformer.capture.site import OpenSite
from whyformer.errors import CaptureError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output

BY_CONTENT = (
    "the head reads other rows of another picture than of the one that was studied ({readout}): it finds them by what "
    "stands there, and maps are read at the rows that feed the head."
)
FEW = 6  # positions, below which one is repeated to make an input longer; above, one is left out


@dataclass(frozen=True)
class Readout:
    """The rows of the last attention that feed the head.

    ``kind``: "first", "last" (of the real positions), "mean" (all positions but ``skip_start``/``skip_end``), or
    "rows" (their mean; ``rows`` are fixed positions).
    """

    kind: str
    rows: tuple[int, ...] = ()
    skip_start: int = 0
    skip_end: int = 0
    besides: bool = field(default=False, compare=False)  # the head pools other rows, too

    def weights(self, keep_BN: Tensor) -> Tensor:
        """(B, N) weights over output rows, summing to one; ``keep_BN`` marks real positions."""
        rank_BN = keep_BN.cumsum(1) - 1  # index among the real positions
        count_B1 = keep_BN.sum(1, keepdim=True)
        if self.kind == "first":
            chosen = rank_BN == 0
        elif self.kind == "last":
            chosen = rank_BN == count_B1 - 1
        elif self.kind == "mean":
            chosen = (rank_BN >= self.skip_start) & (rank_BN < count_B1 - self.skip_end)
        else:
            chosen = torch.stack([rank_BN == r for r in self.rows]).any(0)
        chosen = chosen & keep_BN.bool()
        return chosen.float() / chosen.sum(1, keepdim=True).clamp(min=1)

    def __str__(self) -> str:
        if self.kind == "mean":
            skipped = [f"the first {self.skip_start}"] * bool(self.skip_start)
            skipped += [f"the last {self.skip_end}"] * bool(self.skip_end)
            return "mean over all positions" + (f" but {' and '.join(skipped)}" if skipped else "")
        if self.kind == "rows":
            first, last = (self.rows[0], self.rows[-1]) if self.rows else (0, 0)
            if len(self.rows) > 2 and self.rows == tuple(range(first, last + 1)):
                return f"mean of positions {first} to {last}"
            return "mean of positions " + ", ".join(map(str, self.rows))
        return f"{self.kind} position"


@dataclass(frozen=True)
class SiteFacts:
    path: str
    kind: str
    heads: int
    queries: int
    keys: int
    batch_axis: int | None
    windows: int
    parallel: bool = False  # another head of the previous site's layer
    streams: tuple[str, str] = ("", "")  # query, key


class Passes:
    """Runs the input that is studied, or a variant of it, and counts how often."""

    def __init__(self, modality: Modality, one: Batch) -> None:
        self.one, self._output = one, Output(modality, one)
        self.count = self._output.setup_forwards

    def __call__(self, variant: Batch | None = None) -> Tensor:
        self.count += 1
        return self._output.logits(self.one if variant is None else variant)


class Survey(Outline):
    """Counts sites and finds the patch embedding."""

    def __init__(self, batch: int, names: dict[int, str]) -> None:
        super().__init__(batch, names)
        self.facts: list[SiteFacts] = []
        self.grid: tuple[int, int] | None = None
        self.before_last = 0  # softmaxes that were made before the last site closed

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if func.__name__ == "conv2d" and not self.facts and isinstance(out, Tensor) and out.ndim == 4:
            self.grid = (out.shape[2], out.shape[3])
        return out

    def at_site(self, site: OpenSite) -> None:
        weights, names, order = site.attention, site.layout.names, site.layout.order
        lead = order[:-2]
        self.before_last = len(self.softmaxes)
        axis = lead[names.index("B")] if len(lead) == 2 and site.layout.windows == 1 else None
        self.facts.append(
            SiteFacts(
                site.path,
                site.kind,
                site.layout.heads,
                weights.shape[site.contraction.query],
                weights.shape[site.contraction.key],
                axis,
                site.layout.windows,
                site.parallel,
            )
        )


class Reached(NamedTuple):
    """Rows of an attention that reach the logits, how many rows it has, and which are picked by index.

    ``maximum``: the head takes the largest over the rows, number by number.
    """

    rows: list[int]
    of: int
    slots: set[int]
    maximum: bool = False


@dataclass
class Ending:
    """What follows one attention: its result, the start of a graph, and the rows of it that are picked by index."""

    site: OpenSite
    result: Tensor
    picked: list[tuple[int, Tensor]] = field(default_factory=list)  # rows taken one by one, as in hidden[:, 0]
    maximum: bool = False  # the largest over the rows was taken

    @property
    def slots(self) -> set[int]:
        return {row for row, _ in self.picked}

    def see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> None:
        """A function that the model calls after this attention."""
        if name in {"max", "amax"} and isinstance(args[0], Tensor):
            dims = [*args[1:2], (kwargs or {}).get("dim")]
            self.maximum |= self._is_hidden(args[0]) and any(d in (1, -2, (1,), [1]) for d in dims)
            return
        if name == "__getitem__":
            index = args[1]
        elif name == "select" and len(args) == 3:
            index = (slice(None),) * args[1] + (args[2],)
        else:
            return
        positions = self.site.attention.shape[self.site.contraction.query]
        if (
            self._is_hidden(args[0])
            and isinstance(index, tuple)
            and len(index) > 1
            and type(index[1]) is int
            and index[0] is not ...
        ):
            self.picked.append((index[1] % positions, out))

    def _is_hidden(self, tensor: Tensor) -> bool:
        """A vector for each of the rows."""
        return tensor.ndim == 3 and tensor.shape[1] == self.site.attention.shape[self.site.contraction.query]

    def reached(self, logits: Tensor, seed: int = 0) -> Reached:
        """The gradient at the result shows which rows reach the logits; that of a picked row, whether it was used."""
        mix = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).to(logits)
        taken = [(row, part) for row, part in self.picked if part.requires_grad]
        with torch.enable_grad():
            wanted = [self.result, *(part for _, part in taken)]
            grad, *others = torch.autograd.grad((logits * mix).sum(), wanted, allow_unused=True)
        if grad is None:
            return Reached([], self.site.attention.shape[self.site.contraction.query], set())
        rows = grad_rows(self.site, grad)
        used = {row for (row, _), slope in zip(taken, others, strict=True) if slope is not None and slope.any()}
        return Reached([int(r) for r in rows.nonzero()[:, 0]], len(rows), used, self.maximum)


class ReadoutFinder(Outline):
    """From the last site on, the graph is kept."""

    def __init__(self, batch: int, names: dict[int, str], last: int) -> None:
        super().__init__(batch, names)
        self.last = last
        self.ending: Ending | None = None

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = len(self.sites)
        out = super().__torch_function__(func, types, args, kwargs)
        if before == self.last and len(self.sites) == self.last + 1 and func.__name__ != "multi_head_attention_forward":
            torch.set_grad_enabled(True)
            start = out.detach().requires_grad_()
            self.ending = Ending(self.sites[-1], start)
            return start.clone()  # models may write into it
        if self.ending is not None:
            self.ending.see(func.__name__, args, kwargs, out)
        return out


def readout_rows(forward: Forward, names: dict[int, str], last: int) -> Reached:
    """Rows of site ``last`` that reach the logits, on a single input."""
    finder = ReadoutFinder(1, names, last)
    try:
        with torch.no_grad(), finder:
            logits = forward()
    except RuntimeError as error:
        if "nference" not in str(error) and "derivative" not in str(error):
            raise
        slots = set() if finder.ending is None else finder.ending.slots
        return Reached(*silenced_rows(forward, names, last), slots)  # weights without gradients
    ending, finder.ending = finder.ending, None
    if ending is None or not logits.requires_grad:
        raise CaptureError(
            "the last captured attention does not reach the model's output, so no row of it feeds the prediction. "
            "Check that the logits come from the same stream of tokens, without detach() or no_grad() in between "
            "(reentrant gradient checkpointing is such a no_grad(): turn it off, or pass use_reentrant=False)."
        )
    return ending.reached(logits)


def silenced_rows(forward: Forward, names: dict[int, str], last: int) -> tuple[list[int], int]:
    """The same without gradients, for weights that have none: silence one row of the last site at a time."""
    count = 0

    def logits_without(row: int | None) -> Tensor:
        def edit(index: int, site: OpenSite) -> None:
            nonlocal count
            if index == last:
                weights = site.attention_BHQK.clone()
                count = weights.shape[2]
                if row is not None:
                    weights[:, :, row] = 0
                site.attention_BHQK = weights

        with torch.no_grad(), Intervene(1, names, edit=edit):
            return forward()

    plain = logits_without(None)
    return [row for row in range(count) if not torch.equal(logits_without(row), plain)], count


def grad_rows(site: OpenSite, grad: Tensor) -> Tensor:
    """Total absolute gradient per query row, whatever the layout of the result."""
    queries = site.attention.shape[site.contraction.query]
    axes = [i for i, n in enumerate(grad.shape) if n == queries]
    # The result has the map's lead axes, then queries, then width, except for einsum, where sizes decide.
    axis = grad.ndim - 2 if grad.ndim - 2 in axes else axes[0]
    return grad.abs().movedim(axis, 0).flatten(1).sum(1)


def pooled_besides(rows: Iterable[int], slots: set[int]) -> bool:
    """A head that picks rows one by one, and reads others, too."""
    picked = slots & set(rows)
    return bool(picked) and len(set(rows)) > len(picked) + 1


def readout_of(rows: list[int], count: int, real: int, slots: set[int]) -> Readout:
    """Turn the rows seen on one input into a rule for inputs of other lengths."""
    if pooled_besides(rows, slots):
        # NOTE[DIFF] DINOv2 reads CLS and pools the patches too; as everyone does, the CLS row is the one we read.
        rows = sorted(slots & set(rows))
    if not rows:
        raise CaptureError("no row of the last attention reaches the logits.")
    if rows == [0]:
        return Readout("first")
    if rows == [real - 1]:
        return Readout("last")
    contiguous = rows == list(range(rows[0], rows[-1] + 1))
    if contiguous and len(rows) > 2 and real - len(rows) < len(rows):
        return Readout("mean", skip_start=rows[0], skip_end=max(0, real - 1 - rows[-1]))
    if count <= 2 and len(rows) == count:
        return Readout("mean")
    return Readout("rows", rows=tuple(rows))


def reordered(one: Batch, length: int) -> Batch | None:
    """One input back to front, without padding, and of another length; None where its tensors do not tell how.

    A position in the middle is left out, or stands there several times where there are few.
    """
    real = list(range(length)) if one.keep_BN is None else one.keep_BN[0].nonzero()[:, 0].tolist()
    if not real:
        return None
    middle = len(real) // 2
    times = 0 if len(real) >= FEW else FEW - len(real)
    places = [*real[:middle], *real[middle : middle + 1] * times, *real[middle + 1 :]][::-1]
    tensors = {}
    for name, tensor in one.tensors.items():
        index = torch.tensor(places, device=tensor.device)
        if "position" in name:  # where a token stands, whichever it is
            index = torch.tensor(real[:1] * len(places), device=tensor.device) + torch.arange(len(places)).to(index)
            index = index.clamp(max=real[-1])
        axes = [axis for axis, size in enumerate(tensor.shape) if axis and size == length]
        if not axes or axes[0] != 1 or len(axes) > 2:
            return None
        tensors[name] = reduce(lambda moved, axis: moved.index_select(axis, index), axes, tensor)
    keep_BN = None if one.keep_BN is None else one.keep_BN[:, places]
    return replace(one, tensors=tensors, keep_BN=keep_BN, encodings=(), raw=())


def confirmed(
    modality: Modality,
    run: Passes,
    names: dict[int, str],
    readout: Readout,
    sites: Sequence[SiteFacts],
    extra: int,
    front: int | None,
) -> Readout:
    """Return the rule if it holds on an input of another length and order; else one by which each input is asked.

    Of two tokens, the last is also position 1, and the first is also the last but one. A row may also be found by what
    stands there (the largest id, a mask token): then it moves with the order.
    """
    site, last = sites[-1], len(sites) - 1
    if modality.pixels and len(run.one.tensors) == 1 and site.queries == site.keys:
        _require_fixed(modality, run, names, readout, last)
    fits = site.queries == site.keys == modality.length(run.one) + extra
    if readout.kind == "rows" or not modality.lengths_vary or not fits or run.one.positions or run.one.spans:
        return readout
    other = reordered(run.one, modality.length(run.one))
    if other is not None and _holds(modality, run, names, readout, last, other, front):
        return readout
    return Readout("rows", rows=tuple(range(site.keys)))


def _holds(
    modality: Modality,
    run: Passes,
    names: dict[int, str],
    readout: Readout,
    last: int,
    other: Batch,
    front: int | None,
) -> bool:
    """Does the head read the rows of the rule on another input?"""
    try:
        rows, count, slots, maximum = readout_rows(partial(run, other), names, last)
    except (RuntimeError, ValueError, IndexError, CaptureError):  # not every order of words is an input of this model
        return False
    if maximum:
        return True
    rows = sorted(slots & set(rows)) if pooled_besides(rows, slots) else rows
    return rows == readout.weights(modality.keep(other, count, front))[0].nonzero()[:, 0].tolist()


def _require_fixed(modality: Modality, run: Passes, names: dict[int, str], readout: Readout, last: int) -> None:
    """Refuse a head that reads other rows of the picture upside down: it finds them by what stands there."""
    picture = run.one.tensors[modality.main]
    other = run.one.with_tensors(**{modality.main: picture.flip(-1, -2)})
    rows, count, slots, maximum = readout_rows(partial(run, other), names, last)
    rows = sorted(slots & set(rows)) if pooled_besides(rows, slots) else rows
    expected = readout.weights(modality.keep(other, count, None))[0].nonzero()[:, 0].tolist()
    if not maximum and rows != expected:
        raise CaptureError(BY_CONTENT.format(readout=readout))


class Severed(Intercept):
    """Every attention result stands at the start of a graph of its own: what reaches it passes no other attention."""

    explicit = False

    def __init__(self, batch: int, names: dict[int, str]) -> None:
        super().__init__(batch, names)
        self.results: list[Tensor] = []

    def at_site(self, site: OpenSite) -> None:
        """The result, not the map, is followed."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = len(self.sites)
        out = super().__torch_function__(func, types, args, kwargs)
        if len(self.sites) == before + 1 and func.__name__ != "multi_head_attention_forward":
            out = out.detach().requires_grad_()
            self.results.append(out)
        return out


def direct_rows(forward: Callable[[], Tensor], names: dict[int, str], seed: int = 0) -> list[list[int]]:
    """Per attention call, the rows that reach the output directly, on a single input."""
    severed = Severed(1, names)
    with torch.enable_grad():
        with severed:
            logits = forward()
        if not logits.requires_grad:
            return [[] for _ in severed.results]
        mix = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).to(logits)
        grads = torch.autograd.grad((logits * mix).sum(), severed.results, allow_unused=True)
    rows = []
    for site, grad in zip(severed.sites, grads, strict=True):
        rows.append([] if grad is None else [int(r) for r in grad_rows(site, grad).nonzero()[:, 0]])
    return rows
