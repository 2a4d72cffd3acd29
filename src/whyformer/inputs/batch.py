"""Batches, the arguments that a model is called with, and raw inputs as lists."""

from __future__ import annotations

import inspect
import math
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whyformer.capture.site import OffPlan
from whyformer.errors import BadInput, MissingProcessor, ModelFailed, WhyformerError, listed
from whyformer.inputs.families import INPUT_STREAMS
from whyformer.results.types import Target, Units
from whyformer.targets import require_dense

# Numbers of small tensors that Python asks about: token ids, and which positions are real.
#
# A GPU stops for every question, and what it was told stands in a row before it: asked in the middle of an explanation,
# the answer comes when all of that is done. So each tensor is fetched once, as long as nobody writes to it.

AT_HAND = {"cpu"}  # devices that answer at once
_COPIES = WeakIdKeyDictionary()  # by tensor: how often it had been written to, and its numbers


def on_host(tensor: Tensor) -> Tensor:
    """The same numbers on the CPU."""
    if tensor.device.type in AT_HAND or tensor.is_inference():  # writes to the latter are not counted
        return tensor.cpu()
    known = _COPIES.get(tensor)
    if known is None or known[0] != tensor._version:
        known = _COPIES[tensor] = tensor._version, tensor.cpu()
    copy: Tensor = known[1]
    return copy


def all_real(*shape: int, device: torch.device) -> Tensor:
    """A mask without padding, of which the CPU knows that."""
    mask = torch.ones(*shape, dtype=torch.bool, device=device)
    if mask.device.type not in AT_HAND and not mask.is_inference():
        _COPIES[mask] = mask._version, torch.ones(*shape, dtype=torch.bool)
    return mask


# Arguments beside the ids of a text: which axes run along its tokens, and which numbers may be positions in it.

LABELS = ("label", "start_positions", "end_positions")  # read for a loss, not for the logits


def axes_along(name: str, tensor: Tensor, width: int) -> tuple[int, ...]:
    """The axes of an argument that have one entry per token.

    A mask or bias may have two of them, (B, N, N) or (B, 1, N, N). Other arguments have the tokens on their second
    axis; of four axes and more that one holds the channels of a picture.
    """
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
        elif axes:
            chosen[name] = torch.stack([_selected(tensor[0], axes, row) for row in columns])
        else:
            chosen[name] = tensor[[0] * len(columns)]
    return chosen


def _selected(tensor: Tensor, axes: tuple[int, ...], columns: Tensor) -> Tensor:
    for axis in axes:
        tensor = tensor.index_select(axis - 1, columns)
    return tensor


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
    """Arguments of whole numbers up to the length, with another number of entries than there are tokens.

    They may be positions in the text, such as the first and last token of a word, or its length.
    """
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
SHOWN = {"warnings", "groups"}  # of a batch: what a user reads beside the numbers, and in which order


class ImageLike(Protocol):
    """A PIL image, to type checkers: Pillow is an extra."""

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def mode(self) -> str: ...
    def getbbox(self) -> Any: ...


class FrameLike(Protocol):
    """Rows of a table (a DataFrame), to type checkers: pandas is an extra."""

    def iterrows(self) -> Any: ...


class Column(Protocol):
    """One row of a table or a column of texts (a Series), to type checkers."""

    def to_frame(self) -> Any: ...


# What is given, to type checkers, which see neither the model nor how many axes an array has: an array is one picture
# or one sound, and what a detector finds in a picture is not known to be several.
Single = str | Path | ImageLike | np.ndarray[Any, Any]
Paired = tuple[Any, str] | Mapping[str, object]  # a picture with a text; one row of a table
Prompted = tuple[str, str]  # two texts that are compared or classified, or a prompt with its answer
Messages = list[dict[str, str]]  # a chat, or rows of words
Several = list[Any] | FrameLike
Tensors = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


@dataclass(frozen=True)
class Decoding:
    """How an answer comes about, and as what it is explained.

    generate: tokens that the model writes, or what ``model.generate`` is told. span: the answer as a whole, or a range
    of its characters, in place of one explanation per token. choices: what the next token is chosen among. one_pass:
    tokens share one gradient. seed: of an answer that is drawn.
    """

    generate: int | Mapping[str, Any] | None = None
    span: bool | tuple[int, int] = False
    choices: tuple[str, ...] = ()
    one_pass: bool = False
    seed: int = field(default=0, compare=False)

    def __bool__(self) -> bool:
        return self.generate is not None or bool(self.span) or bool(self.choices) or self.one_pass


