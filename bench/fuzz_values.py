"""Values for bench/fuzz.py: nonsense by what a parameter wants, and well-formed Python that no parameter expects.

What counts as nonsense is written down here once more, not read from the annotations that the door goes by.
Some hostile objects are usable in places (a numpy integer is an integer). Such calls are ``either``: a result is fine,
an error of another library is not.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import inspect
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

NAN, INF = math.nan, math.inf
HUGE = 10**400  # beyond every float


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
ANYTHING: tuple[Any, ...] = (
    None, 3, 1.7, NAN, True, b"x", 1j, {}, [], (), set(), Thing(), Thing, thing, [None], [3], [[]], [{}], {"a": 1},
)  # fmt: skip
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
    """How a value is written in the list of calls, whatever its own methods do."""
    try:
        written = repr(value).encode("ascii", "backslashreplace").decode()
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


# Texts


def broken_texts(text: str) -> Iterator[tuple[str, str]]:
    """Texts with half a surrogate pair, at each end and inside: no encoding of them exists."""
    middle = len(text) // 2
    for name, half in {"first": "\ud83d", "second": "\ude00", "swapped": "\ude00\ud83d"}.items():
        for place, at in {"begin": 0, "middle": middle, "end": len(text)}.items():
            yield f"{name} half at the {place}", text[:at] + half + text[at:]


def odd_texts(text: str) -> Iterator[tuple[str, Any]]:
    """Texts that are unusual and encodable."""
    marks = {"NUL": "\0", "right-to-left": "\u202e", "zero width": "\u200b", "control": "\x1b[31m", "newline": "\r\n"}
    for name, mark in marks.items():
        yield f"{name} mark", text + mark + text
        yield f"only {name} marks", mark * 3
    yield "a long text", "ab " * 50_000  # a megabyte of words takes the tokenizer itself half a minute
    yield "one word of a megabyte", "a" * 1_000_000
    yield "a subclass of str", _Text(text)
    yield "a member of an enum of texts", _Word.word
    yield "a text of numpy", _numpy().str_(text)


class _Text(str):
    """A text with an opinion."""


class _Word(str, enum.Enum):
    word = "i like it"


class _Colour(enum.Enum):
    red = 1


class _Level(enum.IntEnum):
    low = 1


def _numpy() -> Any:
    import numpy

    return numpy


# Tensors


def broken_tensors(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Tensors of the same shape without ordinary numbers in them, and ordinary ones of a shape that holds nothing."""
    for name, make in breaks(tensor.ndim, tensor.is_floating_point()).items():
        yield name, make(tensor)


