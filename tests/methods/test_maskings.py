"""Methods averaged over random maskings of the input, against the same made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.engines.test_variants import WORD, OfAWord
from tests.models import CASES, model_of
from tests.models.case import seeded
from tests.references.maskings import averaged
from tests.support import language
from whyformer.demo.census import adult_rows
from whyformer.engines.perturbation.maskings import random_maskings
from whyformer.errors import NotAllowed, NotOffered, NotOverUnits, UnknownName
from whyformer.registry import get_method, list_methods

TEXT = "a wonderful little film with a thin ending"
AVERAGED = [name for name, m in list_methods().items() if m.averages]
LIGHT = ("attn_lrp", "generic_attention", "attention_rollout", "input_x_gradient")


def test_maskings_keep_between_half_and_all_and_mask_each_part_equally_often() -> None:
    for count, parts in ((8, 20), (2, 5), (50, 3), (7, 1)):
        kept = random_maskings(count, parts, seed=1)
        shares = 1 - (np.arange(count) + 0.5) / (2 * count)
        np.testing.assert_allclose(kept.mean(1), shares, atol=0.5 / parts + 1e-9)
        assert np.ptp(kept.sum(0)) <= 1 and kept.any(0).all()
    assert not np.array_equal(random_maskings(8, 20, 1), random_maskings(8, 20, 2))


@pytest.mark.parametrize("method", [*LIGHT, "alti", "value_zeroing", "grad_sam"])
def test_texts_are_averaged_over_masked_texts(method: str) -> None:
    model, tokenizer = wf.demo.load_sentiment()
    tokens = tokenizer([TEXT], return_tensors="pt")
    units = tokens["input_ids"].shape[1]
    target = int(model(**tokens).logits.argmax())
    maskings = np.ones((5, units), dtype=bool)
    maskings[:, 1:-1] = random_maskings(5, units - 2, seed=3)

    def scores_of(kept: np.ndarray) -> np.ndarray:
        ids = torch.where(torch.tensor(kept)[None], tokens["input_ids"], tokenizer.mask_token_id)
        words = wf.explain(model, {**tokens, "input_ids": ids}, tokenizer, method=method, target=target)
        return words[0].scores

    scores, errors = averaged(scores_of, maskings)
    found = wf.explain(model, TEXT, tokenizer, method=method, maskings=5, seed=3)
    np.testing.assert_allclose(found.scores, scores, atol=2e-6 * np.abs(scores).max())
    np.testing.assert_allclose(found.errors, errors, atol=1e-5 * np.abs(scores).max())
    assert found.options["maskings"] == 5 and "maskings" in found.changed
    again = wf.explain(model, TEXT, tokenizer, method=method, maskings=5, seed=4)
    assert not np.allclose(again.scores, found.scores)


@pytest.mark.parametrize("method", ["attn_lrp", "generic_attention"])
def test_photos_are_averaged_over_masked_photos(method: str) -> None:
    model = model_of("vit")
    pixels = CASES["vit"].inputs()["pixel_values"][:1]
    found = wf.explain(model, pixels, method=method, maskings=4, target=1)[0]
    rows, columns = found.units.grid or (0, 0)
    side = pixels.shape[-1] // columns
    first = found.units.special.index(False)
    maskings = np.ones((4, len(found.units)), dtype=bool)
    maskings[:, first:] = random_maskings(4, rows * columns, seed=0)

    def scores_of(kept: np.ndarray) -> np.ndarray:
        masked = pixels.clone()
        for patch in np.flatnonzero(~kept[first:]):
            row, column = divmod(int(patch), columns)
            where = (..., slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side))
            masked[where] = pixels.mean((2, 3), keepdim=True)
        return wf.explain(model, masked, method=method, target=1)[0].scores

    scores, _ = averaged(scores_of, maskings)
    np.testing.assert_allclose(found.scores, scores, atol=2e-6 * np.abs(scores).max())


def test_rows_of_a_table_are_masked_by_rows_that_stand_for_several() -> None:
    model, table = wf.demo.load_adult()
    row = adult_rows()[0]
    found = wf.explain(model, row, table, method="attn_lrp", maskings=8)
    plain = wf.explain(model, row, table, method="attn_lrp")
    assert found.units == plain.units and np.isfinite(found.scores).all()
    assert not np.allclose(found.scores, plain.scores)


@pytest.mark.parametrize("name", ["bert", "gpt2_cls", "vit", "clip", "rtdl_ft_transformer", "swin"])
def test_a_batch_says_what_its_inputs_say_alone_at_the_declared_cost(name: str) -> None:
    model, inputs = model_of(name), CASES[name].inputs()
    tried = 0
    for method in LIGHT:
        m, alone = get_method(method), []
        try:
            plain = wf.explain(model, inputs, method=method, target=0)
        except (NotOffered, NotOverUnits):
            continue
        tried += 1
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        together = wf.explain(model, inputs, method=method, target=0, maskings=3)
        assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
        alone = [wf.explain(model, _row(inputs, i), method=method, target=0, maskings=3)[0] for i in range(2)]
        for one, among, before in zip(alone, together, plain, strict=True):
            np.testing.assert_allclose(among.scores, one.scores, atol=1e-5 * np.abs(one.scores).max())
            assert np.isfinite(among.scores).all() and (among.units, among.value) == (before.units, before.value)
            assert not np.allclose(among.scores, before.scores)
            if not (m.at_most or m.works):
                forwards, backwards = m.cost(len(one.units), maskings=3, **m.defaults)
                assert (one.cost.forwards, one.cost.backwards) == pytest.approx((forwards, backwards))
    assert tried > 1


def _row(inputs: Any, row: int) -> Any:
    if isinstance(inputs, tuple):
        return tuple(each[row : row + 1] for each in inputs)
    return {name: each[row : row + 1] for name, each in inputs.items()}


@pytest.mark.parametrize("method", AVERAGED)
def test_every_method_that_masks_nothing_itself_can_be_averaged(method: str) -> None:
    model, inputs = model_of("bert"), CASES["bert"].inputs()
    try:
        plain = wf.explain(model, inputs, method=method, target=1, keep_layers=True)
    except NotOffered:
        with pytest.raises(NotOffered):
            wf.explain(model, inputs, method=method, target=1, maskings=2)
        return
    first = _row(inputs, 0)
    estimated = wf.estimate(model, first, method=method, maskings=2)
    cost = wf.explain(model, first, method=method, target=1, maskings=2)[0].cost
    told, reported = (each.forwards + each.backwards for each in (estimated, cost))
    assert told == pytest.approx(reported, rel=0.1) or (estimated.at_most and told > reported)
    found = wf.explain(model, inputs, method=method, target=1, maskings=2, keep_layers=True)
    for one, before in zip(found, plain, strict=True):
        assert one.scores.shape == before.scores.shape and np.isfinite(one.scores).all()
        for name in ("matrix", "layers"):
            kept, was = getattr(one, name), getattr(before, name)
            assert (kept is None) == (was is None) and np.shape(kept) == np.shape(was)
        if one.matrix is not None and method == "attention_rollout":  # rows of each map sum to 1 over what is kept
            np.testing.assert_allclose(one.layers.sum(-1), np.ones(one.layers.shape[:-1]), atol=0.5)


def test_sentences_are_not_deleted_but_replaced_in_place() -> None:
    """occlusion deletes them, which would move the tokens after them."""
    lm, tokenizer = language.model("llama"), language.tokenizer()
    sentences = ["The dog ran home .", "The cat sat on the mat .", "Where sat the cat ?"]
    how: dict[str, Any] = {"processor": tokenizer, "target": "mat", "method": "attn_lrp"}

    def scores_of(kept: Sequence[bool]) -> np.ndarray:
        words = [s if k else " ".join(["<unk>"] * len(s.split())) for s, k in zip(sentences, kept, strict=True)]
        of_tokens = wf.explain(lm, " ".join(words), **how).scores
        return np.bincount(np.repeat([0, 1, 2], [5, 7, 5]), of_tokens)

    scores, _ = averaged(scores_of, random_maskings(4, 3, seed=0))
    found = wf.explain(lm, " ".join(sentences), units="sentence", maskings=4, **how)
    np.testing.assert_allclose(found.scores, scores, atol=2e-6 * np.abs(scores).max())


@pytest.mark.parametrize("method", ["input_x_gradient", "attn_lrp", "generic_attention"])
@pytest.mark.parametrize("token", ["pad", "mean_vector"])
def test_beside_positions_tokens_are_masked_as_occlusion_masks_them(method: str, token: str) -> None:
    model = by_hand = seeded(lambda: OfAWord(padding_idx=0) if token == "pad" else OfAWord())
    if token == "mean_vector":  # here the id of one more row of the table, which holds the mean of the others
        vectors, by_hand = model.words.weight.detach(), deepcopy(model)
        by_hand.words = torch.nn.Embedding.from_pretrained(torch.cat([vectors, vectors.mean(0, keepdim=True)]))
    masked, how = 0 if token == "pad" else 30, {"method": method, "target": 1}

    def scores_of(kept: Sequence[bool]) -> np.ndarray:
        ids = torch.where(torch.tensor([list(kept)]), WORD["input_ids"], masked)
        return wf.explain(by_hand, WORD | {"input_ids": ids}, **how)[0].scores

    scores, _ = averaged(scores_of, random_maskings(4, 7, seed=0))
    (found,) = wf.explain(model, WORD, maskings=4, **how)
    np.testing.assert_allclose(found.scores, scores, atol=2e-6 * np.abs(scores).max())
    assert [w for w in found.warnings if "may hold positions" in w and f"in place ({token})" in w]


def test_answers_of_a_language_model() -> None:
    model, inputs = model_of("gpt2"), CASES["gpt2"].inputs()
    plain = wf.explain(model, inputs, method="attn_lrp")
    found = wf.explain(model, inputs, method="attn_lrp", maskings=4)
    assert [e.target for e in found] == [e.target for e in plain]
    assert not np.allclose(found[0].scores, plain[0].scores)


def test_other_verbs_take_maskings() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    estimate = wf.estimate(model, TEXT, tokenizer, method="attn_lrp", maskings=8)
    assert (estimate.forwards, estimate.backwards) == (9, 8)
    guided = wf.explain(model, TEXT, tokenizer, method="shap", evaluations=16, guide="attn_lrp(maskings=3)")
    assert guided.cost.backwards == 3 and guided.options["guide"] == "attn_lrp(maskings=3)"
    methods = ["attn_lrp", {"method": "attn_lrp", "maskings": 4}]
    rows = wf.compare(
        model, [TEXT, "so boring"], tokenizer, method=methods, metric=["comprehensiveness"], progress=False
    )
    assert {row.name: row.backwards for row in rows.rows[:-2]} == {"attn_lrp": 1, "attn_lrp(maskings=4)": 4}


def test_what_masks_its_input_already_takes_no_maskings() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    with pytest.raises(UnknownName, match="maskings"):
        wf.explain(model, TEXT, tokenizer, method="occlusion", maskings=8)
    with pytest.raises(NotAllowed, match="from 2"):
        wf.explain(model, TEXT, tokenizer, method="attn_lrp", maskings=1)
