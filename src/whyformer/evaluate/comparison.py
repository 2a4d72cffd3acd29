"""Comparison: methods side by side, rank correlations between them, and the p-value of the best one's lead."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy.stats import rankdata

from whyformer.engines.perturbation.players import count_of, order_of
from whyformer.errors import NotOffered, UnknownName, listed
from whyformer.evidence import NOISE, Standing, too_few, with_interval
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.comparison_view import comparison_page
from whyformer.views.view import view_of

FLIPS = 4096  # of signs, at most: all of them for twelve inputs or fewer
RARE = 0.025  # one side of 95 %
TOP = 0.25  # share of the parts whose overlap is measured


def chance_of_lead(values_IM: Array, choice: int, seed: int, of: Sequence[int]) -> float:
    """Return the p-value of the largest lead over the choice; NaN without another candidate, or for a single input."""
    # A sign-flip test. The best method is picked by the same values that its lead is measured by, so its own confidence
    # interval is too narrow. Therefore the observed lead is compared with the largest standardised lead of *any*
    # candidate. All detections of an image count as one input.
    number = np.unique(np.asarray(of), return_inverse=True)[1]
    inputs = int(number.max(initial=-1)) + 1
    differences_IM = np.delete(values_IM - values_IM[:, [choice]], choice, 1)
    if inputs < 2 or not differences_IM.shape[1]:
        return math.nan
    each_IM = np.zeros((inputs, differences_IM.shape[1]))
    np.add.at(each_IM, number, differences_IM)
    if 2**inputs <= FLIPS:
        signs_FI = 1.0 - 2.0 * ((np.arange(2**inputs)[:, None] >> np.arange(inputs)) & 1)
    else:
        signs_FI = np.random.default_rng(seed).choice([-1.0, 1.0], (FLIPS, inputs))
        signs_FI[0] = 1.0
    # Squares do not change with signs, so t rises with sum / √squares: no need for a variance per flip.
    size_M = np.sqrt((each_IM**2).sum(0))
    largest_F = np.where(size_M > 0, signs_FI @ each_IM / np.where(size_M > 0, size_M, 1), 0.0).max(1)
    return float((largest_F >= largest_F[0] - 1e-9).mean())  # the first row flips no sign: the observed value


def spearman(scores_MP: Array) -> Array:
    """Return the (M, M) Spearman correlation; NaN where all scores of a method are equal."""
    ranks = np.stack([rankdata(scores) for scores in scores_MP])
    return _cosines(ranks - ranks.mean(1, keepdims=True))


def kendall(scores_MP: Array) -> Array:
    """Return (M, M) Kendall's τ-b: the share of feature pairs in the same order minus those in the opposite order."""
    first, second = np.triu_indices(scores_MP.shape[1], 1)
    return _cosines(np.sign(scores_MP[:, first] - scores_MP[:, second]))


def _cosines(vectors_MX: Array) -> Array:
    sizes = np.sqrt((vectors_MX**2).sum(1))
    known = np.where(sizes > 0, sizes, np.nan)
    return np.clip(vectors_MX @ vectors_MX.T / known[:, None] / known[None], -1, 1)


def top_overlap(scores_MP: Array, share: float = TOP) -> Array:
    """Return the (M, M) share of the highest-scored features that two methods have in common."""
    count = count_of(share, scores_MP.shape[1])
    named = np.zeros(scores_MP.shape)
    for row, scores in enumerate(scores_MP):
        named[row, order_of(scores)[:count]] = 1
    return named @ named.T / count


MEASURES = {"spearman": spearman, "kendall": kendall, "top_k": top_overlap}


def agreement(scores: Sequence[Array]) -> dict[str, Array]:
    """Return matrices (methods × methods), the mean over inputs of (M, P) scores; NaN where never defined."""
    methods = len(scores[0])
    matrices = {}
    for name, measure in MEASURES.items():
        measured = [measure(np.asarray(s, dtype=float)) for s in scores if s.shape[1] > 1]
        each_IMM = np.array(measured).reshape(-1, methods, methods)
        known = (~np.isnan(each_IMM)).sum(0)
        matrices[name] = np.where(known > 0, np.nansum(each_IMM, axis=0) / np.maximum(known, 1), np.nan)
    return matrices


def ranking_agreement(goodness_TM: Array) -> Array:
    """Return the (T, T) rank correlation of metrics over methods with a value in all of them; NaN for fewer than 2."""
    known = ~np.isnan(goodness_TM).any(0)
    if known.sum() < 2:
        return np.full((len(goodness_TM),) * 2, np.nan)
    return spearman(goodness_TM[:, known])


