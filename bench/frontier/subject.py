"""What methods are judged on: inputs of one model, and what it says of them when some of their parts are away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

import whyformer as wf
from bench.known_truth.scoring import mass, pointing
from whyformer.engines.perturbation.players import only_top, without_top

Array = np.ndarray[Any, Any]
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
FALLS = ("comprehensiveness", "sufficiency")
TRUTH = ("pointing", "mass")  # where it is known which parts are the cause
BETTER = {"comprehensiveness": 1, "sufficiency": -1, "pointing": 1, "mass": 1}


@dataclass(frozen=True)
class Row:
    """One method: passes per input, and a number per input and measure."""

    name: str
    forwards: float
    backwards: float
    values_IM: Array
    measures: tuple[str, ...] = field(default=FALLS)

    @property
    def passes(self) -> float:
        return self.forwards + self.backwards

    def part(self, count: int) -> Array:
        """(I, count) the first measures."""
        return self.values_IM[:, :count]


class Subject(ABC):
    """Inputs of one model. P counts the parts of an input that can be away, in the order of their units."""

    name: str  # of the table
    made_of: str  # what the inputs are, in words
    options: ClassVar[dict[str, Any]] = {}  # of every explanation
    masking: ClassVar[dict[str, Any]] = {}  # replace and hold, the same for methods and evaluation

    def __init__(self, explainer: wf.Explainer, count: int) -> None:
        self.explainer, self.count = explainer, count

    @abstractmethod
    def inputs(self, rows: Sequence[int]) -> Any:
        """Some of the inputs, as ``explain`` takes them."""

    @abstractmethod
    def values(self, number: int, present_VP: Array) -> Array:
        """(V,) what the model says of an input of which only these parts are there."""

    @abstractmethod
    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        """The scores of those parts."""

    def further(self, count: int) -> Any:
        """Other inputs of the same kind, to learn from."""
        raise SystemExit(f"{self.name}: there are no further inputs to learn from.")

    def learned(self, forwards: int, linear: bool, seed: int) -> wf.Learned:
        """An explanation method that was learned from further inputs, 8 masks each."""
        options = {**self.options, **self.masking, "forwards": forwards, "linear": linear, "seed": seed}
        return self.explainer.learn(self.further(forwards // 8 + 50), **options, progress=False)

    def targets(self, rows: Sequence[int]) -> Any:
        return None

    def cause_P(self, number: int) -> Array | None:
        """The parts that decide, where that is known."""
        return None

    @property
    def measures(self) -> tuple[str, ...]:
        return FALLS if self.cause_P(0) is None else (*FALLS, *TRUTH)

    def judged(self, number: int, scores_P: Array) -> list[float]:
        """Comprehensiveness and sufficiency of scores for one input; where the cause is known, pointing and mass."""
        present = [np.ones((1, len(scores_P)), bool), without_top(scores_P, SHARES), only_top(scores_P, SHARES)]
        values = self.values(number, np.concatenate(present))
        falls = values[0] - values[1:].reshape(2, len(SHARES)).mean(1)
        cause, size = self.cause_P(number), np.abs(scores_P)
        return [*falls.tolist(), *([] if cause is None else [pointing(size, cause), mass(size, cause)])]

    def row(self, name: str, scores: Sequence[Array], forwards: float, backwards: float) -> Row:
        values = [self.judged(number, scores_P) for number, scores_P in enumerate(scores)]
        return Row(name, forwards, backwards, np.array(values), self.measures)

    def explained(self, method: str, options: dict[str, Any]) -> list[wf.Explanation]:
        everything = list(range(self.count))
        # One seed gives all inputs of a size the same random scores, which is no floor.
        groups = [[i] for i in everything] if method == "random" else [everything]
        result: list[wf.Explanation] = []
        for group in groups:
            given = {"method": method, "seed": group[0], "target": self.targets(group), "progress": False}
            result += self.explainer.explain(self.inputs(group), **given, **self.options, **options)
        return result

    def of_method(self, name: str, method: str, options: dict[str, Any]) -> Row:
        explained = self.explained(method, options)
        costs = [(e.cost.forwards, e.cost.backwards) for e in explained]
        scores = [self.scores_P(number, e) for number, e in enumerate(explained)]
        return self.row(name, scores, *np.mean(costs, 0).tolist())
