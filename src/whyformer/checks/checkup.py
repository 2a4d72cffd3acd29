"""CheckUp: the findings of all checks, to be read, drawn, saved and attached to explanations."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from whyformer.parameters import OneOf, checked
from whyformer.results.codec import Keyed
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.views.report_view import checkup_page
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("ok", "note", "warning")


def same_order(rho: float) -> str:
    """A rank correlation, with what its ends are."""
    return f"Spearman {rho:.2f}, where 1 is the same order and 0 is chance"


def how_far_apart(jsd: float) -> str:
    """The distance of two attention maps, with what its ends are."""
    return f"JSD {jsd:.2f}, where 0 is the same map and 0.69 one with nothing in common"


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. ``warning``: doubt the explanation; ``note``: know this; ``ok``: looked, fine."""

    level: str
    check: str
    title: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is none of {', '.join(LEVELS)}")

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


# The module is named in a text, since every check imports this one for its findings.
Results = Annotated[dict[str, Any], Keyed(lambda: import_module("whyformer.checks.check").RESULTS)]


@dataclass(frozen=True, eq=False)
class CheckUp(Result):
    """Findings in plain words, and the numbers behind them by check.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> checkup = wf.check(model, "I like the movie", tokenizer, checks=["class_dependence"])
    >>> checkup.findings
    """

    what: ClassVar[str] = "check-up"

    model: str
    method: str
    inputs: int
    findings: tuple[Finding, ...]
    results: Results = field(default_factory=dict)  # by check: its frozen result
    seed: int = 0
    seconds: float = 0.0

    @checked
    def of(self, level: Annotated[str, OneOf(*LEVELS)]) -> tuple[Finding, ...]:
        """The findings of one level: "warning", "note" or "ok"."""
        return tuple(f for f in self.findings if f.level == level)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be known before the explanations are believed, in sentences."""
        return tuple(str(f) for f in self.of("warning"))

    @property
    def title(self) -> str:
        """Method, model and number of inputs, on one line."""
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        return f"Check-up of {self.method} on {self.model}, {inputs}"

    def attach(self, explanation: Explanation, notes: bool = False) -> Explanation:
        """The explanation with the warnings (and notes) of this check-up under "What to doubt"."""
        said = [*self.warnings, *(str(f) for f in self.of("note") if notes)]
        new = [f"check-up: {text}" for text in said]
        return explanation.replace(warnings=(*explanation.warnings, *(n for n in new if n not in explanation.warnings)))

    def to_frame(self) -> pd.DataFrame:
        """One row per finding."""
        names = ["level", "check", "title", "text"]
        return dataframe([[getattr(finding, name) for name in names] for finding in self.findings], columns=names)


view_of.register(CheckUp, checkup_page)
