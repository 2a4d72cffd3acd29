"""The patch grid in pixel maps: border energy ÷ interior energy of every method that has one, on the model of pets.

    python -m bench.patch_grid [--photos FOLDER] [--limit 16] [--smoothing 0.5]

Without photos: four drawn faces. "values" is the energy of the map on the outermost ring of every patch ÷ that inside,
"steps" that of differences between neighbouring pixels, across borders ÷ inside
(whyformer.engines.gradient.feature_maps). Medians over the pictures;
1 means that the grid cannot be seen. Methods with the option are shown smoothed, too.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch

import whyformer as wf
from whyformer.demo import load_pets
from whyformer.demo.pictures import face
from whyformer.engines.gradient.feature_maps import MEASURES, grid_artefact, smoothed
from whyformer.errors import WhyformerError
from whyformer.registry import Method

PATCH = 8  # pixels


def pictures(folder: Path | None, limit: int) -> list[Any]:
    from PIL import Image

    if folder is None:
        return [Image.fromarray(face(animal)) for animal in ("cat", "dog")]
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    return [Image.open(path).convert("RGB") for path in files[:: max(1, len(files) // limit)][:limit]]


def maps_of(explainer: wf.Explainer, images: list[Any], method: Method) -> list[Any] | None:
    """The pixel maps of a method; None where it has none."""
    try:
        first = explainer.explain(images[0], method=method.name)
    except WhyformerError:
        return None
    if first.detail is None or first.detail.shape[-2:] != first.units.image_size:
        return None
    rest = explainer.explain(images[1:], method=method.name) if images[1:] else []
    return [first.detail, *(e.detail for e in rest)]


def measured(maps: list[Any], smoothing: float = 0.0) -> list[str]:
    """Median of each measure. Smoothing is what the option does: it acts on the finished map."""
    spread = [smoothed(torch.from_numpy(m), (smoothing * PATCH, smoothing * PATCH)) for m in maps]
    return [f"{statistics.median(grid_artefact(m, PATCH, of) for m in spread):.2f}" for of in MEASURES]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--smoothing", type=float, default=0.5)
    options = parser.parse_args(argv)
    images = pictures(options.photos, options.limit)
    explainer = wf.Explainer(*load_pets())
    kind = "drawn faces" if options.photos is None else "photos"
    print(f"{len(images)} {kind}; smoothed: patch_smoothing={options.smoothing:g}")
    print("| method | values | steps | values, smoothed | steps, smoothed |\n|---|---|---|---|---|")
    for name, method in wf.list_methods().items():
        if "input_gradients" not in method.needs and name != "vit_cx":
            continue
        maps = maps_of(explainer, images, method)
        if maps is None:
            continue
        after = measured(maps, options.smoothing) if "patch_smoothing" in method.options else ["", ""]
        print(f"| {name} | {' | '.join([*measured(maps), *after])} |", flush=True)


if __name__ == "__main__":
    main()
