"""Sanity check of Adebayo et al. 2018 (arXiv:1810.03292): compare with explanations of a model of random weights."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.checks.attention_rows import mean_known, rank_agreement, value_of_nothing
from whyformer.checks.exam import Exam, Finding, ordinary, same_order
from whyformer.errors import BadInput, NonFinite, NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.inputs.output import Output
from whyformer.loan.backwards import refuse_quantised
from whyformer.loan.borrow import known_about, share_known
from whyformer.loan.turns import uninterrupted
from whyformer.parameters import Count, OneOf


def twin_of(model: nn.Module) -> nn.Module:
    """All modules once more, their parameters in the same memory, their buffers copied, their hooks shared."""
    # torch.func.functional_call would put other weights into the model itself while it runs, for all threads.
    modules = list(model.modules())
    twins: dict[int, Any] = {id(m): m.__class__.__new__(m.__class__) for m in modules if "_orig_mod" not in m._modules}
    for module in modules:
        if "_orig_mod" in module._modules:  # torch.compile's, which runs what it was made of
            twins[id(module)] = twins[id(module._modules["_orig_mod"])]
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in twins:
                with torch.inference_mode(parameter.is_inference()):
                    twins[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in twins:
                with torch.inference_mode(buffer.is_inference()):
                    twins[id(buffer)] = buffer.detach().clone()
    for module in modules:
        if "_orig_mod" not in module._modules:
            contents = {name: _twin_value(value, twins) for name, value in module.__dict__.items()}
            twins[id(module)].__dict__.update(contents, _compiled_call_impl=None)
    twin = cast(nn.Module, twins[id(model)])
    share_known(model, twin)
    return twin


def _twin_value(value: Any, twins: dict[int, Any]) -> Any:
    """The value with twins in place of modules, parameters and buffers."""
    if id(value) in twins:
        return twins[id(value)]
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        changed = value.copy()
        for key, inner in value.items():
            changed[key] = _twin_value(inner, twins)
        return changed
    if type(value) in {list, tuple, set}:
        return type(value)(_twin_value(inner, twins) for inner in value)
    if isinstance(value, MethodType):
        owner = _twin_value(value.__self__, twins)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, functools.partial):
        named = {k: _twin_value(v, twins) for k, v in value.keywords.items()}
        return functools.partial(_twin_value(value.func, twins), *(_twin_value(v, twins) for v in value.args), **named)
    if isinstance(value, FunctionType) and any(_holds(cell, twins) for cell in value.__closure__ or ()):
        raise NotOffered(
            f"the function {value.__qualname__} refers to a module of the model, so a copy with random weights would "
            "still run the trained ones. Pass the module as an argument instead (functools.partial)."
        )
    return value


def _holds(cell: Any, twins: dict[int, Any]) -> bool:
    try:
        inside = cell.cell_contents
    except ValueError:  # empty
        return False
    return id(inside) in twins or (isinstance(inside, MethodType) and id(inside.__self__) in twins)


def require_whole(model: nn.Module, twin: nn.Module, forward: Callable[[nn.Module], Any]) -> None:
    """Raise if the copy still runs modules of the original model."""
    if calls_of(twin, forward) != calls_of(model, forward):
        raise NotOffered(
            f"a copy of {type(model).__name__} with random weights would still run parts of the trained model (an "
            "object in it refers to one of its modules), so random weights cannot be tested."
        )


def calls_of(model: nn.Module, forward: Callable[[nn.Module], Any]) -> list[str]:
    """The modules with parameters in the order in which a pass leaves them."""
    order: list[str] = []
    names = {id(m): name for name, m in model.named_modules()}
    with ExitStack() as hooks, torch.no_grad():
        for module in (m for m in model.modules() if m._parameters):
            hooks.enter_context(module.register_forward_hook(lambda m, *_: order.append(names[id(m)])))
        forward(model)
    return order


BY = ("block", "module")
NUMBERED = re.compile(r"^(.*?\.\d+)(\.|$)")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are drawn together."""

    name: str
    parameters: tuple[str, ...]


def parts_of(model: nn.Module, forward: Callable[[nn.Module], Any], by: str = "block") -> list[ParameterGroup]:
    """Parameters by numbered block (``layer.3``) or by module, in reverse order of calls; those never called last."""
    last_call = {name: i for i, name in enumerate(calls_of(model, forward))}
    groups: dict[str, list[str]] = {}
    rank: dict[str, int] = {}
    for name, _ in model.named_parameters():  # shared parameters are named once
        module = name.rpartition(".")[0]
        match = NUMBERED.match(module) if by == "block" else None
        part = match.group(1) if match else module or "the model itself"
        groups.setdefault(part, []).append(name)
        rank[part] = max(rank.get(part, -1), last_call.get(module, -1))
    ordered = sorted(groups, key=lambda part: -rank[part])
    return [ParameterGroup(part, tuple(groups[part])) for part in ordered]