def breaks(axes: int, floats: bool) -> dict[str, Callable[[Any], Any]]:
    """What breaks a tensor, by name."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def fake(tensor: Any) -> Any:
        with FakeTensorMode():
            return torch.empty(tensor.shape, dtype=tensor.dtype)

    every: dict[str, Callable[[Any], Any]] = {
        "meta": lambda t: t.to("meta"),
        "sparse": lambda t: t.to_sparse(),
        "complex": lambda t: t.to(torch.complex64),
        "conjugated": lambda t: t.to(torch.complex64).conj(),
        "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8),
        "nested": lambda t: torch.nested.nested_tensor(list(t.float().unbind(0))),
        "jagged": lambda t: torch.nested.nested_tensor(list(t.float().unbind(0)), layout=torch.jagged),
        "fake": fake,
        "a scalar": lambda t: t.flatten()[0],
        "truth values": lambda t: t.bool(),
    }
    if axes == 2:
        every |= {str(kind): partial(_in_layout, kind) for kind in (torch.sparse_csr, torch.sparse_csc)}
    every |= {f"no entries on axis {axis}": partial(_without_entries, axis) for axis in range(axes)}
    if floats:
        every |= {"mkldnn": lambda t: t.to_mkldnn(), "NaN": lambda t: t * NAN, "infinity": lambda t: t + INF}
    return every


def _in_layout(layout: Any, tensor: Any) -> Any:
    return tensor.to_sparse(layout=layout)


def _without_entries(axis: int, tensor: Any) -> Any:
    return tensor.narrow(axis, 0, 0)


def odd_tensors(tensor: Any) -> Iterator[tuple[str, Any]]:
    """Tensors that hold the same numbers in an unusual way."""
    import torch

    yield "not contiguous", tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield "expanded", tensor[:1].expand_as(tensor)
    yield "a parameter", torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
    yield "of numpy", tensor.numpy()
    with torch.inference_mode():
        yield "of inference mode", tensor.clone()
    if tensor.is_floating_point():
        yield "a leaf", tensor.clone().requires_grad_()
        yield "of a graph", tensor.clone().requires_grad_() * 2
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn):
            yield str(dtype), tensor.to(dtype)
    else:
        for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64):
            yield str(dtype), tensor.to(dtype)


# Models


def broken_outputs() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What a model may return in place of its logits (B, C)."""
    import numpy as np
    import torch

    def raising(kind: type[BaseException]) -> Callable[[Any], Any]:
        def raises(logits: Any) -> Any:
            raise kind("of the model itself")

        return raises

    import itertools

    plain: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda y: None,
        "a text": lambda y: "positive",
        "numbers": lambda y: y.tolist(),
        "numpy": lambda y: y.detach().numpy(),
        "a dict without entries": lambda y: {},
        "a dict of nothing": lambda y: {"logits": None},
        "a dict by numbers": lambda y: {0: None},
        "a namespace": lambda y: SimpleNamespace(logits=y),
        "a generator": lambda y: iter(itertools.count()),
        "a class": lambda y: torch.Tensor,
        "no classes": lambda y: y[:, :0],
        "no rows": lambda y: y[:0],
        "fewer rows": lambda y: y.new_zeros(len(y) + 1, y.shape[1]),
        "a scalar": lambda y: y.sum(),
        "many axes": lambda y: y[:, :, None, None, None],
        "NaN": lambda y: y * NAN,
        "infinity": lambda y: y + INF,
        "an array of objects": lambda y: np.array([None, "a"], object),
        "an exception": lambda y: ValueError("not raised"),
    }
    yield from plain.items()
    for kind in (
        ValueError,
        KeyError,
        RuntimeError,
        StopIteration,
        RecursionError,
        AssertionError,
        NotImplementedError,
    ):
        yield f"raises {kind.__name__}", raising(kind)

    for name, make in breaks(2, True).items():
        yield f"{name} tensor", lambda y, make=make: make(y.detach())
        yield f"a dict with a {name} tensor", lambda y, make=make: {"logits": make(y.detach())}
        yield f"a tuple with a {name} tensor", lambda y, make=make: (make(y.detach()),)
    for dtype in (torch.int64, torch.uint8, torch.float8_e5m2):
        yield f"{dtype} tensor", lambda y, dtype=dtype: y.to(dtype)


def model_with(model: Any, change: Callable[[Any], Any]) -> Any:
    """The model with something else as its output."""
    import torch

    class Changed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.config = model, model.config

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return change(self.model(input_ids, attention_mask=attention_mask).logits)

    return Changed().eval()


def broken_configs() -> Iterator[tuple[str, Any]]:
    """Entries of a config that are read here, of every wrong kind."""
    wrong: dict[str, tuple[Any, ...]] = {
        "id2label": (
            {"a": "b"}, {"0": "x", "one": "y"}, {None: "x"}, {0.5: "x"}, {(0,): "x"}, {0: None, 1: None}, ["a", "b"],
            "negative", 3, NAN, {0: ["a"]}, {HUGE: "x"}, {"²": "x"}, {0: "same", 1: "same"}, {True: "x"}, {-1: "x"},
            object(), {NAN: "x"},
        ),
        "label2id": ({"a": "b"}, 3, None, {3: 4}, ["a"]),
        "num_labels": (),
        "vocab_size": ("many", None, -1, NAN, [3]),
        "max_position_embeddings": ("many", None, -1, 0, NAN, [3], HUGE),
        "pad_token_id": ("x", -1, NAN, [0], HUGE),
        "problem_type": (3, "nonsense", ["regression"], NAN),
        "is_encoder_decoder": ("yes", 3, None),
        "architectures": (3, "Bert", [3], [None]),
        "model_type": (3, None),
    }  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            yield name, value


