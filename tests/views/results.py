"""One result of every kind, made by hand or stored: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.views import samples
from whyformer.checks.exam import CheckUp, Finding
from whyformer.checks.jain_wallace import AttentionTest, JainWallace
from whyformer.checks.randomisation import Randomisation, Stage
from whyformer.checks.retrained import CONTROL, GUIDES, MODEL, UNIFORM, RetrainedAttention, TrainedModel
from whyformer.concepts import Maximized, TCAVResult
from whyformer.evaluate.comparison import ComparedMethod, Comparison, MetricScore
from whyformer.evaluate.recommendation import Recommendation
from whyformer.evidence import Deletion
from whyformer.heads import (
    Circuits,
    DirectShares,
    HeadImportance,
    HeadRoles,
    InductionScores,
    LayerProfile,
    LearnedGates,
    PruningCurve,
    SyntacticHeads,
)
from whyformer.jobs.dataset import DatasetSummary
from whyformer.language.citations import Citations
from whyformer.reports.report import Report
from whyformer.results.result import Result
from whyformer.results.types import AttentionMaps, Cost, Explanation, Generation, SiteMap, Target
from whyformer.results.types import Choice as Said
from whyformer.tables import ContextExplanation, CorpusExplanation, FeaturePermutation, GlobalExplanation, RowAttention

NAN = float("nan")
COST = Cost(forwards=1, backwards=1, seconds=0.0123)
PATHS = ("model.layers.0.attention", "model.layers.1.attention", "model.layers.2.attention")
BERT = "BertForSequenceClassification"
LAYERS, HEADS = 3, 4


def table(seed: int, signed: bool = False, narrow: bool = True) -> Any:
    """(L, H) numbers; the last layer has fewer heads."""
    drawn = np.random.default_rng(seed).uniform(-1 if signed else 0, 1, (LAYERS, HEADS)).astype(np.float32)
    if narrow:
        drawn[-1, -1] = np.nan
    return drawn


def explanation() -> Explanation:
    between = np.random.default_rng(0).random((12, 12)).astype(np.float32)
    return samples.text(
        options={"steps": 3, "heads": "max", "at": [1, 2]},
        changed=("steps",),
        matrix={("text", "text"): between},
        layers=np.stack([between, between.T]),
        base=0.25,
        checks={"completeness_error": 0.01},
        warnings=("mind the gap",),
    )


def head_importance() -> HeadImportance:
    draws = np.random.default_rng(1).random((5, LAYERS, HEADS)).astype(np.float32)
    draws[:, -1, -1] = np.nan
    scores = draws.mean(0)
    return HeadImportance(
        scores=scores,
        low=scores - np.float32(0.1),
        high=scores + np.float32(0.1),
        samples=draws,
        paths=PATHS,
        kind="gradient",
        options={"per": "example", "scalar": "logit", "normalize": None, "seed": 0},
        inputs=5,
        direction=table(2, signed=True),
        cost=COST,
        warnings=("5 inputs say little.",),
        model=BERT,
    )


def pruning_curve(seed: int = 0) -> PruningCurve:
    kept = np.arange(11, -1, -1)
    draws = (np.random.default_rng(seed).random((8, 12)) < np.linspace(0.95, 0.45, 12)).astype(float)
    values = draws.mean(0)
    return PruningCurve(
        kept=kept,
        values=values,
        low=np.clip(values - 0.12, 0, 1),
        high=np.clip(values + 0.12, 0, 1),
        samples=draws,
        metric="accuracy",
        order=tuple((i, j) for i in range(LAYERS) for j in range(HEADS) if (i, j) != (2, 3)),
        name="gradient, least first" if seed == 0 else f"random, seed {seed}",
        heads=11,
        cost=COST,
        model=BERT,
    )


def head_roles() -> HeadRoles:
    positional = table(5)
    positional[0, 0] = 0.97
    return HeadRoles(
        positional=positional,
        offset=[[(-1,), (0,), (1,), (-2,)] for _ in range(LAYERS)],
        separator=table(6) * np.float32(0.7),
        first=table(7) * np.float32(0.3),
        rare=np.full((LAYERS, HEADS), np.nan, np.float32),
        rare_chance=0.21,
        paths=PATHS,
        inputs=7,
    )


def layer_profile() -> LayerProfile:
    draws = np.random.default_rng(8).random((6, 4, LAYERS)).astype(np.float32)
    draws[:, 3] = np.nan
    return LayerProfile(draws, PATHS, 6, COST, ("6 inputs say little.",), BERT)


def circuits() -> Circuits:
    draw = np.random.default_rng(9)
    weights = [[draw.random((HEADS, 5, 2)).astype(np.float32) for _ in PATHS] for _ in range(3)]
    output = [draw.random((HEADS, 2, 5)).astype(np.float32) for _ in PATHS]
    summaries = (table(10, signed=True), table(11, signed=True))
    return Circuits(*weights, output, *summaries, PATHS, rotary=True, vocabulary=False)


def direct_shares() -> DirectShares:
    shares = np.stack([table(12, signed=True), table(13, signed=True)])
    value = np.array([1.5, -0.5], np.float32)
    rest = (value - np.nansum(shares, (1, 2))).astype(np.float32)
    return DirectShares(shares, rest, value, (Target(1, "positive"), Target(0, "negative")), PATHS, COST, BERT)


def syntactic_heads() -> SyntacticHeads:
    keys = [("nsubj:pass", "to head"), ("obj", "to dependent"), ("det", "to head")]
    return SyntacticHeads(
        share={key: table(20 + i) for i, key in enumerate(keys)},
        baseline={key: 0.2 * i for i, key in enumerate(keys)},
        offset={key: i - 1 for i, key in enumerate(keys)},
        arcs={key: 10 + i for i, key in enumerate(keys)},
        sentences=9,
        warnings=("1 sentences are longer than the model takes and were left out.",),
    )


def maximized() -> Maximized:
    rows, columns = np.mgrid[0:32, 0:32]
    image = np.stack([rows * 8, columns * 8, 255 - rows * 4 - columns * 4], -1).astype(np.uint8)
    history = tuple(float(x) for x in 5 - 4 * np.exp(-np.arange(40) / 10))
    return Maximized(
        "class 'zebra'", 4.8, history, image, (), 1.07, 0.9, {"steps": 40, "seed": 0}, ("grid",), BERT, {"l2": 0.3}
    )


def row_attention() -> RowAttention:
    weights = np.random.default_rng(15).dirichlet(np.ones(6), (2, 4)).astype(np.float32)
    labels = ("this row", *(f"training rows {i}" for i in range(5)))
    return RowAttention(weights, labels, PATHS[:2], "training rows")


def comparison() -> Comparison:
    score = MetricScore(0.3, 0.2, 0.4, 0.1, 0.05, 0.15, 1.0)
    unknown = MetricScore(0.2, NAN, NAN, NAN, NAN, NAN, 2.0)
    rows = (
        ComparedMethod("grad_sam", "grad_sam", {}, {"aopc": score}, 1.0, 1.0, 1.0, 0.004, 1_000_000),
        ComparedMethod("raw_attention(layers=mean)", "raw_attention", {"layers": "mean"}, {"aopc": unknown}, 2.0),
        ComparedMethod("random", "random", {}, {"aopc": unknown}, baseline="floor"),
    )
    names = ("grad_sam", "raw_attention(layers=mean)")
    agreement = [[1.0, 0.5], [0.5, 1.0]]
    return Comparison(
        rows=rows,
        metrics=("aopc",),
        higher_is_better={"aopc": True},
        agreement={"spearman": agreement, "kendall": agreement, "top_k": [[1.0, NAN], [NAN, 1.0]]},
        agreeing=names,
        curves={"remove": {name: [0.9, 0.5, 0.1] for name in (*names, "random")}},
        fractions=(0.0, 0.5, 1.0),
        values={"aopc": {name: [0.3, NAN] for name in names}},
        failures={"grad_cam": "reads the features of an image"},
        replacement="mask",
        inputs=2,
        variants=30,
        warnings=("2 inputs say little.",),
        model=BERT,
        options={"aopc": {"value": "logit"}},
    )


def check_up() -> CheckUp:
    own = samples.text()
    other = replace(own, scores=own.scores[::-1].copy())
    numbers = dict.fromkeys(("tau_gradient", "p_gradient", "p_loo", "tau_between", "max_attention"), 0.25)
    test = AttentionTest(
        title="a text",
        units=12,
        tau_loo=NAN,
        median_change=0.1,
        mixing=0.3,
        jsd=0.4,
        change=0.001,
        original=own,
        adversarial=other,
        **numbers,
    )
    stages = (Stage("classifier", 0.9, 0.9, 0.8, 0.8), Stage("layers.1", 0.2, 0.3, NAN, NAN))
    results = {
        "jain_wallace": JainWallace((test,), "last", "mean", "readout", 10, 5, 0.05),
        "randomisation": Randomisation("generic_attention", stages, 0.1, 0.2, 3.5, (0.1, 0.2)),
    }
    return CheckUp(
        model=BERT,
        method="generic_attention",
        inputs=1,
        findings=(
            Finding("warning", "sinks", "Sinks", "beware", {"share": NAN, "most": float("inf")}),
            Finding("ok", "invariance", "Shift", "fine"),
        ),
        results=results,
        seed=3,
        seconds=1.5,
    )


def retrained_attention() -> RetrainedAttention:
    names = [(name, NAN) for name in (MODEL, CONTROL, UNIFORM)] + [("adversary", w) for w in (0.0, 0.1)]
    twins = [TrainedModel(name, w, 0.9, 0.85, 0.95, 0.89, i / 20, i / 10) for i, (name, w) in enumerate(names)]
    guides = [TrainedModel(name, NAN, 0.8, 0.7, 0.9, 0.79, 0.1, NAN) for name in GUIDES]
    return RetrainedAttention((*twins, *guides), 80, 20, BERT, 0.1, {"epochs": 3, "seed": 0}, COST, ("mind the gap",))


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
    said = Target(1, "positive", probability=0.95, next=(Said(0, "negative", 0.05),))
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


def attention_maps() -> AttentionMaps:
    weights = np.random.default_rng(31).dirichlet(np.ones(4), (2, 4)).astype(np.float32)
    sites = tuple(SiteMap(i, PATHS[i], "self", weights[i]) for i in range(2))
    return AttentionMaps("a good film", ("[CLS]", "a good", "film", "[SEP]"), "mean", sites)


ALL: dict[type[Result], Callable[[], Any]] = {
    Explanation: explanation,
    Generation: samples.generation,
    AttentionMaps: attention_maps,
    HeadImportance: head_importance,
    PruningCurve: pruning_curve,
    HeadRoles: head_roles,
    InductionScores: lambda: InductionScores(table(17), table(18), table(19), PATHS, 20, 8),
    LayerProfile: layer_profile,
    Circuits: circuits,
    DirectShares: direct_shares,
    SyntacticHeads: syntactic_heads,
    Maximized: maximized,
    RowAttention: row_attention,
    Comparison: comparison,
    CheckUp: check_up,
    RetrainedAttention: retrained_attention,
    Report: report,
}
STORED = Path(__file__).parent / "old_results"
for kind in (
    *(CorpusExplanation, ContextExplanation, GlobalExplanation, FeaturePermutation, TCAVResult),
    *(Recommendation, Citations, DatasetSummary, LearnedGates),
):
    ALL[kind] = partial(kind.load, STORED / f"{kind.__name__}.json")
