"""Nonsense for bench/fuzz.py: by what a parameter wants, and calls of a function that give each of its parameters some.

What counts as nonsense is written down here once more, not read from the annotations that the door goes by.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

NAN, INF = math.nan, math.inf


class Thing:
    """Of no use anywhere."""


def thing(*args: object) -> None:
    return None


@dataclass(frozen=True)
class Call:
    area: str
    words: str
    run: Callable[[], Any]
    either: bool = False  # a result is fine, too; an error of another library is not


# Nonsense, by what a parameter wants

NO_NUMBER: tuple[Any, ...] = ("3", "", b"1", 1j, [], [1, 2], {}, Thing(), Thing, NAN, True)
NONSENSE: dict[str, tuple[Any, ...]] = {
    "count": (*NO_NUMBER, 0, -1, 1.7, INF, -INF, 2**70, thing),
    "whole": (*NO_NUMBER, 1.7, 0.5, INF, 2**70, -(2**70), thing),
    "seed": (*NO_NUMBER, None, -1, 0.5, INF, 2**63, 2**70, thing),
    "number": (*NO_NUMBER, INF, -INF, thing, None),
    "positive": (*NO_NUMBER, INF, -INF, -0.5, thing),
    "truth": ("no", "False", "", 0, 1, 2, 0.5, NAN, [], {}, Thing(), thing),
    "word": ("nonsense", "", "mea n", 3.7, NAN, [], {}, Thing(), b"mean", thing, 1j),
    "layers": ("nonsense", "", 1.7, True, NAN, [], [1.5], ["a"], {}, Thing(), 999, [999], [True], 1j),
    "layer": ("nonsense", 1.7, True, NAN, {}, Thing(), 999, 1j, b"x"),
    "place": (*NO_NUMBER, 1.7, INF, 999, -999, 2**70, thing),
    "map": ("x", 3, NAN, True, ["a"], {"nope": "b h q k"}, {1: 2}, {"*": "z z"}, {"*": 3}, {"*": None}, Thing()),
    "path": (3, NAN, "", "\0", True, [], {}, Thing(), b"x", 1j, thing),
    "list": ("nonsense", 3, NAN, True, {}, Thing(), [3], [None], [["a"]], [NAN], [], 1j, thing),
    "pair": ("ab", 3, NAN, True, (), (1,), (1, 2, 3), (0, 5), (-1, 5), (1.5, 2), ("a", "b"), {}, Thing(), (NAN, 1)),
    "target": (
        1.7, True, 0.5, NAN, 1j, "nonsense", "", 99, -99, (0, 0), (0, 1, 1), (0,), (), {}, [], [0] * 7, b"x",
        Thing(), thing, Thing, [1.7], [True], ["nonsense"], (0, 1.5), (0, True), [None] * 9,
    ),
}  # fmt: skip
KINDS = {
    "batch_size": "count", "seed": "seed", "progress": "truth", "target": "target", "attention_at": "map",
    "scalar": "word", "cache": "path", "replace": "word", "layers": "layers", "heads": "layers", "layer": "layer",
    "start_layer": "place", "end_layer": "place", "points": "count", "repeats": "count", "methods": "list",
    "metrics": "list", "checks": "list", "at": "word", "by": "word", "weight": "word", "size": "pair",
    "spaces": "list", "normalize": "word", "jitter": "positive", "steps": "count", "samples": "whole",
    "length": "count", "sequences": "count", "evaluations": "count",
    "masks": "count", "draws": "count", "orders": "count",
    "superpixels": "count", "noise": "positive", "lr": "positive", "l2": "positive", "tv": "positive",
    "norm": "positive", "scale": "positive", "alpha": "positive", "penalty": "positive", "memory_mb": "positive",
    "patch_smoothing": "positive", "discard": "positive", "threshold": "positive", "memory": "word",
    "method": "word", "relations": "list", "frequencies": "map", "groups": "map", "residual": "positive",
    "fractions": "list", "bins": "list", "share": "positive", "sets": "count", "radius": "positive",
    "tolerance": "whole", "permutations": "count", "candidates": "count", "epsilon": "positive", "copies": "count",
    "beside": "count", "penalties": "list", "concepts": "map", "relative": "word", "unit": "word",
    "aggregate": "layers", "unknown_parameter": "word", "generate": "count", "top": "count", "parallel": "count",
    "timeout": "positive", "epochs": "count", "guide_epochs": "count",
}  # fmt: skip
FINE = {  # what would be nonsense elsewhere, and is sense here
    ("frequencies", "{'*': 3}"), ("methods", "[]"), ("spaces", "[]"), ("relations", "[]"),
    ("unit", "''"), ("method", "[]"), ("relations", "'nonsense'"), ("by", "''"),
    ("batch_size", str(2**70)), ("points", str(2**70)),
}  # fmt: skip
MAY_BE_EMPTY = ("methods", "spaces", "relations", "penalties")


def kind_of(name: str, default: Any) -> str | None:
    """What a parameter wants, by its name, else by its default."""
    if isinstance(default, bool):
        return "truth"
    if isinstance(default, str) and KINDS.get(name) not in ("layers", "layer", "path"):
        return "word"
    if name in KINDS:
        return KINDS[name]
    return "whole" if isinstance(default, int) else "number" if isinstance(default, float) else None


def shown(value: Any) -> str:
    try:
        written = repr(value)
    except Exception:
        written = f"<{type(value).__name__}>"
    return written if len(written) < 60 else f"<{type(value).__name__}>"


def with_nonsense(
    area: str, name: str, call: Callable[..., Any], function: Any, skip: tuple[str, ...]
) -> Iterator[Call]:
    """One parameter at a time, each kind of nonsense."""
    for parameter, described in inspect.signature(function).parameters.items():
        if parameter in skip or described.kind in (described.VAR_KEYWORD, described.VAR_POSITIONAL):
            continue
        kind = kind_of(parameter, described.default)
        for value in NONSENSE.get(kind or "", ()):
            if value is described.default or (parameter in MAY_BE_EMPTY and value == []):
                continue
            if any(parameter == p and shown(value) == v for p, v in FINE):
                continue
            yield Call(area, f"{name}({parameter}={shown(value)})", partial(call, **{parameter: value}))
    for unknown in ("unknown_parameter", "Seed", "n_jobs"):
        yield Call(area, f"{name}({unknown}=1)", partial(call, **{unknown: 1}))


def run_command(arguments: tuple[str, ...]) -> None:
    """Exit codes 1 and 2 are refusals in the command's own words."""
    from typer.testing import CliRunner

    from whyformer.cli.main import app
    from whyformer.errors import WhyformerError

    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise WhyformerError(result.stderr)
