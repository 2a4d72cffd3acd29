"""The debate about attention: checks by Serrano & Smith and Wiegreffe & Pinter (2019), and ``wf.attention_debate``."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.checks.attention_rows import (
    SMALL_CHANGE,
    Choice,
    LayerRows,
    Rows,
    jsd,
    mean_known,
    outputs_with,
    rows_of,
    tvd,
)
from whyformer.checks.exam import Exam, Finding
from whyformer.checks.jain_wallace import AttentionTest, JainWallace, jain_wallace
from whyformer.checks.retrained import RetrainedAttention, examples_of, retrained_attention
from whyformer.errors import NotOffered
from whyformer.evidence import ENOUGH
from whyformer.explainer import CoreExplainer
from whyformer.parameters import BatchSize, Count, Limits, Seed, checked, checked_options
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run import Run
from whyformer.run.session import loaded_as
from whyformer.views.explained import title_of
from whyformer.views.report_view import debate_page
from whyformer.views.view import view_of

# Is attention interpretable? Erase weights until the decision flips (Serrano & Smith 2019, arXiv:1906.03731).

ORDERS = ("attention", "gradient", "gradient × attention", "random")
OFTEN = 0.5  # share of inputs whose decision must flip by some order before orders are compared
BEHIND = 0.1  # share of the weights by which attention may lag behind the best order


@dataclass(frozen=True)
class Erasure:
    """Erasure of attention weights on one input."""

    title: str
    units: int
    erased: dict[str, float]  # per order: share of the weights erased when the decision flipped; 1 where it never did
    flipped: dict[str, float]  # per order: did it flip (for random: the share of draws)
    top_jsd: float  # of the outputs, when the highest weight alone is erased
    random_jsd: float  # when a random one is
    top_flips: bool
    random_flips: bool


@dataclass(frozen=True)
class SerranoSmith:
    """All inputs."""

    inputs: tuple[Erasure, ...]
    layers: str
    heads: str
    rows: str

    def erased(self, order: str) -> float:
        """Mean share of the weights that went until the decision flipped."""
        return mean_known([i.erased[order] for i in self.inputs])

    @property
    def ever_flips(self) -> bool:
        return any(share > 0 for i in self.inputs for share in i.flipped.values())

    def findings(self) -> tuple[Finding, ...]:
        shares = {order: self.erased(order) for order in ORDERS}
        numbers = {f"erased_{order}": share for order, share in shares.items()}
        for name in ("top_jsd", "random_jsd", "top_flips", "random_flips"):
            numbers[name] = mean_known([float(getattr(i, name)) for i in self.inputs])
        flips = max(mean_known([i.flipped[order] for i in self.inputs]) for order in ORDERS)
        numbers["flipped"] = flips
        if flips < OFTEN:
            where = f"on {flips:.0%} of the inputs at most" if flips else "on none of the inputs"
            more = "" if self.layers == "all" else " (layers='all' tests all layers)"
            text = (
                f"Erasing the attention weights of ordinary tokens changes the prediction {where}, in any order: these "
                f"rows rarely decide the prediction{more}."
            )
            return (Finding("warning", "serrano_smith", "Erased attention", text, numbers),)
        best = min(shares, key=lambda order: shares[order])
        listed = ", ".join(f"{order} {share:.0%}" for order, share in shares.items())
        behind = shares["attention"] > shares[best] + BEHIND
        text = f"Share of weights to erase until the prediction changes, by order of erasure: {listed}. "
        better = f"The largest attention weights are not the decisive ones: erasure by {best} needs fewer."
        text += better if behind else "Erasure by attention needs about as few as the other orders."
        return (Finding("warning" if behind else "ok", "serrano_smith", "Erased attention", text, numbers),)


def serrano_smith(
    exam: Exam,
    *,
    layers: Choice = "last",
    heads: Choice = "all",
    rows: Rows = "readout",
    draws: Count = 3,
    points: Count = 40,
) -> SerranoSmith:
    """Count the attention weights to erase until the prediction changes: by attention, gradient, both, or at random.

    A weight is a key position, erased in all chosen heads and rows: set to 0 and the row renormalised. Only ordinary
    tokens are erased. ``draws``: the number of random orders to average. ``points``: how often the prediction is
    computed on the way; at most once per weight.

    Misleads when: the residual stream alone determines the prediction; then no order changes it.
    """

    def one(row: int) -> Erasure:
        run = exam.run(row)
        if run.modality.mean.outcome == "similarity":
            raise NotOffered(
                "the model compares two inputs: a similarity is not a decision that can change. Use jain_wallace or "
                "wiegreffe_pinter, which measure the change of the similarity."
            )
        if run.logits.shape[1] < 2:
            raise NotOffered("the model has a single output: its prediction cannot change to another class.")
        return _one(exam, row, rows_of(run, layers, heads, rows), run, draws, points)

    key = ("serrano_smith", layers, heads, rows, draws, points)
    return SerranoSmith(exam.each(Erasure, key, one, "erasing attention"), str(layers), str(heads), rows)


def _one(exam: Exam, row: int, places: list[LayerRows], run: Run, draws: int, points: int) -> Erasure:
    keys = torch.stack([place.free_P for place in places]).any(0).nonzero()[:, 0]
    before = outputs_with(run, places, [p.weights_HRK[None] for p in places])[0]
    random = np.random.default_rng(exam.seed)
    ranked = zip(ORDERS[:-1], importance(run, places), strict=True)
    orders = {name: [keys[values[keys].argsort(descending=True, stable=True)]] for name, values in ranked}
    shuffled = [torch.from_numpy(random.permutation(len(keys))).to(keys.device) for _ in range(draws)]
    orders["random"] = [keys[order] for order in shuffled]
    erased, flipped = {}, {}
    for name, lists in orders.items():
        shares = [_until_flip(run, places, order, before, points) for order in lists]
        erased[name] = float(np.mean([1.0 if math.isnan(s) else s for s in shares]))
        flipped[name] = float(np.mean([not math.isnan(s) for s in shares]))
    alone = torch.stack([orders["attention"][0][:1], orders["random"][0][:1]])
    single = outputs_with(run, places, [without(place, alone) for place in places])
    changes = jsd(single, before)
    flips = single.argmax(-1) != before.argmax(-1)
    title = title_of(exam.explanations[row])
    return Erasure(title, len(keys), erased, flipped, *changes.tolist(), *flips.tolist())


def importance(run: Run, places: list[LayerRows]) -> list[Tensor]:
    """Return (P,) attention, its gradient (of the log-odds) and their product, summed over heads, rows and layers."""
    sites = run.record(grad=True, multi_stream=True).sites
    totals = [torch.zeros(places[0].positions, device=places[0].weights_HRK.device) for _ in range(3)]
    for place in places:
        grad = sites[place.layer].attention_grad_BHQK
        assert grad is not None
        slope = place.of(grad)
        values = (place.weights_HRK, slope, slope * place.weights_HRK)
        totals = [total + place.summed(v.sum(0)[None])[0] for total, v in zip(totals, values, strict=True)]
    return totals


def _until_flip(run: Run, places: list[LayerRows], order: Tensor, before_C: Tensor, points: int) -> float:
    """Return the share of keys that were erased when the prediction first changed; NaN if it never did."""
    counts = np.unique(np.ceil(np.linspace(0, len(order), min(points, len(order)) + 1)[1:]).astype(int)).tolist()
    gone = [order[:count] for count in counts]
    filled = torch.stack([torch.cat([g, g[:1].expand(len(order) - len(g))]) for g in gone])
    outputs = outputs_with(run, places, [without(place, filled) for place in places])
    flips = (outputs.argmax(-1) != before_C.argmax(-1)).nonzero()[:, 0]
    return counts[int(flips[0])] / len(order) if len(flips) else float("nan")


def without(place: LayerRows, gone_VM: Tensor) -> Tensor:
    """(V, H, R, K) rows without the keys of each variant, the rest renormalised; rows without weight stay zero."""
    rows = place.weights_HRK.repeat(len(gone_VM), 1, 1, 1)
    stays_VP = torch.ones(len(gone_VM), place.positions, dtype=torch.bool, device=rows.device)
    stays_VP.scatter_(1, gone_VM, False)
    total = rows.sum(-1, keepdim=True)
    left = rows * stays_VP[:, place.keys_RK][:, None]
    remaining = left.sum(-1, keepdim=True)
    return left * total / remaining.clamp(min=torch.finfo(left.dtype).tiny)


@dataclass(frozen=True)
class UniformTest:
    """One input with uniform attention."""

    former: ClassVar[tuple[str, ...]] = ("seed_jsd", "seed_change")  # fields of older files

    title: str
    change: float  # |Δp| with uniform weights in the chosen rows
    change_everywhere: float  # in every row of every layer
    flips: bool
    flips_everywhere: bool
    jsd: float  # of the model's own attention from uniform


@dataclass(frozen=True)
class WiegreffePinter:
    """All inputs."""

    former: ClassVar[tuple[str, ...]] = ("models",)

    inputs: tuple[UniformTest, ...]
    layers: str

    def mean(self, name: str) -> float:
        return mean_known([float(getattr(i, name)) for i in self.inputs])

    def findings(self) -> tuple[Finding, ...]:
        here, everywhere = self.mean("change"), self.mean("change_everywhere")
        names = ("change", "change_everywhere", "flips", "flips_everywhere", "jsd")
        numbers = {name: self.mean(name) for name in names}
        needless = everywhere < SMALL_CHANGE
        meaning = "The attention pattern matters to the model, so tests of attention are meaningful here."
        if needless:
            meaning = "The attention pattern hardly matters on these inputs, so attention maps explain little."
        text = (
            f"With uniform attention over ordinary tokens, the output changes by |Δp| = {here:.3f} (rows at the output "
            f"position) and {everywhere:.3f} (all rows of all layers). {meaning}"
        )
        return (Finding("warning" if needless else "ok", "wiegreffe_pinter", "Uniform attention", text, numbers),)


def wiegreffe_pinter(exam: Exam, *, layers: Choice = "last", heads: Choice = "all") -> WiegreffePinter:
    """Measure the change of the output under uniform attention.

    Each ordinary token gets the same share of the weight of all ordinary tokens, once in the readout rows of
    ``layers``, once in all rows of all layers.

    Misleads when: the model was not trained with uniform attention, though it could work with it. The retrained
    version, other seeds, the guided MLP and the model-consistent adversary need training:
    ``whyformer.retrained_attention``.
    """
    explanations = exam.explain(method="raw_attention", scalar=exam.decision)

    def one(row: int) -> UniformTest:
        run = exam.run(row)
        read, far = _uniform(run, rows_of(run, layers, heads))
        everywhere, _ = _uniform(run, rows_of(run, "all", rows="all"))
        return UniformTest(title_of(explanations[row]), read[0], everywhere[0], read[1], everywhere[1], far)

    key = ("wiegreffe_pinter", layers, heads)
    return WiegreffePinter(exam.each(UniformTest, key, one, "uniform attention"), str(layers))


def _uniform(run: Run, places: list[LayerRows]) -> tuple[tuple[float, bool], float]:
    """|Δp| and whether the decision flips with uniform weights; JSD of the last layer's map, a mean over streams."""
    even = [place.full(place.even_HRK[None]) for place in places]
    before = outputs_with(run, places, [place.weights_HRK[None] for place in places])
    after = outputs_with(run, places, even)
    last = {place.asks: (place, rows) for place, rows in zip(places, even, strict=True)}.values()
    far = mean_known([float(jsd(place.shown(place.weights_HRK[None]), place.shown(rows))) for place, rows in last])
    return (float(tvd(after, before)), bool((after.argmax(-1) != before.argmax(-1)).any())), far


