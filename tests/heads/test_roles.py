"""Roles by where heads look, on heads that look where they are told; circuits, direct shares and layer profiles."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.heads.patterned import CAUSAL_HEADS, ENCODER_HEADS, causal, encoder, sentences
from tests.methods.properties import FAMILY, close, golden, model_of, on_the_left, padded
from tests.models import CASES
from tests.models.case import HEADS, WIDTH
from tests.references.eager_attention import reported
from tests.references.head_direct import direct_shares
from tests.references.head_importance import generic_relevance
from whyformer.errors import BadInput, NotOffered
from whyformer.heads import circuits, direct_logit, induction, layer_profile, roles
from whyformer.heads.head_roles import is_punctuation
from whyformer.heads.importance import CURVES


def test_heads_are_what_they_do() -> None:
    found = roles(encoder(), sentences())
    names = dict(zip(ENCODER_HEADS, ("positional -1", "positional +1", "separator", "rare token"), strict=True))
    assert found.named() == {(0, head): names[name] for head, name in enumerate(ENCODER_HEADS)}
    previous, after, last, rare = range(4)
    assert found.positional[0, previous] == found.rare[0, rare] == 1  # 50 and 51 occur once
    assert found.offset[0][after] == (1,)
    assert found.separator[0, last] == pytest.approx(1, abs=1e-5)
    # Only the first word of each sentence has [CLS] before it.
    assert found.first[0, previous] == pytest.approx(2 / 11, abs=1e-5)


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
    assert all(0 < row["positional"] <= 1 and 0 <= row["first"] <= 1 for row in found.rows())
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
    previous, duplicate, induced, first = range(len(CAUSAL_HEADS))
    assert found.previous_token[0, previous] == pytest.approx(1, abs=1e-5)
    assert found.duplicate_token[0, duplicate] == pytest.approx(1, abs=1e-5)
    assert found.induction[0, induced] == pytest.approx(1, abs=1e-5)
    assert max(*found.induction[0, [previous, duplicate]], found.previous_token[0, first]) < 0.2


def test_repetition_on_language_models() -> None:
    found, again = (induction(model_of("llama"), length=6, sequences=4, batch_size=size) for size in (3, 1))
    for scores in (found.previous_token, found.duplicate_token, found.induction):
        assert scores.shape == (2, 4) and ((scores >= 0) & (scores <= 1)).all()
    close(again.induction, found.induction)


@pytest.mark.parametrize("name", ["bert", "t5_cls", "vit"])
def test_models_that_look_ahead_or_take_no_text_are_refused(name: str) -> None:
    with pytest.raises(NotOffered):
        induction(model_of(name), length=6)


# QK and OV circuits, and direct logit attribution against its twin: what is found, and where it is refused.


D = WIDTH // HEADS


def array(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().float().numpy()


def test_packed_weights_of_gpt2() -> None:
    model = CASES["gpt2"].build("sdpa")
    found = circuits(model)
    assert not found.rotary
    for layer, block in enumerate(model.transformer.h):
        packed, out = array(block.attn.c_attn.weight), array(block.attn.c_proj.weight)
        for head in range(HEADS):
            starts = (part * WIDTH + head * D for part in range(3))
            query, key, value = (packed[:, start : start + D] for start in starts)
            close(found.query[layer][head], query)
            close(found.qk(layer, head), query @ key.T)
            close(found.ov(layer, head), value @ out[head * D : (head + 1) * D])


def test_shared_key_heads_of_llama() -> None:
    model = CASES["llama"].build("eager")
    found = circuits(model)
    assert found.rotary
    for layer, block in enumerate(model.model.layers):
        q, k, v, o = (array(getattr(block.self_attn, f"{n}_proj").weight) for n in "qkvo")
        for head in range(HEADS):
            shared = head // 2  # two query heads per key head
            query = q[head * D : (head + 1) * D].T
            key, value = (w[shared * D : (shared + 1) * D].T for w in (k, v))
            close(found.qk(layer, head), query @ key.T)
            close(found.ov(layer, head), value @ o[:, head * D : (head + 1) * D].T)


def test_interleaved_weights_of_gpt_neox() -> None:
    model = CASES["gpt_neox"].build("sdpa")
    found = circuits(model)
    packed = array(model.gpt_neox.layers[1].attention.query_key_value.weight).reshape(HEADS, 3, D, WIDTH)
    for head in range(HEADS):
        close(found.query[1][head], packed[head, 0].T)
        close(found.value[1][head], packed[head, 2].T)


@pytest.mark.parametrize("name", ["bert", "timm_fused", "nn_transformer_encoder", "phi3"])
def test_weights_explain_what_the_heads_compute(name: str) -> None:
    """Found by other roads on other models: their shapes are right, and they were matched on the numbers."""
    found = circuits(model_of(name), CASES[name].inputs())
    assert found.qk(0, 0).shape == found.ov(1, 3).shape == (WIDTH, WIDTH)
    assert np.abs(found.copying).max() <= 1 + 1e-6


def test_summaries_are_those_of_the_whole_circuit() -> None:
    """The D × D shortcut has the eigenvalues of the vocabulary-sized matrix."""
    model = CASES["llama"].build("sdpa")
    found = circuits(model)
    assert found.vocabulary
    embed, unembed = (array(table.weight).astype(np.float64) for table in (model.model.embed_tokens, model.lm_head))
    for layer, head in [(0, 1), (1, 2)]:
        for circuit, summary in (
            (embed @ found.ov(layer, head) @ unembed.T, found.copying),
            (embed @ found.qk(layer, head) @ embed.T, found.matching),
        ):
            values = np.linalg.eigvals(circuit)
            assert summary[layer, head] == pytest.approx(values.real.sum() / np.abs(values).sum(), abs=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "deberta_v2"])
def test_no_fixed_circuit_is_refused(name: str) -> None:
    with pytest.raises(NotOffered, match="was not found"):
        circuits(model_of(name), CASES[name].inputs())


TARGET = 1
LINEAR_HEADS = ("gpt2", "llama", "vit")
ADDING = "llama_gqa opt gpt_neox phi3 timm_fused looped_heads folded_heads nn_transformer_encoder_prenorm".split()


@pytest.mark.parametrize("name", LINEAR_HEADS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shares_are_those_of_the_weights(name: str, attention: str) -> None:
    found = direct_logit(CASES[name].build(attention), CASES[name].inputs(), target=TARGET)
    for row in range(2):
        want, logit = direct_shares(name, row, TARGET)
        close(found.shares[row], want)
        assert found.value[row] == pytest.approx(logit, rel=1e-5)
        assert found.shares[row].sum() + found.rest[row] == pytest.approx(logit, rel=1e-5)


@pytest.mark.parametrize("name", ADDING)
def test_families_whose_heads_add_up(name: str) -> None:
    found = direct_logit(model_of(name), CASES[name].inputs(), target=TARGET)
    assert np.isfinite(found.shares).all() and np.abs(found.shares).max() > 1e-3
    np.testing.assert_allclose(found.shares.sum((1, 2)) + found.rest, found.value, rtol=1e-4, atol=1e-4)


def test_shares_of_a_contrast_are_the_difference() -> None:
    model, inputs = model_of("gpt2"), CASES["gpt2"].inputs()
    one, two, both = (direct_logit(model, inputs, target=t) for t in (3, 5, (3, 5)))
    close(both.shares, one.shares - two.shares)
    close(both.value, one.value - two.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bert", "pooler"),
        ("distilbert", "not a linear function|relu"),
        ("gemma2", "tanh"),
        ("rtdl_ft_transformer", "relu"),
        ("t5_cls", "several streams"),
        ("swin", "several streams"),
    ],
)
def test_heads_that_do_not_add_up_are_refused(name: str, says: str) -> None:
    with pytest.raises(NotOffered, match=says):
        direct_logit(model_of(name), CASES[name].inputs())


def test_ranked_and_wrong_targets() -> None:
    with pytest.raises(BadInput, match="targets: 1, inputs: 2"):
        direct_logit(model_of("gpt2"), CASES["gpt2"].inputs(), target=[1])
    found = direct_logit(model_of("vit"), CASES["vit"].inputs(), target=TARGET)
    layer, head, share = found.ranked(1)[0]
    assert share == found.shares[1].max() == found.shares[1, layer, head]
    assert found.targets[1].index == TARGET


# Layer profiles: each curve on its own, and that batches and padding change nothing.


@pytest.mark.parametrize("name", FAMILY)
def test_relevance_added_and_entropy(name: str) -> None:
    found = layer_profile(model_of(name), CASES[name].inputs(), target=TARGET)
    for row in range(2):
        added = generic_relevance(name, row, TARGET).sum(1)
        close(found.samples[row, CURVES.index("relevance added")], added / added.sum())
        maps = reported(name, row, TARGET).attention
        want = [-np.where(a > 0, a * np.log(np.where(a > 0, a, 1)), 0).sum(-1).mean() for a in maps]
        close(found.samples[row, CURVES.index("entropy")], want)


def test_distance_of_heads_that_look_where_they_are_told() -> None:
    found = layer_profile(encoder(), sentences())
    # Words only. Sentence 2 has six: five look one back, five one ahead (the ends look at [CLS] and [SEP], which do not
    # count), none at the last token, [SEP], and all at the third word, whose id is the largest.
    bridged, mass = 5 * 1 + 5 * 1 + (2 + 1 + 0 + 1 + 2 + 3), 5 + 5 + 6
    assert found.samples[1, CURVES.index("distance"), 0] == pytest.approx(bridged / mass, abs=1e-5)


def test_distance_on_a_grid_is_euclidean() -> None:
    name = "vit"
    found = layer_profile(model_of(name), CASES[name].inputs(), target=TARGET)
    side = round((reported(name, 0, TARGET).attention[0].shape[-1] - 1) ** 0.5)
    places = np.array([(i // side, i % side) for i in range(side * side)], float)
    apart = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    for layer, attention in enumerate(reported(name, 0, TARGET).attention):
        patches = attention[:, 1:, 1:]
        want = (patches * apart).sum() / patches.sum()
        assert found.samples[0, CURVES.index("distance"), layer] == pytest.approx(want, rel=1e-4)


def test_mixing_ratio_is_the_golden_one() -> None:
    case = golden()
    found = layer_profile(case.model, case.inputs, target=case.target)
    for row in range(2):
        want = case.expected[f"mixing_ratio.attnresln.b{row}"].mean(1)
        close(found.samples[row, CURVES.index("mixing ratio")], want, 1e-4)


@pytest.mark.parametrize(
    ("name", "measure"),
    [*product(["bert", "gpt2", "llama"], [layer_profile]), *product(["gpt2", "llama"], [direct_logit])],
)
def test_padding_and_batches_are_nothing(name: str, measure: Any) -> None:
    def numbers(inputs: Any, **how: Any) -> Any:
        found = measure(model_of(name), inputs, target=TARGET, **how)
        return found.samples if measure is layer_profile else found.shares

    inputs = CASES[name].inputs()
    plain = numbers(inputs)
    close(numbers(inputs, batch_size=1), plain)
    close(numbers(padded(inputs, 3)), plain)
    if name != "bert":
        close(numbers(on_the_left(inputs)), plain)


def test_models_whose_blocks_cannot_be_taken_apart_lack_one_curve_only() -> None:
    found = layer_profile(model_of("rtdl_ft_transformer"), CASES["rtdl_ft_transformer"].inputs())
    others = [i for i, name in enumerate(CURVES) if name != "mixing ratio"]
    assert np.isfinite(found.samples[:, others]).all()


def test_one_token_and_frame() -> None:
    ids = CASES["bert"].inputs()["input_ids"][:1, :1]
    found = layer_profile(model_of("bert"), {"input_ids": ids})
    assert np.isfinite(found.samples).all() and found.curve("entropy").tolist() == [0, 0]
    assert list(found.to_frame().columns) == ["layer", *CURVES, "path"]
    with pytest.raises(BadInput, match="targets"):
        layer_profile(model_of("bert"), {"input_ids": torch.cat([ids, ids])}, target=[1])
