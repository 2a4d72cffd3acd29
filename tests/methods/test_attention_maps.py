"""Maps of one layer and of all: raw attention, rollout, Grad-CAM, value × gradient, attention flow, and formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import whyformer as wf
from tests.methods.properties import FAMILY, TARGET, batch_is_its_rows, close, explained, padding_is_nothing
from tests.models import CASES, model_of, run
from tests.references.attention_flow import attention_flow, joint_flow, pipes
from tests.references.blocks import blocks_of
from tests.references.eager_attention import reported
from tests.references.gradient_rollout import discard_smallest
from tests.references.value_norms import mixing_ratio
from tests.support.live_bytes import peak_bytes
from whyformer.engines.attention.maps import plus_identity, row_normalized, with_residual
from whyformer.errors import NotOffered
from whyformer.methods.attention_maps import flow_from, joint_flow_from


def test_a_token_of_the_models_own_cannot_be_occluded() -> None:
    assert all(found.scores[0] == 0 for found in explained("vit", method="occlusion"))


# Properties of the formulas


def maps(seed: int, n: int = 6) -> Tensor:
    return torch.rand(2, n, n, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_residuals_and_rows_that_are_zero() -> None:
    layer = maps(0)
    torch.testing.assert_close(with_residual(layer, 0, 1.0, normalize=True), torch.eye(6).expand(2, -1, -1))
    layer[0, 2] = 0
    assert row_normalized(layer)[0, 2].sum() == 0 and torch.isfinite(row_normalized(layer)).all()
    shifted = plus_identity(torch.zeros(1, 1, 5), first_query=4)
    assert shifted[0, 0].tolist() == [0, 0, 0, 0, 1], "the identity is at the position of the query"


@pytest.mark.parametrize("method", ["raw_attention", "attention_x_gradient"])
def test_a_last_layer_of_one_row_has_no_columns(method: str) -> None:
    """FT-Transformer asks for its CLS row only in the last block."""
    for options in ({"layers": "last"}, {"layers": "product"}):
        for read in ("column", "column_max", "diagonal"):
            with pytest.raises(NotOffered, match="read='row'"):
                explained("rtdl_ft_transformer", method=method, read=read, **options)
    for options in ({"layers": 0, "read": "column"}, {"layers": "mean", "read": "column_max"}, {"layers": "product"}):
        found = explained("rtdl_ft_transformer", method=method, **options)
        assert all(len(e.scores) == len(e.units) for e in found)


GRADCAM = {"method": "attention_gradcam"}


def test_several_layers_are_averaged() -> None:
    both = explained("bert", **GRADCAM, layer="mean")[0]
    single = [explained("bert", **GRADCAM, layer=i)[0] for i in range(2)]
    close(both.matrix, (np.asarray(single[0].matrix) + np.asarray(single[1].matrix)) / 2)
    close(explained("bert", **GRADCAM, layer=[0, 1])[0].scores, both.scores)


ROLLOUT = {"method": "attention_rollout"}


def rolled_out(attention: Any, heads: str = "mean", discard: float = 0.0, protected: Any = ()) -> np.ndarray:
    whole = np.eye(attention[0].shape[-1])
    for layer in attention:
        fused = getattr(np, heads)(layer, axis=0)
        discard_smallest(fused, discard, list(protected))
        mixed = fused + np.eye(len(fused))
        whole = (mixed / mixed.sum(1, keepdims=True)) @ whole
    return whole


@pytest.mark.parametrize(("name", "layers"), [("bert", 1), ("gpt2", 2)])
def test_without_normalisation_the_head_mean_only_grows_by_a_factor_of_two_per_layer(name: str, layers: int) -> None:
    how = ROLLOUT | {"start_layer": 2 - layers}
    for plain, raw in zip(explained(name, **how), explained(name, **how, normalize=False), strict=True):
        close(np.asarray(raw.matrix), np.asarray(plain.matrix) * 2**layers)
        close(raw.scores, plain.scores * 2**layers)


@pytest.mark.parametrize(
    "options",
    [{"heads": "max"}, {"heads": "min"}, {"discard": 0.7}, {"discard": 0.7, "heads": "max"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_fusion_and_discarding(name: str, options: dict[str, Any]) -> None:
    for row, found in enumerate(explained(name, double=True, **ROLLOUT, **options)):
        close(found.matrix, rolled_out(reported(name, row, TARGET).attention, **options))


def test_special_tokens_are_kept_from_being_discarded() -> None:
    own = reported("vit", 0, TARGET)
    plain, kept = (explained("vit", double=True, **ROLLOUT, discard=0.9, protect_special=p)[0] for p in (False, True))
    close(kept.matrix, rolled_out(own.attention, discard=0.9, protected=[0]))
    close(plain.matrix, rolled_out(own.attention, discard=0.9))
    assert not np.allclose(plain.matrix, kept.matrix, atol=1e-3)


@pytest.mark.parametrize("name", FAMILY)
def test_a_measured_residual_agrees_with_its_twin(name: str) -> None:
    for row, found in enumerate(explained(name, double=True, **ROLLOUT, residual="mixing")):
        attention = [layer.mean(0) for layer in reported(name, row, TARGET).attention]
        whole = np.eye(len(attention[0]))
        for layer, block in zip(attention, blocks_of(name, row), strict=True):
            mixed = np.zeros_like(layer)
            for i, ratio in enumerate(mixing_ratio(block, "enc").tolist()):
                others = layer[i].copy()
                others[i] = 0
                mixed[i] = ratio * others / others.sum() if others.sum() > 0 else 0
                mixed[i, i] = 1 - ratio if others.sum() > 0 else 1
            whole = mixed @ whole
        close(found.matrix, whole)
        assert found.cost.forwards < 2


def bert(layers: int, attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 50}
    config = BertConfig(num_hidden_layers=layers, **sizes)
    return BertForSequenceClassification._from_config(config, attn_implementation=attention).eval()


def padded_ids(padding: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (2, 64), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 64 - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(("attention", "padding"), [("sdpa", 5), ("eager", 0)])
def test_the_peak_does_not_grow_with_the_layers(attention: str, padding: int) -> None:
    peaks = []
    for count in (3, 9):
        explainer, x = wf.Explainer(bert(count, attention)), padded_ids(padding)
        explainer.explain(x, method="raw_attention", target=0)  # studied
        peaks.append(peak_bytes(lambda e=explainer, x=x: e.explain(x, method="raw_attention", target=0)))
    one_map = 2 * 4 * 64 * 64 * 4
    assert peaks[1] - peaks[0] < one_map / 2
    whole = peak_bytes(lambda: explainer.explain(x, method="attention_rollout", target=0))
    assert whole > peaks[1] + 5 * one_map


@pytest.mark.parametrize("layers", ["last", [0, -1]], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "looped_heads", "swin"])
def test_numbers_are_those_of_the_whole_record(name: str, layers: Any) -> None:
    model, x = model_of(name), CASES[name].inputs()
    alone = wf.explain(model, x, method="raw_attention", target=0, layers=layers, keep_layers=True)
    other = "occlusion" if name == "swin" else "attention_rollout"
    together = wf.explain(model, x, method=["raw_attention", other], target=0, layers=layers, keep_layers=True)
    for one, whole in zip(alone, together["raw_attention"], strict=True):
        np.testing.assert_array_equal(one.scores, whole.scores)
        np.testing.assert_array_equal(one.matrix, whole.matrix)
        np.testing.assert_array_equal(one.layers, whole.layers)
        assert one.warnings == whole.warnings
        assert one.cost.forwards == 1 and one.cost.backwards < 0.5


def test_a_model_that_lost_a_layer_is_read_at_the_last_it_has() -> None:
    explainer, x = wf.Explainer(bert(4, "sdpa")), padded_ids(0)
    explainer.explain(x, method="raw_attention", target=0)
    del explainer.model.bert.encoder.layer[3]
    short = bert(4, "sdpa")
    del short.bert.encoder.layer[3]
    for one, other in zip(
        explainer.explain(x, method="raw_attention", target=0),
        wf.explain(short, x, method="raw_attention", target=0),
        strict=True,
    ):
        np.testing.assert_array_equal(one.scores, other.scores)


def test_attention_to_padding_is_told_from_all_layers() -> None:
    """A model that does not hide padding says so, whichever layer is read."""
    x = {"input_ids": padded_ids(0)["input_ids"]}
    x = {**x, "attention_mask": padded_ids(20)["attention_mask"]}
    model = bert(3, "sdpa")
    model.bert.get_extended_attention_mask = lambda *_, **__: None  # type: ignore[union-attr, method-assign, assignment]
    alone = wf.explain(model, x, method="raw_attention", target=0)
    both = wf.explain(model, x, method=["raw_attention", "attention_rollout"], target=0)
    for one, other in zip(alone, both["raw_attention"], strict=True):
        assert one.warnings == other.warnings
        np.testing.assert_array_equal(one.scores, other.scores)


def by_hooks(model: nn.Module, inputs: Any, ends: str | tuple[str, ...], logit: Any) -> dict[str, Tensor]:
    """Module name → (B, positions) v · ∂s/∂v of every module whose name ends so, s being ``logit`` of the output."""
    values: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda m, args, out, name=name: values.update({name: out}))
        for name, module in model.named_modules()
        if name.endswith(ends)
    ]
    try:
        score = logit(run(model, inputs)).sum()
    finally:
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(score, list(values.values()))
    pairs = zip(values.items(), gradients, strict=True)
    return {name: (value * gradient).sum(-1).detach() for (name, value), gradient in pairs}


def test_both_streams_of_an_encoder_and_decoder() -> None:
    """T5: the source is asked by itself and by the target (cross-attention), the target by itself alone."""
    case = CASES["t5"]
    model, inputs = case.build("eager"), case.inputs()
    explained = wf.explain(model, inputs, method="value_x_gradient", target=TARGET)
    handed = by_hooks(model, inputs, ".v", lambda out: out.logits[:, -1, TARGET])
    streams = {"source": 0, "target": 0}
    for name, scores in handed.items():
        streams["target" if "decoder" in name and "SelfAttention" in name else "source"] += scores
    for row, one in enumerate(explained):
        for stream, expected_BN in streams.items():
            here = np.array([s == stream for s in one.units.stream])
            want = expected_BN[row].numpy()[: here.sum()]
            np.testing.assert_allclose(one.scores[here], want, atol=1e-5 * np.abs(want).max())


def test_windows_lose_nothing_and_the_first_layer_stands_where_it_is() -> None:
    case = CASES["swin"]
    model, inputs = case.build("eager"), case.inputs()
    handed = by_hooks(model, inputs, ("value", "v_proj"), lambda out: out.logits[:, TARGET])
    explained = wf.explain(model, inputs, method="value_x_gradient", target=TARGET)
    totals = sum(scores.reshape(len(explained), -1).sum(1) for scores in handed.values())
    assert isinstance(totals, Tensor)
    size = max(float(scores.abs().max()) for scores in handed.values())
    for one, total in zip(explained, totals.tolist(), strict=True):
        assert abs(one.scores.sum() - total) <= 1e-4 * size
    first = wf.explain(model, inputs, method="value_x_gradient", target=TARGET, layers=0)
    windows = next(iter(handed.values())).reshape(len(first), -1)
    for one, scores in zip(first, windows, strict=True):
        np.testing.assert_allclose(np.sort(one.scores), np.sort(scores.numpy()), atol=1e-5 * size)


FLOW = {"method": "attention_flow"}


@pytest.mark.parametrize("reach", [7, 1])
def test_agrees_with_its_twin_on_deeper_sharp_maps(reach: int) -> None:
    """With a reach of 1, more positions are reached in each layer than in the one above it."""
    near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) <= reach
    attention = [random_maps(layer) * near for layer in range(4)]
    found = np.array([flow_from(pipes(attention)[-1][i], pipes(attention)[:-1]) for i in range(7)])
    close(found, attention_flow(attention, normalize=False), 1e-7)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_one_layer_is_rollout(name: str, joint: bool) -> None:
    found = explained(name, **FLOW, end_layer=0, rows="all", joint=joint)
    rollout = explained(name, method="attention_rollout", keep_layers=True)
    for flow, rolled in zip(found, rollout, strict=True):
        assert rolled.layers is not None
        close(flow.matrix, rolled.layers[0])


def test_joint_flow_is_the_shapley_split_of_the_whole_flow() -> None:
    attention = [random_maps(layer, tokens=5) for layer in range(3)]
    layers = pipes(attention)
    share, error = joint_flow_from(layers[-1][2], layers[:-1], orders=200, seed=0)
    assert share.sum() == pytest.approx(1, abs=1e-8)
    assert np.abs(share - joint_flow(attention, 2)).max() < 4 * error
    assert 0 < error < 0.01
    alone = flow_from(layers[-1][2], layers[:-1])
    assert (share >= 0).all() and (share <= alone + 1e-9).all()


def test_joint_flow_adds_up_to_the_whole_flow() -> None:
    for found in explained("bert", **FLOW, joint=True, normalize=False):
        assert found.scores.sum() == pytest.approx(1, abs=1e-5)
        assert 0 <= found.checks["split_error"] < 0.05
    batch_is_its_rows("gpt2", **FLOW, joint=True)
    padding_is_nothing("gpt2", **FLOW, joint=True)


def test_several_rows_feed_the_head() -> None:
    found = explained("beit", **FLOW, rows="all")[0]
    rows = np.asarray(found.matrix)[1:]  # the head reads the mean of the patches
    close(found.scores, rows.mean(0))


def test_a_row_without_pipes_carries_nothing() -> None:
    layers = pipes([random_maps(layer) for layer in range(3)])
    assert not flow_from(np.zeros(7), layers).any()
    layers[0][:] = 0
    assert not flow_from(layers[-1][0], layers[:-1]).any()


def random_maps(seed: int, tokens: int = 7, heads: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(tokens, 0.3), size=(heads, tokens))