# Pictures, cells


def broken_pictures(picture: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Pictures whose pixels cannot be had."""
    from PIL import Image

    path = folder / "hostile.png"
    picture.save(path)
    whole = path.read_bytes()
    closed = Image.open(path)
    closed.close()
    yield "closed", closed
    copied = picture.copy()
    copied.close()
    yield "closed copy", copied
    gone = Image.open(io.BytesIO(whole))
    gone.fp.close()
    yield "of a closed file", gone
    for name, data in {
        "cut": whole[: len(whole) // 2],
        "header": whole[:20],
        "noise": b"\x89PNG\r\n\x1a\n" * 9,
    }.items():
        (folder / f"hostile-{name}.png").write_bytes(data)
        yield f"file, {name}", folder / f"hostile-{name}.png"
        with contextlib.suppress(Exception):
            yield f"opened, {name}", Image.open(io.BytesIO(data))
    yield "bytes of a file", whole
    yield "a file object", io.BytesIO(whole)
    yield "without size", Image.new("RGB", (0, 0))


def odd_pictures(picture: Any) -> Iterator[tuple[str, Any]]:
    from PIL import Image

    for mode in ("1", "L", "P", "PA", "LA", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"):
        with contextlib.suppress(Exception):
            yield f"mode {mode}", picture.convert(mode)
        yield f"new, mode {mode}", Image.new(mode, (32, 32))
    for size in ((1, 1), (1, 500), (500, 1), (3, 2)):
        yield f"of {size}", picture.resize(size)


def broken_cells() -> Iterator[tuple[str, Any]]:
    """What a numerical column of a table cannot hold."""
    import numpy as np
    import pandas as pd

    yield from {
        "NA": pd.NA, "NaT": pd.NaT, "beyond float": HUGE, "below float": -HUGE, "Decimal NaN": decimal.Decimal("NaN"),
        "Decimal sNaN": decimal.Decimal("sNaN"), "Decimal inf": decimal.Decimal("Infinity"), "masked": np.ma.masked,
        "float beyond float32": 1e300, "Fraction beyond float": fractions.Fraction(HUGE, 3), "function": len,
        "date": datetime.date.today(), "time": pd.Timestamp("2024-01-01"), "delta": pd.Timedelta("1d"),
        "period": pd.Period("2024-01"), "interval": pd.Interval(0, 1),
        "complex": np.complex64(1j), "void": np.void(b"abc"), "bytes": b"3",
        "enum": _Colour.red, "path": Path("3"), "NaN of numpy": np.float32("nan"), "Inf text": "inf", "set": {3},
        "generator": (n for n in range(3)), "object": object(), "array": np.array([1, 2]),
        "raising": Raising(), "None": None, "empty text": "", "surrogate": "\ud83d", "nested": [[3]], "range": range(3),
    }.items()  # fmt: skip


# Objects of other libraries, and objects that raise


class Raising:
    """Every method that others call raises."""

    def _raises(self, *args: Any, **named: Any) -> Any:
        raise RuntimeError("this object raises")

    __len__ = __iter__ = __getitem__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __int__ = __float__ = _raises
    __index__ = __call__ = __contains__ = __array__ = __fspath__ = __lt__ = __gt__ = __le__ = __ge__ = _raises

    __module__ = "elsewhere"


class Attributes:
    """Every attribute is there, and is another of these."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Attributes()


class NoAttributes:
    """No attribute can be read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise RuntimeError("this object raises")


class _List(list):  # type: ignore[type-arg]
    """A list with a wrong length."""

    def __len__(self) -> int:
        return 3


@cache
def objects() -> tuple[tuple[str, Any], ...]:
    """Objects that no parameter expects, and a few that some can use; made once, for some are large."""
    import numpy as np
    import pandas as pd
    import torch

    endless: list[Any] = []
    endless.append(endless)
    around: dict[str, Any] = {}
    around["self"] = around
    deep: Any = "a"
    for _ in range(2000):
        deep = [deep]
    many = {
        "a list in itself": endless, "a dict in itself": around, "2000 lists in each other": deep,
        "raising": Raising(), "every attribute": Attributes(), "no attribute": NoAttributes(),
        "a list of raising objects": [Raising()], "a dict of a raising object": {"a": Raising()},
        "a list with a wrong length": _List(["a"]), "numpy int": np.int64(3), "numpy float": np.float32(0.5),
        "numpy bool": np.bool_(True), "numpy text": np.str_("a"), "numpy NaN": np.float64("nan"),
        "numpy date": np.datetime64("2024-01-01"), "0-d array": np.array(3), "0-d text": np.array("a"),
        "0-d object": np.array(None, object), "structured array": np.zeros(2, [("a", "i4"), ("b", "f4")]),
        "masked array": np.ma.array([1.0, 2.0], mask=[True, False]), "array of nothing": np.zeros((0, 3)),
        "record array": np.rec.array([(1, "a")]), "array of texts": np.array(["a", "b"]),
        "array of bytes": np.array([b"a"]), "array of objects": np.array([None, "a", 3], object),
        "pandas index": pd.Index(["a", "b"]), "multi index": pd.MultiIndex.from_tuples([("a", 1)]),
        "categorical": pd.Categorical(["a", "b"]), "series of dates": pd.Series(pd.to_datetime(["2024-01-01"])),
        "series of categories": pd.Series(["a", "b"], dtype="category"), "series of NA": pd.Series([pd.NA, "a"]),
        "series of strings": pd.Series(["a", None], dtype="string"), "empty frame": pd.DataFrame(),
        "frame": pd.DataFrame({"a": [1, 2]}), "NA": pd.NA, "NaT": pd.NaT, "timestamp": pd.Timestamp("2024-01-01"),
        "Decimal": decimal.Decimal("0.5"), "Decimal NaN": decimal.Decimal("sNaN"), "Fraction": fractions.Fraction(1, 3),
        "bytes": b"a", "bytearray": bytearray(b"a"), "memoryview": memoryview(b"a"), "generator": (n for n in "ab"),
        "iterator": iter(["a"]), "map": map(str, [1]), "keys": {"a": 1}.keys(), "values": {"a": 1}.values(),
        "items": {"a": 1}.items(), "range": range(3), "slice": slice(3), "path": Path("a"),
        "pure path": PurePosixPath("a"), "text subclass": _Text("a"), "enum": _Colour.red, "text enum": _Word.word,
        "int enum": _Level.low, "enum class": _Colour, "huge": HUGE, "-huge": -HUGE, "-0.0": -0.0, "inf": INF,
        "-inf": -INF, "nan": NAN, "complex": 1j, "True": True, "tiny": 5e-324, "largest": 1.7e308, "empty text": "",
        "NUL": "\0", "surrogate": "\ud83d", "list of surrogates": ["\ud83d"],
        "dict of surrogates": {"\ud83d": "\ude00"}, "right-to-left": "\u202e", "megabyte": "a" * 1_000_000,
        "ellipsis": ..., "NotImplemented": NotImplemented,
        "module": json, "class": dict, "builtin": len, "lambda": lambda *a, **k: None, "coroutine": _later,
        "frozenset": frozenset("ab"), "set of None": {None}, "long list": ["a"] * 100_000, "long range": range(10**12),
        "file": io.StringIO("a"), "pattern": re.compile("a"), "lock": contextlib.nullcontext(),
        "date": datetime.date.today(), "exception": ValueError("a"), "namespace": SimpleNamespace(a=1),
        "tensor int": torch.tensor(3),
        "tensor NaN": torch.tensor(NAN), "meta tensor": torch.ones(2, device="meta"), "empty tensor": torch.ones(0),
        "sparse tensor": torch.eye(2).to_sparse(), "complex tensor": torch.ones(2, dtype=torch.complex64),
        "dtype": torch.float32, "device": torch.device("cpu"), "module of torch": torch.nn.Linear(2, 2),
        "Size": torch.Size([2, 3]), "generator of torch": torch.Generator(),
    }  # fmt: skip
    return tuple(many.items())


async def _later() -> None:
    return None


# What only language models and servers are asked: by door and parameter

_RANGES: tuple[Any, ...] = (
    "nonsense", "", 3, NAN, True, None, {}, [], Thing(), thing, (0, 3), [3], [None], [(0,)], [(0, 999)], [(3, 1)],
    [(0, 8), (4, 12)], [("a", "b")], [(0, 1.5)], [(False, True)],
)  # fmt: skip
_CHOICES: tuple[Any, ...] = (
    "yes", 3, NAN, True, {"yes": 1}, [], [""], ["yes", 3], [None], [["yes", "no"]], ["yes", "yes"], Thing(), thing,
)  # fmt: skip
_SPAN: tuple[Any, ...] = ("", 0, 0.5, NAN, [], {}, Thing(), (), (0,), (0, 0), (3, 1), (-1, 3), (0, 999), ("a", "b"))
_WRITING: tuple[Any, ...] = (
    "3", "", 1j, [], NAN, True, 0, -1, 1.7, INF, 2**70, 10**5, thing, {1: 2}, {"nonsense": 1}, {"max_new_tokens": 0},
    {"max_new_tokens": "3"}, {"max_new_tokens": 10**5}, {"num_beams": 0}, {"do_sample": True, "temperature": -1.0},
    {"input_ids": 3}, {"return_dict_in_generate": True}, {"streamer": 3}, {"stopping_criteria": 3},
)  # fmt: skip
LANGUAGE: dict[tuple[str, str], tuple[Any, ...]] = {
    **{(f"explain {kind}", "units"): _RANGES for kind in ("prompt", "answer")},
    **{(f"explain {kind}", "choices"): _CHOICES for kind in ("prompt", "answer", "server")},
    ("explain answer", "span"): _SPAN,
    ("explain server", "span"): _SPAN,
    ("explain prompt", "generate"): _WRITING,
    ("explain prompt", "target"): (
        ("the cat", "the cat"), ("the cat", ""), ("the cat", 3), ("the cat", None), ("the cat", "a dog", "he"),
    ),
    ("explain answer", "target"): ("nonsense", "", 9999, -5, 1.5, True, NAN, [], {}, Thing(), (0, 1, 2)),
    ("explain server", "target"): ("nonsense", 1, -1, 1.5, True, NAN, (0, 1), Thing()),
    ("explain server", "method"): ("generic_attention", "saliency", "attn_lrp"),
    ("explain server", "replace"): (3, "", True, NAN, "mask", [], Thing()),
    ("explain server", "answers"): (
        ("a b", ""), ("", "a"), ("", ""), ("a b", 3), ("a b", None), (3, "a"), ("a", "b", "c"), [{"role": "user"}],
        [{}], [{"role": 3, "content": "x"}], [{"role": "user", "content": 3}], [{"role": "user", "content": None}],
    ),
    ("cite", "question"): ("", 3, NAN, None, True, [], {}, b"who", Thing(), thing),
    ("cite", "documents"): ("", 3, NAN, None, True, [], {}, [""], [3], {"a": 3}, {"a": ""}, Thing(), [["a ."]], b"a"),
    ("cite", "answer"): ("", " ", 3, NAN, True, [], {}, b"x", Thing()),
    ("cite", "processor"): (None, 3, "gpt2", Thing()),
    ("CompletionServer", "model"): (3, NAN, True, [], {}, b"x", Thing()),
    ("CompletionServer", "key"): ("", " x", "a\nb", "ü", "\0", 3, NAN, True, [], b"x", Thing()),
    ("CompletionServer", "retries"): (-1, 101),
    ("CompletionServer", "timeout"): (0, 0.0),
}  # fmt: skip
