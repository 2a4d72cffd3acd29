"""A check-up with a cache: what is done is not done again, and a stopped one goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import whyformer as wf
from tests.checks.quick import EVERYTHING, QUICK, TEXTS, counted_calls
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support import folders
from whyformer.errors import BadInput
from whyformer.results.codec import to_plain


def plain_of(found: Any) -> Any:
    """Plain data without what is measured by the clock."""
    if isinstance(found, dict):
        return {k: plain_of(v) for k, v in found.items() if k not in {"seconds", "cost"}}
    if isinstance(found, list):
        return [plain_of(v) for v in found]
    return plain_of(json.loads(json.dumps(to_plain(found)))) if dataclasses.is_dataclass(found) else found


def test_what_is_in_the_cache_is_not_done_again(
    tmp_path: Path, found: wf.CheckUp, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = folders.bert()
    calls = counted_calls(monkeypatch)
    how: dict[str, Any] = {"processor": tokenizer, "checks": EVERYTHING, "cache": tmp_path}
    first = wf.check(model, TEXTS, **how)
    assert len(calls) > 100
    calls.clear()
    assert plain_of(first) == plain_of(found)  # as without a cache
    again = wf.check(model, TEXTS, **how)
    assert not calls
    assert plain_of(again) == plain_of(first)
    assert type(again.results["jain_wallace"].inputs[0].original) is wf.Explanation
    assert not list(tmp_path.glob("*.part"))


def test_a_stopped_check_up_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer.checks import jain_wallace as module

    done: list[int] = []
    one = module._one

    def stopped(exam: Any, *how: Any) -> Any:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(1)
        return one(exam, *how)

    def checked() -> wf.CheckUp:
        checks = {"sinks": {}, "jain_wallace": QUICK["jain_wallace"]}
        return wf.check(model_of("bert"), CASES["bert"].inputs(), checks=checks, cache=tmp_path)

    monkeypatch.setattr(module, "_one", stopped)
    assert list(checked().results) == ["sinks"]
    assert len(done) == 1  # the first input was finished, the second was not
    done.append(2)  # two are counted, so the next is let through
    assert len(checked().results["jain_wallace"].inputs) == 2
    assert len(done) == 3  # one more, not two
    monkeypatch.setattr(module, "_one", one)
    whole = wf.check(model_of("bert"), CASES["bert"].inputs(), checks={"jain_wallace": QUICK["jain_wallace"]})
    kept = checked().results["jain_wallace"]
    assert plain_of(kept) == plain_of(whole.results["jain_wallace"])


def test_random_weights_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer.checks import randomisation as module

    asked: list[int] = []
    agreement = module._agreement

    def stopped(exam: Any, original: Any) -> Any:
        asked.append(1)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return agreement(exam, original)

    how: dict[str, Any] = {"checks": {"randomisation": {"copies": 2, "beside": 2}}, "method": "raw_attention"}
    inputs = CASES["bert"].inputs()
    whole = wf.check(model_of("bert"), inputs, **how)
    monkeypatch.setattr(module, "_agreement", stopped)
    with pytest.raises(KeyboardInterrupt):
        wf.check(model_of("bert"), inputs, cache=tmp_path, **how)
    found = wf.check(model_of("bert"), inputs, cache=tmp_path, **how)
    parts = len(found.results["randomisation"].stages)
    assert len(asked) == 4 + (2 * parts + 1) - 3
    assert plain_of(found)["results"] == plain_of(whole)["results"]


def test_what_is_damaged_is_made_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {"checks": ["sinks"], "cache": tmp_path}
    wf.check(model_of("bert"), CASES["bert"].inputs(), **how)
    for path in tmp_path.glob("*.check.json"):
        path.write_text(path.read_text()[:-3])
    found = wf.check(model_of("bert"), CASES["bert"].inputs(), **how)
    whole = wf.check(model_of("bert"), CASES["bert"].inputs(), checks=["sinks"])
    assert plain_of(found) == plain_of(whole)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        wf.check(model_of("bert"), CASES["bert"].inputs(), checks=["sinks"], cache=tmp_path / "file")
