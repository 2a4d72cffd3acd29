"""Save and reload explanations without the model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.dataframe import dataframe
from whyformer.errors import BadInput, UnknownName
from whyformer.types import Cost, Explanation, Target, Units

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
ARRAYS = ("scores", "matrix", "layers", "detail")
OTHERS = {  # what a file says it holds -> who reads it
    "global explanation": "whyformer.tables.GlobalExplanation",
    "feature permutation": "whyformer.tables.FeaturePermutation",
    "comparison": "whyformer.Comparison",
    "recommendation": "whyformer.Recommendation",
    "check-up": "whyformer.CheckUp",
    "head importance": "whyformer.heads.HeadImportance",
    "tcav": "whyformer.concepts.TCAVResult",
}


def to_dict(explanation: Explanation) -> dict[str, Any]:
    """Plain data, arrays as nested lists."""
    data = _header(explanation)
    for name in ARRAYS:
        value = getattr(explanation, name)
        if isinstance(value, dict):
            data[name] = {"|".join(k): v.tolist() for k, v in value.items()}
        else:
            data[name] = None if value is None else value.tolist()
    return data


def _header(explanation: Explanation) -> dict[str, Any]:
    data = {f.name: getattr(explanation, f.name) for f in dataclasses.fields(explanation) if f.name not in ARRAYS}
    for name in ("units", "target", "prediction", "cost"):
        data[name] = dataclasses.asdict(data[name])
    data["options"] = {k: v if _plain(v) else repr(v) for k, v in data["options"].items()}
    return {"format": FORMAT, **data}


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(v) for v in value)
    if isinstance(value, dict):  # a baseline per stream
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    return value is None or isinstance(value, (str, int, float, bool))


def from_dict(data: dict[str, Any]) -> Explanation:
    data = dict(data)
    what = data.get("what")
    if what in OTHERS:
        raise BadInput(f"it holds a {what}: read it with {OTHERS[what]}.load")
    if data.pop("format", None) != FORMAT:
        raise BadInput("this is no saved explanation, or one of another version of whyformer.")
    units = {k: _tuples(v) for k, v in data["units"].items()}
    for name in ARRAYS:
        value = data.get(name)
        if isinstance(value, dict):
            data[name] = {tuple(k.split("|")): np.asarray(v, np.float32) for k, v in value.items()}
        elif value is not None:
            data[name] = np.asarray(value, np.float32)
    data["units"] = Units(**units)
    data["target"], data["prediction"] = Target(**data["target"]), Target(**data["prediction"])
    data["cost"] = Cost(**data["cost"])
    data["warnings"] = tuple(data["warnings"])
    data["changed"] = None if data.get("changed") is None else tuple(data["changed"])
    return Explanation(**data)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def save(explanation: Explanation, path: str | Path) -> Path:
    """Write .json (readable) or .npz (compact); both reload with ``load``."""
    path = in_folder(path)
    writers = {".json": _save_json, ".npz": _save_npz}
    if path.suffix not in writers:
        raise UnknownName("file type", path.suffix or str(path), writers)
    writers[path.suffix](explanation, path)
    return path


def in_folder(path: str | Path) -> Path:
    """The path of a file to write, if its folder is there; asked before long work."""
    path = Path(path)
    if not path.parent.is_dir():
        raise BadInput(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}. Make it first.")
    return path


def _save_json(explanation: Explanation, path: Path) -> None:
    path.write_text(json.dumps(to_dict(explanation), ensure_ascii=False), encoding="utf-8")


def _save_npz(explanation: Explanation, path: Path) -> None:
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        value = getattr(explanation, name)
        if isinstance(value, dict):
            arrays |= {f"{name}:{'|'.join(k)}": v for k, v in value.items()}
        elif value is not None:
            arrays[name] = value
    np.savez_compressed(path, __header__=np.array(json.dumps(_header(explanation))), **arrays)


def load(path: str | Path) -> Explanation:
    """Read an explanation saved as .json or .npz; no model is needed."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no file at {str(path)!r}.")
    try:
        if path.suffix == ".npz":
            return _load_npz(path)
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise BadInput(f"{str(path)!r} is no saved explanation ({error}).") from error


def _load_npz(path: Path) -> Explanation:
    with np.load(path) as file:
        data = json.loads(str(file["__header__"]))
        for key in file.files:
            name, _, streams = key.partition(":")
            if streams:
                data.setdefault(name, {})[streams] = file[key]
            elif name in ARRAYS:
                data[name] = file[key]
    return from_dict(data)


def to_frame(explanation: Explanation) -> pd.DataFrame:
    """One row per unit: label, score, special, stream, word."""
    units = explanation.units
    data: dict[str, Any] = {
        "unit": units.labels,
        "score": explanation.scores,
        "special": units.special,
        "stream": units.stream,
    }
    if units.word is not None:
        data["word"] = units.word
    if units.values is not None:
        data["value"] = units.values
    return dataframe(data)
