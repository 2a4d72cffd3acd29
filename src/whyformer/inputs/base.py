"""A modality knows the inputs of a model: how to encode them, what their units are, and how to take a unit away.

One contract on one page: what a new modality may answer, with the answer that holds unless it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.embeddings import SwapEmbedding, input_table
from whyformer.capture.leaves import LookupLeaves
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.batch import (
    NOT_THE_MODELS,
    PLAIN,
    Batch,
    Decoding,
    Placed,
    Raw,
    all_real,
    are_tensors,
    encoded,
    is_single,
    model_failed,
    named_tensors,
    others_note,
    require_numbers,
    signature_of,
)
from whyformer.inputs.families import INPUT_STREAMS
from whyformer.inputs.stream_inputs import StreamInput
from whyformer.loan.spread import execution_device
from whyformer.results.types import Units

NO_WEIGHT = torch.empty(0)  # of a model without any


@dataclass(frozen=True)
class Source:
    """Inputs as they came: encoded already (tensors, rows of a table), or raw and encoded when they are asked for."""

    modality: Modality
    whole: Batch | None
    size: int
    raw: tuple[Raw, ...] = ()
    single: bool = False  # one raw input, not a list of them

    def batch(self, rows: Sequence[int] | None = None) -> Batch:
        """Some of the inputs, padded among themselves; all of them where no rows are named."""
        if self.whole is not None:
            return self.whole if rows is None else self.whole.select(rows)
        return encoded(self.modality, list(self.raw) if rows is None else [self.raw[i] for i in rows])


class Modality(ABC):
    """One kind of input. Abstract; the final classes are in the files beside this one.

    Four methods make a modality: encode, units, keep, without_unit (with replacements). The rest has answers that fit
    one tensor of floats, (inputs, positions, features), and is there to be answered otherwise.
    """

    stream: str  # what its units are called: words are drawn as text, units with a grid as a picture, others as bars
    main: str  # the argument whose positions are the units
    multi_input = False  # several streams of units: no single tensor is "the" input
    lengths_vary = False  # each input has as many positions as it needs; the rest of its row is padding
    padding_in_doubt = False  # a model may hide padding by itself, or by a mask that means the opposite
    embeds = False  # the input are ids: its numbers are the vectors that the model looks up for them
    pixels = False  # the input is a picture, and patches of it are the units
    pictured = False  # a picture is part of the input, and results hold it
    named_columns = False  # the input is a row of a table whose columns are described
    has_categories = False  # some of its columns are categories
    reference: Any = None  # rows that means and resampling are taken from, where the description names some
    reference_name = ""
    opaque = False  # the model is asked from outside: nothing of it can be seen, or differentiated
    compares = False  # the one "class" is the similarity of two inputs
    generates = False  # the classes are tokens of a vocabulary
    objects = False  # a detector's: one explanation per object that it found
    positioned = ""  # the stream whose output position ``Batch.positions`` chooses
    decoding: Decoding = PLAIN  # what a language model is asked for
    first_token = True  # of a language model: it has a score
    mixes_rows = False  # what is said of one input depends on others in the batch (SAINT)
    segments: Any = "token"  # what is scored as one: tokens, words, sentences, or ranges of characters
    classes: tuple[str, ...] = ()  # names of the outputs, where the inputs' description has them
    unscored: tuple[str, ...] = ()  # arguments that reach the answer, and are none of its units
    passes = 0  # that were made to find out which arguments are sequences
    place: torch.device | None = None  # where tensors are put; None: where the model is

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        self.model = model
        self.processor = processor
        self.parameters = signature_of(model)

    @property
    def kind(self) -> str:
        """What the choice of a method goes by: "text", "image", "table", …; "" where nothing is known."""
        return self.stream

    def source(self, inputs: Any) -> Source:
        """Whatever was given, nothing encoded that can wait."""
        if are_tensors(inputs):
            batch = self.adopt(inputs)
            return Source(self, batch, batch.size)
        if isinstance(inputs, (Mapping, Set)):
            raise BadInput(_no_list(inputs))
        if isinstance(inputs, list) and inputs and isinstance(inputs[0], (Mapping, list)):
            inputs = self.from_messages(inputs)
        single = is_single(inputs)
        raw = (inputs,) if single else tuple(inputs)
        if not raw:
            raise BadInput("there is nothing to explain: the list of inputs is empty.")
        return Source(self, None, len(raw), raw, single)

    def from_messages(self, inputs: list[Any]) -> Any:
        """What a chat (messages: dicts with role and content), or a list of chats, makes one input each."""
        return inputs

    def ask(self, decoding: Decoding, segments: Any) -> None:
        """Take what a language model is asked for, and what is scored as one."""
        if decoding:
            raise NotOffered(
                "generate, span, choices and one_pass are for language models that read text, and "
                f"{type(self.model).__name__} was taken for none. Leave them out."
            )
        self.segments = segments

    def picture(self, batch: Batch, row: int) -> str | None:
        """The input as a picture, where it is one (a data URI)."""
        return None

    def divided(self, units: Units, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        """Units that are scored as one, and what they are then; None where each stands for itself.

        facts: what is known about the input besides them.
        """
        if self.segments == "token":
            return None
        raise NotOffered(f"units={self.segments!r} divides a text, and this input is none. Leave units out.")

    @abstractmethod
    def encode(self, raw: Sequence[Raw]) -> Batch:
        """Raw inputs → tensors."""

    @abstractmethod
    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        """Units of each input, when the model's attention runs over ``length`` positions.

        ``front``: how many of the positions that the model adds itself come before the input's; None: all of them.
        """

    @abstractmethod
    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        """(B, length) real positions of the model's attention."""

    @abstractmethod
    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        """One input once per unit, each time with that unit taken away; padded to one batch of len(units)."""

    def left_out(self, batch: Batch, row: int, units: Units, replacement: Any) -> Callable[[slice], Batch]:
        """:meth:`without_unit`, for a stretch of the units at a time; large images are made as they are asked for."""
        return self.without_unit(batch, row, units, replacement).select

    def length(self, batch: Batch) -> int:
        """Positions of the input itself, padding included; a model may add others of its own."""
        tensor = batch.tensors[self.main]
        return tensor.shape[1] if tensor.ndim > 1 else 1

    def lengthened(self, tensors: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
        """The tensors with ``extra`` positions of padding at the end, where a mask can say that they are padding."""
        return tensors

    def removable(self, units: Units) -> list[bool]:
        """Units that can be taken away: not the tokens that the model adds itself."""
        return [not special for special in units.special]

    @property
    def replacements(self) -> tuple[str, ...]:
        """What a unit can be replaced by; the first is the default."""
        return ()

    # Parts of the input away, several at a time

    takes_token_ids = False  # any token id can stand for an absent unit
    takes_texts = False  # any text can
    pointers: tuple[str, ...] = ()  # arguments that may hold positions, which deleted units would move
    deletes_several = False  # "delete" leaves out any number of units at once, without tensors of other lengths

    def trimmed(self, one: Batch) -> Batch:
        """One input without its padding, where the model gives the same without it."""
        return one

    def only_token(self) -> int:
        """What is left of a text of which every token was deleted, since a model reads at least one."""
        raise NotOffered(f"every unit cannot be deleted here: use {self.in_place()}.")

    def in_place(self) -> str:
        """What to use where deleting is not possible."""
        return "another replacement"

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        """Per tensor of one input (without the batch axis): the unit that each entry belongs to, -1: to none."""
        raise NotOffered("which tensor entries belong to which unit is not known here: use another replacement.")

    @property
    def fillers(self) -> tuple[str, ...]:
        """What can be put in place of absent entries of a tensor, at the places that :meth:`owners` knows."""
        return ()

    def filling(
        self, name: str, units: Units, one: Batch, pool: Batch, generator: np.random.Generator
    ) -> list[dict[str, Tensor]]:
        """What one of the :attr:`fillers` puts there, tensor by tensor: once, or once per draw if it is random.

        pool: the inputs that means and random draws are taken from.
        """
        raise UnknownName("value of replace", name, self.fillers)

    def token_ids(self, units: Units, one: Batch) -> Tensor | None:
        """(U,) the token that each unit of one input is, where units are tokens."""
        return None

    @property
    def special_unknown(self) -> bool:
        """Nobody said which tokens are special, so all count as words."""
        return False

    # The numbers of an input

    def embedding(self) -> nn.Embedding | None:
        """The table of the model's own in which ids are looked up, where it says which one that is."""
        table = input_table(self.model) if self.embeds else None
        return table if isinstance(table, nn.Embedding) else None

    def special_ids(self) -> set[int]:
        """Ids that stand for no part of the input."""
        return set()

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The names of ids."""
        return [str(i) for i in ids]

    def looked_up(self, batch: Batch, make: Callable[[Tensor], Tensor]) -> TorchFunctionMode:
        """A mode in which the vectors that the model looks up for the input are what ``make`` makes of them."""
        if self.embeds:
            return SwapEmbedding(batch.tensors[self.main], self.embedding(), make)
        return LookupLeaves(make, batch.tensors)

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        """(B, length) the sum, or the largest, of a (B, …) tensor like the input's own at each position."""
        scores = over_features(detail, largest)
        missing = placed.length - scores.shape[1]
        if missing <= 0:
            return scores
        front = missing if placed.front is None else placed.front
        return nn.functional.pad(scores, (front, missing - front))

    @property
    def default_baseline(self) -> str:
        """Where a path to the input starts unasked."""
        return "zero"

    def other_baselines(self) -> tuple[str, ...]:
        """Where else it may start if zeros are no place to: none where that is not known."""
        return ()

    def has_vector(self, name: str) -> bool:
        """Whether ``name`` stands for other numbers than zeros."""
        return name != "zero"

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        """The inputs with ``name`` in place of all that is explained; None where that is no other input ("zero")."""
        return None

    def open_tokens(self, batch: Batch, keep_special: bool | Sequence[int]) -> Tensor | None:
        """(B, N) positions that are neither padding nor kept, where ids say which are special."""
        return None

    # Rows of a table that look at each other

    def beside_reference_rows(self, one: Batch) -> Batch:
        """One input beside those that it looks at."""
        return one

    # What a study asks

    def cells(self, batch: Batch) -> tuple[int, int] | None:
        """Rows and columns of the units of a picture, for a model that has no patches."""
        return None

    def first_changed(self, batch: Batch, grid: tuple[int, int]) -> Batch | None:
        """The inputs with other numbers in the first of ``grid`` patches; None where there are none."""
        return None

    def is_one_token(self, one: Batch, keys: int, forward: Callable[[Batch], Any]) -> bool:
        """All of the input is one of the ``keys`` positions: the others are something else (rows that were learned).

        forward: runs the model, and counts how often.
        """
        return False

    def reads_other_steps(self, one: Batch, keys: int) -> bool:
        """The input has steps of its own, and the ``keys`` positions that the model attends over are not those."""
        return False

    def settle(self, one: Batch, grid: tuple[int, int] | None) -> int:
        """Find out, by running the model, what its units are; how many passes that took."""
        return self.passes

    def in_steps(self, numbers: Tensor, batch: Batch, length: int) -> bool:
        """The second axis of the input's numbers holds the ``length`` positions that the model attends over."""
        return numbers.ndim <= 3 and (numbers.ndim < 2 or numbers.shape[1] <= length)

    def padded_grid(self, batch: Batch, length: int) -> tuple[int, int] | None:
        """Rows and columns of what the model attends to, padding included, where pictures are padded."""
        return None

    def notes(self, batch: Batch, length: int) -> tuple[str, ...]:
        """What every explanation of these inputs has to say."""
        if self.multi_input or self.stream == "table" or self.main not in batch.tensors:
            return ()
        codes = batch.tensors[self.main].is_floating_point()  # ids beside ids describe the same words (boxes, segments)
        numbers = {k: v for k, v in batch.tensors.items() if k != self.main and v.dtype != torch.bool}
        others = [k for k, v in numbers.items() if v.is_floating_point() or (codes and v.ndim > 1)]
        others = [*(k for k in others if "mask" not in k), *self.unscored]
        return (others_note(self.main, others),) if others else ()

    # Several streams

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        """The tensors whose positions become tokens, and the stream each of them starts."""
        known = {k: INPUT_STREAMS.get(k) for k in batch.tensors}
        if not any(known.values()):
            return [(v, self.stream) for k, v in batch.tensors.items() if "mask" not in k]
        return [(v, known[k] or self.stream) for k, v in batch.tensors.items() if known[k] or k == self.main]

    def part(self, stream: str, batch: Batch) -> tuple[Modality, Batch]:
        """The modality of one stream, and the batch as it sees it."""
        streams = {name for _, name in self.inputs(batch)}
        if stream in {"queries", "target"} - streams:  # a learned query that pools, or a decoder that asks with its own
            return LearnedPositions(self.model, self.main, stream), batch
        return self, batch

    def stream_inputs(
        self, stream: str, layout: Mapping[str, slice], placed: Placed, whole: Modality
    ) -> list[StreamInput]:
        """Where the numbers of one stream enter the model, for gradients; none for positions that it brings itself.

        layout: where each stream lies among all positions. whole: the modality that this one is the ``part`` of.
        """
        return []

    def places(self, batch: Batch) -> Tensor | None:
        """(B, N) positions of the main stream where another stream's result is placed, if there are any."""
        return None

    def form(self, batch: Batch) -> tuple[Any, ...]:
        """What about these inputs, besides names and axes of tensors, makes a study of its own necessary."""
        return ()

    def one_by_one(self, batch: Batch) -> bool:
        """Inputs that differ in form, so that each has to be studied and explained by itself."""
        return False

    def alone(self, one: Batch) -> Batch:
        """One input of an uneven batch, as it is by itself."""
        return one

    def scalar(self, scalar: str) -> str:
        """What is explained when ``scalar`` is asked for."""
        return scalar

    def pairs(self, output: Any) -> Tensor | None:
        """(B, N_a, N_b) what each pair of units of two compared inputs adds to their similarity, where it is known."""
        return None

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        """(B, C) what is explained, where this modality reads the model's output in its own way."""
        return None

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        """One row (and target) per explanation, for inputs that give several: detections, generated tokens."""
        return batch, target

    def located(self, batch: Batch, target: Any) -> Batch:
        """The same of inputs that give one each: the token, span or choice that is explained, where there is one."""
        return batch

    def adopt(self, tensors: Mapping[str, Any] | Sequence[Any] | Tensor) -> Batch:
        """The user's own tensors → a batch, with names checked against the model."""
        named = named_tensors(tensors, self.parameters)
        # transformers models take **kwargs for flags; their tensors are all spelled out
        flags = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        accepts_any = flags and getattr(self.model, "main_input_name", None) not in self.parameters
        for name in named:
            if name not in self.parameters and not accepts_any:
                raise UnknownName("model argument", name, self.parameters, f"{type(self.model).__name__} takes these.")
        batched = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.ndim > 0}
        constants = {k: v for k, v in named.items() if k not in batched and v is not None}
        if not batched:
            raise BadInput("no tensor among the inputs: pass a dict or tuple of tensors with a leading batch axis.")
        sizes = {k: len(v) for k, v in batched.items()}
        if len(set(sizes.values())) != 1:
            raise BadInput(f"tensors disagree about the batch size: {sizes}. All need the same leading axis.")
        if 0 in sizes.values():
            raise BadInput("the batch is empty.")
        require_numbers(batched, self.main)
        moved = {k: self.move(v) for k, v in batched.items()}
        return Batch(moved, constants=constants)

    def move(self, tensor: Tensor) -> Tensor:
        """To the model's device, floats in the model's dtype."""
        weight = next(iter(self.model.parameters()), NO_WEIGHT)
        dtype = weight.dtype if tensor.is_floating_point() and weight.is_floating_point() else tensor.dtype
        device = self.place or (execution_device(self.model) if weight.is_meta else weight.device)
        return tensor.to(device=device, dtype=dtype)

    def called_with(self, constants: Mapping[str, Any]) -> Mapping[str, Any]:
        """What decides about a call of the model besides the tensors of a batch: facts about the model depend on it."""
        return constants

    def call(self, batch: Batch, **extra: Any) -> Any:
        """Run the model on a batch."""
        arguments = {**batch.tensors, **batch.constants, **extra}
        positional = [name for name, p in self.parameters.items() if p.kind is p.POSITIONAL_ONLY and name in arguments]
        places = [arguments.pop(n) for n in positional]
        try:
            return self.model(*places, **arguments)
        except NOT_THE_MODELS:
            raise
        except Exception as error:
            raise model_failed(self.model, batch, error) from error


