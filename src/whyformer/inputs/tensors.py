"""Inputs given as tensors, and which arguments of a model are sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import ATTENTION, JOINS, PRODUCTS, tensors_in
from whyformer.capture.lookups import ABSENT
from whyformer.capture.trail import Notes
from whyformer.errors import BadInput, MissingProcessor, NotOffered, WhyformerError
from whyformer.inputs.base import MEAN_VECTOR, Mask, Modality, Place, Read, with_added
from whyformer.inputs.batch import (
    Batch,
    Filling,
    Placed,
    Raw,
    SamplePool,
    are_flags,
    are_tensors,
    names_mask,
    require_shown,
    shifted,
)
from whyformer.inputs.stream_inputs import Columns, Layout, StreamInput
from whyformer.inputs.units import Column, assemble, of_pool, owners_of_columns, pick
from whyformer.loan.borrow import borrowed, known_about
from whyformer.results.types import Units
from whyformer.targets import logits_of

# Which arguments of a home-made model are sequences of their own, found by running it once.
#
# A second argument of whole numbers may be a sequence (what a decoder is fed, the second of two texts), may describe
# the tokens of the first one (segments, positions), or may be a number beside them. Names do not decide that: an
# argument is a sequence if its vectors enter an attention before they are added to those of another argument.

DESCRIBE = frozenset(("token_type_ids", "position_ids"))  # of the tokens beside them, in every model
NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """The arguments whose positions a tensor holds, all that it depends on, and whether it went through attention."""

    positions: frozenset[str]
    behind: frozenset[str]
    attended: bool = False


class Flow(TorchFunctionMode):
    """Follow arguments through a model: which of them attend by themselves, and which are combined before that."""

    def __init__(self, arguments: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.entered: set[str] = set()  # their positions are queries or keys of some attention
        self.joined: set[str] = set()  # combined with another one before any attention
        self.in_line: set[str] = set()  # laid end to end with another one, as one sequence
        self.asked: list[tuple[frozenset[str], frozenset[str]]] = []  # (queries, keys) of different arguments
        self._origins = Notes[StreamOrigin]()
        for name, tensor in arguments.items():
            self._origins.put(tensor, StreamOrigin(frozenset((name,)), frozenset((name,))))

    def behind(self, tensor: Tensor) -> frozenset[str]:
        """Return the arguments that a tensor depends on."""
        origin = self._origins.get(tensor)
        return NOBODY if origin is None else origin.behind

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        operands = tensors_in((*args, *(kwargs or {}).values()))
        known = [(t, origin) for t in operands if (origin := self._origins.get(t)) is not None]
        name = func.__name__
        if not known or name.startswith("new_") or name.endswith("_like"):
            return out
        origin = self._made(name, known, out)
        for tensor in tensors_in([out]) or ([args[0]] if name == "__setitem__" else []):
            self._origins.put(tensor, origin)
        return out

    def _made(self, name: str, known: list[tuple[Tensor, StreamOrigin]], out: Any) -> StreamOrigin:
        origins = [origin for _, origin in known]
        behind = NOBODY.union(*(origin.behind for origin in origins))
        attended = any(origin.attended for origin in origins)
        vectors = [origin for tensor, origin in known if tensor.ndim > 2]
        if name in ATTENTION or (name in PRODUCTS and len(vectors) > 1):
            query, key = origins[0].positions, origins[min(1, len(origins) - 1)].positions
            self.entered |= query | key
            if not query & key:
                self.asked.append((query, key))
            return StreamOrigin(query, behind, True)
        positions = NOBODY.union(*(origin.positions for origin in origins))
        # After attention, what was read of one sequence may be added to what was read of another.
        ids = name in JOINS and all(tensor.ndim == 2 for tensor, _ in known)
        if len(positions) > 1 and not attended and (ids or len(vectors) > 1):
            self.joined |= positions
            longest = max(tensor.shape[1] for tensor, _ in known)
            self.in_line |= positions if name in JOINS and out.shape[1] > longest else NOBODY
        return StreamOrigin(positions if not attended else origins[0].positions, behind, attended)


@dataclass(frozen=True)
class Sequences:
    """The roles of a model's arguments."""

    names: tuple[str, ...]  # arguments that are sequences, the one with the keys first
    unscored: tuple[str, ...]  # other arguments that reach the output
    passes: int  # forward passes it took to find that out
    in_line: bool = False  # arguments that are laid end to end: columns of one sequence


