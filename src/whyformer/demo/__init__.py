"""Small trained models that ship with the package, so that examples and tests need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whyformer.errors import MissingExtra

SENTIMENT = Path(__file__).parent / "sentiment"


def load_sentiment() -> tuple[Any, Any]:
    """The shipped sentiment classifier (negative, positive) and its tokenizer; demo/sentiment/MODEL_CARD.md."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "hf", "the demo model") from None
    model = AutoModelForSequenceClassification.from_pretrained(SENTIMENT)
    return model.eval(), AutoTokenizer.from_pretrained(SENTIMENT)
