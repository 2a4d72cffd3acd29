"""Every exception whyformer raises on purpose. Each message says what was wrong and what to do next.

WhyformerError
├── BadInput                 what the user passed cannot be used (also a ValueError)
│   ├── UnknownName          a method, option, label or tensor name that does not exist (with close matches)
│   ├── TooLong              more units than the model takes
│   └── MissingProcessor     raw inputs without a tokenizer or image processor
├── NotOffered               this method cannot explain this model or input, and why
├── MissingExtra             an optional library is not installed (also an ImportError)
├── NonFinite                the model's output holds NaN or infinity
└── CaptureError             the attention of the model could not be read in full
    ├── NothingCaptured      no attention happened at all
    ├── PartlyCaptured       some attention, or some exchange between positions, was not seen
    ├── AmbiguousLayout      batch and heads cannot be told apart
    └── NotOverUnits         attention runs over channels, windows or compressed keys, not over the units
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class WhyformerError(Exception):
    """Root of all whyformer errors."""


class BadInput(WhyformerError, ValueError):
    """What the user passed cannot be used."""


class UnknownName(BadInput):
    """A name that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[object], hint: str = "") -> None:
        choices = [str(k) for k in known]
        close = difflib.get_close_matches(str(name), choices, n=3, cutoff=0.5)
        shown = f"Did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
        listing = ", ".join(choices[:40]) + (", …" if len(choices) > 40 else "")
        super().__init__(f"unknown {kind} {name!r}. {shown}Known: {listing}.{' ' + hint if hint else ''}")


class TooLong(BadInput):
    """More units than the model takes."""


class MissingProcessor(BadInput):
    """Raw inputs without a tokenizer or image processor."""


class NotOffered(WhyformerError):
    """This method cannot explain this model or input."""


class MissingExtra(WhyformerError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, why: str) -> None:
        super().__init__(f"{why} needs {library}: pip install 'whyformer[{extra}]'")


class NonFinite(WhyformerError):
    """The model's output holds NaN or infinity."""


class CaptureError(WhyformerError):
    """The attention of the model could not be read in full."""


class NothingCaptured(CaptureError):
    """No attention happened at all."""


class PartlyCaptured(CaptureError):
    """Some attention, or some exchange between positions, was not seen."""


class AmbiguousLayout(CaptureError):
    """Batch and heads cannot be told apart."""


class NotOverUnits(CaptureError):
    """Attention does not run over the units of the input."""


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Check an option against its domain."""
    if value not in choices:
        raise UnknownName(f"value of {name}", value, choices)
