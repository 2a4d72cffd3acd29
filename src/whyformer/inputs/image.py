"""Images: patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer.errors import BadInput, MissingProcessor, ModelFailed, NotOffered, NotOverUnits, UnknownName
from whyformer.files.image_file import jpeg_uri, open_image
from whyformer.inputs.base import Modality, shifted
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool, all_real
from whyformer.inputs.processing import processed
from whyformer.inputs.stream_inputs import Layout, StreamInput, at_units
from whyformer.inputs.units import assemble, resampled
from whyformer.results.types import Units

# Options of image processors that cut, pad or keep the proportions.
OTHER_SHAPES = (
    "do_center_crop",
    "do_crop",
    "do_crop_margin",
    "crop_pct",
    "do_pad",
    "do_thumbnail",
    "keep_aspect_ratio",
)
CHANNELS = 4  # of a picture, at most; a longer axis holds rows or columns


class ImageInput(Modality):
    """One image per input; units are the patches, and the tokens that the model adds (CLS, distillation, registers)."""

    stream = "image"
    pixels = True

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "pixel_values") -> None:
        super().__init__(model, processor)
        self.main = main

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if self.processor is None:
            raise MissingProcessor(
                "images need the model's image processor: pass processor=AutoImageProcessor.from_pretrained(…), or "
                "give tensors ({'pixel_values': …}) instead."
            )
        processor = getattr(self.processor, "image_processor", self.processor)
        if not hasattr(processor, "preprocess"):
            raise BadInput(
                f"processor is a {type(processor).__name__}, which is no image processor, and the inputs are images. "
                "Pass the image processor that was made for this model."
            )
        images = [open_image(r) for r in raw]
        encoded = dict(processed(processor, images=images, return_tensors="pt"))
        if self.main not in encoded and "pixel_values" in encoded:  # a home-made model has a name of its own for them
            encoded[self.main] = encoded.pop("pixel_values")
        tensors = {k: self.move(v) for k, v in encoded.items() if k in self.parameters}
        return Batch(tensors, raw=tuple(images), warnings=((),) * len(images))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        pixels = self.require_main(batch)
        if not pixels.is_floating_point():
            raise BadInput(
                f"{self.main} holds whole numbers ({pixels.dtype}): give what the model's image processor makes of the "
                "pictures, or the pictures themselves with that processor."
            )
        if pixels.ndim != 4:
            raise BadInput(
                f"{self.main} has shape {tuple(pixels.shape)}; expected (inputs, channels, rows, columns); one image "
                "needs a leading axis, pixels[None]."
            )
        _, high, wide, last = pixels.shape
        if high > CHANNELS and wide > CHANNELS >= last:
            raise BadInput(
                f"{self.main} has shape {tuple(pixels.shape)}, with the {last} channels last; rows and columns are "
                "taken from the last two axes. Give (inputs, channels, rows, columns), and wrap a model that wants "
                "them last: its forward begins with pixels.permute(0, 2, 3, 1)."
            )
        return batch

    def call(self, batch: Batch, **extra: Any) -> Any:
        try:
            return super().call(batch, **extra)
        except ModelFailed as failure:
            error = failure.__cause__
            if not isinstance(error, ValueError) or "image size" not in str(error).lower():
                raise
            height, width = batch.tensors[self.main].shape[-2:]
            raise BadInput(
                f"{self.main} of {height}×{width} pixels do not fit the model ({error}). Resize the pictures, as the "
                "model's image processor does, or add 'interpolate_pos_encoding': True to the tensors where the model "
                "takes it."
            ) from error

    def _grid(self, batch: Batch, length: int, grid: tuple[int, int] | None) -> tuple[int, int]:
        """Return rows and columns of patches: those of the patch embedding, else of the config, else a square."""
        height, width = batch.tensors[self.main].shape[-2:]
        candidates = [grid] if grid else []
        patch = getattr(self.config, "patch_size", None)
        if patch:
            rows, columns = patch if isinstance(patch, (tuple, list)) else (patch, patch)
            candidates.append((height // rows, width // columns))
        for extra in range(6):  # as many patches as fit the image's shape, a few added tokens apart
            total = length - extra
            rows = round(max(total * height / width, 0) ** 0.5)
            if rows and total % rows == 0 and abs(total / rows * height - rows * width) < max(height, width):
                candidates.append((rows, total // rows))
        for rows, columns in candidates:
            if 0 < rows * columns <= length and length - rows * columns < 16:
                return rows, columns
        raise NotOverUnits(
            f"attention runs over {length} positions, which is no grid of patches of a {height}×{width} image."
        )

    def _names(self, extra: int) -> list[str]:
        registers = getattr(self.config, "num_register_tokens", 0) or 0
        names = ["[CLS]"] + (["[DIST]"] if extra == 2 and not registers else [])
        return names + [f"[REG{i + 1}]" for i in range(extra - len(names))]

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        rows, columns = self._grid(batch, length, grid)
        extra = length - rows * columns
        height, width = batch.tensors[self.main].shape[-2:]
        units = assemble(
            [f"patch {r},{c}" for r in range(rows) for c in range(columns)],
            [False] * (rows * columns),
            self.stream,
            extra,
            front,
            self._names(extra),
            grid=(rows, columns),
            image_size=(height, width),
        )
        return [replace(units, picture_size=self._picture_size(batch, row)) for row in range(batch.size)]

    def picture(self, batch: Batch, row: int) -> str | None:
        """Return what the processor cropped; a picture that was only resized, in its own size."""
        if self._picture_size(batch, row) is not None:
            raw = batch.raw[row]
            return jpeg_uri(np.asarray(raw[0] if isinstance(raw, tuple) else raw))
        pixels = batch.tensors[self.main][row]
        if pixels.ndim != 3 or len(pixels) not in (1, 3):
            return None
        mask = batch.tensors.get("pixel_mask")
        if mask is not None and mask.ndim == 3:  # smaller images were padded at the right and bottom
            pixels = pixels[:, : int(mask[row].any(1).sum()), : int(mask[row].any(0).sum())]
        processor = getattr(self.processor, "image_processor", self.processor)
        mean, std = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
        if mean is None or std is None or not getattr(processor, "do_normalize", True):
            mean, std = [0.0] * len(pixels), [1.0] * len(pixels)
        colours = pixels.float() * pixels.new_tensor(std).float()[:, None, None]
        colours = (colours + pixels.new_tensor(mean).float()[:, None, None]).clamp(0, 1) * 255
        return jpeg_uri(colours.round().byte().expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())

    def _picture_size(self, batch: Batch, row: int) -> tuple[int, int] | None:
        """Return height and width of the given picture, if the processor only resized it, to one size."""
        raw: Any = batch.raw[row] if batch.raw else None
        image = raw[0] if isinstance(raw, tuple) else raw
        processor = getattr(self.processor, "image_processor", self.processor)
        size = getattr(processor, "size", None) or {}
        if not hasattr(image, "convert") or not getattr(processor, "do_resize", False):
            return None
        if any(getattr(processor, name, None) for name in OTHER_SHAPES) or not hasattr(size, "get"):
            return None
        return (image.height, image.width) if size.get("height") and size.get("width") else None

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        return all_real(batch.size, length, device=batch.tensors[self.main].device)

    def cells(self, batch: Batch) -> tuple[int, int] | None:
        """About 8 × 8."""
        height, width = batch.tensors[self.main].shape[-2:]
        rows = min(8, height)
        return rows, max(1, min(width, round(rows * width / height)))

    def first_changed(self, batch: Batch, grid: tuple[int, int]) -> Batch | None:
        pixels = batch.tensors[self.main]
        rows, columns = pixels.shape[-2] // grid[0], pixels.shape[-1] // grid[1]
        other = pixels.clone()
        other[..., :rows, :columns] = shifted(other[..., :rows, :columns])
        return batch.with_tensors(**{self.main: other})

    @property
    def replacements(self) -> tuple[str, ...]:
        return ("mean", "zero", "blur")

    def background(self, pixels: Tensor, replacement: str) -> Tensor:
        """Return the baseline of a patch: the image's mean colour, zero in the model's input space, or a blur."""
        if replacement == "mean":
            return pixels.mean((-2, -1), keepdim=True).expand_as(pixels)
        if replacement == "zero":
            return torch.zeros_like(pixels)
        if replacement == "blur":
            return blurred(pixels)
        raise UnknownName("replacement", replacement, self.replacements)

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        """Return the patch of each pixel, for all channels; padding belongs to none."""
        patch = patch_of_pixels(units, one.tensors[self.main])
        patches = [i for i, special in enumerate(units.special) if not special]
        unit = torch.tensor(patches, device=patch.device)[patch.clamp(min=0)]
        return {self.main: torch.where(patch >= 0, unit, -1)[None]}

    @property
    def fillers(self) -> tuple[str, ...]:
        return () if self.multi_input else ("grey", "black", "resample")

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Grey is zero in the model's input space; black is what the processor makes of black."""
        pixels = one.tensors[self.main]
        if pool is not None and name == "resample":
            return resampled([self.main], one, pool)
        if pool is not None and name == "grey":
            return [{self.main: torch.zeros_like(pixels)}]
        if pool is not None and name == "black":
            return [{self.main: self._black(pixels)}]
        high, wide = units.image_size or pixels.shape[-2:]  # of the picture without its padding
        filled = pixels.clone()
        filled[..., :high, :wide] = self.background(pixels[..., :high, :wide], name)
        return [{self.main: filled}]

    def _black(self, pixels: Tensor) -> Tensor:
        processor = getattr(self.processor, "image_processor", self.processor)
        if processor is None:
            raise NotOffered("what black looks like to the model is known to its image processor: pass processor=….")
        if not getattr(processor, "do_normalize", True):
            return torch.zeros_like(pixels)
        mean, std = (torch.tensor(getattr(processor, name)).to(pixels) for name in ("image_mean", "image_std"))
        return (-mean / std)[None, :, None, None].expand_as(pixels)

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        background = self.background(placed.batch.tensors[self.main], str(name))
        return placed.batch.with_tensors(**{self.main: background})

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        rows = []
        for pixels, units in zip(detail, placed.units, strict=True):
            masks = patch_masks(units, pixels[None])
            if largest:
                rows.append(torch.where(masks, pixels.amax(0), 0.0).amax((1, 2)))
            else:
                rows.append(torch.einsum("uhw,chw->u", masks.to(detail.dtype), pixels))
        return torch.stack(rows)

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality) -> list[StreamInput]:
        if any(units.grid is None for units in placed.units):
            raise NotOffered(
                "which positions of the model's attention are the patches of the image is not known here, so "
                "gradients at its pixels belong to no unit."
            )
        return [Pixels(placed, stream, self, layout[stream])]


