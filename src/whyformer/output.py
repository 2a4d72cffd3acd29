"""The end of the model: which logits are explained, at which output position, under which names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.base import Batch, Modality
from whyformer.inputs.families import task_of
from whyformer.targets import logits_of


class Output:
    """Runs a model for the logits that matter, and no others: a language model's are computed at one position."""

    def __init__(self, modality: Modality, batch: Batch, scalar: str = "logit") -> None:
        self.modality, self.scalar, self.batch = modality, scalar, batch
        self.pairs: Tensor | None = None  # what pairs of units add to a similarity, once the batch was run
        self.model = modality.model
        if batch.constants.get("past_key_values") is not None:
            raise BadInput(
                "past_key_values holds tokens that are not among the inputs, so no score could be theirs: give the "
                "whole text, without past_key_values."
            )
        self.extra: dict[str, Any] = {}
        if "use_cache" in modality.parameters:
            self.extra["use_cache"] = False
        self.causal = is_causal_lm(self.model) and not modality.generates
        self.speaks = self.causal or modality.generates  # classes are tokens
        config = getattr(self.model, "config", None)
        # Classes that do not exclude each other, as the config says: each has a probability of its own.
        self.independent = getattr(config, "problem_type", None) == "multi_label_classification"
        self.positions: list[int] | None = list(batch.positions) or None
        if self.causal:
            self.positions = self._last_positions(batch)

    def _last_positions(self, batch: Batch) -> list[int]:
        keep = batch.keep_BN
        if keep is None:
            raise NotOffered("a language model is explained at the last token: give it token ids.")
        width = keep.shape[1]
        return [width - 1 - int(row.flip(0).float().argmax()) for row in keep]

    def logits(self, batch: Batch) -> Tensor:
        """(B, C) logits. Models that draw random numbers (ViLT samples patches) draw the same ones each time."""
        # As torch.manual_seed(0), which formats a whole traceback per call where CUDA has not been used yet. Inside
        # borrowed(): the caller's random state is kept.
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
        if self.causal:
            return self._language_model(batch)
        output = self.modality.call(batch, **self.extra)
        if batch is self.batch and self.modality.compares:
            self.pairs = self.modality.pairs(output)
        logits = self.modality.logits(output, batch, self.scalar)
        if logits is not None:
            return logits
        if self.scalar == "cosine":
            raise NotOffered("scalar='cosine' is for models that compare two inputs (CLIP, SigLIP): use 'logit' here.")
        if isinstance(output, Mapping) and {"start_logits", "end_logits"} <= set(output):
            raise NotOffered(
                "a model that finds an answer in a text gives a start and an end to every token. "
                + one_answer(self.model, batch, output, output["start_logits"])
            )
        logits = logits_of(output)
        if logits.ndim == 1:
            logits = logits[:, None]
        if logits.ndim != 2 and self._lacks_head(output):
            raise NotOffered(
                f"{type(self.model).__name__} has no head: it returns a vector of {logits.shape[-1]} numbers per token "
                "or patch, and no class to explain. Load the same weights with their head "
                "(AutoModelForSequenceClassification, AutoModelForCausalLM, AutoModelForImageClassification …); of an "
                "encoder of texts, a pair (a, b) as one input explains how alike they are."
            )
        # One number per token (ELECTRA's discriminator): as many as there are tokens, and neither as many as classes
        # nor as inputs (CLIP compares every pair of them).
        ids, classes = batch.tensors.get("input_ids"), getattr(getattr(self.model, "config", None), "num_labels", None)
        per_token = ids is not None and classes is not None and batch is self.batch and logits.shape[1] == ids.shape[1]
        if logits.ndim != 2 or (per_token and logits.shape[1] not in {classes, batch.size}):
            raise NotOffered(
                f"the model returns logits of shape {tuple(logits.shape)}: one row per input was expected. "
                + one_answer(self.model, batch, output, logits)
            )
        return logits

    @staticmethod
    def _lacks_head(output: Any) -> bool:
        """As transformers returns what its models without a head say."""
        return hasattr(output, "last_hidden_state") and getattr(output, "logits", None) is None

    def _language_model(self, batch: Batch) -> Tensor:
        positions = torch.tensor(self._last_positions(batch))
        extra, which = dict(self.extra), positions
        if "logits_to_keep" in self.modality.parameters:
            wanted, which = positions.unique(return_inverse=True)
            extra["logits_to_keep"] = wanted.to(next(iter(batch.tensors.values())).device)
        logits = logits_of(self.modality.call(batch, **extra))
        if logits.ndim == 2:  # a subclass that chose the position itself
            return logits
        return logits[torch.arange(len(logits)), which.to(logits.device)]

    @property
    def tokenizer(self) -> Any:
        return getattr(self.modality.processor, "tokenizer", self.modality.processor)

    @cached_property
    def labels(self) -> dict[int, str]:
        """Names of the classes."""
        if self.modality.compares:
            return {0: "similarity"}
        if self.speaks:
            return {}
        if self.modality.classes:
            return dict(enumerate(self.modality.classes))
        names = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        return {int(k): str(v) for k, v in names.items()}

    def name(self, index: int) -> str:
        """The label of one class, or the token of one id."""
        if self.speaks and self.modality.processor is not None:
            return str(self.tokenizer.decode([index]))
        return self.labels.get(index, "")

    def token_id(self, text: str) -> int | None:
        """The id of a token given as text, on language models."""
        if not self.speaks or self.modality.processor is None:
            return None
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        unknown = ids == [getattr(self.tokenizer, "unk_token_id", None)] and text != self.tokenizer.unk_token
        if len(ids) != 1 or unknown:  # the next token is one of the vocabulary
            pieces = " ".join(map(repr, self.tokenizer.convert_ids_to_tokens(ids))) or "none"
            raise BadInput(
                f"target {text!r} is no single token of this tokenizer (it is {pieces}): give one of its tokens, with "
                "the space in front that many of them have (' mat'), or a token id."
            )
        return int(ids[0])


