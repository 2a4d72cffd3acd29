"""Marks: what a panel is drawn with. Text, bars, pictures, maps, tables, curves: numbers on a scale, and no medium."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from whyformer.shapes import Array

LEAST = 0.01  # the smallest share that is worth a word
PAIR = " = "  # between a column and its value; such labels get more room


def shortened(words: str, longest: int) -> str:
    return words if len(words) <= longest else words[: longest - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """From scores to positions on a colour map. Signed scales are symmetric around zero."""

    low: float
    high: float
    signed: bool = False
    meaning: str = "score"
    shares: bool = False  # told in per cent

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
        """Return whether a score is beyond the scale; such bars are cut off and marked."""
        return abs(score) > max(abs(self.low), abs(self.high)) * 1.0001

    def length(self, score: float) -> float:
        """-1 to 1: length and direction of a bar that starts at zero."""
        reach = max(abs(self.low), abs(self.high))
        return min(1.0, max(-1.0, score / reach)) if reach and not math.isnan(score) else 0.0

    def place(self, score: float) -> float:
        """0 to 1: where a score lies on the track of a bar."""
        return 0.5 + 0.5 * self.length(score) if self.signed else max(0.0, self.length(score))


@dataclass(frozen=True, eq=False)
class MarkSettings:
    """The settings of the marks of one explanation."""

    by: str = "token"  # or "word"
    scale: Scale | None = None  # None: that of the explanation alone
    times: float = 1.0  # what turns scores into shares
    most: int | None = None  # entries of a ranked list
    specials: bool = False  # special tokens have bars
    image: Array | None = None  # below the patches


PLAIN = MarkSettings()


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
    """One bar per unit, in the order of the input, or ``ranked``: numbered from the highest, by size if signed."""

    bars: tuple[Bar, ...]
    scale: Scale
    reference: float | None = None  # a value to compare them with
    folded: str = ""  # which units have no bar, and what they hold
    ranked: bool = False
    left_out: int = 0  # units of a ranking that are not shown
    starts: tuple[float, ...] = ()  # of a waterfall: the value at which each bar begins
    headroom: float = 1.0  # of a waterfall: how many times longer its track is than its steps reach

    @property
    def more(self) -> str:
        """The line below a ranking that is not shown in full."""
        return f"… {self.left_out} more" if self.left_out else ""


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
    tokens: tuple[int, int] | None = None  # of an answer, that the scores are of: first, and the one after the last


@dataclass(frozen=True, eq=False)
class Matrix:
    """A map from rows to columns, labelled where there are labels; cells that are NaN are grey."""

    values: Array
    scale: Scale
    row_labels: tuple[str, ...] = ()
    column_labels: tuple[str, ...] = ()
    row_axis: str = ""
    column_axis: str = ""
    small: bool = False  # many beside each other
    numbers: bool = False  # written into the cells where there is room
    power: int = 0  # of ten: what these numbers are times
    joined: bool = False  # on a page, also lines from rows to columns: attention between the tokens of one text

    def coloured(self) -> Array:
        """The values that get a colour. A diagonal beyond the scale is grey: it would look like the largest value."""
        values = np.array(self.values, float)
        if values.shape[0] == values.shape[1]:
            beyond = np.abs(values) > max(abs(self.scale.low), abs(self.scale.high)) * (1 + 1e-6)
            values[beyond & np.eye(len(values), dtype=bool)] = np.nan
        return values

    def told(self) -> Array:
        """Return the numbers for the cells; less than a ten-thousandth of the scale is zero."""
        values, least = np.asarray(self.values, float), 1e-4 * max(abs(self.scale.low), abs(self.scale.high))
        return np.where(np.abs(values) < least, 0.0, values) / 10.0**self.power


@dataclass(frozen=True, eq=False)
class HeadColours:
    """Several maps over one image, each in its own colour (its number in color.HEADS)."""

    maps_RC: tuple[Array, ...]
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    image: Array | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class TableMark:
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
    """One curve, between limits where they are known.

    A ``quiet`` one is there for comparison; a ``faint`` one is thin and grey, without a name: one of many.
    """

    name: str
    values: Array
    quiet: bool = False
    low: Array | None = None
    high: Array | None = None
    x: Array | None = None  # its own places, where they are not those of the others
    faint: bool = False


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
class Utterance:
    """The text of one role in a prompt; ``quiet``: text of the chat template."""

    heading: str
    passages: tuple[Passage, ...]
    quiet: bool = False

    def text(self) -> str:
        return "".join(piece.text for passage in self.passages for piece in passage.pieces)


@dataclass(frozen=True)
class Reading:
    """The text that a language model read, by role, with scores."""

    parts: tuple[Utterance, ...]
    scale: Scale

    def scored(self) -> list[Piece]:
        passages = [passage for part in self.parts for passage in part.passages]
        return [piece for passage in passages for piece in passage.pieces if piece.score is not None]


@dataclass(frozen=True, eq=False)
class AnswerImage:
    """The image that an answer was read from: shares of its patches, per token of the answer."""

    shares_TRC: Array
    labels: tuple[str, ...]  # of the patches, row by row
    image: Array | None  # uint8, height × width × 3
    size: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Dialogue:
    """An answer over its prompt: the pieces of ``reading`` that each token of the answer came from.

    ``reading`` shows the mean over all tokens. ``shares`` has a row per token and a column per scored piece, NaN for
    what was not yet there; ``aside``: not on the scale of the row. ``ordinary``: pieces that colours are scaled to.
    """

    said: tuple[str, ...]
    sentences: tuple[tuple[int, int], ...]  # first token, and the one after the last
    reading: Reading
    shares: Array
    aside: Array
    ordinary: Array
    image: AnswerImage | None = None

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


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A run of an agent, piece by piece, and which pieces drove each step.

    ``reading`` has one scored piece per source. ``steps``: the piece that each step is. ``shares``, ``origins`` and
    ``drops`` have a row per step and a column per piece, ``drops`` with NaN. ``calls``: of pieces of a tool result, the
    step that called the tool.
    """

    reading: Reading
    names: tuple[str, ...]  # of pieces: where they are
    steps: tuple[int, ...]
    shares: Array
    origins: Array
    drops: Array
    calls: tuple[int | None, ...]

    def told(self, most: int = 3) -> list[tuple[str, list[str]]]:
        """Each step in one line, and its sources in one line each."""
        texts = [" ".join(piece.text.split()) for piece in self.reading.scored()]
        lines = []
        for row, step in enumerate(self.steps):
            order = np.argsort(-self.shares[row], kind="stable")[:most]
            chosen = [i for i in order if self.shares[row, i] >= LEAST]
            sources = [f"{self.shares[row, i]:4.0%} {self.names[i]}: {texts[i]}" for i in chosen]
            lines.append((f"{self.names[step]}: {texts[step]}", sources or ["no source speaks for it"]))
        return lines


Mark = (
    TokenRun
    | Bars
    | Picture
    | Heat
    | Matrix
    | HeadColours
    | TableMark
    | Lines
    | Scatter
    | Reading
    | Dialogue
    | StepGraph
)
