"""Results as files, data frames and other libraries' objects; plain data by annotations."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.errors import BadInput, MissingExtra, UnknownName
from whyformer.types import Cost, Explanation, Target, Units

if TYPE_CHECKING:
    import pandas as pd


# Explanations as other libraries' objects.


def to_shap(explanations: Explanation | Sequence[Explanation]) -> Any:
    """A ``shap.Explanation`` of one explanation, or of several as its rows, for shap's plots.

    values: the scores; base_values: the value at the background, 0 where the method has none; data and feature_names:
    the units' labels, for tables the values of the columns and their names. Rows may differ in length.
    """
    shap = shap_package("to_shap")
    if isinstance(explanations, Explanation):
        labels = _labels(explanations)
        return shap.Explanation(
            values=explanations.scores.astype(np.float64),
            base_values=_base(explanations),
            data=_data(explanations),
            feature_names=labels,
            output_names=None,
        )
    rows = list(explanations)
    if not rows or not all(isinstance(e, Explanation) for e in rows):
        raise BadInput("to_shap takes an Explanation or a list of them, and at least one.")
    one_table = all(e.units.values is not None for e in rows) and len({e.units.labels for e in rows}) == 1
    return shap.Explanation(
        values=_ragged([e.scores.astype(np.float64) for e in rows]),
        base_values=np.array([_base(e) for e in rows]),
        data=_ragged([_data(e) for e in rows]),
        feature_names=_labels(rows[0]) if one_table else [_labels(e) for e in rows],
    )


def shap_package(why: str) -> Any:
    """The shap library; its import warns about deprecated calls of its own, which no user can help."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import shap
    except ImportError:
        raise MissingExtra("shap", "shap", why) from None
    return shap


def _base(explanation: Explanation) -> float:
    return 0.0 if explanation.base is None else float(explanation.base)


def _data(explanation: Explanation) -> Any:
    """What stood at each unit: the token itself, or the value of a column, as a number where it is one."""
    values = explanation.units.values
    return np.array(_labels(explanation) if values is None else [_number(v) for v in values], dtype=object)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _labels(explanation: Explanation) -> list[str]:
    """Tokens with the space that stood before them, so that shap's text plot reads as the text did."""
    units = explanation.units
    if units.spans is None or units.text is None:
        return [str(label) for label in units.labels]
    labels = []
    for label, special, (start, end) in zip(units.labels, units.special, units.spans, strict=True):
        if special or end <= start:
            labels.append(label)
            continue
        space = " " if start > 0 and units.text[start - 1].isspace() else ""
        labels.append(space + units.text[start:end])
    return labels


def _ragged(rows: list[Any]) -> Any:
    if len({len(r) for r in rows}) == 1:
        return np.stack(rows)
    result = np.empty(len(rows), dtype=object)
    result[:] = rows
    return result


# Results as a pandas table; pandas is an extra.


def dataframe(data: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """From rows (one dict each, or tuples with ``columns``) or from columns by name."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("pandas", "tabular", "to_frame()") from None
    return pd.DataFrame(data, columns=columns)


# Save and reload explanations without the model.


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


# Results as plain data and back, by the annotations of their dataclasses. JSON has no NaN: it becomes null.


def to_plain(value: Any) -> Any:
    if isinstance(value, Explanation):
        return to_dict(value)
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def from_plain(hint: Any, data: Any) -> Any:
    """``data`` as what ``hint`` says."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        present = [h for h in inner if h is not type(None)]
        return None if data is None else from_plain(present[0], data)
    if hint is Explanation:
        return from_dict(data)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{f.name: from_plain(hints[f.name], data[f.name]) for f in dataclasses.fields(hint)})  # type: ignore[operator]
    if origin is tuple:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(kind, part) for kind, part in zip(kinds, data, strict=True))
    if origin is dict:
        return {k: from_plain(inner[1], v) for k, v in data.items()}
    if hint is float:
        return math.nan if data is None else float(data)
    return data
