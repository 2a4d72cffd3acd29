"""Every model class of the installed transformers, from its auto-mappings, with a tiny configuration and inputs.

Numbers of a configuration are made small by the words in their names (width, layers, heads, vocabulary, picture), and
inputs follow from the arguments of ``forward``; what no name says is in ``EXTRA``. The first configuration and inputs
that the model runs with are used; a class that runs with none is reported as "not built".
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

BATCH, WIDTH, HEADS, LAYERS, CLASSES, VOCAB, IMAGE, PATCH = 2, 32, 4, 2, 3, 128, 32, 8
FIRST_WORD = 40  # token ids below it are special ones
LENGTHS = (10, 7)
MOST_PARAMETERS = 30_000_000
Inputs = dict[str, Any]


class NotBuilt(Exception):
    """No tiny configuration or inputs were found that the class runs with."""


@dataclass(frozen=True)
class Listed:
    """A class of the auto-mappings: its name, its task (the first mapping it is in), and the type of its config."""

    name: str
    task: str
    model_type: str


@cache
def listed_classes() -> dict[str, Listed]:
    """Every class by name; AutoModel's mapping is the last, so that a class with a head is listed under its task."""
    from transformers.models.auto import modeling_auto

    mappings = {k: v for k, v in vars(modeling_auto).items() if re.fullmatch(r"MODEL_(FOR_.+_)?MAPPING_NAMES", k)}
    order = sorted(
        mappings, key=lambda name: (name == "MODEL_MAPPING_NAMES", "PRETRAINING" in name, "BACKBONE" in name)
    )
    found: dict[str, Listed] = {}
    for mapping in order:
        task = mapping.removeprefix("MODEL_").removeprefix("FOR_").removesuffix("MAPPING_NAMES").rstrip("_")
        for model_type, names in mappings[mapping].items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, Listed(name, (task or "base model").lower().replace("_", " "), model_type))
    return found


# Configurations

