"""Prompts of a model that is called from outside: a function or server that returns log-probabilities of answers."""

from __future__ import annotations

import hashlib
import inspect
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, ModelFailed, NonFinite, NotOffered, WhyformerError, listed, shown
from whyformer.inputs.base import Mask, Mean, Modality, Place, Read
from whyformer.inputs.batch import Batch, Filling, Raw, SamplePool
from whyformer.inputs.decoding import PLAIN_OPTIONS, Decoding, InputOptions, Stretch
from whyformer.inputs.exchanges import part_of, require_one_wish
from whyformer.inputs.units import Span, spans_of
from whyformer.results.types import Target, Units

GONE, THERE = 0, 1  # a unit is deleted or there; higher numbers are texts in its place
CERTAIN = -1e-16  # the largest log-probability, so that log-odds stay finite
ROUNDING = 1e-4  # how far above 0 a log-probability may come out
OPENING, QUOTES = "([{<“‘«„¿¡$#@", "\"'"  # signs that belong to the word that follows
OF_TOKENS = ("mask", "unk", "pad", "attention_mask", "resample")  # baselines of models that run here


class Says(Protocol):
    """A function that returns the log-probability of each answer after its prompt."""

    def __call__(self, prompts: Sequence[str], answers: Sequence[str], /) -> Sequence[float]: ...


PROTOCOL = (
    "a remote model is a function of two lists, (prompts, answers), that returns the log-probability of each answer "
    "after its prompt; wf.CompletionServer(url) and wf.ChatServer(url) are such functions"
)


@dataclass(frozen=True)
class Prompt:
    """A text, the answer whose probability is explained, and the stretches of the text that are scored."""

    text: str
    answer: str
    spans: tuple[Span, ...]
    written: str = ""  # the start of the answer, where a later part of it is explained
    words: bool = True  # the stretches are words

    @property
    def key(self) -> int:
        """A number that identifies these contents in a tensor."""
        contents = (self.text, self.answer, self.spans, self.written)
        return int.from_bytes(_digest(contents, 8), "little", signed=True)


def _digest(contents: tuple[Any, ...], size: int) -> bytes:
    return hashlib.blake2b(repr(contents).encode(), digest_size=size).digest()


class AskedModel(nn.Module):
    """A module without weights around the function: (B, U) codes of the units → (B, 1) log-odds of the answer."""

    opaque = True

    def __init__(self, says: Says, identity: str) -> None:
        super().__init__()
        self.says = says
        self.prompts: dict[int, Prompt] = {}
        self.replacements: list[str] = []  # texts in place of a unit: number THERE + 1 and on
        self.said: dict[bytes, float] = {}  # the cache, by a digest of prompt and answer: no text is sent twice
        # Identifies the model in a cache on disk, as weights identify others.
        self.register_buffer(
            "identity", torch.tensor(list(identity.encode("utf-8", "surrogatepass")), dtype=torch.uint8)
        )

    def forward(self, present: Tensor, prompt: Tensor) -> Tensor:
        questions = [self.question(*variant) for variant in zip(prompt.tolist(), present.tolist(), strict=True)]
        keys = [_digest(question, 16) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in self.said}
        if new:
            prompts, answers = (list(texts) for texts in zip(*new.values(), strict=True))
            self.said.update(zip(new, self._asked(prompts, answers), strict=True))
        log_p = torch.tensor([[self.said[key]] for key in keys], dtype=torch.float64).clamp(max=CERTAIN)
        return log_p - torch.log(-torch.expm1(log_p))

    def question(self, key: int, row: Sequence[int]) -> tuple[str, str]:
        """Return the prompt of a variant, and the answer."""
        prompt = self.prompts[key]
        standing = [None if n == THERE else self.replacements[n - THERE - 1] if n else "" for n in row]
        return changed(prompt.text, prompt.spans, standing[: len(prompt.spans)]) + prompt.written, prompt.answer

    def number(self, replacement: str) -> int:
        """Return the code of a unit that is replaced by this text."""
        if replacement not in self.replacements:
            self.replacements.append(replacement)
        return self.replacements.index(replacement) + THERE + 1

    def _asked(self, prompts: list[str], answers: list[str]) -> list[float]:
        name = named(self.says)
        try:
            numbers = [float(number) for number in self.says(prompts, answers)]
        except WhyformerError:
            raise
        except Exception as error:
            raise ModelFailed(
                f"{name} raised {type(error).__name__}: {error}, when it was called for the log-probability of "
                f"{shown(answers[0])} after {shown(prompts[0])} (one of {len(prompts)} pairs in this call). Call it "
                f"directly: {PROTOCOL}."
            ) from error
        if len(numbers) != len(prompts):
            raise BadInput(f"{name} returned {len(numbers)} numbers for {len(prompts)} prompts: {PROTOCOL}.")
        for number, prompt, answer in zip(numbers, prompts, answers, strict=True):
            if not math.isfinite(number):
                raise NonFinite(
                    f"{name} returned {number} for {shown(answer)} after {shown(prompt)}: a log-probability must be "
                    "finite. For an impossible answer, return a very low number, such as -100."
                )
            if number > ROUNDING:
                raise BadInput(
                    f"{name} returned {number:.4g} for {shown(answer)} after {shown(prompt)}, and a log-probability is "
                    f"never above 0. Return logarithms, not probabilities or losses: {PROTOCOL}."
                )
        return numbers


