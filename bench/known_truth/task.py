"""What a task with a known cause is: inputs, where their cause lies, and the same inputs with the cause changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Inputs = dict[str, Tensor]
SMALL: dict[str, Any] = {  # a model of text
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.1,  # as wide as a narrow model needs to begin to learn soon
}


@dataclass(frozen=True)
class Change:
    """The same inputs with one part of the cause changed, so that the rule of the task says something else."""

    inputs: Inputs
    possible_I: Array  # where the part can be changed so


@dataclass(frozen=True)
class Planted:
    """Held-out inputs. U counts the units that are no special tokens, in their order."""

    inputs: Inputs
    asked_I: Array  # the class whose score is explained; the right one
    cause_IU: Array
    counted_IU: Array  # cause and distractors; padding, and what is neither, is not
    changes: dict[str, Change]
    rest_redrawn: Inputs  # all distractors drawn anew


class Task(Protocol):
    """One task: its rule draws the data, its model is tiny."""

    @property
    def name(self) -> str: ...
    @property
    def modality(self) -> str: ...
    @property
    def steps(self) -> int: ...  # of training, at most
    @property
    def rate(self) -> float: ...

    def model(self) -> nn.Module: ...
    def processor(self) -> Any: ...
    def batch(self, rng: np.random.Generator, count: int) -> tuple[Inputs, Tensor]: ...
    def held_out(self, rng: np.random.Generator, count: int) -> Planted: ...
    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor: ...
    def loss(self, model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor: ...


class Classifier(ABC):
    """A task whose model chooses one class per input."""

    @abstractmethod
    def logits(self, model: nn.Module, inputs: Inputs) -> Tensor: ...

    def loss(self, model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(model, inputs), labels)


def moved(inputs: Inputs, device: str) -> Inputs:
    return {k: v.to(device) for k, v in inputs.items()}


def whole_word_tokenizer(vocabulary: tuple[str, ...], template: str | None, **special: str) -> Any:
    """A tokenizer that splits at spaces. ``special``: pad_token="[PAD]", …; template: e.g. "[CLS] $A [SEP]"."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: i for i, word in enumerate(vocabulary)}
    made = Tokenizer(models.WordLevel(ids, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template is not None:
        named = [(t, ids[t]) for t in template.split() if t in ids]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **special)


def long(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).long()
