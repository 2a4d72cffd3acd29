"""Comparison: methods side by side, with intervals, ranks, costs, how far they agree, and whether metrics do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from whyformer.errors import UnknownName
from whyformer.interop import dataframe
from whyformer.result import Result
from whyformer.views.compare import comparison_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MetricScore:
    """One metric of one method: the mean over inputs with 95 % limits, and the gain over random scores."""

    mean: float
    low: float
    high: float
    gain: float  # how much better than random, input by input; above zero is better whatever the metric's direction
    gain_low: float
    gain_high: float
    rank: float = math.nan  # among the methods, 1 = best; NaN for floor and ceiling

    @property
    def beats_random(self) -> bool:
        return self.gain_low > 0


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
    baseline: str = ""  # "floor" or "ceiling"


@dataclass(frozen=True)
class Leader:
    """Which method one metric puts first, and how far ahead of the method that comes first overall it is there."""

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
    """Which explanation to trust here: measured on these inputs, with this replacement.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> comparison = wf.compare(model, list(wf.demo.SENTENCES), tokenizer, methods=["grad_sam", "saliency"])
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
    held: tuple[str, ...] | None = None  # per input, what was always there, as it stands in it

    def __getitem__(self, name: str) -> ComparedMethod:
        for row in self.rows:
            if row.name == name:
                return row
        raise UnknownName("method", name, [row.name for row in self.rows])

    @property
    def best(self) -> dict[str, Any]:
        """The method that came first, ready for ``explain(model, x, **comparison.best)``."""
        row = self.rows[0]
        return {"method": row.method, **row.options}

    @property
    def verdict(self) -> str:
        """In plain words: what comes first, whether the metrics agree about that, and how far their rankings do."""
        if not self.leaders:
            return ""
        methods = [row.name for row in self.rows if not row.baseline]
        return " ".join(filter(None, (_first_of_all(self.leaders, methods), self._rankings(len(methods)))))

    def _rankings(self, methods: int) -> str:
        """The rank correlation of metrics, with what chance alone would give."""
        pairs = self.metric_pairs()
        if methods < 3 or not pairs:
            return ""
        mean = sum(rho for *_, rho in pairs) / len(pairs)
        first, second, lowest = min(pairs, key=lambda pair: pair[2])
        least = f", least of all {first} and {second} ({lowest:+.2f})" if len(pairs) > 1 else ""
        said = f"Two metrics rank the {methods} methods alike by {mean:+.2f} on average{least}, where +1 is the same "
        said += "order and -1 the opposite (Spearman); "
        chance = chance_of(methods)
        if chance >= 1:
            return said + f"over {methods} methods no correlation can be told from chance."
        return said + f"over {methods} methods chance alone reaches ±{chance:.2f} in one pair of twenty."

    def metric_pairs(self) -> list[tuple[str, str, float]]:
        """Two metrics and the rank correlation of what they say of the methods, where it is defined."""
        names = [leader.metric for leader in self.leaders or ()]
        return [
            (names[i], names[j], rho)
            for i, row in enumerate(self.metric_agreement or ())
            for j, rho in enumerate(row)
            if i < j and not math.isnan(rho)
        ]

    @property
    def title(self) -> str:
        """Model, number of inputs and what stands for absent parts, on one line."""
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        absent = f", absent parts: {self.replacement}" if self.replacement is not None else ""
        return f"{self.model}: methods compared on {inputs}{absent}"

    def to_frame(self) -> pd.DataFrame:
        """One row per method: each metric with its limits, rank and cost."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"method": row.name, "rank": row.rank, "baseline": row.baseline}
            for name in self.metrics:
                score = row.scores.get(name)
                known = score or MetricScore(*[math.nan] * 6)
                record |= {name: known.mean, f"{name}_low": known.low, f"{name}_high": known.high}
            costs = ("forwards", "backwards", "seconds", "peak_bytes")
            records.append(record | {k: getattr(row, k) for k in costs})
        return dataframe(records)


def chance_of(methods: int) -> float:
    """The size that a rank correlation over so many methods passes by chance in one case of twenty, about."""
    return 1.96 / math.sqrt(methods - 1)


def _first_of_all(leaders: Sequence[Leader], methods: Sequence[str]) -> str:
    """Who comes first, and by which metrics."""
    best = methods[0]
    if len(methods) == 1:
        return f"{best} was judged alone."
    by_name: dict[str, list[Leader]] = {}
    for leader in leaders:
        by_name.setdefault(leader.name, []).append(leader)
    if set(by_name) == {best}:
        return f"{_listed(leaders)} put{'s' * (len(leaders) == 1)} {best} first."
    said = []
    for name, each in sorted(by_name.items(), key=lambda pair: (pair[0] != best, -len(pair[1]))):
        said.append(f"{_listed(each)} put{'s' * (len(each) == 1)} {name} first{_how_far(each, best)}")
    words = "; ".join(said)
    if len(by_name) == 1:
        return f"By mean rank {best} comes first; {words}."
    return f"Metrics disagree: {words}. By mean rank {best} comes first."


def _how_far(leaders: Sequence[Leader], best: str) -> str:
    """Whether they are really ahead of the best by mean rank, input by input."""
    if leaders[0].name == best or any(math.isnan(leader.low) for leader in leaders):
        return ""
    ahead = [leader for leader in leaders if leader.ahead]
    if not ahead:
        return f" (but cannot tell it from {best})"
    gains = ", ".join(f"{leader.gain:+.3f} ({leader.low:+.3f} to {leader.high:+.3f})" for leader in ahead)
    rest = "" if len(ahead) == len(leaders) else f" by {_listed(ahead)}"
    return f" (ahead of {best}{rest}: {gains})"


def _listed(leaders: Sequence[Leader]) -> str:
    names = [leader.metric.replace("_", " ") for leader in leaders]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


view_of.register(Comparison, comparison_page)
