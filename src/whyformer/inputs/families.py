"""What is known about families by name: a data table, consulted where the flow of data leaves a choice.

To support another family, add a row here (and a builder in tests/models).
"""

from __future__ import annotations

import re

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

# What the encoder's stream is called once a decoder reads it.
ENCODER_STREAMS: dict[str, str] = {"text": "source", "audio": "source", "sequence": "source"}

# Argument names that hold vectors of boxes, and where those boxes are in the picture.
BOX_FEATURES: dict[str, str | None] = {"visual_feats": "visual_pos", "visual_embeds": None}

# Models whose own output lacks the logits: the part of them that makes them.
LOGITS_INSIDE: dict[str, str] = {"BlipForQuestionAnswering": "text_decoder"}

TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel)$")  # how transformers ends the name of a class that has a head


def task_of(model: object) -> str:
    """The name of the model's class that says what it is for: its own, or the nearest it inherits from. "" for none."""
    names = (cls.__name__ for cls in type(model).__mro__)
    return next((name for name in names if TASK.search(name)), "")
