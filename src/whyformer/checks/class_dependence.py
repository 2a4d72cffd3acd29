"""Does the map depend on the class that it is said to explain?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from whyformer.checks.checkup import Finding, same_order
from whyformer.checks.distances import mean_known, rank_agreement
from whyformer.checks.exam import Exam
from whyformer.errors import NotOffered
from whyformer.evaluate.detectors import asks_each
from whyformer.types import Target

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
        logits = [exam.run(row).logits[0] for row in range(exam.size)]
    if exam.modality.objects and not asks_each(exam.modality, len(logits[0])):
        logits = [logits_C[:-1] for logits_C in logits]  # the last class means: no object
    if logits[0].shape[0] < 2:
        raise NotOffered("the model has a single output: there is no other class to explain.")
    rivals = []
    for row, explanation in enumerate(exam.explanations):
        others = logits[row].clone()
        others[explanation.target.index] = -math.inf
        rivals.append(Target(int(others.argmax()), position=explanation.target.position))
    against = exam.explain(target=rivals)
    pairs = list(zip(exam.explanations, against, strict=True))
    names = tuple((a.target.label or str(a.target.index), b.target.label or str(b.target.index)) for a, b in pairs)
    scores = list(zip(exam.scores(exam.explanations), exam.scores(against), strict=True))
    apart = tuple(float(np.abs(a - b).max() / max(1e-12, float(np.abs(a).max()))) for a, b in scores)
    return ClassDependence(exam.method.name, names, tuple(rank_agreement(a, b) for a, b in scores), apart)