def arguments_of(model: Any) -> int:
    """Count the required arguments of a function; of one without a signature (written in C), one is assumed."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):
        return 1
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in places for p in parameters)


def takes_questions(model: Any) -> bool:
    """Return whether a function takes exactly two required arguments (a pipeline, which holds a model, does not)."""
    return callable(model) and not isinstance(model, (type, nn.Module)) and arguments_of(model) == 2


Wrapped = TypeVar("Wrapped", bound=AskedModel)


def asked_model(model: Callable[..., Any], kind: type[Wrapped]) -> Wrapped:
    """Wrap a function as a model of this kind; raise if it takes anything but its arguments."""
    try:
        inspect.signature(model).bind(*[[]] * (2 if kind is AskedModel else 1))
    except TypeError:
        raise BadInput(
            f"model is a {type(model).__name__} that takes neither inputs nor (prompts, answers). Pass a "
            "torch.nn.Module, a transformers pipeline, or a function that returns one row of probabilities per input "
            f"(predict_proba); or else: {PROTOCOL}."
        ) from None
    except ValueError:  # written in C: calling it shows what it takes
        pass
    # A plain function may change, so its cache serves this object only. A server is asked for its model's name here,
    # before that name is used.
    identity = str(getattr(model, "identity", "") or uuid.uuid4())
    # Results show the name of the class; "(asked)" keeps it from ending like a class of transformers.
    asked: Wrapped = type(f"{named(model)} (asked)", (kind,), {})(model, identity)
    return asked


def named(says: Any) -> str:
    """Return the printable name of a function, or of an object's class."""
    name = str(getattr(says, "__name__", type(says).__name__))
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name)


