"""The data types of the library: units, targets, captured attention, explanations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, SupportsIndex, TypeVar, overload

import numpy as np
from torch import Tensor

from whyformer.brief import WIDEST, brief, cut, several
from whyformer.errors import BadInput
from whyformer.files import resized
from whyformer.parameters import OneOf, Size, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, below, dataframe, to_shap
from whyformer.results.result import EXPLANATION, Pictured, Result
from whyformer.shapes import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_SHOWN = 60  # characters of a text, in one line about its explanation
ROUNDING = 5e-7  # of a float32 number, about
ALIKE = 0.02  # of the largest score: a map without a sign that differs by less is flat
BARELY = 1e-4  # of the explained logit: effects that do not move it
MOSTLY = 0.99  # share of the scores on special tokens, beyond which nothing is said of the input

# Part of the warning about models that return probabilities. Pictures go by it: the value is no logit.
EXPLAINS_PROBABILITY = "the explained value is the probability itself"


def scalar_name(scalar: str) -> str:
    """logit, centred logit, log-odds, …"""
    return "centred logit" if scalar == "centred" else scalar.replace("_", "-")


@dataclass(frozen=True)
class Units:
    """The units that are scored: one entry per input position, padding left out.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> units = wf.explain(model, "I like the movie", tokenizer).units
    >>> [label for label, special in zip(units.labels, units.special) if not special]
    """

    later: ClassVar[tuple[str, ...]] = ("role", "seconds", "wave")

    labels: tuple[str, ...]  # tokens, "patch 3,4" (row and column from the top left, from 1), names of columns
    special: tuple[bool, ...]  # marks of the model ([CLS], [SEP]), which are no part of the input
    stream: tuple[str, ...]  # which input each belongs to: "text", "image", "table", "source", …
    grid: tuple[int, int] | None = None  # rows, columns of the patches, for images
    word: tuple[int, ...] | None = None  # index of the word each unit belongs to, -1 for special tokens
    spans: tuple[tuple[int, int], ...] | None = None  # character range of each unit in ``text``
    text: str | None = None  # the original string, where it is known
    image_size: tuple[int, int] | None = None  # height, width the grid covers
    boxes: tuple[tuple[float, ...], ...] | None = None  # left, top, right, bottom as shares of the image
    values: tuple[str, ...] | None = None  # what stood in each column, for tables
    unseen: tuple[str, ...] = ()  # columns that no unit stands for: the model does not attend to them
    picture_size: tuple[int, int] | None = None  # height, width of the picture, where the model saw all of it squeezed
    # Whose words they are, in what a language model reads: "prompt", "answer", "system", "user", "template", …
    role: tuple[str, ...] | None = None
    seconds: float | None = None  # of sound: how long it is, from the first frame to the last
    wave: tuple[float, ...] | None = None  # of sound: how loud it is, at even steps of that time; 1 is loudest

    def __post_init__(self) -> None:
        for name in ("special", "stream", "word", "spans", "boxes", "values", "role"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.labels):
                raise ValueError(f"Units.{name} has {len(value)} entries for {len(self.labels)} labels")
        for name in ("grid", "image_size", "picture_size"):
            size = getattr(self, name)
            if size is not None and min(size) < 1:
                raise ValueError(f"Units.{name} is {tuple(size)}, which is no height and width")

    def __repr__(self) -> str:
        return brief(self)

    def __len__(self) -> int:
        return len(self.labels)

    def is_patch(self, index: int) -> bool:
        """Whether a unit has a position on the image."""
        return not self.special[index] and (self.stream[index] == "image" or len(set(self.stream)) == 1)

    def text_of(self, members: Sequence[int]) -> str:
        """Return the word that these units are pieces of: as written in ``text``, else their labels joined."""
        if self.spans is not None and self.text is not None:
            start, end = self.spans[members[0]][0], self.spans[members[-1]][1]
            if self.text[start:end].strip():  # empty: ``text`` is that of another stream
                return self.text[start:end].strip()
        joined = "".join(self.labels[i].removeprefix("##").lstrip("Ġ▁") for i in members)
        return joined or self.labels[members[0]]  # a space alone is called what its token is


def word_pieces(units: Units, members: Iterable[int]) -> list[list[int]]:
    """Return, for each word, those of these units that are its pieces; special tokens are left out."""
    groups: dict[int, list[int]] = {}
    for i in members:
        word = i if units.word is None else units.word[i]
        if word >= 0:
            groups.setdefault(word, []).append(i)
    return list(groups.values())


@dataclass(frozen=True)
class Choice:
    """A class (or token) and its predicted probability."""

    index: int
    label: str
    probability: float

    def __str__(self) -> str:
        return self.label or str(self.index)


@dataclass(frozen=True)
class Target:
    """The target of an explanation: a class (or token), optionally against another, at one output position.

    >>> wf.Target(1, "positive")
    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.explain(model, "I like the movie", tokenizer, target=wf.Target(0)).target
    """

    later: ClassVar[tuple[str, ...]] = ("end", "probability", "next")

    index: int  # of the class or token
    label: str = ""  # its name, where it has one
    versus: int | None = None  # explained rather than this one
    versus_label: str = ""  # and its name
    position: int | None = None  # output position, for models with one output per token
    independent: bool = False  # answers do not exclude each other (multi-label), so its probability is its own
    # The last token of an answer whose first is ``position`` (question answering).
    end: int | None = None
    # Of a prediction among classes: how likely the model finds it, and the next ones, likeliest first.
    probability: float | None = field(default=None, compare=False)
    next: tuple[Choice, ...] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return brief(self)

    def __str__(self) -> str:
        name = self.label or str(self.index)
        return name if self.versus is None else f"{name} rather than {self.versus_label or self.versus}"


@dataclass(frozen=True)
class Hop:
    """Relevance of one span that was handed on: ``scores`` is the map of where it went, ``handed`` their sum.

    Number 0 is the answer itself: its scores are those without hops. The result is made of the maps of the highest
    number; earlier ones are those that it refined.
    """

    number: int
    span: tuple[int, int]  # characters of the text
    text: str
    handed: float
    scores: Float32


@dataclass(frozen=True)
class Cost:
    """The cost of one explanation. Passes are counted per input; other work as forwards with as many multiply-adds.

    ``setup_forwards``: of checks, for all inputs of the call together: once per model, and how half precision rounds.

    ``peak_bytes``: the peak memory above what was in use before, for the whole batch. On a CPU it is measured by
    ``compare`` alone, and 0 elsewhere.
    """

    forwards: float = 0.0
    backwards: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    setup_forwards: int = 0

    @classmethod
    def of_all(cls, costs: Sequence[Cost]) -> Cost:
        """Add the costs of consecutive explanations; peak memory is the maximum."""
        added = {f.name: sum(getattr(cost, f.name) for cost in costs) for f in dataclasses.fields(cls)}
        return cls(**added | {"peak_bytes": max(cost.peak_bytes for cost in costs)})


@dataclass(frozen=True)
class Site:
    """One attention call of the model."""

    path: str
    kind: str  # "self" or "cross"
    streams: tuple[str, str]  # query, key
    attention_BHQK: Tensor
    value_BHKD: Tensor | None = None
    attention_grad_BHQK: Tensor | None = None
    windows: int = 1  # > 1: the B axis holds B·windows maps
    first_query: int = 0  # key position of query row 0, where a layer asks for a few rows only

    def __repr__(self) -> str:
        return brief(self)

    @property
    def heads(self) -> int:
        return self.attention_BHQK.shape[1]


@dataclass(frozen=True)
class Record:
    """The attention of one forward (and backward) pass.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> record = wf.Explainer(model, tokenizer).record("I like the movie")
    >>> record.sites[0].attention_BHQK.shape
    """

    sites: tuple[Site, ...]
    logits: Tensor
    unclaimed: tuple[str, ...] = ()  # softmaxes that were not an attention over values

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True)
class SiteMap:
    """One attention map (queries × keys) of one attention call, of a head or over all heads."""

    site: int  # number of the call
    path: str
    kind: str  # "self" or "cross"
    attention: Float32

    def __post_init__(self) -> None:
        if np.ndim(self.attention) != 2:
            raise BadInput(f"attention has {np.ndim(self.attention)} axes: a map has two, queries and keys.")


@dataclass(frozen=True, eq=False)
class AttentionMaps(Result):
    """Attention maps of one input, as ``whyformer attention`` writes them."""

    what: ClassVar[str] = "attention maps"

    input: str
    labels: tuple[str, ...]  # of the input's positions
    head: int | str  # a number, "mean" or "max"
    sites: tuple[SiteMap, ...]

    def to_frame(self) -> DataFrame:
        """Return one row per cell of a map."""
        return dataframe(
            [
                {"site": one.site, "path": one.path, "query": i, "key": j, "attention": float(weight)}
                for one in self.sites
                for (i, j), weight in np.ndenumerate(one.attention)
            ]
        )


@dataclass(frozen=True, eq=False)
class Explanation(Result):
    """Explanation of one prediction: one score per unit, with warnings.

    Options of its pictures: ``image``: the image below the patches; ``by``: "token" or "word"; ``detail=True``: scores
    of single pixels, if the method has them.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> explanation = wf.explain(model, "I like the movie", tokenizer)
    >>> explanation.ranked(specials=False)[:2]
    >>> explanation.save("why.html")
    """

    what: ClassVar[str] = EXPLANATION
    axes: ClassVar[Mapping[str, str]] = {"units": "U", "scores": "U", "errors": "U"}
    last: ClassVar[tuple[str, ...]] = ("scores", "matrix", "layers", "detail")
    finite: ClassVar[tuple[str, ...]] = ("scores", "value")
    later: ClassVar[tuple[str, ...]] = ("picture", "errors", "interactions", "default_for", "passes", "hops")

    scores: Float32  # one per unit, in the order of the input, special tokens included
    units: Units  # what is scored: their names, places and kinds
    target: Target  # what was explained
    scalar: str  # which number of it: "logit", "probability", "log_odds", …
    value: float  # that number, for this input
    prediction: Target  # what the model says, with its probability and the next answers
    method: str  # name in ``list_methods()``
    options: dict[str, Any] = field(default_factory=dict)  # all of the method's options, as they were used
    changed: tuple[str, ...] | None = None  # names of the options that differ from the method's defaults, where known
    seed: int = 0  # of everything that was drawn
    versions: dict[str, str] = field(default_factory=dict)  # of whyformer, torch and others
    base: float | None = None  # the value where nothing is there, where a method has one: scores start from it
    # The whole map, output position by input position, where a method has one; by pairs of streams where there are any.
    matrix: Float32 | dict[tuple[str, str], Float32] | None = None
    layers: Float32 | None = None  # a map for each layer, with ``keep_layers=True``
    detail: Float32 | None = None  # finer than units (pixels, embedding dimensions): ``scores`` are its sums
    cost: Cost = field(default_factory=Cost)  # passes, seconds, bytes
    checks: dict[str, float] = field(default_factory=dict)  # what the method knows of its own error
    warnings: tuple[str, ...] = ()  # what to know before believing it
    readout: str = ""  # which output row the scores were read from
    signed: bool = False  # whether a score below zero speaks against the target
    model: str = ""  # its class
    picture: str | None = None  # what the model saw, where raw images were given: a small JPEG as a data URI
    errors: Float32 | None = None  # standard error of each score, where the method has them
    interactions: tuple[tuple[str, str, float], ...] | None = None  # two parts, and how much more they do together
    default_for: str | None = None  # "text", "image", …: the method is the default for such inputs
    passes: int | None = None  # at most so many were asked for, where the method was chosen within them
    hops: tuple[Hop, ...] | None = None  # with ``through=``: the answer's own map, then one per span and hop

    def __repr__(self) -> str:
        text = self.units.text if self.units.text is not None else f"{len(self.units)} units"
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        first = ", ".join(f"{label} {score:.3g}" for label, score in self.ranked(specials=False)[:3])
        start = cut(f"Explanation({self.method} of {shown!r},", WIDEST)
        rest = cut(f"{self.target}: {first}, …)", WIDEST - 4)
        return f"{start} {rest}" if len(start) + len(rest) < WIDEST else f"{start}\n    {rest}"

    @property
    def barely_moved(self) -> bool:
        """Whether all effects are measured, and tiny beside the explained logit: a class that nothing speaks for."""
        if not self.signed or self.scalar not in {"logit", "centred", "log_odds"} or self.target.versus is not None:
            return False
        sizes = np.abs(self.scores.astype(float))
        return bool(ROUNDING * max(abs(self.value), 1.0) <= sizes.max(initial=0.0) < BARELY * abs(self.value))

    @property
    def why_not(self) -> str:
        """What to ask instead: why this class rather than the likeliest other one; "" without another."""
        said, this = self.prediction, self.target
        likely: list[Target | Choice] = [said, *(said.next or ())]
        other = next((choice for choice in likely if choice.index != this.index), None)
        if other is None or this.versus is not None:
            return ""
        names = this.label or this.index, other.label or other.index
        return f" Ask why not {names[1]!r}: target={names!r}."

    @property
    def nothing_found(self) -> str:
        """Why these scores are not informative, as a sentence; "" if they are."""
        sizes = np.abs(self.scores.astype(float))
        if not len(sizes):
            return "The input has no features that can be scored."
        if not np.isfinite(sizes).all():
            return "Some scores are not finite: run the model in float32."
        if not sizes.any():
            return "Every score is zero: by this method, no feature of the input had an effect."
        # Differences of float32 numbers as large as the explained one are rounded to about this. Two logits that tie
        # differ by nothing, but each of them is rounded as a number of its own size: 1 and more, as a rule.
        size = abs(self.value) if self.scalar == "probability" or not self.signed else max(abs(self.value), 1.0)
        if sizes.max() < ROUNDING * size:
            return (
                f"The largest |score| is {sizes.max():.2g}, within the rounding error of the explained value "
                f"{self.value:.4g}: by this method, no feature of the input had an effect.{self.why_not}"
            )
        if self.barely_moved:
            return (
                f"Nothing in this input moves the explained value {self.value:.4g}: the largest |score| is "
                f"{sizes.max():.2g}.{self.why_not}"
            )
        special = np.array(self.units.special, dtype=bool)
        ordinary = self.scores[~special]
        if not self.signed and len(ordinary) > 2 and np.ptp(ordinary) < ALIKE * np.abs(ordinary).max():
            return (
                f"All scores are nearly equal ({ordinary.min():.3g} to {ordinary.max():.3g}): this method does not "
                "distinguish the features of this input."
            )
        share = sizes[special].sum() / sizes.sum()
        if share > MOSTLY:
            return (
                f"Special tokens received {100 * share:.1f} % of the total |score|: the input itself has almost none."
            )
        return ""

    @checked
    def ranked(self, specials: bool = True) -> list[tuple[str, float]]:
        """Return units from the highest to the lowest score; ties keep their order."""
        order = np.argsort(-self.scores, kind="stable")
        return [(self.units.labels[i], float(self.scores[i])) for i in order if specials or not self.units.special[i]]

    @checked
    def words(self, reduce: Annotated[str, OneOf("sum", "max", "mean")] = "sum") -> list[tuple[str, float]]:
        """Return scores of words: word pieces summed (or ``reduce="max"``, ``"mean"``); special tokens are left out."""
        if self.units.word is None:
            return [(label, float(s)) for label, s in zip(self.units.labels, self.scores, strict=True)]
        combine: Any = {"sum": np.sum, "max": np.max, "mean": np.mean}[reduce]
        groups = word_pieces(self.units, range(len(self.units)))
        return [(self.units.text_of(members), float(combine(self.scores[members]))) for members in groups]

    @checked
    def heatmap(
        self, size: Size | None = None, interpolation: Annotated[str, OneOf("bilinear", "nearest")] = "bilinear"
    ) -> Array:
        """Return scores of the patches as an image: (rows, columns), or resized to ``size`` = (height, width).

        Special tokens (CLS, registers) are not part of the image and are left out. ``"bilinear"`` interpolates between
        the centres of patches, ``"nearest"`` repeats them.
        """
        if self.units.grid is None:
            raise BadInput(
                f"this explanation ({self.method}) has no patch grid: heatmap() is for images. Use "
                ".ranked() or .show()."
            )
        patches = [i for i in range(len(self.units)) if self.units.is_patch(i)]
        if len(patches) != math.prod(self.units.grid):
            raise BadInput(
                f"units.grid is {self.units.grid}, and there are {len(patches)} patches: the explanation was changed, "
                "or saved by another program. Explain again."
            )
        return resized(self.scores[patches].reshape(self.units.grid), size, interpolation)

    def replace(self, **changes: Any) -> Explanation:
        """Return the same explanation with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_shap(self) -> Any:
        """Return a ``shap.Explanation``, for shap's plots."""
        return to_shap(self)

    def to_frame(self) -> DataFrame:
        """Return one row per unit: label, score, special, stream, and word, value or error if there is one."""
        units = self.units
        data = {"unit": units.labels, "score": self.scores, "special": units.special, "stream": units.stream}
        data |= {} if units.word is None else {"word": units.word}
        data |= {} if units.values is None else {"value": units.values}
        data |= {} if self.errors is None else {"error": self.errors}
        return dataframe(data)


