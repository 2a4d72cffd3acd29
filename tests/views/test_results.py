"""Every result has the same methods, and comes back from its files as it was; their schema."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

import whyformer as wf
from docs.schema import result_schema, schema_of
from tests.support.snapshots import compare
from tests.views import samples
from tests.views.results import ALL, STORED
from tests.views.test_terminal import SNAPSHOTS
from whyformer.errors import BadInput, UnknownName
from whyformer.heads import Circuits, DirectShares, HeadImportance, PruningCurve
from whyformer.results.result import DATA, FORMAT, PICTURES, RESULTS, Result, Retired
from whyformer.results.types import Cost
from whyformer.tables import GlobalExplanation
from whyformer.views.view import Page, View

DOORS = ("show", "plot", "save", "to_html", "_repr_html_", "to_frame", "to_dict", "load", "view")
RETIRED = STORED.with_name("retired_results")
KINDS = sorted(ALL, key=lambda kind: kind.__name__)


@cache
def validator() -> Draft202012Validator:
    schema = result_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def subclasses(kind: type[Result]) -> set[type[Result]]:
    below = {k for k in kind.__subclasses__() if k.__module__.startswith("whyformer.")}
    return below.union(*(subclasses(k) for k in below))


def same(a: Any, b: Any) -> bool:
    """Equal, array by array; NaN is NaN."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, (int, float)):
        return bool(a == b or (math.isnan(a) and math.isnan(b)))
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_every_kind_of_result_is_held_to_this() -> None:
    for module in pkgutil.walk_packages(wf.__path__, "whyformer."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    assert subclasses(Result) == {*ALL, Retired}
    assert set(RESULTS.values()) >= set(ALL)
    assert all(RESULTS[kind.what] is kind for kind in ALL)


@pytest.mark.parametrize("kind", KINDS)
def test_doors_are_those_of_every_result(kind: type[Result]) -> None:
    assert dataclasses.is_dataclass(kind)
    for door in DOORS:
        assert callable(getattr(kind, door)), door
        assert (door in vars(kind)) == (door == "to_frame"), f"{kind.__name__}.{door}: one implementation for all"
    assert "path" not in inspect.signature(kind.plot).parameters
    words = repr(ALL[kind]())
    assert words.startswith(f"{kind.__name__}(") and len(words) < 600  # tests/test_repr.py: it fits on a screen


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_read_back_by_wf_load(kind: type[Result], tmp_path: Path) -> None:
    result = ALL[kind]()
    paths = [result.save(tmp_path / f"x{ending}") for ending in DATA]
    for again in (*map(wf.load, paths), *map(kind.load, paths)):
        assert type(again) is kind
        for field in dataclasses.fields(result):
            assert same(getattr(again, field.name), getattr(result, field.name)), field.name
    plain = json.loads(paths[0].read_text(encoding="utf-8"), parse_constant=pytest.fail)  # no NaN, which is no JSON
    assert plain == result.to_dict() and plain["format"] == FORMAT
    validator().validate(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_shown_and_drawn(kind: type[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ALL[kind]()
    view = result.view()
    assert isinstance(view, (View, Page))
    title = view.title if isinstance(view, View) else view.views[0].title
    page = result.to_html()
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    for outside in ("http://", "https://", "<script", "url(", "src="):
        assert outside not in samples.still(page).replace("http://www.w3.org", ""), outside
    assert not re.search(r"\bnan\b", re.sub('base64,[^"]+', "", page))
    framed = result._repr_html_()  # a frame of its own: nothing that a notebook could restyle
    assert framed.startswith("<iframe") and framed.endswith("</iframe>")
    assert escape(page) in framed and "<style" not in framed and "<table" not in framed
    assert result.save(tmp_path / "x.html").read_text(encoding="utf-8") == page
    result.show()
    shown = capsys.readouterr().out
    assert title[:20] in shown and max(map(len, shown.splitlines())) <= 80
    compare(shown, SNAPSHOTS / f"{kind.__name__}.txt")
    assert result.plot().axes
    frame = result.to_frame()
    assert len(frame) and len(frame.columns) > 1
    # One ending each, in turn: what is drawn is the same for all of them, and matplotlib writes it.
    ending, start = ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"))[KINDS.index(kind) % 3]
    written = result.save(tmp_path / f"x{ending}").read_bytes()
    assert written.startswith(start) and len(written) > 3000


@pytest.mark.parametrize("kind", [wf.Explanation, PruningCurve])
def test_refusals(kind: type[Result], tmp_path: Path) -> None:
    result = ALL[kind]()
    with pytest.raises(UnknownName, match=", ".join((*PICTURES, *DATA)).replace(".", r"\.")):
        result.save(tmp_path / "x.gif")
    with pytest.raises(BadInput, match="there is no folder"):
        result.save(tmp_path / "nowhere" / "x.json")
    other: Any = ALL[HeadImportance]()
    path = other.save(tmp_path / "other.json")
    with pytest.raises(
        BadInput, match=f"not a saved {kind.what}.*it contains a {other.what}: use {type(other).__name__}.load"
    ):
        kind.load(path)
    for bad in ("{}", "[]", "nonsense", '{"format": 2}', json.dumps({"format": 1, "what": kind.what})):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(BadInput, match=f"not a saved {kind.what}"):
            kind.load(tmp_path / "bad.json")
    if kind is not wf.Explanation:  # whose first argument is a picture
        with pytest.raises(BadInput):
            result.plot("x.png")


def test_kinds_have_different_names() -> None:
    with pytest.raises(TypeError, match=r"'tcav' is taken by TCAVResult"):

        class Other(Result):
            what: ClassVar[str] = "tcav"

            def to_frame(self) -> Any:
                return None

    assert RESULTS["tcav"].__name__ == "TCAVResult"


def test_files_hold_odd_options_in_words_infinities_and_arrays_as_arrays(tmp_path: Path) -> None:
    options = {"baseline": np.zeros(2), "device": Cost, "steps": np.int64(3), "share": float("nan"), "at": (1, 2)}
    again = wf.load(samples.text(options=options).save(tmp_path / "x.json"))
    words = {"baseline": "array([0., 0.])", "device": repr(Cost), "steps": 3, "share": None, "at": [1, 2]}
    assert again.options == words
    odd = dataclasses.replace(ALL[GlobalExplanation](), low=np.array([np.inf, -np.inf, np.nan]))
    for ending in ("json", "npz"):
        assert same(wf.load(odd.save(tmp_path / f"x.{ending}")), odd)
    with np.load(ALL[Circuits]().save(tmp_path / "x.npz")) as file:
        assert {"query:0", "query:2", "output:1", "copying"} <= set(file.files)
        assert "query" not in json.loads(str(file["__header__"]))


def test_what_a_picture_can_be_told_every_door_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = ALL[PruningCurve]()
    other = dataclasses.replace(curve, name="random, seed 1")
    assert other.name in curve.to_html(beside=[other]) and other.name not in curve.to_html()
    assert curve.save(tmp_path / "x.html", beside=[other]).read_text(encoding="utf-8") == curve.to_html(beside=[other])
    curve.show(beside=[other])
    assert other.name in capsys.readouterr().out
    assert "negative = -0.50" in ALL[DirectShares]().to_html(index=1)
    assert samples.image().to_html(samples.picture()) == samples.image().to_html(image=samples.picture())
    over = samples.image().to_html(image=samples.picture())
    assert over.count("<svg") == samples.image().to_html().count("<svg") + 1
    with pytest.raises(UnknownName, match="colour"):
        samples.text().plot(colour="red")
    with pytest.raises(UnknownName, match=r"\.html, \.png, \.svg, \.pdf"):
        samples.text().view().save(tmp_path / "x.json")


@pytest.mark.parametrize("path", sorted(STORED.iterdir()), ids=lambda p: p.name)
def test_files_of_the_old_format_are_read(path: Path) -> None:
    """Some were written before results had one codec, from what ``tests.views.results`` makes."""
    kind = next(k for k in ALL if k.__name__ == path.stem)
    again, made = wf.load(path), ALL[kind]()
    assert type(again) is kind
    for field in dataclasses.fields(made):
        assert same(getattr(again, field.name), getattr(made, field.name)), field.name
    if path.suffix == ".json":
        validator().validate(json.loads(path.read_text(encoding="utf-8")))
        written = json.dumps(made.to_dict(), ensure_ascii=False)
        assert written == path.read_text(encoding="utf-8"), "the format is what it was, to the byte"


@pytest.mark.parametrize(("name", "former"), [("Learned", {"beside": {}}), ("Maximized", {"tokens": ["a"]})])
def test_a_file_with_fields_that_have_gone_is_read(name: str, former: dict[str, object], tmp_path: Path) -> None:
    content = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
    older = tmp_path / "older.json"
    older.write_text(json.dumps(content | former), encoding="utf-8")
    assert wf.load(older).to_dict() == wf.load(STORED / f"{name}.json").to_dict()
    older.write_text(json.dumps(content | {"unheard": 1}), encoding="utf-8")
    with pytest.raises(BadInput, match="'unheard' is unknown"):
        wf.load(older)


@pytest.mark.parametrize("path", sorted(RETIRED.iterdir()), ids=lambda p: p.name)
def test_kinds_that_are_no_longer_made_are_read_as_they_were_saved(path: Path, tmp_path: Path) -> None:
    loaded, written = wf.load(path), path.read_text(encoding="utf-8")
    assert {"format": 1, "what": loaded.kind} | loaded.content == json.loads(written)
    assert json.dumps(loaded.to_dict(), ensure_ascii=False) == written
    assert wf.load(loaded.save(tmp_path / "again.json")).content == loaded.content
    assert list(loaded.to_frame()["field"]) == [*loaded.content] and loaded.kind in loaded.to_html()


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a word among numbers": lambda plain: plain["scores"].__setitem__(0, "high"),
    "a field too many": lambda plain: plain.update(score=1),
    "a field too few": lambda plain: plain.pop("units"),
    "a part of a field": lambda plain: plain["target"].pop("index"),
    "no format": lambda plain: plain.pop("format"),
    "another result": lambda plain: plain.update(what="check_up"),
    "a number for a list": lambda plain: plain["units"].update(labels=3),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_schema_refuses_what_load_refuses(damage: str, tmp_path: Path) -> None:
    plain = copy.deepcopy(ALL[wf.Explanation]().to_dict())
    DAMAGES[damage](plain)
    assert not validator().is_valid(plain)
    (tmp_path / "x.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(BadInput):
        wf.load(tmp_path / "x.json")


def test_definitions_are_called_as_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the modules that they live in today; two of one name would be one definition."""
    with pytest.raises(TypeError, match="complex"):  # which JSON cannot hold
        schema_of(complex, {})
    names = result_schema()["$defs"]
    assert {"Explanation", "Units", "Target", "Choice", "ChosenMethod", "numbers"} <= set(names)
    assert not [name for name in names if "." in name]
    monkeypatch.setattr("docs.schema._name", lambda kind: "Target")
    with pytest.raises(TypeError, match="rename one"):
        result_schema()


def test_a_route_of_fastapi_returns_a_result() -> None:
    app = FastAPI()
    app.get("/one", response_model=wf.Explanation)(lambda: [samples.text()][0])
    app.get("/many", response_model=list[wf.Explanation])(lambda: [samples.text()])
    asking = TestClient(app)
    assert asking.get("/one").json() == json.loads(json.dumps(samples.text().to_dict()))
    assert asking.get("/many").json() == [asking.get("/one").json()] and asking.get("/openapi.json").status_code == 200
