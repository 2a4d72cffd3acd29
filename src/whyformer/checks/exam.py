"""Exam: a model with some inputs and the method under examination; checks ask it for runs and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.engines.perturbation.game import cache_of, cached_file
from whyformer.errors import NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.inputs.table_schema import Table
from whyformer.registry import Method, get_method
from whyformer.results.codec import is_whole, read_piece, write_piece
from whyformer.results.types import Explanation, Target
from whyformer.run import Run
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.study import Study

# Parameters that are in the names of files by what they came to (the batch, the description of the model), and those
# that change no number. Every other one is in all of the names.
RESOLVED = {"self", "explainer", "inputs", "batch_size", "progress", "cache"}


class Exam:
    """Inputs of a model and the method that explains them."""

    def __init__(
        self,
        explainer: CoreExplainer,
        inputs: Any,
        *,
        method: str | None = None,
        options: dict[str, Any] | None = None,
        target: Any = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: bool | None = None,
        cache: str | Path | None = None,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name not in RESOLVED}
        settings: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
        self.explainer, self.seed, self.options, self.wanted = copy(explainer), seed, options or {}, method
        self.explainer.advises = False
        self.borrowing = self.explainer.borrowed  # the model's lock, the model ready to be looked into
        with self.borrowing():
            self.session = session = Session(explainer, inputs, target=target, seed=seed, **settings)
            self.modality, self.step, self.batch = session.modality, session.step, session.batch
            # As the user gave them; None: tensors, or rows of a table, which are read once in whatever form they came.
            self.raw: list[Any] | None = list(session.source.raw) if session.source.whole is None else None
            self.inputs: Any = inputs if self.raw is None else self.raw
            if isinstance(explainer.processor, Table):
                self.inputs = dict(self.batch.tensors)
            if self.batch is not session.padded:
                self._expand()
            self.study: Study = session.study
        self.size = self.batch.size
        self.track = _one_bar(session.track)
        asked |= {"expanded": self.target, "raw": self.raw is None, "classes": self.modality.classes}
        self._folder, self._about = cache_of(cache, lambda: (explainer.question(), asked, self.batch.contents()))

    def cached(self, kind: Any, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Read a finished piece (a check, one input of it) from disk as ``kind``; else make and write it."""
        folder = self._folder
        path = None if folder is None else cached_file(folder, "check.json", about=self._about, key=key)
        if path is not None and is_whole(path):
            return read_piece(kind, path)
        made = make()
        if path is not None:
            write_piece(made, path)
        return made

    def each(self, kind: Any, key: tuple[Any, ...], one: Callable[[int], Any], label: str) -> tuple[Any, ...]:
        """What ``one`` returns for every input, each a piece of its own on disk; the model is borrowed meanwhile."""
        with self.borrowing():
            rows = self.track(range(self.size), label)
            return tuple(self.cached(kind, (*key, row), partial(one, row)) for row in rows)

    @property
    def target(self) -> Any:
        """What was asked for: one for all inputs, or one per input."""
        return self.session.target

    def _expand(self) -> None:
        """One row per explanation: where an input gives several (detections, tokens of an answer), each is checked."""
        batch = self.batch
        if any("written" in facts for facts in batch.encodings):
            raise NotOffered(
                "answers of different lengths cannot be told apart here, since the decoder takes no mask: pass the "
                "tensors of one prefix (decoder_input_ids)."
            )
        positions: Sequence[int | None] = batch.positions or [None] * batch.size
        wants = self.target if isinstance(self.target, list) else [self.target] * batch.size
        targets = [
            Target(t, position=p) if isinstance(t, int) else self.session.run([row]).targets[0]
            for row, (t, p) in enumerate(zip(wants, positions, strict=True))
        ]
        self.session.target = targets
        self.raw, self.inputs = None, {**batch.tensors, **batch.constants}

    def run(self, row: int, scalar: str = "log_odds", own_answer: bool = False) -> Run:
        """One input without neighbours and padding. own_answer: of what the model predicts, whatever is explained."""
        # Log-odds order units as the probability does, and do not saturate. A regression has none.
        if getattr(getattr(self.explainer.model, "config", None), "problem_type", None) == "regression":
            scalar = "logit"
        return self.session.run([row], alone=True, scalar=scalar, own_answer=own_answer)

    def explain(
        self, inputs: Any = None, *, explainer: CoreExplainer | None = None, target: Any = None, **settings: Any
    ) -> list[Explanation]:
        """One explanation per input, by the method under examination unless ``method`` says otherwise."""
        asked: dict[str, Any] = {"method": self.wanted, "seed": self.seed, "batch_size": self.step, "progress": False}
        asked |= {"target": self.target if target is None else target}
        if "method" not in settings:
            asked |= self.options
        explanations = (explainer or self.explainer).explain(
            self.inputs if inputs is None else inputs, **(asked | settings)
        )
        if any(not isinstance(e, Explanation) for e in explanations):
            raise NotOffered("other inputs give several explanations each (detections, generated tokens) here.")
        return list(explanations)

    @cached_property
    def explanations(self) -> list[Explanation]:
        return list(self.cached(tuple[Explanation, ...], ("explanations",), lambda: tuple(self.explain())))

    @property
    def method(self) -> Method:
        return get_method(self.explanations[0].method)

    @property
    def targets(self) -> list[Any]:
        """What the explanations explained: named, so that it stays the same where predictions change."""
        return [e.target for e in self.explanations]


def options_of_tokens(options: Mapping[str, Any], units: Any) -> dict[str, Any]:
    """Options for a check-up, which is of tokens: the number of a sentence that is held would be that of a token."""
    hold = options.get("hold")
    parts = [hold] if hold is None or isinstance(hold, (str, int)) else hold
    of_both = units == "token" or not any(isinstance(part, int) for part in parts)
    return {name: value for name, value in options.items() if name != "hold" or of_both}


def _one_bar(track: Callable[[Sequence[Any], str], Any]) -> Callable[[Sequence[Any], str], Any]:
    """A tracker that shows the outermost of nested progress bars: terminals draw one at a time."""
    busy = False

    def tracked(steps: Sequence[Any], label: str) -> Any:
        bar = steps if busy else track(steps, label)
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
    """The scores of units that are not special; of all where there are no others."""
    chosen = ~np.array(explanation.units.special, bool)
    scores = explanation.scores.astype(float)
    return scores[chosen] if chosen.any() else scores
