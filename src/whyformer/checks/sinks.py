"""Sink tokens: how much of the attention, and of the map, sits on special tokens and the first position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from whyformer.checks.checkup import Finding
from whyformer.checks.distances import mean_known
from whyformer.checks.exam import Exam
from whyformer.errors import CaptureError, NotOffered

MUCH = 0.5


@dataclass(frozen=True)
class Sinks:
    """Shares, mean over inputs."""

    method: str
    scores: float  # share of the map's total |score| on special tokens and the first position
    expected: float  # the share of the units that these are
    attention: tuple[float, ...]  # per layer: share of attention, mean over heads and real rows

    def findings(self) -> tuple[Finding, ...]:
        numbers = {"scores": self.scores, "expected": self.expected, "attention": mean_known(self.attention)}
        attention = ""
        if self.attention:
            most = int(np.argmax(self.attention))
            attention = (
                f" Of the model's attention they get {self.attention[most]:.0%} in layer {most}, where it is most."
            )
        much = self.scores > MUCH
        text = (
            f"Special tokens and the first position get {self.scores:.0%} of the scores and are {self.expected:.0%} of "
            f"the units.{attention}"
        )
        if much:
            text += " Read the ranking of the others among themselves; what they get together is the smaller part."
        return (Finding("note" if much else "ok", "sinks", "Sink tokens", text, numbers),)


def sinks(exam: Exam) -> Sinks:
    """Share of attention and of scores on special tokens ([CLS], [SEP], …) and on the first position.

    Misleads when: [CLS] is where the answer is read: its own score is then part of the story, not waste.
    """
    shares, expected = [], []
    for explanation in exam.explanations:
        sink = np.array(explanation.units.special, bool)
        sink[0] = True
        total = float(np.abs(explanation.scores).sum())
        shares.append(float(np.abs(explanation.scores[sink]).sum()) / total if total else math.nan)
        expected.append(float(sink.mean()))
    layers: list[list[float]] = []
    with exam.borrowing():
        try:
            layers = [_attention(exam, row) for row in range(exam.size)]
        except (NotOffered, CaptureError):  # black-box methods can be checked on models whose attention is not seen
            layers = []
    attention = tuple(float(np.mean(values)) for values in zip(*layers, strict=True))
    return Sinks(exam.method.name, mean_known(shares), mean_known(expected), attention)


def _attention(exam: Exam, row: int) -> list[float]:
    run = exam.run(row)
    shares = []
    keep = run.keep_BN[0]
    sink = run.special_BN[0].clone()
    sink[int(keep.nonzero()[0])] = True
    for site in run.record().sites:
        rows = keep[site.first_query : site.first_query + site.attention_BHQK.shape[2]]
        weights = site.attention_BHQK[0].float()[:, rows]
        shares.append(float(weights[..., sink].sum() / weights.sum()))
    return shares
