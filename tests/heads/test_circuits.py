"""QK and OV circuits: the weights that are found, and what their eigenvalues say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.models.case import HEADS, WIDTH
from whyformer.errors import NotOffered
from whyformer.heads import circuits

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
