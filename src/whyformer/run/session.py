"""Session: a borrowed model with inputs, ready to be run. The only preparation, and the only loop over batches."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.brief import as_symbols
from whyformer.capture.intercept import letters_of, mark_attention
from whyformer.capture.record import observe, require_sites
from whyformer.capture.roles import Observe
from whyformer.errors import AmbiguousLayout, BadInput, MixedInputs, NotOffered, not_allowed, reading
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, require_dense_inputs
from whyformer.inputs.checkpoint import as_processor
from whyformer.inputs.decoding import PLAIN, Decoding
from whyformer.inputs.families import number_of
from whyformer.inputs.modalities import Source, are_tensors, as_list, choose_modality, source_of, unpacked
from whyformer.inputs.output import Output
from whyformer.inputs.table_schema import Table
from whyformer.inputs.tokens import at_positions, shortened
from whyformer.loan.borrow import Marks, argument_name, borrowed, called_with, known_about, module_names, unwrapped
from whyformer.loan.digests import circumstances, versions
from whyformer.loan.spread import heads_elsewhere, is_sharded, out_of_memory
from whyformer.parameters import checked
from whyformer.results.types import Cost
from whyformer.run import Run
from whyformer.study import Study, hidden_padding, study_of
from whyformer.study.interference import MIXES
from whyformer.targets import AIMS

log = logging.getLogger("whyformer.run.session")

T = TypeVar("T")
Measure = Callable[[Run, list[int]], T]

BATCH_SIZE = 16
BATCH_SIZE_ON_DEVICE = 64  # a GPU has nothing to do while Python prepares a small batch
POSITIONS = 1024  # in a batch of short inputs or of variants: a CPU is quickest while a batch is in its cache


PLAIN_INPUTS = (dict, list, str, tuple)
UNREADABLE = ("the inputs cannot be read", "Give texts, images, sounds, rows of a table or tensors.")
NOT_ASKED = {"marks", "graphs", "advises"}  # of a loaded model: made of the rest, or no matter of numbers


class LoadedModel:
    """A model with its processor, and the modules whose output is an attention map (``attention_at``)."""

    @checked
    def __init__(self, model: Any, processor: Any = None, *, attention_at: Mapping[str, str] | None = None) -> None:
        if isinstance(model, LoadedModel):  # with what it holds, unless something else is given
            processor = model.processor if processor is None else processor
            model, attention_at = model.model, model.attention_at if attention_at is None else attention_at
        else:
            with reading("the model cannot be read", "Give a torch module, a pipeline, a folder or a name."):
                model, processor = unpacked(model, processor)
        self.model: nn.Module = unwrapped(model)
        layers = number_of(getattr(self.model, "config", None), "num_hidden_layers")
        if layers is not None and layers < 0:
            raise BadInput(f"the model's config has num_hidden_layers={layers}: load or build it with its own layers.")
        if processor is not None:
            advice = "Give the tokenizer or processor that was made for this model."
            with reading("the processor cannot be read", advice):
                hasattr(processor, "tokenizer")
            processor = as_processor(processor, self.model)
        self.processor = processor
        self.attention_at = dict(attention_at or {})
        self.marks: Marks = ()  # modules whose output is an attention map
        for pattern, layout in self.attention_at.items():
            matches = [m for name, m in self.model.named_modules() if fnmatch(name, pattern)]
            if not matches:
                raise BadInput(f"attention_at={pattern!r} matches no module of the model.")
            letters_of(layout)
            self.marks += tuple((m, layout, partial(_marked, layout)) for m in matches)

    def question(self) -> dict[str, Any]:
        """Return what every result depends on besides inputs and parameters, for cache keys (digests.py)."""
        first = next(self.model.parameters(), torch.empty(0))
        held = {name: value for name, value in vars(self).items() if name not in NOT_ASKED}
        return {**held, "versions": versions(), "circumstances": circumstances(first.device.type)}

    def borrowed(self) -> AbstractContextManager[None]:
        """Prepare the model under its lock, and restore it afterwards."""
        return borrowed(self.model, self.marks)

    def source(self, inputs: Any, lent: bool = False) -> Source:
        """Detect the modality of the inputs; encode lazily. A Source is returned unchanged. lent: it is borrowed."""
        if isinstance(inputs, Source):
            return inputs
        if type(inputs) not in PLAIN_INPUTS:  # whatever an object of the user's own raises when it is asked
            with reading(*UNREADABLE):
                column = hasattr(inputs, "dtype") and not isinstance(self.processor, Table)
            inputs = as_list(inputs) if column else inputs
        if are_tensors(inputs):
            require_dense_inputs(inputs)
        with nullcontext() if are_tensors(inputs) else reading(*UNREADABLE):
            return source_of(choose_modality(self.model, self.processor, inputs, lent), inputs)

    def prepare(self, inputs: Any) -> tuple[Modality, Batch, bool]:
        """Return the modality, the encoded batch, and whether a single raw input was given."""
        source = self.source(inputs)
        return source.modality, source.batch(), source.single

    @contextmanager
    def session(self, inputs: Any, **options: Any) -> Iterator[Session]:
        """Borrow the model for a :class:`Session` on these inputs."""
        with self.borrowed():
            yield Session(self, inputs, **options)


Loaded = TypeVar("Loaded", bound=LoadedModel)


def loaded_as(
    kind: type[Loaded], model: Any, processor: Any = None, attention_at: Mapping[str, str] | None = None
) -> Loaded:
    """Return ``model`` itself if it is loaded already and nothing else is given; otherwise load it."""
    if isinstance(model, kind) and processor is None and attention_at is None:
        return model
    return kind(model, processor, attention_at=attention_at)


def _marked(layout: str, module: nn.Module, args: Any, out: Tensor) -> Tensor:
    """Forward hook: mark the module's output as an attention map."""
    return mark_attention(out, layout)


