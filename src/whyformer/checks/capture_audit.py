"""Was all attention seen? The leak audit and the ledger of softmaxes, as findings."""

from __future__ import annotations

from dataclasses import dataclass

from whyformer.checks.checkup import Finding
from whyformer.checks.exam import Exam


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
    what they were (study/leak.py).

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
