"""The model's output: which logits are explained, at which output position, under which names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.capture.functions import plain_gradients, scalar_from
from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.decoding import Continuation
from whyformer.inputs.exchanges import has_answers
from whyformer.inputs.families import class_names, task_of
from whyformer.inputs.tokens import is_causal, places, spoken_at
from whyformer.loan.borrow import RUNNING, known_about, modules_of
from whyformer.loan.turns import Draws
from whyformer.targets import answer_scalar, are_probabilities, logits_of, part_of, wrapper

COSINE = "scalar='cosine' is for models that compare two inputs (CLIP, SigLIP): use 'logit' here."


class Output:
    """Runs a model for the logits that are explained; those of a language model are computed at one position."""

    def __init__(self, modality: Modality, batch: Batch, scalar: str = "logit") -> None:
        self.modality, self.batch = modality, batch
        self.pairs: Tensor | None = None  # what pairs of units add to a similarity, once the batch has run
        self.model = modality.model
        if batch.constants.get("past_key_values") is not None:
            raise BadInput(
                "past_key_values holds tokens that are not among the inputs, so they cannot be scored: give the whole "
                "text, without past_key_values."
            )
        self.ends_in_sigmoid: bool | None = None  # the model returns probabilities; None until it has run here
        self.extra: dict[str, Any] = {"use_cache": False} if "use_cache" in modality.read.parameters else {}
        self.sizes, self.speaks = {*modality.mean.sizes, len(modality.read.classes)} - {0}, modality.mean.speaks
        self.causal, self.setup_forwards = False, 0  # rows that ran to find that out
        if self.speaks:
            tried = "causal" in known_about(self.model)
            self.causal = is_causal(modality.mean, batch)
            self.setup_forwards = 2 * (int("causal" in known_about(self.model)) - tried)  # a pair of rows
        self.independent, estimates = modality.mean.independent, modality.mean.estimates
        # The prediction is one of the classes. A detector scores each box, and has one more class: no object.
        self.chooses = not (estimates or modality.mean.outcome == "objects" or modality.kind == "prompt")
        # What exclude each other are classes, whose logits have a mean that does not matter.
        apart = self.independent or estimates or modality.mean.outcome == "objects" or bool(batch.spans)
        self.scalar = "logit" if apart and scalar == "centred" else scalar
        if estimates and scalar in {"probability", "log_odds"}:
            raise NotOffered(f"scalar={scalar!r}: a regression model has no classes: use scalar='logit'.")
        self.positions: list[int] | None = list(batch.positions) or None
        self.choices: list[int] = []  # tokens that are chosen among, where someone named them
        self.remarks: tuple[str, ...] = ()
        if self.causal:
            if scalar == "cosine":
                raise NotOffered(COSINE)
            if batch.keep_BN is None:
                raise NotOffered("a language model is explained at the last token: give it token ids.")
            if has_answers(batch):
                raise BadInput(
                    "(prompt, answer) has one explanation per token of the answer, which only explain() and check() "
                    "support. Here give one text, the prompt with the answer so far, and the next token as target=."
                )
            if batch.asked.decoding.choices:
                self.choices, self.remarks = choice_tokens(modality.read, batch.asked.decoding.choices)
            self.positions = self.positions or [count - 1 for count in batch.keep_BN.sum(1).tolist()]

    def logits(self, batch: Batch) -> Tensor:
        """(B, C) logits. Models that draw random numbers (ViLT samples patches) draw the same ones each time."""
        output, facts = None, known_about(self.model)
        generators = [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
        states = [generator.get_state() for generator in generators]
        RUNNING.passes += 1
        try:
            nothing = contextlib.nullcontext()
            drawing = nothing if facts.get("draws") is False else Draws(facts)
            with plain_gradients(self.model), drawing as draws:
                if self.causal:
                    logits = self._language_model(batch)
                else:
                    output = self.modality.read.call(batch, **self.extra)
                    if batch is self.batch and self.modality.mean.outcome == "similarity":
                        self.pairs = self.modality.mean.pairs(output, self.scalar)
                    its_own = self.modality.mean.logits(output, batch, self.scalar)
                    logits = self.row_per_input(output, batch) if its_own is None else its_own
        finally:
            RUNNING.passes -= 1
        with torch._C.DisableTorchFunction():
            if not all(torch.equal(s, g.get_state()) for s, g in zip(states, generators, strict=True)):
                facts.pop("draws", None)  # another thread drew, or the model after all: the next pass is watched
            if draws is not None:  # are the logits the last sigmoid's output, in another shape or type at most?
                last = draws.sigmoid
                alike = last is not None and last.numel() == logits.numel() and last.device == logits.device
                facts["sigmoid"] = alike and torch.equal(last.flatten().to(logits.dtype), logits.flatten())
            if "probabilities" not in facts and not (batch.answers or batch.spans):
                facts["probabilities"] = bool(facts.get("sigmoid")) or are_probabilities(logits)
        self.ends_in_sigmoid = bool(facts.get("sigmoid"))
        if logits.shape[0] != batch.size:
            raise self._other_rows(output, logits, batch.size)
        return logits

    def row_per_input(self, output: Any, batch: Batch) -> Tensor:
        """(B, C) logits of an output that the modality does not read in its own way."""
        if self.scalar == "cosine":
            raise NotOffered(COSINE)
        if isinstance(output, Mapping) and {"start_logits", "end_logits"} <= set(output):
            raise NotOffered(
                "a model that finds an answer in a text gives a start and an end to every token. "
                + one_answer(batch, output, output["start_logits"])
            )
        logits = logits_of(output, self.sizes)
        if isinstance(output, Mapping) and logits is output.get("encoder_last_hidden_state"):
            require_forecast(batch, output)
        shape = logits.shape  # asked once: a mode that watches the pass sees each question
        if len(shape) < 2:
            logits = logits.reshape(-1, 1)
            shape = logits.shape
        if batch.positions and self.modality.mean.outcome != "objects":
            if len(shape) != 3 or shape[1] != batch.real_BN.shape[1]:
                raise BadInput(
                    f"Target(position={batch.positions[0]}): the model returns logits of shape {tuple(shape)}, "
                    "not one row per token. Omit the position."
                )
            return logits[torch.arange(len(logits)), torch.tensor(places(batch)).to(logits.device)]
        if len(shape) != 2 and getattr(output, "last_hidden_state", None) is logits:  # as transformers returns it
            raise NotOffered(
                f"{type(self.model).__name__} has no head: it returns a vector of {shape[-1]} numbers per token "
                "or patch, not classes. Load the same weights with their head "
                "(AutoModelForSequenceClassification, AutoModelForCausalLM, AutoModelForImageClassification …); of an "
                "encoder of texts, a pair (a, b) as one input explains how alike they are."
            )
        modality = self.modality
        in_doubt = batch is self.batch and modality.read.embeds and shape[-1] == modality.place.length(batch)
        if len(shape) != 2 or (in_doubt and self._is_per_token(logits, batch)):
            per_token = modality.read.embeds and not modality.read.joint and len(shape) == 3
            raise NotOffered(
                f"the model returns logits of shape {tuple(shape)}: one row per input was expected. "
                + ("target=whyformer.Target(class, position=…) names one of them. " * per_token)
                + one_answer(batch, output, logits)
            )
        return logits

    def _is_per_token(self, logits: Tensor, batch: Batch) -> bool:
        """Return whether there is one number per token (ELECTRA's discriminator): a shorter text then has fewer."""
        width, known = logits.shape[1], known_about(self.model)
        if width < 2 or "row per token" in known:
            return width > 1 and bool(known["row per token"])
        cut = {k: v[:1, : width - 1] if v.ndim > 1 and v.shape[1] == width else v[:1] for k, v in batch.tensors.items()}
        shorter = replace(batch.select([0]), tensors=cut)
        try:
            # Modes that record the model at the moment must not see this pass.
            with torch.no_grad(), torch._C.DisableTorchFunction():
                follows = logits_of(self.modality.read.call(shorter, **self.extra), self.sizes).shape[-1] == width - 1
        except Exception:  # a model of texts of one length, or one that needs their end: judge by the config
            follows = width not in self.sizes and width != batch.size
        known["row per token"] = follows
        return follows

    def _other_rows(self, output: Any, logits: Tensor, inputs: int) -> NotOffered:
        said = f"the model returns logits of shape {tuple(logits.shape)} for {inputs} input{'s' * (inputs > 1)}: "
        expected = "one row per input was expected, in the order of the inputs. "
        if output is not None and logits.ndim == 2 and logits.shape[1] == inputs:
            squeezed = logits_of(output, self.sizes).ndim == 1  # (C,) of a single input
            first = next(iter(self.modality.read.parameters), "inputs")
            main = self.modality.main if self.modality.main in self.modality.read.parameters else first
            reading = part_of(output, self.sizes)[0] + (f".reshape(len({main}), -1)" if squeezed else ".T")
            code = wrapper(main, reading, keyword=main != first)
            return NotOffered(f"{said}{expected}If it is the other way round, wrap the model:\n{code}")
        return NotOffered(f"{said}{expected}Wrap the model in a module of yours whose forward returns them so.")

    def _language_model(self, batch: Batch) -> Tensor:
        """(B, C) at one position of each row, or (B, 1) the log-probability of each row's answer."""
        spoken = spoken_at(batch) if batch.answers else [[place] for place in places(batch)]
        positions = torch.tensor([place for row in spoken for place in row])
        extra, which, shared_pass = dict(self.extra), positions, batch.text_pass
        if "logits_to_keep" in self.modality.read.parameters:
            wanted = (positions if shared_pass is None else torch.tensor(shared_pass.places)).unique()
            which = torch.searchsorted(wanted, positions)
            extra["logits_to_keep"] = wanted.to(next(iter(batch.tensors.values())).device)
        if shared_pass is not None and shared_pass.in_use and shared_pass.logits_BPV is not None:
            logits = shared_pass.logits_BPV
        else:
            logits = logits_of(self.modality.read.call(batch.shared or batch, **extra), self.sizes)
            if shared_pass is not None and shared_pass.in_use:
                shared_pass.logits_BPV = logits
        if logits.ndim == 2 and not batch.answers:  # a subclass that chose the position itself
            return logits
        which = which.to(logits.device)
        if logits.ndim == 2:
            raise NotOffered(
                f"{type(self.model).__name__} returns logits at one position, and a whole answer needs them at each of "
                "its tokens. Omit span=: tokens are explained one by one."
            )
        if batch.answers:
            with scalar_from(logits):
                return answer_scalar(_log_probabilities(logits, batch.answers, which), self.scalar)
        rows = torch.arange(batch.size) if batch.shared is None else torch.zeros(batch.size, dtype=torch.long)
        chosen = logits[rows.to(logits.device), which]
        return chosen[:, self.choices] if self.choices else chosen

    @property
    def tokenizer(self) -> Any:
        return getattr(self.modality.processor, "tokenizer", self.modality.processor)

    @cached_property
    def labels(self) -> dict[int, str]:
        """Names of the classes."""
        if self.modality.mean.outcome == "similarity":
            return {0: "similarity"}
        if self.choices:
            return dict(enumerate(self.batch.asked.decoding.choices))
        if self.speaks:
            return {}
        if self.modality.read.classes:
            return dict(enumerate(self.modality.read.classes))
        names = self.modality.mean.names or self._names_inside()
        return {0: "score"} if names == {0: "LABEL_0"} else names  # transformers' own name of a single number

    def _names_inside(self) -> dict[int, str]:
        """Return the class names of a classifier inside the model whose logits it returns, or their softmax."""
        facts = known_about(self.model)
        if "names inside" not in facts:
            parts = [part for part in modules_of(self.model) if "Classification" in task_of(part) and class_names(part)]
            facts["names inside"] = next((class_names(part) for part in parts if self._returns(part)), {})
        names: dict[int, str] = facts["names inside"]
        return names

    def _returns(self, part: nn.Module) -> bool:
        """Return whether the model's output is the logits of a part, or their probabilities or logarithms."""
        seen: list[Tensor] = []  # a copy, since a model may write over them
        hook = part.register_forward_hook(lambda _, args, out: seen.append(logits_of(out).float().clone()))
        with contextlib.suppress(WhyformerError), torch.no_grad(), hook:
            self.setup_forwards += 1
            made = self.logits(self.batch.select([0])).float()
            if not seen or seen[-1].shape != made.shape or len(set(seen[-1].flatten().tolist())) < made.numel():
                return False  # classes with equal logits may be in any order
            last = seen[-1]
            ways = [last, last.sigmoid(), last.log_softmax(-1), last.softmax(-1)][: 4 if last.shape[-1] > 1 else 2]
            return any(torch.allclose(made, way, atol=1e-6) for way in ways)
        return False

    def name(self, index: int) -> str:
        """The label of one class, or the token of one id."""
        if self.speaks and not self.choices and self.modality.processor is not None:
            return str(self.tokenizer.decode([index]))
        return self.labels.get(index, "")

    def token_id(self, text: str) -> int | None:
        """The id of a token given as text, on language models."""
        if not self.speaks or self.choices or self.modality.processor is None:
            return None
        ids = processed(self.tokenizer, text, add_special_tokens=False)["input_ids"]
        unknown = ids == [getattr(self.tokenizer, "unk_token_id", None)] and text != self.tokenizer.unk_token
        if len(ids) != 1 or unknown:  # the next token is one of the vocabulary
            pieces = " ".join(map(repr, self.tokenizer.convert_ids_to_tokens(ids))) or "none"
            raise BadInput(
                f"target {text!r} is not a single token of this tokenizer (it is {pieces}): give one of its tokens, "
                "with the leading space that many of them have (' mat'), or a token id."
            )
        return int(ids[0])


def _log_probabilities(logits_BPV: Tensor, answers: Sequence[Continuation], which: Tensor) -> Tensor:
    """(B, 1) of each row's answer, Σ_t log p_t, p_t = p(token t | the tokens before it); which: rows of logits.

    With weights: Σ_t w_t log(p_t / (1 - p_t)).
    """
    totals, first = [], 0
    for logits_PV, answer in zip(logits_BPV, answers, strict=True):
        count = len(answer.tokens)
        places_T, tokens_T = which[first : first + count], torch.tensor(answer.tokens, device=logits_PV.device)
        rows_TV = logits_PV[places_T].float()
        if answer.weights:
            # 1 - p_t as the sum over the other tokens: exact where p_t rounds to 1. The rows are a copy of the logits.
            others_T = rows_TV.scatter_(1, tokens_T[:, None], -torch.inf).logsumexp(1)
            odds_T = logits_PV[places_T, tokens_T].float() - others_T
            likely_T = odds_T * torch.tensor(answer.weights, device=odds_T.device)
        else:
            likely_T = rows_TV.gather(1, tokens_T[:, None])[:, 0] - rows_TV.logsumexp(1)
        totals.append(likely_T.sum())
        first += count
    return torch.stack(totals)[:, None]


def choice_tokens(read: Any, choices: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """Return the first token of each choice, and a remark where choices have more tokens."""
    tokenizer = read.tokenizer
    spelled = [processed(tokenizer, choice, add_special_tokens=False)["input_ids"] for choice in choices]
    if not all(spelled):
        raise BadInput(f"choices={tuple(choices)!r}: each needs at least one token.")
    first = [int(ids[0]) for ids in spelled]
    for choice, token in zip(choices, first, strict=True):
        if token == getattr(tokenizer, "unk_token_id", None) and not choice.startswith(tokenizer.unk_token):
            raise BadInput(
                f"choices={tuple(choices)!r}: this tokenizer has no token for {choice!r}, the next token is "
                "one of the vocabulary."
            )
    if len(set(first)) < len(first):
        raise BadInput(
            f"choices={tuple(choices)!r} begin with the same token, so the next token does not decide between them. "
            "Name them by letters in the prompt, and give those; or compare answers, target=(one, other)."
        )
    longer = ", ".join(repr(choice) for choice, ids in zip(choices, spelled, strict=True) if len(ids) > 1)
    note = f"only the first token of {longer} counts, because the model predicts the next token."
    return first, (note,) if longer else ()


def _one(batch: Batch, answer: str) -> str:
    """Return the code of a module that wraps the model and returns ``answer``, an expression behind its call."""
    passed = ", ".join(f"{name}={name}" for name in batch.tensors)
    return f"""
class One(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, getattr(model, "config", None)

    def forward(self, {", ".join(batch.tensors)}):
        return self.model({passed}){answer}
"""


def require_forecast(batch: Batch, output: Mapping[str, Any]) -> None:
    """Raise for TimeSeriesTransformer, Informer and Autoformer, which return parameters of a distribution, or none."""
    listed = isinstance(output.get("params"), (tuple, list))
    if not listed and not any(name.startswith("past_") for name in batch.tensors):
        return  # no forecaster
    if not listed:
        raise NotOffered(
            "the model returns hidden states only, and no forecast, because future_values and future_time_features are "
            "missing. Give them, too; then the forecast of a step can be explained."
        )
    raise NotOffered(
        "a forecaster returns parameters of a distribution for each step, one tensor of params each. Explain one of "
        "them, params[number][:, step, None], with One(model); set the parameter and the step in its last "
        f"line:\n{_one(batch, '.params[1][:, 0, None]')}"
    )


def one_answer(batch: Batch, output: Any, logits: Tensor) -> str:
    """Return how to explain one of many answers, with code that runs."""
    fields = output if isinstance(output, Mapping) else {}
    logits = fields.get("pred_masks", logits)  # segmentation: the masks are the answers
    field = next((str(k) for k, v in fields.items() if v is logits), "")
    places = [f"{size // 2}" for size in logits.shape[1:]]
    # Logits hold classes at the last axis, or before the pixels; of others (depths, masks) each number is an answer.
    named = not fields or field.endswith("logits")
    if named and logits.ndim == 4:
        names, places = [":", "row", "column"], [":", *places[1:]]
    elif named and logits.ndim == 3:
        names, places = ["position"], places[:1]
    elif logits.ndim == 2:
        names, places = ["[position]"], [f"[{places[0]}]"]
    else:
        first = ["0"] * (len(places) - 2)
        last = ("row", "column") if "pixel_values" in batch.tensors else ("step", "number")
        names, places = [*first, *last, "None"], [*first, *places[-2:], "None"]
    of = f".{field}" if field else "" if isinstance(output, Tensor) else "[0]"
    code = _one(batch, f"{of}[:, {', '.join(places)}]")
    return (
        f"Explain one of them, {of.removeprefix('.')}[:, {', '.join(names)}], with One(model); set the indices in its "
        f"last line:\n{code}"
    )