class Pixels(StreamInput):
    """An image whose patches are the units."""

    smooths = True

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        return at_units([not special for special in units.special], pooled(numbers, units, largest))

    def kept(self, row: int, numbers: Tensor) -> Tensor:
        high, wide = self.units(row).image_size or numbers.shape[-2:]
        inside = torch.zeros(numbers.shape[-2:], dtype=torch.bool, device=numbers.device)
        inside[:high, :wide] = True
        return inside

    @property
    def fillers(self) -> tuple[str, ...]:
        return ("zero", "mean", "blur")


def patch_masks(units: Units, pixels: Tensor) -> Tensor:
    """(U, height, width) the pixels of each unit; none for the tokens that the model adds, nor in padding."""
    numbers = iter(range(len(units)))
    patches = torch.tensor([-2 if special else next(numbers) for special in units.special], device=pixels.device)
    return patch_of_pixels(units, pixels) == patches[:, None, None]


def patch_of_pixels(units: Units, pixels: Tensor) -> Tensor:
    """(height, width) which patch a pixel belongs to, row by row; -1 is padding."""
    assert units.grid is not None
    high, wide = units.image_size or pixels.shape[-2:]  # less than the tensor's where smaller images were padded
    index = torch.full(pixels.shape[-2:], -1)
    index[:high, :wide] = patch_index(units.grid, high, wide)
    return index.to(pixels.device)