WRAPPER = """
class One(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, getattr(model, "config", None)

    def forward(self, {names}):
        return self.model({passed}){answer}
"""


def one_answer(model: Any, batch: Batch, output: Any, logits: Tensor) -> str:
    """How one of many answers is explained, in code that runs: a module that takes all that this model was given.

    An output called logits holds classes at its last axis, or before the pixels of a picture; of others (depths, masks,
    forecasts) each number is an answer.
    """
    fields = output if isinstance(output, Mapping) else {}
    if "pred_masks" in fields:
        logits = fields["pred_masks"]  # of a model that cuts things out, the answers; others say how sure it is
    field = next((str(k) for k, v in fields.items() if v is logits), "")
    places = [f"{size // 2}" for size in logits.shape[1:]]
    named = not fields or field.endswith("logits")
    if named and logits.ndim == 4:
        names, places = [":", "row", "column"], [":", *places[1:]]
    elif named and logits.ndim == 3:
        names, places = ["position"], places[:1]
    elif logits.ndim == 2:
        names, places = ["[position]"], [f"[{places[0]}]"]
    else:
        last = ("row", "column") if "pixel_values" in batch.tensors else ("step", "number")
        names, places = (
            [*(["0"] * (len(places) - 2)), *last, "None"],
            [*(["0"] * (len(places) - 2)), *places[-2:], "None"],
        )
    of = f".{field}" if field else "" if isinstance(output, Tensor) else "[0]"
    arguments = ", ".join(batch.tensors)
    code = WRAPPER.format(
        names=arguments,
        passed=", ".join(f"{name}={name}" for name in batch.tensors),
        answer=f"{of}[:, {', '.join(places)}]",
    )
    return (
        f"Explain one answer of the many, {of.removeprefix('.')}[:, {', '.join(names)}], as One(model) gives it; put "
        f"the place you mean into its last line:\n{code}"
    )


def is_causal_lm(model: Any) -> bool:
    writes = task_of(model).endswith(("ForCausalLM", "LMHeadModel"))
    return writes and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