@dataclass(frozen=True)
class MetricScore:
    """One metric of one method: mean over inputs and gain over random scores, each with a 95 % confidence interval."""

    mean: float
    low: float
    high: float
    gain: float  # how much better than random, input by input; above zero is better whatever the metric's direction
    gain_low: float
    gain_high: float
    rank: float = math.nan  # among the methods, 1 = best; NaN for floor and ceiling

    @property
    def beats_random(self) -> bool:
        return self.gain_low > NOISE


@dataclass(frozen=True)
class ComparedMethod:
    """One row of the table."""

    name: str
    method: str
    options: dict[str, Any]
    scores: dict[str, MetricScore]
    rank: float = math.nan  # by the mean of its ranks; NaN for floor and ceiling
    forwards: float = math.nan  # passes per input
    backwards: float = math.nan
    seconds: float = math.nan  # per input
    peak_bytes: int | None = None
    baseline: str = ""  # "floor", and "ceiling", or "reference" where a method passes it


@dataclass(frozen=True)
class Leader:
    """The method that one metric ranks first, and its gain by that metric over the method ranked first overall."""

    metric: str
    name: str
    gain: float  # input by input, above zero is better whatever the metric's direction
    low: float
    high: float

    @property
    def ahead(self) -> bool:
        return self.low > 0


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Explanation methods ranked on these inputs, with metrics, confidence intervals and costs.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> comparison = wf.compare(model, list(wf.demo.SENTENCES), tokenizer, method=["grad_sam", "saliency"])
    >>> comparison.to_frame()
    """

    what: ClassVar[str] = "comparison"
    later: ClassVar[tuple[str, ...]] = ("value", "leaders", "metric_agreement", "held")

    rows: tuple[ComparedMethod, ...]  # best first, then floor and ceiling
    metrics: tuple[str, ...]
    higher_is_better: dict[str, bool]
    agreement: dict[str, list[list[float]]]  # measure → methods × methods, in the order of ``agreeing``
    agreeing: tuple[str, ...]
    curves: dict[str, dict[str, list[float]]]  # "remove" and "keep" (and their logits) → method → mean over inputs
    fractions: tuple[float, ...]
    values: dict[str, dict[str, list[float]]]  # metric → method → one value per input
    failures: dict[str, str]  # method → why it could not be run
    replacement: str | None
    inputs: int = 0
    variants: int = 0  # that were run for this comparison; others came from the cache
    seed: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    value: str | None = None  # what curves are of, where it is not the probability of the target
    leaders: tuple[Leader, ...] | None = None  # one per metric that decides the rank
    metric_agreement: list[list[float]] | None = None  # these metrics' rankings of the methods, ρ
    held: tuple[str, ...] | None = None  # per input, the text of what was held

    @property
    def explanations(self) -> dict[str, tuple[Explanation, ...]]:
        """The compared explanations: method → one per input. They are not saved with the comparison."""
        if "explained" not in vars(self):
            raise NotOffered(
                "a comparison is saved without its explanations: compare again, with cache=… if it was used."
            )
        return vars(self)["explained"]

    def __getitem__(self, name: str) -> ComparedMethod:
        for row in self.rows:
            if row.name == name:
                return row
        raise UnknownName("method", name, [row.name for row in self.rows])

    @property
    def best(self) -> dict[str, Any]:
        """The method that came first, ready for ``explain(model, x, **comparison.best)``."""
        row = self.rows[0]
        if (few := too_few(self.inputs)) or not any(score.beats_random for score in row.scores.values()):
            warnings.warn(few or f"{row.name} is not better than random scores on these inputs.", stacklevel=2)
        return {"method": row.method, **row.options}

    def standing(self, name: str, called: str = "inputs") -> Standing:
        """Return the place of a method among all, and whether it beats random scores."""
        methods = [row for row in self.rows if not row.baseline]
        row = self[name]
        known = [score for score in row.scores.values() if not math.isnan(score.gain_low)]
        place = None if too_few(self.inputs) or math.isnan(row.rank) else round(row.rank)
        ties = 0 if place is None else sum(other.rank == row.rank for other in methods) - 1
        first = next(iter(row.scores.values()), None)
        unknown = first is None or math.isnan(first.gain)
        gain = None if first is None or unknown else (first.gain, first.gain_low, first.gain_high)
        better = sum(score.beats_random for score in known)
        return Standing(place, len(methods), better, len(known), self.inputs, called, ties, gain)

    @property
    def verdict(self) -> str:
        """The method ranked first, by which metrics, and the rank correlation between metrics."""
        if few := too_few(self.inputs):
            return f"{few}. Treat methods whose 95 % confidence intervals overlap as tied."
        if not self.leaders:
            return ""
        methods = [row for row in self.rows if not row.baseline]
        names, first = [row.name for row in methods], [row.name for row in methods if row.rank == methods[0].rank]
        text, pairs, count = _first_by_metric(self.leaders, names), self.metric_pairs(), len(names)
        if len(first) > 1:
            text += f" {listed(first, 'and')} are tied for first place."
        if count < 3 or not pairs:
            return text
        mean = sum(rho for *_, rho in pairs) / len(pairs)
        one, other, lowest = min(pairs, key=lambda pair: pair[2])
        least = f"; lowest {lowest:+.2f}, between {one} and {other}" if len(pairs) > 1 else ""
        text += f" Mean Spearman correlation between the metrics' rankings of the {count} methods: {mean:+.2f} "
        text += f"(+1: same order, -1: opposite){least}. "
        significant = 1.96 / math.sqrt(count - 1)  # normal approximation of ρ under independence, p = 0.05
        if significant >= 1:
            return text + f"With {count} methods, no correlation is significant (p > 0.05)."
        return text + f"Correlations below {significant:.2f} are not significant (p > 0.05)."

    def metric_pairs(self) -> list[tuple[str, str, float]]:
        """Return pairs of metrics with the rank correlation of their values over the methods, if it is defined."""
        names = [leader.metric for leader in self.leaders or ()]
        return [
            (names[i], names[j], rho)
            for i, row in enumerate(self.metric_agreement or ())
            for j, rho in enumerate(row)
            if i < j and not math.isnan(rho)
        ]

    @property
    def title(self) -> str:
        """Model, number of inputs and baseline, on one line."""
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        baseline = f", baseline: {self.replacement}" if self.replacement is not None else ""
        return f"{self.model}: methods compared on {inputs}{baseline}"

    def to_frame(self) -> DataFrame:
        """Return one row per method: each metric with its 95 % confidence interval, rank and cost."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"method": row.name, "rank": row.rank, "baseline": row.baseline}
            for name in self.metrics:
                score = row.scores.get(name, MetricScore(*[math.nan] * 6))
                record |= {name: score.mean, f"{name}_low": score.low, f"{name}_high": score.high}
            record |= {"forwards": row.forwards, "backwards": row.backwards}
            records.append(record | {"seconds": row.seconds, "peak_bytes": row.peak_bytes})
        return dataframe(records)


