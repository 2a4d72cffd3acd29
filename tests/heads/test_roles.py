"""Roles by where heads look, on heads that look where they are told."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.heads.patterned import CAUSAL_HEADS, CLS, ENCODER_HEADS, SEP, causal, encoder
from tests.methods.properties import FAMILY, close, model_of, padded
from tests.models import CASES
from whyformer.errors import NotOffered
from whyformer.heads import induction, roles
from whyformer.heads.head_roles import is_punctuation


def sentences() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[CLS, 10, 11, 12, 50, 11, SEP, 0], [CLS, 12, 10, 51, 10, 11, 12, SEP]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def test_heads_are_what_they_do() -> None:
    found = roles(encoder(), sentences())
    by_name = {name: head for head, name in enumerate(ENCODER_HEADS)}
    assert found.named() == {
        (0, by_name["previous"]): "positional -1",
        (0, by_name["next"]): "positional +1",
        (0, by_name["last"]): "separator",
        (0, by_name["largest_id"]): "rare token",  # 50 and 51 occur once
    }
    assert found.positional[0, by_name["previous"]] == 1
    assert found.offset[0][by_name["next"]] == (1,)
    assert found.rare[0, by_name["largest_id"]] == 1
    assert found.separator[0, by_name["last"]] == pytest.approx(1, abs=1e-5)
    # Only the first word of each sentence has [CLS] before it.
    assert found.first[0, by_name["previous"]] == pytest.approx(2 / 11, abs=1e-5)


def test_chance_of_a_rare_token_is_told() -> None:
    found = roles(encoder(), sentences())
    assert found.rare_chance == pytest.approx((5 * 1 / 7 + 6 * 1 / 8) / 11)
    given = roles(encoder(), sentences(), frequencies={"10": 1, "11": 9, "12": 9, "50": 9, "51": 9})
    assert given.rare[0, ENCODER_HEADS.index("largest_id")] == 0


def test_neither_padding_nor_batches_change_roles() -> None:
    plain = roles(encoder(), sentences())
    for same in (roles(encoder(), padded(sentences(), 3)), roles(encoder(), sentences(), batch_size=1)):
        for name in ("positional", "separator", "first", "rare"):
            close(getattr(same, name), getattr(plain, name))
        assert same.offset == plain.offset


@pytest.mark.parametrize("name", FAMILY)
def test_shares_are_shares(name: str) -> None:
    found = roles(model_of(name), CASES[name].inputs())
    for row in found.rows():
        assert 0 < row["positional"] <= 1
        assert 0 <= row["first"] <= 1
    assert np.isnan(found.separator).all() == (name == "vit")  # images have no separators
    assert len(found.offset[0][0]) == (2 if name == "vit" else 1)  # on the grid of patches, or along the text
    assert len(found.to_frame()) == found.positional.size


@pytest.mark.parametrize(
    ("label", "is_it"), [(".", True), ("##,", True), ("Ġ!", True), ("▁—", True), ("it", False), ("", False)]
)
def test_punctuation(label: str, is_it: bool) -> None:
    assert is_punctuation(label) == is_it


# Repetition


def test_heads_of_a_causal_model() -> None:
    found = induction(causal(), length=10, sequences=3, seed=1)
    at = {name: head for head, name in enumerate(CAUSAL_HEADS)}
    assert found.previous_token[0, at["previous"]] == pytest.approx(1, abs=1e-5)
    assert found.duplicate_token[0, at["duplicate"]] == pytest.approx(1, abs=1e-5)
    assert found.induction[0, at["induction"]] == pytest.approx(1, abs=1e-5)
    for name, scores in (
        ("previous", found.induction),
        ("duplicate", found.induction),
        ("first", found.previous_token),
    ):
        assert scores[0, at[name]] < 0.2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_repetition_on_language_models(name: str) -> None:
    found = induction(model_of(name), length=6, sequences=4, batch_size=3)
    for scores in (found.previous_token, found.duplicate_token, found.induction):
        assert scores.shape == (2, 4)
        assert ((scores >= 0) & (scores <= 1)).all()
    again = induction(model_of(name), length=6, sequences=4, batch_size=1)
    close(again.induction, found.induction)


@pytest.mark.parametrize("name", ["bert", "t5_cls", "vit"])
def test_models_that_look_ahead_or_take_no_text_are_refused(name: str) -> None:
    with pytest.raises(NotOffered):
        induction(model_of(name), length=6)
