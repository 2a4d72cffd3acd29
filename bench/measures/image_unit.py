"""The units of images of XAI-Units: a shape on a texture, and the share of the scores that is on and near the shape.

Shapes, images, ground truth, metric and loop are those of the package. Other than in its demo/examples/image_vit.py,
textures are made here (those of the authors are a download of 600 MB; a copy in the package's folder is used), shapes
are geometric (its dinosaurs come from Wikimedia), images have 64 pixels instead of 512, and the ViT is of transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whyformer as wf
from bench.measures.sets import cloned
from bench.measures.xai_units import measured, package
from bench.peers.worker import declare_nms
from whyformer.shapes import Array

Row = dict[str, Any]
UNITS = {"BalancedImage": 60, "ImbalancedImage": 240}  # variants for training: per shape and texture, or per shape
SHAPES, TEXTURES = ("circle", "rectangle", "triangle"), ("banded", "chequered", "dotted", "smeared")
SIDE, PATCH, DRAWN = 64, 8, 300  # pixels; the package draws no smaller images
EPOCHS, BATCH, RATE = 50, 32, 3e-4
OURS = ("attn_lrp", "generic_attention", "raw_attention", "attention_rollout", "input_x_gradient",
        "integrated_gradients", "occlusion", "random")  # fmt: skip
CAPTUM = ("DeepLift", "InputXGradient", "IntegratedGradients")  # those of the authors


def texture(kind: str, seed: int = 0) -> Array:
    """Return a picture of a texture in two colours."""
    rng = np.random.default_rng([seed, TEXTURES.index(kind)])
    y, x = np.mgrid[:DRAWN, :DRAWN]
    noise = F.interpolate(torch.tensor(rng.random((1, 1, 20, 5))), (DRAWN, DRAWN), mode="bicubic")[0, 0].numpy()
    share = {"banded": x // 15 % 2, "chequered": (x // 25 + y // 25) % 2, "smeared": noise.clip(0, 1),
             "dotted": ((x % 30 - 15) ** 2 + (y % 30 - 15) ** 2 < 64)}[kind]  # fmt: skip
    colours = rng.integers(0, 256, (2, 3))
    return (share[..., None] * colours[0] + (1 - share[..., None]) * colours[1]).astype(np.uint8)


def backgrounds(folder: Path) -> list[str]:
    """Return the names of four textures; they are drawn where the package would download a set of textures."""
    images = cloned(folder, "xaiunits_public", "src") / "data" / "background_images" / "dtd" / "images"
    if not images.exists():
        for kind in TEXTURES:
            (images / kind).mkdir(parents=True)
            import_module("PIL.Image").fromarray(texture(kind)).save(images / kind / f"{kind}_0001.png")
    return sorted(path.name for path in images.glob("*/*.*g"))[: len(TEXTURES)]


class Logits(nn.Module):
    """The ViT as captum calls it."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, pixels: Tensor) -> Tensor:
        return self.vit(pixel_values=pixels).logits


def fitted(data: Any, seed: int) -> Logits:
    """Train a ViT of three layers on the images of a unit."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
    config = ViTConfig(image_size=SIDE, patch_size=PATCH, num_labels=len(SHAPES), **size)
    model = Logits(ViTForImageClassification._from_config(config, attn_implementation="eager"))
    pixels, labels = torch.stack([item[0] for item in data]), torch.tensor([item[1] for item in data])
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            moves = torch.randint(SIDE, (len(batch), 2)).tolist()  # shapes are anywhere; few images show that
            moved = torch.stack([image.roll(move, (1, 2)) for image, move in zip(pixels[batch], moves, strict=True)])
            optimizer.zero_grad()
            F.cross_entropy(model(moved), labels[batch]).backward()
            optimizer.step()
    return model.eval()


def pixels_of(scores: Array) -> Tensor:
    """Return scores of patches as scores of pixels and channels; tokens before the patches are left out."""
    side = SIDE // PATCH
    grid = torch.as_tensor(np.asarray(scores, np.float32)[-side * side :]).reshape(side, side)
    spread = grid.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1) / (3 * PATCH * PATCH)
    return spread.expand(3, -1, -1)


def method_class(name: str) -> type:
    """Return a class that the loop of xaiunits can run, as it runs those of captum."""

    class Method:
        def __init__(self, model: Logits) -> None:
            self.forward_func, self.kwargs = model, {}

        def generate_input(self, feature_inputs: Tensor, y_labels: Any, target: Any, context: Any) -> None:
            self.targets = torch.as_tensor(target).tolist()

        def attribute(self, inputs: Tensor) -> Tensor:
            how = {"method": name, "scalar": "logit", "progress": False}
            found = [
                wf.explain(self.forward_func.vit, image[None], target=target, **how)[0]
                for image, target in zip(inputs.detach(), self.targets, strict=True)
            ]
            return torch.stack([pixels_of(why.scores) for why in found])

    Method.__name__ = name
    return Method


def rows_of(folder: Path, count: int, seeds: int) -> Iterator[Row]:
    """Yield the accuracy of each unit's model, then one row per unit and method: per seed, the mean of the metric."""
    declare_nms()
    _, pipeline = package(folder)
    sys.modules.pop("xaiunits.datagenerator.image_generation", None)
    try:
        images = import_module("xaiunits.datagenerator.image_generation")
        transforms = import_module("torchvision.transforms.v2")
    except ImportError as error:
        raise SystemExit(f"{error}. Units of images need: pip install torchvision opencv-python-headless") from error
    captum = import_module("captum.attr")
    methods = [getattr(captum, name) for name in CAPTUM] + [method_class(name) for name in OURS]
    steps = [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True)]
    shown = transforms.Compose([*steps, transforms.Resize((SIDE, SIDE), antialias=True)])
    options = {"backgrounds": backgrounds(folder), "shapes": list(SHAPES), "transform": shown, "overlay_scale": 0.4}
    options |= {"background_size": (DRAWN, DRAWN), "contour_thickness": 100 * DRAWN // 512}  # 100 of 512 by the authors
    for unit, variants in UNITS.items():
        made = getattr(images, f"{unit}Dataset")
        colour = ["blue"] if unit == "BalancedImage" else "blue"
        values: dict[tuple[str, str], list[float]] = {}
        right = []
        for seed in range(seeds):
            train, test = (made(n_variants=number, seed=2 * seed + at, shape_colors=colour, **options)
                           for at, number in enumerate((variants, variants // 10)))  # fmt: skip
            model = fitted(train, seed)
            with torch.no_grad():
                guessed = model(torch.stack([item[0] for item in test])).argmax(1)
            right.append(float((guessed == torch.tensor(test.labels)).float().mean()))
            chosen = torch.utils.data.Subset(test, range(min(count, len(test))))
            chosen.default_metric = test.default_metric  # type: ignore[attr-defined]
            for number, method in enumerate(methods):
                key = ("captum" if number < len(CAPTUM) else "whyformer", method.__name__)
                found = measured(pipeline, chosen, model, method, seed, min(count, len(test)), "predicted_class")
                values.setdefault(key, []).append(round(found, 6))
        common = {"part": "xai_units", "unit": unit, "rows": count, "accuracy": right}
        for (by, name), found in values.items():
            yield {**common, "by": by, "method": name, "values": found}
