"""Processors of the test models, built offline: a word-level tokenizer and image processors without torchvision."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

WORDS = "[PAD] [BOS] [EOS] [UNK] [MASK] a cat on the mat dog photo of what is this two birds".split()
SIDE = {"height": 32, "width": 32}


@cache
def tokenizer(eos: int = 2, masked: bool = True, **more: int) -> Any:
    """``more``: further tokens and their ids; masked=False: a tokenizer that gives no mask, as SigLIP's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: eos if word == "[EOS]" else i for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary | more, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", eos)])
    names = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    names |= {"mask_token": "[MASK]"}
    inputs = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=64 if masked else 16,
        model_input_names=inputs,
        extra_special_tokens=list(more),
        **names,
    )


PLACES = "[PAD] [CLS] [SEP] [UNK] [MASK] where who is anna bob ben lives in paris rome and works .".split()


@cache
def pair_tokenizer() -> Any:
    """Texts and pairs as BERT has them, with token types."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(PLACES)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )


def picture(height: int = 40, width: int = 60) -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8))


def clip() -> Any:
    from transformers import CLIPProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SIDE), tokenizer(99))


def siglip() -> Any:
    from transformers import SiglipProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return SiglipProcessor(SiglipImageProcessorPil(size=SIDE), tokenizer(masked=False))


def vilt() -> Any:
    from transformers import ViltProcessor
    from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

    return ViltProcessor(ViltImageProcessorPil(size={"shortest_edge": 32}, size_divisor=8), tokenizer())


def blip() -> Any:
    from transformers import BlipProcessor
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    return BlipProcessor(BlipImageProcessorPil(size=SIDE), tokenizer())


def llava() -> Any:
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SIDE)
    words = tokenizer(**{"<image>": 99})
    return LlavaProcessor(
        images, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        image_token="<image>",
    )  # fmt: skip


def llava_next() -> Any:
    from transformers import LlavaNextProcessor
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=SIDE, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]
    )
    return LlavaNextProcessor(
        images, tokenizer(**{"<image>": 99}), patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<image>",
    )  # fmt: skip


def blip2() -> Any:
    from transformers import Blip2Processor
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    return Blip2Processor(BlipImageProcessorPil(size=SIDE), tokenizer(**{"<image>": 99}), num_query_tokens=5)


class Qwen:
    """What Qwen2-VL's processor does; its own cannot be built without torchvision, for videos."""

    def __init__(self) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        size = {"shortest_edge": 8 * 8 * 4, "longest_edge": 8 * 8 * 8}
        self.image_processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
        self.image_token = "<|image_pad|>"
        self.tokenizer = tokenizer(**{self.image_token: 99})

    def __call__(self, images: Any, text: list[str], **how: Any) -> dict[str, Any]:
        seen = self.image_processor(images=images, return_tensors="pt")
        counts = (seen["image_grid_thw"].prod(1) // 4).tolist()
        marked = [t.replace(self.image_token, f" {self.image_token} " * n) for t, n in zip(text, counts, strict=True)]
        words = self.tokenizer(marked, **how)
        return {**words, **seen, "mm_token_type_ids": (words["input_ids"] == 99).int()}


def detr(shortest: int = 32) -> Any:
    """A picture of 40 x 60 has 24 patches by 32, and 6 by 16: a greedy search asks about every pair of them."""
    from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

    return DetrImageProcessorPil(size={"shortest_edge": shortest, "longest_edge": 64})


def vit() -> Any:
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(size=SIDE)


def wav2vec2() -> Any:
    from transformers import Wav2Vec2FeatureExtractor

    return Wav2Vec2FeatureExtractor(return_attention_mask=True)


def whisper() -> Any:
    """24 columns of 8 bands, as the test model takes them."""
    from transformers import WhisperFeatureExtractor

    class Processor:
        feature_extractor = WhisperFeatureExtractor(feature_size=8, hop_length=666, chunk_length=1)
        tokenizer = tokenizer()

    return Processor()
