"""Inputs on their way to a model: the tensors of a batch, and raw inputs of every spelling as a list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Number
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, MissingProcessor
from whyformer.types import Target, Units

Raw = Any
SHOWN = {"warnings", "groups"}  # of a batch: what a user reads beside the numbers, and in which order


class Picture(Protocol):
    """A PIL image, to type checkers: Pillow is an extra."""

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def mode(self) -> str: ...
    def getbbox(self) -> Any: ...


class Frame(Protocol):
    """Rows of a table (a DataFrame), to type checkers: pandas is an extra."""

    def iterrows(self) -> Any: ...


class Column(Protocol):
    """One row of a table or a column of texts (a Series), to type checkers."""

    def to_frame(self) -> Any: ...


# What is given, to type checkers, which see neither the model nor how many axes an array has: an array is one picture
# or one sound, and what a detector finds in a picture is not known to be several.
Single = str | Path | Picture | np.ndarray[Any, Any]
Paired = tuple[Any, str] | Mapping[str, object]  # a picture with a text; one row of a table
Prompted = tuple[str, str]  # two texts that are compared or classified, or a prompt with its answer
Messages = list[dict[str, str]]  # a chat, or rows of words
Several = list[Any] | Frame
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


def listed(inputs: Any) -> Any:
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
