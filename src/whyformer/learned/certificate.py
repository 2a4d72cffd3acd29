"""The certificate: how learned explanations do on inputs that were not learned from, beside other methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyformer.choices import LEAST, ONE_PASS, answers
from whyformer.evaluate.candidate import Candidate, wanted
from whyformer.evaluate.compare import chosen_metrics, comparing
from whyformer.evidence import ENOUGH, interval, spread, with_interval
from whyformer.explainer import CoreExplainer
from whyformer.options import Evaluation
from whyformer.shapes import Array

METRICS = ("comprehensiveness", "sufficiency")
GUIDED = {"method": "shap", "evaluations": 64, "guide": "auto"}
SHAPLEY: dict[str, Any] = {"algorithm": "regression", "evaluations": 512}  # exact where there are fewer sets
SHAPLEY_INPUTS = 10

Limits = tuple[float, float, float]  # mean and 95 % confidence interval
UNKNOWN: Limits = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class CertifiedMethod:
    """One method on the held-out inputs, and by how much the learned one is ahead of it, paired."""

    name: str
    forwards: float
    backwards: float
    comprehensiveness: Limits  # higher is better
    sufficiency: Limits  # lower is better
    ahead: Limits = UNKNOWN  # in comprehensiveness - sufficiency
    free: bool = False  # it takes one pass, as the learned one does, without learning


@dataclass(frozen=True)
class Certificate:
    """Measured on held-out inputs only."""

    inputs: int
    shapley_inputs: int  # of these; Shapley values take many passes
    r2: Limits  # share of the variance of Shapley values that the scores explain; 1 is best
    rank: Limits  # Spearman correlation with Shapley values within an input; 1 is best
    methods: tuple[CertifiedMethod, ...]  # the learned one first

    @property
    def learned(self) -> CertifiedMethod:
        return self.methods[0]

    @property
    def rival(self) -> CertifiedMethod | None:
        """The free one-pass method that comes closest or is ahead."""
        free = [m for m in self.methods if m.free]
        return min(free, key=lambda m: m.ahead[0]) if free else None

    @property
    def better(self) -> bool:
        """Whether it is better than every free one-pass method, by more than chance."""
        return all(m.ahead[1] > 0 for m in self.methods if m.free)

    @property
    def verdict(self) -> str:
        if self.rival is None:
            return "No free one-pass method runs on this model: there is nothing to compare with."
        on = f"on {self.inputs} held-out inputs"
        lead = f"{with_interval(self.rival.ahead)} in comprehensiveness - sufficiency {on}"
        few = f" Confidence intervals are wide: only {self.inputs} inputs." if self.inputs < ENOUGH else ""
        if self.better:
            return f"Better than every free one-pass method; the closest is {self.rival.name}: {lead}.{few}"
        level, name = "Not significantly better" if self.rival.ahead[0] > 0 else "Not better", self.rival.name
        compared = f"{level} than {name}, which takes one pass without learning: {lead}"
        if is_tied(self.rival.ahead):
            compared = f"Tied with {name}, which takes one pass without learning, {on}"
        return f"{compared}. Not recommended: use {name}, or learn from more inputs (forwards=).{few}"

    @property
    def line(self) -> str:
        """For every explanation."""
        beside = [f"{m.name} {m.comprehensiveness[0]:.3f} / {m.sufficiency[0]:.3f}" for m in self.methods[1:]]
        own = self.learned
        agreement = "" if math.isnan(self.rank[0]) else f"rank correlation with Shapley values {self.rank[0]:.2f}, "
        return (
            f"learned explanation: on {self.inputs} held-out inputs {agreement}comprehensiveness / sufficiency "
            f"{own.comprehensiveness[0]:.3f} / {own.sufficiency[0]:.3f} ("
            + "; ".join(beside)
            + ")."
            + ("" if self.better else " It is not better than every free one-pass method: not recommended.")
        )


def is_tied(ahead: Limits) -> bool:
    """No difference to three digits."""
    return all(abs(value) < 5e-4 for value in ahead)


def certify(explainer: CoreExplainer, name: str, inputs: Any, asked: Evaluation) -> Certificate:
    """Compare the learned method ``name`` on held-out inputs."""
    kind = explainer.source(inputs).modality.kind
    free = list(dict.fromkeys([answers(kind, 1, LEAST)[0][0], *ONE_PASS]))
    judged = chosen_metrics(METRICS, False, False)
    candidates = _distinct([*wanted([name, "auto", GUIDED], kind), *wanted(free)])
    with comparing(explainer, inputs, candidates, judged, asked, search=False) as (comparison, games):
        values = {row.name: row for row in comparison.rows if not row.baseline}
        gains = {n: _gain(comparison.values, n) for n in values}
        order = sorted(values, key=lambda n: (n != name, n in free))
        methods = tuple(
            CertifiedMethod(
                n,
                values[n].forwards,
                values[n].backwards,
                _limits(np.array(comparison.values[METRICS[0]][n]), games.seed),
                _limits(np.array(comparison.values[METRICS[1]][n]), games.seed),
                ahead=UNKNOWN if n == name else _limits(gains[name] - gains[n], games.seed),
                free=n in free,
            )
            for n in order
        )
        agreeing = _agreement(explainer, games, name, asked)
        return Certificate(games.size, *agreeing, methods)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Where the default of a kind of input takes one pass, it is among the free methods already."""
    return list({candidate.name: candidate for candidate in candidates}.values())


def _gain(values: Mapping[str, Mapping[str, Sequence[float]]], name: str) -> Array:
    gain: Array = np.array(values[METRICS[0]][name]) - np.array(values[METRICS[1]][name])
    return gain


def _limits(values_I: Array, seed: int) -> Limits:
    mean, low, high = (float(each[0]) for each in spread(values_I[:, None], seed))
    return mean, low, high


def _agreement(explainer: CoreExplainer, games: Any, name: str, asked: Evaluation) -> tuple[int, Limits, Limits]:
    """R² and rank correlation with Shapley values, on the first few inputs."""
    from scipy.stats import spearmanr

    from whyformer.evaluate.candidate import some_inputs

    count = min(SHAPLEY_INPUTS, games.input_count)
    some = some_inputs(games.inputs, range(count))
    common: dict[str, Any] = {
        "units": asked.units,
        "span": games.asked["span"],
        "seed": games.seed,
        "progress": False,
    }
    targets = games.wanted_targets
    common |= {"target": None if targets is None else targets[:count], "batch_size": asked.batch_size}
    masked: dict[str, Any] = {"replace": asked.replace, "hold": asked.hold}
    truth = explainer.explain(some, method="shap", **SHAPLEY, **masked, **common)
    learned = explainer.explain(some, method=name, **common)
    squares, ranks = [], []
    for number, (one, other) in enumerate(zip(truth, learned, strict=True)):
        parts = games.parts[number]
        true_P, own_P = one.scores[parts].astype(float), other.scores[parts].astype(float)
        if len(parts) < 2 or np.ptp(true_P) == 0:
            continue
        squares.append([((true_P - own_P) ** 2).sum(), ((true_P - true_P.mean()) ** 2).sum()])
        ranks.append(0.0 if np.ptp(own_P) == 0 else float(spearmanr(true_P, own_P).statistic))
    if not squares:
        return 0, UNKNOWN, UNKNOWN
    table = np.array(squares)

    def share(mean: Array) -> Array:
        return np.array(1 - mean[0] / max(mean[1], 1e-300))

    low, high = interval(table, games.seed, share)
    return len(ranks), (float(share(table.mean(0))), float(low), float(high)), _limits(np.array(ranks), games.seed)
