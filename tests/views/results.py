"""One result of every kind, stored or made by hand: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from tests.views import samples
from tests.views.samples import STORED
from whyformer.checks.exam import CheckUp, Finding
from whyformer.checks.jain_wallace import AttentionTest, JainWallace
from whyformer.checks.randomisation import Randomisation, Stage
from whyformer.evaluate.comparison import Comparison
from whyformer.evidence import Deletion
from whyformer.heads import HeadImportance
from whyformer.reports.report import Report
from whyformer.results.result import HOMES, RESULTS, Result
from whyformer.results.types import Choice, Cost, Explanation, Target

NAN = float("nan")
COST = Cost(forwards=1, backwards=1, seconds=0.0123)  # whole numbers, as the oldest files have them: loading gives 1.0
comparison = partial(Comparison.load, STORED / "Comparison.json")


def explanation() -> Explanation:
    return Explanation.load(STORED / "Explanation.json").replace(cost=COST)


def head_importance() -> HeadImportance:
    return replace(HeadImportance.load(STORED / "HeadImportance.json"), cost=COST)


def check_up() -> CheckUp:
    own = samples.text()
    numbers: dict[str, Any] = {"tau_gradient": 0.25, "p_gradient": 0.25, "p_loo": 0.25, "tau_between": 0.25}
    numbers |= {"max_attention": 0.25, "units": 12, "tau_loo": NAN, "median_change": 0.1, "mixing": 0.3}
    maps = {"original": own, "adversarial": own.replace(scores=own.scores[::-1].copy())}
    test = AttentionTest(title="a text", jsd=0.4, change=0.001, **numbers, **maps)
    stages = (Stage("classifier", 0.9, 0.9, 0.8, 0.8), Stage("layers.1", 0.2, 0.3, NAN, NAN))
    results = {
        "jain_wallace": JainWallace((test,), "last", "mean", "readout", 10, 5, 0.05),
        "randomisation": Randomisation("generic_attention", stages, 0.1, 0.2, 3.5, (0.1, 0.2)),
    }
    findings = (
        Finding("warning", "sinks", "Sinks", "beware", {"share": NAN, "most": float("inf")}),
        Finding("ok", "invariance", "Shift", "fine"),
    )
    model = "BertForSequenceClassification"
    return CheckUp(model, "generic_attention", 1, findings=findings, results=results, seed=3, seconds=1.5)


def deletion(explanations: tuple[Explanation, ...], names: tuple[str, ...]) -> Deletion:
    """Each unit takes a tenth of what is left; at random, half of that."""
    orders = {}
    for name, one in zip(names, explanations, strict=True):
        plain = [i for i in np.argsort(-one.scores, kind="stable") if not one.units.special[i]]
        orders[name] = tuple(int(i) for i in plain)
    counts = tuple(range(len(orders[names[0]]) + 1))
    slow = tuple(round(0.95 - 0.04 * count, 4) for count in counts)
    return Deletion(
        counts=counts,
        orders=orders,
        curves={name: tuple(round(0.95 - 0.08 * count, 4) for count in counts) for name in names},
        low=tuple(round(value - 0.01, 4) for value in slow),
        mean=slow,
        high=tuple(round(value + 0.01, 4) for value in slow),
        beaten={name: 19 - place for place, name in enumerate(names)},
        draws=20,
    )


def report(explanations: tuple[Explanation, ...] = ()) -> Report:
    """Two methods, on a text and on a row of a table that has nothing to be taken away."""
    said = Target(1, "positive", probability=0.95, next=(Choice(0, "negative", 0.05),))
    names = ("grad_sam", "raw_attention(layers=mean)")
    texts = explanations or tuple(samples.text(n.partition("(")[0], prediction=said) for n in names)
    rows = tuple(samples.table(method=n.partition("(")[0]) for n in names)
    return Report(
        comparison=comparison(),
        explanations=(texts, rows),
        names=names,
        deletions=(deletion(texts, names), None),
        checkup=check_up(),
        called="texts",
        ideas=dict.fromkeys(names, "Looks at attention."),
        misleads={"grad_sam": "attention is not what decides."},
        seconds=12.5,
    )


for home in HOMES:
    import_module(home)
ALL: dict[type[Result], Callable[[], Any]] = {
    kind: partial(kind.load, STORED / f"{kind.__name__}.json")
    for kind in RESULTS.values()
    if kind.__module__.startswith("whyformer.")
}
ALL |= {Explanation: explanation, HeadImportance: head_importance, CheckUp: check_up, Report: report}
