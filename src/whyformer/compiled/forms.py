"""Which shapes are recorded as CUDA graphs, and what is computed in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.leaves import Traced
from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.capture.record import observe, record
from whyformer.capture.roles import Observe, Recorder
from whyformer.compiled.graph import Graph
from whyformer.errors import NotOffered, WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.families import is_rotary, says_tokens
from whyformer.inputs.output import Output
from whyformer.loan.borrow import known_about, module_names
from whyformer.registry import Method
from whyformer.results.types import Explanation, Target
from whyformer.run import Attribution, Run
from whyformer.run.scores import spoke_rows
from whyformer.run.session import BATCH_SIZE_ON_DEVICE, Session
from whyformer.study import Study
from whyformer.study.entrance import padding_index, surely_unpadded
from whyformer.study.interference import MIXES
from whyformer.targets import class_index, scalar_at

# What is recorded: the model, the gradient of the explained score and the formula, from static inputs to one tensor.
#
# Nothing may synchronise with the device. What an ordinary run fetches (is anything NaN, which class is predicted, is
# anything padded) is computed on the device here, and read when all results are copied to the host together.

PREDICTED = -1  # in place of a class: the predicted one
CHECK = "check: "  # how names of parts begin that are checks


@dataclass(frozen=True)
class Question:
    """Method and settings of an explanation, independent of the inputs."""

    method: Method
    options: dict[str, Any]
    scalar: str
    keep_layers: bool
    seed: int

    @property
    def at_input(self) -> bool:
        """Gradients are those at the input, and there is no record."""
        return "input_gradients" in self.method.needs

    @property
    def grad(self) -> bool:
        return self.at_input or "attention_gradients" in self.method.needs

    @property
    def key(self) -> tuple[Any, ...]:
        return self.method.name, repr(self.options), self.scalar, self.keep_layers


@dataclass
class Statics:
    """Tensors that a graph reads: they stay where they are, and are written to before each replay."""

    tensors: dict[str, Tensor]
    keep_BN: Tensor | None
    index_B: Tensor  # classes that are explained
    versus_B: Tensor | None  # and those that they are held against


@dataclass
class Computation:
    """One explanation of a batch, from its statics to one (B, …) row of numbers per input."""

    modality: Modality
    study: Study
    question: Question
    statics: Statics
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the numbers: name -> shape without B
    told: dict[str, Any] = field(default_factory=dict)  # facts of the attribution that do not depend on the input

    def __call__(self) -> Tensor:
        question, statics = self.question, self.statics
        batch = Batch(statics.tensors, keep_BN=statics.keep_BN)
        run = RecordedRun(self, batch)
        nothing_B = torch.zeros(batch.size, device=statics.index_B.device)
        if question.at_input:
            attribution = question.method.run(run, **question.options)
            outcome = {"logits": run.answer_BC, "share": nothing_B, **self._numbers(attribution)}
            return self._joined(outcome | {"elsewhere": nothing_B})
        role = (Recorder if question.grad else Observe)(
            batch.size, module_names(self.modality.model), self.study.batch_axes
        )
        kind = (question.grad, batch.size > 1)
        role.plan, role.facts = self.study.plans.at(kind, self.study.torch_own), self.study.sites
        if isinstance(role, Recorder):
            maps = record(lambda: run.output.logits(batch), role, run.scalars)
        else:
            role.count = run.attentions
            maps = observe(lambda: run.output.logits(batch), role)
        run.adopt(maps, question.grad, nothing_B if statics.keep_BN is None else None)
        attribution = question.method.run(run, **question.options)
        outcome = {"logits": maps.logits, "share": run.padding_share_B, **self._numbers(attribution)}
        last = maps.sites[-1]
        spoke_BQ = role.spoke_BQ if isinstance(role, Observe) else spoke_rows(last)
        elsewhere_B = None if spoke_BQ is None else run.elsewhere(last.first_query, spoke_BQ)
        return self._joined(outcome | {"elsewhere": nothing_B if elsewhere_B is None else elsewhere_B})

    def _joined(self, outcome: dict[str, Tensor]) -> Tensor:
        self.parts = {name: tuple(tensor.shape[1:]) for name, tensor in outcome.items()}
        return torch.cat([tensor.detach().float().reshape(len(tensor), -1) for tensor in outcome.values()], 1)

    def scores(self, run: Run, logits_BC: Tensor) -> Tensor:
        """(B,) the explained values, differentiable."""
        best_B, statics = logits_BC.detach().argmax(1), self.statics

        def value(index_B: Tensor) -> Tensor:
            chosen_B1 = torch.where(index_B == PREDICTED, best_B, index_B)[:, None]
            return scalar_at(logits_BC, chosen_B1, run.reading, run.output.independent)

        if statics.versus_B is None:
            return value(statics.index_B)
        return value(statics.index_B) - value(statics.versus_B)

    def _numbers(self, attribution: Attribution) -> dict[str, Tensor]:
        detail, matrix = attribution.detail, attribution.matrix_BQK
        on_host = not (detail is None or isinstance(detail, Tensor)) or isinstance(matrix, dict)
        if on_host or any(attribution.warnings or ()):
            raise NotOffered(f"{self.question.method.name} returns more than numbers here.")
        self.told = {"signed": attribution.signed, "used": attribution.used}
        named = {"scores": attribution.scores_BN, "matrix": matrix, "layers": attribution.layers_BLQK, "detail": detail}
        named |= {CHECK + name: numbers_B for name, numbers_B in attribution.checks.items()}
        return {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor)}

    def read(self, numbers_BX: Tensor) -> dict[str, Tensor]:
        """Split the numbers into their parts, once they are on the host."""
        sizes = [torch.Size(shape).numel() for shape in self.parts.values()]
        parts = zip(self.parts.items(), numbers_BX.split(sizes, 1), strict=True)
        return {name: part.reshape(len(part), *shape) for (name, shape), part in parts}

    def attribution(self, parts: dict[str, Tensor], width: int | None) -> Attribution:
        """Of the numbers of a replay; width: of the texts, before they were padded to the graph's."""
        detail = parts.get("detail")
        return Attribution(
            parts["scores"],
            matrix_BQK=parts.get("matrix"),
            layers_BLQK=parts.get("layers"),
            detail=None if detail is None else detail[:, :width],
            checks={name.removeprefix(CHECK): part for name, part in parts.items() if name.startswith(CHECK)},
            **self.told,
        )


