"""The explained scalar: a log-probability is computed from the logits by this library, and is no part of the model.

Changed gradients (AttnLRP, CP-LRP) hold inside the model. They start at the logits z with the plain gradient of the
scalar s, so that the relevance that is propagated is Σ_j z_j ∂s/∂z_j. Of a logit that is the logit itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor


class Answer:
    """What the model answered in one pass, (B, …), and whether the scalar is being computed from it now."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None  # None: the logits as they are
        self.ended = False


_ANSWER: ContextVar[Answer | None] = ContextVar("answer", default=None)


@contextmanager
def answered() -> Iterator[Answer]:
    """Keep the answer from which code inside computes the scalar."""
    answer = Answer()
    token = _ANSWER.set(answer)
    try:
        yield answer
    finally:
        _ANSWER.reset(token)


@contextmanager
def scalar_from(tensor_B: Tensor) -> Iterator[None]:
    """Around the code that computes the scalar from a model's answer: its functions need no relevance rule."""
    answer = _ANSWER.get()
    if answer is None:
        yield
        return
    answer.tensor, answer.ended = tensor_B, True
    try:
        yield
    finally:
        answer.ended = False


def in_model() -> bool:
    """Whether a function that is called now may be one of the model's."""
    answer = _ANSWER.get()
    return answer is None or not answer.ended
