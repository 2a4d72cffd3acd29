"""Load a model and its processor by folder or name, as the class it was saved as; call processors."""

from __future__ import annotations

import copy
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from whyformer.errors import BadInput, reading, require
from whyformer.files import is_file, is_folder, path_of, quiet, read_json
from whyformer.inputs.families import BOX_FEATURES

# Call processors; a Tokenizer of the tokenizers library is wrapped in a class of transformers.

# How special tokens are spelled between brackets and bars. The library itself does not record their roles.
SPELLINGS = {role: (role,) for role in ("pad", "mask", "unk", "cls", "sep")} | {
    "bos": ("bos", "s", "begin_of_text", "startoftext", "start_of_text"),
    "eos": ("eos", "/s", "endoftext", "end_of_text"),
}


def as_processor(processor: Any, model: Any) -> Any:
    """Wrap a copy of a ``tokenizers.Tokenizer`` as a tokenizer of transformers; return other processors unchanged."""
    if type(processor).__module__.partition(".")[0] != "tokenizers":
        return processor
    rust = getattr(processor, "_tokenizer", processor)  # tokenizers.implementations hold one
    if not hasattr(rust, "post_processor"):
        raise BadInput(
            f"processor is a {type(processor).__name__} of the tokenizers library, a part of a tokenizer. Pass the "
            "whole tokenizers.Tokenizer."
        )
    require("transformers", why="a tokenizers.Tokenizer as processor")
    from transformers import PreTrainedTokenizerFast

    from whyformer.inputs.batch import signature_of  # imports torch, which ``--help`` does without

    rust = copy.deepcopy(rust)
    roles, truncation, padding = _roles(rust), rust.truncation, rust.padding
    options: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    if truncation is not None:
        options |= {"model_max_length": truncation["max_length"], "truncation_side": truncation["direction"]}
    if padding is not None:
        options |= {"padding_side": padding["direction"], "pad_token_type_id": padding["pad_type_id"]}
    rust.no_padding()  # lengths of texts are read before they are padded
    rust.no_truncation()
    # GPT-2 looks types up among its words, so types of zeros are not the same as none: a table of types is needed.
    config = getattr(model, "config", None)
    types = getattr(config, "type_vocab_size", 2 if config is None else 0)
    typed = "token_type_ids" in signature_of(model) and types > 1 and any(map(_distinguishes_types, _processors(rust)))
    names = ["input_ids", *["token_type_ids"] * typed, "attention_mask"]
    if others := [token for token in _declared(rust) if token not in roles.values()]:
        options["additional_special_tokens"] = others
    return PreTrainedTokenizerFast(tokenizer_object=rust, model_input_names=names, **options)


def _roles(rust: Any) -> dict[str, str]:
    """Return special tokens by role, as settings and templates place them, else by their spelling."""
    roles: dict[str, str] = {}
    for processor in _processors(rust):
        if "cls" in processor and "sep" in processor:  # BertProcessing, RobertaProcessing
            roles |= {"cls": processor["cls"][0], "sep": processor["sep"][0]}
        first, last = _ends(processor)
        if first is not None:
            roles.setdefault("cls" if _spelled(first) == "cls" else "bos", first)
        if last is not None:
            roles.setdefault("sep" if _spelled(last) == "sep" else "eos", last)
    if rust.padding is not None:
        roles["pad"] = rust.padding["pad_token"]
    if (unknown := getattr(rust.model, "unk_token", None)) is not None:
        roles["unk"] = unknown
    for token in _declared(rust):
        if (role := _spelled(token)) is not None:
            roles.setdefault(role, token)
    # Padding may be switched on with a token that the vocabulary does not have: a new id would be none of the model's.
    return {role: token for role, token in roles.items() if rust.token_to_id(token) is not None}


def _declared(rust: Any) -> list[str]:
    return [token.content for token in rust.get_added_tokens_decoder().values() if token.special]


def _spelled(token: str) -> str | None:
    bare = token.strip("[]<>|").lower()
    return next((role for role, spellings in SPELLINGS.items() if bare in spellings and bare != token), None)


def _processors(rust: Any) -> Iterator[Mapping[str, Any]]:
    """Return the post-processors, which add tokens around texts, as plain data."""
    state = None if rust.post_processor is None else json.loads(rust.post_processor.__getstate__())
    yield from () if state is None else state.get("processors", [state])


