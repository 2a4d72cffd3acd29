"""value_norms and alti against their twins, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import FAMILY, close, explained, golden, meets_golden
from tests.methods.runs import running
from tests.models import CASES
from tests.references import value_norms as twin
from tests.references.blocks import blocks_of
from tests.references.value_norms import mixing_ratio, per_head
from whyformer.engines.attention import value_vectors
from whyformer.engines.attention.value_vectors import LEVELS, contributions
from whyformer.methods import value_contributions as method
from whyformer.methods.value_contributions import proximity

METHOD = {"method": "value_norms"}


def test_the_twin_has_every_level() -> None:
    assert tuple(LEVELS) == twin.LEVELS


@pytest.mark.parametrize("name", FAMILY)
def test_a_gradient_weight_takes_a_second_pass(name: str) -> None:
    for found in explained(name, double=True, **METHOD, weight="gradient"):
        assert (found.cost.forwards, found.cost.backwards) == (2, 1)


@pytest.mark.parametrize("name", FAMILY)
def test_heads_and_mixing_ratio_agree_with_their_twins(name: str) -> None:
    with running(name, double=True) as run:
        heads = torch.stack(method.per_head(run), 1)
        lengths_BLHK = torch.stack(method.transformed_norms(run), 1)
        ratios = {level: method.mixing_ratio(run, level) for level in LEVELS}
        keep = run.keep_BN
    for row in range(2):
        blocks = blocks_of(name, row)
        real = keep[row]
        close(heads[row][..., real, :][..., real], torch.stack([per_head(b) for b in blocks]))
        own = torch.stack([torch.einsum("hnd,hde->hne", b.value, b.output).norm(dim=-1) for b in blocks])
        close(lengths_BLHK[row][..., real], own)
        for level, found in ratios.items():
            close(found[row][:, real], torch.stack([mixing_ratio(b, level) for b in blocks]))
            assert not found[row][:, ~real].any()


@pytest.mark.parametrize("level", LEVELS)
def test_mixing_ratios_meet_the_golden_numbers(level: str) -> None:
    case = golden()
    with running("bert", model=case.model, inputs=case.inputs) as run:
        ratios = method.mixing_ratio(run, level)
    for row, n in enumerate((11, 8)):
        meets_golden(ratios[row, :, :n], f"mixing_ratio.{level.replace('_', '')}", row)


def test_heads_meet_the_golden_numbers() -> None:
    case = golden()
    with running("bert", model=case.model, inputs=case.inputs) as run:
        heads, lengths_BLHK = torch.stack(method.per_head(run), 1), torch.stack(method.transformed_norms(run), 1)
    for row, n in enumerate((11, 8)):
        meets_golden(heads[row, :, :, :n, :n], "norm.kob20.per_head", row)
        meets_golden(lengths_BLHK[row, :, :, :n], "norm.kob20.fx", row)


# What must hold on any model

DECOMPOSED = [
    *("roberta", "distilbert", "albert", "deberta_v2", "modernbert", "xlnet", "mistral", "qwen3", "gemma2", "phi3"),
    *("gpt_neox", "opt", "deit", "beit", "dinov2", "wav2vec2", "nn_transformer_encoder", "einsum", "folded_heads"),
    *("nn_transformer_encoder_seq_first", "nn_transformer_encoder_prenorm_seq_first", "timm_fused", "looped_heads"),
    "rtdl_ft_transformer",
]


@pytest.mark.parametrize("name", [*FAMILY, *DECOMPOSED])
def test_contributions_and_biases_add_up_to_the_attention_block(name: str) -> None:
    with running(name, double=True) as run:
        for site, block in run.anatomy().layers:
            parts = contributions(site, block, "attn_res_ln")
            total = parts.diagonal_BQE + parts.others_BQE
            if block.bias_E is not None:
                bias = block.attended.apply(block.before.apply(block.bias_E)).expand_as(total)
                bias = block.before.scaled(bias)
                total = total + block.attended.scaled(bias)
            # What is left is the bias of the norm: the same at every position.
            left = (block.attended_BQE - total)[run.keep_BN[:, site.first_query :][:, : total.shape[1]]]
            # Gemma's norm, between W_O and the residual, computes in float32 whatever the model's precision.
            noise = (1e-6 if name == "gemma2" else 1e-12) * block.attended_BQE.abs().max()
            assert (left - left.mean(0)).abs().max() < noise
            if not block.post_norm:
                assert left.abs().max() < noise


@pytest.mark.parametrize("name", [*FAMILY, "gemma2", "rtdl_ft_transformer"])
def test_gram_matrices_give_the_norms_of_the_vectors(name: str) -> None:
    with running(name) as run:
        for site, block in run.anatomy().layers:
            for level in LEVELS:
                parts = contributions(site, block, level)
                direct = torch.cat([rows.norm(dim=-1) for _, rows in parts.rows()], 1)
                close(parts.norms_BQK, direct, 1e-5)


def test_aggregates() -> None:
    layered = explained("bert", **METHOD, keep_layers=True)[0]
    assert layered.layers is not None
    close(explained("bert", **METHOD, aggregate="mean")[0].matrix, layered.layers.mean(0))
    close(explained("bert", **METHOD, aggregate=-1)[0].matrix, layered.layers[-1])
    close(explained("bert", **METHOD, aggregate=0)[0].matrix, layered.layers[0])
    close(layered.matrix, layered.layers[1] @ layered.layers[0])


def test_a_last_layer_with_one_row() -> None:
    rolled, mean = (explained("rtdl_ft_transformer", **METHOD, aggregate=a)[0] for a in ("rollout", "mean"))
    first, last = (explained("rtdl_ft_transformer", **METHOD, aggregate=i)[0] for i in (0, 1))
    assert isinstance(first.matrix, np.ndarray) and isinstance(last.matrix, np.ndarray)
    assert last.matrix.shape == (1, 8)
    close(rolled.matrix, last.matrix @ first.matrix)
    close(mean.scores, (last.scores + first.scores) / 2)


def test_a_layer_that_writes_nothing_gives_zeros_but_no_nan() -> None:
    model = CASES["bert"].build("sdpa")
    torch.nn.init.zeros_(model.bert.encoder.layer[0].attention.output.dense.weight)
    found, _ = wf.explain(model, CASES["bert"].inputs(), **METHOD, level="attn")
    assert not found.scores.any()
    found, _ = wf.explain(model, CASES["bert"].inputs(), **METHOD, keep_layers=True)
    assert found.layers is not None
    assert np.count_nonzero(found.layers[0]) == len(found.units)  # the residual stream alone: each position is itself


def test_a_product_beyond_float32_is_rescaled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = explained("llama", **METHOD)[0]
    monkeypatch.setattr(method, "LARGEST", 1.0)
    found = explained("llama", **METHOD)[0]
    assert np.asarray(found.matrix).max() == 1
    close(found.scores / found.scores.max(), plain.scores / plain.scores.max())
    assert any("float32" in w for w in found.warnings)
    assert not plain.warnings


ALTI = {"method": "alti"}


def test_a_few_rows_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("bert") as run:
        for site, block in run.anatomy().layers:
            parts = contributions(site, block, "attn_res_ln")
            at_once = proximity(parts, block.attended_BQE, 1)
            monkeypatch.setattr(value_vectors, "BUDGET", 1)
            close(proximity(parts, block.attended_BQE, 1), at_once, 1e-6)
            monkeypatch.undo()


def test_a_row_that_nothing_comes_near_is_zero_not_nan() -> None:
    with running("bert") as run:
        site, block = next(iter(run.anatomy().layers))
        parts = contributions(site, block, "attn_res_ln")
        away = -1e-3 * parts.diagonal_BQE
        near = proximity(parts, away, 1)
    model = CASES["bert"].build("sdpa")
    assert torch.isfinite(near).all()
    with torch.no_grad():  # a bias of the norm that drowns every contribution, and the residual, in itself
        norm = model.bert.encoder.layer[0].attention.output.LayerNorm
        norm.weight.zero_()
    for found in wf.explain(model, CASES["bert"].inputs(), **ALTI):
        assert np.isfinite(found.scores).all()
        assert not found.scores.any()
