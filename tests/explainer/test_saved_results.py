"""Saving and reloading without the model, frames, and the order of units."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import whyformer as wf
from tests.support import folders
from whyformer.demo import load_adult
from whyformer.demo.census import adult_rows


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_an_explanation_survives_saving(tmp_path: Path, suffix: str) -> None:
    explainer = wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))
    saved = explainer.explain(
        "the movies was boring", method="attention_rollout", keep_layers=True, target=("positive", "negative")
    )
    path = saved.save(tmp_path / f"x.{suffix}")
    found = wf.load(path)
    for name in ("scores", "matrix", "layers"):
        np.testing.assert_array_equal(getattr(found, name), getattr(saved, name))
    for name in "units target prediction method options cost scalar value readout versions".split():
        assert getattr(found, name) == getattr(saved, name), name
    assert found.layers.shape == (2, 7, 7)


def test_frames(tmp_path: Path) -> None:
    """The row of a table has its values."""
    text = wf.explain(folders.bert(), "i like it", processor=folders.tokenizer(tmp_path))
    assert list(text.to_frame()["unit"]) == list(text.units.labels)
    assert list(text.to_frame().columns) == ["unit", "score", "special", "stream", "word"]
    model, table = load_adult()
    (found,) = wf.explain(model, adult_rows()[:1], processor=table, method="raw_attention")
    frame = found.to_frame()
    assert frame["value"].tolist() == list(found.units.values or ())
    assert str(adult_rows()[0]["age"]) in frame["value"].tolist()


def test_ranked_lists_special_tokens_unless_told_not_to(tmp_path: Path) -> None:
    found = wf.explain(folders.bert(), "i like it", processor=folders.tokenizer(tmp_path), method="grad_sam")
    assert found.ranked()[0][0] == "[CLS]", "the published Grad-SAM puts CLS first"
    assert "[CLS]" not in [u for u, _ in found.ranked(specials=False)]
    values = [s for _, s in found.ranked()]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("name", "value"), [("value", None), ("value", "inf"), ("scores", None), ("scores", "-inf")])
def test_numbers_that_no_explanation_has_are_warned_of(tmp_path: Path, name: str, value: object) -> None:
    explainer = wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))
    path = explainer.explain("i like it").save(tmp_path / "x.json")
    plain = json.loads(path.read_text())
    plain[name] = value if name == "value" else [value, *plain[name][1:]]
    path.write_text(json.dumps(plain))
    for load in (wf.load, wf.Explanation.load):
        with pytest.warns(UserWarning, match=f"NaN or infinity in {name}.*Do not rely on it") as heard:
            load(path)
        assert [warning.filename for warning in heard] == [__file__]
        with pytest.raises(UserWarning, match="NaN or infinity"):  # warnings are errors in these tests
            load(path)
