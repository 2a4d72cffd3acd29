"""value_norms, alti and value_zeroing against their twins, golden numbers, and what must hold on any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import FAMILY, close, explained, golden, meets_golden, running
from tests.models import CASES
from tests.references import value_norms as twin
from tests.references.blocks import blocks_of
from tests.references.value_norms import mixing_ratio, per_head
from tests.references.value_zeroing import value_zeroing
from whyformer.capture.blocks import remainder
from whyformer.capture.blocks.remainder import Finish
from whyformer.capture.roles import Intervene
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered
from whyformer.methods import value_contributions as method
from whyformer.methods.value_contributions import LEVELS, contributions, distances, proximity
from whyformer.run import Run

METHOD = {"method": "value_norms"}


def test_the_twin_has_every_level() -> None:
    assert tuple(LEVELS) == twin.LEVELS


def test_a_gradient_weight_takes_a_second_pass() -> None:
    for found in explained("bert", **METHOD, weight="gradient"):
        assert 2 <= found.cost.forwards < 3 and found.cost.backwards == 1


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


def test_heads_mixing_ratios_and_distances_meet_the_golden_numbers() -> None:
    case = golden()
    with running("bert", model=case.model, inputs=case.inputs) as run:
        heads, lengths_BLHK = torch.stack(method.per_head(run), 1), torch.stack(method.transformed_norms(run), 1)
        ratios = {level: method.mixing_ratio(run, level) for level in LEVELS}
        raw = torch.stack(distances(run), 1)
    for row, n in enumerate((11, 8)):
        meets_golden(heads[row, :, :, :n, :n], "norm.kob20.per_head", row)
        meets_golden(lengths_BLHK[row, :, :, :n], "norm.kob20.fx", row)
        meets_golden(raw[row, :, :n, :n], "value_zeroing.layers_unnormalised", row)
        for level, found in ratios.items():
            meets_golden(found[row, :, :n], f"mixing_ratio.{level.replace('_', '')}", row)


# What must hold on any model

DECOMPOSED = [  # blocks that are written in different ways
    *("albert", "deberta_v2", "modernbert", "xlnet", "gemma2", "phi3", "gpt_neox", "opt", "beit", "dinov2", "wav2vec2"),
    *("nn_transformer_encoder_seq_first", "nn_transformer_encoder_prenorm_seq_first", "timm_fused", "looped_heads"),
    *("nn_transformer_encoder", "einsum", "folded_heads", "rtdl_ft_transformer"),
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
            if block.attended.scale_BQ is None:
                assert left.abs().max() < noise


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
            monkeypatch.setattr(method, "BUDGET", 1)
            close(proximity(parts, block.attended_BQE, 1), at_once, 1e-6)
            monkeypatch.undo()


def test_a_row_that_nothing_comes_near_is_zero_not_nan() -> None:
    with running("bert") as run:
        site, block = next(iter(run.anatomy().layers))
        parts = contributions(site, block, "attn_res_ln")
        away = -1e-3 * parts.diagonal_BQE
        near = proximity(parts, away, 1)
        across = parts.diagonal_BQE.flip(2) * torch.tensor([1.0, -1.0]).repeat(parts.diagonal_BQE.shape[2] // 2) * 1e6
        assert not proximity(parts, across, 2).any()  # no more than the rounding of both norms
    model = CASES["bert"].build("sdpa")
    assert torch.isfinite(near).all()
    with torch.no_grad():  # a bias of the norm that drowns every contribution, and the residual, in itself
        norm = model.bert.encoder.layer[0].attention.output.LayerNorm
        norm.weight.zero_()
    for found in wf.explain(model, CASES["bert"].inputs(), **ALTI):
        assert np.isfinite(found.scores).all()
        assert not found.scores.any()


ZEROING = {"method": "value_zeroing"}


# Other spellings of a block: the whole model runs once per token and layer, that layer's values edited on the way

BLOCKS = {
    "deberta_v2": "deberta.encoder.layer",
    "modernbert": "model.layers",
    "xlnet": "transformer.layer",
    "gemma2": "model.layers",
    "nn_transformer_encoder_prenorm_seq_first": "encoder.layers",
    "einsum": "blocks",
}


def brute_force(run: Run, blocks: str, layer: int) -> Tensor:
    """(B, N, N) 1 - cos of a block's output, by running the model once per token."""
    outputs: list[Tensor] = []

    def see(module: nn.Module, args: Any, out: Any) -> None:
        outputs.append(out if isinstance(out, Tensor) else out[0])

    def edit_of(token: int | None) -> Any:
        def edit(index: int, site: OpenSite) -> None:
            if index == layer and token is not None:
                value = site.value_BHKD.clone()
                value[:, :, token] = 0
                site.value_BHKD = value

        return edit

    hook = run.modality.model.get_submodule(blocks)[layer].register_forward_hook(see)
    for token in (None, *range(run.length)):
        role = Intervene(run.batch.size, run.module_names, run.study.batch_axes, edit=edit_of(token))
        with torch.no_grad(), role:
            run.output.logits(run.batch)
    hook.remove()
    rows = [o.transpose(0, 1) if o.shape[0] == run.length else o for o in outputs]  # sequence first
    original, changed = rows[0], torch.stack(rows[1:], -2)
    return 1 - torch.nn.functional.cosine_similarity(changed, original[..., None, :], dim=-1)


