"""The plain view: what is drawn, without how. Explanations and records become views, backends output."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.brief import brief
from whyformer.errors import BadInput
from whyformer.evidence import Deletion, Standing
from whyformer.symbols import as_symbols
from whyformer.types import Explanation, Units

if TYPE_CHECKING:
    from collections.abc import Sequence


Array = np.ndarray[Any, Any]


STRIPED = ("The striped bar", "The striped bars")  # one and several; a terminal has other words for them
MOST_NAMED = 3


@dataclass(frozen=True)
class Scale:
    """From scores to positions on a colour map. Signed scales are symmetric around zero."""

    low: float
    high: float
    signed: bool = False
    meaning: str = "score"

    def __post_init__(self) -> None:
        for end in ("low", "high"):  # of scores without a finite one there is nothing to tell apart
            if not math.isfinite(getattr(self, end)):
                object.__setattr__(self, end, 0.0)

    def position(self, score: float) -> float:
        """0 to 1 along the colour map; 0.5 is zero on a signed scale."""
        if self.high <= self.low:
            return 0.5 if self.signed else 0.0
        return min(1.0, max(0.0, (score - self.low) / (self.high - self.low)))

    def positions(self, scores: Array) -> Array:
        if self.high <= self.low:
            return np.full(scores.shape, 0.5 if self.signed else 0.0)
        return np.clip((scores - self.low) / (self.high - self.low), 0.0, 1.0)

    def exceeded(self, score: float) -> bool:
        """Beyond both ends, but for rounding: bars are cut off there, and marked."""
        return abs(score) > max(abs(self.low), abs(self.high)) * 1.0001

    def length(self, score: float) -> float:
        """-1 to 1: length and direction of a bar that starts at zero."""
        reach = max(abs(self.low), abs(self.high))
        return min(1.0, max(-1.0, score / reach)) if reach and not math.isnan(score) else 0.0


@dataclass(frozen=True)
class Piece:
    """A stretch of text; ``score`` is None between units."""

    text: str
    score: float | None = None
    special: bool = False
    aside: bool = False  # hatched: its score is not on the scale of the others


@dataclass(frozen=True)
class TokenRun:
    """Text with highlighted stretches."""

    pieces: tuple[Piece, ...]
    scale: Scale


@dataclass(frozen=True)
class Bar:
    label: str
    score: float
    special: bool = False
    low: float | None = None  # limits of the score, drawn as a thin line
    high: float | None = None
    dots: tuple[float, ...] = ()  # single values behind the score
    note: str = ""  # words at the end of the bar
    quiet: bool = False  # pale: nothing to rely on


@dataclass(frozen=True)
class Bars:
    """One bar per unit, in the order of the input; ``reference`` is a value to compare them with."""

    bars: tuple[Bar, ...]
    scale: Scale
    reference: float | None = None


@dataclass(frozen=True)
class Ranking:
    """Units from the highest to the lowest score, special tokens among them.

    ``left_out`` more are not shown: after the first ``cut`` bars (of signed scores, both ends are of interest).
    """

    bars: tuple[Bar, ...]
    scale: Scale
    left_out: int = 0
    cut: int = 0

    def parts(self) -> list[tuple[int, Bar] | str]:
        """Places and bars, with a line of words where some are left out."""
        lines: list[tuple[int, Bar] | str] = []
        for i, bar in enumerate(self.bars):
            lines.append((i + 1 if not self.left_out or i < self.cut else i + 1 + self.left_out, bar))
            if self.left_out and i + 1 == self.cut:
                lines.append(f"… {self.left_out} more")
        return lines


@dataclass(frozen=True)
class Frame:
    """A box on a picture, and what is in it. Edges are left, top, right, bottom, as shares of the picture."""

    box: tuple[float, float, float, float]
    label: str


@dataclass(frozen=True, eq=False)
class Picture:
    """The input image itself (uint8, height × width × 3)."""

    image: Array
    frames: tuple[Frame, ...] = ()
    interpolation: str = "bilinear"  # "nearest" shows the pixels


@dataclass(frozen=True, eq=False)
class Heat:
    """Scores of patches or pixels, over the image where there is one (uint8, height × width × 3)."""

    values_RC: Array
    scale: Scale
    image: Array | None = None
    interpolation: str = "bilinear"  # "nearest" shows the grid
    size: tuple[int, int] | None = None  # height, width that the grid covers
    frames: tuple[Frame, ...] = ()
    upwards: bool = False  # patches are numbered from the bottom (frequencies)
    fine: bool = False  # drawn in whole multiples of its cells: others would draw some wider, a pattern of their own


@dataclass(frozen=True, eq=False)
class Matrix:
    """A map from rows to columns, labelled where there are labels; ``small`` for many beside each other.

    ``numbers`` are written into the cells where there is room, in units of 10 to the ``power``. Cells that are NaN are
    not there, and grey.
    """

    values: Array
    scale: Scale
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()
    row_axis: str = ""
    column_axis: str = ""
    small: bool = False
    numbers: bool = False
    power: int = 0

    def told(self) -> Array:
        """What is written into the cells."""
        return np.asarray(self.values, float) / 10.0**self.power


@dataclass(frozen=True, eq=False)
class HeadColours:
    """Several maps over one image, each in its own colour (its number in color.HEADS)."""

    maps_RC: tuple[Array, ...]
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    image: Array | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers under headings; ``shades`` tints cells, 0 (white) to 1, None for no tint.

    ``quiet`` rows are there for comparison (a floor, a ceiling).
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shades: tuple[tuple[float | None, ...], ...] = ()
    quiet: tuple[int, ...] = ()

    def shade(self, row: int, column: int) -> float | None:
        return self.shades[row][column] if self.shades else None


@dataclass(frozen=True, eq=False)
class Line:
    """One curve, between limits where they are known; a ``quiet`` one is there for comparison."""

    name: str
    values: Array
    quiet: bool = False
    low: Array | None = None
    high: Array | None = None
    x: Array | None = None  # its own places, where they are not those of the others


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over one axis."""

    x: Array
    lines: tuple[Line, ...]
    x_axis: str = ""
    y_axis: str = ""
    whole_x: bool = False  # layers and steps: no ticks between whole numbers
    from_zero: bool = False


