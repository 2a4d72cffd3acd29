"""What is compared: a question, the peer's code and ours, and how numbers, lines, time and memory are measured.

A side of a question is a function of the model and the inputs. It prepares once and returns ``call``, which returns
scores; the code is what a user writes, and its lines are counted.
"""

from __future__ import annotations

import inspect
import statistics
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.timing import Contenders, finished, growth, rounds_of

Row = dict[str, Any]
Side = Callable[..., Callable[[], Any]]
AGREE = 1e-4  # of the largest score
FRAME = ("def call(", "return call", "#")  # lines of a side that a user does not write


@dataclass(frozen=True)
class Question:
    """One question to a peer and to whyformer."""

    about: str
    subject: str  # a name in SUBJECTS: model and inputs whose numbers are compared
    theirs: Side
    ours: Side
    differs: str = ""  # why the numbers are not the same, where the formulas are not
    timed: str = ""  # another subject, for time and memory: a larger model
    counted: Callable[..., Any] | None = None  # where the peer's code is, if not in ``theirs``
    patches: bool = False  # the peer changes classes for good: ours runs before it, not in turn with it


def ours(scores: Callable[[Any], Any] = lambda why: why.scores, **options: Any) -> Side:
    """Our side of most questions: one call of explain, on a text with its tokenizer or on pixels."""

    def side(model: Any, *asked: Any) -> Callable[[], Any]:
        import whyformer as wf

        tensors = len(asked) == 1
        given = ({"pixel_values": asked[0]},) if tensors else (asked[1], asked[0])

        def call() -> Any:
            why = wf.explain(model, *given, **options)
            return scores(why[0] if tensors else why)

        return call

    side.lines = 2  # type: ignore[attr-defined]  # the import and the call
    return side


def lines_of(side: Callable[..., Any]) -> int:
    """Return how many lines of a side a user writes: without its signature, ``call``, comments and blank lines."""
    if hasattr(side, "lines"):
        return int(side.lines)
    lines = [line.strip() for line in textwrap.dedent(inspect.getsource(side)).splitlines()]
    body = lines[next(at for at, line in enumerate(lines) if line.endswith(":")) + 1 :]
    return sum(bool(line) and not line.startswith(FRAME) for line in body)


def array(scores: Any) -> Any:
    """Scores of any library as a flat array of float64."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().float().numpy()
    return np.asarray(scores, float).ravel()


def difference(theirs: Any, ours: Any) -> float:
    """Return the largest difference of two lists of scores, as a share of the peer's largest score."""
    a, b = array(theirs), array(ours)
    if a.shape != b.shape:
        raise ValueError(f"the peer returned {a.size} scores, whyformer {b.size}")
    largest = float(np.abs(a).max())
    if not largest:
        raise ValueError("all scores of the peer are 0")
    return float(np.abs(a - b).max()) / largest


def rank_correlation(theirs: Any, ours: Any) -> float | None:
    """Spearman's correlation; None of a single score."""
    from scipy.stats import spearmanr

    a, b = array(theirs), array(ours)
    return float(spearmanr(a, b).statistic) if len(a) > 1 else None


def megabytes(call: Callable[[], Any], device: str) -> float:
    """Memory that a warm call adds at most: of the GPU's allocator, else of the resident size of the process."""
    import torch

    if not device.startswith("cuda"):
        return growth(call)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def rounds_for(contenders: Contenders, seconds: float) -> int:
    """At least 3 rounds, and as many more as fit into ``seconds``."""
    started = time.perf_counter()
    for run in contenders.values():
        run()
    return max(3, min(30, int(seconds / (time.perf_counter() - started))))


def summed_up(took: dict[str, list[float]]) -> Row:
    """Return the fastest and the median round of both, and the ratio."""
    pairs = zip(took["theirs"], took["ours"], strict=False)
    return {
        "rounds": min(len(values) for values in took.values()),
        "seconds": {who: min(values) for who, values in took.items()},
        "median": {who: statistics.median(values) for who, values in took.items()},
        "ratio": statistics.median(a / b for a, b in pairs),  # above 1: whyformer is faster
    }


def answered(question: Question, subjects: Callable[[str], tuple[Any, ...]], device: str, seconds: float) -> Row:
    """Ask both sides one question, and return the row of the report."""
    row: Row = {"about": question.about, "subject": question.subject, "differs": question.differs}
    row["lines"] = {"theirs": lines_of(question.counted or question.theirs), "ours": lines_of(question.ours)}
    row["timed"] = question.timed or question.subject
    sides = {"ours": question.ours, "theirs": question.theirs}  # a peer may change the model: it comes last
    # CPU seconds of the process: other work on the machine does not count.
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    groups = [{who: side} for who, side in sides.items()] if question.patches else [sides]
    scores: dict[str, Any] = {}
    took: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for group in groups:
        scores |= {who: array(side(*subjects(question.subject))()) for who, side in group.items()}
        calls = {who: finished(side(*subjects(row["timed"])), device) for who, side in group.items()}
        took |= rounds_of(calls, rounds_for(calls, seconds / len(groups)), clock)
        memory |= {who: megabytes(call, device) for who, call in calls.items()}
    row |= summed_up(took) | {"megabytes": memory, "clock": clock.__name__}
    row["difference"] = difference(scores["theirs"], scores["ours"])
    row["rank correlation"] = rank_correlation(scores["theirs"], scores["ours"])
    return row


def told(error: BaseException, most: int = 160) -> str:
    """An error in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:most]}{'…' if len(words) > most else ''}"