@pytest.mark.parametrize("name", BLOCKS)
def test_agrees_with_running_the_model_once_per_token(name: str) -> None:
    with running(name, double=True) as run:
        found = distances(run)
        keep = run.keep_BN
        for layer, one in enumerate(found):
            want = brute_force(run, BLOCKS[name], layer)
            for row in range(len(keep)):
                real = keep[row]
                # Some norms compute in float32 whatever the model's precision.
                close(one[row][real][:, real], want[row][real][:, real], 1e-5)


def finished(finish: Finish, keys: int) -> tuple[Tensor, Tensor]:
    """(keys, B, Q, E) changed and original."""
    found = list(finish.without_each(list(range(keys))))
    assert [t for tokens, _, _ in found for t in tokens] == list(range(keys))
    return torch.cat([changed for _, changed, _ in found]), torch.cat([original for _, _, original in found])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "rtdl_ft_transformer"])
def test_folding_the_first_matrix_of_the_mlp_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(name, double=True) as run, torch.no_grad():
        for site, block in run.anatomy().layers:
            keys = site.attention_BHQK.shape[-1]
            folded, plain = Finish(site, block, fold=True), Finish(site, block, fold=False)
            assert bool(folded.folds) == (2 * site.heads <= site.attention_BHQK.shape[2])
            assert not plain.folds
            monkeypatch.setattr(remainder, "ROWS", 1)
            one_by_one = Finish(site, block, fold=True)
            monkeypatch.undo()
            assert one_by_one.step == 1 < folded.step
            want, original = finished(plain, keys)
            close(original, block.output_BQE.expand_as(original), 1e-6)
            for finish in (folded, one_by_one):
                changed, original = finished(finish, keys)
                close(changed, want, 1e-6)
                close(original, block.output_BQE.expand_as(original), 1e-6)


class WrittenOut(nn.Module):
    """A block whose norm is spelled out, with what may follow it: a bias, a gain after the bias, two biases."""

    def __init__(self, after: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.after = after
        self.qkv, self.out, self.up, self.down, self.head = (
            nn.Linear(i, o) for i, o in ((16, 48), (16, 16), (16, 40), (40, 16), (16, 3))
        )
        for name in ("gain", "bias", "late"):
            setattr(self, name, nn.Parameter(torch.randn(16)))

    def norm(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.gain
        if self.after != "nothing":
            x = x + self.bias
        if self.after == "gain":
            x = x * self.late
        return x + self.late if self.after == "two biases" else x

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return self.head(x[:, 0])


@pytest.mark.parametrize(
    ("after", "folds"), [("nothing", True), ("bias", True), ("gain", False), ("two biases", False)]
)
def test_a_written_out_norm_is_folded_with_its_bias_or_not_at_all(after: str, folds: bool) -> None:
    model = WrittenOut(after).double().eval()
    x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with running("einsum", model=model, inputs=(x,)) as run, torch.no_grad():
        ((site, block),) = run.anatomy().layers
        folded, plain = Finish(site, block, fold=True), Finish(site, block, fold=False)
        assert bool(folded.folds) == folds
        close(finished(folded, 7)[0], finished(plain, 7)[0], 1e-9)
        close(finished(folded, 7)[1], block.output_BQE.expand(7, -1, -1, -1), 1e-9)


def test_both_ways_to_fold_agree() -> None:
    """Head vectors through the matrix, or the matrices multiplied first: sizes decide which is shorter."""
    with running("bert", double=True) as run, torch.no_grad():
        site, block = next(iter(run.anatomy().layers))
        finish = Finish(site, block)
        (fold,) = finish.folds
        tokens = list(range(10))
        by_vectors = finish._through(fold, tokens)
        assert not finish._heads
        finish.written_BHKE = finish.written_BHKE.repeat_interleave(9, 2)  # as if there were many more tokens
        by_matrices = finish._through(fold, tokens)
        assert finish._heads
        close(by_matrices, by_vectors, 1e-9)


def test_any_distance() -> None:
    def city(changed: Tensor, original: Tensor) -> Tensor:
        return (changed - original).abs().sum(-1)

    for row, found in enumerate(explained("bert", double=True, **ZEROING, distance=city)):
        whole = value_zeroing("bert", row, 2, lambda a, b: (a - b).abs().sum())
        close(found.matrix, whole)


def test_a_layer_that_writes_nothing_is_an_error_not_a_uniform_map() -> None:
    model = CASES["bert"].build("sdpa")
    torch.nn.init.zeros_(model.bert.encoder.layer[0].attention.output.dense.weight)
    for distance in ("cosine", "euclidean", lambda a, b: (a - b).norm(dim=-1)):
        with pytest.raises(NotOffered, match=r"layer\.0.*no more than rounding"):
            wf.explain(model, CASES["bert"].inputs(), **ZEROING, distance=distance)
