"""Why the prediction rather than the next classes: what a page shows when one of those is clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whyformer.errors import WhyformerError
from whyformer.types import Explanation

NEXT = 2  # classes that the prediction is set against
Asked = tuple[tuple[Explanation, ...], ...]


def contrasts(ask: Callable[[list[Any]], Sequence[Explanation]], explanations: Sequence[Explanation]) -> Asked | None:
    """Per input one explanation for each of the next classes, by ``ask(targets)`` of all inputs.

    None where classes do not exclude each other, and where there is no contrast of this method or scalar.
    """
    following = [[] if e.prediction.independent else list(e.prediction.next or ())[:NEXT] for e in explanations]
    answers: list[list[Explanation]] = [[] for _ in explanations]
    for place in range(max(map(len, following), default=0)):
        targets = [(None, choices[place].index) if len(choices) > place else None for choices in following]
        try:
            asked = ask(targets)
        except WhyformerError:
            return None
        for number, aim in enumerate(targets):
            answers[number] += [] if aim is None else [asked[number]]
    return tuple(map(tuple, answers)) if any(answers) else None
