"""Images and videos among the tokens of a text: which of their numbers belong to which token, and how they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput
from whyformer.files import jpeg_uri
from whyformer.inputs.families import is_media, is_video
from whyformer.inputs.image import blurred, patch_index, sides
from whyformer.inputs.stream_inputs import StreamInput, at_units
from whyformer.shapes import Array

# The pixels of each kind, what the model says about their sizes, and the names of the token that holds their place.
KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "image": ("pixel_values", "image_grid_thw", ("image_token_id", "image_token_index")),
    "video": ("pixel_values_videos", "video_grid_thw", ("video_token_id", "video_token_index")),
}
SQUARE = 1.25  # how many times as long as wide the piece of an image may be that one token stands for


@dataclass(frozen=True)
class Tile:
    """A rectangle of pixels whose tokens form a grid: an image, a piece of one, or a frame of a video."""

    kind: str
    where_FCHW: Tensor  # frames, channels, rows, columns: where each number is in the flattened tensor of one input
    grid: tuple[int, int]
    first: int  # its first token, among those of its kind in the text

    @property
    def tokens(self) -> range:
        return range(self.first, self.first + self.grid[0] * self.grid[1])


def place_ids(config: Any) -> dict[str, int]:
    """Return the id of the token that holds the place of each kind of media, from the model's config."""
    ids = {}
    for kind, (_, _, names) in KINDS.items():
        values = (getattr(config, name, None) for name in names)
        if (number := next((v for v in values if isinstance(v, int)), None)) is not None:
            ids[kind] = number
    return ids


def tiles_of(tensors: Mapping[str, Tensor], config: Any, counts: Mapping[str, int]) -> list[Tile] | None:
    """Return the tiles of one input; None where its tokens are no grids of pieces of an image.

    tensors: as the model takes them for this input alone. counts: tokens of each kind in the text.
    """
    tiles: list[Tile] = []
    for kind, (name, sizes, _) in KINDS.items():
        if name not in tensors or not counts.get(kind):
            continue
        numbers = torch.arange(tensors[name].numel()).view(tensors[name].shape)
        if sizes in tensors:
            grids = _packed(numbers, tensors[sizes], config)
        elif (places := tensors.get(f"{kind}_position_ids")) is not None:
            grids = _placed(numbers, places, config)
        else:
            grids = _dense(numbers, counts[kind], config)
        if grids is None or sum(rows * columns for _, (rows, columns) in grids) != counts[kind]:
            return None
        first = 0
        for where, grid in grids:
            tiles.append(Tile(kind, where, grid, first))
            first += grid[0] * grid[1]
    return tiles or None


Grids = list[tuple[Tensor, tuple[int, int]]]