class PromptRead(Read):
    """One (prompt, answer) per input; units are the words of the prompt, its sentences, or stretches of it."""

    stream, main, kind = "text", "present", "prompt"
    opaque = True

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        if processor is not None:
            raise BadInput("processor= is for local models: a remote model gets plain text.")
        super().__init__(model)
        self.samples = int(getattr(model.says, "samples", 0))

    def allowed(self, decoding: Decoding, segments: Any) -> Any:
        if decoding.choices or isinstance(decoding.generate, Mapping):
            raise NotOffered(
                "choices, and settings for generate, are for local models. Here an answer is explained: give it, "
                "(prompt, answer), or generate= a number of tokens."
            )
        if isinstance(decoding.span, Stretch):
            raise NotOffered("through= needs the tokens of the answer, and a remote model has none: omit it.")
        if decoding.one_pass:
            raise NotOffered("one_pass needs gradients, and a remote model has none: omit it.")
        return segments

    def encode(self, raw: Sequence[Raw]) -> Batch:
        return self.batch(raw, PLAIN_OPTIONS)

    def batch(self, raw: Sequence[Raw], asked: InputOptions) -> Batch:
        assert isinstance(self.model, AskedModel)
        size = "word" if asked.segments == "token" else asked.segments  # there is no tokenizer
        prompts = [self._prompt(pair, asked.decoding, size) for pair in raw]
        counts = torch.tensor([len(prompt.spans) for prompt in prompts])
        present = torch.full((len(prompts), int(counts.max())), THERE)
        self.model.prompts |= {prompt.key: prompt for prompt in prompts}
        return Batch(
            {"present": present, "prompt": torch.tensor([prompt.key for prompt in prompts])},
            keep_BN=torch.arange(present.shape[1]) < counts[:, None],
            raw=tuple(prompts),
            warnings=((),) * len(prompts),
            asked=replace(asked, segments="token"),  # which the prompts are divided by
        )

    def _prompt(self, pair: Raw, decoding: Decoding, size: str | Sequence[Any]) -> Prompt:
        if isinstance(pair, str) and decoding.generate is not None:
            pair = pair, self._generated(pair, decoding.generate)
        elif isinstance(pair, tuple) and decoding.generate is not None:
            require_one_wish(decoding, answers=True)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadInput(
                f"the input is {shown(pair)}, and a remote model takes (prompt, answer), two texts: the answer is "
                "explained. To explain the server's own answer, give generate= a number of tokens."
            )
        text, answer = pair
        if not answer:
            raise BadInput("the answer is empty: give (prompt, answer), the answer with its leading space.")
        spans = tuple(spans_of(text, size))
        if not spans:
            name = f"{size}s" if isinstance(size, str) else "units"
            raise BadInput(f"the prompt {shown(text)} has no {name}: give at least one.")
        assert not isinstance(decoding.span, Stretch), "allowed() refuses hops"
        start, end = part_of(answer, decoding.span)
        # A chat model cannot be given the start of its answer: a part is looked for in whole sampled answers.
        return Prompt(text, answer[start:end], spans, "" if self.samples else answer[:start], size == "word")

    def _generated(self, prompt: str, tokens: Any) -> str:
        """Return what the model generates, where it has a generate()."""
        generate = getattr(self.model.says, "generate", None)
        if generate is None:
            raise NotOffered(
                f"{named(self.model.says)} has no generate(prompt, tokens): give the answer, (prompt, answer)."
            )
        answer = str(generate(prompt, tokens))
        if not answer:
            raise NotOffered(f"the model's answer to {shown(prompt)} is empty.")
        return answer


class PromptPlace(Place):
    """Words, sentences or stretches of the prompt."""

    read: PromptRead
    lengths_vary = True

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        return [(batch.tensors[self.read.main], self.read.stream)]

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        result = []
        for prompt in batch.raw:
            count = len(prompt.spans)
            labels = tuple(prompt.text[start:end] for start, end in prompt.spans)
            word = tuple(range(count)) if prompt.words else None
            plain = Units(labels, (False,) * count, (self.read.stream,) * count, word=word)
            result.append(replace(plain, spans=prompt.spans, text=prompt.text))
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return batch.real_BN


class PromptMask(Mask):
    """A masked unit is deleted, or replaced by another text."""

    edits_text = True
    replacements = ("delete",)

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        assert isinstance(self.read.model, AskedModel)
        if not isinstance(name, str) or name in OF_TOKENS:
            raise BadInput(
                f"replace={name!r} is for tokens of a local model: here a unit is deleted, replace='delete', or "
                "replaced by a text, such as replace='…' or replace='[MASK]'."
            )
        number = GONE if name == "delete" else self.read.model.number(name)
        return [{self.read.main: torch.full_like(one.tensors[self.read.main], number)}]


