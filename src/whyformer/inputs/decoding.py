"""What of a language model's text is explained: how its answer is made, and stretches of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Watching = TypeVar("Watching")


@dataclass(frozen=True)
class Decoding:
    """How a language model's answer is made and explained; the parameters of the same names of ``explain``."""

    generate: int | Mapping[str, Any] | None = None
    span: bool | str | tuple[int, int] | Stretch = False
    choices: tuple[str, ...] = ()
    one_pass: bool = False
    seed: int = field(default=0, compare=False)

    def __bool__(self) -> bool:
        return self.generate is not None or bool(self.span) or bool(self.choices) or self.one_pass


PLAIN = Decoding()


@dataclass(frozen=True)
class InputOptions:
    """What is asked of inputs besides the target."""

    decoding: Decoding = PLAIN
    segments: Any = "token"  # what is scored as one: tokens, words, sentences, or ranges of characters
    first_token: bool = True  # the first token of a language model's input has a score


PLAIN_OPTIONS = InputOptions()


@dataclass(eq=False)
class KeptPass:
    """One forward over a text, kept with its graph while several stretches of that text are explained."""

    length: int = 0  # tokens of the text that are run
    places: tuple[int, ...] = ()  # positions whose logits are computed
    left: int = 0  # stretches that are still to be explained
    seen_by: Any = None  # what watched the pass: an interceptor, or a trace
    logits_BPV: Tensor | None = None
    in_use: bool = False  # the model's next pass is this one

    @property
    def more(self) -> bool:
        """Whether another stretch follows, for which the graph has to stay."""
        return self.left > 0

    def seen(self, kind: type[Watching]) -> Watching | None:
        """Return what watched the pass, if it was kept by one of this kind."""
        return self.seen_by if isinstance(self.seen_by, kind) else None

    @contextmanager
    def used_by(self, watching: Any) -> Iterator[None]:
        """Around the pass: it is run and kept, or not run again where it was kept."""
        self.seen_by, self.in_use = watching, True
        try:
            yield
        except BaseException:
            self.forget()
            raise
        finally:
            self.in_use = False
            if not self.more:
                self.forget()

    def forget(self) -> None:
        """Free the graph."""
        self.seen_by = self.logits_BPV = None


@dataclass(frozen=True)
class Stretch:
    """Consecutive tokens of a prompt and its answer (an ``Exchange``), wherever they are, to explain as a whole."""

    exchange: Any
    first: int
    stop: int  # the token after the last
    weights: tuple[float, ...] = ()
    text_pass: KeptPass | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Continuation:
    """Consecutive tokens that a language model predicts, from a position of its text on."""

    tokens: tuple[int, ...]
    start: int  # the position, among the real ones, at which the first of them is predicted
    text: str = ""
    weights: tuple[float, ...] = ()  # of the log-odds of the tokens; (): the sum of their log-probabilities
    text_pass: KeptPass | None = field(default=None, compare=False, repr=False)

    def moved(self, by: int) -> Continuation:
        """Return the same tokens, ``by`` positions later."""
        return replace(self, start=self.start + by)