def _first_by_metric(leaders: Sequence[Leader], methods: Sequence[str]) -> str:
    """Return a sentence: the method ranked first by each metric, and by mean rank."""
    best = methods[0]
    if len(methods) == 1:
        return f"Only {best} was evaluated."
    by_name: dict[str, list[Leader]] = {}
    for leader in leaders:
        by_name.setdefault(leader.name, []).append(leader)
    if set(by_name) == {best}:
        return f"{_metrics(leaders)} rank{'s' * (len(leaders) == 1)} {best} first."
    order = sorted(by_name.items(), key=lambda pair: (pair[0] != best, -len(pair[1])))
    words = "; ".join(
        f"{_metrics(each)} rank{'s' * (len(each) == 1)} {name} first{_ahead_of(best, each)}" for name, each in order
    )
    if len(by_name) == 1:
        return f"By mean rank {best} comes first; {words}."
    return f"Metrics disagree: {words}. By mean rank {best} comes first."


def _ahead_of(best: str, leaders: Sequence[Leader]) -> str:
    """Return the gains over the best method by mean rank, paired by input; "tied" if none is significant."""
    if leaders[0].name == best or any(math.isnan(leader.low) for leader in leaders):
        return ""
    ahead = [leader for leader in leaders if leader.ahead and round(leader.gain, 3) > 0]  # +0.000 is shown as a tie
    if not ahead:
        return f", tied with {best}"
    gains = [with_interval((leader.gain, leader.low, leader.high)) for leader in ahead]
    if len(leaders) > 1:
        gains = [f"{gain} in {leader.metric.replace('_', ' ')}" for gain, leader in zip(gains, ahead, strict=True)]
    return f", ahead of {best} by {', '.join(gains)}"


def _metrics(leaders: Sequence[Leader]) -> str:
    return listed([leader.metric.replace("_", " ") for leader in leaders], "and")


view_of.register(Comparison, comparison_page)