def pooled(pixels: Tensor, units: Units, largest: bool = False) -> Tensor:
    """(patches,) the sum, or the largest, of (channels, height, width) over each patch, padding left out."""
    assert units.grid is not None
    high, wide = units.image_size or pixels.shape[-2:]
    flat = (pixels.amax(0) if largest else pixels.sum(0))[:high, :wide]
    row, column = (
        torch.arange(size, device=pixels.device) * count // size
        for size, count in zip((high, wide), units.grid, strict=True)
    )
    # Two sums along the axes give the same on every run, which adding at scattered places would not on a GPU.
    for index, count in ((row, units.grid[0]), (column, units.grid[1])):
        parts = [flat[index == i] for i in range(count)]
        flat = torch.stack([part.amax(0) if largest else part.sum(0) for part in parts]).t()
    return flat.flatten()


def patch_index(grid: tuple[int, int], height: int, width: int) -> Tensor:
    """(height, width) which patch a pixel belongs to, row by row."""
    rows = torch.arange(height) * grid[0] // height
    columns = torch.arange(width) * grid[1] // width
    return rows[:, None] * grid[1] + columns


def blurred(pixels: Tensor, sigma: float = 5.0) -> Tensor:
    """Gaussian blur with reflected borders."""
    radius = min(int(3 * sigma), min(pixels.shape[-2:]) - 1)
    x = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-(x**2) / (2 * sigma**2)).to(pixels)
    kernel = kernel / kernel.sum()
    channels = pixels.shape[1]
    weight = kernel.expand(channels, 1, -1)
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    horizontal = F.conv2d(padded, weight[:, :, None], groups=channels)
    return F.conv2d(horizontal, weight[:, :, :, None], groups=channels)
