"""What compare, recommend and check share: the model with its inputs, and options by their Python names."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def loaded(
    model: str | None, arguments: list[str], file: Path | None, command: str, demo: bool = True
) -> tuple[Any, Any, list[Any]]:
    """Model, processor, inputs; ``demo``: without texts, the sentences of the demo."""
    from whyformer.cli._input import inputs_from
    from whyformer.cli._model import load_any, load_text

    found, processor, modality = (*load_text(None), "text") if model is None else load_any(model)
    return found, processor, inputs_from(arguments, file, modality, command, demo)


def common(
    target: str | None, replace: str | None, batch_size: int | None, seed: int, cache: Path | None
) -> dict[str, Any]:
    """Options by the names they have in Python."""
    from whyformer.cli._input import target_from

    token = int(replace) if replace is not None and replace.isdigit() else replace
    aim = target_from(target, None)
    return {"target": aim, "replace": token, "batch_size": batch_size, "seed": seed, "cache": cache}
