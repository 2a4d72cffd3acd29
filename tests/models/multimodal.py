"""Images with text, objects in images, and sound."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tests.models.case import BATCH, CLASSES, HEADS, LAYERS, WIDTH, Inputs, randint, randn, reported, spied
from tests.models.hf import (
    CONTROL,
    EAGER,
    ENCODER,
    ENCODER_DECODER,
    LENGTHS,
    VOCAB,
    encoder_decoder,
    final_logits,
    hf,
    hf_case,
    image,
    last_logits,
    text,
)
from tests.support.released import media_types

BLOCKS = {key: value for key, value in ENCODER.items() if key not in {"num_labels", "vocab_size"}}
TOWER = BLOCKS | {"vocab_size": VOCAB}
VISION = BLOCKS | {"image_size": 32, "patch_size": 8}
EOS = VOCAB - 1
TWO_TOWERS = {
    "text_config": TOWER | {"max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": EOS},
    "vision_config": VISION,
}
LXMERT = {key: value for key, value in TOWER.items() if key != "num_hidden_layers"}
LXMERT |= {"l_layers": 2, "r_layers": 1, "x_layers": 2, "visual_feat_dim": 16, "num_qa_labels": CLASSES}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2"]}
DETR = {key: value for key, value in ENCODER_DECODER.items() if key != "vocab_size"}
DETR |= {"backbone_config": RESNET, "num_queries": 6, "num_labels": CLASSES}
DETR |= {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}  # which transformers 4 needs
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


def per_image(output: Any) -> Tensor:
    return output.logits_per_image


SEVERAL: dict[str, Any] = {"self_only": False, "units": "several"}

CASES = [
    hf_case("clip", hf("CLIPModel", projection_dim=WIDTH, **TWO_TOWERS), caption_and_image, sites=2 * LAYERS,
            attention=reported(towers, output_attentions=True), readout=None, logits=per_image, **SEVERAL),
    # Vision tower, its attention pooling (an nn.MultiheadAttention, which its own output leaves out), text tower.
    hf_case("siglip", hf("SiglipModel", gain=2.0, **TWO_TOWERS), padded_caption_and_image, sites=2 * LAYERS + 1,
            attention=spied, readout=None, logits=per_image, **SEVERAL),
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
    hf_case("detr", hf("DetrForObjectDetection", gain=1.9, parts=False, **DETR), picture, attention=encoder_decoder,
            sites=3 * LAYERS, logits=lambda output: output.logits[:, 0], **SEVERAL),
    hf_case("whisper", hf("WhisperForConditionalGeneration", **WHISPER), spectrogram, attention=encoder_decoder,
            sites=3 * LAYERS, readout=-1, logits=final_logits, **SEVERAL),
    hf_case("wav2vec2", hf("Wav2Vec2ForSequenceClassification", **WAV2VEC2), waveform, readout="mean"),
]  # fmt: skip


# Models that look at an image while they read or write: cross-attention, image tokens in a language model.


BLIP_TEXT = TOWER | CONTROL | {"max_position_embeddings": 32, "encoder_hidden_size": WIDTH, "sep_token_id": 2}
BLIP = {
    "text_config": BLIP_TEXT,
    "vision_config": VISION,
    "projection_dim": WIDTH,
    "image_text_hidden_size": WIDTH,
}
LLAMA = TOWER | CONTROL | {"model_type": "llama", "num_key_value_heads": 2}
IMAGE_TOKEN = 99
LLAVA = {
    "text_config": LLAMA,
    "vision_config": VISION | {"model_type": "clip_vision_model", "projection_dim": WIDTH},
    "image_token_index": IMAGE_TOKEN,
    "vision_feature_layer": -1,
    "image_seq_length": 16,
}
LLAVA_NEXT = LLAVA | {"image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]}
QUERIES = 5
BLIP2 = {
    "vision_config": VISION,
    "qformer_config": TOWER | {"encoder_hidden_size": WIDTH, "cross_attention_frequency": 1},
    "text_config": LLAMA,
    "num_query_tokens": QUERIES,
    "image_token_index": IMAGE_TOKEN,
}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN_TEXT = TOWER | CONTROL | {"num_key_value_heads": 2, "rope_scaling": ROTARY}
QWEN_TOKENS = {"image_token_id": IMAGE_TOKEN, "video_token_id": 98, "vision_start_token_id": 97}
QWEN_TOKENS |= {"vision_end_token_id": 96}
QWEN_VISION = {"depth": LAYERS, "num_heads": HEADS, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN2_VL = {
    "text_config": QWEN_TEXT | {"model_type": "qwen2_vl_text"},
    "vision_config": QWEN_VISION | {"embed_dim": WIDTH, "hidden_size": WIDTH, "mlp_ratio": 2},
} | QWEN_TOKENS
QWEN2_5_VL = {
    "text_config": QWEN_TEXT | {"model_type": "qwen2_5_vl_text"},
    "vision_config": QWEN_VISION
    | {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "window_size": 16}
    | {"fullatt_block_indexes": [1]},
} | QWEN_TOKENS
# What they have in common: positions of image and text, and attention between them.
TWO_STREAMS: dict[str, Any] = SEVERAL | {"attention": spied, "readout": None}


def question_picture_and_answer() -> Inputs:
    return question_and_image() | {"decoder_input_ids": randint(5, VOCAB, BATCH, 3, seed=3)}


def prompt_with_image_tokens(tokens: int = 16) -> dict[str, Tensor]:
    """Text around the places of the image, the second row shorter and padded on the right."""
    short = text(high=95)
    ids, mask = short["input_ids"], short["attention_mask"]
    places = torch.full((BATCH, tokens), IMAGE_TOKEN)
    return {
        "input_ids": torch.cat([ids[:, :2], places, ids[:, 2:]], 1),
        "attention_mask": torch.cat([mask[:, :2], torch.ones_like(places), mask[:, 2:]], 1),
    }


def llava_inputs() -> Inputs:
    return prompt_with_image_tokens() | {"pixel_values": image()}


def blip2_inputs() -> Inputs:
    return prompt_with_image_tokens(QUERIES) | {"pixel_values": image()}


def tiled_inputs() -> Inputs:
    """Two images of 32 × 64: the whole in 4 × 4 tokens, then two tiles in 4 lines of 8 tokens, each with its end."""
    return prompt_with_image_tokens(16 + 4 * 9) | {
        "pixel_values": randn(BATCH, 3, 3, 32, 32, seed=2),
        "image_sizes": torch.tensor([[32, 64]] * BATCH),
    }


def packed_inputs() -> Inputs:
    """Two images of 4 × 6 and 4 × 6 patches in one row of patches, two by two of them one token."""
    prompt = prompt_with_image_tokens(6)
    grid = torch.tensor([[1, 4, 6]] * BATCH)
    return prompt | {
        "pixel_values": randn(int(grid.prod(1).sum()), 3 * 2 * 4 * 4, seed=2),
        "image_grid_thw": grid,
        **media_types((prompt["input_ids"] == IMAGE_TOKEN).int()),
    }


def behind(output: Any, tokens: int) -> Tensor:
    """Logits at the last real token, which stands behind those of the image."""
    rows = output.logits
    return rows[torch.arange(len(rows)), torch.tensor(LENGTHS[: len(rows)]) + tokens - 1]


CASES += [
    hf_case("blip_retrieval", hf("BlipForImageTextRetrieval", **BLIP), question_and_image, implementations=EAGER,
            sites=3 * LAYERS, logits=lambda output: output.itm_score, **TWO_STREAMS),
    hf_case("blip_caption", hf("BlipForConditionalGeneration", **BLIP), question_and_image, implementations=EAGER,
            sites=3 * LAYERS, logits=last_logits, **TWO_STREAMS),
    hf_case("llava", hf("LlavaForConditionalGeneration", **LLAVA), llava_inputs, sites=2 * LAYERS,
            logits=partial(behind, tokens=16), **TWO_STREAMS),
    # Queries of its own read the image; what they found stands among the tokens of the text.
    hf_case("blip2", hf("Blip2ForConditionalGeneration", **BLIP2), blip2_inputs, sites=4 * LAYERS,
            logits=partial(behind, tokens=QUERIES), **TWO_STREAMS),
]  # fmt: skip

# Inputs or outputs that are not one row per input: these have tests of their own.
unusual = partial(hf_case, sites=2 * LAYERS, logits=None, **TWO_STREAMS)
UNUSUAL = [
    # Its output has no logits: they stay inside the answer's decoder.
    unusual("blip_vqa", hf("BlipForQuestionAnswering", **BLIP), question_picture_and_answer, implementations=EAGER,
            sites=5 * LAYERS),
    # The tiles of an image go through the vision tower as a batch of their own.
    unusual("llava_next", hf("LlavaNextForConditionalGeneration", **LLAVA_NEXT), tiled_inputs),
    unusual("qwen2_vl", hf("Qwen2VLForConditionalGeneration", **QWEN2_VL), packed_inputs),
    unusual("qwen2_5_vl", hf("Qwen2_5_VLForConditionalGeneration", **QWEN2_5_VL), packed_inputs),
]  # fmt: skip