@dataclass(frozen=True, eq=False)
class Generation(list[Explanation], Result):
    """The answer of a language model: a list with one Explanation per token of the answer, in order.

    >>> generation = wf.explain("language-model", "the capital of france is", generate=3)  # a folder or a name
    >>> generation.text
    >>> [step.ranked()[0] for step in generation]
    """

    what: ClassVar[str] = "generation"

    tokens: tuple[Explanation, ...]
    text: str  # the answer
    sentences: tuple[tuple[int, int], ...] = ()  # of the answer: first token, and the one after the last

    def __post_init__(self) -> None:
        list.__init__(self, self.tokens)

    @property
    def units(self) -> Units:
        """The input of the last token: the prompt, and the answer without its last token."""
        return self.tokens[-1].units

    @property
    def matrix(self) -> Array:
        """(T, U) scores of each token of the answer; NaN for tokens that come later."""
        matrix = np.full((len(self.tokens), len(self.units)), np.nan, dtype=np.float32)
        for row, explanation in enumerate(self.tokens):
            matrix[row, : len(explanation.scores)] = explanation.scores
        return matrix

    @property
    def method(self) -> str:
        """The method that explained all tokens."""
        return self.tokens[0].method

    def to_frame(self) -> DataFrame:
        """Return one row per token of the answer and unit: token, label, unit, score."""
        rows = [
            (number, e.target.label, index, label, float(score))
            for number, e in enumerate(self.tokens)
            for index, (label, score) in enumerate(zip(e.units.labels, e.scores, strict=True))
        ]
        return dataframe(rows, ["step", "token", "position", "unit", "score"])


