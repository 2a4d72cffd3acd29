"""wf.attention_debate: the experiments for and against attention as an explanation, on labelled examples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch

from whyformer.checks.exam import Exam, Finding
from whyformer.checks.jain_wallace import AttentionTest, JainWallace, jain_wallace
from whyformer.checks.retrained import RetrainedAttention, examples_of, retrained_attention
from whyformer.evidence import ENOUGH
from whyformer.explainer import CoreExplainer
from whyformer.parameters import BatchSize, Count, Limits, Seed, checked, checked_options
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run.session import loaded_as
from whyformer.views.debate_view import debate_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

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
        lead = votes["ok"] - votes["warning"]
        return "supported" if lead > 0 else "not supported" if lead < 0 else "mixed"

    def findings(self) -> tuple[Finding, ...]:
        """The verdict and the results of the experiments, as sentences."""
        votes, level = self.votes, {"supported": "ok", "not supported": "warning"}.get(self.verdict, "note")
        counts = {"for": votes["ok"], "against": votes["warning"], "undecided": votes["note"]}
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        text = f"{self.verdict.capitalize()}: {VERDICTS[self.verdict]} ({told})."
        numbers = {name: float(count) for name, count in counts.items()}
        rest = [f for f in self.copies.findings() if f.title == "Other seeds"]
        return Finding(level, "attention_debate", "Verdict", text, numbers), *self._tests(), *rest

    def _tests(self) -> list[Finding]:
        """The findings that count, with the level of a note where too few inputs were tested."""
        few = f"{len(self.tests.inputs)} held-out inputs are too few for a verdict ({ENOUGH} needed)."
        found = list(self.tests.findings())
        if len(self.tests.inputs) < ENOUGH:
            found = [replace(f, level="note", text=f"{f.text} {few}") for f in found]
        return [*found, *(f for f in self.copies.findings() if f.title != "Other seeds")]

    def rows(self) -> list[dict[str, Any]]:
        names = "units tau_gradient p_gradient tau_loo p_loo entropy max_attention median_change jsd change".split()
        return [
            {"input": test.title, "class": name} | {n: getattr(test, n) for n in names}
            for name, tests in self.classes.items()
            for test in tests
        ]

    def to_frame(self) -> pd.DataFrame:
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
