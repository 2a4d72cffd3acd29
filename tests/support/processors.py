"""Processors of the test models, built offline: a word-level tokenizer and image processors without torchvision."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.support.released import BEFORE_FIVE, media_types, released
from tests.support.sharing import shared_tokenizer

WORDS = "[PAD] [BOS] [EOS] [UNK] [MASK] a cat on the mat dog photo of what is this two birds".split()
SIDE = {"height": 32, "width": 32}


def word_level(
    vocabulary: dict[str, int], split: str = "WhitespaceSplit", around: dict[str, Any] | None = None, **options: Any
) -> Any:
    """A token for each word; ``around``: the special tokens that are put around a text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    unknown = next(word for word in ("[UNK]", "<unk>") if word in vocabulary)
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    made.pre_tokenizer = getattr(pre_tokenizers, split)()
    made.normalizer = normalizers.BertNormalizer(lowercase=False)  # BLIP's processor loads a tokenizer that has one
    if around is not None:
        made.post_processor = processors.TemplateProcessing(**around)
    inputs = options.pop("model_input_names", ["input_ids", "attention_mask"])
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **options)


def in_bytes(**names: str) -> Any:
    """A tokenizer of bytes: characters beyond ASCII are several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, pad_token=letters[0], **names)


@shared_tokenizer
def tokenizer(eos: int = 2, masked: bool = True, **more: int) -> Any:
    """``more``: further tokens and their ids; masked=False: a tokenizer that gives no mask, as SigLIP's."""
    vocabulary = {word: eos if word == "[EOS]" else i for i, word in enumerate(WORDS)}
    around = {"single": "$A [EOS]", "special_tokens": [("[EOS]", eos)]}
    names: dict[str, Any] = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "bos", "eos", "unk", "mask")}
    given = {} if masked else {"model_input_names": ["input_ids"]}
    length = 64 if masked else 16
    names["additional_special_tokens"] = list(more)
    return word_level(vocabulary | more, around=around, model_max_length=length, **given, **names)


PLACES = "[PAD] [CLS] [SEP] [UNK] [MASK] where who is anna bob ben lives in paris rome and works .".split()


@shared_tokenizer
def pair_tokenizer() -> Any:
    """Texts and pairs as BERT has them, with token types."""
    around = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    around |= {"special_tokens": [("[CLS]", 1), ("[SEP]", 2)]}
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    given = ["input_ids", "token_type_ids", "attention_mask"]
    return word_level({word: i for i, word in enumerate(PLACES)}, around=around, model_input_names=given, **names)


def picture(height: int = 40, width: int = 60) -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8))


def pil(family: str, name: str, **sizes: Any) -> Any:
    """An image processor that needs no torchvision: of a class of its own since transformers 5."""
    file, kind = ("image_processing", "") if BEFORE_FIVE else ("image_processing_pil", "Pil")
    module = import_module(f"transformers.models.{family}.{file}_{family}")
    return getattr(module, f"{name}ImageProcessor{kind}")(**sizes)


def of_transformers(name: str, *parts: Any, **options: Any) -> Any:
    kind = released(name)
    if not hasattr(kind, "check_argument_for_proper_class"):
        return kind(*parts, **options)
    with patch.object(kind, "check_argument_for_proper_class"):  # transformers 4 takes the family's own tokenizers only
        return kind(*parts, **options)


IMAGE = {"<image>": 99}
PATCHES = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
PATCHES |= {"image_token": "<image>"}
SHORTEST = {"size": {"shortest_edge": 32}}


def clip() -> Any:
    return of_transformers("CLIPProcessor", pil("clip", "CLIP", crop_size=SIDE, **SHORTEST), tokenizer(99))


def siglip() -> Any:
    return of_transformers("SiglipProcessor", pil("siglip", "Siglip", size=SIDE), tokenizer(masked=False))


def vilt() -> Any:
    return of_transformers("ViltProcessor", pil("vilt", "Vilt", size_divisor=8, **SHORTEST), tokenizer())


def blip() -> Any:
    return of_transformers("BlipProcessor", pil("blip", "Blip", size=SIDE), tokenizer())


