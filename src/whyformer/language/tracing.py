"""Trace a run: each step is explained over the sources before it, and its first sources are left out in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from whyformer.errors import BadInput, MissingProcessor, NotOffered, TooLong, one_of, shown
from whyformer.explainer import CoreExplainer
from whyformer.inputs.decoding import FIELDS, THOUGHT, TOOL_CALL, Stretch
from whyformer.inputs.exchanges import Exchange, exchanges_of
from whyformer.inputs.modalities import Source
from whyformer.inputs.prompt import AskedModel
from whyformer.inputs.tokens import require_next_token
from whyformer.inputs.units import PromptText, Span, members, prompt_of
from whyformer.language.agent_runs import (
    ANSWER,
    DEFINITION,
    RESULTS,
    AgentRun,
    RunPart,
    documents_in,
    parts_of,
    places_of,
    read_run,
    sentences_in,
)
from whyformer.language.citations import METHOD
from whyformer.language.traces import UNITS, Trace, TraceSource, TraceStep, handed_on, shares_of
from whyformer.options import Memory, Request
from whyformer.parameters import BatchSize, Count, Seed, checked
from whyformer.registry import get_method
from whyformer.results.types import Cost
from whyformer.run.session import loaded_as, tracker

SILENT = "no source speaks for step {}, {}: it has no shares."
WRITTEN = {THOUGHT, TOOL_CALL, ANSWER}
Key = tuple[int, int, int]  # part of the run, document in it, and source in the document


@dataclass(frozen=True)
class Turn:
    """One message of the model after those before it, as the model reads them."""

    number: int  # of the message
    source: Source
    exchange: Exchange
    steps: dict[int, Span]  # part → its characters
    sources: dict[Key, Span]

    def stretch(self, part: int, whole: bool = False) -> Stretch:
        """Return the tokens of a step, with equal weights; ``whole``: from the begin of the message on."""
        start, end = self.steps[part]
        inside = [i for i, (a, b) in enumerate(self.tokens) if a < end and b > start]
        if whole:
            return Stretch(self.exchange, len(self.exchange.prompt), inside[-1] + 1)
        return Stretch(self.exchange, inside[0], inside[-1] + 1, (1.0,) * (inside[-1] + 1 - inside[0]))

    def before(self, part: int) -> dict[Key, Span]:
        """Return the sources before a step that have a token of their own."""
        earlier = {key: span for key, span in self.sources.items() if span[1] <= self.steps[part][0]}
        groups = members(self.tokens[: self.stretch(part).first], list(earlier.values()))
        return {key: span for (key, span), tokens in zip(earlier.items(), groups, strict=True) if tokens}

    @property
    def tokens(self) -> list[Span]:
        """The characters of each token."""
        assert self.exchange.spans is not None
        return [(chars.start, chars.end) for chars in self.exchange.spans]


@checked
def trace(
    model: Any,
    run: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    method: str | None = None,
    units: str = "sentence",
    top: Count = 1,
    batch_size: BatchSize | None = None,
    memory: Memory = "auto",
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> Trace:
    """Find what drove each thought, tool call and answer of an agent's run.

    run: messages in the usual chat format (``tool_calls``, role "tool", ``reasoning_content``), a dict with messages
    and tools, or the path of a JSON file with either. method (and its options): one explanation per step. units:
    sources are sentences, documents (paragraphs or JSON elements of tool results) or messages. The ``top`` sources of
    each step are then left out in turn, and the fall of the log-probability is measured.

    >>> run = [{"role": "user", "content": "what is the capital of france?"}]
    >>> run += [{"role": "assistant", "content": "the capital of france is paris."}]
    >>> wf.trace("language-model", run).why(0)
    """
    one_of("units", units, UNITS)
    agent = read_run(run)
    parts = parts_of(agent)
    explainer = loaded_as(CoreExplainer, model, processor)
    if isinstance(explainer.model, AskedModel):
        raise NotOffered("a trace needs the tokens of the model: give a model that runs here, not a server.")
    method = METHOD if method is None else method
    get_method(method).checked(options)
    settings: dict[str, Any] = {"batch_size": batch_size, "memory": memory, "seed": seed, "progress": False}
    request = Request(**settings, methods=(method,), rest=options)
    left_out = Request(**settings, methods=("occlusion",), rest={"replace": "delete"})
    warnings: list[str] = []
    with explainer.borrowed():
        turns = [_turn(explainer, agent, parts, number, units, warnings) for number in agent.written]
        steps = [(turn, part) for turn in turns for part in turn.steps]
        keys = sorted({key for turn in turns for key in turn.sources} | {(part, 0, 0) for _, part in steps})
        place = {key: number for number, key in enumerate(keys)}
        source_of = [place[part, 0, 0] for _, part in steps]
        tracked = tracker(progress)(steps, "tracing")
        measured, silent = _measured(explainer, tracked, place, source_of, (request, left_out), top)
    warnings += [SILENT.format(row, shown(parts[steps[row][1]].text)) for row in silent]
    return Trace(
        steps=tuple(
            TraceStep(parts[part].kind, _text(turns, parts, (part, 0, 0)), turn.number, source, parts[part].name)
            for (turn, part), source in zip(steps, source_of, strict=True)
        ),
        sources=_sources(turns, parts, keys, [part for _, part in steps]),
        **measured,
        method=method,
        units=units,
        model=type(explainer.model).__name__,
        top=top,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _measured(
    explainer: CoreExplainer,
    steps: Iterable[tuple[Turn, int]],
    place: Mapping[Key, int],
    source_of: Sequence[int],
    requests: tuple[Request, Request],
    top: int,
) -> tuple[dict[str, Any], list[int]]:
    """Return the scores and drops of all steps as a trace has them, and the steps that no source speaks for.

    requests: how a step is explained, and how sources are left out.
    """
    scores, drops = (np.full((len(source_of), len(place)), np.nan) for _ in range(2))
    likely, outside = np.zeros(len(source_of)), np.zeros(len(source_of))
    costs: list[Cost] = []
    silent = []
    for row, (turn, part) in enumerate(steps):
        before = turn.before(part)
        numbers, spans = [place[key] for key in before], list(before.values())
        why = explainer.answer(turn.source, replace(requests[0], span=turn.stretch(part), units=spans))
        scores[row, numbers] = why.scores
        outside[row] = why.checks.get("outside_units", 0.0)
        origins = handed_on(shares_of(scores[: row + 1]), source_of[: row + 1])[row, numbers]
        # What the message itself holds before the step is part of what becomes less likely: it stays.
        origins[[end > turn.exchange.begin for _, end in spans]] = 0.0
        best = [int(i) for i in np.argsort(-origins, kind="stable")[:top] if origins[i] > 0]
        silent += [] if np.nanmax(why.scores, initial=0.0) > 0 else [row]
        away = [spans[i] for i in best] or spans[:1]
        without = explainer.answer(turn.source, replace(requests[1], span=turn.stretch(part, whole=True), units=away))
        drops[row, [numbers[i] for i in best]] = without.scores[: len(best)]
        likely[row] = without.value
        costs += [why.cost, without.cost]
    measured = {"scores": scores, "drops": drops, "log_probabilities": likely, "outside": outside}
    return measured | {"cost": Cost.of_all(costs)}, silent


def _turn(
    explainer: CoreExplainer, run: AgentRun, parts: Sequence[RunPart], number: int, units: str, warnings: list[str]
) -> Turn:
    """Return the turn of a message: the run written out by the chat template, and its parts there."""
    prompt, written = _written_out(explainer, run, number, warnings)
    source = replace(explainer.source([(prompt, written)]), single=True)
    batch = source.batch()
    require_next_token(source.modality.mean, batch, "traces are")
    try:
        exchange = exchanges_of(source.modality.read, batch)[0]
    except TooLong as error:
        raise TooLong(f"the run is too long at messages[{number}]: {error}") from error
    if exchange.spans is None:
        raise NotOffered("the positions of the tokens in the text are not known: give a fast tokenizer.")
    steps: dict[int, Span] = {}
    sources: dict[Key, Span] = {}
    text = str(prompt) + written
    for index, start, end in places_of(parts, prompt, written, number):
        part = parts[index]
        if part.kind in WRITTEN:
            sources[index, 0, 0] = start, end
            if part.message == number:
                steps[index] = start, end
            continue
        for document, span in enumerate(_documents(text, (start, end), part, units)):
            inner = sentences_in(text, span) if units == "sentence" and part.kind != DEFINITION else [span]
            sources |= {(index, document, order): one for order, one in enumerate(inner)}
    for index, part in enumerate(parts):
        if part.message == number and index not in steps:
            if part.kind != THOUGHT:
                raise NotOffered(
                    f"messages[{number}]: the chat template does not write {shown(part.name or part.text)}, so this "
                    f"{part.kind} cannot be traced. Use a tokenizer whose chat template supports it."
                )
            warnings.append(_unwritten(number))
    return Turn(number, source, exchange, steps, sources)


def _documents(text: str, span: Span, part: RunPart, units: str) -> list[Span]:
    if units == "message" or part.kind == DEFINITION:
        return [span]
    return [(span[0] + start, span[0] + end) for start, end in documents_in(text[slice(*span)], part.kind)]


def _unwritten(number: int) -> str:
    return f"messages[{number}]: the chat template does not write its thoughts, so they are left out."


def _written_out(explainer: CoreExplainer, run: AgentRun, number: int, warnings: list[str]) -> tuple[PromptText, str]:
    """Return what the model read before one of its messages, and the message."""
    processor = explainer.processor
    if processor is None:
        raise MissingProcessor("a run is written out by the chat template of a tokenizer: give processor=tokenizer.")
    template = getattr(processor, "chat_template", None)
    write = partial(
        prompt_of,
        tokenizer=getattr(processor, "tokenizer", processor),
        template=template if isinstance(template, str) else None,
        tools=run.tools or None,
    )
    messages = list(run.messages[: number + 1])
    thoughts = {name for name, kind in FIELDS.items() if kind == THOUGHT}
    try:
        result = write(messages)
    except NotOffered:  # a template that knows tool calls, but no thoughts beside them
        if not thoughts & messages[-1].keys() or "tool_calls" not in messages[-1]:
            raise
        bare = {key: value for key, value in messages[-1].items() if key not in thoughts}
        result = write([*messages[:-1], bare])
        warnings.append(_unwritten(number))
    if not isinstance(result, tuple) or not result[1].strip():
        raise BadInput(f"messages[{number}]: the chat template writes nothing for this message of the assistant.")
    return result


def _text(turns: Sequence[Turn], parts: Sequence[RunPart], key: Key) -> str:
    """Return the text of a source: calls by name and arguments, others as they were read."""
    part = parts[key[0]]
    if part.kind == TOOL_CALL and part.name:
        return f"{part.name}({part.text})"
    if part.kind in WRITTEN:
        return part.text
    turn = next(turn for turn in turns if key in turn.sources)
    assert turn.exchange.text is not None
    return turn.exchange.text[slice(*turn.sources[key])]


def _sources(
    turns: Sequence[Turn], parts: Sequence[RunPart], keys: Sequence[Key], steps: Sequence[int]
) -> tuple[TraceSource, ...]:
    """Describe the sources. A tool result belongs to the call of its id, else to the next call without a result."""
    numbers = {part: row for row, part in enumerate(steps)}
    called: dict[int, int | None] = {}
    waiting: list[int] = []
    for index, part in enumerate(parts):
        if part.kind == TOOL_CALL and index in numbers:
            waiting.append(index)
        elif part.kind in RESULTS:
            by_id = [call for call in waiting if part.call_id and parts[call].call_id == part.call_id]
            unnamed = [call for call in waiting if not part.call_id or not parts[call].call_id]
            match = next(iter(by_id or unnamed), None)
            called[index] = None if match is None else numbers[match]
            if match is not None and not any(p.message == part.message for p in parts[index + 1 : index + 2]):
                waiting.remove(match)
    return tuple(
        TraceSource(
            parts[key[0]].kind,
            _text(turns, parts, key),
            parts[key[0]].message,
            key[1],
            parts[key[0]].name,
            numbers.get(key[0]),
            called.get(key[0]),
        )
        for key in keys
    )
