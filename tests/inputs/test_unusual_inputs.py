"""Inputs and models of unusual structure: queries that pool, wrappers, text read from images, forecasters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import BATCH, randint, randn, seeded
from tests.models.hf import hf as built
from tests.models.kinds import KINDS, SERIES, steps
from tests.models.others import OTHERS
from tests.support.processors import tokenizer
from tests.test_errors import refused
from whyformer.errors import BadInput, NotOffered, NotOverUnits, PartlyCaptured, UnknownName

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GRADIENTS = ["input_x_gradient", "integrated_gradients"]


class Block(nn.Module):
    """What some of the models share."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.entry = nn.Embedding(50, 16), nn.Linear(5, 16)
        self.block = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
        self.query = nn.Parameter(torch.randn(16))
        self.pool = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)


class Pooled(Block):
    """A learned query reads the text."""

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.block(self.words(ids))
        return self.head(self.pool(self.query.expand(len(hidden), 1, -1), hidden, hidden)[0][:, 0])


def test_a_query_of_the_models_own_is_no_token_of_the_text() -> None:
    model, ids = seeded(Pooled), randint(1, 50, 2, 6)
    for method in ("generic_attention", "occlusion", *GRADIENTS):
        for one in wf.explain(model, ids, method=method, target=1):
            assert one.units.stream == ("text",) * 6 + ("queries",) and one.units.special[-1]
            assert np.abs(one.scores[:6]).max() > 0
            assert (one.scores[6] == 0) == (method != "generic_attention")
    (one,) = wf.explain(model, ids[:1], method="occlusion", target=1, replace=7)
    changed = ids[:1].repeat(6, 1).fill_diagonal_(7)
    with torch.no_grad():
        drops = model(ids[:1])[0, 1] - model(changed)[:, 1]
    np.testing.assert_allclose(one.scores[:6], drops, atol=1e-6)
    (default,) = wf.explain(model, ids[:1], method="occlusion", target=1)
    (deleted,) = wf.explain(model, ids[:1], method="occlusion", target=1, replace="delete")
    vectors = model.words.weight[ids[0]].detach().repeat(6, 1, 1)
    vectors[torch.arange(6), torch.arange(6)] = model.words.weight.detach().mean(0)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "words", nn.Identity())
        drops = default.value - model(vectors)[:, 1]
    np.testing.assert_allclose(default.scores[:6], drops, atol=1e-6)
    assert default.options["replace"] == deleted.options["replace"] == "mean_vector", "what was done"
    assert not default.warnings and "text: mean_vector" in deleted.warnings[0]


def test_a_token_id_replaces_no_vectors() -> None:
    """Before, zeros were used, and the id was reported."""

    class Steps(Block):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.block(self.entry(x))
            return self.head(self.pool(self.query.expand(len(hidden), 1, -1), hidden, hidden)[0][:, 0])

    with pytest.raises(UnknownName, match=r"unknown replacement 7\. Known: zero, mean"):
        wf.explain(seeded(Steps), torch.randn(1, 6, 5), method="occlusion", replace=7)


# Words that a model calls by another name


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **named: Any) -> Tensor:
        logits: Tensor = self.inner(**named).logits
        return logits


class Renamed(Wrapped):
    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("wrapper", [Wrapped, Renamed])
def test_texts_for_a_model_with_names_of_its_own(wrapper: type[Wrapped]) -> None:
    config = hf.BertConfig(vocab_size=100, num_labels=3, **SIZE)
    model = seeded(lambda: hf.BertForSequenceClassification(config))
    texts = ["a cat on the mat", "two birds"]
    expected = wf.explain(model, texts, processor=tokenizer(), target=1)
    found = wf.explain(wrapper(model).eval(), texts, processor=tokenizer(), target=1)
    for one, other in zip(found, expected, strict=True):
        assert one.units.labels == other.units.labels
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


# Gradients


def test_models_that_write_into_what_they_looked_up() -> None:
    for method in GRADIENTS:
        (one,) = wf.explain(OTHERS["ctrl"].build(None), {"input_ids": randint(5, 100, 1, 9)}, method=method, target=3)
        assert np.abs(one.scores).max() > 0


def test_positions_that_are_looked_up_are_no_column() -> None:
    model, pixels = OTHERS["clip_classifier"].build("sdpa"), randn(1, 3, 32, 32)
    (one,) = wf.explain(model, {"pixel_values": pixels}, method="input_x_gradient", target=1)
    leaf = pixels.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(pixel_values=leaf).logits[0, 1], leaf)
    by_patch = (pixels * gradient)[0].sum(0).view(4, 8, 4, 8).sum((1, 3))
    np.testing.assert_allclose(one.heatmap(), by_patch.detach(), atol=1e-5)