INDICES = re.compile(r"(indices|indexes|_idxs?)$")  # of layers
KEPT = re.compile(
    r"dropout|temperature|theta|loss|cost|coefficient|rate$|weight|eps$|range|std|ratio|kernel|stride|stack|factor|mult"
    r"|scale|bins$|dilation|points|levels|version|padding|num_labels|num_channels|in_chans"
)
# The first pattern that a name matches gives its value, in ints and in lists of ints.
SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size$|codebook_size|num_codevectors|n_vocab|num_embeddings$", VOCAB),
    (r"(n_group|topk_group|num_groups|upsample_groups)$", 1),
    (r"experts?_per_tok|moe_top_?k|moe_k$|^top_?k", 2),
    (r"experts$|moe_num_experts|num_experts|expert_capacity$", 4),
    (r"(key_value|kv)_heads|num_kv|multi_query_group", 2),
    (r"mamba_n_heads|mamba_num_heads|mamba_heads", 8),
    (r"mamba_d_head|mamba_head_dim|mamba_headdim", 8),
    (r"lora_rank|d_state|state_size|ssm_|dt_rank|laurel_rank", 8),
    (r"(qk_head_dim)$", 16),
    (r"head_dim|dim_head|d_head|d_kv|kv_channels|head_size|rotary_dim|query_pre_attn", WIDTH // HEADS),
    (r"num_pos_feats", WIDTH // 2),
    (r"heads|n_head|attn_heads|num_attention_head", HEADS),
    (r"first_k_dense|num_dense_layers|dense_layers", 1),
    (r"depths|blocks_per_stage|stage_num_blocks|numb_of_layers|block_sizes|layer_depths", 1),
    (r"layers$|n_layer|^depth$|_depth$|num_blocks|num_layer$|encoder_depth|layers_num|num_res", LAYERS),
    (r"max_source_positions|max_length$|context_length|prediction_length", 24),
    (r"max_(\w+_)?position_embeddings|n_positions|max_seq_len|n_ctx$|block_size$|max_target_pos", 128),
    (r"(^|_)image_size|img_size|resolution$|pretrain_image|crop_size|tile_size", IMAGE),
    (r"patch_size|patch_length|patch_len$", PATCH),
    (r"num_frames|num_image_with|frames_per_clip|max_num_frames", 4),
    (r"^window_sizes?$|window_size_per", 2),
    (r"window", 4),
    (r"intermediate|ffn|feed_?forward|mlp_dim|d_ff|d_inner|inner_dim|n_inner|linear_units|expand_dim", 2 * WIDTH),
    (r"num_queries|detection_tokens|query_num|num_query|num_latents|num_prompt|num_denoising|num_group_tokens", 6),
    (r"mel_bins|num_mels|input_feat|n_mels", 16),
    (r"hidden|d_model|d_latents|n_embd|embed|width|(^|_)dims?$|channel|proj|filters|_size$|feature|units", WIDTH),
)  # fmt: skip
GENTLE = re.compile(r"vocab|experts?$|num_experts|layers?$|depth|blocks|image_size|resolution|queries|n_layer")
IDS = re.compile(r"token_(id|index)$|^(pad|bos|eos|unk|mask|sep|cls)_(token_id|index)$|_start_id$|_end_id$")
PER_LAYER = re.compile(r"layer_types|layers_block_type|block_types?$|indexer_types|layer_pattern")


LAYER_COUNTS = {"num_hidden_layers", "n_layers", "n_layer", "num_layers", "depth", "decoder_layers", "encoder_layers"}
FORECASTER = {"prediction_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
# What no name of a setting says: by the type of the configuration.
EXTRA: dict[str, dict[str, Any]] = {
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "vitpose_backbone": {"num_experts": 1},
    "time_series_transformer": FORECASTER,
    "autoformer": FORECASTER,
    "informer": FORECASTER,
}


@dataclass
class Rung:
    """How a configuration is made small: all of it or only what costs most, and whether unset numbers are filled in."""

    gentle: bool
    fill: bool
    task: str
    ids: dict[str, int] = dataclasses.field(default_factory=lambda: {"pad": 0, "bos": 1, "eos": 2})


def small(name: str, value: Any, gentle: bool, ids: dict[str, int]) -> Any:
    """A number of a configuration, or numbers in a list, made small by the words in its name."""
    if isinstance(value, bool) or value is None:
        return value
    if IDS.search(name):
        return special_id(name, ids) if isinstance(value, int) else value
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    ):
        if re.search(r"index|indices|idx|features$|shape|levels|ratios|section", name):
            return value
        return type(value)(small(name, v, gentle, ids) for v in value)
    if not isinstance(value, int) or KEPT.search(name) or (gentle and not GENTLE.search(name)):
        return value
    size = size_of(name)
    few = value == 1 and re.search("heads|group|num_kv", name)
    return value if size is None else size if size == HEADS and not few else min(value, size)


def size_of(name: str) -> int | None:
    return next((size for pattern, size in SIZES if re.search(pattern, name)), None)


def special_id(name: str, ids: dict[str, int]) -> int:
    """The same id for a name wherever it stands in the configuration: pad 0, bos 1, eos 2, others from 3 on."""
    word = re.sub(r"_token|_id$|_index$", "", name)
    return ids.setdefault(word, len(ids) % FIRST_WORD)


def tiny_arguments(config_class: Any, default: Any, rung: Rung) -> dict[str, Any]:
    """Arguments of a configuration class for a tiny model; ``default``: an instance with its own defaults."""
    from transformers import PretrainedConfig

    arguments: dict[str, Any] = {}
    fields = {f.name: f for f in dataclasses.fields(config_class)}
    values = {name: _value(default, field) for name, field in fields.items()}
    layers = next((v for k, v in values.items() if k in LAYER_COUNTS and isinstance(v, int)), 0)
    per_layer, lists = {}, {}
    for name, field in fields.items():
        value, unset = values[name], field.default is None or field.default is dataclasses.MISSING
        if isinstance(value, PretrainedConfig):
            arguments[name] = tiny_config(type(value), value, rung)
        elif isinstance(value, (list, tuple)) and value and (PER_LAYER.search(name) or len(value) == layers > LAYERS):
            per_layer[name] = value
        elif isinstance(value, (list, tuple)) and value and INDICES.search(name) and len(value) <= 4:
            lists[name] = value
        elif unset and (value is None or not IDS.search(name)):
            fills = rung.fill and "int" in str(field.type) and value is None
            if name == "pad_token_id" or (fills and IDS.search(name)):
                arguments[name] = special_id(name, rung.ids)
            elif fills and size_of(name) and not KEPT.search(name):
                arguments[name] = size_of(name)
        else:
            made = small(name, value, rung.gentle, rung.ids)
            if made != field.default and (made != value or not isinstance(value, dict)):
                arguments[name] = made
    if "spatial_merge_size" in fields:  # windows hold whole groups of patches
        arguments.pop("window_size", None)
    outs = getattr(default, "_out_indices", None)
    staged = {"depths", "blocks_per_stage", "embed_dim_per_stage", "num_blocks"} & set(fields)
    if outs and staged:
        arguments["out_indices"] = list(outs)
    elif outs:
        lists["out_indices"] = list(outs)
    for name in ("num_key_value_heads", "num_kv_heads"):  # as many as heads where they are by default
        heads = values.get("num_attention_heads")
        if arguments.get(name) and (values[name] == heads or "kv_lora_rank" in fields):
            arguments[name] = HEADS
    count = max([LAYERS, *(len(set(map(str, v))) for v in per_layer.values()), *(len(v) for v in lists.values())])
    for name, value in per_layer.items():
        kinds = [v for i, v in enumerate(value) if v not in value[:i]]
        cut = [small(name, v, rung.gentle, rung.ids) for v in (kinds * count)[:count]]
        arguments[name] = type(value)(cut)
    for name, value in lists.items():
        first = count - len(value) + (name == "out_indices")  # the stem is number 0 of a backbone
        arguments[name] = type(value)(range(first, first + len(value)))
    for name in LAYER_COUNTS & set(fields):
        if isinstance(values[name], int):
            arguments[name] = min(count, values[name])
    arguments |= _rope(config_class, fields, values, rung)
    classes = 2 if rung.task.endswith(("QuestionAnswering", "QuestionAnsweringSimple")) else CLASSES
    arguments.setdefault("num_labels", classes)
    if "depths" in fields and "image_size" in fields:  # each stage has half as many patches a side
        large = 2 * IMAGE if values.get("patch_size") != 1 else IMAGE // 4
        given = values["image_size"]
        arguments["image_size"] = type(given)([large] * len(given)) if isinstance(given, (list, tuple)) else large
    return arguments | EXTRA.get(config_class.model_type, {})


def _rope(config_class: Any, fields: dict[str, Any], values: dict[str, Any], rung: Rung) -> dict[str, Any]:
    """Parts of a rotary embedding for time, height and width, which add up to half of a head."""
    rope, ignored = values.get("rope_parameters"), getattr(config_class, "ignore_keys_at_rope_validation", None) or ()
    if (
        "rope_parameters" not in fields
        or rung.gentle
        or "dict[str, transformers" in str(fields["rope_parameters"].type)
    ):
        return {}
    if "mrope_section" not in ignored and "mrope_section" not in (rope or {}):
        return {}
    plain = rope or {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_parameters": plain | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}}


def _value(default: Any, field: Any) -> Any:
    try:
        return getattr(default, field.name)
    except Exception:  # a setting that differs from layer to layer
        return field.default if field.default is not dataclasses.MISSING else None


def tiny_config(config_class: Any, default: Any, rung: Rung) -> Any:
    if config_class.__name__ == "TimmBackboneConfig":
        from transformers import ResNetConfig

        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, WIDTH], "depths": [1, 1, 1, 1], "layer_type": "basic"}
        return ResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"])
    arguments = tiny_arguments(config_class, default, rung)
    try:
        config = config_class(**arguments)
    except Exception:
        arguments.pop("num_labels")
        config = config_class(**arguments)
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    return config


