"""Sites and the row that feeds the head, found by running the model on one input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, tensors_in
from whyformer.capture.intercept import Intercept
from whyformer.capture.leaves import BeforeAttention
from whyformer.capture.roles import Intervene, Outline, first_values, mixed_sum
from whyformer.capture.site import OpenSite
from whyformer.errors import CaptureError, NotOverUnits
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, shifted
from whyformer.inputs.output import Output
from whyformer.loan.backwards import backwards_of
from whyformer.loan.borrow import module_names
from whyformer.loan.spread import out_of_memory

COMBINES = fn.REDUCTIONS | fn.LARGEST | fn.MEASURES | fn.PRODUCTS | fn.RESHAPES | fn.WEIGHTED
COMBINES |= {"logsumexp", "median", "prod"}
EVEN = 1e-3  # of the largest slope: how far those of rows that a mean is taken of may differ by rounding
MAXIMUM = (
    "the head uses max-pooling over the positions (or a median, or the largest few); here they are weighted evenly, so "
    "it is not part of the scores which of them had the maximum."
)
UNEVEN = (
    "the head does not take the plain mean of the positions (it weights them, lays them end to end, or takes another "
    "statistic); here they are weighted evenly, so what it makes of each is not part of the scores."
)
UNREACHED = (
    "the last captured attention does not reach the model's output. Check that the logits come from the same stream of "
    "tokens, without detach() or no_grad() in between (reentrant gradient checkpointing is such a no_grad(): turn it "
    "off, or pass use_reentrant=False)."
)
FEW = 6  # positions, below which one is repeated to make an input longer; above, one is left out


@dataclass(frozen=True)
class Readout:
    """The rows of the last attention that feed the head.

    ``kind``: "first", "last" (of the real positions), "mean" (all positions but ``skip_start``/``skip_end``), "rows".
    """

    kind: str
    rows: tuple[int, ...] = ()
    skip_start: int = 0
    skip_end: int = 0
    besides: bool = field(default=False, compare=False)  # the head pools other rows, too
    varies: bool = field(default=False, compare=False)  # by the content of the input, whatever its length

    def looked_up(self, lengths_vary: bool) -> bool:
        """Whether the rows are found for each input: of inputs of one length, only where they are not the same."""
        return self.kind == "rows" and (lengths_vary or self.varies)

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
            if len(self.rows) == 1:
                return f"position {first}"
            return "mean of positions " + ", ".join(map(str, self.rows))
        return f"{self.kind} position"


@dataclass(frozen=True)
class SiteFacts:
    """What a study keeps of one attention call."""

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
    """Run one input of a model, or a variant of it, and count the passes."""

    def __init__(self, modality: Modality, one: Batch) -> None:
        self.modality, self.one, self.names = modality, one, module_names(modality.model)
        self._output = Output(modality, one)
        self.count = self._output.setup_forwards

    def __call__(self, variant: Batch | None = None) -> Tensor:
        self.count += 1
        return self._output.logits(self.one if variant is None else variant)

    def shifted(self, positions: list[int], strength: float = 1.0) -> Tensor:
        """Return the logits with other embeddings at some positions."""

        def shift(embedding: Tensor) -> Tensor:
            other = embedding.clone()
            other[:, positions] = other[:, positions].lerp(shifted(other[:, positions]), strength)
            return other

        def shift_image(features_MD: Tensor, token: int) -> Tensor:
            """The same where positions hold pieces of an image: the rank of its token is the row."""
            ids = self.one.tensors[self.modality.main][0]
            other = features_MD.clone()
            rows = [int((ids[:p] == token).sum()) for p in positions if int(ids[p]) == token]
            other[rows] = other[rows].lerp(shifted(other[rows]), strength)
            return other

        with self.modality.read.looked_up(self.one, shift), self.modality.read.handed_over(shift_image):
            return self()

    def values(self, variant: Batch | None = None, site: int = 0) -> Tensor:
        """(1, H, K, D) values that an attention call reads, by default the first one."""
        return first_values(lambda: self(variant), self.names, site)

    def vectors(self, positions: int, variant: Batch) -> list[Tensor]:
        """(N, D) all vectors of positions before the first attention, and before a sort; then what it reads itself."""
        seen = BeforeAttention(1, positions, in_order=True)

        def forward() -> Tensor:
            with seen:
                return self(variant)

        read = first_values(forward, self.names)[0].transpose(0, 1).flatten(1)
        return [*(t[0] if len(t) == 1 else t[:, 0] for t in seen.vectors), read]


class Survey(Outline):
    """Collects the facts of all sites and finds the patch embedding."""

    def __init__(self, batch: int, names: dict[int, str]) -> None:
        super().__init__(batch, names)
        self.facts: list[SiteFacts] = []
        self.grid: tuple[int, int] | None = None
        self.before_last = 0  # softmaxes that were made before the last site closed

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        if func.__name__ == "conv2d" and not self.facts and isinstance(out, Tensor) and out.ndim == 4:
            self.grid = (out.shape[2], out.shape[3])
        return out

    def at_site(self, site: OpenSite) -> None:
        layout = site.layout
        self.before_last = len(self.softmaxes)
        axis = layout.order[layout.names.index("B")] if len(layout.order) == 4 and layout.windows == 1 else None
        queries, keys = positions_of(site)
        facts = SiteFacts(site.path, site.kind, layout.heads, queries, keys, axis, layout.windows, site.parallel)
        self.facts.append(facts)


def positions_of(site: OpenSite) -> tuple[int, int]:
    """Return the numbers of queries and keys of an attention call."""
    return site.attention.shape[site.contraction.query], site.attention.shape[site.contraction.key]


class Reached(NamedTuple):
    """Rows of an attention that reach the logits."""

    rows: list[int]
    of: int  # how many rows it has
    slots: set[int]  # rows that are picked by index
    maximum: bool = False  # the head takes the largest over the rows, number by number
    uneven: bool = False  # the head combines rows in another way than by their mean or sum
    slopes: Tensor | None = None  # of the logits, at the result of this attention

    @property
    def followed(self) -> list[int]:
        """Rows that a readout follows: where the head picks some by index and pools others, those it picks."""
        return sorted(self.slots & set(self.rows)) if pooled_besides(self.rows, self.slots) else self.rows

    @property
    def notes(self) -> tuple[str, ...]:
        """What a result has to say of a head that takes no plain mean of several rows."""
        said = (MAXIMUM,) if self.maximum else (UNEVEN,) if self.uneven else ()
        return said if len(self.rows) > 1 else ()


@dataclass
class Ending:
    """What follows one attention: its result, the start of a graph, and the rows of it that are picked by index."""

    site: OpenSite
    result: Tensor
    picked: list[tuple[int, Tensor]] = field(default_factory=list)  # rows taken one by one, as in hidden[:, 0]
    maximum: bool = False  # the largest over the rows was taken
    alike: bool = False  # all rows were equal, and were parted by noise
    combined: list[Tensor] = field(default_factory=list)  # (1, n, D) vectors of which a function made fewer
    weighed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # vectors times weights, and these weights

    @property
    def slots(self) -> set[int]:
        return {row for row, _ in self.picked}

    def see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> None:
        """Note a function that the model calls after this attention."""
        self._see_pooling(name, tensors_in((*args, *(kwargs or {}).values())), out)
        if name == "__getitem__":
            index = args[1]
        elif name == "select" and len(args) == 3:
            index = (slice(None),) * args[1] + (args[2],)
        else:
            return
        by_row = isinstance(index, tuple) and len(index) > 1 and type(index[1]) is int and index[0] is not ...
        rows = positions_of(self.site)[0]
        if by_row and args[0].ndim == 3 and args[0].shape[1] == rows:
            self.picked.append((index[1] % rows, out))

    def _see_pooling(self, name: str, operands: list[Tensor], out: Any) -> None:
        """Note vectors of rows that a function combines, and those that are multiplied by weights of their rows."""
        result = out if isinstance(out, Tensor) else next(iter(tensors_in([out])), None)
        vectors = [t for t in operands if t.ndim == 3 and len(t) == 1 and t.requires_grad]
        if not vectors or result is None or result.ndim > 3:
            return
        if name in fn.MULS | fn.DIVS and result.ndim == 3:
            rows = result.shape[1]
            for weights in operands:
                fits = weights.ndim > 1 and weights.shape[-2] == rows > 1
                if fits and (weights.shape[-1] == 1 or not weights.requires_grad):
                    self.weighed.append((result, weights))
        if name in COMBINES:
            for each in vectors:
                axis = self._row_axis(each)
                if each.shape[axis] > 1 and result.shape[axis if result.ndim == 3 else 0] != each.shape[axis]:
                    self.combined.append(each)
                    self.maximum |= name in fn.LARGEST | {"median"}

    def _row_axis(self, vectors: Tensor) -> int:
        """Which axis counts the rows; a head may have transposed them."""
        rows = positions_of(self.site)[0]
        return 2 if vectors.shape[2] == rows != vectors.shape[1] else 1

    def _is_uneven(self, slopes: Sequence[Tensor | None]) -> bool:
        """Whether rows enter with other weights than in a mean; slopes: of the logits, at what was combined."""
        for product, weights in self.weighed:
            rows = weights.detach().reshape(-1, *weights.shape[-2:])[0]
            at_once = not weights.requires_grad or any(product is t for t in self.combined)
            if at_once and _differ(rows):
                return True
        axes = map(self._row_axis, self.combined)
        return any(_differ(s[0].movedim(axis - 1, 0)) for s, axis in zip(slopes, axes, strict=True) if s is not None)

    def reached(self, logits: Tensor) -> Reached:
        """The gradient at the result shows which rows reach the logits; that of a picked row, whether it was used."""
        taken = [(row, part) for row, part in self.picked if part.requires_grad]
        with torch.enable_grad():
            wanted = [self.result, *(part for _, part in taken), *self.combined]
            grad, *others = torch.autograd.grad(mixed_sum(logits), wanted, allow_unused=True)
        used = {row for (row, _), slope in zip(taken, others, strict=False) if slope is not None and slope.any()}
        count, uneven = positions_of(self.site)[0], self._is_uneven(others[len(taken) :])
        rows = reached_rows(self.site, grad)
        rows = [*range(count)] if rows and self.maximum and self.alike else rows
        return Reached(rows, count, used, self.maximum, uneven, grad)


def _differ(rows: Tensor) -> bool:
    """Whether some rows are not equal, those of zeros (masked ones) aside."""
    used = rows[rows.flatten(1).any(1)].double()  # weights may be a mask of truth values
    return len(used) > 1 and bool((used - used[0]).abs().max() > EVEN * used.abs().max())


class ReadoutFinder(Outline):
    """Record the graph from the last attention on, to find the rows that reach the logits."""

    def __init__(self, batch: int, names: dict[int, str], last: int) -> None:
        super().__init__(batch, names)
        self.last = last
        self.ending: Ending | None = None

    def after_site(self, name: str, out: Tensor) -> Tensor:
        if len(self.sites) != self.last + 1:
            return out
        torch.set_grad_enabled(True)
        start = parted(self.sites[-1], result := out.detach()).requires_grad_()
        self.ending = Ending(self.sites[-1], start, alike=start is not result)
        return start.clone()  # models may write into it

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        ending = self.ending
        out = super().__torch_function__(func, types, args, kwargs)
        if ending is not None:
            ending.see(func.__name__, args, kwargs, out)
        return out


def readout_rows(run: Passes, last: int, variant: Batch | None = None) -> Reached:
    """Rows of site ``last`` that reach the logits, on a single input."""
    finder, logits = ReadoutFinder(1, run.names, last), None
    try:
        with torch.no_grad(), finder:
            logits = run(variant)
        unread = any(backward.fault for _, backward in backwards_of(run.modality.model))
        if finder.ending is not None and logits.requires_grad and not unread:
            return finder.ending.reached(logits)
    except Exception as error:  # weights without gradients, or a backward pass of the head that raises whatever it does
        unread = logits is not None or any(said in str(error) for said in ("nference", "derivative"))
        if not unread or out_of_memory(error):
            raise
    if not unread:
        raise CaptureError(UNREACHED)
    return Reached(*silenced_rows(run, last, variant), set() if finder.ending is None else finder.ending.slots)


def require_pooled(run: Passes, last: int, tokens_WN: Tensor) -> Reached:
    """Raise if the head does not read all tokens of the last call inside windows, of any input of a batch."""
    finder = ReadoutFinder(run.one.size, run.names, last)
    with torch.no_grad(), finder:
        logits = run()
    if finder.ending is None or not logits.requires_grad:
        raise CaptureError(UNREACHED)
    reached = finder.ending.reached(logits)
    assert reached.slopes is not None  # the logits have a gradient, which passes it
    spoke_XN = finder.ending.site.layout.to_canonical(reached.slopes).any(-1).any(1)
    real_WN = (tokens_WN >= 0).to(spoke_XN.device)
    read_B, count = (spoke_XN.view(-1, *real_WN.shape) & real_WN).sum((1, 2)).tolist(), int(real_WN.sum())
    if min(read_B) < count and not reached.maximum:
        raise NotOverUnits(
            f"the head reads {min(read_B)} of the {count} tokens of the last layer, and maps of layers inside windows "
            "(Swin) are read as the mean of all of them."
        )
    return reached


def silenced_rows(run: Passes, last: int, variant: Batch | None) -> tuple[list[int], int]:
    """Find the same rows without gradients: silence one row of the last site at a time; return how many there are."""
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

        with torch.no_grad(), Intervene(1, run.names, edit=edit):
            return run(variant)

    plain = logits_without(None)
    return [row for row in range(count) if not torch.equal(logits_without(row), plain)], count


def reached_rows(site: OpenSite, grad: Tensor | None) -> list[int]:
    """Query rows of an attention with a gradient that is not zero, whatever the layout of its result."""
    if grad is None:
        return []
    return [int(row) for row in grad.abs().movedim(query_axis(site, grad), 0).flatten(1).sum(1).nonzero()[:, 0]]


def query_axis(site: OpenSite, result: Tensor) -> int:
    """Which axis of an attention's result counts the queries."""
    axes = [i for i, n in enumerate(result.shape) if n == positions_of(site)[0]]
    # The result has the map's lead axes, then queries, then width, except for einsum, where sizes decide.
    return result.ndim - 2 if result.ndim - 2 in axes else axes[0]


