"""QK and OV circuits, and direct logit attribution against its twin: what is found, and where it is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.models.case import HEADS, WIDTH
from tests.references.head_direct import direct_shares
from whyformer.errors import BadInput, NotOffered
from whyformer.heads import circuits, direct_logit

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
            query, key, value = (
                packed[:, part * WIDTH + head * D : part * WIDTH + (head + 1) * D] for part in range(3)
            )
            close(found.query[layer][head], query)
            close(found.key[layer][head], key)
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
    attention = model.gpt_neox.layers[1].attention
    packed = array(attention.query_key_value.weight).reshape(HEADS, 3, D, WIDTH)
    for head in range(HEADS):
        close(found.query[1][head], packed[head, 0].T)
        close(found.value[1][head], packed[head, 2].T)


@pytest.mark.parametrize("name", ["bert", "vit", "timm_fused", "timm_unfused", "nn_transformer_encoder", "phi3", "opt"])
def test_weights_explain_what_the_heads_compute(name: str) -> None:
    """Found by other roads on other models: their shapes are right, and they were matched on the numbers."""
    found = circuits(model_of(name), CASES[name].inputs())
    assert found.qk(0, 0).shape == (WIDTH, WIDTH)
    assert found.ov(1, 3).shape == (WIDTH, WIDTH)
    assert np.abs(found.copying).max() <= 1 + 1e-6


def test_scores_of_the_model_come_from_w_qk() -> None:
    """On GPT-2 without biases, the logarithm of attention is x_q W_QK x_k/√D up to a constant per row."""
    model = CASES["gpt2"].build("eager")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.bias.zero_()
    found = circuits(model)
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    seen: list[torch.Tensor] = []
    handle = model.transformer.h[1].ln_1.register_forward_hook(lambda m, a, out: seen.append(out.detach()))
    with torch.no_grad():
        attention = model(ids, output_attentions=True).attentions[1][0]
    handle.remove()
    x = seen[0][0].numpy()
    for head in range(HEADS):
        scores = x @ found.qk(1, head) @ x.T / np.sqrt(D)
        row = np.log(attention[head, -1].numpy())
        np.testing.assert_allclose(row - row.mean(), scores[-1] - scores[-1].mean(), atol=1e-4)


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
ADDING = (
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


@pytest.mark.parametrize("name", [*LINEAR_HEADS, *ADDING])
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
