"""Tiny language models of five families, and a tokenizer with a chat template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.models.case import seeded
from tests.support.processors import word_level
from tests.support.sharing import Shared, shared_tokenizer

WORDS = (
    "the capital of france is paris london rome a cat sat on mat and dog ran home yes no who what where said he she "
    "it was in big red blue . , ? ! : system user assistant document question answer"
).split()
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = {word: i for i, word in enumerate([*SPECIALS, *WORDS])}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": len(VOCABULARY)}
SHORT = {"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@shared_tokenizer
def tokenizer(more: tuple[str, ...] = ()) -> Any:
    """``more``: words besides the usual ones."""
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    known = VOCABULARY | {word: len(VOCABULARY) + i for i, word in enumerate(sorted({*more} - {*VOCABULARY}))}
    tok = word_level(known, "Whitespace", model_max_length=256, additional_special_tokens=SPECIALS[4:], **names)
    tok.chat_template = TEMPLATE
    return tok


def save(folder: Path, text: str) -> None:
    """Write a tiny model to a folder, with a tokenizer that has a token for each word of a text."""
    known = tokenizer(tuple(re.findall(r"\w+|[^\w\s]+", text)))
    lm: Any = model("llama")
    lm.resize_token_embeddings(len(known))
    lm.save_pretrained(folder)
    known.save_pretrained(folder)


def model(family: str) -> nn.Module:
    """gpt2, llama, qwen3, gemma2 or gpt_oss."""
    import transformers as t

    gated = SMALL | SHORT | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
    configs: dict[str, Any] = {
        "gpt2": lambda: (t.GPT2LMHeadModel, t.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=len(VOCABULARY), n_positions=256,
            bos_token_id=1, eos_token_id=2)),
        "llama": lambda: (t.LlamaForCausalLM, t.LlamaConfig(**gated)),
        "qwen3": lambda: (t.Qwen3ForCausalLM, t.Qwen3Config(**gated)),
        "gemma2": lambda: (t.Gemma2ForCausalLM, t.Gemma2Config(**gated, sliding_window=8, query_pre_attn_scalar=8)),
        "gpt_oss": lambda: (t.GptOssForCausalLM, t.GptOssConfig(
            **gated, sliding_window=8, num_local_experts=2, num_experts_per_tok=1)),
    }  # fmt: skip
    kind, config = configs[family]()
    return seeded(lambda: kind(config))


FAMILIES = ("gpt2", "llama", "qwen3", "gemma2", "gpt_oss")
shared = Shared(model, lambda lm, family: lm(input_ids=torch.tensor([[1, 6, 7]])))