@dataclass(frozen=True, eq=False)
class Points:
    """Points of one kind; a ``quiet`` kind is the crowd behind the others. ``labels``: a tip for each."""

    name: str
    x: Array
    y: Array
    quiet: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Scatter:
    """Points in a plane, coloured by kind; the first kinds are drawn below the others."""

    groups: tuple[Points, ...]
    x_axis: str = ""
    y_axis: str = ""
    log_x: bool = False


@dataclass(frozen=True)
class Passage:
    """Pieces in a row; of a long text, a quiet stretch is ``folded`` into one line of words."""

    pieces: tuple[Piece, ...]
    folded: str = ""

    def from_its_first_word(self) -> tuple[Piece, ...]:
        """The pieces without a space before them, for lines of their own."""
        blank = bool(self.pieces) and self.pieces[0].score is None and not self.pieces[0].text.strip()
        return self.pieces[1:] if blank else self.pieces


@dataclass(frozen=True)
class Part:
    """What one voice says in the text that a model reads; ``quiet``: what a template put around it."""

    heading: str
    passages: tuple[Passage, ...]
    quiet: bool = False


@dataclass(frozen=True)
class Reading:
    """What a language model read, voice by voice, with scores on it."""

    parts: tuple[Part, ...]
    scale: Scale

    def scored(self) -> list[Piece]:
        """Pieces with a score, in their order."""
        pieces = [piece for part in self.parts for passage in part.passages for piece in passage.pieces]
        return [piece for piece in pieces if piece.score is not None]


