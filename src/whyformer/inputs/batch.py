"""Batches, the arguments that a model is called with, and raw inputs as lists."""

from __future__ import annotations

import inspect
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whyformer.capture.site import OffPlan
from whyformer.errors import BadInput, ModelFailed, UnknownName, WhyformerError
from whyformer.inputs.decoding import PLAIN_OPTIONS, Continuation, InputOptions, KeptPass
from whyformer.inputs.families import INPUT_STREAMS
from whyformer.inputs.table_schema import is_missing
from whyformer.loan.spread import out_of_memory
from whyformer.results.types import Target, Units
from whyformer.targets import require_dense

# Small tensors that Python reads: token ids, and which positions are real. Reading one from a GPU waits for all work in
# its queue, so each tensor is copied to the CPU once, as long as nothing is written to it.

AT_HAND = {"cpu"}  # devices that are read without waiting
_COPIES = WeakIdKeyDictionary()  # by tensor: its version (number of writes) when it was copied, and the copy


def on_host(tensor: Tensor) -> Tensor:
    """Return the same numbers on the CPU."""
    if tensor.device.type in AT_HAND or tensor.is_inference():  # inference tensors do not count writes
        return tensor.cpu()
    known = _COPIES.get(tensor)
    if known is None or known[0] != tensor._version:
        known = _COPIES[tensor] = tensor._version, tensor.cpu()
    copy: Tensor = known[1]
    return copy


def all_real(*shape: int, device: torch.device) -> Tensor:
    """Return an all-true mask, known on the host."""
    mask = torch.ones(*shape, dtype=torch.bool, device=device)
    if mask.device.type not in AT_HAND and not mask.is_inference():
        _COPIES[mask] = mask._version, torch.ones(*shape, dtype=torch.bool)
    return mask


# Arguments beside the ids of a text: which axes run along its tokens, and which numbers may be positions in it.

LABELS = ("label", "start_positions", "end_positions")  # read for a loss, not for the logits


def axes_along(name: str, tensor: Tensor, width: int) -> tuple[int, ...]:
    """Return the axes of an argument that have one entry per token: of a mask or bias, (B, 1, N, N), perhaps two."""
    if name.startswith("decoder_") or INPUT_STREAMS.get(name) in {"image", "audio"}:
        return ()  # of another length, though it may be the same by chance
    if _hides(name):
        return tuple(axis for axis in range(max(1, tensor.ndim - 2), tensor.ndim) if tensor.shape[axis] == width)
    return (1,) if tensor.ndim in {2, 3} and tensor.shape[1] == width else ()


def _hides(name: str) -> bool:
    return ("mask" in name or "bias" in name) and "pixel" not in name


def with_columns(tensors: Mapping[str, Tensor], width: int, columns_MK: Tensor) -> dict[str, Tensor]:
    """The arguments of one text of ``width`` tokens, once per row of columns: with these tokens alone."""
    chosen = {}
    for name, tensor in tensors.items():
        columns, axes = columns_MK.to(tensor.device), axes_along(name, tensor, width)
        if axes == (1,):
            chosen[name] = tensor[0][columns]
            continue
        rows = [tensor[0]] * len(columns)
        for axis in axes:
            rows = [part.index_select(axis - 1, shown) for part, shown in zip(rows, columns, strict=True)]
        chosen[name] = torch.stack(rows)
    return chosen


def with_deleted(tensors: Mapping[str, Tensor], width: int, columns_MK: Tensor) -> dict[str, Tensor]:
    """:func:`with_columns`, where the other tokens were deleted: the rest moves up, and so do its position_ids."""
    chosen = with_columns(tensors, width, columns_MK)
    numbers = tensors.get("position_ids")
    if numbers is None or numbers.ndim != 2 or numbers.shape[1] != width:
        return chosen
    columns = columns_MK.to(numbers.device)
    there = torch.zeros(len(columns), width, dtype=torch.long, device=numbers.device).scatter_(1, columns, 1)
    before = (1 - there).cumsum(1)  # deleted up to each token
    starts = torch.ones_like(numbers[0], dtype=torch.bool)
    starts[1:] = numbers[0, 1:] != numbers[0, :-1] + 1  # where a count begins anew, of a second text or after padding
    first = torch.where(starts, torch.arange(width, device=numbers.device), 0).cummax(0).values
    up_to_start = torch.nn.functional.pad(before, (1, 0))[:, :-1][:, first]
    moved = numbers - (before - up_to_start)
    return chosen | {"position_ids": moved.gather(1, columns).to(numbers.dtype)}


