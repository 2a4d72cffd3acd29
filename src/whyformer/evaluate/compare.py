"""compare: run methods on the same inputs, evaluate them by the same metrics, and return a Comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from whyformer.engines.perturbation.players import FRACTIONS
from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.candidate import (
    CEILING,
    FLOOR,
    Annotations,
    Candidate,
    Curves,
    Judged,
    OneInput,
    Values,
    evaluated,
    judge,
    mean_of,
    mean_ranks,
    other_games,
    wanted,
)
from whyformer.evaluate.comparison import ComparedMethod, Comparison, Leader, MetricScore, agreement, ranking_agreement
from whyformer.evaluate.games import Games, games_of
from whyformer.evidence import ENOUGH, NOISE, spread, tied_places
from whyformer.explainer import CoreExplainer
from whyformer.options import Evaluation, EvaluationOptions, takes
from whyformer.parameters import Named, checked
from whyformer.registry import Metric, get_metric
from whyformer.results.types import scalar_name
from whyformer.shapes import Array
from whyformer.targets import SIGNS

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_METRICS = ("comprehensiveness", "sufficiency", "aopc", "insertion", "ranked_truthfulness")
WITH_RATIONALES = ("token_f1", "auprc")
WITH_REGIONS = ("pointing_game", "relevance_mass")
RANKED = ("faithfulness", "plausibility", "localisation")  # kinds of metrics that decide the overall rank


@checked
@takes(EvaluationOptions, Evaluation)
def compare(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: str | Named | Mapping[str, Any] | Sequence[str | Named | Mapping[str, Any]] | None = None,
    metric: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    rationales: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    surrogate: Any = None,
    **options: Unpack[EvaluationOptions],
) -> Comparison:
    """Compare explanation methods on these inputs, and rank them.

    method: names, or {"method": name, option: value}; None is all of them. A failing method is listed with the reason.
    metric: names, or {name: options}; None is a default set, with plausibility where ``rationales`` are given (one per
    input: a number per token or word, or character ranges) and localisation where ``masks`` are (one per image:
    height × width, or boxes). surrogate: a copy fine-tuned on masked inputs (``wf.masked_surrogate``), for
    f_fidelity_plus, f_fidelity_minus and single_deletion. (prompt, answer) is evaluated by the log-probability of the
    answer.

    Misleads when: there are few inputs (see the confidence intervals), or inputs with masked features are unlike the
    training data: repeat with another ``replace`` and check that the order stays.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring"]
    >>> wf.compare(model, texts, tokenizer, method=["grad_sam", "occlusion"]).show()
    """
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    judged = chosen_metrics(metric, rationales is not None, masks is not None)
    for entry, _ in judged:
        if "rationale" in entry.needs and rationales is None:
            raise BadInput(f"{entry.name} compares with human annotations: pass rationales=[…], one per input.")
        if "region" in entry.needs and masks is None:
            raise BadInput(f"{entry.name} compares with the region of the object: pass masks=[…], one per image.")
    annotations = (rationales, masks, surrogate)
    candidates = wanted(method, explainer.source(inputs).modality.kind)
    with comparing(explainer, inputs, candidates, judged, Evaluation(**options), *annotations) as (comparison, _):
        return comparison


@contextmanager
def comparing(
    explainer: CoreExplainer,
    inputs: Any,
    candidates: list[Candidate],
    judged: Judged,
    asked: Evaluation,
    rationales: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    surrogate: Any = None,
    whole: int = 0,
    search: bool = True,
) -> Iterator[tuple[Comparison, Games]]:
    """Compare methods; inside ``with``, their games can be used. whole: see ``evaluated``."""
    explainer = copy(explainer)
    explainer.advises = False
    settings = {**vars(asked), "perturb": any("perturbation" in metric.needs for metric, _ in judged)}
    with ExitStack() as stack:
        games = stack.enter_context(games_of(explainer, inputs, **settings))
        for marked, name in ((rationales, "rationales"), (masks, "masks")):
            if marked is not None and len(marked) not in {games.size, games.input_count}:
                raise BadInput(f"{len(marked)} {name} for {games.input_count} inputs: give one per input.")
        others = None
        if surrogate is not None:
            other = CoreExplainer(surrogate, explainer.processor, attention_at=explainer.attention_at)
            targets = games.wanted_targets  # what the model predicts, not what its copy does
            others = stack.enter_context(games_of(other, inputs, **settings | {"target": targets}))
        marks = Annotations(
            None if rationales is None else games.each(rationales),
            None if masks is None else games.each(masks),
            others,
        )
        otherwise = other_games(games, candidates)  # a hold that is not in an input is refused before long work
        done = [evaluated(candidate, games, asked.scalar, whole) for candidate in games.track(candidates, "explaining")]
        yield comparison_of(games, done, judged, marks, asked.scalar, otherwise, search), games


def chosen_metrics(metrics: Any, rationales: bool, masks: bool) -> Judged:
    """Return the metrics with their options, by names or {name: options}; None: the default ones."""
    if metrics is None:
        metrics = (*DEFAULT_METRICS, *(WITH_RATIONALES if rationales else ()), *(WITH_REGIONS if masks else ()))
    if isinstance(metrics, str):
        metrics = [metrics]
    if not metrics:
        raise BadInput("metric is empty: name at least one, or omit metric=.")
    options_of = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    named = [(get_metric(name), options) for name, options in options_of.items()]
    return [(metric, metric.checked(options)) for metric, options in named]


def comparison_of(
    games: Games,
    candidates: list[Candidate],
    judged: Judged,
    marks: Annotations,
    scalar: str,
    warnings: Sequence[str] = (),
    search: bool = True,
) -> Comparison:
    """Return the comparison of evaluated candidates. search: False leaves out the greedy search and the curves."""
    failures = {e.name: e.failure for e in candidates if e.failure}
    done = [e for e in candidates if not e.failure]
    if not done:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise NotOffered(f"none of the methods can explain this model: {reasons}")
    names = [*(e.name for e in done), FLOOR, CEILING]
    values = {m.name: {name: np.full(games.size, np.nan) for name in names} for m, _ in judged}
    curves: Curves = {}
    for number in games.track(range(games.size), "judging"):
        if len(games.parts[number]):
            one = OneInput(games, number, marks, scalar)
            judge(one, one.trials_of(done), judged, values, curves if search else None)
    decisive = [m for m, _ in judged if m.kind in RANKED] or [m for m, _ in judged]
    rows = _rows(done, judged, [each for each in judged if each[0] in decisive], values, games)
    methods = [row.name for row in rows if not row.baseline]
    value = "log-probability of the answer" if games.batch.answers else None
    if games.modality.kind == "prompt":
        value = f"{scalar_name(games.scalar)} of the answer"
    elif value is None and all(run.logits.shape[1] == 1 for run in games.runs):
        value = "output of the model"
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
        warnings=(*warnings, *_warnings(games, judged, marks, done, scores)),
        held=games.held,
        model=type(games.explainer.model).__name__,
        options={m.name: options for m, options in judged if options},
        value=value,
        leaders=tuple(_leader(m, values[m.name], methods, games) for m in decisive),
        metric_agreement=ranking_agreement(_goodness(decisive, values, methods)).tolist(),
    )
    # Beside the fields, so that it is not saved: explanations are many times larger than the rest.
    vars(comparison)["explained"] = {candidate.name: candidate.explanations for candidate in done}
    return comparison


def _goodness(metrics: Sequence[Metric], values: Values, methods: Sequence[str]) -> Array:
    """(metrics, methods) means over inputs, high where a method is good."""
    means = [[mean_of(values[m.name][name].tolist()) for name in methods] for m in metrics]
    return np.array(means) * np.array([[1 if m.higher_is_better else -1] for m in metrics])


def _leader(metric: Metric, by_method: dict[str, Array], methods: Sequence[str], games: Games) -> Leader:
    """Return the method that a metric ranks first; of equal ones, the one that ranks higher overall."""
    (goodness,) = _goodness([metric], {metric.name: by_method}, methods)
    if np.isnan(goodness).all():
        return Leader(metric.name, methods[0], *[math.nan] * 3)
    first = methods[int(np.nanargmax(goodness))]
    gain_I = (by_method[first] - by_method[methods[0]]) * (1 if metric.higher_is_better else -1)
    return Leader(metric.name, first, *(float(x[0]) for x in spread(gain_I[:, None], games.seed, games.of)))


def _rows(
    candidates: list[Candidate], judged: Judged, decisive: Judged, values: Values, games: Games
) -> tuple[ComparedMethod, ...]:
    """Return the rows: methods by their mean rank on single inputs under the decisive metrics, then the baselines."""
    names = [e.name for e in candidates]
    scores = {m.name: _scores(m, values[m.name], names, games) for m, _ in judged}
    ranks_IM = mean_ranks(decisive, values, names)
    mean_rank = dict(zip(names, (mean_of(column.tolist()) for column in ranks_IM.T), strict=True))
    ranked = games.input_count >= ENOUGH
    rank_of = dict(zip(names, tied_places(ranks_IM, games.seed, games.of), strict=True)) if ranked else {}
    order = sorted(candidates, key=lambda e: (math.isnan(mean_rank[e.name]), mean_rank[e.name]))
    rows = []
    for candidate in order:
        place = rank_of.get(candidate.name, math.nan)
        by_metric = {m: by_method[candidate.name] for m, by_method in scores.items()}
        if not ranked:
            by_metric = {m: dataclasses.replace(score, rank=math.nan) for m, score in by_metric.items()}
        costs = (candidate.forwards, candidate.backwards, candidate.seconds, candidate.peak_bytes)
        options = games.options_of(candidate.method, candidate.options)
        rows.append(ComparedMethod(candidate.name, candidate.method, options, by_metric, float(place), *costs))
    passed = any(_better(m, scores[m.name], name) for m, _ in judged for name in names)
    for name, kind in ((FLOOR, "floor"), (CEILING, "reference" if passed else "ceiling")):
        known = {m: by_method[name] for m, by_method in scores.items() if not math.isnan(by_method[name].mean)}
        if known:
            rows.append(ComparedMethod(name, name, {}, known, baseline=kind))
    return tuple(rows)


def _better(metric: Metric, scores: Mapping[str, MetricScore], name: str) -> bool:
    """Return whether a method's mean is better than that of the greedy search, which is then no ceiling."""
    difference = scores[name].mean - scores[CEILING].mean
    return difference > 0 if metric.higher_is_better else difference < 0


