"""Loading a model by name or folder, as the class it was saved as, with its processor."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whyformer.errors import BadInput, MissingExtra


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and notices of transformers while a model is loaded; its settings are put back."""
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def load_text(name: str | None) -> tuple[Any, Any]:
    """Model and tokenizer; the shipped sentiment model where no name is given."""
    _require_transformers()
    with quiet():
        if name is None:
            from whyformer.demo import load_sentiment

            return load_sentiment()
        model = _model(name)
        if _is_image_model(model):
            raise BadInput(f"{name!r} is a model of images: use 'whyformer explain image'.")
        return model, _processor(name, "AutoTokenizer", "tokenizer")


def load_image(name: str) -> tuple[Any, Any]:
    """Model and image processor."""
    _require_transformers()
    with quiet():
        model = _model(name)
        if not _is_image_model(model):
            raise BadInput(f"{name!r} is no model of images: use 'whyformer explain text'.")
        return model, _processor(name, "AutoImageProcessor", "image processor")


def load_any(name: str) -> tuple[Any, Any, str]:
    """Model, processor, and "text" or "image"."""
    _require_transformers()
    with quiet():
        model = _model(name)
        if _is_image_model(model):
            return model, _processor(name, "AutoImageProcessor", "image processor"), "image"
        if getattr(model, "main_input_name", None) != "input_ids":
            raise BadInput(
                f"{name!r} takes {model.main_input_name}: the command line knows text and image models. In Python, "
                "pass the model's own tensors: whyformer.Explainer(model).study(tensors)."
            )
        return model, _processor(name, "AutoTokenizer", "tokenizer"), "text"


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtra("transformers", "hf", "loading models") from None


def _model(name: str) -> Any:
    import transformers

    if (name.startswith((".", "/", "~")) or name.endswith(("/", "\\"))) and not Path(name).is_dir():
        raise BadInput(f"there is no folder {name!r} to load a model from.")
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no model could be loaded from {name!r}: {_first_line(error)} Give a folder written by "
            "save_pretrained(), or a name on the model hub."
        ) from None
    classes = getattr(config, "architectures", None) or []
    kind = getattr(transformers, classes[0], None) if classes else None
    if kind is None:
        raise BadInput(f"{name!r} does not say which transformers model it is (config.json: architectures={classes}).")
    if classes[0].endswith("Model") and not classes[0].endswith("LMHeadModel"):
        raise BadInput(
            f"{name!r} is a {classes[0]}, which has no head and predicts nothing: there is no prediction to explain. "
            "Use a fine-tuned checkpoint, e.g. one for sequence or image classification."
        )
    try:
        return kind.from_pretrained(name, config=config).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"the weights of {name!r} could not be loaded: {_first_line(error)}") from None


def _processor(name: str, auto: str, what: str) -> Any:
    import transformers

    try:
        return getattr(transformers, auto).from_pretrained(name)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise BadInput(f"the {what} of {name!r} could not be loaded: {_first_line(error)}") from None


def _is_image_model(model: Any) -> bool:
    return getattr(model, "main_input_name", None) == "pixel_values"


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line if line.endswith(".") else line + "."