def pointers(tensors: Mapping[str, Tensor], main: str) -> tuple[str, ...]:
    """Return arguments that may hold positions in the text: whole numbers up to its length, but not one per token."""
    width = tensors[main].shape[1]
    return tuple(
        name
        for name, tensor in tensors.items()
        if name != main and not tensor.is_floating_point() and tensor.dtype is not torch.bool
        if tensor.ndim <= 3 and not axes_along(name, tensor, width) and not _hides(name)
        if not any(label in name for label in LABELS)
        if 0 <= int(on_host(tensor).max()) <= width
    )


Raw = Any
SHOWN = {"warnings", "groups", "by_input", "asked"}  # fields of a batch that change what is printed, not the numbers


# Types of inputs, for type checkers. Pillow and pandas are extras, so their classes are described by protocols.


class ImageLike(Protocol):
    """A PIL image."""

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def mode(self) -> str: ...
    def getbbox(self) -> Any: ...


class FrameLike(Protocol):
    """Rows of a table (a DataFrame)."""

    def iterrows(self) -> Any: ...


class Column(Protocol):
    """One row of a table or a column of texts (a Series)."""

    def to_frame(self) -> Any: ...


# Type checkers see neither the model nor the number of axes: an array counts as one picture or one sound.
Single = str | Path | ImageLike | np.ndarray[Any, Any]
Paired = tuple[Any, str] | Mapping[str, object]  # a picture with a text; one row of a table
Prompted = tuple[str, str]  # two texts that are compared or classified, or a prompt with its answer
Messages = list[dict[str, str]]  # a chat, or rows of words
Several = list[Any] | FrameLike
Tensors = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


LARGE = 1 << 20  # bytes


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The numbers on the host. Large ones go to memory that a GPU writes to directly, which is ten times as fast."""
    if not tensor.is_cuda or tensor.nbytes < LARGE:
        return tensor.cpu().numpy()
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return host.numpy()


@dataclass(frozen=True)
class Batch:
    """Tensors of some inputs, by the model's argument names, and what is known about each input."""

    tensors: dict[str, Tensor]
    keep_BN: Tensor | None = None  # real input positions
    raw: tuple[Raw, ...] = ()
    warnings: tuple[tuple[str, ...], ...] = ()
    encodings: tuple[Any, ...] = ()  # per input: facts of the tokenizer (offsets, words)
    constants: dict[str, Any] = field(default_factory=dict)  # arguments without a batch axis
    positions: tuple[int, ...] = ()  # per input: the output position explained, where the modality chose it
    answers: tuple[Continuation, ...] = ()  # per input: what a language model is to say, explained as a whole
    trunks: tuple[int, ...] = ()  # per row: the text that it is the beginning of, for models that do not look ahead
    shared: Batch | None = None  # the one row that all others are beginnings of: the model is run on it alone
    groups: tuple[int, ...] = ()  # per row: the input it belongs to, where one input gives several explanations
    spans: tuple[tuple[int | None, int | None], ...] = ()  # per input: first and last token of an explained answer
    targets: tuple[Any, ...] = ()  # per input: what is explained, where the modality found it out
    predictions: tuple[Target, ...] = ()  # per input: what the model says, where that is no class of its logits
    reference_rows: int = 0  # so many rows at the end are not explained: they are there for the first to look at
    alone: bool = False  # rows that would look at others are run without them
    by_input: bool = False  # units are all those of the inputs, wherever attention runs
    absent: bool = False  # some ids are those of masked units (capture/lookups.py, MeanVectors)
    asked: InputOptions = PLAIN_OPTIONS

    @cached_property
    def size(self) -> int:
        """The number of inputs."""
        return next(iter(self.tensors.values())).shape[0]

    @property
    def explained(self) -> range:
        """Return the rows that are explained, without reference rows (SAINT)."""
        return range(self.size - self.reference_rows)

    @property
    def real_BN(self) -> Tensor:
        """``keep_BN`` of a batch that has one."""
        assert self.keep_BN is not None
        return self.keep_BN

    @property
    def text_pass(self) -> KeptPass | None:
        """The pass over the text that is kept for other stretches of it, if any."""
        return self.answers[0].text_pass if len(self.answers) == 1 else None

    def beginning(self, length: int) -> Batch:
        """Cut one text to so many tokens, its last one included; return it whole where that is not possible."""
        keep_BN, tensors = self.keep_BN, self.tensors
        if keep_BN is None or self.size != 1 or any(t.shape[:2] != keep_BN.shape for t in tensors.values()):
            return self
        real = keep_BN[0].nonzero()[:, 0]
        if len(real) <= length or self.answers or self.spans:
            return self
        columns = torch.cat([real[: length - 1], real[-1:]])
        return replace(
            self,
            tensors={name: tensor[:, columns] for name, tensor in tensors.items()},
            keep_BN=keep_BN[:, columns],
            encodings=(),
            positions=tuple(min(p, length - 1) for p in self.positions),
            trunks=(),
            shared=None,
        )

    def select(self, rows: Sequence[int] | slice) -> Batch:
        """Return some of the inputs, in the given order."""
        index = list(range(self.size))[rows] if isinstance(rows, slice) else list(rows)
        # All fields but these hold a tuple with one entry per input, or an empty one.
        others = {"tensors", "keep_BN", "constants", "shared", "reference_rows", "alone", "by_input", "absent", "asked"}
        each: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        chosen: dict[str, Any] = {k: tuple(values[i] for i in index) for k, values in each.items() if values}
        return replace(
            self,
            tensors={k: _rows(v, index) for k, v in self.tensors.items()},
            keep_BN=None if self.keep_BN is None else _rows(self.keep_BN, index),
            shared=None,
            reference_rows=0,
            **chosen,
        )

    def contents(self) -> dict[str, Any]:
        """Return all that the model is given and what is explained of it, for cache keys."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in SHOWN}

    def with_tensors(self, **tensors: Tensor) -> Batch:
        """Return the same inputs with some tensors exchanged."""
        return replace(self, tensors=self.tensors | tensors, trunks=(), shared=None)


def _rows(tensor: Tensor, index: list[int]) -> Tensor:
    """Return a copy of some rows; an index would be copied to the device first, which waits for it."""
    if index and index == list(range(index[0], index[0] + len(index))):
        return torch.narrow_copy(tensor, 0, index[0], len(index))
    if len(tensor) == 1 and not any(index):
        return tensor.repeat(len(index), *[1] * (tensor.ndim - 1))
    return tensor[index]


class Placed(Protocol):
    """A batch with the positions of its units in the model's attention: the part of a Run that inputs read."""

    @property
    def batch(self) -> Batch: ...
    @property
    def length(self) -> int: ...
    @property
    def front(self) -> int | None: ...
    @property
    def keep_BN(self) -> Tensor: ...
    @property
    def units(self) -> list[Units]: ...


