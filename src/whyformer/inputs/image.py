"""Images: patches of a vision transformer, and image tokens inside a text (LLaVA, Qwen2-VL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer.errors import BadInput, MissingProcessor, ModelFailed, NotOffered, NotOverUnits
from whyformer.files import jpeg_uri, open_image
from whyformer.inputs.base import Mask, Modality, Place, Read
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool, required, shifted
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.stream_inputs import Layout, StreamInput, at_units
from whyformer.inputs.units import assemble, resampled
from whyformer.results.types import Units

# Options of image processors that cut, pad or keep the proportions.
OTHER_SHAPES = "do_center_crop do_crop do_crop_margin crop_pct do_pad do_thumbnail keep_aspect_ratio".split()
CHANNELS = 4  # of a picture, at most; a longer axis holds rows or columns
FORMS = 32  # of pictures whose units are remembered
SIGMA = 5.0  # pixels, of the blur


def require_both(processor: Any) -> Any:
    """Return a processor of images and texts; raise for any other."""
    if processor is None or not hasattr(processor, "image_processor"):
        raise MissingProcessor(
            "an image with a text needs the model's processor: pass processor=AutoProcessor.from_pretrained(…), or "
            "give tensors ({'input_ids': …, 'pixel_values': …}) instead."
        )
    return processor


class ImageRead(Read):
    """One image per input; units are the patches, and the tokens that the model adds (CLS, distillation, registers)."""

    stream = "image"

    def __init__(self, model: nn.Module, processor: Any = None, main: str = "pixel_values") -> None:
        super().__init__(model, processor)
        self.main = main
        self.image_processor = getattr(processor, "image_processor", processor)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        processor = self.image_processor
        if processor is None:
            raise MissingProcessor(
                "images need the model's image processor: pass processor=AutoImageProcessor.from_pretrained(…), or "
                "give tensors ({'pixel_values': …}) instead."
            )
        if not hasattr(processor, "preprocess"):
            raise BadInput(
                f"processor is a {type(processor).__name__}, which is not an image processor, and the inputs are "
                "images. Pass the image processor that was made for this model."
            )
        images = [open_image(r) for r in raw]
        encoded = dict(processed(processor, images=images, return_tensors="pt"))
        if self.main not in encoded and "pixel_values" in encoded:  # a home-made model has a name of its own for them
            encoded[self.main] = encoded.pop("pixel_values")
        tensors = {k: self.move(v) for k, v in encoded.items() if k in self.parameters}
        return Batch(tensors, raw=tuple(images), warnings=((),) * len(images))

    def adopt(self, tensors: Any) -> Batch:
        batch = super().adopt(tensors)
        pixels = required(batch, self.main)
        if not pixels.is_floating_point():
            raise BadInput(
                f"{self.main} holds whole numbers ({pixels.dtype}): give the output of the model's image processor, or "
                "arrays (height × width × colours) with that processor: tensor.permute(1, 2, 0).numpy()."
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

    def token_grid(self, size: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return rows and columns of one image's tokens, and of its pixels."""
        merged, patch, _ = sides(self.config)
        rows, columns = int(size[1]), int(size[2])
        return (rows // merged, columns // merged), (rows * patch, columns * patch)

    def pixels_of(self, one: Batch) -> Tensor:
        """(frames, channels, height, width) of a single input; a still image is held as several equal frames."""
        pixels = one.tensors[PATCHES][0]
        if SIZES not in one.tensors:
            return pixels[None]
        merged, patch, deep = sides(self.config)
        time, rows, columns = one.tensors[SIZES][0].tolist()
        real = pixels[: time * rows * columns]
        split = real.view(time, rows // merged, columns // merged, merged, merged, -1, deep, patch, patch)
        return split.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(time * deep, -1, rows * patch, columns * patch)

    def numbers_of(self, batch: Batch, pixels: Tensor) -> Tensor:
        """(B, …) as the batch holds them, from (B, frames, channels, height, width) of inputs of one size."""
        if SIZES not in batch.tensors:
            return pixels[:, 0]
        merged, patch, deep = sides(self.config)
        inputs, count, channels, height, width = pixels.shape
        high, wide = height // patch // merged, width // patch // merged
        split = pixels.reshape(inputs, count // deep, deep, channels, high, merged, patch, wide, merged, patch)
        # Patches that become one token follow one another.
        patches = split.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(inputs, -1, channels * deep * patch * patch)
        held = batch.tensors[PATCHES].clone()
        held[:, : patches.shape[1]] = patches
        return held


class ImagePlace(Place):
    """Patches of a picture, and the tokens that the model adds (CLS, distillation, registers)."""

    read: ImageRead
    pixels = True

    def __init__(self, read: Read) -> None:
        super().__init__(read)
        self._areas: dict[tuple[int, int], tuple[int, int]] = {}  # size of the tensor → size of what patches cover
        self._units: dict[tuple[Any, ...], Units] = {}  # of pictures of one form

    def _grid(self, batch: Batch, length: int, grid: tuple[int, int] | None) -> tuple[int, int]:
        """Return rows and columns of patches: those of the patch embedding, else of the config, else a square."""
        height, width = batch.tensors[self.read.main].shape[-2:]
        candidates = [grid] if grid else []
        patch = getattr(self.read.config, "patch_size", None)
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
            f"attention runs over {length} positions, which is not a grid of patches of a {height}×{width} image."
        )

    def _names(self, extra: int) -> list[str]:
        registers = getattr(self.read.config, "num_register_tokens", 0) or 0
        names = ["[CLS]"] + (["[DIST]"] if extra == 2 and not registers else [])
        return names + [f"[REG{i + 1}]" for i in range(extra - len(names))]

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        pixels = batch.tensors[self.read.main]
        size, key = size_of(pixels), (pixels.shape[1:], length, front, grid)
        if key not in self._units:
            rows, columns = self._grid(batch, length, grid)
            area = covered(self.read.model, pixels.shape[1], size, (rows, columns))
            extra = length - rows * columns
            labels = [f"patch {r},{c}" for r in range(1, rows + 1) for c in range(1, columns + 1)]
            units = assemble(labels, [False] * len(labels), self.read.stream, extra, front, self._names(extra))
            if len(self._units) >= FORMS:
                self._units.clear()
            self._units[key] = replace(units, grid=(rows, columns), image_size=area)
        plain = self._units[key]
        self._areas[size] = plain.image_size or size
        sizes = [self._picture_size(batch, row) for row in range(batch.size)]
        return [plain if size is None else replace(plain, picture_size=size) for size in sizes]

    def picture(self, batch: Batch, row: int) -> str | None:
        """Return what the patches cover; a picture that was only resized, in its own size."""
        if self._picture_size(batch, row) is not None:
            raw = batch.raw[row]
            return jpeg_uri(np.asarray(raw[0] if isinstance(raw, tuple) else raw))
        pixels = batch.tensors[self.read.main][row]
        if pixels.ndim != 3 or len(pixels) not in (1, 3):
            return None
        size = size_of(pixels)
        high, wide = self._areas.get(size, size)
        pixels = pixels[:, :high, :wide]
        mask = batch.tensors.get("pixel_mask")
        if mask is not None and mask.ndim == 3:  # smaller images were padded at the right and bottom
            pixels = pixels[:, : int(mask[row].any(1).sum()), : int(mask[row].any(0).sum())]
        mean, std = (getattr(self.read.image_processor, name, None) for name in ("image_mean", "image_std"))
        if mean is None or std is None or not getattr(self.read.image_processor, "do_normalize", True):
            mean, std = [0.0] * len(pixels), [1.0] * len(pixels)
        colours = pixels.float() * pixels.new_tensor(std).float()[:, None, None]
        colours = (colours + pixels.new_tensor(mean).float()[:, None, None]).clamp(0, 1) * 255
        return jpeg_uri(colours.round().byte().expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())

    def _picture_size(self, batch: Batch, row: int) -> tuple[int, int] | None:
        """Return height and width of the given picture, if the processor only resized it, to one size."""
        raw: Any = batch.raw[row] if batch.raw else None
        image, processor = raw[0] if isinstance(raw, tuple) else raw, self.read.image_processor
        size = getattr(processor, "size", None) or {}
        if not hasattr(image, "convert") or not getattr(processor, "do_resize", False):
            return None
        if any(getattr(processor, name, None) for name in OTHER_SHAPES) or not hasattr(size, "get"):
            return None
        seen = size_of(batch.tensors[self.read.main])
        if self._areas.get(seen, seen) != seen:
            return None
        return (image.height, image.width) if size.get("height") and size.get("width") else None

    def cells(self, batch: Batch) -> tuple[int, int] | None:
        """About 8 × 8."""
        height, width = batch.tensors[self.read.main].shape[-2:]
        rows = min(8, height)
        return rows, max(1, min(width, round(rows * width / height)))

    def first_changed(self, batch: Batch, grid: tuple[int, int]) -> Batch | None:
        pixels = batch.tensors[self.read.main]
        rows, columns = pixels.shape[-2] // grid[0], pixels.shape[-1] // grid[1]
        other = pixels.clone()
        other[..., :rows, :columns] = shifted(other[..., :rows, :columns])
        return batch.with_tensors(**{self.read.main: other})

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        alike = {(units.grid, units.image_size, units.special) for units in placed.units}
        if len(alike) == 1 and (sums_BP := _over_even_patches(detail, placed.units[0], largest)) is not None:
            special = placed.units[0].special
            first, count = special.index(False), sums_BP.shape[1]
            if not any(special[first : first + count]):  # no index that would be copied to the device
                return torch.nn.functional.pad(sums_BP, (first, len(special) - first - count))
        rows = []
        for pixels, units in zip(detail, placed.units, strict=True):
            masks = patch_masks(units, pixels[None])
            if largest:
                rows.append(torch.where(masks, pixels.amax(0), 0.0).amax((1, 2)))
            else:
                rows.append(torch.einsum("uhw,chw->u", masks.to(detail.dtype), pixels))
        return torch.stack(rows)


class ImageMask(Mask):
    """Other colours stand in place of masked patches."""

    read: ImageRead

    replacements = ("mean", "zero", "blur")

    def background(self, pixels: Tensor, replacement: str) -> Tensor:
        """Return the baseline of a patch: the image's mean colour, zero in the model's input space, or a blur."""
        self.require_replacement(replacement)
        if replacement == "mean":
            return pixels.mean((-2, -1), keepdim=True).expand_as(pixels)
        return torch.zeros_like(pixels) if replacement == "zero" else blurred(pixels)

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        """Return the patch of each pixel, for all channels; padding belongs to none."""
        patch = patch_of_pixels(units, one.tensors[self.read.main])
        patches = [i for i, special in enumerate(units.special) if not special]
        unit = torch.tensor(patches, device=patch.device)[patch.clamp(min=0)]
        return {self.read.main: torch.where(patch >= 0, unit, -1)[None]}

    @property
    def fillers(self) -> tuple[str, ...]:
        return "grey", "black", "resample"

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Grey is zero in the model's input space; black is what the processor makes of black."""
        pixels = one.tensors[self.read.main]
        if pool is not None and name == "resample":
            return resampled([self.read.main], one, pool)
        if pool is not None and name in {"grey", "black"}:
            return [{self.read.main: self._black(pixels) if name == "black" else torch.zeros_like(pixels)}]
        high, wide = units.image_size or pixels.shape[-2:]  # of the picture without its padding
        filled = pixels.clone()
        filled[..., :high, :wide] = self.background(pixels[..., :high, :wide], name)
        return [{self.read.main: filled}]

    def _black(self, pixels: Tensor) -> Tensor:
        processor = self.read.image_processor
        if processor is None:
            raise NotOffered("replace='black' needs the model's image processor: pass processor=….")
        if not getattr(processor, "do_normalize", True):
            return torch.zeros_like(pixels)
        mean, std = (torch.tensor(getattr(processor, name)).to(pixels) for name in ("image_mean", "image_std"))
        return (-mean / std)[None, :, None, None].expand_as(pixels)

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        background = self.background(placed.batch.tensors[self.read.main], str(name))
        return placed.batch.with_tensors(**{self.read.main: background})

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        if any(units.grid is None for units in placed.units):
            raise NotOffered(
                "the positions of the image patches in the model's attention are not known here, so gradients at its "
                "pixels cannot be assigned to units."
            )
        return [Pixels(placed, stream, self, layout[stream])]

    def owners_of_pixels(self, units: Units, one: Batch) -> Tensor:
        """Return the unit of each number of a single image, in the shape that the batch holds it in; -1: none."""
        frames_TCHW = self.read.pixels_of(one)
        images = [i for i, image in enumerate(is_image(units)) if image]
        owner_HW = torch.full(frames_TCHW.shape[-2:], -1)
        if images:
            assert units.grid is not None
            owner_HW = torch.tensor(images)[patch_index(units.grid, *frames_TCHW.shape[-2:])]
        owner = owner_HW.to(frames_TCHW.device).expand_as(frames_TCHW)
        nobody = torch.full_like(one.tensors[PATCHES], -1, dtype=torch.long)
        return self.read.numbers_of(one.with_tensors(pixel_values=nobody), owner[None])[0]


ImageInput = Modality.of(ImageRead, ImagePlace, ImageMask)


class Pixels(StreamInput):
    """An image whose patches are the units."""

    smooths = True
    fillers = ("zero", "mean", "blur")

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        return at_units([not special for special in units.special], pooled(numbers, units, largest))

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        high, wide = self.units(row).image_size or numbers.shape[-2:]
        inside = torch.zeros(numbers.shape[-2:], dtype=torch.bool, device=numbers.device)
        inside[:high, :wide] = True
        return inside


def size_of(pixels: Tensor) -> tuple[int, int]:
    """Return height and width."""
    return int(pixels.shape[-2]), int(pixels.shape[-1])


def covered(model: nn.Module, channels: int, size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Return height and width that a grid of patches covers in an image of this size.

    A convolution without overlap cuts squares from the upper left corner on and drops a rest smaller than a patch: with
    patches of 14, 378 of 384 pixels are read. Other embeddings overlap, or pad the image (Swin): the whole image.
    """
    squares = [
        module.kernel_size
        for module in model.modules()
        if isinstance(module, nn.Conv2d) and module.in_channels == channels and module.kernel_size == module.stride
        if module.padding in ((0, 0), "valid")
    ]
    for high, wide in squares:
        if (size[0] // high, size[1] // wide) == grid:
            return grid[0] * high, grid[1] * wide
    return size


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


def _over_even_patches(pixels_BCHW: Tensor, units: Units, largest: bool) -> Tensor | None:
    """(B, patches) the sum, or the largest, over patches of one size; None where they are not."""
    size = units.image_size or pixels_BCHW.shape[-2:]
    if units.grid is None or any(side % count for side, count in zip(size, units.grid, strict=True)):
        return None
    (high, wide), (rows, columns) = size, units.grid
    split = (pixels_BCHW.amax(1) if largest else pixels_BCHW.sum(1))[:, :high, :wide]
    split = split.unflatten(2, (columns, -1)).unflatten(1, (rows, -1))
    return (split.amax((2, 4)) if largest else split.sum((2, 4))).flatten(1)


def pooled(pixels: Tensor, units: Units, largest: bool = False) -> Tensor:
    """(patches,) the sum, or the largest, of (channels, height, width) over each patch, padding left out."""
    if (even := _over_even_patches(pixels[None], units, largest)) is not None:
        return even[0]
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


def blurred(pixels: Tensor) -> Tensor:
    """Gaussian blur with reflected borders."""
    radius = min(int(3 * SIGMA), min(pixels.shape[-2:]) - 1)
    x = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-(x**2) / (2 * SIGMA**2)).to(pixels)
    kernel = kernel / kernel.sum()
    channels = pixels.shape[1]
    weight = kernel.expand(channels, 1, -1)
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    horizontal = F.conv2d(padded, weight[:, :, None], groups=channels)
    return F.conv2d(horizontal, weight[:, :, :, None], groups=channels)


PATCHES, SIZES = "pixel_values", "image_grid_thw"  # (patches of all images, D); (images, 3) time, rows, columns


def sides(config: Any) -> tuple[int, int, int]:
    """Return patches along the side of a token, pixels along the side of a patch, frames in a patch."""
    vision = getattr(config, "vision_config", config)
    sizes = {"spatial_merge_size": 1, "patch_size": 14, "temporal_patch_size": 1}
    stated = [getattr(vision, name, usual) for name, usual in sizes.items()]
    merged, patch, deep = (int(size[0] if isinstance(size, (list, tuple)) else size) for size in stated)
    return merged, patch, deep


def are_packed(tensors: Any) -> bool:
    """Return whether the images are packed into one row of patches, with a table of their sizes."""
    return isinstance(tensors, Mapping) and isinstance(tensors.get(SIZES), Tensor) and PATCHES in tensors


def unpacked(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """(images, most patches, D), the shorter ones padded with zeros; one image per input."""
    sizes, patches = tensors[SIZES], tensors[PATCHES]
    inputs = len(tensors["input_ids"]) if "input_ids" in tensors else len(sizes)
    counts = sizes.prod(1).tolist()
    if len(sizes) != inputs:
        raise BadInput(f"images: {len(sizes)}, inputs: {inputs}. Explain inputs with one image each.")
    if patches.ndim != 2 or len(patches) != sum(counts):
        raise BadInput(
            f"{PATCHES} has shape {tuple(patches.shape)}, and {SIZES} lists {sum(counts)} patches: pass both as the "
            "processor returns them."
        )
    rows = torch.nn.utils.rnn.pad_sequence(list(patches.split(counts)), batch_first=True)
    return {**tensors, PATCHES: rows}


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pack the images again, as the model takes them."""
    counts = tensors[SIZES].prod(1).tolist()
    rows = [patches[:count] for patches, count in zip(tensors[PATCHES], counts, strict=True)]
    return tensors | {PATCHES: torch.cat(rows)}


def is_image(units: Units) -> list[bool]:
    """Units that stand for pixels: image tokens, or patches of a stream of their own (BLIP-2)."""
    return [stream == "image" and not special for stream, special in zip(units.stream, units.special, strict=True)]


def require_pixels(units: Units, of_pixels: bool, what: str) -> None:
    """Every image token has to stand for a piece of the picture of its own."""
    if any(is_image(units)) and (units.grid is None or not of_pixels):
        raise NotOffered(
            f"the {sum(is_image(units))} image tokens in this text are no grid of pieces of the image (several views "
            f"of it, or summaries of all of it), so {what}."
        )


class TokenPixels(StreamInput):
    """An image whose pieces became tokens inside a text."""

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units = self.units(row)
        frames = self.part.read.pixels_of(self.one(row, numbers))  # (frames, channels, height, width)
        return at_units(is_image(units), pooled(frames.flatten(0, 1), units, largest))

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        if SIZES not in self.placed.batch.tensors:
            return torch.ones_like(numbers, dtype=torch.bool)
        count = int(self.placed.batch.tensors[SIZES][row].prod())
        return (torch.arange(len(numbers), device=numbers.device) < count)[:, None]

    @property
    def fillers(self) -> tuple[str, ...]:
        # A patch of zeros is no input to Qwen: without bias or position, the first norm has nothing to scale.
        return ("mean", "zero", "blur") if SIZES in self.placed.batch.tensors else ("zero", "mean", "blur")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        one = self.one(row, numbers)
        background = self.part.background(self.part.read.pixels_of(one), str(filler))
        filled: Tensor = self.part.read.numbers_of(one, background[None])[0]
        return filled