def _scores(metric: Metric, by_method: dict[str, Array], names: list[str], games: Games) -> dict[str, MetricScore]:
    """Return the scores of all methods by one metric."""
    everyone = [*names, FLOOR, CEILING]
    values_IM = np.stack([by_method[name] for name in everyone], 1)
    gain_IM = (values_IM - by_method[FLOOR][:, None]) * (1 if metric.higher_is_better else -1)
    seed, of = games.seed, games.of
    columns = np.stack([*spread(values_IM, seed, of), *spread(gain_IM, seed, of)], 1)
    means = np.round(columns[: len(names), 0] / NOISE)
    ranks = rankdata(-means if metric.higher_is_better else means, nan_policy="omit")
    ranks = np.concatenate([ranks, [math.nan, math.nan]])
    return {
        name: MetricScore(*map(float, [*row, rank])) for name, row, rank in zip(everyone, columns, ranks, strict=True)
    }


def _warnings(
    games: Games, judged: Judged, marks: Annotations, candidates: list[Candidate], scores: list[Array]
) -> list[str]:
    warnings = []
    twice = [run for run in games.runs if run.gives_probabilities and run.logits.shape[1] > 1]
    squashed = [m.name for m, options in judged if (m.defaults | options).get("value") == "probability"]
    if twice and squashed:
        reason, last = SIGNS[bool(twice[0].output.ends_in_sigmoid)]
        warnings.append(
            f"the model returns probabilities ({reason}), and a softmax is applied to them again by "
            f"{', '.join(squashed)}: pass a model without the final {last}, or "
            f"metrics={{{squashed[0]!r}: {{'value': 'logit'}}, …}}, which uses the model's output as it is."
        )
    plain = [m.name for m, _ in judged if m.on_surrogate and marks.surrogate is None]
    if plain:
        warnings.append(
            f"{' and '.join(plain)}: measured on the original model, without the fine-tuning on masked inputs of their "
            "papers. To fine-tune a copy, use wf.masked_surrogate and pass it as surrogate=…."
        )
    warnings += games.warnings()
    flat = sum((np.ptp(s, axis=1) == 0).astype(int) for s in scores if s.shape[1] > 1)
    for candidate, count in zip(candidates, np.broadcast_to(flat, len(candidates)), strict=True):
        if count:
            warnings.append(
                f"{candidate.name}: all scores are equal on {count} of {len(scores)} inputs, so features are ranked "
                "by position there."
            )
    none = sum(len(p) == 0 for p in games.parts)
    if none:
        warnings.append(f"{none} inputs consist of special tokens only and were left out.")
    return warnings
