"""Checkpoint: a model by its folder or name, loaded as the class it was saved as, with its processor.

Code that comes with a model is not run unasked, and transformers is never left to ask: it would take the answer from
standard input, where texts are read from.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from whyformer.errors import BadInput
from whyformer.extras import require
from whyformer.files.paths import is_file, is_folder, path_of, quiet
from whyformer.inputs.families import BOX_FEATURES

HUB = " Give a folder written by save_pretrained(), or a name on the model hub."
PAUSE = 1.0  # seconds before a name server is asked again
LOAD_IT = "load the model by yourself with trust_remote_code=True, and pass that"
PROCESSORS = {
    "text": "AutoTokenizer",
    "regions": "AutoTokenizer",
    "image": "AutoImageProcessor",
    "pair": "AutoProcessor",
}
# What the files of a processor are called: a folder without any holds a model alone.
PROCESSOR_FILES = ("tokenizer*", "vocab*", "*.model", "preprocessor_config.json", "processor_config.json", "merges.txt")


@dataclass(frozen=True)
class Checkpoint:
    """A folder that ``save_pretrained()`` wrote, or a name on the model hub."""

    name: str
    trusted: bool = False  # code that comes with the model may run
    to_trust: str = LOAD_IT  # what to do to allow it
    called: str = "model"  # the parameter that named it

    def model(self, *, headless: bool = True, pickles: bool = True) -> Any:
        """As the class it was saved as. ``pickles=False``: weights are read from safetensors files alone."""
        transformers, name = _transformers(), self.name
        if is_file(path_of(name, self.called)):
            raise BadInput(f"{name!r} is a file: give the folder that save_pretrained() wrote.")
        if (name.startswith((".", "/", "~")) or name.endswith(("/", "\\"))) and not is_folder(Path(name)):
            raise BadInput(f"there is no folder {name!r} to load a model from.")
        if is_file(Path(name) / "table.json"):
            raise BadInput(f"{name!r} is a model of a table: whyformer.tables.load_model(…) loads it with its columns.")
        with self._loading(f"no model could be loaded from {name!r}", HUB):
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=self.trusted, **self._places)
        classes = getattr(config, "architectures", None)
        classes = classes if isinstance(classes, list) else []
        kind = self._class_of(config, classes)
        bare = classes[0].endswith("Model") and not classes[0].endswith(("LMHeadModel", "MTModel"))
        if bare and not headless:
            raise BadInput(
                f"{name!r} is a {classes[0]}, which has no head and predicts nothing: there is no prediction to "
                "explain. Use a fine-tuned checkpoint, e.g. one for sequence or image classification."
            )
        with self._loading(f"the weights of {name!r} could not be loaded"):
            read = self._places if pickles else self._places | {"use_safetensors": True}
            return kind.from_pretrained(name, config=config, trust_remote_code=self.trusted, **read).eval()

    @cached_property
    def _places(self) -> dict[str, bool]:
        """What every loader is told of places; without a network, that files of earlier downloads are all there is."""
        return {} if is_folder(Path(self.name)) or not hub_is_away() else {"local_files_only": True}

    def _class_of(self, config: Any, classes: list[str]) -> Any:
        """The class of transformers that the config names; of the model's own code, the door that the config names."""
        transformers = _transformers()
        kind = getattr(transformers, classes[0], None) if classes and isinstance(classes[0], str) else None
        if kind is not None:
            return kind
        code: dict[str, Any] = getattr(config, "auto_map", None) or {}
        if code and not self.trusted:
            raise self._code_of_its_own()
        last = [door for door, path in code.items() if str(path).split(".")[-1:] == classes[:1]]
        doors = [door for door in last if door.startswith("AutoModel")]
        if not doors:
            raise BadInput(
                f"{self.name!r} does not say which transformers model it is (config.json: architectures={classes})."
            )
        return getattr(transformers, doors[0])

    def processor(self, auto: str, what: str) -> Any:
        """What turns raw inputs into tensors, by the class of transformers that loads it."""
        with self._loading(f"the {what} of {self.name!r} could not be loaded"):
            return getattr(_transformers(), auto).from_pretrained(
                self.name, trust_remote_code=self.trusted, **self._places
            )

    def sound_processor(self) -> Any:
        """What turns samples into tensors, and the tokenizer where the folder has one."""
        processors = {"feature_extractor": self.processor("AutoFeatureExtractor", "feature extractor")}
        try:
            processors["tokenizer"] = self.processor("AutoTokenizer", "tokenizer")
        except CodeOfItsOwn:
            raise
        except BadInput:  # a classifier has no words: transformers stumbles over the missing vocabulary
            return processors["feature_extractor"]
        return SimpleNamespace(**processors)

    def processor_of(self, model: Any) -> Any:
        """The processor for what a model takes; None where there is none, or the folder holds a model alone."""
        folder, kind = Path(self.name), kind_of(model)
        if not kind or (is_folder(folder) and not any(next(folder.glob(name), None) for name in PROCESSOR_FILES)):
            return None
        return self.sound_processor() if kind == "sound" else self.processor(PROCESSORS[kind], "processor")

    @property
    def pools_its_own_way(self) -> bool:
        """Of a SentenceTransformer: the vector of a text is not the mean of its tokens'."""
        pooling = Path(self.name) / "1_Pooling" / "config.json"
        return is_file(pooling) and '"pooling_mode_mean_tokens": true' not in pooling.read_text(encoding="utf-8")

    def sentence_transformer(self) -> Any:
        """As the library that wrote it loads it."""
        require("sentence_transformers", why=f"{self.name!r}, which pools its tokens in a way of its own,")
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

        return SentenceTransformer(self.name, trust_remote_code=self.trusted)

    def _code_of_its_own(self) -> CodeOfItsOwn:
        return CodeOfItsOwn(
            f"{self.name!r} brings code of its own, which is not run unasked. Read it (the .py files beside its "
            f"config.json); if you trust it, {self.to_trust}."
        )

    @contextmanager
    def _loading(self, trouble: str, advice: str = "") -> Iterator[None]:
        """Whatever libraries say of a folder that cannot be loaded (cut off, damaged, of another kind), in one line."""
        try:
            yield
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise self._code_of_its_own() from error
            raise BadInput(f"{trouble}: {_first_line(error)}{advice}") from error