def sequences_of(read: Read, inputs: Any) -> Sequences | None:
    """Return the roles of arguments of whole numbers, found once per model; None for one argument, or if it fails."""
    try:
        one = Read.adopt(read, inputs).select([0])
    except WhyformerError:  # raised again, in context, when the inputs are adopted
        return None
    numbers = {k: v for k, v in one.tensors.items() if not v.is_floating_point() and "mask" not in k}
    numbers = {k: v for k, v in numbers.items() if k not in DESCRIBE and (v.dtype != torch.bool or not names_mask(k))}
    if len(numbers) < 2:
        return None
    key = "sequences", tuple((k, v.ndim) for k, v in one.tensors.items())
    with borrowed(read.model):  # what a pass changes by itself (a list that a hook fills) is no change of the model
        facts = known_about(read.model)
        if key not in facts:
            facts[key] = _found(read, one, numbers)
        known: Sequences | None = facts[key]
        return known


def _found(read: Read, one: Batch, numbers: Mapping[str, Tensor]) -> Sequences | None:
    flow = Flow(numbers)
    try:
        with torch.no_grad(), flow:
            logits = logits_of(read.call(one))
    except WhyformerError:
        return None
    seen = flow.behind(logits)
    names = [k for k in numbers if k in flow.entered - flow.joined and k in seen and numbers[k].ndim == 2]
    asked = {key for query, keys in flow.asked for key in keys if query <= set(names)}
    names.sort(key=lambda name: name not in asked)
    passes, unscored = 1, []
    for name, tensor in numbers.items():
        if name in names or name == read.main:
            continue
        # Code that no mode sees into (TorchScript, numpy) hides the way of an argument, not its effect.
        if name not in seen:
            passes += 1
            other = torch.zeros_like(tensor) if bool(tensor.any()) else torch.ones_like(tensor)
            try:  # Flow: under a mode torch's fused encoder, which rounds differently, is not used
                with torch.no_grad(), Flow({}):
                    changed = logits_of(read.call(one.with_tensors(**{name: other})))
                if torch.equal(changed, logits):
                    continue
            except WhyformerError:  # the model reads the argument, or it would take any number
                pass
        unscored.append(name)
    in_line = not names and all(numbers[k].ndim == 2 for k in flow.in_line) and read.main in flow.in_line
    return Sequences(tuple(names), tuple(unscored), passes, in_line)


def different(values: Tensor) -> Tensor:
    """Return other numbers of the same kind; not by the same amount everywhere, which a model may take away again."""
    if values.is_floating_point():
        noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(0)).to(values)
        return values + (1 + values.abs().amax()) * (0.5 + noise)
    return ~values if values.dtype == torch.bool else torch.where(values > 0, values - 1, values + 1)


def _label(column: Column, many: bool) -> str:
    name, where = column
    if where is ...:
        return name
    if isinstance(where, tuple):
        inside, kind = where[1], "variable"
        if isinstance(inside, slice):
            inside, kind = f"{inside.start}:{inside.stop}", "steps"
        return f"{name}[:, {inside}]" if many else f"{kind} {inside}"
    return f"{name}[{where}]" if many else str(where)


def _across(name: str, shape: Sequence[int], count: int) -> list[Column]:
    """Return the variables of a sequence, or ``count`` patches of a signal whose channels come first."""
    if len(shape) != 2 or count < 2 or shape[1] % count:
        return []
    size = shape[1] // count
    return [(name, (slice(None), i if size == 1 else slice(i * size, (i + 1) * size))) for i in range(count)]


class TensorRead(Read):
    """Tensors: units are the positions of a (B, N, D) sequence, or the columns of (B, F) tensors in call order."""

    def __init__(self, model: nn.Module, processor: Any = None, example: Batch | None = None) -> None:
        super().__init__(model, processor)
        self.stream, self.main = "table", ""
        if example is not None:
            sequences = [k for k, v in example.tensors.items() if v.ndim == 3 and v.is_floating_point()]
            self.main = sequences[0] if sequences else next(iter(example.tensors))
            self.stream = "sequence" if sequences else "table"
            self.example = example.select([0])

    @property
    def kind(self) -> str:
        """ "" for plain columns: a table is one whose columns are named."""
        return "" if self.stream == "table" else self.stream

    def ready(self, inputs: Any) -> tuple[Batch, bool] | None:
        if isinstance(inputs, Mapping) and not are_tensors(inputs):
            self.encode([inputs])  # a row of a table: raises with what to pass
        return super().ready(inputs)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise MissingProcessor(
            f"{type(self.model).__name__} is called with tensors here: pass a dict or tuple of tensors with a leading "
            "batch axis, or a processor that turns your raw inputs into them. For the rows of a table (a DataFrame, "
            "dicts) that is processor=wf.Table(numerical=[…], categorical={…})."
        )


