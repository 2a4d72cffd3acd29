"""Exam: a model with some inputs and the method that is checked; Finding and CheckUp: what checks return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from whyformer.engines.perturbation.game import cache_of, cached_file
from whyformer.errors import NotOffered, public
from whyformer.explainer import CoreExplainer
from whyformer.inputs.table_schema import Table
from whyformer.parameters import OneOf, checked
from whyformer.registry import Method, get_method
from whyformer.results.codec import Keyed, is_whole, read_piece, write_piece
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation, Target
from whyformer.run import Run
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.study import Study
from whyformer.views.report_view import checkup_page
from whyformer.views.view import view_of

LEVELS = ("ok", "note", "warning")


def same_order(rho: float) -> str:
    """Return a rank correlation with its scale."""
    return f"Spearman {rho:.2f}; 1: same order, 0: chance"


def how_far_apart(jsd: float) -> str:
    """Return the distance of two attention maps with its scale."""
    return f"JSD {jsd:.2f}; 0: same map, 0.69: no overlap"


@dataclass(frozen=True)
class Finding:
    """One finding of a check. ``warning``: the explanation is unreliable; ``note``: a limitation; ``ok``: passed."""

    level: str
    check: str
    title: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is not one of {', '.join(LEVELS)}")

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


RESULTS: dict[str, Any] = {}  # what each check returns; the module of ``wf.check``, which imports them all, enters it


def _results() -> dict[str, Any]:
    assert callable(public().check)
    return RESULTS


Results = Annotated[dict[str, Any], Keyed(_results)]


@dataclass(frozen=True, eq=False)
class CheckUp(Result):
    """Findings as sentences, and the values of each check.

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
        """Return the findings of one level: "warning", "note" or "ok"."""
        return tuple(f for f in self.findings if f.level == level)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all checks, as sentences."""
        return tuple(str(f) for f in self.of("warning"))

    @property
    def title(self) -> str:
        """Method, model and number of inputs, on one line."""
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        return f"Check-up of {self.method} on {self.model}, {inputs}"

    def attach(self, explanation: Explanation, notes: bool = False) -> Explanation:
        """Return the explanation with the warnings (and notes) of this check-up added to its warnings."""
        said = [*self.warnings, *(str(f) for f in self.of("note") if notes)]
        new = [f"check-up: {text}" for text in said]
        return explanation.replace(warnings=(*explanation.warnings, *(n for n in new if n not in explanation.warnings)))

    def to_frame(self) -> DataFrame:
        """Return one row per finding."""
        names = ["level", "check", "title", "text"]
        return dataframe([[getattr(finding, name) for name in names] for finding in self.findings], columns=names)


view_of.register(CheckUp, checkup_page)

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
        self.track = session.track
        asked |= {"expanded": self.target, "raw": self.raw is None, "classes": self.modality.read.classes}
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
                "answers of different lengths cannot be batched here, because the decoder has no mask: pass the "
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

    @cached_property
    def scalar(self) -> str:
        """Log-odds order units as the probability does, and do not saturate; "logit" where the model has none."""
        regression = getattr(getattr(self.explainer.model, "config", None), "problem_type", None) == "regression"
        if regression or self.modality.mean.outcome == "similarity":
            return "logit"
        with self.borrowing():
            first = self.session.run([0], alone=True)
            _ = first.logits  # shows whether they are probabilities
        return "logit" if first.gives_probabilities else "log_odds"

    @property
    def decision(self) -> str:
        """The value whose changes are reported: the probability, or the output where the model has none."""
        return "probability" if self.scalar == "log_odds" else "logit"

    def run(self, row: int, own_answer: bool = False) -> Run:
        """One input without neighbours and padding. own_answer: of what the model predicts, whatever is explained."""
        return self.session.run([row], alone=True, scalar=self.scalar, own_answer=own_answer)

    def explain(self, inputs: Any = None, *, target: Any = None, **settings: Any) -> list[Explanation]:
        """Return one explanation per input, by the method under examination unless ``method`` says otherwise."""
        asked: dict[str, Any] = {"method": self.wanted, "seed": self.seed, "progress": False}
        asked |= {"target": self.target if target is None else target, "batch_size": self.session.asked_size}
        if "method" not in settings:
            asked |= self.options
        explanations = self.explainer.explain(self.inputs if inputs is None else inputs, **(asked | settings))
        if any(not isinstance(e, Explanation) for e in explanations):
            raise NotOffered("the changed inputs have several explanations each (detections, generated tokens).")
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


def ordinary(explanation: Explanation) -> Array:
    """The scores of units that are not special; of all where there are no others."""
    chosen = ~np.array(explanation.units.special, bool)
    scores = explanation.scores.astype(float)
    return scores[chosen] if chosen.any() else scores
