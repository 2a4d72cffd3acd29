"""HeadImportance: one score per head, how sure it is, and what to know before believing it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.dataframe import dataframe
from whyformer.errors import BadInput, UnknownName
from whyformer.types import Cost

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

FORMAT = 1
ARRAYS = ("scores", "low", "high", "samples", "direction")


@dataclass(frozen=True, eq=False)
class HeadImportance:
    """Scores (L, H), with 95 % limits of the mean over inputs; NaN where a layer has fewer heads than the widest."""

    scores: Array
    low: Array  # NaN for a single input, which shows no spread
    high: Array
    samples: Array  # (S, L, H) before normalisation: one table per input, or per batch for per="batch"
    paths: tuple[str, ...]  # where each layer's attention happened
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: int = 0
    signed: bool = False
    direction: Array | None = None  # (L, H) mean signed gradient: positive where the head raised the score
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    model: str = ""

    def ranked(self) -> list[tuple[int, int, float]]:
        """(layer, head, score) from the most to the least important; ties keep their order."""
        flat = self.scores.ravel()
        order = [int(i) for i in np.argsort(-flat, kind="stable") if not np.isnan(flat[i])]
        heads = self.scores.shape[1]
        return [(i // heads, i % heads, float(flat[i])) for i in order]

    @property
    def title(self) -> str:
        what = {"confidence": "attention", "relevance": "relevance"}.get(self.kind, self.options.get("scalar", ""))
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        return f"{self.model}: head importance, {self.kind} ({what}), {inputs}"

    def plot(self, path: str | Path | None = None) -> Any:
        """Heat map, layers × heads; written to ``path`` if given. Returns the matplotlib figure."""
        from whyformer.views.heads import grid

        return grid(self.scores, self.title, signed=self.signed, path=path)

    def show(self) -> None:
        """Print the table to the terminal."""
        from whyformer.views.heads import show_grid

        show_grid(self.scores, self.title, signed=self.signed, notes=self.warnings)

    def to_frame(self) -> pd.DataFrame:
        """One row per head, the most important first."""
        rows = [
            {
                "layer": layer,
                "head": head,
                "score": score,
                "low": float(self.low[layer, head]),
                "high": float(self.high[layer, head]),
                "path": self.paths[layer],
            }
            for layer, head, score in self.ranked()
        ]
        return dataframe(rows)

    def save(self, path: str | Path) -> Path:
        """Write .json (reload with ``HeadImportance.load``), or a picture (.png, .svg, .pdf)."""
        path = Path(path)
        if path.suffix in {".png", ".svg", ".pdf"}:
            self.plot(path)
            return path
        if path.suffix != ".json":
            raise UnknownName("file type", path.suffix or str(path), (".json", ".png", ".svg", ".pdf"))
        path.write_text(json.dumps(self.to_dict(), ensure_ascii=False), encoding="utf-8")
        return path

    def to_dict(self) -> dict[str, Any]:
        """Plain data, arrays as nested lists."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["cost"] = dataclasses.asdict(self.cost)
        for name in ARRAYS:
            data[name] = None if data[name] is None else _listed(data[name])
        return {"format": FORMAT, "what": "head importance", **data}

    @classmethod
    def load(cls, path: str | Path) -> HeadImportance:
        """Read what ``save`` wrote; no model is needed."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if (data.pop("format", None), data.pop("what", None)) != (FORMAT, "head importance"):
                raise ValueError("it holds something else")
            for name in ARRAYS:
                data[name] = None if data[name] is None else np.array(data[name], dtype=np.float32)
            data["cost"] = Cost(**data["cost"])
            data["paths"], data["warnings"] = tuple(data["paths"]), tuple(data["warnings"])
            return cls(**data)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{str(path)!r} is no saved head importance ({error}).") from error


def _listed(array: Array) -> list[Any]:
    """Nested lists; JSON has no NaN, so a missing head is null."""
    plain = array.astype(object)
    plain[np.isnan(array)] = None
    listed: list[Any] = plain.tolist()
    return listed
