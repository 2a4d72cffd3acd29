"""The plain view: marks in panels on pages, without how they are drawn. Results become views, backends output."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any

from whyformer.brief import as_symbols, brief
from whyformer.errors import BadInput
from whyformer.evidence import Deletion, Standing
from whyformer.files import writable_file, write_file, writing
from whyformer.results.result import PICTURES
from whyformer.results.types import Explanation
from whyformer.shapes import Array
from whyformer.views.marks import Bars, Mark, Scale

STRIPED = ("The striped bar", "The striped bars")  # one and several; a terminal has other words for them
MOST_NAMED = 3


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


def _back_end(name: str) -> Any:
    """Import a module that draws views. It is imported by name, since it imports this module."""
    return import_module(f"whyformer.views.{name}")


class _Drawn(ABC):
    """Base class of views and pages; backends are loaded when they are needed."""

    def __repr__(self) -> str:
        return brief(self)

    def show(self) -> None:
        """Print to the terminal."""
        _back_end("terminal.terminal_page").show(self._page())

    def to_html(self, *, asks: bool = False) -> str:
        """A whole page that needs no network. ``asks``: who holds it answers its questions (a notebook's kernel)."""
        return _back_end("html.html_page").document(self._page(), asks)

    def plot(self) -> Any:
        """A matplotlib figure."""
        return _back_end("figure.figure_page").figure(self._page())

    def save(self, path: str | Path) -> Path:
        """Write .html, .png, .svg or .pdf."""
        path = writable_file(path, PICTURES)
        with writing(path):
            if path.suffix == ".html":  # half a character, which labels can hold, is written as its number
                data = self.to_html().encode("utf-8", "xmlcharrefreplace")
            else:
                data = _back_end("figure.figure_page").figure_bytes(self._page(), path.suffix)
            write_file(path, data)
        return path

    def _repr_html_(self) -> str:
        return _back_end("html.html_page").framed(self._page())

    def widget(self, ask: Callable[..., Any] | None = None) -> Any:
        """For a notebook that runs: a click on a class is answered by ``ask(target=…)``."""
        return _back_end("html.live").widget_of(self, ask)

    @abstractmethod
    def _page(self) -> Page:
        """This as a page."""


@dataclass(frozen=True)
class Trust:
    """The badge on one map, and the evidence behind it."""

    standing: Standing
    name: str  # of its method in ``deletion``
    deletion: Deletion | None = None


@dataclass(frozen=True, eq=False)
class Explained:
    """The explanations that a view was drawn from, for interactive pages: one input under one or more methods."""

    explanations: list[Explanation]
    image: Array | None = None
    by: str = "token"
    trust: tuple[Trust, ...] = ()  # one per explanation, where it was measured
    others: tuple[Explanation, ...] = ()  # of the same input: why the prediction, rather than another class
    specials: bool = False  # special tokens have bars, too
    shared: bool = False  # all maps are drawn on one scale
    captions: tuple[str, str] | None = None  # of maps that each have their scale, and on one scale
    nothing: tuple[str, ...] = ()  # one per explanation: the sentence in place of bars, where nothing was found


@dataclass(frozen=True, eq=False)
class TableRows:
    """The explanations of many rows of one table, for interactive pages."""

    explanations: list[Explanation]


@dataclass(frozen=True, eq=False)
class Heads:
    """Attention of every head, for pages on which one is chosen: per site its name and maps (H, Q, K)."""

    sites: tuple[tuple[str, Array], ...]
    labels: tuple[str, ...] = ()  # of positions, where they are known
    named: str = ""  # what a map is, where it is not one of all heads: "mean over heads"


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
    folded: bool = False  # on a page with JavaScript: a heading that opens
    details: tuple[Fact, ...] = ()  # what is read last: how it was explained, at what cost
    explained: Explained | TableRows | Heads | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def marks(self) -> list[Mark]:
        """All marks of all panels, in order."""
        return [mark for panel in self.panels for mark in panel.marks]

    @property
    def legends(self) -> tuple[Scale, ...]:
        """The colour scales that are shown beside it."""
        return tuple(scale for scale in (self.legend, self.second_legend) if scale is not None)

    def _page(self) -> Page:
        return Page("", (self,))


@dataclass(frozen=True)
class Terms:
    """Names with descriptions; ``code``: the names are code; ``level``: findings of a check-up."""

    facts: tuple[Fact, ...]
    title: str = ""
    code: bool = False
    level: str = ""  # "warning", "note" or "ok"
    folded: bool = False  # on a page: a heading that opens


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
def view_of(result: Any, *settings: Any, **options: Any) -> Any:
    """The picture of a result, a View or a Page. Kinds of results register theirs: ``view_of.register(Kind, draw)``."""
    raise BadInput(f"{type(result).__name__} has no picture.")


def captions(views: Sequence[View]) -> list[str]:
    """Each view's caption, with what its striped bars mean; once where neighbours share it: at the last of them."""
    words = [" ".join(part for part in (view.caption, _cut_off(view)) if part) for view in views]
    following = [*words[1:], ""] if words else []
    return ["" if caption == after else caption for caption, after in zip(words, following, strict=True)]


def _cut_off(view: View) -> str:
    """Return a sentence that names the bars longer than their scale."""
    lists = [mark for mark in view.marks if isinstance(mark, Bars) and not mark.starts]
    names = list(dict.fromkeys(b.label for m in lists for b in m.bars if m.scale.exceeded(b.score)))
    if not names:
        return ""
    told = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    if len(names) == 1:
        return f"{STRIPED[0]} of {told} is longer than the scale: read its number."
    return f"{STRIPED[1]} of {told} are longer than the scale: read their numbers."


def in_symbols(part: Any, words: Callable[[str], str] = as_symbols) -> Any:
    """A page (or a part of one) with ``words`` applied to each string, before it is laid out: symbols need room."""
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