PLAIN = Decoding()


@dataclass(frozen=True)
class Continuation:
    """Tokens that a language model says one after the other, from a position of its text on."""

    tokens: tuple[int, ...]
    start: int  # the position, among the real ones, after which the first of them is said
    text: str = ""

    def moved(self, by: int) -> Continuation:
        """The same after ``by`` more tokens."""
        return replace(self, start=self.start + by)


@dataclass(frozen=True)
class Batch:
    """Tensors of some inputs, by the model's argument names, and what is known about each input."""

    tensors: dict[str, Tensor]
    keep_BN: Tensor | None = None  # real input positions
    raw: tuple[Raw, ...] = ()
    warnings: tuple[tuple[str, ...], ...] = ()
    encodings: tuple[Any, ...] = ()  # per input: what the tokenizer knows (offsets, words)
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

    @property
    def size(self) -> int:
        """How many inputs there are."""
        return next(iter(self.tensors.values())).shape[0]

    def beginning(self, length: int) -> Batch:
        """One text cut to so many tokens, its last one included; itself, where that is not a matter of columns."""
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
        """Some of the inputs, in the order asked for."""
        index = list(range(self.size))[rows] if isinstance(rows, slice) else list(rows)

        def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in index) if values else ()

        return replace(
            self,
            tensors={k: v[index] for k, v in self.tensors.items()},
            keep_BN=None if self.keep_BN is None else self.keep_BN[index],
            raw=pick(self.raw),
            warnings=pick(self.warnings),
            encodings=pick(self.encodings),
            positions=pick(self.positions),
            answers=pick(self.answers),
            trunks=pick(self.trunks),
            shared=None,
            groups=pick(self.groups),
            spans=pick(self.spans),
            targets=pick(self.targets),
            predictions=pick(self.predictions),
            reference_rows=0,
        )

    def contents(self) -> dict[str, Any]:
        """All that the model is given and what is explained of it; for names of files."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in SHOWN}

    def with_tensors(self, **tensors: Tensor) -> Batch:
        """The same inputs with some tensors exchanged."""
        return replace(self, tensors=self.tensors | tensors, trunks=(), shared=None)


class Placed(Protocol):
    """A batch whose units stand at positions of the model's attention (whyformer.run has them)."""

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


class Encoder(Protocol):
    """Makes tensors of raw inputs."""

    def encode(self, raw: Sequence[Raw]) -> Batch: ...


def are_tensors(inputs: Any) -> bool:
    """The model's own tensors, as opposed to raw inputs."""
    if isinstance(inputs, Tensor):
        return True
    if isinstance(inputs, Mapping):
        return any(isinstance(v, Tensor) for v in inputs.values())
    return isinstance(inputs, (tuple, list)) and bool(inputs) and any(isinstance(v, Tensor) for v in inputs)


def is_single(inputs: Any) -> bool:
    """One raw input: a string, a pair of strings, an image, a path, an image with a text, samples with their rate."""
    if isinstance(inputs, tuple):
        return any(isinstance(p, (str, int)) for p in inputs)
    return not isinstance(inputs, (list, Mapping))


def as_list(inputs: Any) -> Any:
    """A column of texts (a pandas Series, an array of strings) is a list of them, and so is an array of pictures.

    An array of numbers along one axis is one sound, along two or three one picture.
    """
    kind = getattr(getattr(inputs, "dtype", None), "kind", "")
    if kind and getattr(inputs, "ndim", 0) == 4:
        return list(inputs)
    if kind not in {"O", "U", "T"} or getattr(inputs, "ndim", 0) != 1:
        return inputs
    members = list(inputs)
    if members and all(isinstance(member, Number) for member in members):
        return inputs
    missing = [f"inputs[{i}]" for i, member in enumerate(members) if _is_missing(member)]
    if missing:
        places = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise BadInput(
            f"{len(missing)} of {len(members)} texts are missing (None or NaN): {places}. Leave them out (a Series has "
            "dropna()), or fill them in."
        )
    return members


def _is_missing(member: Any) -> bool:
    return member is None or type(member).__name__ == "NAType" or (isinstance(member, float) and math.isnan(member))


def encoded(modality: Encoder, raw: list[Raw]) -> Batch:
    """What a modality makes of the inputs. Where one of several is to blame, the error says which."""
    try:
        return modality.encode(raw)
    except MissingProcessor:
        raise
    except BadInput as error:
        place = _to_blame(modality, raw, str(error)) if len(raw) > 1 else None
        if place is not None:
            error.args = (f"inputs[{place}]: {error}",)
        raise


