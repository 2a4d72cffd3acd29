"""Texts (encoders, encoder-decoders, causal language models), images and tables."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from tests.models.case import (
    BATCH,
    CLASSES,
    HEADS,
    LAYERS,
    WIDTH,
    Build,
    Case,
    Inputs,
    randint,
    randn,
    reported,
    seeded,
    spied,
)
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
    image,
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


# Images


VIT = {key: value for key, value in ENCODER.items() if key != "vocab_size"}
VIT |= {"image_size": 32, "patch_size": 8}
DINOV2 = {key: value for key, value in VIT.items() if key != "intermediate_size"} | {"mlp_ratio": 2}


SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": WIDTH, "depths": [2, 1], "num_heads": [HEADS, HEADS]}
SWIN |= {"window_size": 4, "num_labels": CLASSES}


def pixels(height: int = 32, width: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": image(height, width)}


def vision(name: str, model_class: str, *, readout: int | str | None = 0, **config: Any) -> Case:
    inputs = partial(pixels, *config["image_size"]) if isinstance(config["image_size"], list) else pixels
    return hf_case(name, hf(model_class, **config), inputs, units="patches", readout=readout)


CASES += [
    vision("vit", "ViTForImageClassification", **VIT),
    vision("vit_nonsquare", "ViTForImageClassification", **(VIT | {"image_size": [32, 48]})),
    vision("deit", "DeiTForImageClassification", **VIT),
    vision("deit_distilled", "DeiTForImageClassificationWithTeacher", readout=None, **VIT),
    vision("beit", "BeitForImageClassification", readout="mean", use_relative_position_bias=True, **VIT),
    vision("dinov2", "Dinov2ForImageClassification", readout=None, **DINOV2),
    vision("dinov2_registers", "Dinov2WithRegistersForImageClassification", readout=None, **DINOV2),
    # An 8x8 grid in windows of 4x4, the second block shifted; then a 4x4 grid, one window. Its own output keeps only
    # the last block of each stage.
    hf_case("swin", hf("SwinForImageClassification", **SWIN), pixels, attention=spied, sites=3, units="windows",
            readout="mean"),
]  # fmt: skip


# Tables


NUMBERS, CATEGORIES = 4, (5, 3, 4)


def rtdl(attn: str | None) -> nn.Module:
    from rtdl_revisiting_models import FTTransformer

    columns = {"n_cont_features": NUMBERS, "cat_cardinalities": list(CATEGORIES), "d_out": CLASSES}
    sizes = {"n_blocks": LAYERS, "d_block": WIDTH, "attention_n_heads": HEADS, "ffn_d_hidden": None}
    rates = {"attention_dropout": 0.1, "ffn_d_hidden_multiplier": 2.0, "ffn_dropout": 0.1, "residual_dropout": 0.0}
    return seeded(lambda: FTTransformer(**columns, **sizes, **rates))


def lucidrains(model_class: str, **options: Any) -> Build:
    def build(attn: str | None) -> nn.Module:
        import tab_transformer_pytorch

        size = {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "dim_head": WIDTH // HEADS, "dim_out": CLASSES}
        cls = getattr(tab_transformer_pytorch, model_class)
        return seeded(lambda: few_rounds(cls(categories=CATEGORIES, num_continuous=NUMBERS, **size, **options)))

    return build


def few_rounds(model: nn.Module) -> nn.Module:
    """Hyper-connections balance each mixing matrix in 20 rounds: nine tenths of the time of a model this small."""
    for module in model.modules():
        balance = getattr(module, "residual_mix_constraint_fn", None)
        if balance is not None:
            module.residual_mix_constraint_fn = partial(balance.func, iters=2)
    return model


def numbers_and_categories() -> Inputs:
    return (randn(BATCH, NUMBERS, seed=7), randint(0, min(CATEGORIES), BATCH, len(CATEGORIES), seed=8))


def categories_and_numbers() -> Inputs:
    return numbers_and_categories()[::-1]  # type: ignore[index]


returned = reported(lambda output: output[1], return_attn=True)

table = partial(Case, units="columns")
tab_transformer = lucidrains("TabTransformer", mlp_act=nn.ReLU())

CASES += [
    table("rtdl_ft_transformer", rtdl, numbers_and_categories, spied),
    table("lucidrains_ft_transformer", lucidrains("FTTransformer"), categories_and_numbers, returned),
    # Every column feeds the head; the numbers go there without attention.
    table("lucidrains_tab_transformer", tab_transformer, categories_and_numbers, returned, readout=None),
]
