"""Roles by where heads look, on heads that look where they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.heads.patterned import CAUSAL_HEADS, ENCODER_HEADS, Patterned, causal, encoder, sentences
from tests.methods.properties import FAMILY, close, model_of, padded
from tests.models import CASES
from tests.models.case import seeded
from tests.support import folders
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.heads import induction, roles, syntactic
from whyformer.heads.head_roles import is_punctuation
from whyformer.heads.syntactic import over_words, read_conllu


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


def test_repetition_on_language_models() -> None:
    found, again = (induction(model_of("llama"), length=6, sequences=4, batch_size=size) for size in (3, 1))
    for scores in (found.previous_token, found.duplicate_token, found.induction):
        assert scores.shape == (2, 4) and ((scores >= 0) & (scores <= 1)).all()
    close(again.induction, found.induction)


@pytest.mark.parametrize("name", ["bert", "t5_cls", "vit"])
def test_models_that_look_ahead_or_take_no_text_are_refused(name: str) -> None:
    with pytest.raises(NotOffered):
        induction(model_of(name), length=6)


# Dependency arcs hit by heads, on a toy treebank.


def line(number: object, form: str, head: object, relation: str) -> str:
    return "\t".join([str(number), form, "_", "_", "_", "_", str(head), relation, "_", "_"])


TOY = "\n".join(
    [
        "# sent_id = 1",
        line(1, "the", 2, "det"),
        line(2, "movie", 3, "nsubj"),
        line(3, "boringly", 0, "root"),
        line("4-5", "isnot", "_", "_"),
        line(4, "is", 3, "aux:pass"),
        line(5, "not", 3, "advmod"),
        line("5.1", "it", "_", "_"),
        line(6, ".", 3, "punct"),
        "",
        line(1, "a", 2, "det"),
        line(2, "book", 0, "root"),
        "",
    ]
)


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "toy.conllu").write_text(TOY, encoding="utf-8")
    first, second = read_conllu(TOY)
    assert [first, second] == read_conllu(tmp_path / "toy.conllu") == read_conllu(str(tmp_path / "toy.conllu"))
    assert first.words == ("the", "movie", "boringly", "is", "not", ".")
    assert first.heads == (1, 2, -1, 2, 2, 2)
    assert first.relations[3] == "aux:pass"
    assert second.words == ("a", "book")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\tthe\t2\tdet\n", "has 4 columns"),
        (line(1, "the", 9, "det"), "'9'"),
        ("nowhere.conllu", "no CoNLL-U file"),
        ("# only a comment\twith a tab\n", "no sentence"),
    ],
)
def test_broken_files_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_conllu(text)


@pytest.fixture
def told(tmp_path: Path) -> tuple[Any, Any]:
    """Heads that look at the previous, next and last token, and at the largest id; the tiny WordPiece tokenizer."""
    return seeded(lambda: Patterned(ENCODER_HEADS, causal=False)).eval(), folders.tokenizer(tmp_path)


def test_a_head_that_looks_at_the_next_word_finds_determiners(told: tuple[Any, Any]) -> None:
    found = syntactic(told[0], TOY, processor=told[1])
    after, before = ENCODER_HEADS.index("next"), ENCODER_HEADS.index("previous")
    assert found.arcs["det", "to head"] == 2
    assert found.share["det", "to head"][0, after] == 1
    assert found.share["det", "to dependent"][0, before] == 1
    assert found.share["advmod", "to head"][0, before] == 0  # "not" looks at "is", its head is "boringly"
    assert (found.baseline["det", "to head"], found.offset["det", "to head"]) == (1.0, 1)
    assert ("punct", "to head") not in found.share
    assert ("aux", "to head") in found.share
    assert found.sentences == 2
    best = {(relation, direction): (layer, head) for relation, direction, layer, head, *_ in found.best()}
    assert best["nsubj", "to head"] == (0, after)
    assert list(found.to_frame().columns)[:2] == ["relation", "direction"]


def test_a_word_does_not_choose_itself(tmp_path: Path) -> None:
    model = seeded(lambda: Patterned(("self", "next"), causal=False)).eval()
    found = syntactic(model, TOY, processor=folders.tokenizer(tmp_path), relations=["det"])
    assert found.share["det", "to head"][0, 0] == 1  # of the others, which get the same, the first


def test_relations_can_be_chosen_and_kept_apart(told: tuple[Any, Any]) -> None:
    found = syntactic(told[0], TOY, processor=told[1], relations=["aux:pass", "punct"], subtypes=True)
    assert {relation for relation, _ in found.share} == {"aux:pass", "punct"}
    with pytest.raises(BadInput, match="no sentence has an arc"):
        syntactic(told[0], TOY, processor=told[1], relations=["obj"])
    with pytest.raises(UnknownName):
        syntactic(told[0], TOY, processor=told[1], pieces="last")


def test_the_baseline_is_the_most_frequent_distance(told: tuple[Any, Any]) -> None:
    text = "\n".join([line(1, "so", 3, "advmod"), line(2, "not", 3, "advmod"), line(3, "good", 0, "root"),
                      line(4, "so", 3, "advmod"), ""])  # fmt: skip
    found = syntactic(told[0], text, processor=told[1])
    assert found.baseline["advmod", "to head"] == pytest.approx(1 / 3)
    assert found.offset["advmod", "to head"] == -1  # the nearest of three that are as good


def test_pieces_become_words() -> None:
    words = [None, 0, 0, 1, None]
    attention = torch.arange(25.0).view(1, 5, 5)
    a = attention[0]
    both_ask = (a[1] + a[2]) / 2
    expected = {
        "first": [[a[1, 1], a[1, 3]], [a[3, 1], a[3, 3]]],
        "max": [[a[2, 2], a[2, 3]], [a[3, 2], a[3, 3]]],
        "sum": [[both_ask[1] + both_ask[2], both_ask[3]], [a[3, 1] + a[3, 2], a[3, 3]]],
    }
    for pieces, want in expected.items():
        np.testing.assert_array_equal(over_words(attention, words, pieces)[0], want)


def test_batches_and_long_sentences(told: tuple[Any, Any]) -> None:
    model, tokenizer = told
    together = syntactic(model, TOY, processor=tokenizer)
    alone = syntactic(model, TOY, processor=tokenizer, batch_size=1)
    for key, share in together.share.items():
        np.testing.assert_allclose(alone.share[key], share)
    long = "\n".join([line(i + 1, "so", i, "advmod" if i else "root") for i in range(30)]) + "\n\n" + TOY
    found = syntactic(model, long, processor=tokenizer)
    assert found.sentences == 2
    assert "left out" in found.warnings[0]
