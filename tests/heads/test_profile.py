"""Layer profiles: each curve on its own, and that batches and padding change nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.heads.patterned import ENCODER_HEADS, encoder
from tests.heads.test_roles import sentences
from tests.methods.properties import FAMILY, close, golden, model_of, on_the_left, padded
from tests.models import CASES
from tests.references.eager_attention import reported
from tests.references.head_importance import generic_relevance
from whyformer.errors import BadInput
from whyformer.heads import direct_logit, layer_profile
from whyformer.heads.profile import CURVES

TARGET = 1


@pytest.mark.parametrize("name", FAMILY)
def test_relevance_added_and_entropy(name: str) -> None:
    found = layer_profile(model_of(name), CASES[name].inputs(), target=TARGET)
    for row in range(2):
        added = generic_relevance(name, row, TARGET).sum(1)
        close(found.samples[row, CURVES.index("relevance added")], added / added.sum())
        want = []
        for attention in reported(name, row, TARGET).attention:
            rows = [-sum(w * np.log(w) for w in weights if w > 0) for head in attention for weights in head]
            want.append(np.mean(rows))
        close(found.samples[row, CURVES.index("entropy")], want)


def test_distance_of_heads_that_look_where_they_are_told() -> None:
    found = layer_profile(encoder(), sentences())
    # Words only. Sentence 2 has six: five look one back, five one ahead (the ends look at [CLS] and [SEP], which do not
    # count), none at the last token, [SEP], and all at the third word, whose id is the largest.
    bridged, mass = 5 * 1 + 5 * 1 + (2 + 1 + 0 + 1 + 2 + 3), 5 + 5 + 6
    assert set(ENCODER_HEADS) == {"previous", "next", "last", "largest_id"}
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
    assert np.isfinite(found.samples).all()
    assert found.curve("entropy").tolist() == [0, 0]
    assert list(found.to_frame().columns) == ["layer", *CURVES, "path"]
    with pytest.raises(BadInput, match="targets"):
        layer_profile(model_of("bert"), {"input_ids": torch.cat([ids, ids])}, target=[1])