class TensorPlace(Place):
    """Steps of a sequence, or columns, wherever the model has them."""

    padding_in_doubt = True

    def length(self, batch: Batch) -> int:
        return len(self.columns(batch)) if self.read.stream == "table" or batch.by_input else super().length(batch)

    def locate(self, one: Batch, keys: int, vectors: Callable[[int, Batch], list[Tensor]]) -> None:
        names, facts = self.numbers(one), known_about(self.read.model)
        first, place = one.tensors[names[0]], self._place(one)
        elsewhere = first.ndim == 3 and (keys - first.shape[1] not in {0, 1} or keys - first.shape[2] in {0, 1})
        doubtful = len(names) > 1 or elsewhere
        if doubtful and place not in facts:
            facts[place], passes = None, dict[tuple[str, str], list[Tensor]]()

            def vectors_with(name: str, where: Any = ...) -> list[Tensor]:
                if (name, str(where)) not in passes:
                    other = one.tensors[name].clone()
                    other[0][where] = different(other[0])[where]
                    passes[name, str(where)] = vectors(keys, one.with_tensors(**{name: other}))
                return passes[name, str(where)]

            try:
                before = vectors(keys, one)
                read = {k for k in names if not torch.equal(before[-1], vectors_with(k)[-1])}
                for depth in reversed(range(len(before))):  # before positions were mixed, where they are
                    located = self._located(one, before, vectors_with, depth)
                    carried = {column[0] for column in located or () if column is not None}
                    facts[place] = facts[place] or (located if read <= carried else None)
            except (WhyformerError, IndexError):  # not every number is an input of this model
                pass

    def forget_places(self, one: Batch) -> None:
        known_about(self.read.model).pop(self._place(one), None)

    def _located(
        self, one: Batch, before: list[Tensor], vectors_with: Callable[..., list[Tensor]], depth: int
    ) -> tuple[Column | None, ...] | None:
        """Return what each position holds (None: what the model adds), by changing one argument at a time."""
        tokens = dict[int, Column]()

        def moved_by(name: str, where: Any = ...) -> list[int]:
            moved = (before[depth] != vectors_with(name, where)[depth]).any(-1)
            return [int(place) for place in moved.nonzero()[:, 0]]

        for name in self.numbers(one):
            moved, shape = moved_by(name), one.tensors[name].shape[1:]
            steps = [(name, i) for i in range(shape[0])] if shape and shape[0] == len(moved) else []
            across = _across(name, shape, len(moved)) if one.tensors[name].is_floating_point() else []  # ids: by step
            apart = (columns for columns in (across, steps) if columns)
            whole = [(name, ...)] * len(moved) if len(moved) < 2 else None
            columns = next((columns for columns in apart if len(moved_by(*columns[0])) == 1), whole)
            if columns is None or tokens.keys() & set(moved):  # or arguments that describe the same positions
                return None
            tokens |= zip(moved, columns, strict=True)
        return tuple(tokens.get(place) for place in range(len(before[depth]))) if tokens else None

    def numbers(self, batch: Batch) -> list[str]:
        """Return the arguments that are no masks."""
        numbers = batch.tensors.items()
        return [k for k, v in numbers if "mask" not in k and (v.dtype is not torch.bool or are_flags(k, batch.tensors))]

    def _place(self, batch: Batch) -> tuple[Any, ...]:
        return "positions", tuple((k, v.shape[1:], v.dtype) for k, v in batch.tensors.items())

    def located_tokens(self, batch: Batch) -> tuple[Column | None, ...]:
        """Return what each position of the attention holds, where ``locate`` found that out."""
        return known_about(self.read.model).get(self._place(batch)) or ()

    def is_one_token(self, one: Batch, keys: int, values: Callable[[Batch], Tensor]) -> bool:
        floats = {k: shifted(v) for k, v in one.tensors.items() if v.is_floating_point()}
        if self.read.stream != "table" or self.seen_columns(one, keys) or not floats or len(self.columns(one)) < 2:
            return False
        return int((values(one) != values(one.with_tensors(**floats))).any(-1).any(1)[0].sum()) == 1

    def reads_other_steps(self, one: Batch, keys: int) -> bool:
        return self.read.stream == "sequence" and not self.seen_columns(one, keys)

    def reads_beside(self, batch: Batch) -> bool:
        return self.read.stream == "sequence" and any(name != self.read.main for name, _ in self.columns(batch))

    def by_variable(self, batch: Batch) -> bool:
        return any(column is not None and isinstance(column[1], tuple) for column in self.located_tokens(batch))

    def _along(self, numbers: Tensor, batch: Batch) -> Tensor:
        """Return numbers like the sequence's, unit by unit: variables over all steps, patches over all channels."""
        count = [column[0] for column in self.located_tokens(batch) if column is not None].count(self.read.main)
        if numbers.ndim != 3 or not count or not self.by_variable(batch):
            return numbers
        return numbers.mT.reshape(len(numbers), count, -1)

    def columns(self, batch: Batch) -> list[Column]:
        """Return what each unit of the input is: a column or step of a tensor, a variable, or a tensor as a whole."""
        known: dict[str, list[Column]] = {}
        for name, where in filter(None, self.located_tokens(batch)):
            known.setdefault(name, []).append((name, where))
        names = (
            [self.read.main, *(k for k in known if k != self.read.main)]
            if self.read.stream == "sequence"
            else self.numbers(batch)
        )
        columns: list[Column] = []
        for name in names:
            tensor = batch.tensors[name]
            divided = tensor.ndim == 2 or (name == self.read.main and tensor.ndim > 1)
            columns += known.get(name) or ([(name, i) for i in range(tensor.shape[1])] if divided else [(name, ...)])
        return columns

    def seen_columns(self, batch: Batch, length: int) -> list[Column]:
        """Return the columns that became tokens: those that were located, or all."""
        columns, tokens = self.columns(batch), self.located_tokens(batch)
        if batch.by_input:
            return columns
        if len(tokens) == length:
            return [column for column in tokens if column is not None]
        return columns if length - len(columns) in {0, 1} else []

    def covers(self, batch: Batch, length: int) -> bool:
        return {name for name, _ in self.columns(batch)} <= {name for name, _ in self.seen_columns(batch, length)}

    def beside(self, batch: Batch, length: int) -> dict[str, Column]:
        units = {name for name, _ in self.seen_columns(batch, length)}
        return {name: (name, ...) for name in self.numbers(batch) if name not in units}

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        columns, tokens = self.seen_columns(batch, length), self.located_tokens(batch)
        many = len(batch.tensors) > 1
        labels = [_label(column, many) for column in columns]
        if not columns:  # positions of the model's own making
            labels = [f"position {i}" for i in range(length)]
        units = assemble(labels, [False] * len(labels), self.read.stream, length - len(labels), front)
        if len(tokens) == length and not batch.by_input:  # what the model adds may be anywhere
            special = tuple(column is None for column in tokens)
            added_labels = iter([units.labels[i] for i, added in enumerate(units.special) if added])
            names = iter(labels)
            units = replace(
                units, labels=tuple(next(added_labels if added else names) for added in special), special=special
            )
        return [pick(units, row.nonzero()[:, 0].tolist()) for row in self.keep(batch, length, front)]

    def require_one_sequence(self, batch: Batch) -> None:
        """Raise where units are not the steps of one sequence: its mean vector is no baseline of theirs."""
        columns = self.columns(batch)
        if any(
            name != self.read.main or (isinstance(where, tuple) and isinstance(where[1], slice))
            for name, where in columns
        ):
            raise NotOffered(
                "the mean of an input is that of the steps of one sequence, and some units here are patches of a "
                "signal or belong to other arguments: use 'zero'."
            )

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        return super().per_unit(self._along(detail, placed.batch), placed, largest)

    def in_steps(self, numbers: Tensor, batch: Batch, length: int) -> bool:
        known = self.named_columns or {name for name, _ in self.seen_columns(batch, length)} == {self.read.main}
        return known and super().in_steps(self._along(numbers, batch), batch, length)

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        sequence, real = self.read.stream == "sequence", batch.keep_BN  # found by running the model
        if real is None or not (real.shape[1] == length or (sequence and real.shape[1] < length)):
            steps = self.length(batch) if sequence else length
            device = next(iter(batch.tensors.values())).device
            real = torch.ones(batch.size, length, dtype=torch.bool, device=device)
            for name, mask in batch.tensors.items():
                if mask.shape == (batch.size, steps) and steps <= length and "mask" in name:
                    real = ~mask.bool() if "padding" in name else mask.bool()
                    if not name.endswith("mask") or name == "attention_mask" or "padding" in name:  # else: in doubt
                        require_shown(name, real)
        return with_added(real, length, front, True)  # a mask of the input covers no token of the model's own