@contextmanager
def passing_through(
    model: Any, inputs: Any, *, processor: Any = None, attention_at: Mapping[str, str] | None = None, **options: Any
) -> Iterator[Session]:
    """Open a session whose inputs are encoded part by part, for functions that read heads."""
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    if (elsewhere := heads_elsewhere(loaded.model)) is not None:
        raise elsewhere
    with loaded.session(inputs, at_once=False, **options) as session:
        if not session.study.one_stream and session.size > 1:
            classes = set()
            for count in (1, 2):
                batch = session.part(range(count))
                with torch.no_grad():
                    classes.add(Output(session.modality, batch).logits(batch).shape[1])
                session.setup_forwards += count
            if len(classes) > 1:  # the model compares all inputs of a batch (dual encoders): they run one by one
                session.step = 1
        yield session


def offered(model: nn.Module, scalar: str) -> str:
    """What is explained of this model where ``scalar`` is asked for: probabilities have no logits to centre."""
    return "logit" if scalar == "centred" and known_about(model).get("probabilities") else scalar


class Session:
    """Inputs of a borrowed model, run batch by batch. Every verb goes through one.

    at_once: inputs are encoded together and stand in one batch, of which parts are run; one input may give several
    rows (detections, generated tokens). Otherwise each part is encoded when it is run, padded among itself, so that
    any number of inputs goes through in the memory of one part.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        inputs: Any,
        *,
        target: Any = None,
        scalar: str = "logit",
        batch_size: int | None = None,
        seed: int = 0,
        progress: bool | None = None,
        keep_layers: bool = False,
        at_once: bool = True,
        units: Any = "token",
        decoding: Decoding = PLAIN,
        memory: str = "full",
        foldable: Callable[[], bool] = lambda: False,
    ) -> None:
        source = loaded.source(inputs, lent=True)
        if decoding is not PLAIN or units != "token":
            source = source.asking(decoding=decoding, segments=units)
        self.source = source
        if isinstance(target, list) and len(target) != source.size:
            raise BadInput(f"targets: {len(target)}, inputs: {source.size}. Give one target, or one per input.")
        aims = target if isinstance(target, list) else [target]
        if source.modality.mean.outcome != "objects" and any(
            isinstance(aim, float) for aim in aims
        ):  # a threshold of detections
            raise not_allowed("target", target, AIMS)
        self.loaded, self.model, self.modality, self.single = loaded, loaded.model, source.modality, source.single
        # Facts about a model are stored by the arguments that it is called with.
        arguments = source.modality.read.called_with({} if source.whole is None else source.whole.constants)
        self._arguments = argument_name(arguments) if arguments else ""
        called_with(self.model, self._arguments)
        self.target, self.seed, self.memory = target, seed, memory
        self.foldable = foldable  # whether all methods can run without stored attention maps
        self.scalar = source.modality.mean.scalar(scalar)
        if decoding.span and self.scalar in {"logit", "centred"}:  # an answer of several tokens has no logit
            self.scalar = "log_probability"
        self.keep_layers, self.at_once, self.track = keep_layers, at_once, tracker(progress)
        self.setup_forwards = 0  # of the study, if it was not cached
        self.started = time.perf_counter()
        self.forwards = self.backwards = 0.0
        self.size, self.one_by_one = source.size, False
        device = torch.device("cpu")
        if at_once:
            self.padded = hidden_padding(self.modality, source.whole or source.batch())  # one row per input
            # One row per explanation. The model runs here if an input gives several.
            self.batch, self.target = self.modality.mean.expanded(self.padded, target)
            if self.target is not None:
                self.batch = at_positions(self.modality.read, self.batch, self.target)
            self.size, device = self.batch.size, next(iter(self.batch.tensors.values())).device
            self.one_by_one = self.modality.read.one_by_one(self.batch)  # each is studied and run separately
        self.asked_size = batch_size  # None: nobody asked for one
        self.step = batch_size or (BATCH_SIZE if device.type == "cpu" else BATCH_SIZE_ON_DEVICE)
        if known_about(self.model).get(MIXES):
            self.step = 1

    # What is run

    @cached_property
    def study(self) -> Study:
        """Return the study of the model for these inputs; if they differ in form, for the first of them."""
        rows = [0] if self.one_by_one else range(min(self.size, self.step))
        study = self.studied(self.batch if self.at_once and not self.one_by_one else self.part(rows))
        if known_about(self.model).get(MIXES):  # found out by the study
            self.step = 1
        return study

    def studied(self, batch: Batch) -> Study:
        """Return the study for one of several inputs that differ in form."""
        called_with(self.model, self._arguments)
        study, new = study_of(self.modality, replace(batch, answers=()) if batch.answers else batch)
        self.setup_forwards += study.forwards if new else 0
        return study

    def part(self, rows: Sequence[int]) -> Batch:
        if not self.at_once:
            targets = [self.target[i] for i in rows] if isinstance(self.target, list) else self.target
            batch = self.modality.mean.located(hidden_padding(self.modality, self.source.batch(rows)), targets)
            return at_positions(self.modality.read, batch, targets)
        if list(rows) == list(range(self.size)) and not self.one_by_one:
            return self.batch
        batch = self.batch.select(rows)
        if batch.trunks:
            return shortened(batch)
        apart = self.one_by_one and bool(
            batch.raw or self.modality.read.one_by_one(self.batch)
        )  # tensors are as they came
        return self.modality.read.alone(batch) if apart else batch

    def alone(self, row: int) -> Batch:
        """Return one input by itself, without padding at its end."""
        one = self.part([row])
        return one if self.one_by_one else self.modality.read.trimmed(one)

    def run(
        self,
        rows: Sequence[int],
        *,
        beside: bool = False,
        alone: bool = False,
        scalar: str | None = None,
        own_answer: bool = False,
    ) -> Run:
        """Return a Run of some inputs with their targets.

        beside: with the reference rows that an input attends to (SAINT). alone: one input without padding. own_answer:
        explain the current prediction instead of the session's target.
        """
        called_with(self.model, self._arguments)
        batch = self.alone(rows[0]) if alone else self.part(rows)
        target = [self.target[i] for i in rows] if isinstance(self.target, list) else self.target
        target = list(batch.targets) or target
        if beside:
            batch = self.modality.read.beside_reference_rows(batch)
            target = [*target, *[None] * batch.reference_rows] if isinstance(target, list) else target
        study = self.studied(batch) if self.one_by_one else self.study
        read = None if scalar is None else self.modality.mean.scalar(scalar)
        run = self.run_of(batch, read, None if own_answer else target, study)
        run.numbers = rows
        return run

    def run_of(self, batch: Batch, scalar: str | None = None, target: Any = None, study: Study | None = None) -> Run:
        """Return a Run of a batch that was put together from the session's rows."""
        called_with(self.model, self._arguments)
        run = Run(
            self.modality,
            batch,
            study or self.study,
            target=target,
            scalar=offered(self.model, scalar or self.scalar),
            seed=self.seed,
            batch_size=self.step,
            keep_layers=self.keep_layers,
            track=self.track,
        )
        free = self.asked_size is None and self.step == BATCH_SIZE and self.modality.kind != "prompt"
        if free and (run.study.sites or self.modality.place.lengths_vary):  # else it is not known how long an input is
            run.batch_size = max(self.step, min(BATCH_SIZE_ON_DEVICE, POSITIONS // max(1, run.length)))
        return run

    # The loop

    def parts(self, sort: bool | None = None) -> list[list[int]]:
        """Return rows that are run together; ``sort``: of similar length (None: if parts are encoded separately)."""
        order, raw = list(range(self.size)), self.source.raw
        if (not self.at_once if sort is None else sort) and raw and all(isinstance(text, str) for text in raw):
            order.sort(key=lambda i: len(raw[i]))
        stride = 1 if self.one_by_one else self.step
        if self.at_once and self.batch.trunks:  # the rows of one text are run as one
            texts = [list(rows) for _, rows in groupby(order, self.batch.trunks.__getitem__)]
            return [rows[i : i + stride] for rows in texts for i in range(0, len(rows), stride)]
        return [order[i : i + stride] for i in range(0, self.size, stride)]

    def each(
        self, measure: Measure[T], *, label: str, what: str = "", sort: bool | None = None, beside: bool = False
    ) -> list[tuple[list[int], T]]:
        """Return ``measure(run, rows)`` for every part of the inputs.

        Halves the batch size when memory runs out. Runs inputs one by one if batch and heads cannot be distinguished at
        this batch size, or if inputs change each other's logits. ``beside``: each input with the reference rows that it
        attends to (SAINT). ``what``: named in errors about memory.
        """
        results: list[tuple[list[int], T]] = []
        self.one_by_one |= self.size > 1 and self.study.by_content
        for waiting in self.track(self.parts(sort), label):
            singly, rows = beside, waiting
            while rows:
                part, short_of_memory = rows[: 1 if singly else self.step], ""
                try:
                    run = self.run(part, beside=beside)
                    results.append((part, measure(run, part)))
                    self.forwards += float(run.forwards_B.sum())
                    self.backwards += float(run.backwards_B.sum())
                    self.setup_forwards += run.setup_forwards
                except AmbiguousLayout:
                    if len(part) == 1:
                        raise
                    log.info("batch and heads cannot be distinguished: inputs are run one by one")
                    singly = True
                    continue
                except MixedInputs:
                    if self.step == 1:
                        raise
                    log.info("inputs of a batch change each other's output: they are run one by one")
                    self.step = 1
                    self.__dict__.pop("study", None)  # its notes change
                    continue
                except (RuntimeError, MemoryError) as error:
                    if not out_of_memory(error):
                        raise
                    short_of_memory = str(error) or "a MemoryError"
                if short_of_memory:  # outside of ``except``: the error's frames hold tensors
                    self._halve(what, short_of_memory)
                    continue
                rows = rows[len(part) :]
        return results

    def _halve(self, what: str, error: str) -> None:
        if is_sharded(self.model.parameters()):
            raise NotOffered(
                f"{what}: out of memory in this process, and all processes of the model have to run the same "
                f"passes. Give a smaller batch_size in all of them. torch: {error}"
            )
        if self.step == 1:
            folds = self.memory != "fold" and self.foldable()
            if folds and self.memory == "auto":
                log.info("%s: out of memory with a single input, going on without stored attention maps", what)
                self.memory = "fold"
                torch.cuda.empty_cache()
                return
            fold = " use memory='fold', which stores no attention maps," if folds else ""
            raise NotOffered(
                f"{what}: a single input takes more memory than the device has left. Shorten the input,{fold} or load "
                f"the model in half precision. torch: {error}"
            )
        self.step = max(1, self.step // 2)
        log.info("%s: out of memory, going on with %d inputs at a time", what, self.step)
        torch.cuda.empty_cache()

    def gather(self, measure: Measure[Tensor], **options: Any) -> np.ndarray[Any, Any]:
        """Return the (b, …) results of all parts as one float64 array, in the order of the inputs."""
        parts = self.each(measure, **options)
        first = parts[0][1]
        result = np.zeros((self.size, *first.shape[1:]))
        for rows, values in parts:
            result[rows] = values.detach().cpu().double().numpy()
        return result

    def cost(self) -> Cost:
        """Return the passes per input, and the time since the session began."""
        return Cost(
            forwards=self.forwards / self.size,
            backwards=self.backwards / self.size,
            seconds=time.perf_counter() - self.started,
            setup_forwards=self.setup_forwards,
        )

    # The model's layers and heads

    @cached_property
    def names(self) -> dict[int, str]:
        return module_names(self.model)

    @cached_property
    def layers(self) -> tuple[tuple[str, int], ...]:
        """Return (path, heads) of each layer, in call order; heads that are computed one by one form one layer."""
        if (elsewhere := heads_elsewhere(self.model)) is not None:
            raise elsewhere
        one = self.part([0])
        role = Observe(1, self.names, self.study.batch_axes)
        output = Output(self.modality, one)
        record = observe(partial(output.logits, one), role)
        require_sites(record)
        self.setup_forwards += 1
        return tuple((site.path, site.heads) for site in record.sites)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path, _ in self.layers)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every (layer, head)."""
        return [(layer, head) for layer, (_, heads) in enumerate(self.layers) for head in range(heads)]

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.study.leak.found:
            return ()
        return (
            f"positions also exchange information outside the captured attention (at {self.study.leak.path}): the "
            "results for heads are incomplete.",
        )


# A progress bar for long work: on a terminal, after a moment, and never in a pipe


Track = Callable[[Sequence[Any], str], Any]
WATCH: ContextVar[Track | None] = ContextVar("watch", default=None)  # receives every step of the current thread


def tracker(progress: bool | None) -> Track:
    """``progress=None``: show on a terminal what takes more than two seconds; True, False: always, never."""
    if (watch := WATCH.get()) is not None:
        return watch
    if not (sys.stderr.isatty() if progress is None else progress):
        return lambda steps, label: steps
    after = SHORT if progress is None else 0.0
    return lambda steps, label: steps if len(steps) < 2 else _bar(steps, label, after)


SHORT = 2.0  # seconds, during which no progress is shown
_SHOWN = threading.Lock()  # a terminal has one bar at a time: the first of nested ones that takes long


def _bar(steps: Sequence[Any], label: str, after: float) -> Iterator[Any]:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress
    except ImportError:
        yield from steps
        return
    started, bar = time.monotonic(), None
    try:
        for number, step in enumerate(steps):
            if bar is None and time.monotonic() - started >= after and _SHOWN.acquire(blocking=False):
                bar = Progress(console=Console(stderr=True), transient=True)
                bar.start()
                task = bar.add_task(escape(as_symbols(label)), total=len(steps))  # rich reads [brackets] as colours
            if bar is not None:
                bar.update(task, completed=number)
            yield step
    finally:
        if bar is not None:
            bar.stop()
            _SHOWN.release()
