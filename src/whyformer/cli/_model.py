"""Loading a model by name or folder, as the class it was saved as, with its processor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.files.loading import quiet
from whyformer.files.paths import is_file, is_folder, path_of

HUB = " Give a folder written by save_pretrained(), or a name on the model hub."


def load_text(name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer; the shipped sentiment model where no name is given."""
    if name is None:
        from whyformer.demo import load_sentiment

        return load_sentiment()
    with quiet():
        model = _model(name, trusted)
        if _is_image_model(model):
            raise BadInput(f"{name!r} is a model of images: use 'whyformer explain image'.")
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_language(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model that writes, and its tokenizer."""
    from whyformer.inputs.families import task_of

    with quiet():
        model = _model(name, trusted)
        if not task_of(model).endswith(("ForCausalLM", "LMHeadModel")):
            raise BadInput(
                f"{name!r} is a {type(model).__name__}, no language model that writes: use 'whyformer explain text', "
                "or the command for what it takes."
            )
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_image(name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Model and image processor; the shipped model of cats and dogs where no name is given."""
    if name is None:
        from whyformer.demo import load_pets

        return load_pets()
    with quiet():
        model = _model(name, trusted)
        if not _is_image_model(model):
            raise BadInput(f"{name!r} is no model of images: use 'whyformer explain text'.")
        return model, _processor(name, trusted, "AutoImageProcessor", "image processor")


def load_textures() -> tuple[Any, Any]:
    """The shipped model of shapes and textures, and its image processor."""
    from whyformer import demo

    return demo.load_textures()


def load_pair(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model of images with texts, and its processor."""
    with quiet():
        model = _model(name, trusted, headless=True)
        if kind_of(model) == "regions":
            raise BadInput(
                f"{name!r} reads vectors of image regions, which a detector makes. In Python: "
                "whyformer.explain(model, ({'visual_feats': …, 'visual_pos': …}, text), processor=tokenizer)."
            )
        if kind_of(model) != "pair":
            raise BadInput(f"{name!r} is no model of images with texts: use 'whyformer explain text' or 'image'.")
        return model, _processor(name, trusted, "AutoProcessor", "processor")


def load_encoder(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A text encoder whose token vectors are averaged, or the SentenceTransformer that the folder holds."""
    from whyformer.inputs.similarity import compares_texts

    pooling = Path(name) / "1_Pooling" / "config.json"
    with quiet():
        if pooling.is_file() and '"pooling_mode_mean_tokens": true' not in pooling.read_text(encoding="utf-8"):
            require("sentence_transformers", why=f"{name!r}, which pools its tokens in a way of its own,")
            from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

            return SentenceTransformer(name, trust_remote_code=trusted), None
        model = _model(name, trusted, headless=True)
        if not compares_texts(model, ("", "")):
            raise BadInput(
                f"{name!r} is a {type(model).__name__}: it has a head, and would be asked about both texts together, "
                "not how alike they are. Give an encoder without a head (a SentenceTransformer, or what "
                "AutoModel.from_pretrained(…).save_pretrained(…) writes); what a classifier of pairs says is explained "
                "in Python, whyformer.explain(model, (first, second), processor=tokenizer)."
            )
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_sound(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model of sound, and its processor or feature extractor."""
    with quiet():
        model = _model(name, trusted)
        if kind_of(model) != "sound":
            raise BadInput(f"{name!r} is no model of sound: use 'whyformer explain text' or 'image'.")
        return model, _sound_processor(name, trusted)


def load_any(name: str, trusted: bool = False, pickles: bool = True) -> tuple[Any, Any, str]:
    """Model, processor, and what it takes: "text", "image", "pair", "regions" or "sound".

    ``pickles=False``: weights are read from safetensors files, and from nothing else.
    """
    with quiet():
        model = _model(name, trusted, headless=True, pickles=pickles)
        kind = kind_of(model)
        if not kind:
            raise BadInput(
                f"{name!r} takes {model.main_input_name}: the command line knows text, image and sound models. In "
                "Python, pass the model's own tensors: whyformer.Explainer(model).study(tensors)."
            )
        wanted = {"image": "AutoImageProcessor", "pair": "AutoProcessor"}.get(kind, "AutoTokenizer")
        if kind == "sound":
            return model, _sound_processor(name, trusted), kind
        return model, _processor(name, trusted, wanted, "processor"), kind


def kind_of(model: Any) -> str:
    """What a model takes, from the names of its arguments; "" if it is neither text, image nor sound."""
    from whyformer.inputs.arguments import signature_of
    from whyformer.inputs.families import BOX_FEATURES

    names = set(signature_of(model))
    if "input_ids" in names and names & set(BOX_FEATURES):
        return "regions"
    if {"input_ids", "pixel_values"} <= names:
        return "pair"
    if _is_image_model(model):
        return "image"
    if names & {"input_features", "input_values"}:
        return "sound"
    return "text" if getattr(model, "main_input_name", None) == "input_ids" else ""


def _model(name: str, trusted: bool, headless: bool = False, pickles: bool = True) -> Any:
    """As the class it was saved as. ``trusted``: code that comes with the model may run; transformers is never left to
    ask, for it would take the answer from standard input, where texts are read from."""
    require("transformers", why="loading models")
    import transformers

    if is_file(path_of(name, "--model")):
        raise BadInput(f"{name!r} is a file: give the folder that save_pretrained() wrote.")
    if (name.startswith((".", "/", "~")) or name.endswith(("/", "\\"))) and not is_folder(Path(name)):
        raise BadInput(f"there is no folder {name!r} to load a model from.")
    with _loading(name, f"no model could be loaded from {name!r}", HUB):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trusted)
    classes = getattr(config, "architectures", None)
    classes = classes if isinstance(classes, list) else []
    kind = _class_of(name, config, classes, trusted)
    bare = classes[0].endswith("Model") and not classes[0].endswith(("LMHeadModel", "MTModel"))
    if bare and not headless:
        raise BadInput(
            f"{name!r} is a {classes[0]}, which has no head and predicts nothing: there is no prediction to explain. "
            "Use a fine-tuned checkpoint, e.g. one for sequence or image classification."
        )
    with _loading(name, f"the weights of {name!r} could not be loaded"):
        read = {} if pickles else {"use_safetensors": True}
        return kind.from_pretrained(name, config=config, trust_remote_code=trusted, **read).eval()


def _class_of(name: str, config: Any, classes: list[str], trusted: bool) -> Any:
    """The class of transformers that the config names; of the model's own code, the door that the config names."""
    require("transformers", why="loading models")
    import transformers

    kind = getattr(transformers, classes[0], None) if classes and isinstance(classes[0], str) else None
    if kind is not None:
        return kind
    code: dict[str, Any] = getattr(config, "auto_map", None) or {}
    if code and not trusted:
        raise _code_of_its_own(name)
    doors = [d for d, path in code.items() if d.startswith("AutoModel") and str(path).split(".")[-1:] == classes[:1]]
    if not doors:
        raise BadInput(f"{name!r} does not say which transformers model it is (config.json: architectures={classes}).")
    return getattr(transformers, doors[0])


def _processor(name: str, trusted: bool, auto: str, what: str) -> Any:
    require("transformers", why="loading models")
    import transformers

    with _loading(name, f"the {what} of {name!r} could not be loaded"):
        return getattr(transformers, auto).from_pretrained(name, trust_remote_code=trusted)


def _sound_processor(name: str, trusted: bool) -> Any:
    """What turns samples into tensors, and the tokenizer where the folder has one."""
    processors = {"feature_extractor": _processor(name, trusted, "AutoFeatureExtractor", "feature extractor")}
    try:
        processors["tokenizer"] = _processor(name, trusted, "AutoTokenizer", "tokenizer")
    except CodeOfItsOwn:
        raise
    except BadInput:  # a classifier has no words: transformers stumbles over the missing vocabulary
        return processors["feature_extractor"]
    return SimpleNamespace(**processors)


class CodeOfItsOwn(BadInput):
    """A model that is loaded by running code from its folder, which nobody has allowed."""


def _code_of_its_own(name: str) -> CodeOfItsOwn:
    return CodeOfItsOwn(
        f"{name!r} brings code of its own, which is not run unasked. Read it (the .py files beside its config.json); "
        "if you trust it, add --trust-remote-code."
    )


@contextmanager
def _loading(name: str, trouble: str, advice: str = "") -> Iterator[None]:
    """Whatever libraries say of a folder that cannot be loaded (truncated, damaged, of another kind), in one line."""
    try:
        yield
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise _code_of_its_own(name) from error
        raise BadInput(f"{trouble}: {_first_line(error)}{advice}") from error


def _is_image_model(model: Any) -> bool:
    return getattr(model, "main_input_name", None) == "pixel_values"


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line if line.endswith(".") else line + "."
