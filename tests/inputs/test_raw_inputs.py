"""Raw inputs as people have them: strings, pairs, files, pipelines, slow tokenizers, odd images, ready tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as wf
from tests.models import CASES
from tests.support import folders
from whyformer.inputs.image import blurred, patch_index


def picture(size: tuple[int, int] = (40, 40), mode: str = "RGB", seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def test_one_string_gives_one_explanation_and_a_list_a_list(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    one = wf.explain(model, "the movies was boring .", processor=tokenizer)
    many = wf.explain(model, ["the movies was boring .", "i like it"], processor=tokenizer)
    assert isinstance(one, wf.Explanation)
    assert [type(e) for e in many] == [wf.Explanation] * 2
    np.testing.assert_allclose(one.scores, many[0].scores, atol=1e-5)
    assert one.method == "generic_attention"
    assert one.units.labels == ("[CLS]", "the", "movie", "##s", "was", "boring", ".", "[SEP]")
    assert one.units.special == (True, *[False] * 6, True)
    assert one.units.word == (-1, 0, 1, 1, 2, 3, 4, -1)
    assert one.units.text == "the movies was boring ."
    assert one.units.spans[2] == (4, 9) and one.units.spans[3] == (9, 10)
    assert [w for w, _ in one.words()] == ["the", "movies", "was", "boring", "."]
    assert one.words()[1][1] == pytest.approx(float(one.scores[2] + one.scores[3]))
    assert one.readout == "first position"
    assert one.prediction.label in {"negative", "positive"}
    assert set(one.units.stream) == {"text"}


def test_a_column_of_texts_is_a_list_of_them(tmp_path: Path) -> None:
    import pandas as pd

    explainer = wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))
    texts = ["the movies was boring .", "i like it"]
    listed = explainer.explain(texts)
    for column in (pd.Series(texts), pd.DataFrame({"text": texts})["text"].to_numpy(), np.array(texts)):
        for one, other in zip(explainer.explain(column), listed, strict=True):
            assert one.units.labels == other.units.labels
            np.testing.assert_array_equal(one.scores, other.scores)


def test_several_methods_share_one_record(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    names = ["raw_attention", "attention_rollout", "generic_attention", "grad_sam"]
    found = wf.explain(model, "i like it", processor=tokenizer, method=names)
    assert list(found) == names
    assert all(isinstance(e, wf.Explanation) for e in found.values())
    assert max(e.cost.forwards for e in found.values()) == 1
    assert max(e.cost.backwards for e in found.values()) == 1


def test_a_pair_of_texts(tmp_path: Path) -> None:
    found = wf.explain(folders.bert(), ("the movie was good", "i hate it"), processor=folders.tokenizer(tmp_path))
    assert found.units.labels.count("[SEP]") == 2
    assert found.units.word == (-1, 0, 1, 2, 3, -1, 4, 5, 6, -1)


def test_an_unknown_word_is_a_word_and_no_special_token(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    found = wf.explain(model, "the zeppelin was good", processor=tokenizer, method="occlusion")
    assert found.units.labels[2] == "[UNK]"
    assert found.units.special == (True, *[False] * 4, True)
    assert found.scores[2] != 0
    assert "zeppelin" in [word for word, _ in found.words()]


def test_slow_tokenizers_without_offsets(tmp_path: Path) -> None:
    slow = folders.tokenizer(tmp_path, slow=True)
    found = wf.explain(folders.bert(), "the movies was boring", processor=slow)
    assert not slow.is_fast
    assert [w for w, _ in found.words()] == ["the", "movies", "was", "boring"]


def test_a_tokenizer_without_padding_token(tmp_path: Path) -> None:
    tokenizer = folders.tokenizer(tmp_path)
    tokenizer.pad_token = None
    texts = ["the movie was boring .", "i like it"]
    together = wf.explain(folders.bert(), texts, processor=tokenizer)
    alone = wf.explain(folders.bert(), texts[1], processor=tokenizer)
    assert tokenizer.pad_token is None
    np.testing.assert_allclose(together[1].scores, alone.scores, atol=1e-5)


def test_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    found = wf.explain(folders.bert(), "the movie was so boring and bad " * 5, processor=folders.tokenizer(tmp_path))
    assert len(found.units) == 16
    assert "37 tokens" in found.warnings[0] and "16" in found.warnings[0]


def test_targets(tmp_path: Path) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    explainer = wf.Explainer(model, tokenizer)
    by_label = explainer.explain("i like it", target="POSITIVE")
    by_index = explainer.explain("i like it", target=1)
    assert np.array_equal(by_label.scores, by_index.scores)
    contrast = explainer.explain("i like it", target=("positive", "negative"), method="input_x_gradient")
    logits = model(**tokenizer("i like it", return_tensors="pt")).logits[0].detach()
    assert contrast.value == pytest.approx(float(logits[1] - logits[0]), abs=1e-5)
    assert str(contrast.target) == "positive rather than negative"
    each = explainer.explain(["i like it", "i hate it"], target=[0, 1])
    assert [e.target.index for e in each] == [0, 1]
    assert explainer.explain("i like it").target == explainer.explain("i like it").prediction


@pytest.mark.parametrize("scalar", ["logit", "log_odds", "probability"])
def test_scalars(tmp_path: Path, scalar: str) -> None:
    model, tokenizer = folders.bert(), folders.tokenizer(tmp_path)
    found = wf.explain(model, "i like it", processor=tokenizer, target=1, scalar=scalar)
    logits = model(**tokenizer("i like it", return_tensors="pt")).logits[0].detach()
    p = logits.softmax(0)[1]
    expected = {"logit": logits[1], "probability": p, "log_odds": (p / (1 - p)).log()}[scalar]
    assert found.scalar == scalar
    assert found.value == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_images_in_every_usual_mode(mode: str) -> None:
    found = wf.explain(folders.vit(), picture(mode=mode), processor=folders.image_processor(), target="dog")
    assert found.units.grid == (4, 4)
    assert found.units.labels[:2] == ("[CLS]", "patch 0,0")
    assert found.target.label == "dog"


def test_image_files(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    by_path = explainer.explain(tmp_path / "a.png")
    by_image = explainer.explain(picture())
    both = explainer.explain([str(tmp_path / "a.png"), picture(seed=1)])
    assert np.array_equal(by_path.scores, by_image.scores)
    assert len(both) == 2


def test_a_non_square_image_has_a_non_square_grid() -> None:
    case = CASES["vit_nonsquare"]
    found = wf.explain(case.build("sdpa"), case.inputs())[0]
    assert found.units.grid == (4, 6)
    assert found.heatmap().shape == (4, 6)
    assert found.heatmap(size=(32, 48)).shape == (32, 48)


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("deit", ("[CLS]", "[DIST]")),
        ("dinov2_registers", ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "[REG4]")),
        ("timm_fused", ("[CLS]",)),
    ],
)
def test_tokens_that_the_model_adds_are_named_and_special(name: str, added: tuple[str, ...]) -> None:
    case = CASES[name]
    found = wf.explain(case.build(case.implementations[0]), case.inputs(), method="attention_rollout")[0]
    assert found.units.labels[: len(added)] == added
    assert found.units.special == (*[True] * len(added), *[False] * 16)
    assert found.units.grid == (4, 4)


def test_patch_index_and_blur() -> None:
    assert patch_index((2, 3), 4, 6).tolist() == [[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2
    flat = torch.full((1, 3, 8, 8), 2.0)
    torch.testing.assert_close(blurred(flat), flat)


def test_a_table_names_its_columns() -> None:
    case = CASES["rtdl_ft_transformer"]
    found = wf.explain(case.build(None), case.inputs(), target=0)[0]
    assert found.units.labels[:2] == ("[CLS]", "x_cont[0]")
    assert found.units.special[0] and not any(found.units.special[1:])
    assert len(found.scores) == 8


def test_numerical_columns_that_bypass_attention_are_not_scored_as_zero() -> None:
    case = CASES["lucidrains_tab_transformer"]
    found = wf.explain(case.build(None), case.inputs(), method="attention_rollout")[0]
    assert all(label.startswith("x_categ") for label in found.units.labels)


def test_batch_as_large_as_the_heads_is_told_apart_by_the_probe(tmp_path: Path) -> None:
    """Four inputs, four heads, eager attention: the layout was learned from a single input."""
    texts = ["i like it", "the movie was so boring .", "good", "she hate the book"]
    together = wf.explain(folders.bert("eager"), texts, processor=folders.tokenizer(tmp_path), target=1)
    for text, found in zip(texts, together, strict=True):
        alone = wf.explain(folders.bert("eager"), text, processor=folders.tokenizer(tmp_path), target=1)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
