"""What a method took where an option was left open is in its result, and can be asked for again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES
from tests.support import folders

METHODS = ["occlusion", "shap"]


@pytest.mark.parametrize(
    ("method", "option"), [("occlusion", "replace"), ("shap", "replace"), ("integrated_gradients", "baseline")]
)
def test_how_one_asks_decides_what_stands_for_the_absent_and_the_result_says_it(
    method: str, option: str, tmp_path: Path
) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    text = wf.explain(model, "i like it", processor=tokenizer, method=method)
    ids = wf.explain(model, dict(tokenizer("i like it", return_tensors="pt")), method=method)[0]
    assert (text.options[option], ids.options[option]) == ("mask", "pad")
    assert option in text.changed
    assert f"{option}=mask" in text.to_html()
    loaded = wf.load(text.save(tmp_path / "kept.json"))
    assert loaded.options == text.options
    assert f"{option}=mask" in loaded.to_html()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["bert", "vit", "rtdl_ft_transformer", "vilt", "whisper"])
def test_what_the_result_names_gives_the_same_scores_again(name: str, method: str) -> None:
    case = CASES[name]
    model, how = case.build(case.implementations[0]), {"method": method, "target": 1}
    how |= {"evaluations": 64} if method == "shap" else {}
    first = wf.explain(model, case.inputs(), **how)[0]
    again = wf.explain(model, case.inputs(), **(how | first.options))[0]
    assert first.options["replace"] is not None
    assert again.options == first.options
    np.testing.assert_array_equal(again.scores, first.scores)


def test_without_any_name_it_is_the_first_token() -> None:
    case = CASES["nn_transformer"]
    assert wf.explain(case.build(None), case.inputs(), method="occlusion", target=1)[0].options["replace"] == 0


@pytest.mark.parametrize("asked", [{}, {"replace": "zero"}, {"replace": 5}])
def test_streams_that_take_different_things_are_named(asked: dict[str, Any]) -> None:
    case = CASES["vilt"]
    found = wf.explain(case.build(case.implementations[0]), case.inputs(), method="occlusion", target=1, **asked)[0]
    remark = next(w for w in found.warnings if "absent unit" in w)
    assert f"text: token {asked.get('replace') if asked.get('replace') == 5 else 0}" in remark
    assert f"image: {'zero' if asked.get('replace') == 'zero' else 'mean'}" in remark


def test_tokens_that_nobody_knows_to_be_special_are_said_to_join(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    ids = dict(tokenizer("i like it", return_tensors="pt"))
    assert any("special tokens" in w for w in wf.explain(model, ids, method="shap")[0].warnings)
    for known in ({"keep_special": False}, {"keep_special": ids["input_ids"][0, [0, -1]].tolist()}):
        assert not wf.explain(model, ids, method="shap", **known)[0].warnings
    assert not wf.explain(model, ids, processor=tokenizer, method="shap")[0].warnings