def test_steps_that_become_fewer_positions() -> None:
    config = hf.PatchTSTConfig(
        num_input_channels=1, context_length=16, patch_length=4, d_model=16, num_hidden_layers=2, ffn_dim=32,
        num_attention_heads=2, use_cls_token=True, num_targets=3,
    )  # fmt: skip
    model = seeded(lambda: hf.PatchTSTForClassification(config))
    inputs = {"past_values": randn(2, 16, 1)}
    leaf = inputs["past_values"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(past_values=leaf).prediction_logits[:, 1].sum(), leaf)
    expected = (leaf * slope).detach().view(2, 4, 4).sum(2)  # blocks of the series, not what attention made of them
    for method in GRADIENTS:
        for row, one in enumerate(wf.explain(model, inputs, method=method, target=1)):
            assert one.units.labels == ("t 0–3", "t 4–7", "t 8–11", "t 12–15")
            if method == "input_x_gradient":
                np.testing.assert_allclose(one.scores, expected[row], atol=1e-4)
    (found, _) = wf.explain(model, inputs, method="generic_attention", target=1)
    assert len(found.scores) == 14 and "depends on past_values, which is not scored" in found.warnings[0]


# Images


def test_text_read_from_an_image() -> None:
    """TrOCR: the source is an image, the target is written."""
    vision = hf.ViTConfig(**SIZE, image_size=32, patch_size=8)
    writer = hf.BertConfig(vocab_size=100, is_decoder=True, add_cross_attention=True, **SIZE)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, writer)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = seeded(lambda: hf.VisionEncoderDecoderModel(config))
    inputs = {"pixel_values": randn(2, 3, 32, 32), "decoder_input_ids": randint(5, 100, 2, 4)}
    for method in ("generic_attention", "occlusion", *GRADIENTS):
        for one in wf.explain(model, inputs, method=method, target=7):
            assert one.heatmap().shape == (4, 4) and one.units.stream.count("target") == 4
            for stream in ("image", "target"):
                assert np.abs(one.scores[np.array(one.units.stream) == stream]).max() > 0


def test_windows_before_a_decoder_are_refused() -> None:
    """Donut."""
    windows = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}
    vision = hf.DonutSwinConfig(window_size=4, **windows)
    size = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    writer = hf.MBartConfig(vocab_size=100, is_decoder=True, add_cross_attention=True, **size)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, writer)
    model = seeded(lambda: hf.VisionEncoderDecoderModel(config))
    inputs = {"pixel_values": randn(1, 3, 32, 32), "decoder_input_ids": randint(5, 100, 1, 4)}
    for method in ("generic_attention", "occlusion", "saliency"):
        with pytest.raises(NotOverUnits, match=r"windows|cannot be combined"):
            wf.explain(model, inputs, method=method, target=7)


class Masked(Block):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.block(self.entry(x), src_key_padding_mask=~mask.bool())[:, 0])


def test_a_mask_that_says_the_opposite_is_refused() -> None:
    """True hides in this model, so an input without padding would seem to have no position at all."""
    hide = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).bool()
    with pytest.raises(BadInput, match=r"mask hides every position of input 0.*'padding'"):
        wf.explain(seeded(Masked), (randn(2, 4, 5), hide), method="attention_rollout", target=1)


class Hidden(Block):
    """True hides; a token of the model's own reads the text."""

    def forward(self, ids: Tensor, pad_mask: Tensor) -> Tensor:
        h = torch.cat([self.query.expand(len(ids), 1, -1), self.words(ids)], 1)
        return self.head(self.block(h, src_key_padding_mask=nn.functional.pad(pad_mask, (1, 0)))[:, 0])


@pytest.mark.parametrize("first", [0, 1])
def test_true_hides_whether_or_not_an_input_is_padded(first: int) -> None:
    model, ids, hide = seeded(Hidden), randint(5, 50, 2, 4), torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).bool()
    alone = {}
    for row in (first, 1 - first):
        alone[row] = wf.explain(model, (ids[[row]], hide[[row]]), method="occlusion", replace=3, target=1)[0]
    for row, (one, count) in enumerate(
        zip(wf.explain(model, (ids, hide), method="occlusion", replace=3, target=1), (4, 2), strict=True)
    ):
        without = ids[[row]].repeat(count, 1)
        without[range(count), range(count)] = 3
        value, drops = model(ids[[row]], hide[[row]])[0, 1], model(without, hide[[row]].repeat(count, 1))[:, 1]
        scores = one.scores[~np.array(one.units.special)]
        np.testing.assert_allclose(scores, (value - drops).detach(), atol=1e-5)
        np.testing.assert_allclose(alone[row].scores, one.scores, atol=1e-5)


