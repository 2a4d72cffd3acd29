"""Direct logit attribution against its twin, and where it is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.properties import close, model_of, on_the_left, padded
from tests.models import CASES
from tests.references.head_direct import direct_shares
from whyformer.errors import BadInput, NotOffered
from whyformer.heads import direct_logit

TARGET = 1
LINEAR_HEADS = ("gpt2", "llama", "vit")
OTHERS = (
    "gpt2_cls llama_cls llama_gqa opt gpt_neox phi3 mistral qwen2 qwen3 deit timm_fused looped_heads folded_heads "
    "nn_transformer_encoder_prenorm"
).split()


@pytest.mark.parametrize("name", LINEAR_HEADS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shares_are_those_of_the_weights(name: str, attention: str) -> None:
    found = direct_logit(CASES[name].build(attention), CASES[name].inputs(), target=TARGET)
    for row in range(2):
        want, logit = direct_shares(name, row, TARGET)
        close(found.shares[row], want)
        assert found.value[row] == pytest.approx(logit, rel=1e-5)
        assert found.shares[row].sum() + found.rest[row] == pytest.approx(logit, rel=1e-5)


@pytest.mark.parametrize("name", [*LINEAR_HEADS, *OTHERS])
def test_families_whose_heads_add_up(name: str) -> None:
    found = direct_logit(model_of(name), CASES[name].inputs(), target=TARGET)
    assert np.isfinite(found.shares).all()
    assert np.abs(found.shares).max() > 1e-3
    np.testing.assert_allclose(found.shares.sum((1, 2)) + found.rest, found.value, rtol=1e-4, atol=1e-4)


def test_shares_of_a_contrast_are_the_difference() -> None:
    model, inputs = model_of("gpt2"), CASES["gpt2"].inputs()
    one, two, both = (direct_logit(model, inputs, target=t) for t in (3, 5, (3, 5)))
    close(both.shares, one.shares - two.shares)
    close(both.value, one.value - two.value)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_and_batches_are_nothing(name: str) -> None:
    model, inputs = model_of(name), CASES[name].inputs()
    plain = direct_logit(model, inputs, target=TARGET).shares
    close(direct_logit(model, padded(inputs, 3), target=TARGET).shares, plain)
    close(direct_logit(model, on_the_left(inputs), target=TARGET).shares, plain)
    close(direct_logit(model, inputs, target=TARGET, batch_size=1).shares, plain)


def test_a_head_that_writes_nothing_has_no_share() -> None:
    model = CASES["gpt2"].build("sdpa")
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight[8:16] = 0  # head 1
    found = direct_logit(model, CASES["gpt2"].inputs(), target=TARGET)
    assert (found.shares[:, 0, 1] == 0).all()
    assert (found.shares[:, 0, [0, 2, 3]] != 0).all()


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


def test_half_precision_and_wrong_targets() -> None:
    model = CASES["gpt2"].build("sdpa").to(torch.bfloat16)
    assert np.isfinite(direct_logit(model, CASES["gpt2"].inputs(), target=TARGET).shares).all()
    with pytest.raises(BadInput, match="1 targets for 2"):
        direct_logit(model_of("gpt2"), CASES["gpt2"].inputs(), target=[1])


def test_ranked() -> None:
    found = direct_logit(model_of("vit"), CASES["vit"].inputs(), target=TARGET)
    layer, head, share = found.ranked(1)[0]
    assert share == found.shares[1].max() == found.shares[1, layer, head]
    assert found.targets[1].index == TARGET