def names_mask(name: str) -> bool:
    """Return whether an argument is called like a mask."""
    return any(word in name for word in ("mask", "pad", "valid", "keep"))


def are_flags(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether an argument holds truth values of a row: those of a mask are as many as a sequence's positions."""
    sequences = [t for k, t in tensors.items() if k != name and (t.ndim == 3 or not t.is_floating_point())]
    flags, lengths = tensors[name], [t.shape[1] for t in sequences if t.ndim in (2, 3)]
    per_row = flags.ndim == 1 or (flags.ndim == 2 and flags.shape[1] not in lengths)
    return flags.dtype is torch.bool and per_row and not names_mask(name)


def shifted(values: Tensor) -> Tensor:
    """Return other numbers of about the same size."""
    return values * -1.5 + 0.1


Filling = dict[str, Tensor]  # the baseline of one input, tensor by tensor: (1, …) or what expands to it


@dataclass(frozen=True)
class SamplePool:
    """Inputs that means and random draws are taken from."""

    batch: Batch
    generator: np.random.Generator


def are_tensors(inputs: Any) -> bool:
    """The model's own tensors, as opposed to raw inputs."""
    if isinstance(inputs, Tensor):
        return True
    if isinstance(inputs, Mapping):
        return any(isinstance(v, Tensor) for v in inputs.values())
    return isinstance(inputs, (tuple, list)) and any(isinstance(v, Tensor) for v in inputs)


def is_single(inputs: Any) -> bool:
    """One raw input: a string, a pair of strings, an image, a path, an image with a text, samples with their rate."""
    if isinstance(inputs, tuple):
        return any(isinstance(p, (str, int)) for p in inputs)
    return not isinstance(inputs, (list, Mapping))


def as_list(inputs: Any) -> Any:
    """Turn a column of texts (a Series, an array) and an array of pictures into a list; other arrays are one input."""
    kind = getattr(getattr(inputs, "dtype", None), "kind", "")
    if kind and getattr(inputs, "ndim", 0) == 4:
        return list(inputs)
    if kind not in {"O", "U", "T"} or getattr(inputs, "ndim", 0) != 1:
        return inputs
    members = inputs.tolist()  # str, not numpy's str_, which would show in what is printed
    if members and all(isinstance(member, Number) for member in members):
        return inputs
    missing = [f"inputs[{i}]" for i, text in enumerate(members) if not isinstance(text, str) and is_missing(text)]
    if missing:
        places = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise BadInput(
            f"{len(missing)} of {len(members)} texts are missing (None or NaN): {places}. Leave them out (a Series has "
            "dropna()), or fill them in."
        )
    return members


# The arguments of a model

# Errors that pass through the model's forward without being raised by it.
NOT_THE_MODELS = (WhyformerError, torch.OutOfMemoryError, OffPlan)
_SIGNATURES: weakref.WeakKeyDictionary[Any, dict[str, inspect.Parameter]] = weakref.WeakKeyDictionary()


def signature_of(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a model, by name."""
    forward = model.forward
    function = getattr(forward, "__func__", None)  # of the class: the same for all its models
    parameters = None if function is None else _SIGNATURES.get(function)
    if parameters is None:
        signature = inspect.signature(forward).parameters
        parameters = {n: p for n, p in signature.items() if p.kind is not p.VAR_POSITIONAL}
        if function is not None:
            _SIGNATURES[function] = parameters
    return dict(parameters)


def named_tensors(
    tensors: Mapping[str, Any] | Sequence[Any] | Tensor, parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the user's own tensors by the names of the model's arguments."""
    if isinstance(tensors, Mapping):
        return dict(tensors)
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    if len(tensors) > len(parameters):
        many, takes = "s were" if len(tensors) > 1 else " was", f"only {', '.join(parameters)}"
        raise BadInput(f"{len(tensors)} tensor{many} given, and the model takes {takes if parameters else 'none'}.")
    return dict(zip(parameters, tensors, strict=False))


def require_dense_inputs(inputs: Mapping[Any, Any] | Sequence[Any] | Tensor) -> None:
    """Raise for tensors that are not dense (sparse, nested, quantised), before anything reads them."""
    several = {"the input": inputs} if isinstance(inputs, Tensor) else inputs
    named = several if isinstance(several, Mapping) else {f"inputs[{i}]": part for i, part in enumerate(several)}
    for name, part in named.items():
        if isinstance(part, Tensor):
            require_dense(str(name), part, f"give {name}{{}}.")


def require_numbers(tensors: Mapping[str, Tensor], main: str) -> None:
    """Raise for inputs that are empty, NaN or infinite, and for booleans outside of masks."""
    for name, tensor in tensors.items():
        hides = "mask" in name or "padding" in name or "bias" in name
        if not tensor.numel():
            raise BadInput(f"{name} has shape {tuple(tensor.shape)}: it is empty.")
        if tensor.dtype is torch.bool and not hides and (name == main or len(tensors) == 1):
            raise BadInput(
                f"{name} holds True and False, and numbers are expected: convert it, {name}.long() or .float()."
            )
        if not tensor.is_floating_point():
            continue
        numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch computes little in 8 bits
        # A mask that is added to scores hides by minus infinity.
        wrong = numbers.isnan() if hides else ~torch.isfinite(numbers)
        if bool(wrong.any()):
            row = int(wrong.flatten(1).any(1).int().argmax()) if tensor.ndim > 1 else 0
            raise BadInput(f"{name} holds NaN or infinity in input {row}: fill those places, or leave the input out.")


def required(batch: Batch, main: str) -> Tensor:
    """Return the main tensor of a batch; raise if the user's tensors lack it."""
    if main not in batch.tensors:
        raise UnknownName("tensor name", ", ".join(batch.tensors), [main], f"{main} is missing.")
    return batch.tensors[main]


def require_shown(name: str, keep_BN: Tensor) -> None:
    """Raise if a mask hides a whole input: it probably means the opposite of what it is taken for."""
    hidden = (~keep_BN.any(1)).nonzero()[:, 0].tolist()
    if hidden and name == "attention_mask":
        raise BadInput(f"attention_mask masks every position of input {hidden[0]}: unmask at least one.")
    if hidden:
        raise BadInput(
            f"{name} hides every position of input {hidden[0]}, where True is taken for a real position. If True means "
            "hidden in your model, give the argument a name with 'padding' in it, or wrap the model and pass ~mask on."
        )


PACKAGES = Path(torch.__file__).parent, Path(__file__).parents[1]  # torch and whyformer


def model_failed(model: nn.Module, batch: Batch, error: Exception) -> Exception:
    """Return the error to raise when the model's forward failed: where, on which tensors, and what to try."""
    if out_of_memory(error):  # whoever runs the batch makes it smaller
        return torch.OutOfMemoryError(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    # The last line of the model's own code, not of what it calls in torch or of what watches it here.
    outside = [f for f in frames if not any(Path(f.filename).is_relative_to(package) for package in PACKAGES)]
    last = (outside or frames)[-1]
    shapes = ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in batch.tensors.items())
    name = type(model).__name__
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message[:300]}{'…' if len(message) > 300 else ''}"
    return ModelFailed(
        f"{name} raised {said} (in {Path(last.filename).name}, line {last.lineno}, {last.name}), when it was run on "
        f"{shapes}. Call it directly on the same tensors, model(**tensors): if that fails, too, the model does not "
        "fit these inputs (processor, length, dtype or device)."
    )