class RecordedOutput(Output):
    """As Output, without its handling of random numbers; models that draw them are not recorded."""

    def logits(self, batch: Batch) -> Tensor:
        batch = replace(batch)
        raw = self.modality.read.call(batch, **self.extra)
        its_own = self.modality.mean.logits(raw, batch, self.scalar)
        return self.row_per_input(raw, batch) if its_own is None else its_own


class RecordedRun(Run):
    """A run that never asks the device: classes are those of the statics, and checks were made without a graph."""

    def __init__(self, computation: Computation, batch: Batch) -> None:
        question = computation.question
        settings = {"scalar": question.scalar, "seed": question.seed, "keep_layers": question.keep_layers}
        super().__init__(computation.modality, batch, computation.study, **settings)  # type: ignore[arg-type]
        self.computation, self.recorded = computation, True
        self.output = RecordedOutput(self.modality, batch, question.scalar)
        self.answer_BC = torch.empty(0)

    def scalars(self, logits_BC: Tensor, ask: bool = True) -> Tensor:
        self.answer_BC = logits_BC.detach()
        return self.computation.scores(self, logits_BC)

    def traced_by_plan(self, rules: GradientRules) -> Traced:
        """Without a plan: in a recording, functions that ask the device are left out."""
        return self.traced(rules)

    def plan_rules(self, trace: Traced) -> None:
        return


# Fields of a batch that are written to the graph, or stand beside the result.
WRITTEN = {"tensors", "keep_BN", "raw", "warnings", "encodings", "asked"}
ON_THE_HOST = {"discard": (0, 0.0), "protect_special": (False,), "region": ("all", "row")}  # option -> what is not


