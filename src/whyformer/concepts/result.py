"""TCAVResult: how often each concept raises the score of a class, and whether to believe it."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyformer.errors import BadInput, MissingExtra, UnknownName

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1


@dataclass(frozen=True)
class ConceptScore:
    """One concept against random inputs, or against another concept."""

    concept: str
    versus: str  # "random", or the other concept
    scores: tuple[float, ...]  # one per concept vector: share of inputs whose logit rises along it
    mean: float
    low: float  # 95 % limits of the mean
    high: float
    p: float  # Welch against random-vs-random, Holm-corrected over all concepts; NaN without random sets
    significant: bool  # p is below alpha, and the row is not doubtful
    accuracy: float  # mean over concept vectors, on held-out examples
    magnitude: float  # mean derivative of the logit along concept vectors of length 1
    doubtful: bool = False  # the layer does not know this concept: no claim is made
    small: bool = False  # a typical random vector moves the logit more

    @property
    def name(self) -> str:
        return self.concept if self.versus == "random" else f"{self.concept} | {self.versus}"


@dataclass(frozen=True)
class TCAVResult:
    """One row per concept, and the scores of random concepts that they are compared with."""

    rows: tuple[ConceptScore, ...]
    random: tuple[float, ...]  # random-vs-random scores
    layer: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    random_magnitude: float = math.nan  # root mean square over random vectors

    def __getitem__(self, name: str) -> ConceptScore:
        for row in self.rows:
            if name in (row.name, row.name.replace(" ", "")):
                return row
        raise UnknownName("concept", name, [row.name for row in self.rows])

    @property
    def title(self) -> str:
        return f"{self.model}: concepts for {self.target!r} at {self.layer}, {self.inputs} inputs"

    def to_frame(self) -> pd.DataFrame:
        """One row per concept."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "tabular", "to_frame()") from None
        return pd.DataFrame([dataclasses.asdict(row) for row in self.rows])

    def show(self) -> None:
        """Print the table to the terminal."""
        from whyformer.views.concepts import show_scores

        show_scores(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Bars with limits, and stars where significant; written to ``path`` if given. Returns the figure."""
        from whyformer.views.concepts import score_bars

        return score_bars(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no NaN, so what is unknown is null."""
        rows = [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in dataclasses.asdict(row).items()}
            for row in self.rows
        ]
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        size = None if math.isnan(self.random_magnitude) else self.random_magnitude
        return {"format": FORMAT, "what": "tcav", **data, "rows": rows, "random_magnitude": size}

    def save(self, path: str | Path) -> Path:
        """Write .json (reload with ``TCAVResult.load``), or a picture (.png, .svg, .pdf)."""
        path = Path(path)
        if path.suffix in {".png", ".svg", ".pdf"}:
            self.plot(path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        else:
            raise UnknownName("file type", path.suffix or str(path), (".json", ".png", ".svg", ".pdf"))
        return path

    @classmethod
    def load(cls, path: str | Path) -> TCAVResult:
        """Read what ``save`` wrote; no model is needed."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if (data.pop("format", None), data.pop("what", None)) != (FORMAT, "tcav"):
                raise ValueError("it holds something else")
            data["rows"] = tuple(_row(row) for row in data["rows"])
            data["random"], data["warnings"] = tuple(data["random"]), tuple(data["warnings"])
            data["random_magnitude"] = math.nan if data.get("random_magnitude") is None else data["random_magnitude"]
            return cls(**data)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{str(path)!r} is no saved TCAV result ({error}).") from error


def _row(data: dict[str, Any]) -> ConceptScore:
    known: dict[str, Any] = {k: math.nan if v is None else v for k, v in data.items()}
    return ConceptScore(**{**known, "scores": tuple(known["scores"])})