class Redrawn:
    """Draws parts of a model anew, in other memory, and puts them back at the end, also after Ctrl-C. Hold its lock."""

    def __init__(self, model: nn.Module) -> None:
        refuse_quantised(model, "randomisation draws new weights")
        for name, parameter in model.named_parameters():
            if parameter.is_meta:
                raise NotOffered(f"{name} is not in memory (offloaded): its weights cannot be randomised and restored.")
        self.model, self._parameters = model, dict(model.named_parameters())
        if not self._parameters:
            raise NotOffered("the model has no weights here that could be randomised: it is called remotely.")
        self._originals: dict[str, Tensor] = {}

    def __enter__(self) -> Redrawn:
        self._facts = dict(known_about(self.model))
        return self

    def __exit__(self, *exc: object) -> None:
        with uninterrupted():
            self.restore()
            facts = known_about(self.model)
            facts.clear()
            facts.update(self._facts)

    def draw(self, part: ParameterGroup, seed: int) -> None:
        """Normal numbers with each parameter's own mean and spread, whatever it was drawn as before."""
        generator = torch.Generator().manual_seed(seed)
        for name in part.parameters:
            parameter = self._parameters[name]
            if name not in self._originals:
                self._originals[name] = parameter.detach()
            values = self._originals[name].float().cpu()
            spread = values.std() if values.numel() > 1 else values.abs().mean()
            drawn = values.mean() + spread * torch.randn(values.shape, generator=generator)
            table = self.model.get_submodule(name.rpartition(".")[0])
            if isinstance(table, nn.Embedding) and table.padding_idx is not None:
                drawn[table.padding_idx] = values[table.padding_idx]
            _set(parameter, drawn.to(parameter))

    def restore(self) -> None:
        """Every changed parameter in its own memory again."""
        stopped: KeyboardInterrupt | None = None
        while self._originals:
            try:
                name = next(reversed(self._originals))
                _set(self._parameters[name], self._originals[name])
                del self._originals[name]
            except KeyboardInterrupt as interrupt:  # not before everything is back
                stopped = interrupt
        if stopped is not None:
            raise stopped


def _set(parameter: Tensor, values: Tensor) -> None:
    # Weights that were made in inference mode can be set in it only. Leaving that mode switches gradients on.
    with torch.inference_mode(parameter.is_inference()), torch.no_grad():
        parameter.data = values


NAME = "randomisation"
MORE = 3.0  # how many times more a trained model makes of its input than the median of its random copies, at least
SAME = 0.5  # mean Spearman from which the map of a randomised model is nearly the same


@dataclass(frozen=True)
class Stage:
    """Maps of a partly randomised model compared with the original ones: means over inputs; NaN without a map."""

    part: str
    cascading: float  # this part and all above it: Spearman
    cascading_abs: float  # of absolute scores
    independent: float  # this part alone
    independent_abs: float


@dataclass(frozen=True)
class Randomisation:
    """The cascade of randomised layers from output to input, and the model's log-odds beside those of random copies."""

    method: str
    stages: tuple[Stage, ...]
    spearman: float  # mean over fully randomised copies and inputs
    spearman_abs: float
    evidence: float  # mean over inputs of |s(x) - s(x with every unit replaced)|, s the log-odds of the answer
    random_evidence: tuple[float, ...]  # of fully randomised copies

    @property
    def final(self) -> float:
        """The agreement with all weights random: the higher of the signed and the absolute correlation."""
        return max((v for v in (self.spearman, self.spearman_abs) if not math.isnan(v)), default=math.nan)

    @property
    def untrained(self) -> bool:
        """Whether the model's log-odds are hardly above those of copies with random weights."""
        return self.evidence <= MORE * float(np.median(self.random_evidence))

    def findings(self) -> tuple[Finding, ...]:
        numbers, agreement = {"spearman": self.spearman, "spearman_abs": self.spearman_abs}, same_order(self.final)
        level, text = "ok", f"a different map ({agreement}): the map depends on the trained weights."
        if self.final >= SAME:
            level, text = "warning", f"nearly the same map ({agreement}): the map does not depend on trained weights."
        text = f"With all weights random, {self.method} gives {text}"
        if math.isnan(self.final):
            level, text = "note", "Inconclusive: the randomised model could not be explained."
        findings = [Finding(level, "randomisation", "Random weights", text, numbers)]
        if self.untrained:
            text = (
                "The output depends on these inputs hardly more than that of copies with random weights (log-odds "
                f"against an empty input {self.evidence:.3g}, median of the copies "
                f"{np.median(self.random_evidence):.3g}): the model looks untrained, the inputs are unlike its "
                "training data, or the empty input gives the same answer as these."
            )
            numbers = {"evidence": self.evidence, "random_evidence": mean_known(self.random_evidence)}
            findings.append(Finding("warning", "randomisation", "The model itself looks random", text, numbers))
        return tuple(findings)


