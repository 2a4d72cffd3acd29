"""What the installed transformers has: tests are written for version 5, and pass with 4 too (``make test-lowest``)."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest

VERSION = version("transformers")
BEFORE_FIVE = int(VERSION.partition(".")[0]) < 5

# Before version 5, a model does not take images as its vision encoder returns them (docs/guide/vision_language.md).
images_in_prompts = pytest.mark.skipif(BEFORE_FIVE, reason="images in prompts need transformers 5")
# Before version 5, a layer calls each expert by itself.
experts_at_once = pytest.mark.skipif(BEFORE_FIVE, reason="experts are called one by one before transformers 5")
tiny_models = pytest.mark.skipif(BEFORE_FIVE, reason="bench.tiny_models reads configurations of transformers 5")

# Where a ViT keeps its parts: version 5 has moved them.
VIT_LAYERS = "vit.encoder.layer" if BEFORE_FIVE else "vit.layers"
_OLD = ("attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense")
_NEW = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
VIT_ATTENTION = _OLD if BEFORE_FIVE else _NEW  # queries, keys, values, output
VIT_MLP = ("intermediate.dense", "output.dense") if BEFORE_FIVE else ("mlp.fc1", "mlp.fc2")


def released(name: str) -> Any:
    """Return what transformers calls this; before version 5, skip the test if it is not there yet.

    With version 5 a missing name is an error: it is misspelled, or was removed.
    """
    library = import_module("transformers")
    if BEFORE_FIVE and not hasattr(library, name):
        pytest.skip(f"transformers {VERSION} has no {name}")
    return getattr(library, name)


def require_state_per_batch(name: str) -> None:
    """Skip RecurrentGemma before version 5: it keeps the state of a batch, and fails on a batch of another size."""
    if BEFORE_FIVE and name == "recurrent_gemma":
        pytest.skip("RecurrentGemma fails on batches of different sizes before transformers 5")


def media_types(types: Any) -> dict[str, Any]:
    """The argument that says which tokens are those of images and videos: models have it since version 5."""
    return {} if BEFORE_FIVE else {"mm_token_type_ids": types}