@dataclass(frozen=True, eq=False)
class Dialogue:
    """What a model said, over what it read: which pieces of ``reading`` each token came from.

    ``reading`` shows the mean over all tokens. ``shares`` has a row per token and a column per scored piece, NaN for
    what was not yet there; ``aside``: not on the scale of the row. ``ordinary``: pieces that colours are scaled to.
    """

    said: tuple[str, ...]
    sentences: tuple[tuple[int, int], ...]  # first token, and the one after the last
    reading: Reading
    shares: Array
    aside: Array
    ordinary: Array

    def over(self, first: int, end: int) -> tuple[Array, Array]:
        """Mean over some tokens of what is on their scales, and what is on none of them."""
        shares, aside = self.shares[first:end], self.aside[first:end]
        off_scale = aside | np.isnan(shares)
        mean: Array = np.where(off_scale, 0.0, shares).mean(0)
        nowhere: Array = np.all(off_scale, 0, keepdims=True)[0] & ~np.all(np.isnan(shares), 0, keepdims=True)[0]
        return mean, nowhere

    def sources(self, first: int, end: int, most: int = 4) -> list[tuple[str, float]]:
        """The pieces that some tokens came from, the strongest first."""
        mean, aside = self.over(first, end)
        order = np.argsort(-np.abs(mean), kind="stable")
        pieces = self.reading.scored()
        chosen = [i for i in order if self.ordinary[i] and not aside[i] and abs(mean[i]) >= LEAST]
        return [(pieces[i].text, float(mean[i])) for i in chosen[:most]]


LEAST = 0.01  # the smallest share that is worth a word
Mark = TokenRun | Bars | Ranking | Picture | Heat | Matrix | HeadColours | Table | Lines | Scatter | Reading | Dialogue


@dataclass(frozen=True)
class Fact:
    """One line of a header: what was explained, how, at what cost."""

    name: str
    value: str


@dataclass(frozen=True)
class Panel:
    """Marks under one heading; a ``wide`` panel has a row to itself."""

    marks: tuple[Mark, ...]
    title: str = ""
    wide: bool = False
    facts: tuple[Fact, ...] = ()
    doubts: tuple[str, ...] = ()
    note: str = ""

    def small_print(self) -> list[str]:
        """Its facts, with their names where the value alone says nothing. The method is the heading."""
        plain = {"options", "cost"}
        return [f.value if f.name in plain else f"{f.name} {f.value}" for f in self.facts if f.name != "method"]


class _Drawn(ABC):
    """What views and pages can do; the backends are loaded when asked for."""

    def __repr__(self) -> str:
        return brief(self)

    def show(self) -> None:
        """Print to the terminal."""
        from whyformer.views.terminal.page import show

        show(self._page())

    def to_html(self, *, asks: bool = False) -> str:
        """A whole page that needs no network. ``asks``: who holds it answers its questions (a notebook's kernel)."""
        from whyformer.views.html.page import document

        return document(self._page(), asks)

    def plot(self) -> Any:
        """A matplotlib figure."""
        from whyformer.views.figure.page import figure

        return figure(self._page())

    def save(self, path: str | Path) -> Path:
        """Write .html, .png, .svg or .pdf."""
        from whyformer.views.explained import save_page

        return save_page(self._page(), path)

    def _repr_html_(self) -> str:
        from whyformer.views.html.page import framed

        return framed(self._page())

    def widget(self, ask: Callable[..., Any] | None = None) -> Any:
        """For a notebook that runs: a click on a class is answered by ``ask(target=…)``."""
        from whyformer.views.notebook import widget_of

        return widget_of(self, ask)

    @abstractmethod
    def _page(self) -> Page:
        """This as a page."""


@dataclass(frozen=True)
class Trust:
    """What the badge on one map says, and the evidence behind it."""

    standing: Standing
    name: str  # of its method in ``deletion``
    deletion: Deletion | None = None


