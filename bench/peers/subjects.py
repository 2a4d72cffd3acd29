"""Models and inputs that questions are asked about: shipped trained models, larger ones for time, and SmolLM2."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

SENTENCE = "The plot is thin but the cast is great"
PROMPT = "The manager of the hotel in Paris said that the capital of France is"
DOCUMENTS = (
    "The red tower was built in 1850. It stands near the old harbour.",
    "The weight of the red tower is 5670 tons. Many visitors come in summer.",
    "The blue bridge is 300 metres long. It was painted last year.",
)
ASKED = "What is the weight of the red tower?"
ANSWER = "The weight of the red tower is 5670 tons."
WORDS = {
    "sentence": "shipped BERT (4 layers, width 192), a sentence of 9 words",
    "larger, sentence": "BERT of 6 layers, width 384 (random weights), the same sentence",
    "picture": "shipped ViT (4 layers, 64 patches), a picture",
    "larger, picture": "ViT-B (12 layers, 196 patches, random weights), a picture",
    "prompt": "SmolLM2-135M-Instruct, the next token after 15 tokens",
    "documents": "SmolLM2-135M-Instruct, six sentences, a question and its answer",
}


class Subjects:
    """Return model and inputs by name, on a device; loaded when they are first needed."""

    def __init__(self, device: str, folder: Path | None) -> None:
        self.device, self.folder = device, folder
        self.loaded: dict[str, tuple[Any, ...]] = {}

    def __call__(self, name: str) -> tuple[Any, ...]:
        if name not in self.loaded:
            model, *others = {
                "sentence": sentence,
                "larger, sentence": larger_sentence,
                "picture": picture,
                "larger, picture": larger_picture,
                "prompt": lambda: (*smollm2(self.folder), PROMPT),
                "documents": lambda: (*smollm2(self.folder), ASKED, list(DOCUMENTS), ANSWER),
            }[name]()
            moved = (each.to(self.device) if isinstance(each, torch.Tensor) else each for each in others)
            self.loaded[name] = (model.to(self.device), *moved)
        return self.loaded[name]


def sentence() -> tuple[Any, ...]:
    from whyformer.demo import load_sentiment

    return (*load_sentiment(), SENTENCE)


def larger_sentence() -> tuple[Any, ...]:
    """BERT of the size of MiniLM with the shipped tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = sentence()[1]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536
    )
    return BertForSequenceClassification(config).eval(), tokenizer, SENTENCE


def picture() -> tuple[Any, ...]:
    from PIL import Image

    from whyformer.demo import load_textures
    from whyformer.demo.pictures import picture as drawn

    model, processor = load_textures()
    image = Image.fromarray(drawn("horse", "striped", seed=3))
    return model, processor(images=image, return_tensors="pt")["pixel_values"]


def larger_picture() -> tuple[Any, ...]:
    from bench.engine import vit

    model, inputs = vit("sdpa")
    return model, inputs(1)["pixel_values"]


@cache
def smollm2(folder: Path | None) -> tuple[Any, Any]:
    """The language model, also for versions of transformers that do not know the settings of the newest."""
    import transformers

    if folder is None or not folder.is_dir():
        raise FileNotFoundError("SmolLM2 is missing: python -m bench.smollm2 FOLDER, then --folder FOLDER")
    config = transformers.AutoConfig.from_pretrained(folder)
    if int(transformers.__version__.split(".")[0]) < 5:
        config.rope_theta = config.rope_parameters["rope_theta"]
    kind, weights = transformers.AutoModelForCausalLM, any(folder.glob("*.safetensors"))
    if weights:
        model = kind.from_pretrained(folder, config=config, torch_dtype=torch.float32)
    else:  # a folder without weights: random ones
        torch.manual_seed(0)
        model = kind.from_config(config, torch_dtype=torch.float32)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=os.fspath(folder / "tokenizer.json"), bos_token="<|im_start|>", eos_token="<|im_end|>",
        pad_token="<|im_end|>", unk_token="<|endoftext|>",
    )  # fmt: skip
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return model.eval(), tokenizer