def configurations(model_class: Any) -> Iterator[Any]:
    """Tiny configurations, the smallest first; an exception where one cannot be made."""
    for gentle, fill in ((False, False), (False, True), (True, False), (True, True)):
        rung = Rung(gentle, fill, model_class.__name__)
        try:
            yield tiny_config(model_class.config_class, model_class.config_class(), rung)
        except Exception as error:
            yield error


@dataclass
class Tiny:
    """A tiny model and inputs that it runs with."""

    model: nn.Module
    inputs: Inputs
    kind: str


def tiny_model(name: str) -> Tiny:
    """A tiny model of a class, with random weights, and two inputs; raises NotBuilt with the last error."""
    import transformers

    cls = getattr(transformers, name, None)
    if cls is None:
        raise NotBuilt("transformers does not export this class")
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise NotBuilt("needs a library that is not installed")
    reason = ""
    for config in configurations(cls):
        if isinstance(config, Exception):
            reason = reason or f"configuration: {told(config)}"
            continue
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(config).parameters())
        except Exception:
            size = 0
        if size > MOST_PARAMETERS:
            reason = reason or f"{size // 1_000_000} million parameters at its smallest"
            continue
        try:
            torch.manual_seed(0)
            model = cls(config).eval()
        except Exception as error:
            reason = reason or f"build: {told(error)}"
            continue
        grow(model)
        found = inputs_for(model)
        if isinstance(found, str):
            reason = reason or found
            continue
        return Tiny(model, *found)
    raise NotBuilt(reason)