class Compiled(NamedTuple):
    """One form of inputs as an Explainer knows it."""

    method: str
    shapes: dict[str, tuple[int, ...]]
    graph: bool
    why_not: str  # where there is none
    replays: int
    bytes: int


@dataclass
class Recording:
    """A graph, and what is needed to read its output."""

    graph: Graph
    computation: Computation
    labels: dict[int, str]
    padding: int | None  # the token that the model's embedding takes for padding
    ends_in_sigmoid: bool
    of_head: float  # the share of a backward that finds the rows that the head reads
    padded: bool = False  # compared with explanations without a graph, on inputs with padding

    @property
    def classes(self) -> int:
        return self.computation.parts["logits"][0]


@dataclass
class Form:
    """A question about tensors of one shape."""

    method: str
    shapes: dict[str, tuple[int, ...]]
    recording: Recording | None = None
    why_not: str = ""
    loud: bool = False  # recording was tried, and failed
    replays: int = 0


class PaddedShape(NamedTuple):
    """The shape that some inputs are padded to."""

    size: int
    length: int
    key: tuple[Any, ...]


def bucket(length: int) -> int:
    """The length that a text is padded to: 16, 32, 48, 64, 96, 128, 192, 256, 384, …"""
    power = max(16, 1 << (length - 1).bit_length())
    return power * 3 // 4 if power > 32 and length <= power * 3 // 4 else power


def longest_of(modality: Modality) -> int | None:
    config = getattr(modality.model, "config", None)
    limit = modality.read.max_length()
    if limit is None and is_rotary(config):  # positions are computed, not looked up
        return 1 << 30
    return limit if getattr(config, "max_position_embeddings", None) else None


def is_tensors_alone(batch: Batch) -> bool:
    """Whether the model is given the tensors and nothing else: a graph has all other arguments built in."""
    others = (field for field in fields(Batch) if field.name not in WRITTEN)
    return not any(getattr(batch, field.name) for field in others)


def is_padded(part: Batch, fit: PaddedShape) -> bool:
    return part.keep_BN is not None and (part.keep_BN.shape[1] < fit.length or not bool(part.keep_BN.all()))


def padded(modality: Modality, part: Batch, fit: PaddedShape) -> Batch:
    """Pad the inputs to the shape of the graph; texts on the host, where their tokens are read."""
    if part.keep_BN is None:
        return part
    tensors, keep_BN = {k: v.cpu() for k, v in part.tensors.items()}, part.keep_BN.cpu()
    extra = fit.length - keep_BN.shape[1]
    if extra:
        tensors, keep_BN = modality.place.lengthened(tensors, extra), nn.functional.pad(keep_BN, (0, extra))
    return replace(part, tensors=tensors, keep_BN=keep_BN)


def statics_of(host: Batch, fit: PaddedShape, contrast: bool, device: torch.device) -> Statics:
    def room(tensor: Tensor) -> Tensor:
        static = torch.zeros(fit.size, *tensor.shape[1:], dtype=tensor.dtype, device=device)
        write(static, tensor)
        return static

    index_B = torch.full((fit.size,), PREDICTED, device=device)
    return Statics(
        {name: room(tensor) for name, tensor in host.tensors.items()},
        None if host.keep_BN is None else room(host.keep_BN),
        index_B,
        torch.zeros_like(index_B) if contrast else None,
    )


def write(static: Tensor, rows: Tensor) -> None:
    """Copy rows into a static tensor; rows that are left over repeat the first, and their results are not read."""
    count = len(rows)
    if count == len(static):
        static.copy_(rows, non_blocking=True)
        return
    static[:count].copy_(rows, non_blocking=True)
    static[count:].copy_(rows[:1].expand(len(static) - count, *rows.shape[1:]), non_blocking=True)


def chunks_of(size: int, batch_size: int | None) -> list[range]:
    step = batch_size or BATCH_SIZE_ON_DEVICE
    return [range(start, min(start + step, size)) for start in range(0, size, step)]


def of_rows(target: Any, rows: Sequence[int]) -> Any:
    return [target[i] for i in rows] if isinstance(target, list) else target


