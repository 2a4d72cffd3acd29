"""Small trained models that ship with the package, so that examples and tests need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whyformer.errors import MissingExtra
from whyformer.files.loading import quiet

SENTIMENT = Path(__file__).parent / "sentiment"
SENTENCES = (  # to try it on
    "I like the movie",
    "She hates the book",
    "This is so boring",
    "I cannot wait for next time",
    "You look extremely confused",
)
SENTENCE_LABELS = ("positive", "negative", "negative", "positive", "negative")


def load_sentiment() -> tuple[Any, Any]:
    """The shipped sentiment classifier (negative, positive) and its tokenizer; demo/sentiment/MODEL_CARD.md."""
    try:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "hf", "the demo model") from None
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(SENTIMENT, trust_remote_code=False)
        return model.eval(), AutoTokenizer.from_pretrained(SENTIMENT, trust_remote_code=False)


def load_pets() -> tuple[Any, Any]:
    """The shipped ViT (cat, dog) and its image processor; demo/pets/MODEL_CARD.md. Faces to try it: demo/faces.py."""
    return _load_image("pets")


def load_textures() -> tuple[Any, Any]:
    """The shipped ViT of shapes and textures and its image processor; demo/textures/MODEL_CARD.md, demo/pictures.py."""
    return _load_image("textures")


def _load_image(name: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ImportError:
        raise MissingExtra("transformers", "hf", "the demo model") from None
    folder = Path(__file__).parent / name
    with quiet():
        model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=False)
        return model.eval(), AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)


def load_adult() -> tuple[Any, Any]:
    """The shipped FT-Transformer (income <=50K, >50K) and its Table; demo/adult/MODEL_CARD.md, rows: demo/census.py."""
    from whyformer.demo.census import load_adult

    return load_adult()
