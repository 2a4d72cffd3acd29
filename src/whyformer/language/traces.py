"""Traces of agents: what drove each thought, tool call and answer of a run, and where that came from.

A step is what the model wrote: a thought, a tool call (name and arguments), or an answer. Its sources are the sentences
that the model read before it, and the steps before it. For step t, of tokens T(t), and source i:

    s_ti = explanation of Σ_{k in T(t)} log(p_k / (1 - p_k)), summed over the tokens of i
    d_ti = max(0, s_ti) / Σ_j max(0, s_tj)
    o_ti = d_ti + Σ_u d_tu o_ui  for sources i that were read, over steps u before t

d are shares: what drove the step, in the model's own text or in what it read. o are origins: shares of steps are handed
on to what drove them. Both sum to 1. Log-odds, and only sources that speak for the step, as in hops.py. A step that no
source speaks for keeps its share.

Then the sources with the largest origins are left out, each by itself: drops are the falls of the log-probability of
all that the model wrote in that message up to the end of the step, thoughts before it included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from whyformer.errors import BadInput
from whyformer.inputs.decoding import TOOL_CALL
from whyformer.language.citations import SUPPORT
from whyformer.parameters import Limits, checked
from whyformer.results.codec import Float64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.views.several import trace_view
from whyformer.views.view import view_of

UNITS = ("sentence", "document", "message")
Number = Annotated[int, Limits(0, 1_000_000)]


@dataclass(frozen=True)
class TraceStep:
    """What the model wrote: a thought, a tool call or an answer. ``source``: its number among the sources."""

    kind: str
    text: str
    message: int
    source: int
    name: str = ""  # of the tool


@dataclass(frozen=True)
class TraceSource:
    """A possible source of a step: a sentence (document, message) that was read, or an earlier step.

    role: of its message, or the kind of step. step: its number, of a step. call: the step that called the tool whose
    result it is in.
    """

    role: str
    text: str
    message: int  # -1: a definition of a tool
    document: int = 0
    name: str = ""  # of the tool
    step: int | None = None
    call: int | None = None


@dataclass(frozen=True)
class Driver:
    """A source of a step with its share; ``drop``: the fall of the log-probability without it, NaN if not measured."""

    source: int
    role: str
    text: str
    message: int
    share: float
    drop: float = math.nan
    step: int | None = None


@dataclass(frozen=True)
class Cause:
    """The texts that caused a tool call, the most likely first, and the effect of leaving out the first.

    drop: the fall of the log-probability of what the model wrote in this message up to the call. factor: how many times
    as likely it is without the text. confirmed: the drop is above the level at which wf.cite takes a source for a
    support (log 1.5).
    """

    step: int
    call: str
    drivers: tuple[Driver, ...]

    @property
    def text(self) -> str:
        """The text with the largest share."""
        return self.drivers[0].text

    @property
    def drop(self) -> float:
        return self.drivers[0].drop

    @property
    def factor(self) -> float:
        return math.exp(-self.drop)

    @property
    def confirmed(self) -> bool:
        return self.drop > SUPPORT


@dataclass(frozen=True, eq=False)
class Trace(Result):
    """What drove each step of an agent's run: scores, and from them shares and origins, steps × sources.

    Axes: T steps, N sources. NaN: scores of sources that are not before the step; drops that were not measured.

    >>> run = [{"role": "user", "content": "what is the capital of france?"}]
    >>> run += [{"role": "assistant", "content": "the capital of france is paris."}]
    >>> trace = wf.trace("language-model", run)
    >>> trace.show()
    """

    what: ClassVar[str] = "trace"
    axes: ClassVar[dict[str, str]] = {
        "steps": "T", "sources": "N", "scores": "TN", "drops": "TN", "log_probabilities": "T", "outside": "T",
    }  # fmt: skip
    last: ClassVar[tuple[str, ...]] = ("scores", "drops")

    steps: tuple[TraceStep, ...]
    sources: tuple[TraceSource, ...]
    scores: Float64
    drops: Float64
    log_probabilities: Float64  # of what the model wrote in the message of a step, up to its end
    outside: Float64  # the sum of scores of tokens in no source: the chat template, and the step itself
    method: str
    units: str = "sentence"
    model: str = ""
    top: int = 1
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()

    @property
    def shares(self) -> Float64:
        """(T, N) what drove each step. Rows sum to 1, or to 0 if no source speaks for the step."""
        return shares_of(self.scores)

    @property
    def origins(self) -> Float64:
        """(T, N) the same with shares of steps handed on to what drove these: sources that were read."""
        return handed_on(self.shares, [step.source for step in self.steps])

    @property
    def calls(self) -> tuple[int, ...]:
        """The steps that are tool calls."""
        return tuple(number for number, step in enumerate(self.steps) if step.kind == TOOL_CALL)

    @checked
    def why(self, step: Number, *, origins: bool = False) -> tuple[Driver, ...]:
        """Return the sources of a step with a share above 0, the largest first; ``origins``: those that were read."""
        row = (self.origins if origins else self.shares)[self._known(step)]
        order = np.argsort(-row, kind="stable")
        return tuple(self._driver(step, int(i), float(row[i])) for i in order if row[i] > 0)

    @checked
    def chain(self, step: Number) -> tuple[Driver, ...]:
        """Walk back from a step: its first source, the first source of that if it is a step, and so on to one that
        was read. A tool result leads on to the call that it answers."""
        path: list[Driver] = []
        here: int | None = self._known(step)
        while here is not None and (drivers := self.why(here)):
            path.append(drivers[0])
            source = self.sources[drivers[0].source]
            here = source.call if source.step is None else source.step
            if source.call is not None:
                path.append(self._driver(source.call, self.steps[source.call].source, math.nan))
        return tuple(path)

    @checked
    def cause(self, call: Number | None = None) -> Cause:
        """Return the texts that caused a tool call (a number of ``calls``; None: the last), by origins.

        The first of them was left out in turn: see ``drop`` of the result.
        """
        if not self.calls:
            raise BadInput(
                "the run has no tool call: messages of the assistant have no tool_calls. Use why(step) for its "
                f"{len(self.steps)} other steps."
            )
        number = self.calls[-1] if call is None else self._known(call)
        if number not in self.calls:
            known = ", ".join(map(str, self.calls))
            raise BadInput(f"step {number} is of kind {self.steps[number].kind}, not a tool call: calls are {known}.")
        drivers = self.why(number, origins=True)
        if not drivers:
            raise BadInput(f"no source speaks for step {number}: its cause cannot be found. Try another method=.")
        return Cause(number, self.steps[number].text, drivers)

    def _known(self, step: int) -> int:
        if step >= len(self.steps):
            raise BadInput(f"step {step}: the run has {len(self.steps)} steps, 0 to {len(self.steps) - 1}.")
        return step

    def _driver(self, step: int, source: int, share: float) -> Driver:
        one = self.sources[source]
        return Driver(source, one.role, one.text, one.message, share, float(self.drops[step, source]), one.step)

    @property
    def table(self) -> list[dict[str, Any]]:
        """Return one row per step and source before it."""
        shares, origins = self.shares, self.origins
        return [
            {
                "step": number,
                "kind": step.kind,
                "written": step.text,
                "source": index,
                "role": source.role,
                "text": source.text,
                "score": float(self.scores[number, index]),
                "share": float(shares[number, index]),
                "origin": float(origins[number, index]),
                "drop": float(self.drops[number, index]),
            }
            for number, step in enumerate(self.steps)
            for index, source in enumerate(self.sources)
            if not np.isnan(self.scores[number, index])
        ]

    def to_frame(self) -> DataFrame:
        """Return the table as a pandas DataFrame."""
        return dataframe(self.table)


def shares_of(scores_TN: Float64) -> Float64:
    """Divide the scores that speak for a step by their sum; NaN is 0."""
    speaking = np.maximum(np.nan_to_num(scores_TN), 0.0)
    total = speaking.sum(1, keepdims=True)
    return np.divide(speaking, total, out=np.zeros_like(speaking), where=total > 0)


def handed_on(shares_TN: Float64, source_of: Sequence[int]) -> Float64:
    """Hand shares of steps on, the first step first. source_of: the source that each step is."""
    origins = shares_TN.copy()
    for number in range(len(origins)):
        for before in range(number):
            share = origins[number, source_of[before]]
            if share and origins[before].any():
                origins[number, source_of[before]] = 0.0
                origins[number] += share * origins[before]
    return origins


view_of.register(Trace, trace_view)