@dataclass(frozen=True, eq=False)
class Explained:
    """What a view was drawn from, for pages that can be asked: one input under one method or several."""

    explanations: list[Explanation]
    image: Array | None = None
    by: str = "token"
    trust: tuple[Trust, ...] = ()  # one per explanation, where it was measured
    others: tuple[Explanation, ...] = ()  # of the same input: why the prediction, rather than another class


@dataclass(frozen=True, eq=False)
class Rows:
    """The same of many rows of one table."""

    explanations: list[Explanation]


@dataclass(frozen=True, eq=False)
class Heads:
    """Attention of every head, for pages on which one is chosen: per site its name and maps (H, Q, K)."""

    sites: tuple[tuple[str, Array], ...]
    labels: tuple[str, ...] = ()  # of positions, where they are known


@dataclass(frozen=True, repr=False)
class View(_Drawn):
    """One picture: a header, panels (``columns`` of them beside each other where there is room), a caption."""

    title: str
    panels: tuple[Panel, ...]
    facts: tuple[Fact, ...] = ()
    doubts: tuple[str, ...] = ()
    caption: str = ""
    columns: int = 1
    legend: Scale | None = None
    second_legend: Scale | None = None  # where maps with and without a sign stand beside each other
    words_first: bool = False  # facts stand behind the panels
    explained: Explained | Rows | Heads | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def legends(self) -> tuple[Scale, ...]:
        return tuple(scale for scale in (self.legend, self.second_legend) if scale is not None)

    def _page(self) -> Page:
        return Page("", (self,))


@dataclass(frozen=True)
class Terms:
    """Names and what they stand for; ``code``: the names are to be typed; ``level``: findings of a check-up."""

    facts: tuple[Fact, ...]
    title: str = ""
    code: bool = False
    level: str = ""  # "warning", "note" or "ok"


@dataclass(frozen=True, repr=False)
class Page(_Drawn):
    """Views below each other, with paragraphs and terms before and after."""

    title: str
    views: tuple[View, ...]
    lead: tuple[str | Terms, ...] = ()
    outro: tuple[str | Terms, ...] = ()

    def _page(self) -> Page:
        return self


@singledispatch
def view_of(result: Any, *how: Any, **options: Any) -> Any:
    """The picture of a result, a View or a Page. Kinds of results register theirs: ``view_of.register(Kind, draw)``."""
    raise BadInput(f"there is no picture of a {type(result).__name__}.")


def captions(views: Sequence[View]) -> list[str]:
    """Each view's caption, with what its striped bars mean; once where neighbours share it: at the last of them."""
    words = [" ".join(part for part in (view.caption, _cut_off(view)) if part) for view in views]
    following = [*words[1:], ""] if words else []
    return ["" if caption == after else caption for caption, after in zip(words, following, strict=True)]


def _cut_off(view: View) -> str:
    """Names the bars that are longer than their scale."""
    marks = [m for p in view.panels for m in p.marks if isinstance(m, (Bars, Ranking))]
    names = list(dict.fromkeys(b.label for m in marks for b in m.bars if m.scale.exceeded(b.score)))
    if not names:
        return ""
    told = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    if len(names) == 1:
        return f"{STRIPED[0]} of {told} goes on beyond the scale of the others: read its number."
    return f"{STRIPED[1]} of {told} go on beyond the scale of the others: read their numbers."


def in_symbols(part: Any, words: Callable[[str], str] = as_symbols) -> Any:
    """A page (or a part of one) with symbols for characters that would steer a terminal and that no font can draw.

    It is put into them before it is laid out, so that symbols have the room they need. ``words``: what becomes of each
    string.
    """
    if isinstance(part, str):
        return words(part)
    if isinstance(part, tuple):
        return tuple(in_symbols(inner, words) for inner in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, (Explained, Heads)):
        return part
    kind: Any = type(part)
    return kind(**{f.name: in_symbols(getattr(part, f.name), words) for f in dataclasses.fields(part)})


