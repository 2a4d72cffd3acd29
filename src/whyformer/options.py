"""What ``explain`` is asked for: the options with their types, a sentence on each, and their defaults (Request).

``takes`` makes the signature and the help text of a verb from them. Names are checked by type checkers where a verb is
declared with ``**options: Unpack[Options]``, values when it is called (parameters.py).
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from whyformer.errors import BadInput
from whyformer.inputs.decoding import PLAIN, Decoding, Stretch
from whyformer.parameters import (
    BatchSize,
    CharacterRange,
    Count,
    Hold,
    Limits,
    Named,
    NotEmpty,
    OneOf,
    PassCount,
    Replacement,
    Seed,
    Words,
    refuse_misspelled,
)
from whyformer.registry import list_methods

if TYPE_CHECKING:  # what imports torch, which ``whyformer --help`` does without; ``takes`` resolves these names
    from torch import Tensor

    from whyformer.inputs.stream_inputs import Baseline, Numbers
    from whyformer.inputs.units import Segments
    from whyformer.targets import Aims, Scalar

Verb = TypeVar("Verb", bound=Callable[..., Any])
Name = str | Named | None  # of a method, or a learned one; None: the default
Names = list[Any] | tuple[str | Named, ...]  # not a Sequence, which a text is, too
Memory = Annotated[str, OneOf("auto", "fold", "full")]
Text = Annotated[str, NotEmpty()]
_PARTS = Words('"thoughts", a role, a text, or a list of roles, texts and (start, end) pairs of characters')
Through = Annotated[Text | Annotated[Sequence[Text | CharacterRange], NotEmpty()], _PARTS] | None
HopCount = Annotated[int, Limits(0, 100)]
Choices = Annotated[Sequence[str], NotEmpty()]
Generate = Count | Mapping[str, Any] | None  # tokens, or what model.generate is told
AnswerPart = bool | Text | CharacterRange
Reduction = str | int | Sequence[int]  # of heads or layers


class MethodOptions(TypedDict, total=False):
    """Options of single methods; ``whyformer methods NAME`` says what they mean and which values they take.

    Those of methods that other packages register are not listed: type checkers accept them as ``**options``, a dict.
    """

    aggregate: str | int
    algorithm: str
    at: str | None
    baseline: Baseline | Mapping[str, Baseline]
    bias: str | None
    by: str | None
    discard: float
    distance: str | Callable[[Tensor, Tensor], Tensor]
    draws: int
    end_layer: int
    evaluations: int | str
    guide: Name
    heads: Reduction
    hold: Hold
    interactions: int
    joint: bool
    keep_special: bool | Sequence[int]
    layer: Reduction | None
    layers: Reduction
    level: str
    magnitude: bool
    maskings: int | None
    masks: int
    memory_mb: float
    noise: float
    norm: str
    normalize: bool
    normalize_cross: bool
    orders: int
    patch_smoothing: float
    protect_special: bool
    read: str
    reduce: str
    region: str
    replace: Replacement | Numbers
    residual: float | str | None
    rows: str
    samples: int
    score: str
    self_in_rule_10: bool
    start_layer: int
    steps: int
    superpixels: int
    threshold: float
    variant: str
    weight: str | None


class Sizing(MethodOptions, total=False):
    """Options that decide what an explanation costs.

    batch_size: the number of inputs per pass; None: what suits the device.
    memory: attention maps are stored ("full"), never stored ("fold"), or stored if they fit ("auto").
    units: the scored units: "token", "word", "sentence" or ranges of characters; for a text with images, ``{"text":
    "word", "image": [boxes or masks]}``; for tables, "groups" of columns that carry the same information.
    passes: without a method, the most faithful one within so many forwards per input (None: 128); a backward counts
    two, so 3 is one forward and one backward.
    """

    batch_size: BatchSize | None
    memory: Memory
    units: Segments
    passes: PassCount | None


class Options(Sizing, total=False):
    """Options of ``explain`` for any input.

    target: class or label, (a, b) for a rather than b, None for the prediction; a list has one per input.
    scalar: the number that is explained. "centred", the logit minus the mean of all logits, leaves out what the answer
    does not depend on (where classes do not exclude each other: the logit); or "logit", as in most papers,
    "probability", "log_odds", "cosine" or "maxsim" (two texts).
    keep_layers: keep a relevance map for each layer, where the method has them.
    choices: explain the next token among these texts.
    one_pass: use one gradient for all tokens of the answer.
    first_token: False gives no score to the first token, an attention sink in many language models (its share is in
    ``checks``).
    through: hand the answer's relevance on thoughts and tool messages on to what produced them (whyformer/hops.py).
    hops: with ``through``: the number of passes for each part.
    seed: the seed of everything that is drawn.
    progress: show a progress bar: always (True), never (False), or on a terminal (None).
    """

    target: Aims
    scalar: Scalar
    keep_layers: bool
    choices: Choices | None
    one_pass: bool
    first_token: bool
    through: Through
    hops: HopCount
    seed: Seed
    progress: bool | None


class Writing(Options, total=False):
    """Options of ``explain`` that change what a language model's explanation is.

    generate: explain the tokens that the model generates, at most so many, or as these arguments of its ``generate``
    say.
    span: explain the log-probability of the whole answer (True), or of a part of it: a text or a range of characters.
    """

    generate: Generate
    span: AnswerPart


class Loading(TypedDict, total=False):
    """What is given with a model.

    tokenizer: another name of ``processor``.
    attention_at: for custom attention, modules whose output is an attention map, and its layout (``Explainer``).
    """

    tokenizer: Any
    attention_at: Mapping[str, str] | None


class LoadingOptions(Options, Loading, total=False):
    """Options of ``whyformer.explain`` for any input."""


class LoadingWriting(Writing, Loading, total=False):
    """Options of ``whyformer.explain``."""


class EvaluationOptions(TypedDict, total=False):
    """Options of ``compare``, ``recommend`` and ``report``.

    replace: the baseline of masked features: text "mask", "unk", "pad", "delete", "resample" or a token id; images
    "mean", "zero", "blur", "grey", "black", "resample"; tables "zero", "mean", "resample".
    reference: inputs that means and resampling are taken from (None: the inputs themselves).
    hold: features that are never masked and not evaluated, by text, label or number, such as the question of a prompt;
    methods with this option hold the same unless given their own.
    cache: a folder for finished work; a stopped job resumes from it.
    """

    target: Aims
    scalar: Scalar
    replace: Replacement
    reference: Any
    units: Segments
    hold: Hold
    batch_size: BatchSize | None
    seed: Seed
    progress: bool | None
    cache: str | Path | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What methods are evaluated on, besides the inputs: the options with their defaults."""

    target: Aims = None
    scalar: Scalar = "centred"
    replace: Replacement = None
    reference: Any = None
    units: Segments = "token"
    hold: Hold = None
    batch_size: BatchSize | None = None
    seed: Seed = 0
    progress: bool | None = None
    cache: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of ``explain``, checked: the options with their defaults, the methods, and their own options."""

    target: Aims = None
    scalar: Scalar = "centred"
    batch_size: BatchSize | None = None
    memory: Memory = "auto"
    keep_layers: bool = False
    units: Segments = "token"
    generate: Generate = None
    span: AnswerPart | Stretch = False  # a stretch: of an answer that is explained through its thoughts
    choices: Choices | None = None
    one_pass: bool = False
    first_token: bool = True
    through: Through = None
    hops: HopCount = 1
    passes: PassCount | None = None
    seed: Seed = 0
    progress: bool | None = None
    methods: tuple[str | None, ...] = (None,)
    by_method: bool = False  # a list of methods was given: results are by name
    rest: Mapping[str, Any] = field(default_factory=dict)  # options of the methods

    @classmethod
    def of(
        cls,
        verb: Callable[..., Any] | None,
        method: Any,
        options: Mapping[str, Any],
        kind: type = Writing,
        owner: str = "",
    ) -> Request:
        """Make the request of a call of ``verb``; kind: the options that it has, others are those of methods."""
        names = names_of(kind)
        asked = {name: value for name, value in options.items() if name in names}
        others = {name: value for name, value in options.items() if name not in names}
        if others and verb is not None:
            refuse_misspelled(verb, others, (name for m in list_methods().values() for name in m.options), owner)
        method = method.name if isinstance(method, Named) else method
        by_method = method is not None and not isinstance(method, str)
        if by_method and not len(method):
            raise BadInput("method=[] is empty: omit it for the default, or name some (wf.list_methods()).")
        return cls(**asked, methods=tuple(method) if by_method else (method,), by_method=by_method, rest=others)

    def by(self, name: str | None, options: Mapping[str, Any]) -> Request:
        """Return the same request for one method with these options."""
        return replace(self, methods=(name,), by_method=False, rest=options)

    @cached_property
    def decoding(self) -> Decoding:
        """How the answer of a language model is made and explained."""
        decoding = Decoding(self.generate, self.span, tuple(self.choices or ()), self.one_pass, self.seed)
        return decoding or PLAIN


@cache
def names_of(kind: type, request: Any = Request) -> tuple[str, ...]:
    """Return the options of a TypedDict that are fields of a request: those of methods are not."""
    return tuple(f.name for f in fields(request) if f.name in kind.__annotations__)


@cache
def sentences() -> dict[str, str]:
    """Return what the docstrings of the TypedDicts say about each option."""
    text = "\n\n".join(inspect.getdoc(kind) or "" for kind in (Loading, Sizing, Options, Writing, EvaluationOptions))
    return {name: " ".join(words.split()) for name, words in re.findall(r"^(\w+): ((?:.|\n(?!\w+: |\n))*)", text, re.M)}


def takes(kind: type, request: Any = Request) -> Callable[[Verb], Verb]:
    """Show the options of a TypedDict in the signature and the help of a verb that is declared with ``**options``.

    request: has their defaults. Verbs that make a ``Request`` also take options of methods.
    """

    def shown(verb: Verb) -> Verb:
        from whyformer import targets
        from whyformer.inputs import units

        names, signature = names_of(kind, request), inspect.signature(verb)
        named = [f for f in fields(request) if f.name in names]
        *before, last = signature.parameters.values()
        others = [last.replace(annotation=Any)] if request is Request else []
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in named
        ]
        lines = [
            textwrap.fill(f"* {f.name}: {sentences()[f.name]}", 112, subsequent_indent="  ", break_on_hyphens=False)
            for f in named
        ]
        words, example, code = (inspect.getdoc(verb) or "").partition(">>> ")
        vars(verb).update(
            __signature__=signature.replace(parameters=[*before, *options, *others]),
            annotated_in={**verb.__globals__, **vars(units), **vars(targets), **globals()},
        )
        verb.__doc__ = "\n\n".join([words.strip(), "\n".join(lines), *([example + code] if code else [])])
        return verb

    return shown