def grow(model: nn.Module) -> None:
    """Make weights larger than a fresh model's, so that attention is not uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim > 1 and weight.numel() and weight.is_floating_point():
                scale = 1.0 if re.search(r"embed", name) else 1.2 / max(1, weight[0].numel()) ** 0.5
                weight.copy_((torch.randn(weight.shape, generator=generator) * scale).to(weight.dtype))


def told(error: BaseException) -> str:
    words = re.sub(r"Class validation error for validator '\w+': ", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {words}"[:200]


# Inputs


def numbers(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(config: Any, length: int = LENGTHS[0], seed: int = 1) -> Tensor:
    """Ids of ordinary tokens."""
    size = min(setting(config, "vocab_size", "n_vocab") or VOCAB, VOCAB)
    low = FIRST_WORD if size > FIRST_WORD + 8 else size // 2
    return torch.randint(low, size, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def setting(config: Any, *names: str) -> Any:
    """The first of these settings that the configuration or a part of it has."""
    from transformers import PretrainedConfig

    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    for part in vars(config).values():
        if isinstance(part, PretrainedConfig) and (found := setting(part, *names)) is not None:
            return found
    return None


def side(value: Any, default: int) -> tuple[int, int]:
    if isinstance(value, dict):
        value = [value.get("height", default), value.get("width", default)]
    if isinstance(value, (list, tuple)):
        return (int(value[-2]), int(value[-1])) if len(value) > 1 else (int(value[0]),) * 2
    return (int(value), int(value)) if value else (default, default)


def candidates(model: Any) -> Iterator[tuple[str, Inputs]]:
    """Inputs with what else ``forward`` requires."""
    given = inspect.signature(model.forward).parameters
    required = [n for n, p in given.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    config = model.config
    for kind, inputs in suggested(model):
        more: Inputs = {}
        for name in required + [n for n in ("qformer_input_ids", "task_inputs") if n in given]:
            if name in inputs or not inputs:
                continue
            if name.endswith("ids") or name == "task_inputs":
                more[name] = words(config, 6, seed=8)
            elif name == "merge_sizes":
                more[name] = torch.full((BATCH,), 1)
            elif "mask" in name and "input_ids" in inputs:
                more[name] = torch.ones_like(inputs["input_ids"])
        yield kind, inputs | more


def suggested(model: Any) -> Iterator[tuple[str, Inputs]]:
    """Inputs that the arguments of ``forward`` suggest, the likeliest first."""
    config, accepted = model.config, inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    names = set(accepted)
    text = dict(text_inputs(model, config, names))
    pictures = list(picture_inputs(config, names, type(model).__name__))
    sounds = list(sound_inputs(config, names))
    series = list(series_inputs(config, names))
    decoder = {}
    if "decoder_input_ids" in names:
        decoder = {"decoder_input_ids": words(config, 5, seed=5)}
    if series:
        yield from (("series", s) for s in series)
    streams = [(kind, found) for kind, found in (("image", pictures), ("sound", sounds)) if found]
    for kind, found in streams:
        for one in found:
            if text and (main == "input_ids" or "input_ids" in names):
                yield from (("pair", both | decoder) for both in paired(model, config, text, one, kind))
            if "decoder_input_ids" in names and "input_ids" not in names:
                yield "pair", one | decoder
            yield ("video" if any(t.ndim == 5 for t in one.values() if isinstance(t, Tensor)) else kind), one
    if text and "visual_feats" in names:
        boxes = numbers(BATCH, 6, setting(config, "visual_feat_dim") or WIDTH)
        yield "pair", text | {"visual_feats": boxes, "visual_pos": numbers(BATCH, 6, 4).sigmoid()}
    if text:
        if decoder and type(model).__name__.endswith("SequenceClassification"):
            last = torch.tensor(LENGTHS) - 1
            ended = text["input_ids"].clone()
            ended[torch.arange(BATCH), last] = setting(config, "eos_token_id") or 2
            yield "text", text | {"input_ids": ended}
        if decoder:
            yield "pair", text | decoder
        yield "text", text
        yield "text", {"input_ids": text["input_ids"]}


def text_inputs(model: Any, config: Any, names: set[str]) -> Inputs:
    if "input_ids" not in names:
        return {}
    pad = getattr(config, "pad_token_id", None) or 0
    ids = words(config)
    inputs: Inputs = {"input_ids": ids}
    if "attention_mask" in names:
        mask = (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]).long()
        inputs = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}
    task = type(model).__name__
    mask_id = setting(config, "mask_token_id", "mask_index")
    if task.endswith("MaskedLM"):
        config.mask_token_id = mask_id if mask_id is not None else 4
        inputs["input_ids"][:, 3] = config.mask_token_id
    if task.endswith("MultipleChoice"):
        inputs = {k: torch.stack([v, v.flip(0)], 1) for k, v in inputs.items()}
    if "bbox" in names:
        inputs["bbox"] = torch.randint(0, 20, (*ids.shape, 4)).sort(-1).values
    return inputs


def picture_inputs(config: Any, names: set[str], task: str) -> Iterator[Inputs]:
    channels = setting(config, "num_channels", "in_channels", "in_chans") or 3
    channels = channels if isinstance(channels, int) else 3
    height, width = side(setting(config, "image_size", "img_size", "crop_size"), IMAGE)
    frames = setting(config, "num_frames", "frames_per_clip")
    if "pixel_values_videos" in names and "pixel_values" not in names:
        yield {"pixel_values_videos": numbers(BATCH, frames or 4, channels, height, width)}
    first = next((n for n in ("pixel_values", "hidden_states") if n in names), None)
    if first is None or (first == "hidden_states" and "grid_thw" not in names):
        return
    if "image_grid_thw" in names or "grid_thw" in names:
        patch = side(setting(config, "patch_size"), PATCH)[0]
        temporal = setting(config, "temporal_patch_size") or 1
        temporal = temporal if isinstance(temporal, int) else temporal[0]
        merge = setting(config, "spatial_merge_size", "merge_size") or 2
        merge = merge if isinstance(merge, int) else 2
        cells = 2 * merge
        packed = numbers(BATCH * cells * cells, channels * temporal * patch * patch)
        grid = torch.tensor([[1, cells, cells]] * BATCH)
        grids = "image_grid_thw" if "image_grid_thw" in names else "grid_thw"
        yield {first: packed, grids: grid}
        yield {first: packed.view(len(packed), channels * temporal, patch, patch), grids: grid}
    if first != "pixel_values":
        return
    sizes = [(height, width), (2 * height, 2 * width), (64, 64), (128, 128), (224, 224)]
    if "spatial_shapes" in names:
        patch = side(setting(config, "patch_size"), PATCH)[0]
        packed = {"pixel_values": numbers(BATCH, 16, channels * patch * patch)}
        packed |= {"spatial_shapes": torch.full((BATCH, 2), 4)}
        yield packed | {"pixel_attention_mask": torch.ones(BATCH, 16).long()}
        yield packed | {"attention_mask": torch.ones(BATCH, 16).long()}
    if "image_sizes" in names:
        for h, w in sizes[:2]:
            yield {"pixel_values": numbers(BATCH, channels, h, w), "image_sizes": torch.tensor([[h, w]] * BATCH)}
            yield {"pixel_values": numbers(BATCH, 5, channels, h, w), "image_sizes": torch.tensor([[h, w]] * BATCH)}
    video = [{"pixel_values": numbers(BATCH, frames or 4, channels, h, w)} for h, w in sizes[:1]]
    if frames:
        yield from video
    for h, w in dict.fromkeys(sizes):
        picture: Inputs = {"pixel_values": numbers(BATCH, channels, h, w)}
        if "input_points" in names:
            yield picture | {"input_points": torch.full((BATCH, 1, 1, 2), h / 2)}
        if "bool_masked_pos" in names and ("MaskedImage" in task or "PreTraining" in task):
            patch = side(setting(config, "patch_size"), PATCH)[0]
            for count in (1, (frames or 2) // 2):
                hidden = torch.zeros(BATCH, count * (h // patch) * (w // patch), dtype=torch.bool)
                hidden[:, ::2] = True
                yield (video[0] if count > 1 else picture) | {"bool_masked_pos": hidden}
        yield picture
    yield from video
    yield {"pixel_values": numbers(BATCH, 2, channels, height, width)}
    yield {"pixel_values": numbers(BATCH, 1, channels, height, width)}


def sound_inputs(config: Any, names: set[str]) -> Iterator[Inputs]:
    bins = (
        setting(
            config,
            "feature_projection_input_dim",
            "num_mel_bins",
            "input_feat_per_channel",
            "n_mels",
            "n_mel_bins",
            "input_dim",
            "feature_size",
        )
        or 16
    )
    extra: Inputs = {}
    if "input_features" in names:
        position = setting(config, "max_source_positions") or 32
        steps = [2 * position, 64, 48, 100, 128, 400]
        steps = [s for s in steps if s <= 4000]
        for length in dict.fromkeys(steps):
            for shape in ((BATCH, bins, length), (BATCH, length, bins)):
                one: Inputs = {"input_features": numbers(*shape)}
                if "input_features_mask" in names:
                    yield one | {"input_features_mask": torch.ones(BATCH, length).long()}
                if "is_longer" in names:
                    size = setting(config, "spec_size") or 64
                    yield {"input_features": numbers(BATCH, 1, size, size), "is_longer": torch.zeros(BATCH, 1).bool()}
                yield one | extra
    if "input_values" in names:
        length = setting(config, "max_length") or 24
        if setting(config, "num_mel_bins") and not setting(config, "conv_dim"):
            yield {"input_values": numbers(BATCH, min(length, 1024), bins)}
        for length in (400, 1600, 6400):
            yield {"input_values": numbers(BATCH, length)}
            yield {"input_values": numbers(BATCH, 1, length)}


def series_inputs(config: Any, names: set[str]) -> Iterator[Inputs]:
    if "past_values" not in names:
        return
    channels = setting(config, "num_input_channels", "input_size") or 1
    length = setting(config, "context_length") or 32
    past = numbers(BATCH, length, channels) if channels > 1 else numbers(BATCH, length)
    yield {"past_values": numbers(BATCH, length, channels)}
    yield {"past_values": past}
    lags = setting(config, "lags_sequence") or [0]
    whole = length + max(lags)
    future = setting(config, "prediction_length") or 8
    features = setting(config, "num_time_features") or 0
    yield {
        "past_values": numbers(BATCH, whole), "past_time_features": numbers(BATCH, whole, features),
        "past_observed_mask": torch.ones(BATCH, whole), "future_values": numbers(BATCH, future),
        "future_time_features": numbers(BATCH, future, features),
    }  # fmt: skip


def paired(model: Any, config: Any, text: Inputs, other: Inputs, kind: str) -> Iterator[Inputs]:
    """Text with a picture or sound: as many of its tokens as the model makes vectors, or beside it."""
    token = setting(config, f"{'image' if kind == 'image' else 'audio'}_token_id",
                    f"{'image' if kind == 'image' else 'audio'}_token_index")  # fmt: skip
    token = setting(config, "speech_token_id", "speech_token_index") if token is None else token
    if isinstance(token, int):
        for count in vectors_of(model, other, kind):
            ids = torch.full((BATCH, count), token)
            inputs = dict(text) | {"input_ids": torch.cat([words(config, 2), ids, words(config, 5, seed=7)], 1)}
            if "attention_mask" in inputs:
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
                yield inputs | other | {"mm_token_type_ids": (inputs["input_ids"] == token).long()}
            if "token_type_ids" in inspect.signature(model.forward).parameters:
                yield inputs | other | {"token_type_ids": (inputs["input_ids"] == token).long()}
            yield inputs | other
    yield text | other


def vectors_of(model: Any, other: Inputs, kind: str) -> list[int]:
    """How many vectors a picture or sound becomes, as the model's own method returns them."""
    counts = []
    name = f"get_{'image' if kind == 'image' else 'audio'}_features"
    for method in (found for part in model.modules() if (found := getattr(part, name, None)) is not None):
        accepted = set(inspect.signature(method).parameters)
        try:
            with torch.no_grad():
                found = method(**{k: v for k, v in other.items() if k in accepted})
        except Exception:
            continue
        for part in (getattr(found, "pooler_output", None), getattr(found, "last_hidden_state", None), found):
            if isinstance(part, (list, tuple)) and part and all(isinstance(p, Tensor) for p in part):
                counts.append(sum(p.shape[:-1].numel() for p in part) // BATCH)
            elif isinstance(part, Tensor) and part.ndim > 1:
                counts.append(part.shape[:-1].numel() // BATCH)
    return [c for c in dict.fromkeys(counts) if 0 < c < 600]


def inputs_for(model: nn.Module) -> tuple[Inputs, str] | str:
    """Inputs that the model runs with, and their kind; or why there are none."""
    reason = ""
    try:
        for kind, inputs in candidates(model):
            try:
                with torch.no_grad():
                    torch.manual_seed(0)
                    model(**{k: v.clone() for k, v in inputs.items()})
                    model(**one_of(inputs, 0))
            except Exception as error:
                reason = reason or f"forward({', '.join(inputs)}): {told(error)}"
                continue
            return inputs, kind
    except Exception as error:
        return f"inputs: {told(error)}"
    return reason or f"no inputs for forward({', '.join(inspect.signature(model.forward).parameters)})"[:200]


def mentions_attention(name: str) -> bool:
    """Return whether the file of a class that was not built defines an attention, or is made of other models."""
    import transformers

    module = inspect.getmodule(getattr(transformers, name, None))
    return module is None or re.search(r"class \w*(Attention|Attn)|AutoModel", inspect.getsource(module)) is not None


def has_attention(model: nn.Module) -> bool:
    """Return whether a part of the model is an attention, by the name of its class."""
    return any(re.search(r"attention|attn", type(part).__name__, re.IGNORECASE) for part in model.modules())


def one_of(inputs: Inputs, row: int, size: int = 1) -> Inputs:
    """Some of the inputs; patches of pictures in one tensor (``image_grid_thw``) are as many for each."""
    cut: Inputs = {}
    for name, value in inputs.items():
        share = len(value) // BATCH
        cut[name] = value[row * share : (row + size) * share]
    return cut
