"""Images with text, objects in images, and sound."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.case import BATCH, CLASSES, LAYERS, WIDTH, Inputs, numbered, randint, randn, reported, spied
from tests.models.hf import (
    CONTROL,
    EAGER,
    ENCODER,
    ENCODER_DECODER,
    VOCAB,
    encoder_decoder,
    final_logits,
    hf,
    hf_case,
    image,
    text,
)
from tests.models.torch_nn import asked_again

TOWER = {key: value for key, value in ENCODER.items() if key != "num_labels"}
EOS = VOCAB - 1
TWO_TOWERS = {
    "text_config": TOWER | {"max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": EOS},
    "vision_config": {key: value for key, value in TOWER.items() if key != "vocab_size"}
    | {"image_size": 32, "patch_size": 8},
}
LXMERT = {key: value for key, value in TOWER.items() if key != "num_hidden_layers"}
LXMERT |= {"l_layers": 2, "r_layers": 1, "x_layers": 2, "visual_feat_dim": 16, "num_qa_labels": CLASSES}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2"]}
DETR = {key: value for key, value in ENCODER_DECODER.items() if key != "vocab_size"}
DETR |= {"backbone_config": RESNET, "num_queries": 6, "num_labels": CLASSES}
WHISPER = ENCODER_DECODER | {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16}
WHISPER |= CONTROL | {"decoder_start_token_id": 3}
WAV2VEC2 = ENCODER | {"conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [8, 4]}
WAV2VEC2 |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"}
WAV2VEC2 |= {"classifier_proj_size": 16}


def caption_and_image() -> Inputs:
    return text(eos=EOS, high=EOS) | {"pixel_values": image()}


def padded_caption_and_image() -> Inputs:
    """SigLIP's processor gives no mask: its text tower attends to padding and reads its last position."""
    return {"input_ids": text(pad=1)["input_ids"], "pixel_values": image()}


def question_and_image() -> Inputs:
    return text() | {"pixel_values": image()}


def question_and_regions() -> Inputs:
    return text() | {
        "visual_feats": randn(BATCH, 6, 16, seed=4),
        "visual_pos": randn(BATCH, 6, 4, seed=5).sigmoid(),
    }


def question_and_visual_tokens() -> Inputs:
    return text() | {
        "visual_embeds": randn(BATCH, 6, 16, seed=4),
        "visual_token_type_ids": torch.ones(BATCH, 6, dtype=torch.long),
        "visual_attention_mask": torch.ones(BATCH, 6),
    }


def picture() -> Inputs:
    return {"pixel_values": image(16, 40)}


def spectrogram() -> Inputs:
    return {
        "input_features": randn(BATCH, WHISPER["num_mel_bins"], 24, seed=9),
        "decoder_input_ids": randint(5, VOCAB, BATCH, 6, seed=3),
    }


def waveform() -> Inputs:
    real = torch.arange(200) < torch.tensor([200, 150])[:, None]
    return {"input_values": randn(BATCH, 200, seed=10) * real, "attention_mask": real.long()}


def towers(output: Any) -> chain[Tensor]:
    return chain(output.vision_model_output.attentions, output.text_model_output.attentions)


@torch.no_grad()
def pooled_towers(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """SigLIP: vision tower, its attention pooling (an nn.MultiheadAttention), text tower."""
    own = reported(towers, output_attentions=True)(model, inputs)
    maps = list(own.values())
    return numbered([*maps[:LAYERS], *asked_again(model, inputs).values(), *maps[LAYERS:]])


def per_image(output: Any) -> Tensor:
    return output.logits_per_image


SEVERAL: dict[str, Any] = {"self_only": False, "units": "several"}

CASES = [
    hf_case("clip", hf("CLIPModel", projection_dim=WIDTH, **TWO_TOWERS), caption_and_image, sites=2 * LAYERS,
            attention=reported(towers, output_attentions=True), readout=None, logits=per_image, **SEVERAL),
    hf_case("siglip", hf("SiglipModel", gain=2.0, **TWO_TOWERS), padded_caption_and_image, sites=2 * LAYERS + 1,
            attention=pooled_towers, readout=None, logits=per_image, **SEVERAL),
    # Shuffles its patches at random on every call: `run` fixes the seed.
    hf_case("vilt", hf("ViltForQuestionAnswering", image_size=32, patch_size=8, **ENCODER), question_and_image,
            implementations=EAGER, units="several"),
    hf_case("visual_bert", hf("VisualBertForQuestionAnswering", visual_embedding_dim=16, **ENCODER),
            question_and_visual_tokens, implementations=EAGER, units="several", readout="before_last"),
    # Its own output leaves out half the cross-attention, and the cross layers' self-attention.
    hf_case("lxmert", hf("LxmertForQuestionAnswering", gain=2.2, **LXMERT), question_and_regions, attention=spied,
            sites=2 + 1 + 2 * 4, implementations=EAGER, logits=lambda output: output.question_answering_score,
            **SEVERAL),
    # The head here is that of the first object query.
    hf_case("detr", hf("DetrForObjectDetection", gain=1.6, parts=False, **DETR), picture, attention=encoder_decoder,
            sites=3 * LAYERS, logits=lambda output: output.logits[:, 0], **SEVERAL),
    hf_case("whisper", hf("WhisperForConditionalGeneration", **WHISPER), spectrogram, attention=encoder_decoder,
            sites=3 * LAYERS, readout=-1, logits=final_logits, **SEVERAL),
    hf_case("wav2vec2", hf("Wav2Vec2ForSequenceClassification", **WAV2VEC2), waveform, readout="mean"),
]  # fmt: skip
