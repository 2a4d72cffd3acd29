"""Feature maps of a vision transformer: what a layer knows about each patch, laid out on the image."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.capture.leaves import AttentionInputs, as_leaf, slopes
from whyformer.errors import BadInput, NotOffered, UnknownName, one_of
from whyformer.loan.borrow import module_names
from whyformer.run import Run, require_undisturbed, working
from whyformer.shapes import Array

# The patch grid in pixel maps: how much of it there is, and smoothing that takes it away.
#
# A vision transformer reads pixels through one matrix per patch, so gradients at the pixels repeat that matrix in every
# patch and jump at its borders. People see a checkerboard and take it for structure of the image.

MEASURES = ("values", "steps")


def grid_artefact(detail: Array | Tensor, patch: int | tuple[int, int], of: str = "values") -> float:
    """Energy at the borders of patches ÷ energy inside; 1 where the grid cannot be seen.

    of="values": mean square of the map on the outermost ring of pixels of every patch ÷ that of the other pixels.
    of="steps": mean squared difference of neighbouring pixels across a border ÷ that of neighbours inside a patch.
    ``detail``: (…, height, width), channels added up; ``patch``: its height and width in pixels.
    """
    one_of("of", of, MEASURES)
    values = torch.as_tensor(detail).detach().double()
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    if values.ndim < 2 or min(rows, columns) < 1:
        raise BadInput(f"a map of shape {tuple(values.shape)} and patches of {rows}×{columns}: need height and width.")
    if of == "steps":
        border, inside = _steps(values, rows, columns)
    else:
        squares = values.square().flatten(0, -3).sum(0) if values.ndim > 2 else values.square()
        inner = (_inner(squares.shape[0], rows)[:, None] & _inner(squares.shape[1], columns)).to(squares.device)
        border, inside = squares[~inner], squares[inner]
    if not len(border) or not len(inside):  # no borders, or nothing but borders: there is no grid to compare with
        return 1.0
    high, low = float(border.mean()), float(inside.mean())
    if low == 0:
        return 1.0 if high == 0 else float("inf")
    return high / low


def _inner(length: int, patch: int) -> Tensor:
    """True at pixels that are not the first or last of a patch, along one axis."""
    space = torch.arange(length) % patch
    return (space > 0) & (space < patch - 1)


def _steps(values: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Squared differences of neighbours, one mean per pair of lines: across borders, and inside patches."""
    across, inside = [], []
    for axis, patch in ((-1, columns), (-2, rows)):
        lines = values.movedim(axis, 0)
        squares = (lines[1:] - lines[:-1]).square().flatten(1).mean(1)
        border = (torch.arange(1, len(lines), device=squares.device) % patch) == 0
        across.append(squares[border])
        inside.append(squares[~border])
    return torch.cat(across), torch.cat(inside)


