"""Entries of a model's config, which is a file that anybody may have edited: read with their types checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whyformer.errors import BadInput, shown


def number_of(config: Any, name: str) -> int | None:
    """Return a whole number, the first of several (``eos_token_id``); None where the config has none by this name."""
    try:
        value = getattr(config, name, None)
    except Exception:  # some are computed from others (num_labels from id2label), which may be of a wrong kind
        return None
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def class_names(model: Any) -> dict[int, str]:
    """The names of the classes by number, ``config.id2label``; files have the numbers as texts."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if names is None:
        return {}
    advice = "Set model.config.id2label = {0: 'first name', 1: …}, or None for classes without names."
    if not isinstance(names, Mapping):
        raise BadInput(f"config.id2label of the model is {shown(names)}, not a dict of names by class number. {advice}")
    classes = {}
    for key, name in names.items():
        try:
            classes[int(key)] = str(name)
        except (TypeError, ValueError, OverflowError):
            raise BadInput(
                f"config.id2label of the model has the key {shown(key)}, which is no class number. {advice}"
            ) from None
    return classes
