"""Vision-language models: a language model that reads images among its tokens. Built small, with random weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.case import HEADS, LAYERS, WIDTH, randint, randn
from tests.models.hf import CONTROL, hf
from tests.models.multimodal import IMAGE_TOKEN, LLAVA, QWEN2_5_VL, QWEN2_VL, QWEN_TOKENS, QWEN_VISION, ROTARY
from tests.support.released import media_types

VIDEO_TOKEN = QWEN_TOKENS["video_token_id"]

SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 64}
TEXT = SIZES | CONTROL | {"vocab_size": 100, "num_key_value_heads": 2}
HEAD = {"head_dim": 8}
VISION = SIZES | {"image_size": 32, "patch_size": 8}
SIGLIP = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
QWEN3_VISION = QWEN_VISION | {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 64}
QWEN3_VISION |= {"num_position_embeddings": 64}
LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
LINEAR |= {"linear_conv_kernel_dim": 2, "layer_types": ["linear_attention", "full_attention"]}
SHUFFLED = {"text_config": TEXT | {"model_type": "llama"}, "image_token_id": IMAGE_TOKEN, "scale_factor": 2}
MARKS = {"image_token_id": IMAGE_TOKEN, "video_token_id": VIDEO_TOKEN, "boi_token_id": 97, "eoi_token_id": 96}
GEMMA4_VISION = SIZES | HEAD | {"num_key_value_heads": HEADS, "patch_size": 4, "pooling_kernel_size": 2}
GEMMA4_VISION |= {"position_embedding_size": 64}
GEMMA4_TEXT = TEXT | HEAD | {"model_type": "gemma4_text", "global_head_dim": 8, "num_global_key_value_heads": 2}
GEMMA4_TEXT |= {"sliding_window": 16, "hidden_size_per_layer_input": 0}
GEMMA4_TEXT |= {"layer_types": ["sliding_attention", "full_attention"]}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("Llava", LLAVA),
    "qwen2_vl": ("Qwen2VL", QWEN2_VL),
    "qwen2_5_vl": ("Qwen2_5_VL", QWEN2_5_VL),
    # Features of an early vision layer are added to the image tokens after the first layer of the language model.
    "qwen3_vl": ("Qwen3VL", QWEN_TOKENS | {
        "text_config": TEXT | HEAD | {"model_type": "qwen3_vl_text", "rope_scaling": ROTARY},
        "vision_config": QWEN3_VISION | {"deepstack_visual_indexes": [0]}}),
    "qwen3_5": ("Qwen3_5", QWEN_TOKENS | {
        "text_config": TEXT | HEAD | LINEAR | {"model_type": "qwen3_5_text", "rope_scaling": ROTARY},
        "vision_config": QWEN3_VISION}),
    # Until transformers 5.20, the tokens of an image have to be a multiple of its patch size.
    "smolvlm": ("SmolVLM", SHUFFLED | {
        "scale_factor": 4, "vision_config": VISION | {"model_type": "smolvlm_vision", "patch_size": 4}}),
    "idefics3": ("Idefics3", SHUFFLED | {"vision_config": VISION | {"model_type": "idefics3_vision"}}),
    "paligemma": ("PaliGemma", {
        "text_config": TEXT | HEAD | {"model_type": "gemma"}, "vision_config": SIGLIP | {"projection_dim": WIDTH},
        "image_token_index": IMAGE_TOKEN, "projection_dim": WIDTH, "hidden_size": WIDTH}),
    "internvl": ("InternVL", {
        "text_config": TEXT | {"model_type": "qwen2"}, "image_token_id": IMAGE_TOKEN, "image_seq_length": 4,
        "vision_config": VISION | {"model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]}}),
    "gemma3": ("Gemma3", {
        "text_config": TEXT | HEAD | {"model_type": "gemma3_text", "sliding_window": 16}, "vision_config": SIGLIP,
        "image_token_index": IMAGE_TOKEN, "boi_token_index": 97, "eoi_token_index": 96, "mm_tokens_per_image": 4}),
    "gemma4": ("Gemma4", MARKS | {
        "text_config": GEMMA4_TEXT, "vision_config": GEMMA4_VISION, "audio_config": None}),
}  # fmt: skip
NAMES = list(CONFIGS)
RECURRENT = {"qwen3_5"}  # positions exchange information outside of attention


@cache
def vision_language_model(name: str, attn: str = "sdpa") -> nn.Module:
    family, config = CONFIGS[name]
    return hf(f"{family}ForConditionalGeneration", **config)(attn)


def prompt(name: str = "", length: int = 7) -> dict[str, Tensor]:
    """A prompt without images. PaliGemma's processor gives types; without them, its two attentions disagree."""
    ids = randint(5, 95, 1, length, seed=1)
    return {"input_ids": ids} | ({"token_type_ids": torch.zeros_like(ids)} if name == "paligemma" else {})