def llava() -> Any:
    images = pil("clip", "CLIP", crop_size=SIDE, **SHORTEST)
    return of_transformers("LlavaProcessor", images, tokenizer(**IMAGE), **PATCHES)


def llava_next() -> Any:
    tiles = [[32, 64], [64, 32], [64, 64]]
    images = pil("llava_next", "LlavaNext", crop_size=SIDE, image_grid_pinpoints=tiles, **SHORTEST)
    return of_transformers("LlavaNextProcessor", images, tokenizer(**IMAGE), **PATCHES)


def blip2() -> Any:
    images = pil("blip", "Blip", size=SIDE)
    return of_transformers("Blip2Processor", images, tokenizer(**IMAGE), num_query_tokens=5)


class Qwen:
    """What Qwen2-VL's processor does; its own cannot be built without torchvision, for videos."""

    def __init__(self) -> None:
        size = {"shortest_edge": 8 * 8 * 4, "longest_edge": 8 * 8 * 8}
        self.image_processor = pil("qwen2_vl", "Qwen2VL", patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
        self.image_token = "<|image_pad|>"
        self.tokenizer = tokenizer(**{self.image_token: 99})

    def __call__(self, images: Any, text: list[str], **how: Any) -> dict[str, Any]:
        seen = self.image_processor(images=images, return_tensors="pt")
        counts = (seen["image_grid_thw"].prod(1) // 4).tolist()
        marked = [t.replace(self.image_token, f" {self.image_token} " * n) for t, n in zip(text, counts, strict=True)]
        words = self.tokenizer(marked, **how)
        return {**words, **seen, **media_types((words["input_ids"] == 99).int())}


class QwenVideos(Qwen):
    """With videos: what Qwen2-VL's video processor does with frames of 16 x 24 pixels, without resizing them."""

    def __init__(self) -> None:
        super().__init__()
        self.video_processor, self.video_token = self._patches, "<|video_pad|>"
        around = {"<|vision_start|>": 97, "<|vision_end|>": 96}
        self.tokenizer = tokenizer(**{self.image_token: 99, self.video_token: 98}, **around)

    def _patches(self, videos: Any) -> dict[str, Any]:
        import torch

        packed, sizes = [], []
        for video in videos:
            frames = torch.as_tensor(np.asarray(video)).permute(0, 3, 1, 2) / 255 - 0.5
            times, _, high, wide = (n // size for n, size in zip(frames.shape, (2, 1, 8, 8), strict=True))
            split = frames.reshape(times, 2, 3, high, 2, 4, wide, 2, 4)
            packed.append(split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * 2 * 4 * 4))
            sizes.append([times, 2 * high, 2 * wide])
        return {"pixel_values_videos": torch.cat(packed), "video_grid_thw": torch.tensor(sizes)}

    def __call__(self, text: list[str], videos: Any, **how: Any) -> dict[str, Any]:  # type: ignore[override]
        seen = self._patches([video for one in videos for video in one])
        counts = iter((seen["video_grid_thw"].prod(1) // 4).tolist())
        first, *rest = text[0].split(self.video_token)
        marked = first + "".join(f" {self.video_token} " * next(counts) + part for part in rest)
        words = self.tokenizer([marked], **how)
        return {**words, **seen, **media_types(2 * (words["input_ids"] == 98).int())}


def detr(shortest: int = 32) -> Any:
    """A picture of 40 x 60 has 24 patches by 32, and 6 by 16: a greedy search asks about every pair of them."""
    return pil("detr", "Detr", size={"shortest_edge": shortest, "longest_edge": 64})


def vit() -> Any:
    return pil("vit", "ViT", size=SIDE)


def wav2vec2() -> Any:
    return of_transformers("Wav2Vec2FeatureExtractor", return_attention_mask=True)


def whisper() -> Any:
    """24 columns of 8 bands, as the test model takes them."""
    reads = of_transformers("WhisperFeatureExtractor", feature_size=8, hop_length=666, chunk_length=1)
    return SimpleNamespace(feature_extractor=reads, tokenizer=tokenizer())
