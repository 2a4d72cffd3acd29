"""Estimate the work of long commands, and print it before they start.

Passes are counted with the declared costs of methods and the sizes of checks; their time is measured on one batch.
Estimates are within a factor of about two: they are meant for the decision to wait or to ask for less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from whyformer.errors import WhyformerError

LONG = 10.0  # seconds from which a command is announced
COPIES = 16  # of one input: variants of an input run in batches
SLOW = 0.25  # seconds of one pass from which a batch is not tried


@dataclass(frozen=True)
class MeasuredWork:
    """The size of the inputs, the model and the evaluation of one input."""

    inputs: int
    units: int  # of the largest input that was looked at
    layers: int
    kind: str  # of the inputs
    seconds: float  # of one forward, in a batch

    def price(self, method: str | None) -> float:
        """Return the forwards of one explanation; a backward counts as two."""
        from whyformer.evaluate.candidate_pool import Rates, price_of
        from whyformer.registry import AUTO, default_method, get_method

        name = default_method(self.kind) if method is None or method == AUTO else method
        price = price_of(name, {}, self.units, Rates())
        return self.subsets(price) if get_method(name).specificity == "black box" else price

    def subsets(self, count: float) -> float:
        """Return how many different masked inputs there are among ``count``: short inputs have few."""
        return min(count, 2.0 ** min(self.units, 60))

    def evaluation(self, methods: Sequence[str]) -> float:
        """Return the forwards of comparing methods on one input: explanations, curves, and the greedy search."""
        curves = (len(methods) + 1) * 2 * self.units
        return sum(map(self.price, methods)) + self.subsets(self.units**2 + curves)

    def report(self, methods: Sequence[str]) -> float:
        """Return the forwards of a report on all inputs: methods are compared, and the best one is checked."""
        from whyformer.reports.report import CHECKED, USUAL_CHECKS, usual_methods

        checked = min(self.inputs, CHECKED) * self.checks(USUAL_CHECKS, None)
        return self.inputs * self.evaluation(methods or usual_methods(self.kind)) + checked

    def checks(self, names: Sequence[str], method: str | None) -> float:
        """Return the forwards of checks on one input."""
        one = self.price(method)
        sizes: dict[str, Callable[[], float]] = {  # the explanations that a check makes, and its own passes
            "faithfulness": lambda: one + self.subsets(11 * self.units),
            "class_dependence": lambda: one,
            "randomisation": lambda: (2 * (self.layers + 6) + 4) * one + 20,  # about six modules besides the layers
            "invariance": lambda: 6 * one,
            "stability": lambda: 6 * one,
            "jain_wallace": lambda: 100 + self.units + 3 * 5 * 60,  # shuffles, and steps of five maps with gradients
            "serrano_smith": lambda: 7 * self.units,
        }
        return one + sum(sizes[name]() for name in names if name in sizes)


def measured(explainer: Any, inputs: Sequence[Any]) -> MeasuredWork:
    """Return the work sizes of a model: time one pass of the largest input, in a batch where that is quick."""
    largest = max(inputs, key=len) if isinstance(inputs[0], str) else inputs[0]
    with explainer.session([largest]) as session:
        run = session.run([0])
        _ = run.value_B  # the first pass also examines the model
        seconds = _timed(session, [0])
        units, layers, kind = len(run.units[0]), len(run.study.sites), session.modality.kind
    if seconds < SLOW:
        with explainer.session([largest] * COPIES, batch_size=COPIES) as session:
            seconds = _timed(session, list(range(COPIES))) / COPIES
    return MeasuredWork(len(inputs), units, layers, kind, seconds)


def _timed(session: Any, rows: list[int]) -> float:
    """Return the seconds of the faster of two passes: the first may wait for memory or another process."""
    seconds = []
    for _trial in range(2):
        started = time.perf_counter()
        _ = session.run(rows).value_B
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def announce(explainer: Any, inputs: Sequence[Any], forwards: Callable[[MeasuredWork], float], shorter: str) -> None:
    """Print the estimated work to stderr if it is long; ``forwards``: of all inputs together."""
    try:
        work = measured(explainer, inputs)
        total = forwards(work)
    except WhyformerError:  # the command itself raises it, with its own advice
        return
    if total * work.seconds > LONG:
        typer.echo(f"About {_rounded(total):,} forwards, {_duration(total * work.seconds)}. {shorter}", err=True)


def _rounded(count: float) -> int:
    """Return the count with two digits, as far as an estimate is known."""
    size = 10 ** max(0, len(str(int(count))) - 2)
    return round(count / size) * size


def _duration(seconds: float) -> str:
    return f"{_rounded(seconds)} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
