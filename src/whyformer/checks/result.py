"""CheckUp: the findings of all checks, to be read, drawn, saved and attached to explanations."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyformer.errors import BadInput, UnknownName
from whyformer.result import from_plain, to_plain
from whyformer.types import Explanation

# Finding: what a check says, in words and numbers.


LEVELS = ("ok", "note", "warning")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. ``warning``: doubt the explanation; ``note``: know this; ``ok``: looked, fine."""

    level: str
    check: str
    title: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r} is none of {', '.join(LEVELS)}")

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


# CheckUp: everything that the checks found, to be read, drawn, saved and attached to explanations.


FORMAT = 1
PICTURES = (".html", ".png", ".svg")


@dataclass(frozen=True, eq=False)
class CheckUp:
    """Findings in plain words, and the numbers behind them by check."""

    model: str
    method: str
    inputs: int
    findings: tuple[Finding, ...]
    results: dict[str, Any] = field(default_factory=dict)  # by check: its frozen result
    seed: int = 0
    seconds: float = 0.0

    def of(self, level: str) -> tuple[Finding, ...]:
        """The findings of one level: "warning", "note" or "ok"."""
        if level not in LEVELS:
            raise UnknownName("level", level, LEVELS)
        return tuple(f for f in self.findings if f.level == level)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(str(f) for f in self.of("warning"))

    @property
    def title(self) -> str:
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        return f"Check-up of {self.method} on {self.model}, {inputs}"

    def attach(self, explanation: Explanation, notes: bool = False) -> Explanation:
        """The explanation with the warnings (and notes) of this check-up under "What to doubt"."""
        said = [*self.warnings, *(str(f) for f in self.of("note") if notes)]
        new = [f"check-up: {text}" for text in said]
        return explanation.replace(warnings=(*explanation.warnings, *(n for n in new if n not in explanation.warnings)))

    # Pictures

    def _page(self) -> Any:
        from whyformer.views.checks import checkup_page

        return checkup_page(self)

    def show(self) -> None:
        """Print to the terminal."""
        self._page().show()

    def plot(self) -> Any:
        """A matplotlib figure."""
        return self._page().plot()

    def to_html(self) -> str:
        """One page that needs no network."""
        html: str = self._page().to_html()
        return html

    def _repr_html_(self) -> str:
        html: str = self._page()._repr_html_()
        return html

    # Files

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return {"format": FORMAT, "what": "check-up", **plain}

    def save(self, path: str | Path) -> Path:
        """Write a picture (.html, .png, .svg), or .json that ``CheckUp.load`` reads back."""
        path = Path(path)
        if path.suffix in PICTURES:
            saved: Path = self._page().save(path)
            return saved
        if path.suffix != ".json":
            raise UnknownName("file type", path.suffix or str(path), (*PICTURES, ".json"))
        path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> CheckUp:
        """Read what ``save`` wrote; no model is needed."""
        from whyformer.checks.check import RESULTS

        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if (data.pop("format", None), data.pop("what", None)) != (FORMAT, "check-up"):
                raise ValueError("it holds something else")
            data["findings"] = from_plain(tuple[Finding, ...], data["findings"])
            data["results"] = {name: from_plain(RESULTS[name], part) for name, part in data["results"].items()}
            return cls(**data)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{str(path)!r} is no saved check-up ({error}).") from error
