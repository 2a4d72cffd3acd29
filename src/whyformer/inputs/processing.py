"""Calls of tokenizers and processors: every raw input passes here, so that one without an encoding is refused once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whyformer.errors import BadInput, reading


def processed(processor: Any, *inputs: Any, **how: Any) -> Any:
    """Call a tokenizer, image processor or feature extractor.

    Tokenizers reject text that is no Unicode with a TypeError about something else, and a processor of the user's own
    may raise anything: both become a BadInput.
    """
    for text in (*inputs, how.get("text"), how.get("text_target")):
        _require_characters(text)
    advice = "Call it on the same input by yourself: if that fails too, change the input or the processor."
    with reading(f"{type(processor).__name__} could not encode the input", advice):
        return processor(*inputs, **how)


def _require_characters(text: str | Sequence[Any] | None) -> None:
    """Refuse half of a surrogate pair: it comes from text that was cut or decoded wrongly, and has no encoding."""
    if isinstance(text, (list, tuple)):
        for part in text:
            _require_characters(part)
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the text has half a character at position {error.start} ({text[error.start]!r}, one half of a surrogate "
            "pair), which has no encoding: decode the text again from its bytes, or replace such halves, "
            "text.encode('utf-8', 'replace').decode()."
        ) from None