def randomisation(
    exam: Exam, *, by: Annotated[str, OneOf(*BY)] = "block", copies: Count = 5, beside: Count = 9
) -> Randomisation:
    """Randomise the weights from the output down, block by block, and test whether the map changes.

    Cascading: a block and all blocks above it; independent: that block alone. Maps are compared by Spearman's ρ over
    ordinary units, with and without the sign. All parameters are randomised, embeddings included, each block with its
    own seed, in a copy of the model. ``by``: "block" or "module". ``copies``: the number of fully randomised models to
    average over; ``beside``: the number of random models that the model's log-odds are compared with.

    Misleads when: the input itself shapes the map (edges of an image, word order): agreement above zero is not a
    failure then. A method can also pass without being faithful.
    """
    if not 1 <= copies <= beside:
        raise BadInput(f"copies={copies}, beside={beside}: copies must be at least 1 and at most beside.")
    original = [ordinary(e) for e in exam.explanations]
    evidence = exam.cached(float, (NAME, "evidence"), lambda: _evidence(exam))
    # The same examination of a twin of the model, of which weights can be drawn anew.
    loaded = exam.explainer
    copied = CoreExplainer(twin_of(loaded.model), loaded.processor, attention_at=loaded.attention_at)
    settings: dict[str, Any] = {"method": exam.wanted, "options": exam.options, "target": exam.target}
    twin = Exam(copied, exam.inputs, seed=exam.seed, batch_size=exam.session.asked_size, progress=False, **settings)
    twin.explanations = exam.explanations
    with exam.borrowing(), twin.borrowing():
        exams = {loaded.model: exam, copied.model: twin}
        require_whole(loaded.model, copied.model, lambda model: _logits(exams[model]))

    def agreement(*key: object) -> tuple[float, float]:
        return exam.cached(tuple[float, float], (NAME, by, *key), lambda: _agreement(twin, original))

    with twin.borrowing(), Redrawn(twin.explainer.model) as drawn:
        parts = parts_of(drawn.model, lambda _: _logits(twin), by)
        seeds = [_seed(exam.seed, number) for number in range(len(parts))]
        alone = []
        for number in exam.track(range(len(parts)), "randomising"):
            drawn.draw(parts[number], seeds[number])
            alone.append(agreement("alone", number))
            drawn.restore()
        together = []
        for number in exam.track(range(len(parts)), "randomising from the output down"):
            drawn.draw(parts[number], seeds[number])
            together.append(agreement("together", number))
        agreements, chance = together[-1:], []
        for other in exam.track(range(beside), "randomised copies"):
            if other:
                seed = _seed(exam.seed, len(parts) * other)
                for number, part in enumerate(parts):
                    drawn.draw(part, _seed(seed, number))
            chance.append(exam.cached(float, (NAME, by, "chance", other), lambda: _evidence(twin)))
            if 0 < other < copies:
                agreements.append(agreement("copy", other))
    stages = tuple(Stage(p.name, *t, *a) for p, t, a in zip(parts, together, alone, strict=True))
    means = mean_known([plain for plain, _ in agreements]), mean_known([absolute for _, absolute in agreements])
    return Randomisation(exam.method.name, stages, *means, evidence, tuple(chance))


def _seed(seed: int, number: int) -> int:
    """A seed for every part: equal shapes must not get equal numbers."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _agreement(exam: Exam, original: list[Any]) -> tuple[float, float]:
    """Mean Spearman of the model as it is now with the original maps, with and without the sign."""
    try:
        scores = [ordinary(e) for e in exam.explain(target=exam.targets)]
    except (NotOffered, NonFinite):  # random weights can overflow, or leave nothing to explain
        return math.nan, math.nan
    pairs = list(zip(original, scores, strict=True))
    return (
        mean_known([rank_agreement(a, b) for a, b in pairs]),
        mean_known([rank_agreement(np.abs(a), np.abs(b)) for a, b in pairs]),
    )


@torch.no_grad()
def _logits(exam: Exam) -> torch.Tensor:
    steps = range(0, exam.size, exam.step)
    chunks = [exam.batch.select(range(i, min(i + exam.step, exam.size))) for i in steps]
    return torch.cat([Output(exam.modality, chunk).logits(chunk).float() for chunk in chunks])


def _evidence(exam: Exam) -> float:
    """Mean over inputs of how far the log-odds of the answer are from those of the input with every unit replaced."""
    # A random model can be sure of one class whatever it is shown; what counts is what the input does to it.
    effects = []
    with exam.borrowing():
        for row in range(exam.size):
            run = exam.run(row, own_answer=True)
            # The mean colour of an image is made of the image, and may already give the answer: zero is tried, too.
            baselines = run.modality.mask.offered(run.batch.asked.segments)[
                : 2 if run.modality.place.pixels else 1
            ] or (None,)
            try:
                empty = [value_of_nothing(run, baseline) for baseline in baselines]
            except (NotOffered, BadInput, IndexError):  # units cannot be masked: the value itself counts
                empty = [0.0]
            effects.append(max(abs(float(run.value_B[0]) - value) for value in empty))
    return mean_known(effects)
