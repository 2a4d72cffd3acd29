"""The JSON Schema of saved results, from the code: docs/schemas has a file per format, for other languages."""

from __future__ import annotations

import dataclasses
import types
from importlib import import_module
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from whyformer.results.codec import INFINITE, Coded, Keyed
from whyformer.results.result import EXPLANATION, FORMAT, HOMES, RESULTS, Result

Schema = dict[str, Any]
Definitions = dict[Any, Schema]  # by dataclass, and by name those that are of none
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ADDRESS = f"https://raw.githubusercontent.com/whyformer/whyformer/main/docs/schemas/results-{FORMAT}.json"
NUMBER: Schema = {"anyOf": [{"type": ["number", "null"]}, {"enum": list(INFINITE)}]}  # null is NaN
ARRAYS: dict[str, Schema] = {  # of any number of axes
    "numbers": {"anyOf": [NUMBER, {"type": "array", "items": {"$ref": "#/$defs/numbers"}}]},
    "whole_numbers": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/whole_numbers"}}]},
}
PLAIN: dict[Any, Schema] = {
    Any: {},
    type(None): {"type": "null"},
    float: NUMBER,
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
}


def result_schema() -> Schema:
    """Of every result that ``.save("x.json")`` writes in the format of this version."""
    for home in HOMES:
        import_module(home)
    defs: Definitions = dict(ARRAYS)
    kinds = [kind for _, kind in sorted(RESULTS.items()) if kind.__module__.startswith("whyformer.")]
    references = [_named(kind, defs) for kind in kinds]
    named = {_name(kind): schema for kind, schema in defs.items()}
    if len(named) < len(defs):
        raise TypeError("two parts of results are classes of one name, by which their definitions go: rename one.")
    return {
        "$schema": DIALECT,
        "$id": ADDRESS,
        "title": "A saved result of whyformer",
        "description": f"Format {FORMAT}. 'what' says which result it is; explanations have none. null is NaN.",
        "anyOf": references,
        "$defs": dict(sorted(named.items())),
    }


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.__name__)


def _named(kind: Any, defs: Definitions) -> Schema:
    """A dataclass by its name among the definitions, made where it is new."""
    reference = {"$ref": f"#/$defs/{_name(kind)}"}
    if kind in defs:
        return reference
    schema: Schema = {"type": "object", "additionalProperties": False}
    defs[kind] = schema  # before its fields, which may hold it
    hints = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    schema["properties"] = {f.name: schema_of(hints[f.name], defs) for f in fields}
    missing = dataclasses.MISSING
    schema["required"] = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    if issubclass(kind, Result):
        schema["properties"] |= {"format": {"const": FORMAT}, "what": {"const": kind.what}}
        schema["required"] += ["format"] + ["what"] * (kind.what != EXPLANATION)
    return reference


def schema_of(hint: Any, defs: Definitions) -> Schema:
    """What JSON holds for a field with this annotation; dataclasses within it are added to ``defs``."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part, defs) for part in inner]}
    if origin is Annotated:
        note = hint.__metadata__[0]
        if isinstance(note, Keyed):
            parts = {name: schema_of(part, defs) for name, part in note.kinds().items()}
            return {"type": "object", "properties": parts, "additionalProperties": False}
        return {"$ref": f"#/$defs/{'numbers' if np.dtype(note).kind == 'f' else 'whole_numbers'}"}
    if hint in (Result, Coded):  # any of them
        return {"$ref": "#"}
    if dataclasses.is_dataclass(hint):
        return _named(hint, defs)
    if origin is tuple and inner[-1] is not Ellipsis:
        members = [schema_of(part, defs) for part in inner]
        return {"type": "array", "prefixItems": members, "minItems": len(members), "maxItems": len(members)}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(inner[0], defs)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], defs)}
    raise TypeError(f"{hint} has no form in JSON: say it in docs.schema and whyformer.results.codec.")