def parted(site: OpenSite, result: Tensor) -> Tensor:
    """Return an attention's result; rows that are all alike, of which any pooling has even slopes, get noise."""
    rows = result.movedim(query_axis(site, result), 0)
    if len(rows) < 2 or not bool((rows == rows[0]).all()):
        return result
    noise = torch.randn(result.shape, generator=torch.Generator().manual_seed(0)).to(result)
    return result + noise * (result.abs().max() + 1) / 4


def pooled_besides(rows: Iterable[int], slots: set[int]) -> bool:
    """Whether a head picks rows one by one, and reads others, too."""
    picked = slots & set(rows)
    return bool(picked) and len(set(rows)) > len(picked) + 1


def readout_of(rows: list[int], count: int, real: int, slots: set[int]) -> Readout:
    """Turn the rows seen on one input into a rule for inputs of other lengths."""
    if pooled_besides(rows, slots):
        # NOTE[DIFF] DINOv2 reads CLS and pools the patches too; as everyone does, the CLS row is the one we read.
        rows = sorted(slots & set(rows))
    if not rows:
        raise CaptureError(
            "no query position of the last attention layer influences the logits, so attention maps cannot be read."
        )
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
    """Return one input reversed, without padding and of another length; None if its tensors do not show how."""
    real = list(range(length)) if one.keep_BN is None else one.keep_BN[0].nonzero()[:, 0].tolist()
    if not real:
        return None
    middle = len(real) // 2  # left out, or there several times where there are few
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


