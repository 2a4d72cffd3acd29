"""Compare methods on the same inputs by the same metrics; the result is a Comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.stats import rankdata

from whyformer.engines.perturbation.players import FRACTIONS
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.evaluate.agreement import agreement, ranking_agreement
from whyformer.evaluate.candidate import Candidate, evaluated, other_games, wanted
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.judge import (
    CEILING,
    FLOOR,
    Annotations,
    Curves,
    Judged,
    Needs,
    OneInput,
    Values,
    judge,
    mean_of,
)
from whyformer.evidence import spread
from whyformer.explainer import CoreExplainer, Segments
from whyformer.parameters import BatchSize, Hold, Replacement, Seed, checked
from whyformer.registry import Metric, get_metric
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.targets import SQUASHED, SUMMED, Aims, Scalar
from whyformer.views.comparison_view import comparison_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


# Comparison: methods side by side, with intervals, ranks, costs, how far they agree, and whether metrics do.


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

    @property
    def explanations(self) -> dict[str, tuple[Explanation, ...]]:
        """The compared explanations: method → one per input. They are not saved with the comparison."""
        if "explained" not in vars(self):
            raise NotOffered(
                "a comparison is saved without its explanations: compare again, with cache=… if it was used."
            )
        explained: dict[str, tuple[Explanation, ...]] = vars(self)["explained"]
        return explained

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

# compare: run methods on the same inputs, judge them by the same metrics, and say which to trust here.


DEFAULT_METRICS = ("comprehensiveness", "sufficiency", "aopc", "insertion", "ranked_truthfulness")
WITH_RATIONALES = ("token_f1", "auprc")
WITH_REGIONS = ("pointing_game", "relevance_mass")
RANKED = ("faithfulness", "plausibility", "localisation")  # kinds of metrics that decide the overall rank


@checked
def compare(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    metrics: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    rationales: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    surrogate: Any = None,
    replace: Replacement = None,
    reference: Any = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    units: Segments = "token",
    hold: Hold = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Comparison:
    """Which method explains this model best on these inputs?

    methods: names, or {"method": name, option: value}; None is all of them. One that does not fit is listed with its
    reason. metrics: names, or {name: options}; None is a default set, with plausibility where ``rationales`` are given
    (one per input: a number per token or word, or character ranges) and localisation where ``masks`` are (one per
    image: height × width, or boxes). surrogate: a copy of the model that was fine-tuned on masked inputs
    (``wf.masked_surrogate``), which f_fidelity_plus and f_fidelity_minus then ask. replace: what stands for an absent
    part: text "mask", "unk", "pad", "delete", "resample" or a token id; images "mean", "zero", "blur", "grey", "black",
    "resample"; tables "zero", "mean", "resample". ``reference``: inputs that means and resampling are taken from (None:
    the inputs themselves). units: what counts as a part, as for ``explain``. hold: parts that are always there, such as
    the question of a prompt: the text as it stands in every input, a label, or the number of a unit (-1 is the last),
    or several; nobody is judged by them, and methods with this option hold the same unless they are given their own.
    Answers of language models, (prompt, answer), are judged as a whole, by their log-probability. cache: a folder in
    which everything that was computed is kept; a stopped job goes on from there.

    Misleads when: there are few inputs (look at the intervals), and when absent parts make inputs that the model never
    saw: repeat with another ``replace`` and see whether the order holds.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring"]
    >>> wf.compare(model, texts, tokenizer, methods=["grad_sam", "occlusion"]).show()
    """
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    settings: dict[str, Any] = {"target": target, "replace": replace, "reference": reference, "batch_size": batch_size}
    settings |= {"units": units, "hold": hold, "seed": seed, "progress": progress, "cache": cache}
    judged = chosen_metrics(metrics, rationales is not None, masks is not None)
    _check_marks(judged, rationales, masks)
    given = (rationales, masks, surrogate)
    with comparing(explainer, inputs, wanted(methods), judged, settings, scalar, *given) as (comparison, _):
        return comparison


@contextmanager
def comparing(
    explainer: CoreExplainer,
    inputs: Any,
    candidates: list[Candidate],
    judged: Judged,
    settings: dict[str, Any],
    scalar: str = "logit",
    rationales: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    surrogate: Any = None,
    whole: int = 0,
) -> Iterator[tuple[Comparison, Games]]:
    """Compare methods; inside ``with``, the games that they were judged by can still be played.

    settings: of the games. whole: see ``filled``.
    """
    explainer = copy(explainer)
    explainer.advises = False
    settings |= {"perturb": any(metric.needs & {"perturbation", "soft_erasure"} for metric, _ in judged)}
    with ExitStack() as stack:
        games = stack.enter_context(games_of(explainer, inputs, **settings))
        for marked, name in ((rationales, "rationales"), (masks, "masks")):
            if marked is not None and len(marked) not in {games.size, games.input_count}:
                raise BadInput(f"{len(marked)} {name} for {games.input_count} inputs: give one per input.")
        marks = Annotations(*(None if marked is None else games.each(marked) for marked in (rationales, masks)))
        others = None
        if surrogate is not None:
            other = CoreExplainer(surrogate, explainer.processor, attention_at=explainer.attention_at)
            targets = games.wanted_targets  # what the model said, not what its copy says
            others = stack.enter_context(games_of(other, inputs, **settings | {"target": targets}))
        needs = Needs(any("soft_erasure" in metric.needs for metric, _ in judged), others)
        yield _compared(games, candidates, judged, marks, scalar, needs, whole), games


def chosen_metrics(metrics: Any, rationales: bool, masks: bool) -> Judged:
    if metrics is None:
        names = (*DEFAULT_METRICS, *(WITH_RATIONALES if rationales else ()), *(WITH_REGIONS if masks else ()))
        return [(get_metric(name), {}) for name in names]
    named = (
        metrics
        if isinstance(metrics, Mapping)
        else {n: {} for n in ([metrics] if isinstance(metrics, str) else metrics)}
    )
    if not named:
        raise BadInput("there is no metric to compare by: name one, or leave metrics out.")
    judged: Judged = []
    for name, options in named.items():
        metric = get_metric(name)
        judged.append((metric, metric.checked(options)))
    return judged


def _check_marks(judged: Judged, rationales: Any, masks: Any) -> None:
    for metric, _ in judged:
        if "rationale" in metric.needs and rationales is None:
            raise BadInput(f"{metric.name} compares with what people marked: pass rationales=[…], one per input.")
        if "region" in metric.needs and masks is None:
            raise BadInput(f"{metric.name} compares with where the object is: pass masks=[…], one per image.")


def _compared(
    games: Games, candidates: list[Candidate], judged: Judged, marks: Annotations, scalar: str, needs: Needs, whole: int
) -> Comparison:
    otherwise = other_games(games, candidates)
    done = [evaluated(candidate, games, scalar, whole) for candidate in games.track(candidates, "explaining")]
    failures = {e.name: e.failure for e in done if e.failure}
    done = [e for e in done if not e.failure]
    if not done:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise NotOffered(f"none of the methods can explain this model: {reasons}")
    names = [*(e.name for e in done), FLOOR, CEILING]
    values = {m.name: {name: np.full(games.size, np.nan) for name in names} for m, _ in judged}
    curves: Curves = {}
    for number in games.track(range(games.size), "judging"):
        if len(games.parts[number]):
            judge(OneInput(games, number, marks, scalar, needs), done, judged, values, curves)
    rows = _rows(done, judged, values, games)
    decisive = [m for m, _ in judged if m.kind in RANKED] or [m for m, _ in judged]
    methods = [row.name for row in rows if not row.baseline]
    scores = [np.stack([e.explanations[i].scores[p] for e in done]) for i, p in enumerate(games.parts)]
    comparison = Comparison(
        rows=rows,
        metrics=tuple(m.name for m, _ in judged),
        higher_is_better={m.name: m.higher_is_better for m, _ in judged},
        agreement={name: matrix.tolist() for name, matrix in agreement(scores).items()},
        agreeing=tuple(e.name for e in done),
        curves={k: {n: np.mean(c, axis=0).tolist() for n, c in by.items()} for k, by in curves.items()},
        fractions=FRACTIONS,
        values={m: {n: v.tolist() for n, v in by.items()} for m, by in values.items()},
        failures=failures,
        replacement=None if games.replacement is None else str(games.replacement),
        inputs=games.size,
        variants=games.forwards,
        seed=games.seed,
        warnings=(*otherwise, *_twice(games, judged), *_untuned(judged, needs), *_warnings(games, done, scores)),
        held=games.held,
        model=type(games.explainer.model).__name__,
        options={m.name: options for m, options in judged if options},
        value=_value(games),
        leaders=tuple(_leader(m, values[m.name], methods, games) for m in decisive),
        metric_agreement=ranking_agreement(_goodness(decisive, values, methods)).tolist(),
    )
    vars(comparison)["explained"] = {candidate.name: candidate.explanations for candidate in done}
    return comparison


def _goodness(metrics: Sequence[Metric], values: Values, methods: Sequence[str]) -> Array:
    """(metrics, methods) means over inputs, high where a method is good."""
    means = [[mean_of(values[m.name][name].tolist()) for name in methods] for m in metrics]
    return np.array(means) * np.array([[1 if m.higher_is_better else -1] for m in metrics])


def _leader(metric: Metric, by_method: dict[str, Array], methods: Sequence[str], games: Games) -> Leader:
    """The method that a metric puts first; of several, the one that stands higher overall."""
    (goodness,) = _goodness([metric], {metric.name: by_method}, methods)
    if np.isnan(goodness).all():
        return Leader(metric.name, methods[0], *[math.nan] * 3)
    first = methods[int(np.nanargmax(goodness))]
    gain_I = (by_method[first] - by_method[methods[0]]) * (1 if metric.higher_is_better else -1)
    return Leader(metric.name, first, *(float(x[0]) for x in spread(gain_I[:, None], games.seed, games.of)))


def _value(games: Games) -> str | None:
    """What the curves are of; None: the probability of the target."""
    if games.modality.opaque:
        return f"{games.scalar.replace('_', '-')} of the answer"
    return "log-probability of the answer" if games.batch.answers else None


def _rows(candidates: list[Candidate], judged: Judged, values: Values, games: Games) -> tuple[ComparedMethod, ...]:
    names = [e.name for e in candidates]
    scores = {m.name: _scores(m, values[m.name], names, games) for m, _ in judged}
    decisive = [m.name for m, _ in judged if m.kind in RANKED] or list(scores)
    mean_rank = {name: mean_of([scores[m][name].rank for m in decisive]) for name in names}
    order = sorted(candidates, key=lambda e: (math.isnan(mean_rank[e.name]), mean_rank[e.name]))
    places = rankdata([mean_rank[e.name] for e in order], method="min", nan_policy="omit")
    rows = []
    for candidate, place in zip(order, places, strict=True):
        by_metric = {m: by_method[candidate.name] for m, by_method in scores.items()}
        costs = (candidate.forwards, candidate.backwards, candidate.seconds, candidate.peak_bytes)
        options = games.options_of(candidate.method, candidate.options)
        rows.append(ComparedMethod(candidate.name, candidate.method, options, by_metric, float(place), *costs))
    for name, kind in ((FLOOR, "floor"), (CEILING, "ceiling")):
        known = {m: by_method[name] for m, by_method in scores.items() if not math.isnan(by_method[name].mean)}
        if known:
            rows.append(ComparedMethod(name, name, {}, known, baseline=kind))
    return tuple(rows)


def _scores(metric: Metric, by_method: dict[str, Array], names: list[str], games: Games) -> dict[str, MetricScore]:
    """All methods by one metric."""
    everyone = [*names, FLOOR, CEILING]
    values_IM = np.stack([by_method[name] for name in everyone], 1)
    gain_IM = (values_IM - by_method[FLOOR][:, None]) * (1 if metric.higher_is_better else -1)
    seed, of = games.seed, games.of
    columns = np.stack([*spread(values_IM, seed, of), *spread(gain_IM, seed, of)], 1)
    means = columns[: len(names), 0]
    ranks = rankdata(-means if metric.higher_is_better else means, nan_policy="omit")
    ranks = np.concatenate([ranks, [math.nan, math.nan]])
    return {
        name: MetricScore(*map(float, [*row, rank])) for name, row, rank in zip(everyone, columns, ranks, strict=True)
    }


def _twice(games: Games, judged: Judged) -> list[str]:
    """Metrics that take the softmax of what is one already."""
    twice = [run for run in games.runs if run.gives_probabilities and run.logits.shape[1] > 1]
    if not twice:
        return []
    squashed = [m.name for m, options in judged if (m.defaults | options).get("value") == "probability"]
    if not squashed:
        return []
    reason, last = (SQUASHED, "sigmoid") if twice[0].output.ends_in_sigmoid else (SUMMED, "softmax")
    return [
        f"the model returns probabilities ({reason}), and a softmax is taken of them again by {', '.join(squashed)}: "
        f"pass a model without the {last} at its end, or metrics={{{squashed[0]!r}: {{'value': 'logit'}}, …}}, "
        "which takes what the model returns."
    ]


def _untuned(judged: Judged, needs: Needs) -> list[str]:
    """Metrics whose paper fine-tunes the model, taken on the model as it is."""
    plain = [m.name for m, _ in judged if m.on_surrogate and needs.surrogate is None]
    if not plain:
        return []
    return [
        f"{' and '.join(plain)}: taken on the model as it is, with the paper's bounded removal but without its "
        "fine-tuning on masked inputs; wf.masked_surrogate trains such a copy, and surrogate=… judges by it."
    ]


def _warnings(games: Games, candidates: list[Candidate], scores: list[Array]) -> tuple[str, ...]:
    warnings = list(games.doubts())
    flat = sum((np.ptp(s, axis=1) == 0).astype(int) for s in scores if s.shape[1] > 1)
    for candidate, count in zip(candidates, np.broadcast_to(flat, len(candidates)), strict=True):
        if count:
            warnings.append(
                f"{candidate.name}: all scores are equal on {count} of {len(scores)} inputs, so units are ranked "
                "there by their positions."
            )
    if games.input_count < 10:
        warnings.append(
            f"{games.input_count} inputs say little: intervals are over inputs, and few of them are drawn from."
        )
    none = sum(len(p) == 0 for p in games.parts)
    if none:
        warnings.append(f"{none} inputs have nothing but special tokens and were left out.")
    return tuple(warnings)
