"""What forecasters of transformers return, and numbers that are no classes."""

from __future__ import annotations

import torch
import transformers

import whyformer as wf
from tests.models.case import BATCH, randn, seeded
from tests.models.hf import hf
from tests.models.kinds import SERIES, steps
from tests.test_errors import refused
from whyformer import errors

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
    model = hf("TimeSeriesTransformerForPrediction", **WINDOWED)("eager")
    with refused(errors.NotOffered, "parameters of a distribution") as info:
        wf.explain(model, past() | future(), method="occlusion")
    scope = {"torch": torch}
    exec(str(info.value).partition("last line:")[2].partition("\n\n\n")[0], scope)
    result = wf.explain(scope["One"](model), past() | future(), method="attention_rollout", progress=False)[0]
    with torch.no_grad():
        expected = model(**past(), **future()).params[1][0, 0]
    assert abs(result.value - float(expected)) < 1e-5


def test_a_forecaster_that_was_not_told_what_follows_says_so_instead_of_offering_hidden_states():
    model = hf("InformerForPrediction", **WINDOWED)("eager")
    with refused(errors.NotOffered, "no forecast", "future_values"):
        wf.explain(model, past(), method="occlusion")


def test_predictions_come_before_hidden_states():
    with refused(errors.NotOffered, r"prediction_outputs\[:, step"):
        wf.explain(hf("PatchTSMixerForPrediction", prediction_length=5, **SERIES)("eager"), steps(), method="occlusion")
    model, series = hf("TimesFmModelForPrediction", **PATCHED)("eager"), {"past_values": randn(BATCH, 32, seed=1)}
    result = wf.explain(model, series, method="attention_rollout", target=3, progress=False)[0]
    with torch.no_grad():
        assert abs(result.value - float(model(**series).mean_predictions[0, 3])) < 1e-5


def test_numbers_that_are_estimated_have_no_probability():
    model = hf("PatchTSTForRegression", **SERIES)("eager")
    assert wf.explain(model, steps(), method="input_x_gradient", progress=False)[0].prediction.probability is None
    with refused(errors.NotOffered, "estimates a number"):
        wf.explain(model, steps(), method="input_x_gradient", scalar="probability")


def test_partial_attention_is_called_that_by_methods_that_look_at_blocks():
    model = hf("PatchTSMixerForTimeSeriesClassification", self_attn=True, **SERIES)("eager")
    with refused(errors.PartlyCaptured, "softmaxes over positions"):
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
    config = transformers.MaskFormerConfig(
        backbone_config=transformers.SwinConfig(**swin), decoder_config=transformers.DetrConfig(**detr), **sizes
    )
    model = seeded(lambda: transformers.MaskFormerForInstanceSegmentation(config))
    with refused(errors.NotOffered, r"class_queries_logits\[:, position\]", "class One"):
        wf.explain(model, {"pixel_values": randn(1, 3, 64, 64)}, method="occlusion")
