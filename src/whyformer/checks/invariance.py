"""Check that scores do not change with batch mates, padding, shifts of the input or a little noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whyformer.capture.lookups import ShiftEmbedding
from whyformer.checks.attention_rows import mean_known, rank_agreement
from whyformer.checks.exam import Exam, Finding, ordinary, same_order
from whyformer.errors import NotOffered
from whyformer.inputs.modalities import Source
from whyformer.parameters import Count, Rate
from whyformer.results.types import Explanation

STEADY = 0.7  # mean Spearman from which a map counts as steady


@dataclass(frozen=True)
class Stability:
    """Maps of noisy inputs compared with the original ones; means over inputs."""

    former: ClassVar[tuple[str, ...]] = ("paraphrase_spearman", "paraphrase_same_answer")  # fields of older files

    method: str
    noise: float
    draws: int
    sensitivity: float  # max over draws of ‖φ(x+δ) - φ(x)‖ / ‖φ(x)‖
    spearman: float
    lowest_spearman: float
    same_answer: float  # share of noisy inputs with the same prediction; NaN for models of a number

    def findings(self) -> tuple[Finding, ...]:
        if math.isnan(self.sensitivity):
            return ()
        numbers = {"max_sensitivity": self.sensitivity, "spearman": self.spearman, "same_answer": self.same_answer}
        text = (
            f"Noise of {self.noise:.0%} of the input's standard deviation changes the map by up to "
            f"{self.sensitivity:.0%} ({same_order(self.spearman)})"
        )
        if not math.isnan(self.same_answer):
            text += f"; {self.same_answer:.0%} of the predictions stay the same"
        level = "ok" if self.spearman >= STEADY else "warning"
        return (Finding(level, "stability", "Noise", f"{text}.", numbers),)


def stability(exam: Exam, *, noise: Rate = 0.05, draws: Count = 5) -> Stability:
    """Explain again with noise on the input (word embeddings, pixels, floats).

    ``noise``: standard deviation of the noise as a share of that of the input. Max-sensitivity (Yeh et al. 2019,
    arXiv:1901.09392) is the largest relative change over ``draws``.

    Misleads when: the prediction itself changes under the noise; see the share of predictions that stay the same.
    """
    each = tuple[tuple[float, float, float], ...]
    drawn = [
        exam.cached(each, ("stability", noise, draw), partial(_noisy_changes, exam, noise, draw))
        for draw in exam.track(range(draws), "noise")
    ]
    # per input: all draws
    moved, ranks, same = ([[d[row][i] for d in drawn] for row in range(exam.size)] for i in range(3))
    known = [r for row in ranks for r in row if not math.isnan(r)]
    return Stability(
        exam.method.name,
        noise,
        draws,
        mean_known([max(row) for row in moved]),
        mean_known([mean_known(row) for row in ranks]),
        min(known, default=math.nan),
        mean_known([mean_known(row) for row in same]),
    )


def _noisy_changes(exam: Exam, noise: float, draw: int) -> tuple[tuple[float, float, float], ...]:
    """Per input: how far the scores moved, how far they agree, and whether the answer stayed."""
    per_input = []
    for before, after in zip(exam.explanations, _noisy(exam, noise, draw), strict=True):
        a, b = ordinary(before), ordinary(after)
        moved = float(np.linalg.norm(b - a) / max(1e-12, float(np.linalg.norm(a))))
        classes = before.prediction.probability is not None
        same = float(after.prediction.index == before.prediction.index) if classes else math.nan
        per_input.append((moved, rank_agreement(a, b), same))
    return tuple(per_input)


def _noisy(exam: Exam, noise: float, draw: int) -> list[Explanation]:
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([exam.seed, draw]).generate_state(1)[0]))
    modality = exam.modality
    if modality.read.embeds:
        table = modality.read.embedding
        if table is None:
            raise NotOffered("the word embedding of this model was not found, so noise cannot be added to it.")
        spread = noise * float(table.weight.detach().float().std())
        moves = spread * torch.randn(table.weight.shape, generator=generator)
        with ShiftEmbedding(table, lambda ids: F.embedding(ids.to(moves.device), moves)):
            return exam.explain(target=exam.targets)
    main = exam.batch.tensors.get(modality.main)
    if main is None or not main.is_floating_point() or (modality.read.joint and not modality.place.pixels):
        raise NotOffered("noise needs one tensor of floats or token ids; this input has several, or categories.")
    noisy = main + noise * float(main.float().std()) * torch.randn(main.shape, generator=generator).to(main)
    changed = exam.batch.with_tensors(**{modality.main: noisy})
    return exam.explain(Source(modality, changed, changed.size), target=exam.targets)


COMPANY = 1e-3  # relative difference that rounding explains
SHIFT = 1e-2
PADDING = 3  # positions that are added to inputs whose length may vary


@dataclass(frozen=True)
class Invariance:
    """Largest differences between maps, relative to the largest score."""

    method: str
    company: float  # alone, and beside others (with padding, for texts)
    company_output: float  # how far the model's own output moved there, in units of the explained value
    shift: float  # NaN: the input is no single tensor of numbers or ids
    shift_spearman: float

    def findings(self) -> tuple[Finding, ...]:
        changed = self.company > COMPANY
        numbers = {"difference": self.company, "output": self.company_output}
        if not changed:
            text = "The map is the same alone and in a padded batch."
        elif self.company_output > COMPANY:
            text = (
                f"In a batch, the model's output itself changes (the explained value by {self.company_output:.2g}), "
                "and so does the map: explain inputs one by one, or pad on the other side."
            )
        else:
            text = (
                f"In a batch, the map changes by up to {self.company:.1%} of the largest score: padding or other "
                "inputs of the batch influence it."
            )
        company = Finding("warning" if changed else "ok", "invariance", "Padding and neighbours", text, numbers)
        if math.isnan(self.shift):
            return (company,)
        numbers = {"difference": self.shift, "spearman": self.shift_spearman}
        moved = self.shift > SHIFT
        text = "Adding a constant to the input, and subtracting it inside the model, " + (
            f"changes scores by up to {self.shift:.1%} of the largest one (their order: Spearman "
            f"{self.shift_spearman:.2f}, 1 is the same): the map depends on where zero is."
            if moved
            else "does not change the map."
        )
        return company, Finding("warning" if moved else "ok", "invariance", "Shifted input", text, numbers)


def invariance(exam: Exam) -> Invariance:
    """Explain each input alone and in a batch; shift the input by a constant that the model subtracts again.

    The shifted model predicts the same at the shifted input, so its explanation should stay the same (input invariance,
    Kindermans et al. 2019, arXiv:1711.00867). Texts are shifted at their word embeddings.

    Misleads when: a method uses a fixed baseline (zero, black): it fails this check by design, and its result depends
    on the choice of that baseline.
    """
    each: list[Any] = [dict(exam.batch.select([row]).tensors) for row in range(exam.size)]
    if exam.raw is not None:
        each = [[raw] for raw in exam.raw]
    alone = [exam.explain(one, target=[target])[0] for one, target in zip(each, exam.targets, strict=True)]
    together = _together(exam)
    company = max(_difference(a, b) for a, b in zip(alone, together, strict=True))
    output = max(abs(a.value - b.value) for a, b in zip(alone, together, strict=True))
    shifted = _shifted(exam)
    pairs = list(zip(exam.explanations, shifted or exam.explanations, strict=True))
    # Where the shift was not taken back, the model predicts something else, and its map may differ.
    if shifted is None or any(abs(a.value - b.value) > 1e-2 * max(1.0, abs(a.value)) for a, b in pairs):
        return Invariance(exam.method.name, company, output, math.nan, math.nan)
    shift = max(_difference(a, b) for a, b in pairs)
    ranks = mean_known([rank_agreement(a.scores, b.scores) for a, b in pairs])
    return Invariance(exam.method.name, company, output, shift, ranks)


def _difference(a: Explanation, b: Explanation) -> float:
    if a.scores.shape != b.scores.shape:
        return math.inf
    return float(np.abs(a.scores - b.scores).max() / max(1e-12, float(np.abs(a.scores).max())))


def _together(exam: Exam) -> list[Explanation]:
    """All inputs in one batch, with a longer neighbour (texts) or a repeated one."""
    if exam.raw is not None:
        last = exam.raw[-1]
        mate = f"{max(exam.raw, key=len)} {last}" if all(isinstance(r, str) for r in exam.raw) else last
        explanations = exam.explain([*exam.raw, mate], target=[*exam.targets, 0], batch_size=exam.size + 1)
        return explanations[: exam.size]
    repeated = dict(exam.batch.select([*range(exam.size), 0]).tensors)
    tensors, targets = exam.modality.place.lengthened(repeated, PADDING), [*exam.targets, exam.targets[0]]
    return exam.explain(tensors, target=targets, batch_size=exam.size + 1)[: exam.size]


def _shifted(exam: Exam) -> list[Explanation] | None:
    """Explanations of the shifted input by the model that takes the shift back; None where there is none."""
    modality, targets = exam.modality, exam.targets  # explained before anything is moved
    if modality.read.joint or modality.read.mixes_rows:
        return None
    model = exam.explainer.model
    if modality.read.embeds:
        table = modality.read.embedding
        if table is None:
            return None
        amount = _amount(table.weight.detach(), exam.seed)
        with _taken_back(model, table, amount), ShiftEmbedding(table, lambda ids: amount):
            return exam.explain(target=targets)
    main = exam.batch.tensors.get(modality.main)
    if main is None or not main.is_floating_point():
        return None
    amount = _amount(main, exam.seed)
    with _subtracted(model, amount):
        moved = exam.batch.with_tensors(**{modality.main: main + amount})
        return exam.explain(Source(modality, moved, moved.size), target=targets)


def _amount(numbers: Tensor, seed: int) -> Tensor:
    """What is added to every row: a vector as long as the rows are; norm layers would swallow a single number."""
    noise = torch.randn(numbers.shape[1:], generator=torch.Generator().manual_seed(seed)).to(numbers)
    return noise * numbers.float().std().to(numbers)


def _subtracted(model: nn.Module, amount: Tensor) -> RemovableHandle:
    """While open, the model subtracts ``amount`` from whichever argument has rows of its shape."""

    def less(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.is_floating_point() and value.shape[1:] == amount.shape
        return value - amount if fits else value

    def back(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(less(a) for a in args), {k: less(v) for k, v in kwargs.items()}

    return model.register_forward_pre_hook(back, with_kwargs=True)


@contextmanager
def _taken_back(model: nn.Module, table: nn.Embedding, amount: Tensor) -> Iterator[None]:
    """While the model runs, what its table returns is moved back; lookups beside the model stay moved."""
    running: list[bool] = []
    before = model.register_forward_pre_hook(lambda *_: running.append(True))
    after = model.register_forward_hook(lambda *_: running.clear(), always_call=True)
    with before, after, table.register_forward_hook(lambda _, __, out: out - amount if running else None):
        yield
