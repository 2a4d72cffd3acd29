"""What a model is asked with: its kind, the fields that a question about it has, and something to try it on."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.explainer import Explainer
from whyformer.extras import require
from whyformer.inputs.families import task_of
from whyformer.inputs.similarity import compares_texts
from whyformer.inputs.table_schema import Standardize, Table

# Of each kind, the fields of a question (question.py) that it takes, all of a row together.
TAKES: dict[str, tuple[tuple[str, ...], ...]] = {
    "text": (("text",),),
    "language": (("prompt",), ("text",)),
    "image": (("image",),),
    "table": (("row",),),
    "pair": (("image", "text"),),
    "similarity": (("text",),),
    "sound": (("sound",),),
    "detector": (("image",),),
}
PICTURES = ("image", "pair", "detector")
SENTENCE = "This is a sentence to try the model on."
OTHER_SENTENCE = "Here is another one."
PROMPT = "The capital of France is"
CAPTION = "a picture of many colours"
RATE = 16_000  # samples a second, where the processor does not say
Words = tuple[str, str]

# Models that read two texts, by how transformers ends their class: what each text is, and whether it can be missing.
SECOND: dict[str, Words] = {
    "QuestionAnswering": ("question", "text that holds the answer"),
    "MultipleChoice": ("question", "answers, one per line"),
}
MAY_HAVE_SECOND = "SequenceClassification"


def kind_of(explainer: Explainer, kind: str) -> str:
    """What a page asks with, from what the command line tells apart (cli/_model.py) and what the model is for."""
    task = task_of(explainer.model)
    if kind == "text" and task.endswith(("ForCausalLM", "LMHeadModel")):
        return "language"
    if kind == "text" and compares_texts(explainer.model, ("", "")):
        return "similarity"
    return "detector" if kind == "image" and task.endswith("ForObjectDetection") else kind


def second_of(explainer: Explainer, kind: str) -> tuple[Words, bool] | None:
    """The names of two texts, and whether the second has to be there; None for models of one text."""
    if kind == "similarity":
        return ("first text", "second text"), True
    if kind != "text":
        return None
    task = task_of(explainer.model).rpartition("For")[2]
    if task in SECOND:
        return SECOND[task], True
    return (("text", "second text"), False) if task == MAY_HAVE_SECOND else None


def rate_of(explainer: Explainer) -> int:
    """Samples a second that a model of sound wants."""
    extractor = getattr(explainer.processor, "feature_extractor", explainer.processor)
    return int(getattr(extractor, "sampling_rate", RATE))


def sample_of(explainer: Explainer, kind: str) -> Any:
    """Something to try a model on, of which nothing else is known."""
    if kind in ("text", "similarity"):
        second, task = second_of(explainer, kind), task_of(explainer.model)
        if second is None or not second[1]:
            hidden = getattr(explainer.processor, "mask_token", None) if task.endswith("MaskedLM") else None
            return SENTENCE if hidden is None else SENTENCE.replace("sentence", hidden)
        return (SENTENCE, [OTHER_SENTENCE, SENTENCE] if task.endswith("MultipleChoice") else OTHER_SENTENCE)
    if kind == "language":
        return PROMPT
    if kind == "table":
        return _row(explainer.processor)
    if kind == "sound":
        return _chirp(rate_of(explainer)), rate_of(explainer)
    return (_ramp(), CAPTION) if kind == "pair" else _ramp()


def _row(table: Table) -> dict[str, Any]:
    scaled = table.preprocess if isinstance(table.preprocess, Standardize) else None
    means = scaled.mean if scaled is not None else (0.0,) * len(table.numerical)
    numbers = {name: float(mean) for name, mean in zip(table.numerical, means, strict=True)}
    first = {name: values[0] for name, values in table.categorical.items()}
    return {name: numbers.get(name, first.get(name)) for name in table.columns}


def _ramp() -> Any:
    require("PIL", why="a picture to try a model on")
    from PIL import Image

    ramp = np.linspace(0, 255, 224, dtype=np.uint8)
    return Image.fromarray(
        np.stack([np.tile(ramp, (224, 1)), np.tile(ramp[:, None], (1, 224)), np.full((224, 224), 128, np.uint8)], -1)
    )


def _chirp(rate: int) -> np.ndarray[Any, Any]:
    """A second that rises from 200 to 1,000 Hz, loudest in its middle."""
    time = np.arange(rate, dtype=np.float32) / rate
    return (0.5 * np.sin(np.pi * time) * np.sin(2 * np.pi * (200 * time + 400 * time**2))).astype(np.float32)