class LearnedPositions(Modality):
    """Positions that the model brings itself (object queries, a pooling probe): shown, and flagged as special."""

    def __init__(self, model: nn.Module, main: str, stream: str = "queries", word: str = "query") -> None:
        super().__init__(model)
        self.main, self.stream, self.word = main, stream, word

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise NotOffered("these positions are the model's own and are not given.")

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        labels = tuple(f"[{self.word} {i}]" for i in range(length))
        plain = Units(labels, (True,) * length, (self.stream,) * length)
        return [replace(plain, boxes=_boxes(batch, row, length)) for row in range(batch.size)]

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return all_real(batch.size, length, device=batch.tensors[self.main].device)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str) -> Batch:
        return batch.select([row] * len(units))


def _no_list(inputs: Mapping[Any, Any] | Set[Any]) -> str:
    """What to pass in place of a dict of raw inputs (its keys are none), or of a set (it has no order)."""
    if not isinstance(inputs, Mapping):
        return "the inputs are a set, which has no order: pass a list of them."
    names = ", ".join(repr(str(key)) for key in list(inputs)[:8]) or "none"
    first = next(iter(inputs), "text")
    return (
        f"the inputs are a dict with the keys {names} and no tensor in it. Pass the text or picture itself, e.g. "
        f"inputs[{first!r}], or a list of them; or the model's own tensors by the names of its arguments."
    )


def _boxes(batch: Batch, row: int, length: int) -> tuple[tuple[float, ...], ...] | None:
    """Where a detector's queries put what they found."""
    facts = batch.encodings[row] if batch.encodings else None
    boxes = facts.get("boxes") if isinstance(facts, dict) else None
    return boxes if boxes is not None and len(boxes) == length else None


def over_features(detail: Tensor, largest: bool) -> Tensor:
    """(B, N) the sum, or the largest, of a (B, N, …) tensor at each step or column."""
    if detail.ndim <= 2:
        return detail
    return detail.flatten(2).amax(2) if largest else detail.flatten(2).sum(2)


def shifted(values: Tensor) -> Tensor:
    """Other numbers of about the same size."""
    return values * -1.5 + 0.1