class CodeOfItsOwn(BadInput):
    """A model that is loaded by running code from its folder, which nobody has allowed."""


def loaded(name: str | Path, processor: Any = None) -> tuple[Any, Any]:
    """A model and its processor, unless one was given, for ``explain("folder", …)``."""
    folder = path_of(name, "model").expanduser()
    if isinstance(name, Path) and not is_folder(folder) and not is_file(folder):
        raise BadInput(f"there is no folder {str(name)!r} to load a model from.")
    checkpoint = Checkpoint(str(folder) if is_folder(folder) or is_file(folder) else str(name))
    _transformers()
    with quiet():
        if checkpoint.pools_its_own_way:
            return checkpoint.sentence_transformer(), processor
        model = checkpoint.model()
        return model, checkpoint.processor_of(model) if processor is None else processor


def hub_is_away() -> bool:
    """The hub's name has no address, asked twice: there is no network. Behind a proxy only the proxy could tell.

    transformers would ask six times for each file, which takes half a minute until it says so.
    """
    from huggingface_hub import constants

    hub = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or getproxies().keys() & {"https", "http", "all"}:
        return bool(constants.HF_HUB_OFFLINE)
    for pause in (PAUSE, 0.0):
        try:
            socket.getaddrinfo(hub.hostname, hub.port or 443)
        except OSError:
            time.sleep(pause)
        else:
            return False
    return True


def kind_of(model: Any) -> str:
    """What a model takes, from the names of its arguments; "" if it is neither text, image nor sound."""
    from whyformer.inputs.batch import signature_of  # imports torch, which ``--help`` does without

    names = set(signature_of(model))
    if "input_ids" in names and names & set(BOX_FEATURES):
        return "regions"
    if {"input_ids", "pixel_values"} <= names:
        return "pair"
    if is_image_model(model):
        return "image"
    if names & {"input_features", "input_values"}:
        return "sound"
    return "text" if getattr(model, "main_input_name", None) == "input_ids" else ""


def is_image_model(model: Any) -> bool:
    """Pictures are its main input."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def _transformers() -> Any:
    require("transformers", why="loading models")
    import transformers

    return transformers


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line if line.endswith(".") else line + "."
