"""Images."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from tests.models.case import CLASSES, HEADS, WIDTH, Case, spied
from tests.models.hf import ENCODER, hf, hf_case, image

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


CASES = [
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
