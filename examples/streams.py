"""One picture per kind of model with several streams: image + text boxes, CLIP, detection, translation, sound.

    python examples/streams.py docs/images            # all of them
    python examples/streams.py docs/images boxes      # one

The models are built from small configurations with RANDOM weights, so that the script needs no download: the pictures
show what is drawn, not what a trained model would say. Put your own model and processor in their place. Trained models
are explained in examples/similarity.py (two texts) and examples/whisper.py (sound).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import whyformer as wf
from whyformer.views import side_by_side, view_of
from whyformer.views.several import steps_view

WORDS = (
    "[PAD] [EOS] [UNK] [MASK] what colour is the ball on left a red and blue box le ballon rouge est à gauche".split()
)
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
TOWER = SIZE | {"num_hidden_layers": 2}
NOTE = "random weights"


def tokenizer() -> Any:
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 1)])
    names = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **names)


def random_model(make: Any) -> Any:
    """Weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.3 / parameter[0].numel() ** 0.5)
    return model


def scene(height: int = 96, width: int = 128) -> Any:
    """A red ball on the left, a blue box on the right."""
    ys, xs = np.mgrid[:height, :width]
    pixels = np.full((height, width, 3), 235, np.uint8)
    pixels[ys > 0.75 * height] = (150, 190, 140)
    pixels[(ys - 0.6 * height) ** 2 + (xs - 0.28 * width) ** 2 < (0.18 * height) ** 2] = (200, 60, 50)
    pixels[(abs(ys - 0.58 * height) < 0.2 * height) & (abs(xs - 0.72 * width) < 0.13 * width)] = (60, 90, 190)
    return Image.fromarray(pixels)


def boxes() -> Any:
    """LXMERT: a question, and vectors of image regions that a detector would give."""
    config = hf.LxmertConfig(
        vocab_size=len(WORDS), l_layers=2, r_layers=1, x_layers=2, visual_feat_dim=8, num_qa_labels=3, **SIZE
    )
    model = random_model(lambda: hf.LxmertForQuestionAnswering(config))
    corners = [[0.14, 0.4, 0.42, 0.8], [0.58, 0.36, 0.86, 0.8], [0.0, 0.74, 1.0, 1.0], [0.0, 0.0, 1.0, 0.35]]
    regions = {
        "visual_feats": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32),
        "visual_pos": np.array(corners, np.float32),
    }
    explanation = wf.explain(model, (regions, "what colour is the ball on the left"), processor=tokenizer())
    return replace(explanation.view(scene(), most=8), title=f"LXMERT, {NOTE}")


def clip() -> Any:
    """CLIP: both sides of a similarity."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    side = {"height": 64, "width": 64}
    config = hf.CLIPConfig(
        text_config=TOWER | {"vocab_size": len(WORDS), "bos_token_id": 0, "eos_token_id": 1},
        vision_config=TOWER | {"image_size": 64, "patch_size": 8},
        projection_dim=32,
    )
    model = random_model(lambda: hf.CLIPModel(config))
    processor = hf.CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=side), tokenizer())
    explanation = wf.explain(model, (scene(96, 96), "a red ball and a blue box"), processor=processor, scalar="cosine")
    return view_of(explanation, image=scene(96, 96).resize((64, 64)), title=f"CLIP, {NOTE}", most=6)


def detection() -> Any:
    """DETR: one map per detected object."""
    from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = hf.DetrConfig(
        backbone_config=backbone, use_pretrained_backbone=False, d_model=32, num_queries=6, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        id2label={0: "ball", 1: "box"}, label2id={"ball": 0, "box": 1},
    )  # fmt: skip
    model = random_model(lambda: hf.DetrForObjectDetection(config))
    with torch.no_grad():
        model.class_labels_classifier.bias[-1] = -4  # untrained, it would say "no object" everywhere
    processor = DetrImageProcessorPil(size={"shortest_edge": 96, "longest_edge": 128})
    # Every detection above this probability. The default measures patches alone; this method scores queries, too.
    found = wf.explain(model, scene(), processor=processor, target=0.6, method="generic_attention")
    return side_by_side(found[:3], image=scene(), title=f"DETR, {NOTE}: {len(found)} detections above 0.6")


def translation() -> Any:
    """Marian: which words of the source each written word was read from."""
    config = hf.MarianConfig(
        vocab_size=len(WORDS), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, forced_eos_token_id=1,
    )  # fmt: skip
    model = random_model(lambda: hf.MarianMTModel(config))
    pair = ("the red ball is on the left", "le ballon rouge est à gauche")
    return replace(steps_view(wf.explain(model, pair, processor=tokenizer())), title=f"Marian, {NOTE}")


def sound() -> Any:
    """Wav2Vec2: which moments of a clip a class was heard in."""
    config = hf.Wav2Vec2Config(
        conv_dim=[16, 16, 16], conv_stride=[8, 8, 8], conv_kernel=[16, 8, 8], num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, feat_extract_norm="layer", classifier_proj_size=16, **TOWER,
        id2label={0: "silence", 1: "beep"}, label2id={"silence": 0, "beep": 1},
    )  # fmt: skip
    model = random_model(lambda: hf.Wav2Vec2ForSequenceClassification(config))
    times = np.arange(16000) / 16000
    clip = np.where((times > 0.4) & (times < 0.6), np.sin(2 * np.pi * 440 * times), 0).astype(np.float32)
    explanation = wf.explain(model, clip, processor=hf.Wav2Vec2FeatureExtractor(), target="beep")
    return view_of(explanation, title=f"Wav2Vec2, {NOTE}: a beep from 0.4 to 0.6 s", most=6)


KINDS = {"boxes": boxes, "clip": clip, "detection": detection, "translation": translation, "sound": sound}


def small(path: Path, width: int = 900, colours: int = 160) -> Path:
    """A picture that a repository can hold."""
    with Image.open(path) as image:
        height = round(image.height * width / image.width)
        image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS).quantize(colours).save(
            path, optimize=True
        )
    return path


def main(folder: Path, kinds: list[str]) -> None:
    for kind in kinds or KINDS:
        path = small(KINDS[kind]().save(folder / f"streams_{kind}.png"))
        print(path, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
