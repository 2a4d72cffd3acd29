"""Check attention sinks, dependence on the class, and whether all attention was captured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from whyformer.checks.attention_rows import mean_known, rank_agreement
from whyformer.checks.checkup import Finding, same_order
from whyformer.checks.exam import Exam, ordinary
from whyformer.errors import CaptureError, NotOffered
from whyformer.evaluate.games import asks_each
from whyformer.results.types import Target

# Sink tokens: how much of the attention, and of the map, sits on special tokens and the first position.

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
        text = (
            f"Special tokens and the first position get {self.scores:.0%} of the scores and are {self.expected:.0%} of "
            "the units."
        )
        if self.attention:
            most = int(np.argmax(self.attention))
            text += f" Of the model's attention they get {self.attention[most]:.0%} in layer {most}, where it is most."
        much = self.scores > MUCH
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


# Does the map depend on the explained class?

SAME = 1e-5  # relative difference below which two maps are the same
ALIKE = 0.9


@dataclass(frozen=True)
class ClassDependence:
    """Maps of the explained class beside those of another class: the prediction's strongest rival."""

    method: str
    classes: tuple[tuple[str, str], ...]
    spearman: tuple[float, ...]
    difference: tuple[float, ...]  # largest difference, relative to the largest score

    def findings(self) -> tuple[Finding, ...]:
        rho, difference = mean_known(self.spearman), max(self.difference)
        numbers = {"spearman": rho, "difference": difference}
        one, other = self.classes[0]
        title = "Other class"
        if difference < SAME:
            text = (
                f"{self.method} gives the same map for '{one}' and for '{other}': this map does not depend on the "
                "class. It shows where the model looked, not what speaks for this answer."
            )
            return (Finding("warning", "class_dependence", title, text, numbers),)
        if not math.isnan(rho) and rho > ALIKE:
            text = (
                f"The maps for '{one}' and '{other}' rank the units nearly alike ({same_order(rho)}): read it as what "
                "matters for telling them apart, not as what speaks for one of them."
            )
            return (Finding("note", "class_dependence", title, text, numbers),)
        text = f"The map changes with the class (between '{one}' and '{other}': {same_order(rho)})."
        return (Finding("ok", "class_dependence", title, text, numbers),)


def class_dependence(exam: Exam) -> ClassDependence:
    """Explain another class, too, and compare: the highest-scored one that is not the explained one.

    Misleads when: classes share their evidence; two maps may rightly be alike.
    """
    with exam.borrowing():
        logits = [exam.run(row).logits[0].clone() for row in range(exam.size)]
    if exam.modality.objects and not asks_each(exam.modality, len(logits[0])):
        logits = [logits_C[:-1] for logits_C in logits]  # the last class means: no object
    if logits[0].shape[0] < 2:
        raise NotOffered("the model has a single output: there is no other class to explain.")
    rivals = []
    for explanation, others in zip(exam.explanations, logits, strict=True):
        others[explanation.target.index] = -math.inf
        rivals.append(Target(int(others.argmax()), position=explanation.target.position))
    against = exam.explain(target=rivals)
    pairs = list(zip(exam.explanations, against, strict=True))
    names = tuple((a.target.label or str(a.target.index), b.target.label or str(b.target.index)) for a, b in pairs)
    scores = [(ordinary(a), ordinary(b)) for a, b in pairs]
    apart = tuple(float(np.abs(a - b).max() / max(1e-12, float(np.abs(a).max()))) for a, b in scores)
    return ClassDependence(exam.method.name, names, tuple(rank_agreement(a, b) for a, b in scores), apart)


@dataclass(frozen=True)
class CaptureAudit:
    """What was seen inside the model."""

    sites: int
    heads: int
    unclaimed: tuple[str, ...]
    leak: float
    leak_path: str
    compared: int  # places that the leak audit looked at
    trouble: str

    def findings(self) -> tuple[Finding, ...]:
        numbers = {"sites": float(self.sites), "unclaimed": float(len(self.unclaimed)), "leak": self.leak}
        numbers["compared"] = float(self.compared)
        findings = []
        if not self.sites:
            text = "No attention was seen in this model: methods that read attention cannot be used on it."
            return (Finding("warning", "capture_audit", "Capture", text, numbers),)
        if self.unclaimed:
            first = self.unclaimed[0]
            text = (
                f"{len(self.unclaimed)} softmaxes look like attention, and what they weigh was not found: {first}. "
                "Explanations by attention would leave them out."
            )
            findings.append(Finding("warning", "capture_audit", "Unclaimed softmaxes", text, numbers))
        if self.leak:
            text = (
                f"Positions exchange information outside the captured attention (seen at {self.leak_path}, a change of "
                f"{self.leak:.1e} where there should be none): attention maps are blind to part of the computation."
            )
            findings.append(Finding("warning", "capture_audit", "Leak", text, numbers))
        if self.trouble:
            findings.append(Finding("warning", "capture_audit", "Capture", self.trouble, numbers))
        if not findings:
            text = f"All {self.sites} attentions were seen ({self.heads} heads)"
            text += (
                f", and nothing passes between positions without them: {self.compared} places compared."
                if self.compared
                else "; whether something passes between positions without them takes more positions."
            )
            findings.append(Finding("ok", "capture_audit", "Capture", text, numbers))
        return tuple(findings)


def capture_audit(exam: Exam) -> CaptureAudit:
    """Are there softmaxes that nobody claimed, or ways around the captured attention?

    The audit forces every captured map to the identity, changes one position, and requires all others to stay exactly
    what they were (study/facts.py).

    Misleads when: an input has a single position: nothing can pass between positions there, and the audit is not run.
    """
    study = exam.study
    return CaptureAudit(
        len(study.sites),
        sum(site.heads for site in study.sites),
        study.unclaimed,
        study.leak.amount,
        study.leak.path,
        study.leak.checked,
        "" if study.trouble is None else str(study.trouble),
    )
