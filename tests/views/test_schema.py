"""Files of results: what their schema says of them, and files of other versions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import whyformer as wf
from tests.views.results import ALL
from whyformer.errors import BadInput
from whyformer.results.interop import result_schema, schema_of
from whyformer.results.result import FORMAT, Result

KINDS = sorted(ALL, key=lambda kind: kind.__name__)
OLD = sorted((Path(__file__).parent / "old_results").glob("*.json"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = result_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_fits(kind: type[Result], validator: Draft202012Validator, tmp_path: Path) -> None:
    plain = json.loads(ALL[kind]().save(tmp_path / "x.json").read_text(encoding="utf-8"))
    validator.validate(plain)
    assert plain["format"] == FORMAT


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_files_of_earlier_versions_fit_and_are_read(path: Path, validator: Draft202012Validator) -> None:
    validator.validate(json.loads(path.read_text(encoding="utf-8")))
    assert type(wf.load(path)).__name__ == path.stem


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
def test_the_schema_refuses_what_load_refuses(damage: str, validator: Draft202012Validator, tmp_path: Path) -> None:
    plain = copy.deepcopy(ALL[wf.Explanation]().to_dict())
    DAMAGES[damage](plain)
    assert not validator.is_valid(plain)
    (tmp_path / "x.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(BadInput):
        wf.load(tmp_path / "x.json")


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_a_file_of_a_newer_version_says_so(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyformer.results.result.FORMAT", FORMAT + 1)
    path = ALL[wf.Explanation]().save(tmp_path / f"x.{ending}")
    monkeypatch.undo()
    with pytest.raises(BadInput, match=rf"in format {FORMAT + 1}, .* reads format {FORMAT}: pip install --upgrade why"):
        wf.load(path)


def test_what_json_cannot_hold_is_said() -> None:
    with pytest.raises(TypeError, match="complex"):
        schema_of(complex, {})


def test_definitions_are_called_as_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, not the modules that they live in today; two of one name would be one definition."""
    names = result_schema()["$defs"]
    assert {"Explanation", "Units", "Target", "Choice", "ChosenMethod", "numbers"} <= set(names)
    assert not [name for name in names if "." in name]
    monkeypatch.setattr("whyformer.results.interop._name", lambda kind: "Target")
    with pytest.raises(TypeError, match="rename one"):
        result_schema()