T = TypeVar("T")


class Explanations(list[T], Pictured):
    """A list with one explanation per input (or a list for inputs that have several), drawn as one page.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> explanations = wf.explain(model, ["I like the movie", "This is so boring"], tokenizer)
    >>> explanations[0].ranked()
    >>> explanations.save("why.html")
    """

    @overload
    def __getitem__(self, at: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Explanations[T]: ...
    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return Explanations(part) if isinstance(at, slice) else part

    def __repr__(self) -> str:
        return several("Explanations", map(repr, self))

    if not TYPE_CHECKING:  # there, a list has no attributes of its members

        def __getattr__(self, name: str) -> Any:
            """Return what the only explanation of a list has; of several, raise with how to choose one."""
            if name.startswith("_") or not self or not hasattr(self[0], name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if len(self) > 1:
                raise AttributeError(f"these are {len(self)} explanations: choose one of them, [0].{name}.")
            return getattr(self[0], name)

    def to_frame(self) -> DataFrame:
        """Return the rows of all explanations, with the number of the input in front."""
        return _stacked("input", enumerate(self))


class ByMethod(dict[str, T], Pictured):
    """The results of several methods, by name; drawn side by side.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> by_method = wf.explain(model, "I like the movie", tokenizer, method=["grad_sam", "occlusion"])
    >>> by_method["grad_sam"].ranked()
    >>> by_method.show()
    """

    def __repr__(self) -> str:
        return several("ByMethod", (f"{name}: {part!r}" for name, part in self.items()))

    def to_frame(self) -> DataFrame:
        """Return the rows of all methods, with the method in front."""
        return _stacked("method", self.items())


def _stacked(column: str, parts: Iterable[tuple[Any, Any]]) -> DataFrame:
    """Return the frames of results below each other, with a column that tells them apart."""
    frames = []
    for name, part in parts:  # an input may have several explanations: objects of a detector
        frames.append(part.to_frame() if hasattr(part, "to_frame") else _stacked("explanation", enumerate(part)))
        frames[-1].insert(0, column, name)
    return below(frames)