class PromptMean(Mean):
    """The probability of the answer."""

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        """The answer is the target."""
        wanted = target if isinstance(target, list) else [target] * batch.size
        targets = [Target(0, prompt.answer) for prompt in batch.raw]
        for want, answer in zip(wanted, targets, strict=True):
            chosen = want.index if isinstance(want, Target) and want.versus is None else want
            if isinstance(chosen, bool) or chosen not in (None, answer.index, answer.label):
                raise BadInput(
                    f"target={shown(want)}: the probability of {shown(answer.label)} itself is explained. Omit "
                    "target=, and give another answer as another input, (prompt, answer)."
                )
        return batch, targets

    def scalar(self, scalar: str) -> str:
        if scalar in {"cosine", "maxsim"}:
            raise NotOffered(f"scalar={scalar!r} is for models that compare two inputs: omit it here.")
        if self.samples and scalar not in {"logit", "centred", "probability"}:
            raise NotOffered(
                f"scalar={scalar!r}: a share of sampled answers may be 0 and has no logarithm: omit it here."
            )
        return scalar if scalar not in {"logit", "centred"} else "probability" if self.samples else "log_probability"

    def announce(self, passes: float, batch: Batch) -> None:
        if (announce := getattr(self.read.model.says, "announce", None)) is not None:
            announce(passes, max(len(prompt.text) for prompt in batch.raw))

    def notes(self, batch: Batch, length: int) -> tuple[str, ...]:
        """Where answers are sampled: what the values are, what they took, and whether an answer was never sampled."""
        says: Any = self.read.model.says
        if not hasattr(says, "summary"):
            return ()
        never = [shown(prompt.answer) for prompt in batch.raw if not says.share(prompt.text, prompt.answer)]
        unmatched = (
            f"no sampled answer matches {listed(never, 'or')}, so scores are not above 0. Check the answer, or use "
            "match= of ChatServer."
        )
        return (says.summary(), *([unmatched] if never else ()))


PromptInput = Modality.of(PromptRead, PromptPlace, PromptMask, PromptMean)


# Texts with stretches replaced or deleted


def changed(text: str, spans: Sequence[Span], standing: Sequence[str | None]) -> str:
    """Replace some stretches of a text; None: unchanged, "": deleted, with the space around it."""
    edits: list[tuple[int, int, str]] = []
    for (start, end), stands in sorted(zip(spans, standing, strict=True)):
        if stands is None:
            continue
        if edits and not stands and not edits[-1][2] and not text[edits[-1][1] : start].strip():
            edits[-1] = (edits[-1][0], end, "")  # neighbours go together, with the space between them
        else:
            edits.append((start, end, stands))
    result, at = "", 0
    for start, end, stands in edits:
        first, last, instead = (start, end, stands) if stands else _closed(text, start, end)
        result += text[at : max(at, first)] + instead
        at = last
    return result + text[at:]


def _closed(text: str, start: int, end: int) -> tuple[int, int, str]:
    """Extend a stretch by the space on both sides; return it, and the space that replaces it."""
    stem, rest = text[:start].rstrip(), text[end:].lstrip()
    first, last = len(stem), len(text) - len(rest)
    before, after = text[first:start], text[end:last]
    if not rest:
        space = after  # the answer follows: the prompt ends as it did
    elif not stem:
        space = before
    elif before and after:
        space = max(before, after, key=lambda gap: (gap.count("\n"), len(gap)))  # a paragraph outlives its sentence
    elif before:  # "the cat." without "cat": the full stop moves up
        space = before if rest[0].isalnum() or rest[0] in OPENING else ""
    else:  # "(cat dog)" without "cat"
        space = "" if stem[-1] in OPENING + QUOTES else after
    return first, last, space
