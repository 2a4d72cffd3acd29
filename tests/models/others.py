"""More Hugging Face families of one stream: built from fresh configurations, read through their own attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.models.case import BATCH, CLASSES, HEADS, LAYERS, WIDTH, Case, Inputs, randint, randn
from tests.models.hf import BOTH, CONTROL, EAGER, ENCODER, VOCAB, hf, hf_case, image, last_logits, logits, text
from tests.support.released import BEFORE_FIVE

LABELS = {"num_labels": CLASSES}
LANGUAGE = ENCODER | CONTROL | {"max_position_embeddings": 64, "num_key_value_heads": 2}
GPT = CONTROL | {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
PLAIN_HEADS = {"head_dim": WIDTH // HEADS}
LOCAL = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERTS |= {"shared_expert_intermediate_size": 16, "decoder_sparse_step": 1}
ROUTED = EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
ROUTED |= {"n_group": 1, "topk_group": 1, "head_dim": 4}
LATENT = ROUTED | {"num_key_value_heads": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4}
LATENT |= {"v_head_dim": 8}
VISION = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
VISION |= {"intermediate_size": 2 * WIDTH, "image_size": 32, "patch_size": 8}
VIDEO = VISION | LABELS | {"image_size": 16, "num_frames": 4}
SOUND = ENCODER | {"vocab_size": 32, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4]}
SOUND |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16}
SOUND |= {"num_feat_extract_layers": 2}
BOXES = {"coordinate_size": 6, "shape_size": 4, "visual_embed": False, "max_2d_position_embeddings": 64}
BOXES |= {"has_relative_attention_bias": True, "has_spatial_attention_bias": True, "rel_pos_bins": 8, "max_rel_pos": 16}
BOXES |= {"rel_2d_pos_bins": 8, "max_rel_2d_pos": 16}


def encoder(name: str, prefix: str, *, eager: bool = False, readout: int | str = 0, **config: Any) -> Case:
    settings = ENCODER | {"max_position_embeddings": 64, "pad_token_id": 0} | config
    build = hf(f"{prefix}ForSequenceClassification", **settings)
    inputs = partial(text, pad=settings["pad_token_id"])
    if settings.get("num_random_blocks"):
        inputs = long_text
    return hf_case(name, build, inputs, implementations=EAGER if eager else BOTH, readout=readout)


def xlm(name: str, prefix: str) -> Case:
    config = LABELS | {"vocab_size": VOCAB, "emb_dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "pad_index": 0}
    build = hf(f"{prefix}ForSequenceClassification", max_position_embeddings=64, pad_token_id=0, **config)
    return hf_case(name, build, text, implementations=EAGER)


def long_text() -> Inputs:
    """Long enough for attention in blocks."""
    return {"input_ids": randint(5, VOCAB, BATCH, 48, seed=1), "attention_mask": torch.ones(BATCH, 48).long()}


def with_boxes(pad: int) -> Inputs:
    return text(pad=pad) | {"bbox": randint(0, 60, BATCH, 10, 4, seed=4).sort(-1).values}


def causal(name: str, prefix: str, *, eager: bool = False, base: dict[str, Any] = LANGUAGE, **config: Any) -> Case:
    model_class = prefix if prefix.endswith("Model") else f"{prefix}ForCausalLM"
    implementations = EAGER if eager else BOTH
    build = hf(model_class, **(base | config))
    return hf_case(name, build, text, implementations=implementations, readout="last", logits=last_logits)


def whole(
    name: str, model_class: str, inputs: Callable[[], Inputs], readout: Any, *, eager: bool = False, **config: Any
) -> Case:
    """Inputs without padding: images, videos, sound."""
    implementations = EAGER if eager else BOTH
    return hf_case(name, hf(model_class, **config), inputs, implementations=implementations, readout=readout)


def pixels() -> Inputs:
    return {"pixel_values": image()}


def frames() -> Inputs:
    return {"pixel_values": randn(BATCH, 4, 3, 16, 16, seed=2)}


def wave() -> Inputs:
    return {"input_values": randn(BATCH, 400, seed=2)}


TEXT = [
    encoder("mpnet", "MPNet", eager=True, pad_token_id=1),
    encoder("camembert", "Camembert", pad_token_id=1),
    encoder("xlm_roberta_xl", "XLMRobertaXL", pad_token_id=1),
    encoder("roberta_prelayernorm", "RobertaPreLayerNorm", pad_token_id=1),
    encoder("xmod", "Xmod", pad_token_id=1, default_language="en_XX", languages=["en_XX"]),
    encoder("data2vec_text", "Data2VecText", pad_token_id=1),
    encoder("big_bird_full", "BigBird", eager=True, attention_type="original_full"),
    encoder("rembert", "RemBert", eager=True, input_embedding_size=16, output_embedding_size=16),
    encoder("roformer", "RoFormer", eager=True, embedding_size=WIDTH, rotary_value=False),
    encoder("megatron_bert", "MegatronBert", eager=True),
    encoder("ernie", "Ernie"),
    encoder("ibert", "IBert", eager=True, pad_token_id=1, quant_mode=False),
    encoder("deberta", "Deberta", eager=True, relative_attention=True, pos_att_type=["p2c", "c2p"],
            max_relative_positions=8, position_biased_input=False),
    encoder("luke", "Luke", eager=True, pad_token_id=1, entity_vocab_size=10, entity_emb_size=16,
            use_entity_aware_attention=False),
    encoder("eurobert", "EuroBert", num_key_value_heads=2, classifier_pooling="mean", readout="mean",
            bos_token_id=1, eos_token_id=2, mask_token_id=3),
    encoder("nomic_bert", "NomicBert"),
    encoder("esm", "Esm", pad_token_id=1, mask_token_id=4, position_embedding_type="rotary"),
    encoder("gte", "Gte"),
    encoder("jina_embeddings_v3", "JinaEmbeddingsV3", pad_token_id=1),
    encoder("markuplm", "MarkupLM", eager=True, max_tree_id_unit_embeddings=20),
    encoder("tapas", "Tapas", eager=True, type_vocab_sizes=[3, 16, 16, 2, 2, 8, 8]),
    xlm("xlm", "XLM"),
    xlm("flaubert", "Flaubert"),
    hf_case("layoutlm", hf("LayoutLMForSequenceClassification", max_2d_position_embeddings=64, **ENCODER),
            partial(with_boxes, 0)),
    hf_case("layoutlmv3", hf("LayoutLMv3ForSequenceClassification", pad_token_id=1, **(ENCODER | BOXES)),
            partial(with_boxes, 1), implementations=EAGER),
    causal("gemma", "Gemma", **PLAIN_HEADS),
    causal("gemma3", "Gemma3", query_pre_attn_scalar=8, **PLAIN_HEADS, **LOCAL),
    causal("phi", "Phi"),
    # Version 4 cannot draw the weights of its norms.
    causal("stablelm", "StableLm", use_parallel_residual=True, qk_layernorm=not BEFORE_FIVE),
    causal("falcon", "Falcon", new_decoder_architecture=True, num_kv_heads=2),
    causal("bloom", "Bloom", eager=True, n_layer=LAYERS, n_head=HEADS),
    causal("mpt", "Mpt", eager=True, base={"vocab_size": VOCAB, "d_model": WIDTH, "n_heads": HEADS,
                                           "n_layers": LAYERS, "expansion_ratio": 2, "max_seq_len": 64}),
    causal("gptj", "GPTJ", eager=True, base=GPT, rotary_dim=4),
    causal("codegen", "CodeGen", eager=True, base=GPT, rotary_dim=4, n_ctx=64),
    causal("gpt_bigcode", "GPTBigCode", base=GPT, multi_query=True),
    causal("openai_gpt", "OpenAIGPTLMHeadModel", eager=True, base=GPT),
    causal("ctrl", "CTRLLMHeadModel", eager=True, base=GPT, dff=64),
    causal("olmo", "Olmo"),
    causal("olmo2", "Olmo2"),
    causal("olmo3", "Olmo3", **LOCAL),
    causal("granite", "Granite"),
    causal("cohere", "Cohere"),
    causal("cohere2", "Cohere2", **PLAIN_HEADS, **LOCAL),
    causal("starcoder2", "Starcoder2", sliding_window=6),
    causal("mixtral", "Mixtral", **EXPERTS),
    causal("qwen2_moe", "Qwen2Moe", **EXPERTS),
    causal("qwen3_moe", "Qwen3Moe", **PLAIN_HEADS, **EXPERTS),
    causal("deepseek_v2", "DeepseekV2", q_lora_rank=None, **LATENT),
    causal("deepseek_v3", "DeepseekV3", q_lora_rank=8, **LATENT),
    causal("olmoe", "Olmoe", **EXPERTS),
    causal("phimoe", "Phimoe", **EXPERTS),
    causal("gpt_oss", "GptOss", eager=True, **PLAIN_HEADS, **LOCAL, **EXPERTS),  # attention sinks
    causal("smollm3", "SmolLM3", no_rope_layers=[1, 0], no_rope_layer_interval=2),
    causal("persimmon", "Persimmon", num_key_value_heads=4),
    causal("biogpt", "BioGpt"),
    causal("glm4", "Glm4", **PLAIN_HEADS),
    causal("nemotron", "Nemotron"),
    causal("helium", "Helium", **PLAIN_HEADS),
]  # fmt: skip
OTHER = [
    whole("vit_msn", "ViTMSNForImageClassification", pixels, 0, **VISION, **LABELS),
    whole("data2vec_vision", "Data2VecVisionForImageClassification", pixels, "all but first", **VISION, **LABELS),
    whole("ijepa", "IJepaForImageClassification", pixels, "mean", **VISION, **LABELS),
    whole("clip_classifier", "CLIPForImageClassification", pixels, "all but first", vision_config=VISION, **LABELS),
    whole("videomae", "VideoMAEForVideoClassification", frames, "mean", tubelet_size=2, **VIDEO),
    whole("vivit", "VivitForVideoClassification", frames, 0, **VIDEO, tubelet_size=[2, 8, 8]),
    whole("hubert", "HubertForSequenceClassification", wave, "mean", **SOUND),
    whole("unispeech", "UniSpeechForSequenceClassification", wave, "mean", **SOUND),
    whole("sew", "SEWForSequenceClassification", wave, "mean", squeeze_factor=2, **SOUND),
    whole("data2vec_audio", "Data2VecAudioForSequenceClassification", wave, "mean", **SOUND, conv_pos_kernel_size=3),
    whole("ast", "ASTForAudioClassification", lambda: {"input_values": randn(BATCH, 24, 16, seed=2)}, "first two",
          **(VISION | LABELS), max_length=24, num_mel_bins=16, frequency_stride=8, time_stride=8),
]  # fmt: skip
OTHERS = {case.name: case for case in [*TEXT, *OTHER]}

STAGES = LABELS | {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [16, 32], "num_attention_heads": [2, 4]}
STAGES |= {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
FUNNEL = LABELS | {"vocab_size": VOCAB, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": WIDTH}
FUNNEL |= {"n_head": HEADS, "d_head": WIDTH // HEADS, "d_inner": 2 * WIDTH, "pad_token_id": 0}
NOT_EVERYTHING = [
    encoder("convbert", "ConvBert", eager=True, embedding_size=16, head_ratio=2),
    encoder("longformer", "Longformer", eager=True, attention_window=4, pad_token_id=1),
    encoder("big_bird_sparse", "BigBird", eager=True, block_size=4, num_random_blocks=2),
    encoder("yoso", "Yoso", eager=True, use_expectation=True),
    hf_case("funnel", hf("FunnelForSequenceClassification", **FUNNEL), text, implementations=EAGER),
    causal("lfm2", "Lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3),
    causal("recurrent_gemma", "RecurrentGemma", lru_width=WIDTH, attention_window_size=6, **PLAIN_HEADS,
           block_types=["recurrent", "attention"]),
    whole("segformer", "SegformerForImageClassification", pixels, 0, **STAGES),
]  # fmt: skip
REFUSED = {case.name: case for case in NOT_EVERYTHING}


def score(case: Case, output: Any, target: int) -> torch.Tensor:
    """The explained logit of an input that stands alone: of a language model, that of its last token."""
    found = logits(output)
    return found[0, -1, target] if case.logits is last_logits else found[0, target]
