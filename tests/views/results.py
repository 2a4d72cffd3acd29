"""One result of every kind, made by hand: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.views import samples
from whyformer.checks.checkup import CheckUp, Finding
from whyformer.checks.jain_wallace import AttentionTest, JainWallace
from whyformer.checks.randomisation import Randomisation, Stage
from whyformer.checks.retrained import CONTROL, GUIDES, MODEL, UNIFORM, RetrainedAttention, TrainedModel
from whyformer.concepts import ConceptScore, Maximized, TCAVResult
from whyformer.evaluate.comparison import ComparedMethod, Comparison, MetricScore
from whyformer.evaluate.recommendation import ChosenMethod, Outcome, Recommendation
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
from whyformer.jobs.dataset import Case, DatasetSummary, Importance
from whyformer.language.citations import Citations, SourceSentence
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


def learned_gates() -> LearnedGates:
    steps = np.arange(60)
    return LearnedGates(
        gates=np.where(np.isnan(table(4)), np.nan, table(4).round()).astype(np.float32),
        scores=table(4, signed=True),
        open=table(4),
        history={"loss": (0.7 * np.exp(-steps / 20) + 0.1).tolist(), "open heads": (11 - steps / 10).tolist()},
        penalty=0.02,
        heads=11,
        options={"steps": 60, "lr": 0.1, "seed": 0},
        cost=COST,
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


def tcav() -> TCAVResult:
    draw = np.random.default_rng(14)

    def row(name: str, middle: float, p: float, **how: Any) -> ConceptScore:
        scores = tuple(float(x) for x in np.clip(draw.normal(middle, 0.08, 20), 0, 1))
        mean = float(np.mean(scores))
        low, high = (NAN, NAN) if np.isnan(p) else (mean - 0.05, mean + 0.05)
        return ConceptScore(name, "random", scores, mean, low, high, p, magnitude=middle - 0.5, **how)

    rows = (
        row("striped", 0.9, 1e-7, significant=True, accuracy=0.97),
        row("dotted", 0.75, 0.0031, significant=True, accuracy=0.81, small=True),
        row("bubbly", 0.5, 0.62, significant=False, accuracy=0.88),
        row("cloudy", 0.3, 0.01, significant=False, accuracy=0.51, doubtful=True),
        row("untested", 0.6, NAN, significant=False, accuracy=0.7),
    )
    return TCAVResult(
        rows=rows,
        random=tuple(float(x) for x in np.clip(draw.normal(0.5, 0.15, 20), 0, 1)),
        layer="vit.layers.2",
        target="zebra",
        options={"pooling": "cls", "alpha": 0.05},
        inputs=40,
        warnings=("cloudy: the layer does not know it.",),
        model="ViTForImageClassification",
        random_magnitude=0.08,
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


def context_explanation() -> ContextExplanation:
    rng = np.random.default_rng(16)
    cells = rng.normal(size=(5, 3)).astype(np.float32)
    return ContextExplanation(
        columns=("age", "dose", "pulse"),
        values=("39", "0.5", "71"),
        scores=rng.normal(size=3).astype(np.float32),
        answers=("ill", "well", "well", "ill", "well"),
        row_scores=rng.normal(size=5).astype(np.float32),
        cells=cells,
        method="input_x_gradient",
        target="well",
        value=1.25,
        options={"rows": "weight", "baseline": "mean"},
        model="InContext",
    )


def corpus_explanation() -> CorpusExplanation:
    mean = np.array([0.8, -0.6, 0.1])
    return CorpusExplanation(
        words=("great", "dull", "film"),
        counts=np.array([7, 1, 12]),
        mean=mean,
        low=np.array([0.7, NAN, 0.0]),
        high=np.array([0.9, NAN, 0.2]),
        mean_size=np.abs(mean),
        examples=("A great film.", "So dull!", "The film is <b>long</b>."),
        texts=14,
        left_out=3,
        method="input_x_gradient",
        options={"at": "embeddings"},
        target="positive",
        signed=True,
        warnings=("mind the gap",),
        seconds=1.5,
        model=BERT,
    )


def global_explanation() -> GlobalExplanation:
    mean = np.array([0.4, 0.1, 0.3])
    return GlobalExplanation(
        labels=("[CLS]", "age", "work"),
        special=(True, False, False),
        mean=mean,
        low=mean - 0.05,
        high=mean + 0.05,
        mean_size=mean,
        size_low=mean - 0.05,
        size_high=np.array([0.45, NAN, 0.35]),
        rows=40,
        method="raw_attention",
        options={"layers": "mean"},
        target="<=50K",
        unseen=("hours",),
        matrix=np.eye(3),
        samples=np.random.default_rng(16).random((5, 3)),
        sample_values=(("", "39", "Private"),) * 5,
        warnings=("few rows",),
        seconds=0.5,
        model="FTTransformer",
    )


def feature_permutation() -> FeaturePermutation:
    drops = np.array([[0.2, 0.25], [0.0, -0.01]])
    unknown = np.full(2, NAN)
    mean = drops.mean(1)
    groups = {"twins": ("a", "b")}
    return FeaturePermutation(("twins", "c"), drops, 0.8, "accuracy", 90, mean, unknown, unknown, 3, groups)


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


def recommendation() -> Recommendation:
    choice = ChosenMethod("all", "any cost", "grad_sam", "grad_sam", {}, 0.41, 12)
    outcome = Outcome("any cost", "grad_sam", 0.3, 0.2, 0.4, (0.2, 0.1, 0.3), (0.05, -0.1, 0.2))
    floor = Outcome("random", "random", 0.1, NAN, NAN)
    return Recommendation(
        scope="dataset",
        choices=(choice,),
        outcomes=(outcome, floor),
        leaders=(("grad_sam", 0.41), ("raw_attention", 0.2)),
        grid=((0.1, 0.2), (0.0, NAN), (-0.3, 0.4)),
        grid_reading="row",
        candidates=252,
        excluded={"occlusion": "it would win by construction"},
        replacement="mask",
        chosen_on=12,
        reported_on=8,
        warnings=("few inputs",),
        model=BERT,
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


def citations() -> Citations:
    documents = ("The lighthouse was built in 1847. Its keeper was Mary Holt.", "The bakery opens at six.")
    sources = (
        SourceSentence(0, "The lighthouse was built in 1847.", (0, 33)),
        SourceSentence(0, "Its keeper was Mary Holt.", (34, 59)),
        SourceSentence(1, "The bakery opens at six.", (0, 24)),
    )
    nan = float("nan")
    return Citations(
        question="Who kept the lighthouse?",
        answer="Mary Holt did. She liked tea.",
        spans=((0, 14), (15, 29)),
        names=("lighthouse", "bakery"),
        texts=documents,
        sources=sources,
        log_probabilities=np.array([-3.5, -9.25]),
        scores=np.array([[0.5, 2.0, 0.125], [0.25, 0.5, 0.375]]),
        drops=np.array([[0.75, 6.5, nan], [nan, 0.125, -0.25]]),
        document_scores=np.array([[2.5, 0.125], [0.75, 0.375]]),
        document_drops=np.array([[8.0, -0.5], [0.25, 0.0]]),
        method="attn_lrp",
        model="LlamaForCausalLM",
        top=2,
        cost=Cost(12, 2, 1.5),
        warnings=("no document supports 'She liked tea.'.",),
    )


def retrained_attention() -> RetrainedAttention:
    names = [(name, NAN) for name in (MODEL, CONTROL, UNIFORM)] + [("adversary", w) for w in (0.0, 0.1)]
    twins = [TrainedModel(name, w, 0.9, 0.85, 0.95, 0.89, i / 20, i / 10) for i, (name, w) in enumerate(names)]
    guides = [TrainedModel(name, NAN, 0.8, 0.7, 0.9, 0.79, 0.1, NAN) for name in GUIDES]
    return RetrainedAttention((*twins, *guides), 80, 20, BERT, 0.1, {"epochs": 3, "seed": 0}, COST, ("mind the gap",))


def dataset_summary() -> DatasetSummary:
    case = Case("ab12", 7, "r7", "methods rank its parts differently", -0.5, (explanation(), samples.text()))
    listed = [
        Importance("grad_sam", "positive", word, 3, mean, abs(mean)) for word, mean in (("good", 0.4), ("not", -0.2))
    ]
    return DatasetSummary(
        "rows.csv", BERT, ("grad_sam",), 12, 11, 1, {"TooLong": 1}, tuple(listed), (), (case,), 0.25, "word", 3
    )


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
    LearnedGates: learned_gates,
    HeadRoles: head_roles,
    InductionScores: lambda: InductionScores(table(17), table(18), table(19), PATHS, 20, 8),
    LayerProfile: layer_profile,
    Circuits: circuits,
    DirectShares: direct_shares,
    SyntacticHeads: syntactic_heads,
    TCAVResult: tcav,
    Maximized: maximized,
    RowAttention: row_attention,
    ContextExplanation: context_explanation,
    CorpusExplanation: corpus_explanation,
    GlobalExplanation: global_explanation,
    FeaturePermutation: feature_permutation,
    Comparison: comparison,
    Recommendation: recommendation,
    CheckUp: check_up,
    RetrainedAttention: retrained_attention,
    Citations: citations,
    DatasetSummary: dataset_summary,
    Report: report,
}