class TensorMask(Mask):
    """Zeros, means or vectors without an id stand in place of masked columns."""

    place: TensorPlace

    fillers = ("mean", "resample")

    @property
    def replacements(self) -> tuple[str, ...]:
        tensors = {} if self.read.example is None else self.read.example.tensors
        codes = [name for name, tensor in tensors.items() if _are_codes(tensor)]
        return (MEAN_VECTOR, "zero", "mean") if codes and self.looks_up(codes) else ("zero", "mean")

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        columns, tokens = self.place.columns(one), () if one.by_input else self.place.located_tokens(one)
        real = self.place.keep(one, len(tokens or columns), None)[0].nonzero()[:, 0].tolist()
        if tokens and len(real) == len(units):
            columns = [column for i in real if (column := tokens[i]) is not None]
        else:  # without padding, and without the model's own token
            whole = not tokens and len(real) == units.special.count(False)
            columns = [columns[i] for i in real] if whole else self.place.seen_columns(one, len(units))
        if not columns:
            raise NotOffered(
                f"the model attends over {len(units)} positions of its own making; they cannot be matched with the "
                "input, so features cannot be masked."
            )
        places = [i for i, special in enumerate(units.special) if not special]
        return owners_of_columns(one, zip(places, columns, strict=True))

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        columns = self.place.columns(placed.batch)
        names = [name for name, _ in columns]
        if len(names) != placed.length or not all(placed.batch.tensors[k].is_floating_point() for k in names):
            return []
        first = {name: names.index(name) for name in names}
        return [Columns(placed, k, self, slice(i, i + names.count(k)), k) for k, i in first.items()]

    def arguments(self, placed: Placed) -> list[StreamInput]:
        everything = {self.read.stream: slice(None)}
        return (
            []
            if self.place.by_variable(placed.batch)
            else self.stream_inputs(self.read.stream, everything, placed, None)
        )

    def about_baseline(self, name: Any) -> tuple[str, ...]:
        tensors = {} if self.read.example is None else self.read.example.tensors
        return (CODE_0,) if name == "zero" and any(map(_are_codes, tensors.values())) else ()

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """With a pool, the mean is that of its inputs, else that of the input's own vectors."""
        if pool is not None:
            return of_pool(name, self.owners(units, one), one, pool)
        self.require_replacement(name)
        if name in {"zero", MEAN_VECTOR}:
            codes = ABSENT if name == MEAN_VECTOR else 0
            return [{k: torch.full_like(t, codes if _are_codes(t) else 0) for k, t in one.tensors.items()}]
        if name == "mean":
            require_steps(self.read.stream)
            self.place.require_one_sequence(one)
        return super().filling(name, units, one)


TensorInput = Modality.of(TensorRead, TensorPlace, TensorMask)


CODE_0 = (
    "a masked category holds code 0, since the model does not look these codes up in a table: a column that holds 0 "
    "scores 0. Describe the columns, processor=wf.Table(…, reference=rows), to compare them with typical rows."
)


def _are_codes(tensor: Tensor) -> bool:
    """Return whether a tensor holds categories, which a model looks up."""
    return tensor.dtype in {torch.int32, torch.int64}


def require_steps(stream: str) -> None:
    """Raise for columns: the mean of an input is over its steps."""
    if stream == "table":
        raise BadInput(
            "the mean of a column is taken from reference rows, not from the rows that are explained together: pass "
            "processor=Table(…, reference=rows), use 'zero', or for integrated gradients give a tensor, "
            "baseline=rows.mean(0)."
        )
