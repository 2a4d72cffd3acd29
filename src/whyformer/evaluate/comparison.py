"""Comparison: methods side by side, with intervals, ranks, costs, and how far they agree."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import BadInput, MissingExtra, UnknownName

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

FORMAT = 1
PICTURES = (".html", ".png", ".svg")


@dataclass(frozen=True)
class MetricScore:
    """One metric of one method: the mean over inputs with 95 % limits, and the gain over random scores."""

    mean: float
    low: float
    high: float
    gain: float  # how much better than random, input by input; above zero is better whatever the metric's direction
    gain_low: float
    gain_high: float
    rank: float = math.nan  # among the methods, 1 = best; NaN for floor and ceiling

    @property
    def beats_random(self) -> bool:
        return self.gain_low > 0


@dataclass(frozen=True)
class ComparedMethod:
    """One row of the table."""

    name: str
    method: str
    options: dict[str, Any]
    scores: dict[str, MetricScore]
    rank: float = math.nan  # by the mean of its ranks; NaN for floor and ceiling
    forwards: float = math.nan  # passes per input
    backwards: float = math.nan
    seconds: float = math.nan  # per input
    peak_bytes: int | None = None
    baseline: str = ""  # "floor" or "ceiling"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Which explanation to trust here: measured on these inputs, with this replacement."""

    rows: tuple[ComparedMethod, ...]  # best first, then floor and ceiling
    metrics: tuple[str, ...]
    higher_is_better: dict[str, bool]
    agreement: dict[str, list[list[float]]]  # measure → methods × methods, in the order of ``agreeing``
    agreeing: tuple[str, ...]
    curves: dict[str, dict[str, list[float]]]  # "remove" and "keep" (and their logits) → method → mean over inputs
    fractions: tuple[float, ...]
    values: dict[str, dict[str, list[float]]]  # metric → method → one value per input
    failures: dict[str, str]  # method → why it could not be run
    replacement: str | None
    inputs: int = 0
    variants: int = 0  # that were run for this comparison; others came from the cache
    seed: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ComparedMethod:
        for row in self.rows:
            if row.name == name:
                return row
        raise UnknownName("method", name, [row.name for row in self.rows])

    @property
    def best(self) -> dict[str, Any]:
        """The method that came first, ready for ``explain(model, x, **comparison.best)``."""
        row = self.rows[0]
        return {"method": row.method, **row.options}

    @property
    def title(self) -> str:
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        absent = f", absent parts: {self.replacement}" if self.replacement is not None else ""
        return f"{self.model}: methods compared on {inputs}{absent}"

    def to_frame(self) -> pd.DataFrame:
        """One row per method: each metric with its limits, rank and cost."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "tabular", "to_frame()") from None
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"method": row.name, "rank": row.rank, "baseline": row.baseline}
            for name in self.metrics:
                score = row.scores.get(name)
                known = score or MetricScore(*[math.nan] * 6)
                record |= {name: known.mean, f"{name}_low": known.low, f"{name}_high": known.high}
            costs = ("forwards", "backwards", "seconds", "peak_bytes")
            records.append(record | {k: getattr(row, k) for k in costs})
        return pd.DataFrame(records)

    def show(self) -> None:
        """Print to the terminal."""
        from whyformer.views.compare import comparison_page

        comparison_page(self).show()

    def plot(self) -> Any:
        """A matplotlib figure."""
        from whyformer.views.compare import comparison_page

        return comparison_page(self).plot()

    def to_html(self) -> str:
        """One page that needs no network."""
        from whyformer.views.compare import comparison_page

        return comparison_page(self).to_html()

    def _repr_html_(self) -> str:
        from whyformer.views.compare import comparison_page

        return comparison_page(self)._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Write .json (reload with ``Comparison.load``), or a picture (.html, .png, .svg)."""
        path = Path(path)
        if path.suffix in PICTURES:
            from whyformer.views.compare import comparison_page

            return comparison_page(self).save(path)
        if path.suffix != ".json":
            raise UnknownName("file type", path.suffix or str(path), (".json", *PICTURES))
        path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        return path

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no NaN, so what is unknown is null."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["rows"] = [dataclasses.asdict(row) for row in self.rows]
        return {"format": FORMAT, "what": "comparison", **without_nan(data)}

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read what ``save`` wrote; no model is needed."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if (data.pop("format", None), data.pop("what", None)) != (FORMAT, "comparison"):
                raise ValueError("it holds something else")
            data["rows"] = tuple(_row(row) for row in data["rows"])
            for name in ("metrics", "agreeing", "fractions", "warnings"):
                data[name] = tuple(data[name])
            for name in ("agreement", "curves", "values"):
                data[name] = with_nan(data[name])
            return cls(**data)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{str(path)!r} is no saved comparison ({error}).") from error


def _row(data: dict[str, Any]) -> ComparedMethod:
    scores = {name: MetricScore(**with_nan(score)) for name, score in data.pop("scores").items()}
    numbers = ("rank", "forwards", "backwards", "seconds")
    return ComparedMethod(**{**data, **{k: with_nan(data[k]) for k in numbers}}, scores=scores)


def without_nan(value: Any) -> Any:
    """Plain lists, dicts and numbers, null for NaN."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return None if math.isnan(value) else float(value)
    if isinstance(value, np.integer):
        return int(value)
    return value if value is None or isinstance(value, (str, int, bool)) else repr(value)


def with_nan(value: Any) -> Any:
    """The other way round, for numbers that may be unknown."""
    if isinstance(value, dict):
        return {k: with_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [with_nan(v) for v in value]
    return math.nan if value is None else value
