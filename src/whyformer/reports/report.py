"""wf.report: a prediction, its explanations side by side, and their evaluation, on one page."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from whyformer.checks.check import ABOUT_ATTENTION, CHECKS, check
from whyformer.checks.exam import CheckUp, options_of_tokens
from whyformer.choices import REPORTED, default_method
from whyformer.engines.perturbation.players import area, order_of, without_top
from whyformer.errors import WhyformerError
from whyformer.evaluate.candidate import random_scores, wanted
from whyformer.evaluate.compare import chosen_metrics, comparing
from whyformer.evaluate.comparison import ComparedMethod, Comparison
from whyformer.evaluate.games import Games
from whyformer.evidence import Deletion, Standing
from whyformer.explainer import CoreExplainer
from whyformer.inputs.modalities import are_tensors
from whyformer.options import Evaluation, EvaluationOptions, takes
from whyformer.parameters import Count, NotEmpty, checked
from whyformer.registry import AUTO, get_method
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.report_view import report_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack


STEPS = 16  # points of a curve besides the whole input; of fewer parts, one for each
DRAWS = 20  # random orders
BAND = (0.05, 0.95)


def counts_of(parts: int) -> tuple[int, ...]:
    """Return the number of masked features at each point of a curve: none, all, and evenly between."""
    steps = min(parts, STEPS)
    return tuple(round(step * parts / steps) for step in range(steps + 1))


def deletion_of(games: Games, number: int, scores: Mapping[str, Array], value: str) -> Deletion | None:
    """Return the deletion curves of one input by method; None if it has no features that can be masked."""
    parts = games.parts[number]
    if games.replacement is None or len(parts) < 2:
        return None
    counts = counts_of(len(parts))
    fractions = [count / len(parts) for count in counts]
    drawn = random_scores(len(parts), number, games.seed, DRAWS)
    scored = {name: np.asarray(scores_U, float)[parts] for name, scores_U in scores.items()}
    asked = np.stack([without_top(scores_P, fractions) for scores_P in (*scored.values(), *drawn)])
    said_XK = games.game(number).values(asked.reshape(-1, len(parts))).reshape(len(asked), len(counts))
    curves, random_DK = said_XK[: len(scored)], said_XK[len(scored) :]
    areas_D = np.array([area(curve, fractions) for curve in random_DK])
    low, high = np.quantile(random_DK, BAND, axis=0)
    return Deletion(
        counts=counts,
        orders={name: tuple(int(i) for i in parts[order_of(scores_P)]) for name, scores_P in scored.items()},
        curves={name: _plain(curve) for name, curve in zip(scored, curves, strict=True)},
        low=_plain(low),
        mean=_plain(random_DK.mean(0)),
        high=_plain(high),
        beaten={
            name: int((areas_D > area(curve, fractions)).sum()) for name, curve in zip(scored, curves, strict=True)
        },
        draws=DRAWS,
        value=value,
    )


def _plain(values: Array) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


NEXT = 2  # classes that the prediction is set against
Asked = tuple[tuple[Explanation, ...], ...]


def contrasts(ask: Callable[[list[Any]], Sequence[Explanation]], explanations: Sequence[Explanation]) -> Asked | None:
    """Return, per input, an explanation for each of the next classes, by ``ask(targets)``; None without a contrast."""
    following = [[] if e.prediction.independent else list(e.prediction.next or ())[:NEXT] for e in explanations]
    answers: list[list[Explanation]] = [[] for _ in explanations]
    for place in range(max(map(len, following), default=0)):
        targets = [(None, choices[place].index) if len(choices) > place else None for choices in following]
        try:
            asked = ask(targets)
        except WhyformerError:
            return None
        for number, aim in enumerate(targets):
            answers[number] += [] if aim is None else [asked[number]]
    return tuple(map(tuple, answers)) if any(answers) else None


CALLED = {"text": "texts", "image": "images", "table": "rows"}
CHECKED = 2  # inputs that are checked: that is slow, and says more of model and method than of an input
# Those about attention by itself are asked for by name; faithfulness is what the comparison measures, on all inputs.
USUAL_CHECKS = tuple(name for name in CHECKS if name not in (*ABOUT_ATTENTION, "faithfulness"))
MISLEADS = "Misleads when:"


@dataclass(frozen=True, eq=False)
class Report(Result):
    """Predictions for some inputs, their explanations by several methods, and the evaluation of these methods.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> report = wf.report(model, "I like the movie", tokenizer, method=["grad_sam", "saliency"], checks=[])
    >>> report.save("report.html")
    """

    what: ClassVar[str] = "report"
    later: ClassVar[tuple[str, ...]] = ("others", "purpose")

    comparison: Comparison
    explanations: tuple[tuple[Explanation, ...], ...]  # per input that is drawn: one per method, the best first
    names: tuple[str, ...]  # of those methods, as the comparison calls them
    deletions: tuple[Deletion | None, ...]  # per input that is drawn
    checkup: CheckUp | None = None
    unchecked: str = ""  # why there is no check-up
    called: str = "inputs"  # texts, images, rows
    ideas: dict[str, str] = field(default_factory=dict)  # method → what it does, in a sentence
    misleads: dict[str, str] = field(default_factory=dict)  # method → when its map misleads
    seconds: float = 0.0
    # Per input that is drawn: why the prediction rather than the next classes, by the best method.
    others: tuple[tuple[Explanation, ...], ...] | None = None
    purpose: str | None = None  # what the model is used for, in the words of its owner

    @property
    def title(self) -> str:
        """The question that the report answers."""
        return f"Why did {self.comparison.model} predict that, and can the explanation be trusted?"

    @property
    def best(self) -> dict[str, Any]:
        """The method that came first, ready for ``explain(model, x, **report.best)``."""
        return self.comparison.best

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """The result of each method: its place, and whether it beats random scores."""
        names = [row.name for row in self.comparison.rows if not row.baseline]
        return {name: self.comparison.standing(name, self.called) for name in names}

    def to_frame(self) -> pd.DataFrame:
        """Return one row per method: each metric with its 95 % confidence interval, rank and cost."""
        return self.comparison.to_frame()


view_of.register(Report, report_page)


@checked
@takes(EvaluationOptions, Evaluation)
def report(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    method: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    shown: Count = 4,
    drawn: Count = 5,
    checks: Sequence[str] | None = None,
    purpose: Annotated[str, NotEmpty()] | None = None,
    **options: Unpack[EvaluationOptions],
) -> Report:
    """Explain predictions by several methods, and evaluate these methods; ``.save("report.html")`` writes one page.

    method: names, or {"method": name, option: value}; None is one of each kind of method, and the default method. They
    are compared on all inputs; the best ``shown`` methods are drawn for the first ``drawn`` inputs, with deletion
    curves. checks: names (``wf.check``); None is all checks that are not about attention alone, on the best method and
    the first two inputs; [] skips them.
    purpose: what the model is used for, for the section that documents a system: purpose, method, evidence, limits.

    Misleads when: there are few inputs (see the confidence intervals), or inputs with masked features are unlike the
    training data: faithfulness is then measured on inputs that the model was not made for.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> report = wf.report(model, "I like the movie", tokenizer, method=["grad_sam", "saliency"], checks=[])
    >>> report.save("report.html")
    """
    started = time.perf_counter()
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    source = explainer.source(inputs)
    called = CALLED.get(source.modality.stream, "inputs")
    if method is None:
        method = [AUTO, *usual_methods(source.modality.kind)[1:]]
    asked = Evaluation(**options)
    judged = chosen_metrics(None, rationales=False, masks=False)
    candidates = wanted(method, source.modality.kind)
    with comparing(explainer, inputs, candidates, judged, asked, whole=drawn) as (comparison, games):
        rows = [row for row in comparison.rows if not row.baseline][:shown]
        value = comparison.value or "probability of the target"
        names = tuple(row.name for row in rows)
        explanations = tuple(zip(*(comparison.explanations[name][:drawn] for name in names), strict=True))
        others = None
        if asked.target is None:
            others = _other_classes(games, rows[0], asked.scalar, comparison.explanations[names[0]], drawn)
        deletions = tuple(
            deletion_of(games, number, {name: e.scores for name, e in zip(names, each, strict=True)}, value)
            for number, each in enumerate(explanations)
        )
    checkup, unchecked = _checked_up(explainer, _first(inputs, source.size, CHECKED), rows[0], checks, asked)
    entries = {row.name: get_method(row.method) for row in comparison.rows if not row.baseline}
    return Report(
        comparison=comparison,
        explanations=explanations,
        names=names,
        deletions=deletions,
        checkup=checkup,
        unchecked=unchecked,
        called=called,
        ideas={name: entry.idea for name, entry in entries.items()},
        misleads={name: misleading(entry.run) for name, entry in entries.items()},
        seconds=time.perf_counter() - started,
        others=others,
        purpose=purpose,
    )


def usual_methods(kind: str) -> list[str]:
    """Return the methods that are compared by default: the default method for this kind of input, and others."""
    return list(dict.fromkeys([default_method(kind), *REPORTED]))


def _first(inputs: Any, size: int, count: int) -> Any:
    """The first inputs, where they are several raw ones; tensors and single inputs stay what they are."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[:count] if len(inputs) > count else inputs
    listed = isinstance(inputs, list) and len(inputs) == size and not are_tensors(inputs)
    return inputs[:count] if listed and size > count else inputs


