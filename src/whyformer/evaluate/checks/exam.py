"""Exam: a model with some inputs and the method under examination; checks ask it for runs and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import BATCH_SIZE, Explainer
from whyformer.progress import tracker
from whyformer.registry import Method, get_method
from whyformer.run import Run
from whyformer.study import Study, hidden_padding, study_of
from whyformer.subjects.base import Batch
from whyformer.subjects.choose import are_tensors, is_single
from whyformer.subjects.columns import Table
from whyformer.subjects.text import TextSubject
from whyformer.types import Explanation

Array = np.ndarray[Any, Any]


class Exam:
    """Inputs of a model and the method that explains them."""

    def __init__(
        self,
        explainer: Explainer,
        inputs: Any,
        *,
        method: str | None = None,
        options: dict[str, Any] | None = None,
        target: Any = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> None:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
        self.explainer, self.inputs, self.seed = explainer, inputs, seed
        self.step, self.options, self.target = batch_size or BATCH_SIZE, options or {}, target
        self.wanted = method
        self.raw: list[Any] | None = None  # as the user gave them; None: tensors
        if not isinstance(explainer.processor, Table) and not are_tensors(inputs):
            self.raw = [inputs] if is_single(inputs) else list(inputs)
            self.inputs = self.raw
        self.subject, batch, _ = explainer.prepare(self.inputs)
        if isinstance(explainer.processor, Table):  # rows in any form are read once
            self.inputs = dict(batch.tensors)
        with self.borrowing():
            self.batch: Batch = hidden_padding(self.subject, batch)
            self.study: Study = study_of(self.subject, self.batch)[0]
        self.size = self.batch.size
        if isinstance(target, list) and len(target) != self.size:
            raise BadInput(f"{len(target)} targets for {self.size} inputs: give one target, or one per input.")
        self.track = one_bar(tracker(progress))

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """The model's lock, the model ready to be looked into."""
        with self.explainer.borrowed():
            yield

    # One input alone: no neighbours, no padding at its end

    def alone(self, row: int) -> Batch:
        one = self.batch.select([row])
        keep = one.keep_BN
        if not isinstance(self.subject, TextSubject) or keep is None or self.subject.several:
            return one
        width, used = keep.shape[1], int(keep[0].nonzero()[-1]) + 1
        tensors = {k: v[:, :used] if v.ndim == 2 and v.shape[1] == width else v for k, v in one.tensors.items()}
        return replace(one, tensors=tensors, keep_BN=keep[:, :used])

    def run(self, row: int, scalar: str = "log_odds") -> Run:
        """One input, to be looked into. Log-odds order units as the probability does, and do not saturate."""
        target = [self.target[row]] if isinstance(self.target, list) else self.target
        return Run(
            self.subject,
            self.alone(row),
            self.study,
            target=target,
            scalar=scalar,
            seed=self.seed,
            batch_size=self.step,
        )

    # Explanations by the method under examination

    def explain(
        self, inputs: Any = None, *, explainer: Explainer | None = None, target: Any = None, **how: Any
    ) -> list[Explanation]:
        """One explanation per input, by the method under examination unless ``method`` says otherwise."""
        asked = {"method": self.wanted, "seed": self.seed, "batch_size": self.step, "progress": False}
        asked |= {"target": self.target if target is None else target}
        if "method" not in how:
            asked |= self.options
        found = (explainer or self.explainer).explain(self.inputs if inputs is None else inputs, **(asked | how))
        if any(not isinstance(e, Explanation) for e in found):
            raise NotOffered("this input gives several explanations (detections, generated tokens): check one target.")
        return list(found)

    @cached_property
    def explanations(self) -> list[Explanation]:
        return self.explain()

    @property
    def method(self) -> Method:
        return get_method(self.explanations[0].method)

    @property
    def targets(self) -> list[Any]:
        """What the explanations explained: named, so that it stays the same where predictions change."""
        return [e.target for e in self.explanations]

    def scores(self, explanations: list[Explanation]) -> list[Array]:
        """The scores of units that are not special; of all where there are no others."""
        return [ordinary(e) for e in explanations]


def one_bar(track: Callable[[Sequence[Any], str], Any]) -> Callable[[Sequence[Any], str], Any]:
    """A tracker that shows the outermost of bars inside each other: terminals draw one at a time."""
    busy = False

    def tracked(steps: Sequence[Any], label: str) -> Any:
        return steps if busy else shown(steps, label)

    def shown(steps: Sequence[Any], label: str) -> Any:
        bar = track(steps, label)
        return steps if bar is steps else held(bar)

    def held(bar: Any) -> Iterator[Any]:
        nonlocal busy
        busy = True
        try:
            yield from bar
        finally:
            busy = False

    return tracked


def ordinary(explanation: Explanation) -> Array:
    chosen = ~np.array(explanation.units.special, bool)
    scores = explanation.scores.astype(float)
    return scores[chosen] if chosen.any() else scores


def title_of(explanation: Explanation) -> str:
    """The input in one short line."""
    from whyformer.views.explained import title_of as line

    return line(explanation)
