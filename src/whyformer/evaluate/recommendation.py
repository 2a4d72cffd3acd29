"""Recommendation: how to explain this model, chosen on some inputs and tested on others."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer.errors import BadInput, MissingExtra, UnknownName
from whyformer.evaluate.comparison import PICTURES, with_nan, without_nan

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
ANY = "any cost"
SCOPES = ("dataset", "label", "instance")


@dataclass(frozen=True)
class Choice:
    """What was chosen for one group of inputs (all, one label, one input) within one class of cost."""

    group: str
    cost_class: str
    name: str
    method: str
    options: dict[str, Any]
    truthfulness: float  # mean ranked truthfulness (RFT) on the inputs it was chosen by
    inputs: int  # it was chosen by so many


@dataclass(frozen=True)
class Outcome:
    """How the choices of one class of cost did by AOPC: on other inputs, or (per instance) on other variants."""

    cost_class: str
    name: str
    mean: float
    low: float
    high: float
    over_random: tuple[float, float, float] = (math.nan,) * 3  # mean gain and its 95 % limits, input by input
    over_attention: tuple[float, float, float] = (math.nan,) * 3  # over last-layer attention at the readout

    @property
    def beats_random(self) -> bool:
        return self.over_random[1] > 0

    @property
    def beats_attention(self) -> bool:
        return self.over_attention[1] > 0


@dataclass(frozen=True, eq=False)
class Recommendation:
    """Which explanation to use, per class of cost, and how it did where it was not chosen."""

    scope: str
    choices: tuple[Choice, ...]
    outcomes: tuple[Outcome, ...]  # one per class of cost, then those it is held against
    leaders: tuple[tuple[str, float], ...]  # the first of all candidates by RFT
    grid: tuple[tuple[float, ...], ...]  # mean RFT of raw attention: layers (mean, product, each) × heads (mean, each)
    grid_reading: str
    candidates: int
    excluded: dict[str, str]  # method → why it could not be chosen
    replacement: str
    chosen_on: int = 0
    reported_on: int = 0
    variants: int = 0
    seed: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Any:
        """For ``explain(model, x, **recommendation.best)``: a dict; per label a dict of them, per instance a list."""
        return self.chosen(ANY)

    def chosen(self, cost_class: str) -> Any:
        """The same within one class of cost: "one forward", "forward and backward", "many passes"."""
        found = {c.group: {"method": c.method, **c.options} for c in self.choices if c.cost_class == cost_class}
        if not found:
            raise UnknownName("class of cost", cost_class, dict.fromkeys(c.cost_class for c in self.choices))
        if self.scope == "dataset":
            return next(iter(found.values()))
        return found if self.scope == "label" else list(found.values())

    def within(self, cost_class: str) -> Outcome:
        """The outcome of one class of cost, or of "random", "greedy", …"""
        for outcome in self.outcomes:
            if outcome.cost_class == cost_class:
                return outcome
        raise UnknownName("class of cost", cost_class, [o.cost_class for o in self.outcomes])

    @property
    def verdict(self) -> str:
        """In plain words: is the choice better than chance, and than looking at the last layer?"""
        if not self.reported_on:
            return "Chosen, but not tested: it was asked for without a report."
        outcome = self.within(ANY)
        gain = "{:+.3f} ({:+.3f} to {:+.3f})".format
        random, attention = gain(*outcome.over_random), gain(*outcome.over_attention)
        if math.isnan(outcome.over_random[1]):
            return "One input says nothing about others: give more of them for an interval."
        if not outcome.beats_random:
            return (
                f"Nothing beats random here: the best by RFT gains {random} in AOPC over random scores, and the "
                "interval includes zero. Don't rely on any of these explanations for this model and these inputs."
            )
        if math.isnan(outcome.over_attention[1]):
            return f"The choice beats random scores by {random} in AOPC."
        better = "beats" if outcome.beats_attention else "cannot be told from"
        return f"The choice beats random scores by {random} in AOPC, and {better} last-layer attention, by {attention}."

    @property
    def title(self) -> str:
        per = {"dataset": "one for all inputs", "label": "one per label", "instance": "one per input"}[self.scope]
        return f"{self.model}: how to explain it, {per}"

    def to_frame(self) -> pd.DataFrame:
        """One row per choice, with the outcome of its class of cost."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "tabular", "to_frame()") from None
        known = {o.cost_class: o for o in self.outcomes}
        rows = []
        for choice in self.choices:
            outcome = known.get(choice.cost_class)
            aopc = {} if outcome is None else {"aopc": outcome.mean, "aopc_low": outcome.low, "aopc_high": outcome.high}
            rows.append(dataclasses.asdict(choice) | aopc)
        return pd.DataFrame(rows)

    def show(self) -> None:
        """Print to the terminal."""
        self._page().show()

    def plot(self) -> Any:
        """A matplotlib figure."""
        return self._page().plot()

    def to_html(self) -> str:
        """One page that needs no network."""
        return str(self._page().to_html())

    def _repr_html_(self) -> str:
        return str(self._page()._repr_html_())

    def _page(self) -> Any:
        from whyformer.views.recommend import recommendation_page

        return recommendation_page(self)

    def save(self, path: str | Path) -> Path:
        """Write .json (reload with ``Recommendation.load``), or a picture (.html, .png, .svg)."""
        path = Path(path)
        if path.suffix in PICTURES:
            self._page().save(path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        else:
            raise UnknownName("file type", path.suffix or str(path), (".json", *PICTURES))
        return path

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no NaN, so what is unknown is null."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["choices"] = [dataclasses.asdict(c) for c in self.choices]
        data["outcomes"] = [dataclasses.asdict(o) for o in self.outcomes]
        return {"format": FORMAT, "what": "recommendation", **without_nan(data)}

    @classmethod
    def load(cls, path: str | Path) -> Recommendation:
        """Read what ``save`` wrote; no model is needed."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if (data.pop("format", None), data.pop("what", None)) != (FORMAT, "recommendation"):
                raise ValueError("it holds something else")
            data["choices"] = tuple(Choice(**c) for c in data["choices"])
            data["outcomes"] = tuple(_outcome(with_nan(o)) for o in data["outcomes"])
            data["leaders"] = tuple((name, score) for name, score in data["leaders"])
            data["grid"] = tuple(tuple(row) for row in with_nan(data["grid"]))
            data["warnings"] = tuple(data["warnings"])
            return cls(**data)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{str(path)!r} is no saved recommendation ({error}).") from error


def _outcome(data: dict[str, Any]) -> Outcome:
    return Outcome(**{**data, **{k: tuple(data[k]) for k in ("over_random", "over_attention")}})
