"""Text: encoders, encoder-decoders and causal language models."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from tests.models.case import BATCH, CLASSES, HEADS, LAYERS, WIDTH, Case, randint
from tests.models.hf import (
    BOTH,
    CONTROL,
    EAGER,
    ENCODER,
    ENCODER_DECODER,
    VOCAB,
    encoder_decoder,
    final_logits,
    hf,
    hf_case,
    last_logits,
    logits,
    text,
)

LABELS = {"num_labels": CLASSES}
DECODER = ENCODER | CONTROL | {"max_position_embeddings": 64}
LLAMA = DECODER | {"num_key_value_heads": 2}
GEMMA2 = LLAMA | {"head_dim": WIDTH // HEADS, "query_pre_attn_scalar": WIDTH // HEADS, "sliding_window": 6}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "share_att_key": True}
DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
MODERNBERT = DECODER | {"num_hidden_layers": 3, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2}
GPT2 = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
GPT2 |= CONTROL | LABELS
DISTILBERT = LABELS | {"vocab_size": VOCAB, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS}
DISTILBERT |= {"hidden_dim": 2 * WIDTH}
XLNET = LABELS | {"vocab_size": VOCAB, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
XLNET |= {"d_inner": 2 * WIDTH, "pad_token_id": 0}
T5 = LABELS | {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH}
T5 |= {"num_layers": LAYERS, "num_heads": HEADS, "relative_attention_num_buckets": 8}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
MARIAN = ENCODER_DECODER | CONTROL | {"decoder_start_token_id": 0, "max_position_embeddings": 32}
MARIAN |= {"forced_eos_token_id": 2, "scale_embedding": False}
BART = ENCODER_DECODER | CONTROL | LABELS | {"decoder_start_token_id": 2, "forced_eos_token_id": 2}


def encoder(name: str, model_class: str, *, implementations: tuple[str, ...] = BOTH, **config: Any) -> Case:
    inputs = partial(text, pad=config.get("pad_token_id", 0))
    return hf_case(name, hf(model_class, **(ENCODER | config)), inputs, implementations=implementations)


def causal(
    name: str, model_class: str, head: Any = last_logits, implementations: tuple[str, ...] = BOTH, **config: Any
) -> Case:
    build = hf(model_class, **config)
    return hf_case(name, build, text, implementations=implementations, readout="last", logits=head)


def unmasked() -> dict[str, Tensor]:
    return {"input_ids": randint(5, VOCAB, BATCH, 9, seed=1)}


def with_decoder() -> dict[str, Tensor]:
    return text(eos=2) | {"decoder_input_ids": randint(5, VOCAB, BATCH, 6, seed=3)}


left_padded = partial(text, left=True)
TWO_STREAMS = {"attention": encoder_decoder, "sites": 3 * LAYERS, "self_only": False, "units": "several"}
generates = partial(hf_case, inputs=with_decoder, readout=-1, logits=final_logits, **TWO_STREAMS)
reads_end = partial(hf_case, inputs=partial(text, eos=2), readout="eos", **TWO_STREAMS)


CASES = [
    encoder("bert", "BertForSequenceClassification"),
    encoder("roberta", "RobertaForSequenceClassification", pad_token_id=1),
    hf_case("distilbert", hf("DistilBertForSequenceClassification", **DISTILBERT), text),
    encoder("albert", "AlbertForSequenceClassification", embedding_size=16),
    encoder("electra", "ElectraForSequenceClassification", embedding_size=16),
    encoder("deberta_v2", "DebertaV2ForSequenceClassification", implementations=EAGER, **DEBERTA),
    # The second and third layers see only a window.
    hf_case("modernbert", hf("ModernBertForSequenceClassification", **MODERNBERT), text, sites=3),
    # Reads its last position, so it is padded on the left.
    hf_case("xlnet", hf("XLNetForSequenceClassification", **XLNET), left_padded, implementations=EAGER, readout=-1),
    causal("gpt2", "GPT2LMHeadModel", **GPT2),
    causal("gpt2_cls", "GPT2ForSequenceClassification", head=logits, **GPT2),
    causal("llama", "LlamaForCausalLM", **LLAMA),
    causal("llama_cls", "LlamaForSequenceClassification", head=logits, **LLAMA),
    # Without a mask, sdpa gets two key heads for four query heads.
    hf_case("llama_gqa", hf("LlamaForCausalLM", **LLAMA), unmasked, readout=-1, logits=final_logits),
    causal("mistral", "MistralForCausalLM", sliding_window=6, **LLAMA),
    causal("qwen2", "Qwen2ForCausalLM", **LLAMA),
    causal("qwen3", "Qwen3ForCausalLM", head_dim=WIDTH // HEADS, **LLAMA),
    causal("gemma2", "Gemma2ForCausalLM", implementations=EAGER, **GEMMA2),
    causal("phi3", "Phi3ForCausalLM", **LLAMA),
    causal("gpt_neox", "GPTNeoXForCausalLM", **DECODER),
    causal("opt", "OPTForCausalLM", ffn_dim=2 * WIDTH, word_embed_proj_dim=WIDTH, **DECODER),
    generates("t5", hf("T5ForConditionalGeneration", gain=0.9, **T5)),
    reads_end("t5_cls", hf("T5ForSequenceClassification", gain=0.9, **T5)),
    generates("bart", hf("BartForConditionalGeneration", **BART)),
    generates("marian", hf("MarianMTModel", **MARIAN)),
    reads_end("bart_cls", hf("BartForSequenceClassification", **BART)),
]