def smoothed(detail_BCHW: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Every pixel's share spread over its neighbourhood by a Gaussian (rows, columns); what it adds up to stays.

    At the edge of the image a pixel's share is spread over the neighbours that exist.
    """
    return _spread(_spread(detail_BCHW, -2, sigma[0]), -1, sigma[1])


def _spread(values: Tensor, axis: int, sigma: float) -> Tensor:
    if sigma <= 0:
        return values
    lines = values.movedim(axis, -1)
    shape, length = lines.shape, lines.shape[-1]
    radius = min(int(4 * sigma + 0.5), length - 1)
    at = torch.arange(-radius, radius + 1, dtype=values.dtype, device=values.device)
    kernel = torch.exp(-(at**2) / (2 * sigma**2))[None, None]
    reached = F.conv1d(torch.ones(1, 1, length, dtype=values.dtype, device=values.device), kernel, padding=radius)
    spread = F.conv1d(lines.reshape(-1, 1, length) / reached, kernel, padding=radius)
    return spread.reshape(shape).movedim(-1, axis)


@dataclass(frozen=True)
class FeatureMap:
    """One layer's features of the patches, row by row; special tokens are left out.

    grids_B: rows and columns of each picture, where a batch of different sizes was padded at the right and bottom.
    """

    name: str
    grid: tuple[int, int]
    values_BPD: Tensor
    gradient_BPD: Tensor | None  # of the explained values
    grids_B: tuple[tuple[int, int], ...] = ()

    def laid_out(self, values_PD: Tensor, row: int) -> Tensor:
        """(D, rows, columns) numbers of the patches of one picture, without its padding."""
        rows, columns = self.grids_B[row] if self.grids_B else self.grid
        return values_PD.T.unflatten(1, self.grid)[:, :rows, :columns]


def feature_map(run: Run, layer: int | str | None, grad: bool, method: str) -> FeatureMap:
    """The features that enter attention ``layer`` (None: the last one), or the output of the module of that name.

    One forward pass; ``grad``: and one backward pass.
    """
    if not run.modality.place.pixels:
        raise NotOffered(f"{method} reads the features of image patches, and this input is no image.")
    outputs: list[Any] = []
    names = module_names(run.modality.model)
    intercept = AttentionInputs(run.batch.size, names, run.study.batch_axes)
    pixels = run.batch.tensors[run.modality.main]
    batch = run.batch.with_tensors(**{run.modality.main: as_leaf(pixels) if grad else pixels})
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad))
        if isinstance(layer, str):
            modules = dict(run.modality.model.named_modules())
            if layer not in modules:
                raise UnknownName("layer", layer, modules, "Or give the number of an attention layer.")
            stack.callback(modules[layer].register_forward_hook(lambda m, a, out: outputs.append(out)).remove)
        with intercept:
            logits = run.output.logits(batch)
    run.forwards_B += 1
    require_undisturbed(run, logits, graph=grad)
    with torch.set_grad_enabled(grad):
        values_B = run.scalars(logits)
    name, tensor, number = _chosen(intercept, outputs, layer)
    gradient = None
    if grad:
        with working(run, "features", name):  # from the head to this layer
            (gradient,) = slopes(values_B.sum(), [tensor])
        run.require_input_slopes()
    arrange = _Arrangement(run, tensor, number)
    slopes_BPD = None if gradient is None else arrange.patches(gradient)
    features = FeatureMap(name, arrange.grid, arrange.patches(tensor), slopes_BPD, arrange.grids())
    if features.gradient_BPD is not None and not features.gradient_BPD.any():
        paths = [path for path, _ in intercept.inputs]
        right = f" The last place where they still matter is layer=None, the input of {paths[-1]}." if paths else ""
        raise BadInput(
            f"at {features.name} the patches carry no gradient: only the tokens that feed the head do, so a map of the "
            f"patches would be empty.{right}"
        )
    return features


def _chosen(intercept: AttentionInputs, outputs: list[Any], layer: int | str | None) -> tuple[str, Tensor, int | None]:
    """Name, tensor, and the number of the attention it enters (None for the output of a module)."""
    if isinstance(layer, str):
        out = outputs[-1] if outputs else None
        members = out if isinstance(out, (tuple, list)) else out.values() if isinstance(out, dict) else [out]
        tensor = next((member for member in members if isinstance(member, Tensor)), None)
        if tensor is None:
            raise BadInput(f"layer={layer!r}: this module put out no tensor while the model ran.")
        return layer, tensor, None
    count = len(intercept.inputs)
    if not count:
        raise NotOffered("no attention was captured, so there is no last block: name a module, layer='path.of.module'.")
    number = count - 1 if layer is None else layer
    if not isinstance(number, int) or not -count <= number < count:
        raise BadInput(f"layer={layer!r}: the model has {count} attention layers, numbered 0 to {count - 1}.")
    path, entering = intercept.inputs[number]
    if entering is None:
        raise NotOffered(
            f"what the attention {path} reads could not be followed to its source. Name a module instead: "
            "layer='path.of.module'."
        )
    return f"the input of {path}", entering, number % count


class _Arrangement:
    """How a tensor of features lies on the image: windows, special tokens and channel order seen through."""

    def __init__(self, run: Run, tensor: Tensor, number: int | None) -> None:
        self.run, self.batch, self.number = run, run.batch.size, number
        self.windowed = number is not None and run.windowed
        self.channels_first = tensor.ndim == 4 and tensor.shape[1] != tensor.shape[2]
        if tensor.ndim == 4 and len(set(tensor.shape[1:])) == 1:
            raise BadInput(f"which axis of features of shape {tuple(tensor.shape)} holds the channels is not clear.")
        rows = self._rows(tensor).shape[1]
        units = run.units[0]
        special = np.asarray(units.special)
        height, width = run.batch.tensors[run.modality.main].shape[-2:]
        self.size: tuple[int, int] = (height, width)
        # Rows and columns that a detector attends to, padding included, where these are its features.
        part, view = run.modality.part("image", run.batch)
        known = run.multi_stream and run.stream_sizes.get("image") == rows
        self.seen = part.place.padded_grid(view, rows) if known else None
        if not run.multi_stream and rows == len(units) and units.grid is not None:
            self.is_patch, self.grid = torch.tensor(~special), units.grid
        else:
            self.is_patch = torch.ones(rows, dtype=torch.bool)
            down = max(1, round(math.sqrt(rows * height / width)))
            if self.seen is None and rows % down:
                raise BadInput(f"{rows} features are no grid over a {height}×{width} image. Choose another layer.")
            self.grid = self.seen or (down, rows // down)

    def grids(self) -> tuple[tuple[int, int], ...]:
        """Of each picture, where some are padded."""
        sizes = [units.image_size or self.size for units in self.run.units]
        if all(size == self.size for size in sizes):
            return ()
        if self.seen is not None:
            return tuple(units.grid or self.grid for units in self.run.units)
        (rows, columns), (height, width) = self.grid, self.size
        return tuple((math.ceil(high * rows / height), math.ceil(wide * columns / width)) for high, wide in sizes)

    def _rows(self, tensor: Tensor) -> Tensor:
        """(B, positions, D), special tokens included."""
        if self.windowed:
            assert self.number is not None
            windows = self.run.windows
            placement = windows.placements[self.number]
            places = placement.tokens_WN.flatten().to(tensor.device)
            flat = tensor.reshape(self.batch, len(places), -1)
            result = flat.new_zeros(self.batch, windows.sizes[placement.stage], flat.shape[-1])
            result[:, places[places >= 0]] = flat[:, places >= 0]
            return result
        if tensor.ndim == 4:
            return tensor.flatten(2).transpose(1, 2) if self.channels_first else tensor.flatten(1, 2)
        if tensor.ndim == 3 and len(tensor) != self.batch and tensor.shape[1] == self.batch:
            return tensor.transpose(0, 1)
        if tensor.ndim == 2 and len(tensor) > self.batch and len(tensor) % self.batch == 0:
            return tensor.unflatten(0, (self.batch, -1))
        if tensor.ndim != 3 or len(tensor) != self.batch:
            raise BadInput(f"features of shape {tuple(tensor.shape)} are no vectors per patch of {self.batch} images.")
        return tensor

    def patches(self, tensor: Tensor) -> Tensor:
        rows = self._rows(tensor.detach())
        rows = rows[:, self.is_patch.to(rows.device)]
        return rows.to(torch.promote_types(rows.dtype, torch.float32))