def confirmed(run: Passes, readout: Readout, sites: Sequence[SiteFacts], extra: int, front: int | None) -> Readout:
    """Return the rule if it holds on an input of another length and order; else one that is looked up per input."""
    # Of two tokens, the last is also position 1. A row may also be found by what stands there (the largest id, a mask
    # token): then it moves with the order.
    site, last, modality = sites[-1], len(sites) - 1, run.modality

    def holds(other: Batch, front: int | None) -> bool:
        """Whether the head reads the rows of the rule on another input."""
        reached = readout_rows(run, last, other)
        if reached.maximum:
            return True
        return (
            reached.followed
            == readout.weights(modality.place.keep(other, reached.of, front))[0].nonzero()[:, 0].tolist()
        )

    if modality.place.pixels and len(run.one.tensors) == 1 and site.queries == site.keys:
        turned = run.one.with_tensors(**{modality.main: run.one.tensors[modality.main].flip(-1, -2)})
        if not holds(turned, None):
            return Readout("rows", tuple(range(site.keys)), varies=True)
    if modality.read.joint and modality.kind == "language" and readout.kind == "last":
        return readout  # explained at the last token by us; with images in it, a text has no other order
    fits = site.queries == site.keys == modality.place.length(run.one) + extra
    if readout.kind == "rows" or not modality.place.lengths_vary or not fits or run.one.positions or run.one.spans:
        return readout
    other = reordered(run.one, modality.place.length(run.one))
    try:
        if other is not None and holds(other, front):
            return readout
    except (RuntimeError, ValueError, IndexError, CaptureError):  # not every order of words is an input of this model
        pass
    return Readout("rows", rows=tuple(range(site.keys)))


class Severed(Intercept):
    """Every attention result starts a graph of its own, so that gradients at it pass no other attention."""

    explicit = False

    def __init__(self, batch: int, names: dict[int, str]) -> None:
        super().__init__(batch, names)
        self.results: list[Tensor] = []

    def at_site(self, site: OpenSite) -> None:
        """Leave the map as it is: its result is what is followed."""

    def after_site(self, name: str, out: Tensor) -> Tensor:
        self.results.append(out.detach().requires_grad_())
        return self.results[-1]


def direct_rows(run: Passes) -> list[list[int]]:
    """Per attention call, the rows that reach the output directly, on a single input."""
    severed = Severed(1, run.names)
    with torch.enable_grad():
        with severed:
            logits = run()
        if not logits.requires_grad:
            return [[] for _ in severed.results]
        grads = torch.autograd.grad(mixed_sum(logits), severed.results, allow_unused=True)
    return [reached_rows(site, grad) for site, grad in zip(severed.sites, grads, strict=True)]
