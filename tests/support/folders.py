"""Models saved to a folder with their tokenizer or image processor, so that the real loading code is what is tested."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from tests.models.case import seeded
from tests.support import processors
from tests.support.released import BEFORE_FIVE

WORDS = (
    "the a movie film book was is so not good bad great awful boring i like hate it you she he they we and but . ,"
).split()
PIECES = ["##s", "##ing", "##ed", "##ly"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES]


def tokenizer(folder: Path, slow: bool = False) -> Any:
    """A WordPiece tokenizer over a tiny vocabulary; ``slow``: the pure-Python one, which knows no offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    if slow:
        file, name = ("", "") if BEFORE_FIVE else ("_legacy", "Legacy")
        module = import_module(f"transformers.models.bert.tokenization_bert{file}")
        return getattr(module, f"BertTokenizer{name}")(str(vocabulary), model_max_length=16)
    from transformers import BertTokenizerFast

    return BertTokenizerFast(str(vocabulary), model_max_length=16)


def bert(attention: str = "sdpa") -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1},
        attn_implementation=attention,
    )  # fmt: skip
    return seeded(lambda: BertForSequenceClassification(config))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "bird"}, label2id={"cat": 0, "dog": 1, "bird": 2},
    )  # fmt: skip
    return seeded(lambda: ViTForImageClassification(config))


def image_processor() -> Any:
    return processors.vit()