# All experiments on labelled examples: wf.attention_debate.

VERDICTS = {
    "supported": "more tests support attention as an explanation of this model than speak against it",
    "not supported": "more tests speak against attention as an explanation of this model than support it",
    "mixed": "as many tests support attention as an explanation of this model as speak against it",
    "inconclusive": "fewer than half of the tests are decided",
}


@dataclass(frozen=True, eq=False)
class AttentionDebate(Result):
    """Jain & Wallace 2019 on held-out inputs, and Wiegreffe & Pinter 2019 on copies of the model."""

    what: ClassVar[str] = "attention debate"

    tests: JainWallace  # attention against importance scores, shuffled and adversarial attention; per input
    copies: RetrainedAttention  # uniform and adversarial attention, other seeds, guided MLPs
    seed: int = 0
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.copies.model}: the debate about attention, {len(self.tests.inputs)} held-out inputs"

    @property
    def classes(self) -> dict[str, tuple[AttentionTest, ...]]:
        """The tested inputs by predicted class."""
        named = [(test.original.target.label or str(test.original.target.index), test) for test in self.tests.inputs]
        return {name: tuple(t for n, t in named if n == name) for name in sorted({n for n, _ in named})}

    @property
    def votes(self) -> Counter[str]:
        """Number of tests by level: "ok" supports attention, "warning" speaks against it, "note" is undecided."""
        return Counter(finding.level for finding in self._tests())

    @property
    def verdict(self) -> str:
        """Whether tests support attention as an explanation, by majority: a key of ``VERDICTS``."""
        votes = self.votes
        if 2 * votes["note"] > votes.total():
            return "inconclusive"
        if votes["ok"] == votes["warning"]:
            return "mixed"
        return "supported" if votes["ok"] > votes["warning"] else "not supported"

    def findings(self) -> tuple[Finding, ...]:
        """The verdict and the results of the experiments, as sentences."""
        votes, level = self.votes, {"supported": "ok", "not supported": "warning"}.get(self.verdict, "note")
        counts = {"for": votes["ok"], "against": votes["warning"], "undecided": votes["note"]}
        tally = ", ".join(f"{count} {name}" for name, count in counts.items())
        text = f"{self.verdict.capitalize()}: {VERDICTS[self.verdict]} ({tally})."
        numbers = {name: float(count) for name, count in counts.items()}
        rest = [f for f in self.copies.findings() if f.title == "Other seeds"]
        return Finding(level, "attention_debate", "Verdict", text, numbers), *self._tests(), *rest

    def _tests(self) -> list[Finding]:
        """The findings that count, with the level of a note where too few inputs were tested."""
        few = f"{len(self.tests.inputs)} held-out inputs are too few for a verdict ({ENOUGH} needed)."
        findings = list(self.tests.findings())
        if len(self.tests.inputs) < ENOUGH:
            findings = [replace(f, level="note", text=f"{f.text} {few}") for f in findings]
        return [*findings, *(f for f in self.copies.findings() if f.title != "Other seeds")]

    def rows(self) -> list[dict[str, Any]]:
        names = "units tau_gradient p_gradient tau_loo p_loo entropy max_attention median_change jsd change".split()
        return [
            {"input": test.title, "class": name} | {n: getattr(test, n) for n in names}
            for name, tests in self.classes.items()
            for test in tests
        ]

    def to_frame(self) -> DataFrame:
        """Return one row per tested input; ``copies.to_frame()`` has one per model."""
        return dataframe(self.rows())