def _ends(processor: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the special tokens at the start and end of a template."""
    pieces = processor.get("single", ())
    if len(pieces) < 2:
        return None, None
    contents = processor["special_tokens"]
    first, last = (
        contents[piece["SpecialToken"]["id"]]["tokens"][0] if "SpecialToken" in piece else None
        for piece in (pieces[0], pieces[-1])
    )
    return first, last


def _distinguishes_types(processor: Mapping[str, Any]) -> bool:
    """Return whether a template with special tokens gives the second text another type."""
    pieces = [piece for each in processor.get("pair", ()) for piece in each.items()]
    written = any(kind == "SpecialToken" for kind, _ in pieces)
    return processor["type"] == "BertProcessing" or (written and any(piece["type_id"] for _, piece in pieces))


def processed(processor: Any, *inputs: Any, **options: Any) -> Any:
    """Call a tokenizer, image processor or feature extractor; whatever it raises becomes a BadInput."""
    for text in (*inputs, options.get("text"), options.get("text_target")):
        _require_characters(text)
    advice = "Call it directly on the same input: if that fails, too, change the input or the processor."
    with reading(f"{type(processor).__name__} could not encode the input", advice):
        encoding = _encoded_directly(processor, inputs, options)
        return processor(*inputs, **options) if encoding is None else encoding


# Of the functions that turn a text into ids; a tokenizer of transformers that overrides one adds something of its own.
ENCODERS = {"__call__": "tokenization_utils_base"} | dict.fromkeys(
    ("_encode_plus", "_convert_encoding"), "tokenization_utils_tokenizers"
)
WITHOUT_CHANGE = {"truncation": False, "verbose": False}
PARTS = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}


def _encoded_directly(tokenizer: Any, texts: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Encode a text by the tokenizer library alone, in a fifth of the time; None where transformers adds to it."""
    kind, added = type(tokenizer), options.get("add_special_tokens", True)
    if {**options, **WITHOUT_CHANGE, "add_special_tokens": added} != options or not all(type(t) is str for t in texts):
        return None
    homes = (getattr(getattr(kind, name, None), "__module__", "") for name in ENCODERS)
    if any(home != f"transformers.{file}" for home, file in zip(homes, ENCODERS.values(), strict=True)):
        return None
    library = tokenizer.backend_tokenizer
    changed = library.truncation or library.padding or library.encode_special_tokens or tokenizer.split_special_tokens
    if changed or hasattr(kind, "_switch_to_input_mode"):
        return None
    first, *second = texts
    encoding = library.encode(first, *filter(None, second), add_special_tokens=added)  # an empty second text is none
    names = {"input_ids", *tokenizer.model_input_names}
    ids = {name: getattr(encoding, part) for name, part in PARTS.items() if name in names}
    return sys.modules["transformers"].BatchEncoding(ids, encoding)


def _require_characters(text: str | Sequence[Any] | None) -> None:
    """Raise for half of a surrogate pair: tokenizers would raise a TypeError about something else."""
    if isinstance(text, (list, tuple)):
        for part in text:
            _require_characters(part)
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the text has half a character at position {error.start} ({text[error.start]!r}, one half of a surrogate "
            "pair), which has no encoding: decode the text again from its bytes, or replace such halves, "
            "text.encode('utf-8', 'replace').decode()."
        ) from None


HUB = " Give a folder written by save_pretrained(), or a name on the model hub."
PAUSE = 1.0  # seconds before a name server is asked again
LOAD_IT = "load the model with trust_remote_code=True, and pass it"
PROCESSORS = dict.fromkeys(("text", "regions"), "AutoTokenizer") | {
    "image": "AutoImageProcessor",
    "pair": "AutoProcessor",
}
# Files of a processor; a folder without any of them holds only a model.
PROCESSOR_FILES = ("tokenizer*", "vocab*", "*.model", "preprocessor_config.json", "processor_config.json", "merges.txt")


# Modules of sentence_transformers that import nothing by the names in their files, but for a Dense's activation.
MODULES = ("Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm")
ACTIVATIONS = "torch.nn.modules."


@dataclass(frozen=True)
class Checkpoint:
    """A folder that ``save_pretrained()`` wrote, or a name on the model hub."""

    name: str
    # Code that comes with the model may run. transformers must not prompt for that: it would read the answer from
    # standard input, which may hold the texts to explain.
    trusted: bool = False
    to_trust: str = LOAD_IT  # what to do to allow it
    called: str = "model"  # the parameter that named it

    def model(self, *, headless: bool = True, pickles: bool = True) -> Any:
        """Load the model. ``pickles=False``: weights are read from safetensors files only."""
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
        if not classes and is_folder(Path(name)) and not is_file(Path(name) / "config.json"):
            # transformers 4 guesses a configuration from the name of the folder.
            raise BadInput(f"no model could be loaded from {name!r}: it has no config.json.{HUB}")
        kind = self._class_of(config, classes)
        bare = classes[0].endswith("Model") and not classes[0].endswith(("LMHeadModel", "MTModel"))
        if bare and not headless:
            raise BadInput(
                f"{name!r} is a {classes[0]}, which has no head and makes no predictions. Use a fine-tuned checkpoint, "
                "e.g. one for sequence or image classification."
            )
        # transformers 4 runs this file of a folder whatever trust_remote_code is.
        unasked = int(transformers.__version__.partition(".")[0]) < 5
        if unasked and not self.trusted and is_file(Path(name) / "custom_generate" / "generate.py"):
            raise self._code_of_its_own()
        with self._loading(f"the weights of {name!r} could not be loaded"):
            read = self._places if pickles else self._places | {"use_safetensors": True}
            return kind.from_pretrained(name, config=config, trust_remote_code=self.trusted, **read).eval()

    @cached_property
    def _places(self) -> dict[str, bool]:
        """Options of every loader: without a network, only files of earlier downloads are used."""
        return {} if is_folder(Path(self.name)) or not hub_is_away() else {"local_files_only": True}

    def _class_of(self, config: Any, classes: list[str]) -> Any:
        """Return the transformers class that the config names; for code of the model's own, its AutoModel class."""
        transformers = _transformers()
        kind = getattr(transformers, classes[0], None) if classes and isinstance(classes[0], str) else None
        if kind is not None:
            return kind
        code: dict[str, Any] = getattr(config, "auto_map", None) or {}
        if code and not self.trusted:
            raise self._code_of_its_own()
        named = [door for door, path in code.items() if str(path).split(".")[-1:] == classes[:1]]
        doors = [door for door in named if door.startswith("AutoModel")]
        if not doors:
            raise BadInput(
                f"{self.name!r} does not name its transformers class (config.json: architectures={classes})."
            )
        return getattr(transformers, doors[0])

    def processor(self, auto: str, what: str) -> Any:
        """Load a processor by the transformers class ``auto``."""
        with self._loading(f"the {what} of {self.name!r} could not be loaded"):
            return getattr(_transformers(), auto).from_pretrained(
                self.name, trust_remote_code=self.trusted, **self._places
            )

    def sound_processor(self) -> Any:
        """Load the feature extractor, with the tokenizer where the folder has one."""
        processors = {"feature_extractor": self.processor("AutoFeatureExtractor", "feature extractor")}
        try:
            processors["tokenizer"] = self.processor("AutoTokenizer", "tokenizer")
        except CodeOfItsOwn:
            raise
        except BadInput:  # a classifier has no words: transformers stumbles over the missing vocabulary
            return processors["feature_extractor"]
        return SimpleNamespace(**processors)

    @property
    def pools_its_own_way(self) -> bool:
        """Whether this is a SentenceTransformer that does not mean-pool its tokens."""
        pooling = Path(self.name) / "1_Pooling" / "config.json"
        return is_file(pooling) and '"pooling_mode_mean_tokens": true' not in pooling.read_text(encoding="utf-8")

    def sentence_transformer(self) -> Any:
        """Load the model with the sentence_transformers library."""
        trouble = f"no SentenceTransformer could be loaded from {self.name!r}"
        with self._loading(trouble):
            stranger = "" if self.trusted else self._module_that_is_not_known()
        if stranger:
            raise self._code_of_its_own(f" (its files name {stranger[:100]!r})")
        require("sentence_transformers", why=f"{self.name!r}, which pools its tokens in a way of its own,")
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

        with self._loading(trouble):
            return SentenceTransformer(self.name, trust_remote_code=self.trusted)

    def _module_that_is_not_known(self) -> str:
        """The first class named in the folder that is not of MODULES; sentence_transformers before 6 imports any."""
        folder = Path(self.name)
        listed = folder / "modules.json"
        for module in read_json(listed) if is_file(listed) else ():
            kind, config = str(module["type"]), folder / module["path"] / "config.json"
            library, _, name = kind.partition(".")
            if library != "sentence_transformers" or name.rpartition(".")[2] not in MODULES:
                return kind
            activation = str(read_json(config).get("activation_function", ACTIVATIONS)) if is_file(config) else ""
            if name.endswith("Dense") and not activation.startswith(ACTIVATIONS):
                return activation
        return ""

    def _code_of_its_own(self, where: str = "") -> CodeOfItsOwn:
        return CodeOfItsOwn(
            f"{self.name!r} contains its own code{where}, which is not run by default. Read it (the .py files next to "
            f"config.json); if you trust it, {self.to_trust}."
        )

    @contextmanager
    def _loading(self, trouble: str, advice: str = "") -> Iterator[None]:
        """Turn any error of the libraries (a damaged file, another kind of folder) into a BadInput of one line."""
        try:
            yield
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise self._code_of_its_own() from error
            if "weights_only" in str(error):  # torch's advice is to read it all the same, which would run its code
                raise BadInput(
                    f"{trouble}: they are a pickle with more in it than tensors, which could run code when it is read. "
                    "Ask its author for model.safetensors."
                ) from error
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BadInput(f"{trouble}: {line.removesuffix('.')}.{advice}") from error


class CodeOfItsOwn(BadInput):
    """The model is loaded by running code from its folder, which was not allowed."""


def loaded(name: str | Path, processor: Any = None) -> tuple[Any, Any]:
    """Load a model, and its processor unless one was given, for ``explain("folder", …)``."""
    folder = path_of(name, "model").expanduser()
    if isinstance(name, Path) and not is_folder(folder) and not is_file(folder):
        raise BadInput(f"there is no folder {str(name)!r} to load a model from.")
    checkpoint = Checkpoint(str(folder) if is_folder(folder) or is_file(folder) else str(name))
    _transformers()
    with quiet():
        if checkpoint.pools_its_own_way:
            return checkpoint.sentence_transformer(), processor
        model = checkpoint.model()
        kind = kind_of(model)
        without = is_folder(folder) and not any(map(is_file, chain.from_iterable(map(folder.glob, PROCESSOR_FILES))))
        if processor is not None or not kind or without:
            return model, processor
        if kind == "sound":
            return model, checkpoint.sound_processor()
        return model, checkpoint.processor(PROCESSORS[kind], "processor")


def tokenizer_of(model: Any) -> Any:
    """Return the tokenizer that a model holds, or that of the folder (or download) it was loaded from; else None."""
    held, config = getattr(model, "tokenizer", None), getattr(model, "config", None)
    if hasattr(held, "convert_ids_to_tokens"):
        return held
    name, size = getattr(config, "_name_or_path", None), getattr(config, "vocab_size", None)
    if not isinstance(name, str) or not name or not isinstance(size, int):
        return None
    folder = Path(name)
    if not is_folder(folder) and (folder.is_absolute() or name.startswith(".")):
        return None
    tokenizer = _tokenizer_in(name, folder.stat().st_mtime_ns if is_folder(folder) else 0)
    return tokenizer if tokenizer is not None and len(tokenizer) <= size else None


@lru_cache(maxsize=8)
def _tokenizer_in(name: str, changed: int) -> Any:
    """Load the tokenizer of a folder, or of an earlier download: nothing is fetched, and no code of its own runs."""
    try:
        with quiet():
            return _transformers().AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=True)
    except Exception:  # whatever the libraries raise where there is none
        return None


def hub_is_away() -> bool:
    """Return whether the hub's host name cannot be resolved (two attempts). Behind a proxy this is not checked."""
    # transformers would try six times for each file, which takes half a minute.
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
    """Return what a model takes, from the names of its arguments; "" if it is neither text, image nor sound."""
    from whyformer.inputs.batch import signature_of

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
    """Return whether pictures are the model's main input."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def _transformers() -> Any:
    require("transformers", why="loading models")
    import transformers

    return transformers
