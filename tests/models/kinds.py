"""Every kind of model that the tests know, with what an independent formula has to be told about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tests.models import CASES, LEAKY, UNUSUAL, WITHOUT_ATTENTION
from tests.models.case import BATCH, CLASSES, HEADS, LAYERS, WIDTH, Build, Case, Inputs, randn
from tests.models.hf import CONTROL, ENCODER, VOCAB, hf, hf_case, image, last_logits, text
from tests.models.others import (
    EXPERTS,
    LABELS,
    LANGUAGE,
    OTHERS,
    PLAIN_HEADS,
    REFUSED,
    SOUND,
    STAGES,
    VIDEO,
    VISION,
    causal,
    frames,
    pixels,
    wave,
)


@dataclass(frozen=True)
class Kind:
    """rows: those that feed the head. entrance: the module whose input gradients are taken at; "": the input itself."""

    name: str
    group: str
    case: Case
    rows: Any = None
    entrance: str = ""
    cut: bool = True  # whether an input says the same without its padding
    rowwise: bool = True  # whether the answer to an input is a row of logits


# Rows that a case does not name, as its head reads them.
ROWS = {
    "deit_distilled": "first two", "dinov2": 0, "dinov2_registers": 0, "beit": "all but first",
    "lucidrains_tab_transformer": "mean", "modernbert": 0,
}  # fmt: skip
# Positions that a convolution or a tokenizer of columns makes: gradients are taken where they enter the first block.
ENTRANCES = {
    "wav2vec2": "wav2vec2.encoder.layers.0", "hubert": "hubert.encoder.layers.0",
    "unispeech": "unispeech.encoder.layers.0", "sew": "sew.encoder.layers.0",
    "data2vec_audio": "data2vec_audio.encoder.layers.0", "wavlm": "wavlm.encoder.layers.0",
    "ast": "audio_spectrogram_transformer.layers.0",
    "rtdl_ft_transformer": "backbone", "lucidrains_ft_transformer": "transformer",
    "lucidrains_tab_transformer": "transformer",
}  # fmt: skip


def many(name: str, build: Build, inputs: Any) -> Case:
    """A model whose answer is no row of logits."""
    return hf_case(name, build, inputs, implementations=(None,), self_only=False, logits=None)


def other(name: str, build: Build, inputs: Any = text, **how: Any) -> Case:
    """A model whose attention is not all there is, or not there."""
    return hf_case(name, build, inputs, implementations=(None,), self_only=False, **how)


def masked() -> Inputs:
    inputs = text()
    inputs["input_ids"][:, 3] = 4
    return inputs


def choices() -> Inputs:
    """Two for each of two prompts."""
    return {name: torch.stack([tensor, tensor.flip(0)], 1) for name, tensor in text().items()}


def steps() -> Inputs:
    return {"past_values": randn(BATCH, 32, 2, seed=2)}


def large_picture() -> Inputs:
    return {"pixel_values": image(64, 64)}


SERIES = {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": WIDTH}
SERIES |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "ffn_dim": 2 * WIDTH, "num_targets": CLASSES}
STATE = CONTROL | {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "state_size": 4}
FORECAST = {"patch_length": 8, "context_length": 32, "horizon_length": 16, "hidden_size": WIDTH, "head_dim": 8}
FORECAST |= {"intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}
DEFORMABLE = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": WIDTH}
DEFORMABLE |= {"backbone_config": RESNET, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": HEADS}
DEFORMABLE |= {"decoder_attention_heads": HEADS, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 5}
DEFORMABLE |= {"num_feature_levels": 3, **LABELS}
DEPTH = VISION | {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8]}
DEPTH |= {"fusion_hidden_size": 8, "is_hybrid": False, "reassemble_factors": [4, 2, 1, 0.5]}
SAM = {"vision_config": {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
                         "patch_size": 8, "output_channels": 16, "num_pos_feats": 8, "mlp_dim": 32, "window_size": 2,
                         "global_attn_indexes": [0]},
       "prompt_encoder_config": {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4,
                                 "image_embedding_size": 4},
       "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
                               "iou_head_hidden_dim": 16}}  # fmt: skip
LINEAR = LANGUAGE | PLAIN_HEADS | EXPERTS | {"layer_types": ["linear_attention", "full_attention"]}
LINEAR |= {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
LINEAR |= {"linear_value_head_dim": 8, "linear_conv_kernel_dim": 2}
HYBRID = LANGUAGE | EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4}
HYBRID |= {"use_mamba_kernels": False, "expert_layer_period": 2, "expert_layer_offset": 1}

MORE = [
    other("mamba2", hf("Mamba2ForCausalLM", num_heads=4, head_dim=16, n_groups=1, expand=2, chunk_size=8, **STATE),
          readout="last", logits=last_logits),
    other("falcon_mamba", hf("FalconMambaForCausalLM", **STATE), readout="last", logits=last_logits),
    other("rwkv", hf("RwkvForCausalLM", attention_hidden_size=WIDTH, context_length=64, **STATE), readout="last",
          logits=last_logits),
    other("jamba", hf("JambaForCausalLM", **HYBRID), readout="last", logits=last_logits),
    other("qwen3_next", hf("Qwen3NextForCausalLM", **LINEAR), readout="last", logits=last_logits),
    other("fnet", hf("FNetForSequenceClassification", use_tpu_fourier_optimizations=False, **ENCODER),
          lambda: {"input_ids": text()["input_ids"]}),
    other("nystromformer", hf("NystromformerForSequenceClassification", num_landmarks=2, segment_means_seq_len=10,
                              conv_kernel_size=3, **ENCODER),
          lambda: {"input_ids": text()["input_ids"]}),
    other("patchtst", hf("PatchTSTForClassification", **SERIES), steps,
          logits=lambda output: output.prediction_logits),
    other("timesformer", hf("TimesformerForVideoClassification", **VIDEO), frames),
    other("vjepa2", hf("VJEPA2ForVideoClassification", crop_size=16, frames_per_clip=4, tubelet_size=2,
                       num_pooler_layers=1, pred_hidden_size=WIDTH, pred_num_attention_heads=HEADS,
                       pred_num_hidden_layers=1, **(VISION | LABELS)),
          lambda: {"pixel_values_videos": frames()["pixel_values"]}),
    other("timesfm", hf("TimesFmModelForPrediction", **FORECAST), lambda: {"past_values": randn(BATCH, 32, seed=2)},
          readout="last", logits=lambda output: output.mean_predictions),
    causal("hunyuan_moe", "HunYuanMoEV1", num_experts=4, moe_topk=1, **PLAIN_HEADS),
    many("deformable_detr", hf("DeformableDetrForObjectDetection", **DEFORMABLE), large_picture),
    many("bert_tokens", hf("BertForTokenClassification", **ENCODER), text),
    many("bert_question", hf("BertForQuestionAnswering", **(ENCODER | {"num_labels": 2})), text),
    many("bert_masked", hf("BertForMaskedLM", mask_token_id=4, **ENCODER), masked),
    many("bert_choice", hf("BertForMultipleChoice", **ENCODER), choices),
    many("electra_discriminator", hf("ElectraForPreTraining", **ENCODER), text),
    many("wav2vec2_ctc", hf("Wav2Vec2ForCTC", **SOUND), wave),
    many("segformer_segmentation", hf("SegformerForSemanticSegmentation", decoder_hidden_size=16, **STAGES), pixels),
    many("depth", hf("DPTForDepthEstimation", **DEPTH), pixels),
    many("sam", hf("SamModel", **SAM), lambda: {"pixel_values": image(), "input_points": randn(BATCH, 1, 1, 2).abs()}),
    many("patchtst_forecast", hf("PatchTSTForPrediction", prediction_length=5, **SERIES), steps),
    many("bert_headless", hf("BertModel", **ENCODER), text),
    many("vit_headless", hf("ViTModel", **VISION), pixels),
    many("yolos", hf("YolosForObjectDetection", num_detection_tokens=5, **(VISION | LABELS | {"image_size": [32, 32]})),
         pixels),
    hf_case("wavlm", hf("WavLMForSequenceClassification", **SOUND), wave, implementations=(None,), readout="mean"),
    causal("mixtral_window", "Mixtral", sliding_window=6, **EXPERTS),
    hf_case("xlm_roberta", hf("XLMRobertaForSequenceClassification", pad_token_id=1, **ENCODER), partial(text, pad=1)),
    hf_case("mobilebert", hf("MobileBertForSequenceClassification", embedding_size=16, intra_bottleneck_size=WIDTH,
                             true_hidden_size=WIDTH, num_feedforward_networks=1, **ENCODER), text,
            implementations=("eager",)),
    hf_case("convnext", hf("ConvNextForImageClassification", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1],
                           **LABELS), pixels, implementations=(None,), self_only=False),
    hf_case("gpt2_classes", hf("GPT2ForSequenceClassification", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                               vocab_size=VOCAB, **CONTROL, **LABELS), text, readout="last"),
    hf_case("gemma2_classes", hf("Gemma2ForSequenceClassification", **LANGUAGE, **PLAIN_HEADS), text, readout="last",
            implementations=("eager",)),
    hf_case("mixtral_classes", hf("MixtralForSequenceClassification", **LANGUAGE, **EXPERTS), text, readout="last"),
]  # fmt: skip


def group_of(case: Case) -> str:
    inputs = case.inputs()
    if case.units == "several":
        return "several streams"
    if isinstance(inputs, tuple):
        return "columns" if case.units == "columns" else "torch.nn and home-made"
    if "past_values" in inputs:
        return "series"
    names = set(inputs)
    if len(names & {"input_ids", "pixel_values", "decoder_input_ids"}) > 1:
        return "several streams"
    if "input_ids" in names:
        return "language models" if case.logits is last_logits else "texts"
    if names & {"input_values", "input_features"}:
        return "sound"
    return "video" if inputs.get("pixel_values_videos", inputs.get("pixel_values")).ndim == 5 else "images"


def _kinds() -> dict[str, Kind]:
    cases = [*CASES.values(), *OTHERS.values(), *UNUSUAL.values(), *REFUSED.values(), *WITHOUT_ATTENTION.values()]
    cases += [*LEAKY.values(), *MORE]
    kinds = {}
    for case in cases:
        rows, entrance = ROWS.get(case.name, case.readout), ENTRANCES.get(case.name, "")
        rowwise = case.logits is not None and case.name not in {"clip", "siglip", "detr"}
        cut = case.name not in {"convbert", "yoso"}
        kinds[case.name] = Kind(case.name, group_of(case), case, rows, entrance, cut, rowwise)
    return kinds


KINDS = _kinds()