def contrasts(target: Any, size: int) -> bool | None:
    """Return whether a class is contrasted with another; None if only for some inputs, or if the target is no class."""
    aims = target if isinstance(target, list) else [target]
    if isinstance(target, list) and len(target) != size:
        return None
    kinds = set()
    for aim in aims:
        if isinstance(aim, float) or (isinstance(aim, Target) and (aim.position, aim.end) != (None, None)):
            return None
        kinds.add(isinstance(aim, tuple) or (isinstance(aim, Target) and aim.versus is not None))
    return kinds.pop() if len(kinds) == 1 else None


def aimed(target: Any, size: int, recording: Recording) -> tuple[list[int], list[int]] | None:
    """Return classes and those they are contrasted with; None if they are wrong (raised by an ordinary run)."""
    pairs = []
    for aim in target if isinstance(target, list) else [target] * size:
        pair = (aim.index, aim.versus) if isinstance(aim, Target) else aim if isinstance(aim, tuple) else (aim, None)
        if len(pair) != 2:
            return None
        try:
            pairs.append(
                [PREDICTED if a is None else class_index(a, recording.classes, recording.labels, None) for a in pair]
            )
        except WhyformerError:
            return None
    return [a for a, _ in pairs], [b for _, b in pairs]


def unsuited(question: Question, session: Session, contrast: bool | None) -> str:
    """Return why these inputs are never recorded, "" if they can be."""
    modality, batch, options = session.modality, session.batch, question.options
    if not question.method.compiles:
        return f"{question.method.name} needs more than one forward and backward on the device."
    if any(options[name] not in free for name, free in ON_THE_HOST.items() if name in options):
        return f"these options of {question.method.name} are computed on the host."
    if options.get("residual") == "mixing":
        return "residual='mixing' measures the blocks around attention."
    if contrast is None:
        return "targets of several kinds, or at a position, are not a single index per input."
    if modality.mean.generates or says_tokens(session.model):
        return "language models are explained at a token that the text decides."
    rows = batch.positions or batch.answers or batch.trunks or batch.groups or batch.spans or batch.targets
    if rows or batch.predictions or modality.read.opaque or modality.mean.outcome != "classes":
        return "the explained output is determined on the host."
    if batch.constants or batch.reference_rows or modality.read.mixes_rows or modality.read.joint:
        return "inputs of several streams, with reference rows, or with other arguments are not recorded."
    if not is_tensors_alone(batch):
        return "the model gets other arguments than tensors."
    facts = known_about(session.model)
    if session.one_by_one or (facts.get(MIXES) and session.size > 1):
        return "these inputs are run one by one."
    if facts.get("draws") is not False:
        return "the model uses random numbers."
    masked = batch.keep_BN is not None and (
        "attention_mask" in batch.tensors or is_unmasked(modality, batch, padding_index(modality))
    )
    if (modality.read.embeds or modality.place.padding_in_doubt or modality.place.lengths_vary) and not (
        modality.read.embeds and masked
    ):
        return "the inputs have no attention_mask that marks padding."
    study = session.study
    if not study.plain or study.windows is not None or study.readout is None:
        return "the model has more than one stream of plain self-attention."
    if study.readout.looked_up(modality.place.lengths_vary):
        return "the output position depends on the text."
    return ""


def is_unmasked(modality: Modality, batch: Batch, index: int | None) -> bool:
    """Return whether texts come without any mask and none begins or ends with what may be padding."""
    return not any("mask" in name for name in batch.tensors) and surely_unpadded(modality, batch, index)


def apart(plain: Explanation, replayed: Explanation) -> float:
    """The largest difference of two explanations, of the largest score; the highest is compared by itself."""
    # A map with the identity in it gives nearly everything to one position, beside which no other would count.
    a, b = plain.scores, replayed.scores
    if a.shape != b.shape or not len(a):
        return float("inf")
    highest = int(np.abs(a).argmax())
    size, away, rest = float(np.abs(a[highest])), np.abs(a - b), np.delete(np.abs(a), highest)
    others = float(np.delete(away, highest).max(initial=0)) / max(float(rest.max(initial=0)), 1e-6 * size, 1e-30)
    return max(float(away[highest]) / max(size, 1e-30), others)
