"""Words over many texts: what each is worth to a model, wherever it stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.results.codec import Float64, Int64
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.run.session import tracker
from whyformer.tables.table_results import ABOUT_95, Remarks
from whyformer.views.table_marks import corpus_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 160  # characters of an example


@dataclass(frozen=True, eq=False)
class CorpusExplanation(Result):
    """Scores of words over many texts: the mean over their occurrences, with 95 % limits.

    Words are taken without their case. ``examples`` are the texts in which each weighed most. Limits take
    occurrences for independent, which those inside one text are not quite.
    """

    what: ClassVar[str] = "corpus explanation"

    words: tuple[str, ...]  # from the largest mean size to the smallest
    counts: Int64  # occurrences
    mean: Float64
    low: Float64  # NaN for a single occurrence, which shows no spread
    high: Float64
    mean_size: Float64  # of absolute scores
    examples: tuple[str, ...]
    texts: int
    left_out: int  # words that occur too rarely
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""

    def ranked(self) -> list[tuple[str, float]]:
        """Words from the highest mean score to the lowest; ties keep their order."""
        return [(self.words[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per word."""
        names = ("counts", "mean", "low", "high", "mean_size")
        return dataframe(
            [
                {"word": word, **{n: getattr(self, n)[i] for n in names}, "example": self.examples[i]}
                for i, word in enumerate(self.words)
            ]
        )


@dataclass
class _Word:
    """One word's scores as they go along (Welford)."""

    count: int = 0
    mean: float = 0.0
    spread: float = 0.0
    size: float = 0.0
    most: float = -1.0
    example: str = ""

    def add(self, score: float, text: str) -> None:
        self.count += 1
        away = score - self.mean
        self.mean += away / self.count
        self.spread += away * (score - self.mean)
        self.size += (abs(score) - self.size) / self.count
        if abs(score) > self.most:
            self.most, self.example = abs(score), text

    @property
    def error(self) -> float:
        return float("nan") if self.count < 2 else ABOUT_95 * (self.spread / (self.count - 1) / self.count) ** 0.5


def explain_corpus(
    explainer: CoreExplainer,
    texts: Sequence[str],
    *,
    target: Any,
    step: int,
    least: int,
    progress: bool | None,
    **settings: Any,
) -> CorpusExplanation:
    """Explain many texts and average the scores of each word over its occurrences; only sums are kept."""
    started = time.perf_counter()
    words: dict[str, _Word] = {}
    remarks, names = Remarks("texts"), set()
    first: Explanation | None = None
    starts = list(range(0, len(texts), step))
    for start in tracker(progress)(starts, "explaining"):
        part = list(texts[start : start + step])
        aims = target[start : start + step] if isinstance(target, list) else target
        for text, explanation in zip(
            part, explainer.explain(part, target=aims, batch_size=step, progress=False, **settings), strict=True
        ):
            if not isinstance(explanation, Explanation):
                raise NotOffered("each text gives several explanations (generated tokens): words have no one score.")
            first = first or explanation
            names.add(str(explanation.target))
            remarks.add(explanation.warnings)
            for word, score in explanation.words():
                if word.strip():
                    words.setdefault(word.strip().casefold(), _Word()).add(score, text)
    assert first is not None
    often = sorted((w for w in words if words[w].count >= least), key=lambda w: -words[w].size)
    if not often:
        raise BadInput(f"no word occurs {least} times in {len(texts)} texts: give more texts, or a smaller least=.")
    known = [words[w] for w in often]
    mean, error = np.array([w.mean for w in known]), np.array([w.error for w in known])
    warnings = remarks.told(len(texts))
    if len(names) > 1 and target is None:
        warnings.append(
            "each text's own prediction was explained, and scores for different classes were averaged: pass target= to "
            "ask about one."
        )
    return CorpusExplanation(
        words=tuple(often),
        counts=np.array([w.count for w in known]),
        mean=mean,
        low=mean - error,
        high=mean + error,
        mean_size=np.array([w.size for w in known]),
        examples=tuple(w.example[:LONGEST] for w in known),
        texts=len(texts),
        left_out=len(words) - len(often),
        method=first.method,
        options={k: v for k, v in first.options.items() if first.changed is None or k in first.changed},
        target=next(iter(names)) if len(names) == 1 else "the prediction of each text",
        scalar=first.scalar,
        signed=first.signed,
        warnings=tuple(warnings),
        seconds=time.perf_counter() - started,
        model=first.model,
    )


view_of.register(CorpusExplanation, corpus_view)
