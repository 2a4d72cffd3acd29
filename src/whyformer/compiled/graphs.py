"""The CUDA graphs of an Explainer: which inputs they fit, and whether the model is still the one that was recorded.

A form is a question (method, options, scalar) about tensors of one shape. Its first inputs are explained without a
graph; then the form is recorded, and the recording is compared with that result. For later inputs the graph is started
at once; while the device computes, the host checks that the model is the recorded one, and drops the result if not.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whyformer.capture.roles import HeadGradient
from whyformer.compiled import forms
from whyformer.compiled.forms import Compiled, Computation, Form, PaddedShape, Question, Recording
from whyformer.compiled.graph import RECORDERS, cause_of, new_pool, tolerance
from whyformer.errors import BadInput
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, array_of
from whyformer.inputs.decoding import PLAIN
from whyformer.inputs.modalities import Source
from whyformer.loan.borrow import RUNNING, Borrowed, Marks, as_borrowed, borrowed, in_turn, is_as_borrowed, known_about
from whyformer.loan.digests import circumstances
from whyformer.results.types import Cost, Explanation, Record
from whyformer.run import Attribution, Run
from whyformer.run.session import Session, offered
from whyformer.study.entrance import padding_index

MOST = 8  # graphs at a time; the least recently used one is dropped
REMEMBERED = 64  # forms whose number of uses, or reason not to be recorded, is kept
CPU = torch.device("cpu")
Make = Callable[[Run, Attribution, list[Cost]], list[Explanation]]


class BatchQuestion(NamedTuple):
    """A question about some inputs that are run together."""

    modality: Modality
    part: Batch
    question: Question
    target: Any
    contrast: bool | None  # is a class held against another (``contrasts``)


class GraphAnswer(NamedTuple):
    """The result of one replay."""

    run: Run
    attribution: Attribution
    costs: list[Cost]


class Graphs:
    """Recorded explanations of one model."""

    def __init__(self, model: nn.Module, marks: Marks = ()) -> None:
        self.model, self.marks = model, marks
        self.forms: OrderedDict[Any, Form] = OrderedDict()
        self._met: Counter[Any] = Counter()
        self._recorded: Counter[Any] = Counter()  # recordings of a form since its last successful replay
        self._warned: set[str] = set()
        self._exact = False  # texts are not padded, because padding changes this model's output
        self._limits: dict[tuple[type, ...], int | None] = {}
        self._borrowed: Borrowed | None = None
        self._holders: list[dict[str, Tensor | None]] = []  # of parameters and buffers
        self._places: list[int] = []
        self._layouts: list[tuple[Any, ...]] = []
        self._pool: Any = None
        self.require_device()

    def require_device(self) -> torch.device:
        device = next((p.device for p in self.model.parameters()), CPU)
        if device.type not in RECORDERS:
            raise BadInput(
                f"compiled=True records explanations as CUDA graphs, and the model is on {device.type!r}. Move it to a "
                "GPU first, model.to('cuda'), or omit compiled=."
            )
        return device

    def table(self) -> list[Compiled]:
        """Return one row per form: whether it is recorded, or why not."""
        table = []
        for form in list(self.forms.values()):
            size = 0 if form.recording is None else form.recording.graph.bytes
            told = (form.recording is not None, form.why_not, form.replays, size)
            table.append(Compiled(form.method, form.shapes, *told))
        return table

    def clear(self) -> None:
        self.forms.clear()
        self._limits.clear()
        self._borrowed, self._holders, self._places, self._layouts, self._pool = None, [], [], [], None
        self._exact = False

    # Explaining from graphs

    def answers(
        self, source: Source, question: Question, target: Any, batch_size: int | None, units: Any
    ) -> list[GraphAnswer] | None:
        """Explain the inputs by replaying graphs; return None if they have to be explained without."""
        self.require_device()
        before = self._borrowed
        if before is None or RUNNING.passes or not any(form.recording for form in list(self.forms.values())):
            return None
        modality = source.modality
        if units != "token":
            source = source.asking(decoding=PLAIN, segments=units)
        modality.read.device = CPU  # they go to the device together
        modality.read.limit = self._limits.get(modality.parts)
        try:
            batch = source.batch()
        finally:
            modality.read.device = None
            modality.read.limit = None  # an explanation without a graph finds it out itself
        contrast = forms.contrasts(target, batch.size)
        if contrast is None:
            return None
        with in_turn(before):
            chunks = []
            for rows in forms.chunks_of(batch.size, batch_size):
                part = batch if len(rows) == batch.size else batch.select(rows)
                asked = BatchQuestion(modality, part, question, forms.of_rows(target, rows), contrast)
                fit = self._fit(asked)
                form = self.forms.get(fit.key)
                if form is None or form.recording is None:
                    return None
                if part.keep_BN is not None and "attention_mask" not in part.tensors:
                    if not forms.is_unmasked(modality, part, form.recording.padding):
                        return None  # without a graph, what is padding is found out by passes
                aims = forms.aimed(asked.target, part.size, form.recording)
                if aims is None or (not form.recording.padded and forms.is_padded(part, fit)):
                    return None
                chunks.append((asked, fit, form, aims))
            results = []
            for chunk in chunks:
                answer = self._replayed(*chunk)
                if answer is None:
                    return None
                results.append(answer)
        for _, fit, form, _ in chunks:
            form.replays += 1
            self._recorded.pop(fit.key, None)
        return results

    def _replayed(
        self, asked: BatchQuestion, fit: PaddedShape, form: Form, aims: tuple[list[int], list[int]]
    ) -> GraphAnswer | None:
        """Replay the form's graph; return None if the model changed, or if its head finds its row by the text."""
        modality, part, _, target, _ = asked
        recording, started = form.recording, time.perf_counter()
        if recording is None or self._borrowed is None or self._pointers() != self._places:
            self.clear()  # weights are elsewhere: what the graph reads may be gone
            return None
        statics = recording.computation.statics
        host = forms.padded(modality, part, fit)
        for name, static in statics.tensors.items():
            forms.write(static, host.tensors[name])
        if statics.keep_BN is not None and host.keep_BN is not None:
            forms.write(statics.keep_BN, host.keep_BN)
        forms.write(statics.index_B, torch.tensor(aims[0]))
        if statics.versus_B is not None:
            forms.write(statics.versus_B, torch.tensor(aims[1]))
        recording.graph.replay()
        self.forms.move_to_end(fit.key)
        # The device is at work from here on.
        study, question = recording.computation.study, recording.computation.question
        options = {"scalar": question.scalar, "seed": question.seed, "keep_layers": question.keep_layers}
        run = Run(modality, host, study, target=target, **options)  # type: ignore[arg-type]
        run.output.ends_in_sigmoid = recording.ends_in_sigmoid  # who asks the model for it has to borrow it
        _ = run.units, run.keep_BN, run.output.labels
        intact = self._layout() == self._layouts and is_as_borrowed(self.model, self._borrowed)
        numbers_BX = torch.from_numpy(array_of(recording.graph.output[: part.size].clone()))
        if not intact:
            self.clear()
            return None
        parts = recording.computation.read(numbers_BX)
        if bool(parts["elsewhere"].any()):  # the head finds its row by the text: inputs are explained one by one
            return None
        run.adopt(Record((), parts["logits"], ()), question.grad, parts["share"])
        run.scalars(parts["logits"])
        seconds = (time.perf_counter() - started) / part.size
        width = None if part.keep_BN is None else part.keep_BN.shape[1]
        cost = Cost(1.0, 1.0 if question.grad else recording.of_head, seconds, recording.graph.bytes)
        return GraphAnswer(run, recording.computation.attribution(parts, width), [cost] * part.size)

    # Which graph fits

    def _fit(self, asked: BatchQuestion) -> PaddedShape:
        modality, part, device = asked.modality, asked.part, self.require_device()
        length = modality.place.length(part) if modality.place.lengths_vary else 0
        wide, width = length, part.tensors[modality.main].shape
        masked = "attention_mask" in part.tensors and all(t.shape == width for t in part.tensors.values())
        if length and not self._exact and masked:
            kind = modality.parts
            if kind not in self._limits:
                self._limits[kind] = forms.longest_of(modality)
            limit = self._limits[kind]
            if limit is not None and length < limit:
                wide = min(forms.bucket(length), limit)
        size = 1 << (part.size - 1).bit_length()
        shapes = tuple(
            (name, str(tensor.dtype), size, *((wide,) if modality.place.lengths_vary else tensor.shape[1:]))
            for name, tensor in part.tensors.items()
        )
        alone = forms.is_tensors_alone(part)
        about = modality.parts, modality.main, asked.question.key, bool(asked.contrast), alone
        return PaddedShape(size, wide, (*about, shapes, (device, *circumstances(device.type))))

    # Is the model the one that was recorded?

    def _tensors(self) -> list[Tensor]:
        return [t for holder in self._holders for t in holder.values() if t is not None]

    def _pointers(self) -> list[int]:
        """Where weights and buffers lie: if they are there, a graph may read them."""
        return [t.data_ptr() for t in self._tensors()]

    def _layout(self) -> list[tuple[Any, ...]]:
        return [(t.dtype, t.shape, t.stride()) for t in self._tensors()]

    # Recording

    def learned(
        self,
        source: Source,
        question: Question,
        session: Session,
        target: Any,
        batch_size: int | None,
        explanations: list[Explanation],
        make: Make,
    ) -> list[Explanation]:
        """Record new forms; return the explanations, with a warning where a recording failed."""
        contrast = forms.contrasts(target, source.size)
        told: dict[str, None] = {}
        for rows in [] if session.size != source.size else forms.chunks_of(source.size, batch_size):
            part = session.batch if len(rows) == session.size else session.batch.select(rows)
            asked = BatchQuestion(session.modality, part, question, forms.of_rows(target, rows), contrast)
            form = self.forms.get(self._fit(asked).key)
            if form is None or not form.why_not:
                plain = explanations[rows[0] : rows[-1] + 1]
                with borrowed(self.model, self.marks):  # also so that one thread records at a time
                    form = self._form_of(asked, session, plain, make)
            if form is not None and form.loud:
                told[form.why_not] = None
        return [e.replace(warnings=(*e.warnings, *told)) for e in explanations] if told else explanations

    def _form_of(self, asked: BatchQuestion, session: Session, plain: list[Explanation], make: Make) -> Form | None:
        """Return the form of some inputs, recorded if possible and compared with their explanations."""
        why_not, form = forms.unsuited(asked.question, session, asked.contrast), None
        for _ in range(2):  # if padding changes the model's output, once more without
            fit = self._fit(asked)
            form = self._met_form(fit, asked.question, why_not)
            if form is None or form.why_not:
                break
            if form.recording is None:
                self._record(form, fit, asked, session)
            if form.recording is not None and not (form.recording.padded and form.replays):
                self._hold_to(plain, form, fit, asked, make)
            if form.recording is not None:
                break
        return form

    def _met_form(self, fit: PaddedShape, question: Question, why_not: str) -> Form | None:
        """Return the form of these inputs, or None if it came once only while other forms take all the room."""
        form = self.forms.get(fit.key)
        if form is None:
            self._met[fit.key] += 1
            if len(self._met) > REMEMBERED:
                self._met = Counter({fit.key: self._met[fit.key]})
            full = sum(known.recording is not None for known in self.forms.values()) >= MOST
            if full and not why_not and self._met[fit.key] < 2:
                return None
            shapes = {name: tuple(shape) for name, _, *shape in fit.key[-2]}
            form = self.forms[fit.key] = Form(question.method.name, shapes, why_not=why_not)
            # Drop the least recently used forms above the limits.
            recorded = [key for key, known in self.forms.items() if known.recording is not None]
            others = [key for key, known in self.forms.items() if known.recording is None]
            surplus = len(recorded) - (MOST if why_not else MOST - 1)
            for key in [*recorded[: max(0, surplus)], *others[: max(0, len(others) - REMEMBERED)]]:
                del self.forms[key]
                self._met.pop(key, None)
        self.forms.move_to_end(fit.key)
        return form

    def _record(self, form: Form, fit: PaddedShape, asked: BatchQuestion, session: Session) -> None:
        self._recorded[fit.key] += 1
        if self._recorded[fit.key] > 2:
            self._refuse(form, "the model changed at each of the last calls")
            return
        modality, part, question, _, contrast = asked
        device = self.require_device()
        self._take_stock(as_borrowed(self.model))
        devices = {t.device for t in self._tensors()}
        if devices != {device}:
            form.why_not = f"the model is on several devices ({', '.join(sorted(map(str, devices)))})."
            return
        try:
            statics = forms.statics_of(forms.padded(modality, part, fit), fit, bool(contrast), device)
            question = replace(question, scalar=offered(self.model, question.scalar))
            computation = Computation(modality, session.study, question, statics)
            if self._pool is None:
                self._pool = new_pool(device)
            graph = RECORDERS[device.type](computation, device, self._pool)
            labels = Run(modality, part, session.study, scalar=question.scalar).output.labels
            known = known_about(self.model)
            facts = bool(known.get("sigmoid")), known.get(HeadGradient, 0.0)
            form.recording = Recording(graph, computation, labels, padding_index(modality), *facts)
        except Exception as error:
            self._pool = None  # a recording that failed may have left it in an undefined state
            self._refuse(form, cause_of(error))

    def _take_stock(self, before: Borrowed) -> None:
        """Remember the state of the model; drop graphs of another state."""
        modules = list(self.model.modules())
        self._holders = [d for m in modules for d in (m._parameters, m._buffers) if d]  # type: ignore[misc]
        places = self._pointers()
        if self._borrowed is not None and (before.changes != self._borrowed.changes or places != self._places):
            for form in self.forms.values():
                form.recording = None
            self._pool = None
        self._borrowed, self._places, self._layouts = before, places, self._layout()

    def _hold_to(
        self, plain: list[Explanation], form: Form, fit: PaddedShape, asked: BatchQuestion, make: Make
    ) -> None:
        """Compare a replay with the explanations made without a graph; drop the recording if they differ."""
        recording, before = form.recording, self._borrowed
        assert recording is not None and before is not None
        aims = forms.aimed(asked.target, asked.part.size, recording)
        assert aims is not None
        with in_turn(before):
            answer = self._replayed(asked, fit, form, aims)
        if answer is None:
            form.recording = None
            if self._borrowed is not None:  # the model is the same
                form.why_not = "the output position depends on the content of the input."
            return
        pairs = list(zip(plain, make(*answer), strict=True))
        sizes = answer.run.logits.abs().amax(1).clamp(min=1e-6).tolist()
        off = max(forms.apart(a, b) for a, b in pairs)
        off = max(off, *(abs(a.value - b.value) / size for (a, b), size in zip(pairs, sizes, strict=True)))
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        padded = forms.is_padded(asked.part, fit)
        if off <= tolerance(dtype, self.require_device()):
            recording.padded |= padded
            return
        form.recording = None
        if padded and not self._exact:
            del self.forms[fit.key]
            self._exact = True  # the model's output depends on padding
            return
        self._refuse(form, f"a replay differs from the eager result by {off:.1e}")

    def _refuse(self, form: Form, cause: str) -> None:
        form.recording, form.loud = None, True
        form.why_not = f"compiled=True: no CUDA graph could be recorded ({cause}); explained without a graph."
        if cause not in self._warned:
            self._warned.add(cause)
            warnings.warn(form.why_not, RuntimeWarning, stacklevel=2)