def _packed(numbers_PD: Tensor, sizes_K3: Tensor, config: Any) -> Grids | None:
    """Patches of all images end to end (Qwen-VL); those that become one token follow one another."""
    merged, patch, deep = sides(config)
    counts = sizes_K3.prod(1).tolist()
    if numbers_PD.ndim != 2 or len(numbers_PD) != sum(counts) or numbers_PD.shape[1] % (deep * patch * patch):
        return None
    grids: Grids = []
    for patches, (time, rows, columns) in zip(numbers_PD.split(counts), sizes_K3.tolist(), strict=True):
        split = patches.view(time, rows // merged, columns // merged, merged, merged, -1, deep, patch, patch)
        frames = split.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(time, deep, -1, rows * patch, columns * patch)
        grids += [(frame, (rows // merged, columns // merged)) for frame in frames]
    return grids


def _placed(numbers_KPD: Tensor, places_KP2: Tensor, config: Any) -> Grids | None:
    """Patches with their column and row in the image, -1 for padding (Gemma 4)."""
    vision = getattr(config, "vision_config", config)
    merged, patch = int(getattr(vision, "pooling_kernel_size", 1)), sides(config)[1]
    if numbers_KPD.ndim != 3 or numbers_KPD.shape[2] % (patch * patch):
        return None
    grids: Grids = []
    for numbers, places in zip(numbers_KPD, places_KP2.cpu(), strict=True):
        real = (places >= 0).all(1)
        columns, rows = (int(n) + 1 for n in places[real].amax(0))
        squares = numbers[real].view(-1, patch, patch, numbers.shape[1] // patch**2)
        whole = torch.zeros(rows, columns, *squares.shape[1:], dtype=torch.long)
        whole[places[real][:, 1], places[real][:, 0]] = squares
        frame = whole.permute(4, 0, 2, 1, 3).reshape(1, -1, rows * patch, columns * patch)
        grids.append((frame, (rows // merged, columns // merged)))
    return grids


def _dense(numbers: Tensor, tokens: int, config: Any) -> Grids | None:
    """Pictures of one size, each with as many tokens: (…, channels, rows, columns)."""
    if numbers.ndim < 4:
        return None
    pictures = numbers.flatten(0, -4)
    if getattr(getattr(config, "vision_config", config), "patch_size", None) is not None:
        patch = sides(config)[1]  # the vision encoder does not read a rest smaller than a patch
        pictures = pictures[..., : pictures.shape[-2] // patch * patch, : pictures.shape[-1] // patch * patch]
    each, rest = divmod(tokens, len(pictures))
    high, wide = pictures.shape[-2:]
    for rows in range(1, each + 1):
        columns = each // rows
        if rows * columns == each and 1 / SQUARE < (high / rows) / (wide / columns) < SQUARE and not rest:
            return [(picture[None], (rows, columns)) for picture in pictures]
    return None


# Pixels of tiles, in and out of the tensors


def frames_of(tile: Tile, numbers: Tensor) -> Tensor:
    """(frames, channels, rows, columns) of one tile. numbers: the tensor of one input."""
    return numbers.flatten()[tile.where_FCHW.to(numbers.device)]


def owners_of(tiles: Sequence[Tile], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the token of each number, counted among those of its kind; -1: none. In the shape of the tensors."""
    owners = {}
    for kind, (name, _, _) in KINDS.items():
        if name not in like:
            continue
        owner = torch.full((like[name].numel(),), -1)
        for tile in tiles:
            if tile.kind == kind:
                piece = patch_index(tile.grid, *tile.where_FCHW.shape[-2:]) + tile.first
                owner[tile.where_FCHW] = piece.expand_as(tile.where_FCHW)
        owners[name] = owner.view(like[name].shape).to(like[name].device)
    return owners


# Several tiles below each other


def stacked(tiles: Sequence[Tile]) -> tuple[int, int] | None:
    """Return rows and columns of all tiles below one another; None where they are not equally wide."""
    widths = {(tile.grid[1], tile.where_FCHW.shape[-1]) for tile in tiles}
    return (sum(tile.grid[0] for tile in tiles), tiles[0].grid[1]) if len(widths) == 1 else None


def sheet_size(tiles: Sequence[Tile]) -> tuple[int, int]:
    """Return height and width of the tiles below one another."""
    return sum(t.where_FCHW.shape[-2] for t in tiles), max(t.where_FCHW.shape[-1] for t in tiles)


def boxes_of(tiles: Sequence[Tile]) -> list[tuple[float, float, float, float]]:
    """Return left, top, right, bottom of each token, as shares of the sheet."""
    height, width = sheet_size(tiles)
    boxes, above = [], 0
    for tile in tiles:
        (rows, columns), (high, wide) = tile.grid, tile.where_FCHW.shape[-2:]
        down, along = high / rows, wide / columns
        boxes += [
            (c * along / width, (above + r * down) / height, (c + 1) * along / width, (above + (r + 1) * down) / height)
            for r in range(rows)
            for c in range(columns)
        ]
        above += high
    return boxes


def sheet(tiles: Sequence[Tile], tensors: Mapping[str, Tensor], mean: Any, std: Any) -> str:
    """Return what the model saw as a picture (a data URI): the first frame of each tile, below one another."""
    height, width = sheet_size(tiles)
    canvas: Array = np.full((height, width, 3), 255, np.uint8)
    above = 0
    for tile in tiles:
        pixels = frames_of(tile, tensors[KINDS[tile.kind][0]])[0].float().cpu()
        channels = len(pixels)
        scale = torch.tensor(std if std is not None else [1.0] * channels)[:channels, None, None]
        shift = torch.tensor(mean if mean is not None else [0.0] * channels)[:channels, None, None]
        colours = ((pixels * scale + shift).clamp(0, 1) * 255).round().byte().expand(3, -1, -1)
        canvas[above : above + pixels.shape[1], : pixels.shape[2]] = colours.permute(1, 2, 0).numpy()
        above += pixels.shape[1]
    return jpeg_uri(canvas)


# Tensors of several inputs: a row for each


def row_of(batch_tensors: Mapping[str, Tensor], row: int, facts: Any) -> dict[str, Tensor]:
    """Return the media of one input in their own shape; other inputs may have more. facts: what is known about it."""
    shapes = facts.get("media") if isinstance(facts, Mapping) else None
    entries = {}
    for name, tensor in batch_tensors.items():
        if is_media(name) and (shapes is None or name in shapes):
            shape = tensor.shape[1:] if shapes is None else shapes[name]
            entries[name] = tensor[row][tuple(slice(size) for size in shape)]
    return entries


def rows_together(each: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return (inputs, …) tensors of media, padded with zeros to one shape, and the shape of each input's own."""
    together: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for one in each for name in one):
        present = [one[name] for one in each if name in one]
        shape = [max(t.shape[axis] for t in present) for axis in range(present[0].ndim)]
        rows = present[0].new_zeros(len(each), *shape)
        for row, one in enumerate(each):
            if name in one:
                rows[row][tuple(slice(size) for size in one[name].shape)] = one[name]
        together[name] = rows
    return together, [{name: tuple(tensor.shape) for name, tensor in one.items()} for one in each]


def split_by_input(tensors: Mapping[str, Tensor], ids_BN: Tensor, config: Any) -> list[dict[str, Tensor]]:
    """Return the media of each input, of tensors that hold those of all inputs end to end."""
    each: list[dict[str, Tensor]] = [{} for _ in ids_BN]
    for kind, token in place_ids(config).items():
        name, sizes, _ = KINDS[kind]
        if name not in tensors:
            continue
        of_kind = {n: t for n, t in tensors.items() if is_media(n) and is_video(n) == (kind == "video")}
        tokens = (ids_BN == token).sum(1).tolist()
        images = _images_of_rows(of_kind, sizes, tokens, len(tensors[name]), sides(config)[0])
        if images is None:
            raise BadInput(
                f"{name} has shape {tuple(tensors[name].shape)}, and the texts hold {tokens} tokens for it: which "
                "image belongs to which text is not known. Give one input at a time, or images and texts with the "
                "processor."
            )
        counts = {name: [int(c.prod(1).sum()) for c in of_kind[sizes].split(images)] if sizes in of_kind else images}
        for n, tensor in of_kind.items():
            # A count of frames per video belongs to the only input, though its frames are more (Gemma 4).
            others = [len(tensor)] if len(ids_BN) == 1 else [1] * len(ids_BN)
            sizes_of_rows = counts.get(n, images if sum(images) == len(tensor) else others)
            if sum(sizes_of_rows) != len(tensor):
                raise BadInput(
                    f"{n} has shape {tuple(tensor.shape)}, and {sum(sizes_of_rows)} entries were expected for the "
                    "images of these texts: pass all tensors as the processor returns them."
                )
            parts = tensor.split(sizes_of_rows)
            for row, part in enumerate(parts):
                each[row][n] = part
    return each


def _images_of_rows(
    entries: Mapping[str, Tensor], sizes: str, tokens: list[int], leading: int, merged: int
) -> list[int] | None:
    """Return how many images (entries of the leading axis) each input has, by the tokens in its text."""
    if sizes in entries:
        waiting = [int(n) // merged**2 for n in entries[sizes].prod(1).tolist()]
        images = []
        for number in tokens:
            held = 0
            left = number
            while left > 0 and waiting:
                left, held = left - waiting.pop(0), held + 1
            images.append(held)
            if left:
                return None
        return None if waiting else images
    if leading == len(tokens):
        return [1] * leading
    if not any(tokens) or any(number * leading % sum(tokens) for number in tokens):
        return None
    return [number * leading // sum(tokens) for number in tokens]


def filled(numbers: Tensor, tiles: Sequence[Tile], background: str) -> Tensor:
    """Return the tensor of one input with every tile replaced by its mean colour, zeros, or a blur of itself."""
    flat = numbers.clone().flatten()
    for tile in tiles:
        frames = frames_of(tile, numbers)
        if background == "mean":
            other = frames.mean((-2, -1), keepdim=True).expand_as(frames)
        else:
            other = torch.zeros_like(frames) if background == "zero" else blurred(frames)
        flat[tile.where_FCHW.to(flat.device)] = other
    return flat.view_as(numbers)


class MediaPixels(StreamInput):
    """Pixels of images or videos whose pieces are tokens of a text."""

    def __init__(self, placed: Any, kind: str, part: Any, positions: slice, name: str) -> None:
        super().__init__(placed, "image", part, positions)
        self.kind, self.name = kind, name

    def per_unit(self, row: int, numbers: Tensor, largest: bool) -> Tensor:
        units, tiles = self.units(row), self.part.require_tiles(self.placed.batch, "they have no pixels", row)
        of_kind = [tile for tile in tiles if tile.kind == self.kind]
        owner = owners_of(of_kind, {self.name: self._own(row, numbers)})[self.name].flatten()
        tokens = sum(len(tile.tokens) for tile in of_kind)
        flat = self._own(row, numbers).flatten()
        sums = flat.new_zeros(tokens + 1)  # the last one is of numbers that belong to no token
        how = "amax" if largest else "sum"
        sums = sums.scatter_reduce(0, torch.where(owner < 0, tokens, owner), flat, how, include_self=not largest)
        ids = self.placed.batch.tensors[self.part.read.main][row][self.placed.batch.real_BN[row]].tolist()
        return at_units([token == self.part.read.place_ids[self.kind] for token in ids][: len(units)], sums[:tokens])

    def _own(self, row: int, numbers: Tensor) -> Tensor:
        facts = self.placed.batch.encodings[row] if self.placed.batch.encodings else {}
        return row_of({self.name: numbers[None]}, 0, facts)[self.name]

    def counted(self, row: int, numbers: Tensor) -> Tensor:
        real = torch.zeros_like(numbers, dtype=torch.bool)
        here = self._own(row, numbers)
        real[tuple(slice(size) for size in here.shape)] = True
        return real

    @property
    def fillers(self) -> tuple[str, ...]:
        # Zeros are no image to Qwen, whose first norm has nothing to scale then, nor to Idefics: they are its padding.
        all_tensors = self.placed.batch.tensors
        empty = f"{self.kind}_grid_thw" in all_tensors or all_tensors[self.name].ndim > 5
        return ("mean", "zero", "blur") if empty else ("zero", "mean", "blur")

    def filled(self, row: int, numbers: Tensor, filler: str | int) -> Tensor:
        tiles = self.part.require_tiles(self.placed.batch, "they have no baseline", row)
        result = numbers.clone()
        here = self._own(row, numbers)
        result[tuple(slice(size) for size in here.shape)] = filled(
            here, [t for t in tiles if t.kind == self.kind], str(filler)
        )
        return result