view_of.register(AttentionDebate, debate_page)


@checked
def attention_debate(
    model: Any,
    inputs: Any,
    labels: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    validation: tuple[Any, Any] | Annotated[float, Limits(0, 0.9, open_low=True)] = 0.2,
    tested: Count = 100,
    permutations: Count = 100,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    **training: Any,
) -> AttentionDebate:
    """Test attention as an explanation of a classifier by the experiments of the debate, on labelled examples.

    On held-out inputs, at most ``tested`` of them (Jain & Wallace 2019): Kendall's τ of attention with gradients and
    with leave-one-out; ``permutations`` of the weights; adversarial attention with the same output. On copies of the
    model (Wiegreffe & Pinter 2019): uniform and adversarial attention, other seeds, and an MLP guided by attention.
    ``training``: options of ``wf.retrained_attention``, such as ``epochs``, ``lr`` and ``seeds``. The model can be a
    transformer, or a recurrent network whose weights ``attention_at`` names.

    Misleads when: the copies are trained too briefly; by majority, tests that ask different things count alike.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts, labels = list(wf.demo.SENTENCES) * 2, list(wf.demo.SENTENCE_LABELS) * 2
    >>> brief = {"epochs": 1, "guide_epochs": 1, "lambdas": [0.1]}
    >>> wf.attention_debate(model, texts, labels, tokenizer=tokenizer, permutations=10, **brief).show()
    """
    started = time.perf_counter()
    explainer = loaded_as(CoreExplainer, model, processor, attention_at)
    settings: dict[str, Any] = {"validation": validation, "batch_size": batch_size, "seed": seed}
    training = checked_options(retrained_attention, "retrained_attention", training)
    with explainer.borrowed():
        examples = examples_of(explainer, inputs, labels, **settings)
    order = torch.randperm(len(examples.validation), generator=torch.Generator().manual_seed(seed))
    held = [examples.at(examples.validation[place]) for place in sorted(order[:tested].tolist())]
    source = explainer.source(examples.inputs[held[0][0]]).select([number for _, number in held])
    exam = Exam(explainer, source, seed=seed, batch_size=batch_size, progress=progress)
    tests = jain_wallace(exam, permutations=permutations)
    copies = retrained_attention(explainer, inputs, labels, **settings, progress=progress, **training)
    cost = replace(copies.cost, seconds=time.perf_counter() - started)
    return AttentionDebate(tests, copies, seed, cost, copies.warnings)
