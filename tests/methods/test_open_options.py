"""Options that are left open are in the result and can be asked for again; those that make no sense are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.methods.properties import explained
from tests.models import CASES
from tests.support import folders
from whyformer.errors import BadInput, NotOffered, NotOverUnits, UnknownName


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


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("bert", "shap"),
        ("vit", "occlusion"),
        ("rtdl_ft_transformer", "shap"),
        ("vilt", "occlusion"),
        ("whisper", "occlusion"),
    ],
)
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


# What an annotation of the option allows is tests/explainer/test_parameters.py's matter.
REFUSED: list[tuple[str, str, dict[str, Any], type[Exception], str]] = [
    ("bert", "attention_flow", {"end_layer": 2}, BadInput, "end_layer=2"),
    ("bert", "attention_gradcam", {"layer": "product"}, UnknownName, "product"),
    ("bert", "attention_gradcam", {"layer": 5}, BadInput, r"layers=\[5\]"),
    ("bert", "attention_rollout", {"residual": "mixing", "normalize": False}, BadInput, "normalize"),
    ("t5_cls", "attn_lrp", {}, NotOverUnits, "several streams"),
    ("clip", "cp_lrp", {}, NotOverUnits, "several streams"),
    ("lucidrains_tab_transformer", "decompx", {}, NotOffered, "came around the layers"),
    ("wav2vec2", "decompx", {}, NotOffered, "write into a hidden state"),
    ("bert", "decompx", {"scalar": "probability"}, NotOffered, "scalar='logit'"),
    ("bert", "grad_cam", {}, NotOffered, "no image"),
    ("vit", "grad_cam", {"layer": "vit.layer9"}, UnknownName, r"vit\.layer9"),
    ("vit", "grad_cam", {"layer": 2}, BadInput, "2 attention layers"),
    ("vit", "grad_cam", {"layer": "classifier"}, BadInput, "no vectors per patch"),
    ("bert", "gradient_rollout", {"start_layer": 7}, BadInput, "start_layer=7"),
    ("bert", "integrated_gradients", {"baseline": "mist"}, UnknownName, "mist"),
    ("vit", "integrated_gradients", {"baseline": "mist"}, UnknownName, "mist"),
    ("vit", "integrated_gradients", {"keep_special": True}, NotOffered, "tokens"),
    ("vit", "integrated_gradients", {"baseline": np.zeros((2, 2, 2))}, BadInput, r"shape \(2, 2, 2\)"),
    ("rtdl_ft_transformer", "integrated_gradients", {"baseline": "mist"}, UnknownName, "mist"),
    ("bert", "shap", {"guide": "luck"}, UnknownName, "luck"),
    ("bert", "shap", {"guide": "shap"}, BadInput, "few passes"),
    ("bert", "shap", {"guide": "auto", "algorithm": "partition"}, BadInput, "partition"),
    ("bert", "shap", {"evaluations": "auto", "algorithm": "exact"}, BadInput, "exact"),
    ("bert", "shap", {"algorithm": "exact", "evaluations": 16, "keep_special": False}, BadInput, r"2\^10"),
    ("bert", "shap", {"algorithm": "permutation", "evaluations": 5, "keep_special": False}, BadInput, "one order"),
    ("bert", "shap", {"replace": "delete"}, BadInput, "delete"),
    ("bert", "shap", {"by": "word", "keep_special": False}, NotOffered, "tokenizer"),
    ("bert", "shap", {"by": "superpixel"}, NotOffered, "patches"),
    ("vit", "shap", {"keep_special": [1]}, BadInput, "token ids"),
    ("bert", "transformer_attribution", {"start_layer": 7}, BadInput, "start_layer=7"),
    ("t5_cls", "transformer_attribution", {}, NotOverUnits, "encoders.*source, target"),
    ("lxmert", "transformer_attribution", {"variant": "lrp"}, NotOverUnits, "without variant='lrp'"),
    ("bert", "two_ended", {"by": "superpixel"}, NotOffered, "patches"),
    ("bert", "value_norms", {"aggregate": 7}, BadInput, "numbered 0 to 1"),
    ("bert", "vit_cx", {}, NotOffered, "no image"),
]


@pytest.mark.parametrize(("name", "method", "options", "error", "words"), REFUSED)
def test_options_that_make_no_sense(
    name: str, method: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        explained(name, method=method, **options)