def rows_of(panels: Sequence[Panel], columns: int) -> list[list[Panel]]:
    """Panels line by line, at most ``columns`` in each."""
    rows: list[list[Panel]] = []
    for panel in panels:
        full = not rows or len(rows[-1]) >= max(1, columns) or rows[-1][0].wide
        if full or panel.wide:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    return rows


# Which scale a picture gets.


OUTSHINES = 3  # times the highest of the others
FIRST_TOKEN = "first_token_share"  # what is known of an explanation of a causal language model
ANSWERED = "log_probability"  # what is explained of an answer as a whole
TEMPLATE = "template"  # the role of what stands around the messages of a chat


def scale_of(scores: Sequence[Array], signed: bool = False, from_zero: bool = True, meaning: str = "score") -> Scale:
    """One scale for all of ``scores``: symmetric if signed, else from zero (or the lowest) to the highest."""
    known = [np.asarray(s, float).ravel() for s in scores if np.size(s)]
    values = np.concatenate(known) if known else np.zeros(1)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    if signed or values.min() < 0:
        reach = float(np.abs(values).max())
        return Scale(-reach, reach, True, meaning)
    return Scale(0.0 if from_zero else float(values.min()), float(values.max()), False, meaning)


def ordinary(explanation: Explanation) -> Array:
    """Scores of the units that are not special; of all where there are no others.

    What [CLS] gets is often tens of times what any word gets, and would leave every word white. So would what the
    position that is read gives itself.
    """
    left_out = aside_of(explanation)
    plain = plain_units(explanation.units)
    return np.asarray(explanation.scores[[i for i in plain if i not in left_out] or slice(None)], float)


def aside_of(explanation: Explanation) -> set[int]:
    """Units beyond the scale of the others: the one that is read, and a language model's first token."""
    return {i for i in (outshining(explanation), first_token(explanation)) if i is not None}


def first_token(explanation: Explanation) -> int | None:
    """The first token of a language model's text, where it is a unit of its own: many models park attention there."""
    units = explanation.units
    begins = units.spans is None or not units.spans or units.spans[0][0] == 0  # chosen ranges may begin anywhere
    if not explanation.checks.get(FIRST_TOKEN) or not begins or len(units.labels[0].split()) > 1:
        return None
    return 0 if any(i > 0 for i in plain_units(units)) else None


def outshining(explanation: Explanation) -> int | None:
    """The unit that is read, where it is an ordinary one without a sign and all others would be white beside it.

    What a position gives itself is 1 and more by construction in methods that follow attention.
    """
    at = None if explanation.signed else position_read(explanation)
    if at is None:
        return None
    plain, first = plain_units(explanation.units), first_token(explanation)
    others = [float(explanation.scores[i]) for i in plain if i not in (at, first)]
    if at not in plain or not others:
        return None
    return at if float(explanation.scores[at]) > OUTSHINES * max(others) else None


def position_read(explanation: Explanation) -> int | None:
    """The unit whose output row is read, where it is a single one ("first position", "target: last position")."""
    if explanation.scalar == ANSWERED:  # read at the position before each of its tokens
        return None
    stream, _, place = explanation.readout.rpartition(": ")
    members = [i for i, s in enumerate(explanation.units.stream) if stream in ("", s)]
    at = {"first position": 0, "last position": -1}.get(place)
    return None if at is None or not members else members[at]


def plain_units(units: Units) -> list[int]:
    """Units that are neither special tokens nor what a chat template put in."""
    return [i for i, special in enumerate(units.special) if not special and not in_template(units, i)]


def in_template(units: Units, index: int) -> bool:
    return units.role is not None and units.role[index] == TEMPLATE


def share(explanation: Explanation) -> float:
    """What to multiply scores by, so that those of ordinary units add up to one in absolute value.

    Methods have units of their own (attention sums to one, gradients do not); shares can stand on one scale.
    """
    total = float(np.abs(ordinary(explanation)).sum())
    return 1 / total if total else 1.0
