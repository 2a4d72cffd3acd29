"""Pictures with a planted stamp, read by a ViT of six layers that the command trains; photos, by the shipped ViTs."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import whyformer as wf
from bench.frontier.contenders import Contenders, of_many_passes, of_one_pass
from bench.frontier.planted import PlantedSubject, Trained
from bench.frontier.subject import Array, Subject
from bench.known_truth.backgrounds import PATCH
from bench.known_truth.stamps import GRID
from whyformer.demo import load_pets, load_textures

SHIPPED = {"pets": load_pets, "textures": load_textures}


class Pictures(PlantedSubject):
    """The probability of the right class; absent patches have the picture's mean colour, as in our methods."""

    name = "image"
    masking: ClassVar[dict[str, Any]] = {"replace": "mean"}

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self.made_of = f"{self.count} pictures of {GRID * GRID} patches; {trained.gate}"

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[~np.array(explanation.units.special)]
        return scores

    def cause_P(self, number: int) -> Array:
        cause: Array = self.trained.planted.cause_IU[self.trained.rows[number]]
        return cause

    def values(self, number: int, present_VP: Array) -> Array:
        pixels = self.tensors([number])["pixel_values"]
        there = present_VP.reshape(-1, 1, GRID, GRID).repeat(PATCH, 2).repeat(PATCH, 3)
        shown = torch.where(torch.from_numpy(there), pixels, pixels.mean((2, 3), keepdim=True))
        return np.exp(self.log_probability(number, {"pixel_values": shown}))


class Photos(Subject):
    """The probability of the predicted class; absent patches have the photo's mean colour."""

    masking: ClassVar[dict[str, Any]] = {"replace": "mean"}

    def __init__(self, explainer: wf.Explainer, images: Sequence[Any], name: str = "photos") -> None:
        super().__init__(explainer, len(images))
        self.name, self.images, self.model = name, list(images), explainer.model
        processed: Any = explainer.processor
        self.pixels = [processed(image, return_tensors="pt")["pixel_values"].to(self.model.device) for image in images]
        self.classes = [int(self.logits(pixels)[0].argmax()) for pixels in self.pixels]
        self.side = self.model.config.image_size // self.model.config.patch_size
        self.made_of = f"{self.count} photos of {self.side**2} patches; the shipped model of {name}"

    @torch.no_grad()
    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values=pixels).logits.float().cpu()
        return logits

    def inputs(self, rows: Sequence[int]) -> list[Any]:
        return [self.images[i] for i in rows]

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[-(self.side**2) :]
        return scores

    def values(self, number: int, present_VP: Array) -> Array:
        pixels, patch = self.pixels[number], self.model.config.patch_size
        there = torch.from_numpy(present_VP.reshape(-1, 1, self.side, self.side)).to(pixels.device)
        there = there.repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        shown = torch.where(there, pixels, pixels.mean((2, 3), keepdim=True))
        return self.logits(shown).softmax(-1)[:, self.classes[number]].numpy()


def pictures(path: Path, count: int) -> list[Any]:
    """Photos from a folder or a tar file, drawn with a seed."""
    from PIL import Image

    if path.is_dir():
        contents = {str(p): p.read_bytes for p in path.rglob("*.jpg")}
    else:
        archive = tarfile.open(path)
        contents = {m.name: archive.extractfile(m).read for m in archive if m.name.endswith(".jpg")}  # type: ignore[union-attr]
    names = sorted(contents)
    drawn = [names[i] for i in np.random.default_rng(0).permutation(len(names))[:count]]
    return [Image.open(io.BytesIO(contents[name]())).convert("RGB") for name in drawn]


def shipped(name: str, count: int, photos: Path, device: str = "cpu") -> Photos:
    model, processor = SHIPPED[name]()
    return Photos(wf.Explainer(model.float().to(device), processor), pictures(photos, count), name)


def contenders() -> Contenders:
    return of_one_pass() | of_many_passes("mean") | {"vit_cx": ("vit_cx", {})}


def subject(count: int, seed: int, cache: Path | None, photos: Path | None = None, device: str = "cpu") -> Pictures:
    return Pictures(Trained("stamps", count, seed, cache, None if photos is None else str(photos), device))