def _other_classes(
    games: Games, row: ComparedMethod, scalar: str, explained: Sequence[Explanation], drawn: int
) -> Asked | None:
    """Explain the first inputs by one method, for the classes that follow the predicted one."""
    inputs = _first(games.inputs, games.size, drawn)
    settings: dict[str, Any] = {"method": row.method, "scalar": scalar, "seed": games.seed, "progress": False}
    settings |= {"batch_size": games.batch_size, **games.asked, **row.options}
    asked = explained if inputs is games.inputs else explained[:drawn]
    others = contrasts(lambda targets: games.explainer.explain(inputs, target=targets, **settings), asked)
    return None if others is None else others[:drawn]


def _checked_up(
    explainer: CoreExplainer,
    inputs: Any,
    best: ComparedMethod,
    checks: Sequence[str] | None,
    asked: Evaluation,
) -> tuple[CheckUp | None, str]:
    if checks is not None and not len(checks):
        return None, "The check-up was skipped."
    wanted = USUAL_CHECKS if checks is None else checks
    options = options_of_tokens(best.options, asked.units)
    shared = {name: getattr(asked, name) for name in ("target", "seed", "batch_size", "progress", "cache")}
    try:
        done = check(explainer, inputs, checks=wanted, method=best.method, **shared, **options)
    except WhyformerError as reason:
        if checks is not None:
            raise
        return None, f"The check-up could not be run here: {reason}"
    return done, ""


def misleading(run: Any) -> str:
    """Return the "Misleads when" section of a method's docstring."""
    _, _, words = (inspect.getdoc(run) or "").partition(MISLEADS)
    return " ".join(words.split("\n\n")[0].replace("``", "").split())