def test_an_image_that_comes_in_patches() -> None:
    """SigLIP 2 takes vectors of patches, the padded ones masked."""
    tower = SIZE | {"num_patches": 16, "patch_size": 8}
    words = SIZE | {"vocab_size": 100, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    model = seeded(lambda: hf.Siglip2Model(hf.Siglip2Config(text_config=words, vision_config=tower)))
    mask = (torch.arange(16) < torch.tensor([16, 12])[:, None]).long()
    inputs = {
        "input_ids": randint(5, 100, 2, 6),
        "pixel_values": randn(2, 16, 192),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[4, 4], [3, 4]]),
    }
    for method in ("generic_attention", "occlusion", *GRADIENTS):
        found = wf.explain(model, inputs, method=method, target=0)
        assert [one.units.stream.count("image") for one in found] == [16, 12]
        assert all(np.abs(one.scores[np.array(one.units.stream) == "image"]).max() > 0 for one in found)


def test_a_detector_that_looks_at_sampled_points_is_refused() -> None:
    case = KINDS["deformable_detr"].case
    with pytest.raises(NotOverUnits, match=r"5 positions that are no patches.*samples points"):
        wf.explain(case.build(None), case.inputs(), method="occlusion", target=(2, 1))


# Forecasters, and numbers that are no classes


WINDOWED = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 3], "num_time_features": 2}
WINDOWED |= {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4}
WINDOWED |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
PATCHED = {"patch_length": 8, "context_length": 32, "horizon_length": 16, "hidden_size": 32, "intermediate_size": 64}
PATCHED |= {"head_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 4}


def past() -> dict[str, torch.Tensor]:
    values, times = randn(BATCH, 15, seed=1), randn(BATCH, 15, 2, seed=2)
    return {"past_values": values, "past_time_features": times, "past_observed_mask": torch.ones(BATCH, 15)}


def future() -> dict[str, torch.Tensor]:
    return {"future_values": randn(BATCH, 4, seed=3), "future_time_features": randn(BATCH, 4, 2, seed=4)}


def test_parameters_of_a_distribution_are_refused_with_code_that_runs():
    model = built("TimeSeriesTransformerForPrediction", **WINDOWED)("eager")
    with refused(NotOffered, "parameters of a distribution") as info:
        wf.explain(model, past() | future(), method="occlusion")
    scope = {"torch": torch}
    exec(str(info.value).partition("last line:")[2].partition("\n\n\n")[0], scope)
    result = wf.explain(scope["One"](model), past() | future(), method="attention_rollout", progress=False)[0]
    with torch.no_grad():
        expected = model(**past(), **future()).params[1][0, 0]
    assert abs(result.value - float(expected)) < 1e-5


def test_a_forecaster_that_was_not_told_what_follows_says_so_instead_of_offering_hidden_states():
    model = built("InformerForPrediction", **WINDOWED)("eager")
    with refused(NotOffered, "no forecast", "future_values"):
        wf.explain(model, past(), method="occlusion")


def test_predictions_come_before_hidden_states():
    with refused(NotOffered, r"prediction_outputs\[:, step"):
        wf.explain(
            built("PatchTSMixerForPrediction", prediction_length=5, **SERIES)("eager"), steps(), method="occlusion"
        )
    model, series = built("TimesFmModelForPrediction", **PATCHED)("eager"), {"past_values": randn(BATCH, 32, seed=1)}
    result = wf.explain(model, series, method="attention_rollout", target=3, progress=False)[0]
    with torch.no_grad():
        assert abs(result.value - float(model(**series).mean_predictions[0, 3])) < 1e-5


def test_partial_attention_is_called_that_by_methods_that_look_at_blocks():
    model = built("PatchTSMixerForTimeSeriesClassification", self_attn=True, **SERIES)("eager")
    with refused(PartlyCaptured, "softmaxes over positions"):
        wf.explain(model, steps(), method="alti")


def test_masks_are_no_forecast():
    """MaskFormer returns its encoder's states, too, and logits under names of its own."""
    resnet = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    detr = {"model_type": "detr", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 5}
    detr |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    swin = {"model_type": "swin", "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1]}
    swin |= {"num_heads": [2, 2, 2, 2], "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    detr |= {"use_timm_backbone": False, "backbone": None, "backbone_config": resnet}
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 3}
    config = hf.MaskFormerConfig(backbone_config=hf.SwinConfig(**swin), decoder_config=hf.DetrConfig(**detr), **sizes)
    model = seeded(lambda: hf.MaskFormerForInstanceSegmentation(config))
    with refused(NotOffered, r"class_queries_logits\[:, position\]", "class One"):
        wf.explain(model, {"pixel_values": randn(1, 3, 64, 64)}, method="occlusion")
