"""Attention is not not explanation: does this model need its attention at all? (Wiegreffe & Pinter 2019)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from whyformer.checks.attention_rows import Choice, LayerRows, outputs_with, rows_of
from whyformer.checks.checkup import Finding, how_far_apart
from whyformer.checks.distances import decisions, jsd, mean_known, tvd
from whyformer.checks.exam import Exam, title_of
from whyformer.errors import BadInput
from whyformer.explainer import Explainer
from whyformer.run import Run
from whyformer.types import Explanation

SMALL_CHANGE = 0.05
FAR = 0.2


@dataclass(frozen=True)
class UniformTest:
    """One input with uniform attention."""

    title: str
    change: float  # |Δp| with uniform weights in the chosen rows
    change_everywhere: float  # in every row of every layer
    flips: bool
    flips_everywhere: bool
    jsd: float  # of the model's own attention from uniform
    seed_jsd: float  # mean over the other models: JSD of their attention from this model's; NaN without any
    seed_change: float  # |Δp| of their outputs


@dataclass(frozen=True)
class WiegreffePinter:
    """All inputs."""

    inputs: tuple[UniformTest, ...]
    layers: str
    models: int  # other models that were compared

    def mean(self, name: str) -> float:
        return mean_known([float(getattr(i, name)) for i in self.inputs])

    def findings(self) -> tuple[Finding, ...]:
        here, everywhere = self.mean("change"), self.mean("change_everywhere")
        numbers = {
            name: self.mean(name) for name in ("change", "change_everywhere", "flips", "flips_everywhere", "jsd")
        }
        needless = everywhere < SMALL_CHANGE
        text = (
            f"With uniform attention over ordinary tokens the output changes by {here:.3f} (|Δp|) in the rows that are "
            f"read, and by {everywhere:.3f} in all rows of all layers. "
        )
        text += (
            "The model hardly needs to look anywhere in particular on these inputs, so where it looks explains little."
            if needless
            else "Where attention goes matters to the model somewhere, so a test of attention means something here."
        )
        findings = [Finding("warning" if needless else "ok", "wiegreffe_pinter", "Uniform attention", text, numbers)]
        if self.models:
            findings.append(self._seeds())
        return tuple(findings)

    def _seeds(self) -> Finding:
        apart, change = self.mean("seed_jsd"), self.mean("seed_change")
        numbers = {"seed_jsd": apart, "seed_change": change, "models": float(self.models)}
        text = (
            f"The same model trained with {self.models} other seed{'s' if self.models > 1 else ''} attends "
            f"{'elsewhere' if apart >= FAR else 'alike'} ({how_far_apart(apart)}), and their probabilities "
            f"differ by {change:.3f}. "
            "An adversarial map is surprising only if it differs by more than that."
        )
        return Finding("note" if apart >= FAR else "ok", "wiegreffe_pinter", "Other seeds", text, numbers)


def wiegreffe_pinter(
    exam: Exam, *, layers: Choice = "last", models: Sequence[Any] = (), heads: Choice = "all"
) -> WiegreffePinter:
    """What is left of the output with uniform attention, and how much does attention vary with the training seed?

    Uniform: each ordinary token gets the same share of what ordinary tokens get together, in the readout rows of
    ``layers`` and, beside it, in all rows of all layers. ``models``: the same architecture trained with other seeds;
    their shown attention is compared by JSD.

    Misleads when: a model that could do without attention was not trained to. The retrained version, the guided MLP
    and the model-consistent adversary need training: ``whyformer.retrained_attention``.
    """
    others = [Explainer(model, exam.explainer.processor) for model in models]
    ours = exam.explain(method="raw_attention", scalar="probability")
    theirs = [exam.explain(explainer=other, method="raw_attention", scalar="probability") for other in others]

    def one(row: int) -> UniformTest:
        run = exam.run(row)
        read, far = _uniform(run, rows_of(run, layers, heads))
        everywhere, _ = _uniform(run, rows_of(run, "all", rows="all"))
        apart = [_apart(ours[row], explained[row]) for explained in theirs]
        seeds = mean_known([j for j, _ in apart]), mean_known([c for _, c in apart])
        return UniformTest(title_of(ours[row]), read[0], everywhere[0], read[1], everywhere[1], far, *seeds)

    key = ("wiegreffe_pinter", layers, heads, [other.model for other in others])
    with exam.borrowing():
        tests = [
            exam.cached(UniformTest, (*key, row), partial(one, row))
            for row in exam.track(range(exam.size), "uniform attention")
        ]
    return WiegreffePinter(tuple(tests), str(layers), len(others))


def _uniform(run: Run, places: list[LayerRows]) -> tuple[tuple[float, bool], float]:
    """|Δp| and whether the decision flips with uniform weights; and how far the last layer's own map is from them.

    Of several streams, the mean over who asks whom.
    """
    even = [place.full(place.even_HRK[None]) for place in places]
    before = outputs_with(run, places, [place.weights_HRK[None] for place in places])
    after = outputs_with(run, places, even)
    last = {place.asks: (place, rows) for place, rows in zip(places, even, strict=True)}.values()
    far = mean_known([float(jsd(place.shown(place.weights_HRK[None]), place.shown(rows))) for place, rows in last])
    return (float(tvd(after, before)), bool((decisions(after) != decisions(before)).any())), far


def _apart(a: Explanation, b: Explanation) -> tuple[float, float]:
    """JSD of the shown maps over ordinary units, and how far the outputs are apart."""
    if len(a.scores) != len(b.scores):
        raise BadInput("the other models split the input into other units: give models with the same tokenizer.")
    words = ~np.array(a.units.special, bool)
    maps = [torch.from_numpy(e.scores[words] / max(1e-12, float(e.scores[words].sum()))) for e in (a, b)]
    change = abs(a.value - b.value) if a.target.index == b.target.index else math.nan
    return float(jsd(*maps)), change
