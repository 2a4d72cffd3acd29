"""A kind of input is put together from four parts: how it is read, placed and masked, and what its output means."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.capture.lookups import ABSENT, LookupLeaves, MeanVectors, SwapEmbedding
from whyformer.errors import BadInput, NotOffered, UnknownName, WhyformerError
from whyformer.inputs.batch import (
    NOT_THE_MODELS,
    Batch,
    Filling,
    Placed,
    Raw,
    SamplePool,
    all_real,
    are_flags,
    are_tensors,
    model_failed,
    named_tensors,
    require_numbers,
    signature_of,
)
from whyformer.inputs.decoding import Decoding, InputOptions
from whyformer.inputs.families import INPUT_STREAMS, class_names, number_of, says_tokens, task_of
from whyformer.inputs.stream_inputs import Layout, StreamInput
from whyformer.inputs.units import GROUPS, Column
from whyformer.loan.borrow import borrowed, known_about
from whyformer.loan.quantised import is_adapted
from whyformer.loan.spread import execution_device
from whyformer.results.types import Units
from whyformer.shapes import Array

MEAN_VECTOR = "mean_vector"  # the baseline of ids without a token that could replace them
NO_WEIGHT = torch.empty(0)  # of a model without any


class Read(ABC):
    """Raw inputs, tensors and messages become a batch, which the model is called with. Abstract: encode."""

    stream: str  # what its units are called: words are drawn as text, units with a grid as a picture, others as bars
    main: str  # the argument whose positions are the units
    embeds = False  # the input is token ids: its numbers are the vectors that the model looks up for them
    joint = False  # several streams of units: no single tensor is "the" input
    example: Batch | None = None  # one input of the user's own tensors
    unscored: tuple[str, ...] = ()  # arguments that reach the answer and are not among its units
    pointers: tuple[str, ...] = ()  # arguments that may hold positions, which deleting units would move
    generates = False  # the classes are tokens of a vocabulary
    samples = 0  # sampled answers behind each value; 0: values have no sampling error
    opaque = False  # it is called from outside: it has no attention and no gradients
    mixes_rows = False  # the output for one input depends on others in the batch (SAINT)
    classes: tuple[str, ...] = ()  # names of the outputs, where the description of the inputs has them
    either: tuple[str, ...] = ()  # the names of two classes, where the single output is the logit of the second
    special_ids: Set[int] = frozenset()
    limit: int | None = None  # of tokens; cached, since finding it walks through the model
    passes = 0  # forward passes spent on which arguments are sequences
    device: torch.device | None = None  # where tensors are put; None: where the model is
    has_categories = False  # some of its columns are categories
    reference: Any = None  # rows that means and resampling are taken from, where the description names some
    reference_name = ""

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        self._model = weakref.ref(model)  # kinds of input are facts about a model, which must not keep it alive
        self.processor = processor
        self._weight = next(model.parameters(), NO_WEIGHT)
        self.config = getattr(model, "config", None)
        self.parameters = signature_of(model)
        self._positional = [name for name, p in self.parameters.items() if p.kind is p.POSITIONAL_ONLY]

    model = property(lambda self: self._model(), doc="The model, which may be gone.")

    @property
    def kind(self) -> str:
        """The name by which a default method is chosen: "text", "image", "table", …; "" where it is not known."""
        return self.stream

    @abstractmethod
    def encode(self, raw: Sequence[Raw]) -> Batch:
        """Turn raw inputs into tensors."""

    def batch(self, raw: Sequence[Raw], asked: InputOptions) -> Batch:
        """Turn raw inputs into a batch of which this is asked."""
        batch = self.encode(raw)
        return batch if asked is batch.asked else replace(batch, asked=asked)

    def ready(self, inputs: Any) -> tuple[Batch, bool] | None:
        """Return tensors (or rows of a table) as a batch, and whether it is a single row; None: raw inputs."""
        return (self.adopt(inputs), False) if are_tensors(inputs) else None

    def from_messages(self, inputs: Any) -> Any:
        """Turn a chat (messages: dicts with role and content), a dict, or a list of them, into one input each."""
        return inputs

    def is_prompt(self, raw: Raw) -> bool:
        """Return whether a raw input is a prompt without an answer."""
        return isinstance(raw, str)

    def allowed(self, decoding: Decoding, segments: Any) -> Any:
        """Return what is scored as one; raise for what cannot be asked of such inputs."""
        if decoding:
            raise NotOffered(
                "generate, span, choices and one_pass are for language models of text, and "
                f"{type(self.model).__name__} was not recognised as one. Omit them."
            )
        return segments

    def adopt(self, tensors: Mapping[str, Any] | Sequence[Any] | Tensor) -> Batch:
        """Make a batch of the user's own tensors, with names checked against the model."""
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
        return Batch({k: self.move(v) for k, v in batched.items()}, constants=constants)

    def move(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the model's device, floats to the model's dtype."""
        weight = self._weight
        dtype = weight.dtype if tensor.is_floating_point() and weight.is_floating_point() else tensor.dtype
        device = self.device or (execution_device(self.model) if weight.is_meta else weight.device)
        if tensor.is_floating_point() and tensor.device == weight.device:
            device = tensor.device  # large, and read on the host by nobody
        return tensor.to(device=device, dtype=dtype)

    def one_by_one(self, batch: Batch) -> bool:
        """Return whether inputs differ in form, so that each is studied and explained by itself."""
        return False

    def alone(self, one: Batch) -> Batch:
        """Return one input of an uneven batch as it is by itself."""
        return one

    def trimmed(self, one: Batch) -> Batch:
        """Cut off the padding of one input, where the model's output stays the same without it."""
        return one

    def beside_reference_rows(self, one: Batch) -> Batch:
        """Put one row of a table beside the rows that it attends to."""
        return one

    def covered(self, batch: Batch) -> Tensor | None:
        """(B, N) positions of the main stream where another stream's result is placed, if there are any."""
        return None

    @property
    def special_unknown(self) -> bool:
        """Whether neither tokenizer nor config names the special tokens, so that all count as words."""
        return False

    def labels(self, ids: Sequence[int]) -> list[str]:
        """Return the names of ids."""
        return [str(i) for i in ids]

    @cached_property
    def embedding(self) -> nn.Embedding | None:
        """Return the table in which the model looks ids up, where it names one."""
        getter = getattr(self.model, "get_input_embeddings", None) if self.embeds else None
        if getter is None:
            return None
        try:
            table = getter()
        except (NotImplementedError, AttributeError):
            return None
        table = table._modules["base_layer"] if isinstance(table, nn.Module) and is_adapted(table) else table
        return table if isinstance(table, nn.Embedding) else None

    def looked_up(self, batch: Batch, make: Callable[[Tensor], Tensor]) -> TorchFunctionMode:
        """Return a mode in which ``make`` changes the vectors that the model looks up for the input."""
        if self.embeds:
            ids = batch.tensors[self.main]
            ids = ids.clamp(min=0) if batch.absent else ids  # as MeanVectors looks them up
            return SwapEmbedding(ids, self.embedding, make, self.covered(batch))
        return LookupLeaves(make, batch.tensors)

    @contextmanager
    def handed_over(self, make: Callable[[Tensor, int], Tensor]) -> Iterator[list[tuple[Tensor, int]]]:
        """Inside ``with``: ``make`` changes the vectors that an encoder out of sight hands over; yields the results.

        With the vectors goes the id of the tokens that hold their places in the text.
        """
        yield []

    def max_length(self) -> int | None:
        """Return how many tokens the model takes, where that is known."""
        return self.limit

    def called_with(self, constants: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what decides about a call besides the tensors of a batch: facts about the model depend on it."""
        return constants

    def call(self, batch: Batch, **extra: Any) -> Any:
        """Run the model on a batch."""
        arguments = {**batch.tensors, **batch.constants, **extra}
        places = [arguments.pop(name) for name in self._positional if name in arguments]
        return self.run_model(batch, *places, **arguments)

    def run_model(self, batch: Batch, *places: Any, **arguments: Any) -> Any:
        """Call the model; an error that it raises becomes a ModelFailed that names the tensors of the batch."""
        vectors = MeanVectors() if batch.absent else None
        try:
            with vectors or nullcontext():
                output = self.model(*places, **arguments)
        except NOT_THE_MODELS:
            raise
        except Exception as error:
            raise model_failed(self.model, batch, error) from error
        if vectors is not None and vectors.seen < sum(int((t == ABSENT).sum()) for t in batch.tensors.values()):
            others = "replace=<token id>" if self.embeds else "another replacement"
            raise NotOffered(
                f"replace='{MEAN_VECTOR}' needs a table in which ids are looked up, and {type(self.model).__name__} "
                f"does not look all of these up: use {others}."
            )
        return output


class Place(ABC):
    """Where the units of inputs are among the positions that the model attends over. Abstract: units.

    Defaults fit a tensor of floats (inputs, positions, features).
    """

    pixels = False  # the input is a picture, and its patches are the units
    lengths_vary = False  # each input has as many positions as it needs; the rest of its row is padding
    padding_in_doubt = False  # a model may hide padding by itself, or by a mask that means the opposite
    named_columns = False  # the input is a row of a table whose columns are described

    def __init__(self, read: Read) -> None:
        self.read = read

    def length(self, batch: Batch) -> int:
        """Count the positions of the input itself, padding included; a model may add others of its own."""
        shape = batch.tensors[self.read.main].shape
        return shape[1] if len(shape) > 1 else 1

    def lengthened(self, tensors: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
        """Append ``extra`` positions of padding, where a mask can mark them as padding."""
        return tensors

    def form(self, batch: Batch) -> tuple[Any, ...]:
        """Return what about these inputs, besides names and axes of tensors, requires a study of its own."""
        return ()

    @abstractmethod
    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        """Return the units of each input, when the model's attention runs over ``length`` positions.

        front: how many of the positions that the model adds itself come before the input's; None: all of them.
        """

    def covers(self, batch: Batch, length: int) -> bool:
        """Return whether every unit of the input is among the ``length`` positions that the model attends over."""
        return True

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        """(B, length) real positions of the model's attention. Here: all of them."""
        return all_real(batch.size, length, device=batch.tensors[self.read.main].device)

    def divided(self, units: Units, by: Any, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        """Return groups of units that are scored as one, and their names; None where each unit is scored by itself."""
        if by == "token":
            return None
        kind = "joins columns of a table" if by == GROUPS else "divides a text"
        raise NotOffered(f"units={by!r} {kind}, and this input is none. Omit units=.")

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        """(B, length) the sum, or the largest, of a (B, …) tensor like the input's own at each position."""
        return with_added(over_features(detail, largest), placed.length, placed.front)

    def beside(self, batch: Batch, length: int) -> dict[str, Column]:
        """Return what the model reads besides the units, by name; ``length`` is that of the units."""
        if self.read.joint or self.read.main not in batch.tensors:
            return {}
        codes = batch.tensors[
            self.read.main
        ].is_floating_point()  # ids beside ids describe the same words (boxes, segments)
        tensors = {k: v for k, v in batch.tensors.items() if k != self.read.main}
        numbers = {k: v for k, v in tensors.items() if v.dtype != torch.bool or are_flags(k, batch.tensors)}
        others = [k for k, v in numbers.items() if codes or v.is_floating_point() or v.dtype == torch.bool]
        return {name: (name, ...) for name in [*(k for k in others if "mask" not in k), *self.read.unscored]}

    def picture(self, batch: Batch, row: int) -> str | None:
        """Return the input as a picture (a data URI), where it is one."""
        return None

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        """Return the tensors whose positions become tokens, and the stream each of them starts."""
        known = {k: INPUT_STREAMS.get(k) for k in batch.tensors}
        if not any(known.values()):
            return [(v, self.read.stream) for k, v in batch.tensors.items() if "mask" not in k]
        return [(v, known[k] or self.read.stream) for k, v in batch.tensors.items() if known[k] or k == self.read.main]

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        """Return the modality of one stream (None: this one), and the batch as that modality reads it."""
        streams = {name for _, name in self.inputs(batch)}
        if stream in {"queries", "target"} - streams:  # a learned query that pools, or a decoder that asks with its own
            return LearnedPositions(self.read.model, self.read.main, stream), batch
        return None, batch

    def pieces(self, one: Batch) -> dict[str, dict[str, Tensor]]:
        """Return, by kind, the token of each number of the images that are tokens of a text (-1: none)."""
        return {}

    def cells(self, batch: Batch) -> tuple[int, int] | None:
        """Return rows and columns of the units of a picture, for a model that has no patches."""
        return None

    def first_changed(self, batch: Batch, grid: tuple[int, int]) -> Batch | None:
        """Change the numbers in the first of ``grid`` patches; None where there are no patches."""
        return None

    def reads_beside(self, batch: Batch) -> bool:
        """Return whether some units belong to other tensors than the main one, where there is a main one."""
        return False

    def require_one_sequence(self, batch: Batch) -> None:
        """Raise where units are not the steps of one sequence: its mean vector is no baseline of theirs."""
        return

    def locate(self, one: Batch, keys: int, vectors: Callable[[int, Batch], list[Tensor]]) -> None:
        """Find out what each of the ``keys`` positions holds; ``vectors`` of them are computed up to the attention."""
        return

    def forget_places(self, one: Batch) -> None:
        """Forget what ``locate`` found out: the model sorts by content."""
        return

    def is_one_token(self, one: Batch, keys: int, values: Callable[[Batch], Tensor]) -> bool:
        """Return whether the input is one of the ``keys`` positions, the others learned; ``values`` counts passes."""
        return False

    def reads_other_steps(self, one: Batch, keys: int) -> bool:
        """Return whether the model attends over ``keys`` positions that are not the steps of the input."""
        return False

    def settle(self, one: Batch, grid: tuple[int, int] | None) -> int:
        """Find the units by running the model; return how many passes that took."""
        return self.read.passes

    def in_steps(self, numbers: Tensor, batch: Batch, length: int) -> bool:
        """Return whether the second axis of the input holds the ``length`` positions that the model attends over."""
        return numbers.ndim <= 3 and (numbers.ndim < 2 or numbers.shape[1] <= length)

    def padded_grid(self, batch: Batch, length: int) -> tuple[int, int] | None:
        """Return rows and columns of what the model attends to, padding included, where pictures are padded."""
        return None


class Mask:
    """What stands in place of masked units: the unit of each entry of a tensor, and what it becomes.

    Defaults fit a tensor of floats (inputs, positions, features).
    """

    takes_token_ids = False  # any token id can replace a unit
    edits_text = False  # any text can replace a unit, and "delete" leaves out any number of units at once

    def __init__(self, place: Place) -> None:
        self.read, self.place = place.read, place

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        """Return where the numbers of one stream of ``whole`` enter the model; [] for positions of the model's own."""
        return []

    def arguments(self, placed: Placed) -> list[StreamInput]:
        """Return the tensors of floats of a module with several, whose columns or steps are the units."""
        return []

    @property
    def replacements(self) -> tuple[str, ...]:
        """Baselines that are made of the input itself; the first is the default."""
        return ("zero",)

    @property
    def fillers(self) -> tuple[str, ...]:
        """Baselines that metrics offer besides, taken from a pool of inputs."""
        return ()

    def offered(self, segments: Any) -> tuple[str, ...]:
        """Return the replacements, the default for these segments first."""
        return self.replacements

    def removable(self, units: Units, batch: Batch) -> list[bool]:
        """Return which units can be masked: not the tokens that the model adds itself."""
        return [not special for special in units.special]

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        """Return the unit of each entry (-1: none) of the tensors of one input, in a shape that expands to theirs.

        Units are counted from the first one of the input's own. Here: one unit per real position of the main tensor.
        """
        tensor = one.tensors[self.read.main][0]
        places = self.place.keep(one, len(tensor), None)[0].nonzero()[:, 0]
        owner = torch.full((len(tensor), *[1] * (tensor.ndim - 1)), -1, device=tensor.device)
        plain = [i for i, special in enumerate(units.special) if not special]
        owner[places] = torch.tensor(plain, device=tensor.device).view(-1, *owner.shape[1:])
        return {self.read.main: owner}

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return the baseline of tensors that change: once, or once per draw if it is random.

        pool: for one of the :attr:`fillers`; None: ``name`` is one of the :attr:`replacements`. Here: zeros, or the
        mean vector of the input's real positions.
        """
        self.require_replacement(name)
        vectors = one.tensors[self.read.main]
        if name == "mean":
            real = self.place.keep(one, vectors.shape[1], None)[0]
            return [{self.read.main: vectors[0, real].mean(0).expand_as(vectors)}]
        return [{self.read.main: torch.zeros_like(vectors)}]

    def replacement(self, name: Any) -> Any:
        """Return the full name of a baseline, where a shorter one is understood."""
        return name

    def looks_up(self, names: Sequence[str]) -> bool:
        """Return whether the model looks all ids of these arguments up in tables, so that masked ones can have a mean.

        Found by a pass over an example without any id.
        """
        if self.read.example is None:
            return False
        with borrowed(self.read.model), torch.no_grad():
            facts, key = known_about(self.read.model), ("looks up", *names)
            if key not in facts:
                ids = {name: torch.full_like(self.read.example.tensors[name], ABSENT) for name in names}
                try:
                    self.read.call(replace(self.read.example.with_tensors(**ids), absent=True))
                    facts[key] = True
                except WhyformerError:
                    facts[key] = False
            return bool(facts[key])

    def about_baseline(self, name: Any) -> tuple[str, ...]:
        """Return remarks on a baseline that was not chosen by the user."""
        return ()

    def filling_weights(self, name: Any) -> Array | None:
        """Return the weight of each baseline that ``filling`` returns; None: all the same."""
        return None

    def require_replacement(self, name: Any) -> None:
        """Raise if the baseline is not one of the replacements."""
        if name not in self.replacements:
            raise UnknownName("replacement", name, self.replacements)

    def only_token(self) -> int:
        """Return the token that is left of a text whose every token was deleted: a model reads at least one."""
        raise NotOffered(f"every unit cannot be deleted here: use {self.in_place()}.")

    def in_place(self) -> str:
        """Return what to use where units cannot be deleted, for error messages."""
        return "another replacement"

    def token_ids(self, units: Units, one: Batch) -> Tensor | None:
        """(U,) the token id of each unit of one input, where units are tokens."""
        return None

    def open_tokens(self, batch: Batch, keep_special: bool | Sequence[int]) -> Tensor | None:
        """(B, N) positions that are neither padding nor kept, where ids name the special tokens."""
        return None

    @property
    def default_baseline(self) -> str:
        """The baseline that a path to the input starts from by default."""
        return "zero"

    def other_baselines(self) -> tuple[str, ...]:
        """Return further baselines, for inputs whose default baseline is not usable."""
        return ()

    def has_vector(self, name: str) -> bool:
        """Return whether the baseline differs from zeros."""
        return name != "zero"

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        """Replace all that is explained by the baseline; None where that is not another input ("zero")."""
        return None


class Mean:
    """What the output of the model is, and what of it is explained. Defaults fit one row of logits per input."""

    outcome = "classes"  # or the "similarity" of two inputs, or "objects": one explanation for each that is detected
    positioned = ""  # the stream whose output position ``Batch.positions`` chooses

    def __init__(self, place: Place) -> None:
        self.read, self.place = place.read, place
        self.generates, self.samples = place.read.generates, place.read.samples
        model, config = place.read.model, place.read.config
        self.speaks = self.generates or says_tokens(model)  # classes are tokens
        # How many classes there can be by the config, for outputs whose parts have no names.
        self.sizes = {size for name in ("num_labels", "vocab_size") if (size := number_of(config, name))}
        problem = getattr(config, "problem_type", None)
        self.independent = problem == "multi_label_classification"  # each class has a probability of its own
        # The output is a number, and no class.
        self.estimates = problem == "regression" or task_of(model).endswith(("ForRegression", "ForPrediction"))

    names = cached_property(lambda self: class_names(self.read.model))  # of the classes, in the model's config

    def announce(self, passes: float, batch: Batch) -> None:
        """Called before a method runs, with the passes that it needs at most; may raise if that is too much."""
        return

    def notes(self, batch: Batch, length: int) -> tuple[str, ...]:
        """Return remarks that belong to every explanation of these inputs."""
        return ()

    def scalar(self, scalar: str) -> str:
        """Return what is explained when ``scalar`` is asked for."""
        if scalar == "maxsim":
            raise NotOffered(
                "scalar='maxsim' is for two texts that are compared token by token: pass a pair of texts, or for a "
                "document with images a model that returns the score of a query (docs/guide/streams.md)."
            )
        return scalar

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        """(B, C) what is explained, where this modality reads the model's output in its own way."""
        return None

    def pairs(self, output: Any, scalar: str) -> Tensor | None:
        """(B, N_a, N_b) what each pair of units of two compared inputs adds to their similarity, where it is known."""
        return None

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        """Return one row and target per explanation, for inputs with several: detections, generated tokens."""
        return batch, target

    def located(self, batch: Batch, target: Any) -> Batch:
        """Choose the token, span or answer that is explained of each input, where there is one."""
        return batch


class Modality:
    """One kind of input: four parts, each of which knows those before it."""

    def __init__(self, read: Read, place: Place, mask: Mask, mean: Mean) -> None:
        self.read, self.place, self.mask, self.mean = read, place, mask, mean
        self.processor = read.processor
        self.kind, self.stream, self.main = read.kind, read.stream, read.main
        self.parts = tuple(map(type, (read, place, mask, mean)))  # which tell kinds of input apart

    model = property(lambda self: self.read.model, doc="The model that the inputs are for.")

    @staticmethod
    def of(
        reads: type[Read], places: type[Place], masks: type[Mask] = Mask, means: type[Mean] = Mean
    ) -> Callable[..., Modality]:
        """Return what makes a modality of these parts from the arguments of the first."""

        def make(*args: Any, **options: Any) -> Modality:
            read = reads(*args, **options)
            place = places(read)
            return Modality(read, place, masks(place), means(place))

        return make

    def part(self, stream: str, batch: Batch) -> tuple[Modality, Batch]:
        """Return the modality of one stream, and the batch as that modality reads it."""
        part, view = self.place.part(stream, batch)
        return part or self, view


class LearnedRead(Read):
    """Positions that the model brings itself (object queries, a pooling probe): shown, and flagged as special."""

    def __init__(self, model: nn.Module, main: str, stream: str = "queries") -> None:
        super().__init__(model)
        self.main, self.stream = main, stream

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise NotOffered("these positions are the model's own and are not given.")


class LearnedPlace(Place):
    """Special units, with the boxes that a detector's queries predicted."""

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        labels = tuple(f"[query {i}]" for i in range(length))
        plain = Units(labels, (True,) * length, (self.read.stream,) * length)
        # Facts of a detector's picture hold the boxes that its queries predicted.
        facts = [facts if isinstance(facts, dict) else {} for facts in batch.encodings] or [{}] * batch.size
        boxes = [known.get("boxes") or () for known in facts]
        return [replace(plain, boxes=each if len(each) == length else None) for each in boxes]


class LearnedMask(Mask):
    """Nothing of the input is masked."""

    replacements = ()

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        return {}

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        return [{}]


LearnedPositions = Modality.of(LearnedRead, LearnedPlace, LearnedMask)


def with_added(values_BN: Tensor, length: int, front: int | None, value: float = 0) -> Tensor:
    """(B, length) the input's positions among those that the model adds, ``front`` of them (None: all) before it."""
    added = length - values_BN.shape[1]
    before = added if front is None else front
    return nn.functional.pad(values_BN, (before, added - before), value=value) if added > 0 else values_BN


def over_features(detail: Tensor, largest: bool) -> Tensor:
    """(B, N) the sum, or the largest, of a (B, N, …) tensor at each step or column."""
    if detail.ndim <= 2:
        return detail
    return detail.flatten(2).amax(2) if largest else detail.flatten(2).sum(2)
