"""Small trained models to try things on. Their files are the package whyformer-models: nothing is downloaded.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.explain(model, wf.demo.SENTENCES[0], tokenizer).show()
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from whyformer.errors import require
from whyformer.files import quiet

SENTENCES = (  # to try it on
    "I like the movie",
    "She hates the book",
    "This is so boring",
    "I cannot wait for next time",
    "You look extremely confused",
)
SENTENCE_LABELS = ("positive", "negative", "negative", "positive", "negative")


def model_folder(name: str) -> Path:
    """Where the files of a shipped model are: "sentiment", "pets", "textures" or "adult"."""
    require("whyformer_models", why="a shipped model")
    from importlib.resources import files

    return Path(str(files("whyformer_models") / name))


def load_sentiment() -> tuple[Any, Any]:
    """The shipped sentiment classifier (negative, positive) and its tokenizer; MODEL_CARD.md in its folder."""
    require("transformers", "whyformer_models", why="the shipped sentiment model")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = model_folder("sentiment")
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False)
        return model.eval(), AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def load_pets() -> tuple[Any, Any]:
    """The shipped ViT (cat, dog) and its image processor; MODEL_CARD.md in its folder, faces: demo/pictures.py."""
    return _load_image("pets")


def load_textures() -> tuple[Any, Any]:
    """The shipped ViT of shapes and textures and its image processor; MODEL_CARD.md in its folder, demo/pictures.py."""
    return _load_image("textures")


def _load_image(name: str) -> tuple[Any, Any]:
    require("transformers", "PIL", "whyformer_models", why=f"the shipped model of {name}")
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    folder = model_folder(name)
    with quiet():
        model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=False)
        return model.eval(), AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)


def load_adult() -> tuple[Any, Any]:
    """Load the shipped FT-Transformer (income <=50K, >50K) and its Table; demo/census.py has rows to try it on."""
    require("whyformer_models", "rtdl_revisiting_models", why="the shipped model of a table")
    from whyformer.tables.table_results import load_model

    return load_model(model_folder("adult"))


def __getattr__(name: str) -> Any:
    """Import ``wf.demo.census`` and ``wf.demo.pictures`` when they are first used."""
    if name in {"census", "pictures"}:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