PACKED = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}
DENSE = {"llava": 16, "smolvlm": 4, "idefics3": 4, "paligemma": 16, "internvl": 4, "gemma3": 4}  # tokens per image
GRID = (2, 3)  # of the tokens of a packed image, and of Gemma 4's


def tokens_per_image(name: str) -> int:
    return DENSE.get(name, GRID[0] * GRID[1])


def pixels(name: str, images: int = 1) -> dict[str, Tensor]:
    """Images as the model takes them; of tokens of 8 × 8 pixels, or of 16 × 16 where patches are merged."""
    if name in PACKED:
        sizes = torch.tensor([[1, 2 * GRID[0], 2 * GRID[1]]] * images)
        return {"pixel_values": randn(24 * images, 3 * 2 * 4 * 4, seed=2), "image_grid_thw": sizes}
    if name == "gemma4":
        rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
        places = torch.stack([columns.flatten(), rows.flatten()], 1)
        return {
            "pixel_values": randn(images, 24, 48, seed=2).sigmoid(),
            "image_position_ids": places.expand(images, -1, -1),
        }
    dense = randn(images, 3, 32, 32, seed=2)
    return {"pixel_values": dense[None] if name in {"smolvlm", "idefics3"} else dense}


def with_images(name: str, images: int = 1) -> dict[str, Tensor]:
    """A prompt with the places of images in it, and the images."""
    words = prompt()["input_ids"]
    held = torch.full((1, tokens_per_image(name)), IMAGE_TOKEN)
    parts = [words[:, :2], *[part for _ in range(images) for part in (held, words[:, 2:3])], words[:, 3:]]
    ids = torch.cat(parts, 1)
    is_image = (ids == IMAGE_TOKEN).long()
    types = {"gemma3": {"token_type_ids": is_image}, "paligemma": {"token_type_ids": torch.zeros_like(ids)}}
    marks = media_types(is_image) if name in PACKED | {"gemma4"} else types.get(name, {})
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **marks, **pixels(name, images)}


FRAMES = 2  # that the language model sees; Qwen's vision encoder has read two frames for each of them
IN_ONE_RUN = {"qwen2_vl", "qwen2_5_vl"}  # the others have the time of a frame written before it


def with_video(name: str, images: int = 0) -> dict[str, Tensor]:
    """A prompt with a video in it, behind images if any."""
    inputs = with_images(name, images) if images else prompt()
    words, frame = inputs["input_ids"], torch.full((1, tokens_per_image(name)), VIDEO_TOKEN)
    between = [] if name in IN_ONE_RUN else [torch.tensor([[33]])]
    ids = torch.cat([words[:, :-2], frame, *between, frame, words[:, -2:]], 1)
    types = media_types((ids == IMAGE_TOKEN).long() + 2 * (ids == VIDEO_TOKEN).long())
    video = {n.replace("image_", "video_"): t for n, t in pixels(name, FRAMES).items()}
    video["pixel_values_videos"] = video.pop("pixel_values").flip(0)  # other numbers than those of the images
    if name == "gemma4":
        video["num_frames_per_video"] = torch.tensor([FRAMES])
    else:
        video["video_grid_thw"] = torch.tensor([[FRAMES, 2 * GRID[0], 2 * GRID[1]]])
    if name == "qwen2_5_vl":
        video["second_per_grid_ts"] = torch.tensor([2.0])
    return inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids), **types, **video}
