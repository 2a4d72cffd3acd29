"""Choose the modality of a model and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, MissingProcessor
from whyformer.files import names_picture
from whyformer.inputs.answers import ChoiceInput, SpanInput
from whyformer.inputs.audio import AudioInput
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Raw, are_flags, are_tensors, as_list, is_single, named_tensors, signature_of
from whyformer.inputs.checkpoint import loaded, tokenizer_of
from whyformer.inputs.decoding import PLAIN_OPTIONS, InputOptions
from whyformer.inputs.detection import DetectionInput
from whyformer.inputs.families import (
    BOX_FEATURES,
    compares_texts,
    continues_text,
    cross_encoder,
    encodes_texts,
    is_media,
    task_of,
)
from whyformer.inputs.image import SIZES, ImageInput, are_packed
from whyformer.inputs.image_text import ImageTextInput
from whyformer.inputs.multi_input import Seq2SeqInput, SimilarityInput
from whyformer.inputs.predict_functions import AskedFunction, modality_of_function
from whyformer.inputs.prompt import AskedModel, PromptInput, arguments_of, asked_model, takes_questions
from whyformer.inputs.table import TableInput
from whyformer.inputs.table_schema import Table
from whyformer.inputs.tensors import TensorInput, sequences_of
from whyformer.inputs.text import TextInput
from whyformer.inputs.token_heads import MaskedInput, TokenLabelInput
from whyformer.inputs.video_and_series import SERIES, VIDEOS, SeriesInput, VideoInput
from whyformer.inputs.vision_language import VisionLanguageInput, reads_images, reads_media
from whyformer.loan.borrow import known_about

__all__ = ["Source", "are_tensors", "as_list", "choose_modality", "register_modality", "source_of", "unpacked"]


@dataclass(frozen=True)
class Source:
    """Inputs as they were given: encoded already (tensors, rows of a table), or raw and encoded on request."""

    modality: Modality
    whole: Batch | None
    size: int
    raw: tuple[Raw, ...] = ()
    single: bool = False  # one raw input, not a list of them
    asked: InputOptions = PLAIN_OPTIONS

    def asking(self, **wishes: Any) -> Source:
        """Return these inputs with what is asked of them; raise where that cannot be asked."""
        asked = replace(self.asked, **wishes)
        asked = replace(asked, segments=self.modality.read.allowed(asked.decoding, asked.segments))
        return replace(self, asked=asked, whole=None if self.whole is None else replace(self.whole, asked=asked))

    def batch(self, rows: Sequence[int] | None = None) -> Batch:
        """Return some of the inputs (None: all), padded among themselves; an error of one of them names it."""
        if self.whole is not None:
            return self.whole if rows is None else self.whole.select(rows)
        raw = list(self.raw) if rows is None else [self.raw[i] for i in rows]
        try:
            return self.modality.read.batch(raw, self.asked)
        except MissingProcessor:
            raise
        except BadInput as error:
            place = self._to_blame(raw, str(error))
            if place is not None:
                error.args = (f"inputs[{place}]: {error}",)
            raise

    def select(self, rows: Sequence[int]) -> Source:
        """Return some of the inputs, as they were given."""
        whole = None if self.whole is None else self.whole.select(rows)
        return replace(self, whole=whole, size=len(rows), raw=tuple(self.raw[i] for i in rows) if self.raw else ())

    def _to_blame(self, raw: list[Raw], message: str) -> int | None:
        """Return the first input that raises this error by itself, unless all inputs do."""
        first, fine = None, False
        for place, one in enumerate(raw):
            try:
                self.modality.read.batch([one], self.asked)
                fine = True
            except BadInput as error:
                first = place if first is None and str(error) == message else first
            if fine and first is not None:
                return first
        return None


def source_of(modality: Modality, inputs: Any) -> Source:
    """Wrap what was given; raw inputs are encoded later."""
    if isinstance(inputs, Iterator) and not hasattr(inputs, "read"):  # an open file is one as well
        raise BadInput(f"the inputs are a {type(inputs).__name__}, which can be read only once: pass list(…) of it.")
    known = modality.read.ready(inputs)
    if known is not None:
        batch, single = known
        return Source(modality, batch, batch.size, single=single)
    if isinstance(inputs, Set):
        raise BadInput("the inputs are a set, which has no order: pass a list of them.")
    if isinstance(inputs, Mapping) or (isinstance(inputs, list) and inputs and isinstance(inputs[0], (Mapping, list))):
        inputs = modality.read.from_messages(inputs)
    if isinstance(inputs, Mapping) and "text" in inputs and {"image", "images", "video", "videos"} & set(inputs):
        if reads_images(modality.model):  # not as VisionLanguageInput has it
            raise BadInput("images in a prompt need transformers 5: install it, or pass one image as (image, text).")
        raise BadInput(
            f"{type(modality.model).__name__} takes no images with a text: give the text alone, or load a "
            "vision-language model (AutoModelForImageTextToText)."
        )
    if isinstance(inputs, Mapping) and signature_of(modality.model).keys() & inputs.keys():
        names = ", ".join(repr(name) for name in inputs if name in signature_of(modality.model))
        raise BadInput(
            f"the inputs hold arguments of the model ({names}), and none of them is a tensor: call the tokenizer or "
            'processor with return_tensors="pt", or convert each with torch.as_tensor.'
        )
    if isinstance(inputs, Mapping):
        names = ", ".join(repr(str(key)) for key in list(inputs)[:8]) or "none"
        raise BadInput(
            f"the inputs are a dict with the keys {names} and no tensor in it. Pass the text or picture itself, e.g. "
            f"inputs[{next(iter(inputs), 'text')!r}], or a list of them; or the model's own tensors by the names of "
            "its arguments."
        )
    single = is_single(inputs)
    raw = (inputs,) if single else tuple(inputs)
    if not raw:
        raise BadInput("the list of inputs is empty: give at least one.")
    return Source(modality, None, len(raw), raw, single)


Recognises = Callable[[nn.Module, Any, Any], bool]  # (model, processor, inputs)
Makes = Callable[[nn.Module, Any], Modality]  # (model, processor)

# Kinds of input that are recognised by more than the names and axes of tensors, in this order.
KINDS: list[tuple[Recognises, Makes]] = [
    (lambda model, processor, inputs: isinstance(processor, Table), TableInput),
    (lambda model, processor, inputs: compares_texts(model, inputs), SimilarityInput),
]

# Texts that are explained at one token, by the end of the model's class name in transformers.
TASKS: dict[str, Makes] = {
    "QuestionAnswering": SpanInput,
    "QuestionAnsweringSimple": SpanInput,
    "TokenClassification": TokenLabelInput,
    "MaskedLM": MaskedInput,
    "MultipleChoice": ChoiceInput,
}


def register_modality(recognises: Recognises, make: Makes) -> None:
    """Add a modality for the inputs that ``recognises`` returns True for; the newest comes first."""
    KINDS.insert(0, (recognises, make))


# Tensors without positions in a text among them, if all have one shape; special tokens, as transformers has them.
PLAIN_NAMES = frozenset({"input_ids", "attention_mask", "token_type_ids", "pixel_values"})
MARKS = ("_special_tokens_map", "_extra_special_tokens", "_additional_special_tokens")


def form_of(processor: Any, inputs: Any) -> list[Any] | None:
    """Return what decides about the modality of inputs; None where that may be what they contain."""
    first = inputs[0] if type(inputs) is list and inputs else inputs
    named = inputs if isinstance(inputs, Mapping) and inputs.keys() <= PLAIN_NAMES else {}
    plain = all(type(tensor) is Tensor for tensor in named.values()) and len({t.shape for t in named.values()}) == 1
    if not plain and type(first) is not str and not type(first).__module__.startswith("PIL."):
        return None
    form = [type(first), *((name, t.dtype, t.ndim) for name, t in named.items())]
    held = getattr(processor, "__dict__", {})
    tokenizer = held.get("tokenizer", processor if hasattr(type(processor), "convert_ids_to_tokens") else None)
    words = getattr(tokenizer, "__dict__", {})
    if tokenizer is not None and not {MARKS[0], "_tokenizer"} <= words.keys():
        return None  # it cannot be compared
    size = words["_tokenizer"].get_vocab_size() if words else 0
    return [*form, processor, tokenizer, held.get("image_processor"), size, *(copy(words.get(name)) for name in MARKS)]


def choose_modality(model: nn.Module, processor: Any, inputs: Any, lent: bool = False) -> Modality:
    """Return the modality for these inputs; of a borrowed model the same one for all inputs of one form."""
    if isinstance(model, AskedFunction):
        return modality_of_function(model, processor, inputs)
    if isinstance(model, AskedModel):
        return PromptInput(model, processor)
    for recognises, make in KINDS:
        if recognises(model, processor, inputs):
            return make(model, processor)
    chosen = _by_tensors if are_tensors(inputs) else _by_model
    form = form_of(processor, inputs) if lent else None  # else threads would share it
    key = ("modality", id(model), type(inputs))  # not of a copy, which knows the same facts
    before, modality = known_about(model).get(key, (None, None)) if form is not None else (None, None)
    if modality is None or before != form:
        modality = chosen(model, processor, inputs)
        if form is not None and not modality.read.passes:  # which count once
            known_about(model)[key] = form, modality
    return modality


def _by_model(model: nn.Module, processor: Any, inputs: Any) -> Modality:
    main = getattr(model, "main_input_name", None)
    parameters = signature_of(model)
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    if encodes_texts(model) and is_text(first):
        raise BadInput(
            f"{type(model).__name__} returns a vector, and the similarity of two is explained: pass a pair of texts, "
            "(a, b), or a list of pairs."
        )
    names = {main} if isinstance(main, str) else set()
    if continues_text(model) and is_text(first):
        return TextInput(model, processor)  # also of a model that could take images with it
    if reads_media(model):
        return VisionLanguageInput(model, processor)
    if isinstance(first, (tuple, list)) and {"pixel_values", "input_ids"} <= set(parameters):
        names |= {"pixel_values", "input_ids"}
    boxes = [n for n in BOX_FEATURES if n in parameters]
    if isinstance(first, (tuple, list)) and boxes and any(not isinstance(p, str) for p in first):
        names |= {boxes[0], "input_ids"}
    several = _several(model, processor, names)
    if several is not None:
        return several
    video = next((name for name in VIDEOS if name in parameters), None)
    if video and isinstance(first, np.ndarray) and first.ndim == 4:
        return VideoInput(model, processor, video)
    if main == SERIES and isinstance(first, np.ndarray):
        return SeriesInput(model, processor)
    if main == "pixel_values" or ("pixel_values" in parameters and "input_ids" not in parameters):
        return ImageInput(model, processor)
    if main == "input_ids" or "input_ids" in parameters:
        return TASKS.get(task_of(model).rpartition("For")[2], TextInput)(model, processor)
    image = isinstance(first, Path) or type(first).__module__.startswith("PIL.")
    if isinstance(first, np.ndarray):
        image = hasattr(getattr(processor, "image_processor", processor), "preprocess")
    if image:
        return ImageInput(model, processor, main=next(iter(parameters)))
    if hasattr(getattr(processor, "tokenizer", processor), "convert_ids_to_tokens"):
        named = [n for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return TextInput(model, processor, main=named[0] if named else "input_ids")
    return TensorInput(model, processor)


def is_text(one: Any) -> bool:
    """Return whether a raw input is text alone: a prompt, a prompt with its answer, or messages without images."""
    if isinstance(one, Mapping):  # a message
        if not {"content", "tool_calls"} & one.keys():
            return False
        content = one.get("content")
        parts = content if isinstance(content, (list, tuple)) else ()
        return all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts)
    if isinstance(one, list):
        return all(is_text(message) for message in one)
    if isinstance(one, tuple):
        return all(isinstance(text, str) for text in one) and not names_picture(one[0])
    return isinstance(one, str)


def _by_tensors(model: nn.Module, processor: Any, inputs: Any) -> Modality:
    if isinstance(inputs, Mapping) and any(is_media(str(name)) for name in inputs) and reads_media(model):
        return VisionLanguageInput(model, processor)
    if isinstance(inputs, Mapping) and SIZES in inputs and are_packed(inputs):
        return ImageTextInput(model, processor)
    named = named_tensors(inputs, signature_of(model))
    tensors = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.ndim > 0}
    several = _several(model, processor, set(tensors))
    if several is not None:
        return several
    floats = [k for k, v in tensors.items() if v.is_floating_point() or are_flags(k, tensors)]
    # Token ids: the first two-axis integer tensor, unless floats beside it make it a table.
    ids = [k for k, v in tensors.items() if v.ndim == 2 and v.dtype in (torch.int64, torch.int32) and "mask" not in k]
    if "input_ids" in tensors or (ids and not floats):
        kind = TASKS.get(task_of(model).rpartition("For")[2], TextInput)
        tokenizer = tokenizer_of(model) if processor is None else processor
        text = kind(model, tokenizer, main="input_ids" if "input_ids" in tensors else ids[0])
        known = getattr(model, "main_input_name", None) in text.read.parameters  # by name, as in all of transformers
        return text if known else _by_use(text, inputs)
    video = next((name for name in VIDEOS if name in floats and tensors[name].ndim == 5), None)
    if video is not None:
        return VideoInput(model, processor, video)
    if SERIES in floats and tensors[SERIES].ndim in (2, 3):
        return SeriesInput(model, processor)
    # One image alone, without a batch axis, and whole numbers are refused by ImageInput, which says what is wrong.
    images = [
        k for k, v in tensors.items() if (k in floats and v.ndim == 4) or (k == "pixel_values" and v.ndim in (3, 4))
    ]
    if images:
        return ImageInput(model, processor, main=images[0])
    return _of_columns(model, processor, inputs)


def _of_columns(model: nn.Module, processor: Any, inputs: Any) -> Modality:
    return TensorInput(model, processor, example=TensorInput(model, processor).read.adopt(inputs))


def _by_use(text: Modality, inputs: Any) -> Modality:
    """Return the modality of one sequence of tokens or two, by what the model does with its arguments."""
    sequences = sequences_of(text.read, inputs)
    if sequences is None:
        return text
    if sequences.in_line:
        return _of_columns(text.model, text.processor, inputs)
    source, *others = sequences.names or (text.main,)
    modality = Seq2SeqInput(text.model, text.processor, source, others[0]) if others else text
    scored = {modality.main, *others[:1]}
    modality.read.unscored = tuple(name for name in (*sequences.names, *sequences.unscored) if name not in scored)
    modality.read.passes = sequences.passes
    return modality


def _several(model: nn.Module, processor: Any, names: set[str]) -> Modality | None:
    """Return a modality with several streams, where the names of the tensors require one."""
    images = [n for n in ("pixel_values", *BOX_FEATURES) if n in names]
    if "input_ids" in names and images:
        return ImageTextInput(model, processor, image=images[0])
    config = getattr(model, "config", None)
    sources = [n for n in ("input_ids", "input_features", "input_values") if n in names]
    parameters = signature_of(model)
    # A classifier on the encoder alone (WhisperForAudioClassification) shares its config with the whole.
    writes = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters
    if sources and (writes or "decoder_input_ids" in names):
        return Seq2SeqInput(model, processor, sources[0])
    if "pixel_values" in names and "decoder_input_ids" in parameters and "input_ids" not in parameters:
        return Seq2SeqInput(model, processor, "pixel_values")  # TrOCR: what is read from an image
    if "pixel_values" in names and task_of(model).endswith("ForObjectDetection"):
        return DetectionInput(model, processor)
    if sources and sources[0] != "input_ids":
        return AudioInput(model, processor, main=sources[0])
    return None


def _processor_of(pipeline: Any) -> Any:
    """Return the processor of a pipeline; a feature extractor and a tokenizer together."""
    names = ("processor", "tokenizer", "image_processor", "feature_extractor")
    parts = {name: part for name in names if (part := getattr(pipeline, name, None)) is not None}
    if "processor" in parts:
        return parts["processor"]
    if "feature_extractor" in parts and "tokenizer" in parts:
        return SimpleNamespace(**parts)
    return next(iter(parts.values()), None)


def _require_plain(model: Any) -> None:
    """Raise for an object with a model and a call of its own, which may return something else than its model."""
    if callable(model) and not any(base.__module__.startswith("transformers.") for base in type(model).__mro__):
        name = type(model).__name__
        raise BadInput(
            f"{name} has a model, and is called itself: what it makes of its model's output would be left out. Pass "
            f"its .model to explain that one alone, or make {name} a torch.nn.Module, whose forward is explained."
        )


def unpacked(model: Any, processor: Any) -> tuple[Any, Any]:
    """Return model and processor of a transformers pipeline, a folder or a name; wrap a function as a model."""
    if (inner := cross_encoder(model)) is not None:
        return inner, model.tokenizer if processor is None else processor
    if isinstance(model, nn.Module):
        return model, processor
    if takes_questions(model):
        return asked_model(model, AskedModel), processor
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        _require_plain(model)
        return inner, processor if processor is not None else _processor_of(model)
    if isinstance(model, (str, Path)):
        return loaded(model, processor)
    if not callable(model):  # a fitted estimator
        model = getattr(model, "predict_proba", model)
    if callable(model) and not isinstance(model, type):
        return asked_model(model, AskedFunction if arguments_of(model) == 1 else AskedModel), processor
    return model, processor
