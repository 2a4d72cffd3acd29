"""What is known about families by name: a data table, consulted where the flow of data leaves a choice.

To support another family, add a row here (and a builder in tests/models).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from whyformer.brief import writable
from whyformer.errors import BadInput, shown

# Model argument -> the stream its positions belong to. Masks, type ids and positions carry no stream.
INPUT_STREAMS: dict[str, str] = {
    "input_ids": "text",
    "inputs_embeds": "text",
    "pixel_values": "image",
    "visual_feats": "image",  # LXMERT: one vector per box
    "visual_embeds": "image",  # VisualBERT
    "image_embeds": "image",
    "decoder_input_ids": "target",
    "decoder_inputs_embeds": "target",
    "input_features": "audio",  # Whisper's spectrogram
    "input_values": "audio",  # Wav2Vec2's waveform
}

# Words of module paths -> stream, for attention whose input is known by neither name nor flow. The first hit counts.
PATH_STREAMS: dict[str, str] = {
    "vision_model": "image",
    "vision_tower": "image",
    "vision_encoder": "image",
    "visual": "image",
    "visual_model": "image",
    "visn_self_att": "image",
    "r_layers": "image",
    "text_model": "text",
    "text_encoder": "text",
    "language_model": "text",
    "lang_self_att": "text",
    "query_tokens": "queries",
    "qformer": "queries",
    "decoder": "target",
}

# How the names of a vision-language model's arguments begin that hold images and videos, and facts about them: their
# rows are images or patches, not tokens.
MEDIA = ("pixel_", "image_", "video_", "num_frames", "second_per_grid", "num_soft_tokens")


def is_media(name: str) -> bool:
    """Return whether an argument holds images or videos, or facts about them."""
    return name.startswith(MEDIA)


def is_video(name: str) -> bool:
    """Return whether an argument that holds media is about videos (second_per_grid_ts: Qwen2.5-VL)."""
    return "video" in name or name.startswith("second_per_grid")


# What the encoder's stream is called once a decoder reads it.
ENCODER_STREAMS: dict[str, str] = {"text": "source", "audio": "source", "sequence": "source"}

# Argument names that hold vectors of boxes, and where those boxes are in the picture.
BOX_FEATURES: dict[str, str | None] = {"visual_feats": "visual_pos", "visual_embeds": None}

# Models whose own output lacks the logits: the part of them that makes them.
LOGITS_INSIDE: dict[str, str] = {"BlipForQuestionAnswering": "text_decoder"}

TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel)$")  # how transformers ends the name of a class that has a head


def task_of(model: object) -> str:
    """The name of the model's class that says what it is for: its own, or the nearest it inherits from. "" for none."""
    kind = type(model)
    if kind not in _TASKS:
        _TASKS[kind] = next((cls.__name__ for cls in kind.__mro__ if TASK.search(cls.__name__)), "")
    return _TASKS[kind]


_TASKS: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def continues_text(model: Any) -> bool:
    """Return whether the model's class is named as one that predicts the next token of a text.

    Vision-language models (LLaVA, Qwen-VL, Gemma 3) are among them: they read a text, with or without images. BLIP and
    BLIP-2, whose main input is an image, are not.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    task, main = task_of(model), getattr(model, "main_input_name", None)
    return task.endswith(("ForCausalLM", "LMHeadModel")) or (
        task.endswith("ForConditionalGeneration") and main == "input_ids"
    )


def says_tokens(model: Any) -> bool:
    """Return whether the classes are tokens of the vocabulary, at every position of one text."""
    masked = task_of(model).endswith("ForMaskedLM")
    return continues_text(model) or (masked and not getattr(model.config, "is_encoder_decoder", False))


SIDES = ("a", "b")  # of two texts that are compared
LATE = "ForRetrieval"  # ColPali and its kin compare two inputs token by token


def encodes_texts(model: Any) -> bool:
    """Return whether a model is a SentenceTransformer, or looks like one: it returns a vector of a text."""
    return callable(getattr(model, "encode", None)) and getattr(model, "tokenizer", None) is not None


def cross_encoder(model: Any) -> Any:
    """Return the classifier inside a CrossEncoder of sentence_transformers; None for any other model."""
    if not any(kind.__name__ == "CrossEncoder" for kind in type(model).__mro__):
        return None
    inner = getattr(model, "model", None)
    return inner if task_of(inner).endswith("ForSequenceClassification") else None


def compares_texts(model: Any, inputs: Any) -> bool:
    """Return whether the input is a pair of texts for an encoder without a head."""
    if isinstance(inputs, dict):
        return {f"{side}_input_ids" for side in SIDES} <= set(inputs)
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    if not (isinstance(first, tuple) and len(first) == 2 and all(isinstance(p, str) for p in first)):
        return False
    if encodes_texts(model):
        return True
    if task_of(model).endswith(LATE):
        return True
    writes = getattr(model, "can_generate", None)
    return type(model).__name__.endswith("Model") and not (callable(writes) and writes())


# Entries of a model's config: a file that users may have edited, so types are checked


def number_of(config: Any, name: str) -> int | None:
    """Return a whole number of the config, the first of several (``eos_token_id``); None where it has none."""
    try:
        value = getattr(config, name, None)
    except Exception:  # some are computed from others (num_labels from id2label), which may be of a wrong kind
        return None
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_rotary(config: Any) -> bool:
    """Return whether positions are computed as rotations, of which any number are possible."""
    # rope_parameters: transformers 5; the others are names of the base frequency before that
    names = ("rope_parameters", "rope_theta", "global_rope_theta", "rotary_emb_base")
    return any(getattr(config, name, None) for name in names)


def class_names(model: Any) -> dict[int, str]:
    """Return ``config.id2label``; files have its numbers as texts."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if names is None:
        return {}
    advice = "Set model.config.id2label = {0: 'first name', 1: …}, or None for classes without names."
    if not isinstance(names, Mapping):
        raise BadInput(f"config.id2label of the model is {shown(names)}, not a dict of names by class number. {advice}")
    classes = {}
    for key, name in names.items():
        try:
            classes[int(key)] = writable(str(name))
        except (TypeError, ValueError, OverflowError):
            raise BadInput(
                f"config.id2label of the model has the key {shown(key)}, which is no class number. {advice}"
            ) from None
    return classes