def _to_blame(modality: Encoder, raw: list[Raw], message: str) -> int | None:
    """The first input that gives this error by itself, unless all do: then it is not the input."""
    first, fine = None, False
    for place, one in enumerate(raw):
        try:
            modality.encode([one])
            fine = True
        except BadInput as error:
            first = place if first is None and str(error) == message else first
        if fine and first is not None:
            return first
    return None


# The arguments of a model: their names, the tensors that a user gives for them, and what it raises when called.

# What passes through the model's forward without being its doing.
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
    """The user's own tensors by the names of the model's arguments."""
    if isinstance(tensors, Mapping):
        return dict(tensors)
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    if len(tensors) > len(parameters):
        raise BadInput(f"{len(tensors)} tensors for a model that takes {len(parameters)}: {', '.join(parameters)}.")
    return dict(zip(parameters, tensors, strict=False))


def require_dense_inputs(inputs: Mapping[Any, Any] | Sequence[Any] | Tensor) -> None:
    """Refuse tensors that hold no ordinary numbers before anything reads them."""
    if isinstance(inputs, Tensor):
        parts: dict[str, Any] = {"the input": inputs}
    elif isinstance(inputs, Mapping):
        parts = {str(name): part for name, part in inputs.items()}
    else:
        parts = {f"inputs[{place}]": part for place, part in enumerate(inputs)}
    for name, part in parts.items():
        if isinstance(part, Tensor):
            require_dense(name, part, f"give {'the tensor' if part is inputs else name}{{}}.")


def require_numbers(tensors: Mapping[str, Tensor], main: str) -> None:
    """Nothing empty, NaN or infinite among the inputs, and no truth values but in masks."""
    for name, tensor in tensors.items():
        hides = "mask" in name or "padding" in name or "bias" in name
        if not tensor.numel():
            raise BadInput(f"{name} has shape {tuple(tensor.shape)}: it holds nothing to explain.")
        if tensor.dtype is torch.bool and not hides and (name == main or len(tensors) == 1):
            raise BadInput(
                f"{name} holds True and False, and numbers are expected: convert it, {name}.long() or .float()."
            )
        numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch computes little in 8 bits
        if tensor.is_floating_point() and not bool(torch.isfinite(numbers).all()):
            if not hides or bool(numbers.isnan().any()):  # a mask that is added to scores hides by minus infinity
                row = int((~torch.isfinite(numbers)).flatten(1).any(1).int().argmax()) if tensor.ndim > 1 else 0
                raise BadInput(
                    f"{name} holds NaN or infinity in input {row}: fill those places, or leave the input out."
                )


def require_shown(name: str, keep_BN: Tensor) -> None:
    """A mask of the model's own name that hides a whole input says the opposite of what it is taken for."""
    hidden = (~keep_BN.any(1)).nonzero()[:, 0].tolist()
    if hidden and name == "attention_mask":
        raise BadInput(f"attention_mask hides every position of input {hidden[0]}: there is nothing to explain in it.")
    if hidden:
        raise BadInput(
            f"{name} hides every position of input {hidden[0]}, where True is taken for a real position. If True means "
            "hidden in your model, give the argument a name with 'padding' in it, or wrap the model and pass ~mask on."
        )


def model_failed(model: nn.Module, batch: Batch, error: Exception) -> ModelFailed:
    """Whose code raised, on which input, and what to try."""
    trace = traceback.extract_tb(error.__traceback__)
    last = trace[-1]
    shapes = ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in batch.tensors.items())
    name = type(model).__name__
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message[:300]}{'…' if len(message) > 300 else ''}"
    return ModelFailed(
        f"{name} raised {said} (in {Path(last.filename).name}, line {last.lineno}, {last.name}), when it was run on "
        f"{shapes}. Call it by yourself on the same tensors, model(**tensors): where that fails too, the model and "
        "these inputs do not fit each other (their processor, length, dtype or device)."
    )


OTHERS = (
    "the model also reads {others}, which {are} no unit{s} here: what is taken away or put back is {main} alone, and "
    "scores of attention, or of gradients where the first block begins, are of all that was put together at a position."
)


def others_note(main: str, others: Sequence[str]) -> str:
    """What every explanation has to say where numbers of the input are no units."""
    many = len(others) > 1
    return OTHERS.format(others=listed(others, "and"), are="are" if many else "is", s="s" * many, main=main)
