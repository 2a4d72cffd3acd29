"""Arguments beside the ids of a text: which axes run along its tokens, and which numbers may be positions in it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from whyformer.inputs.families import INPUT_STREAMS
from whyformer.inputs.host import on_host

LABELS = ("label", "start_positions", "end_positions")  # read for a loss, not for the logits


def axes_along(name: str, tensor: Tensor, width: int) -> tuple[int, ...]:
    """The axes of an argument that have one entry per token.

    A mask or bias may have two of them, (B, N, N) or (B, 1, N, N). Other arguments have the tokens on their second
    axis; of four axes and more that one holds the channels of a picture.
    """
    if name.startswith("decoder_") or INPUT_STREAMS.get(name) in {"image", "audio"}:
        return ()  # of another length, though it may be the same by chance
    if _hides(name):
        return tuple(axis for axis in range(max(1, tensor.ndim - 2), tensor.ndim) if tensor.shape[axis] == width)
    return (1,) if tensor.ndim in {2, 3} and tensor.shape[1] == width else ()


def _hides(name: str) -> bool:
    return ("mask" in name or "bias" in name) and "pixel" not in name


def with_columns(tensors: Mapping[str, Tensor], width: int, columns_MK: Tensor) -> dict[str, Tensor]:
    """The arguments of one text of ``width`` tokens, once per row of columns: with these tokens alone."""
    chosen = {}
    for name, tensor in tensors.items():
        columns, axes = columns_MK.to(tensor.device), axes_along(name, tensor, width)
        if axes == (1,):
            chosen[name] = tensor[0][columns]
        elif axes:
            chosen[name] = torch.stack([_selected(tensor[0], axes, row) for row in columns])
        else:
            chosen[name] = tensor[[0] * len(columns)]
    return chosen


def _selected(tensor: Tensor, axes: tuple[int, ...], columns: Tensor) -> Tensor:
    for axis in axes:
        tensor = tensor.index_select(axis - 1, columns)
    return tensor


def with_deleted(tensors: Mapping[str, Tensor], width: int, columns_MK: Tensor) -> dict[str, Tensor]:
    """:func:`with_columns`, where the other tokens were deleted: the rest moves up, and so do its position_ids."""
    chosen = with_columns(tensors, width, columns_MK)
    numbers = tensors.get("position_ids")
    if numbers is None or numbers.ndim != 2 or numbers.shape[1] != width:
        return chosen
    columns = columns_MK.to(numbers.device)
    there = torch.zeros(len(columns), width, dtype=torch.long, device=numbers.device).scatter_(1, columns, 1)
    before = (1 - there).cumsum(1)  # deleted up to each token
    starts = torch.ones_like(numbers[0], dtype=torch.bool)
    starts[1:] = numbers[0, 1:] != numbers[0, :-1] + 1  # where a count begins anew, of a second text or after padding
    first = torch.where(starts, torch.arange(width, device=numbers.device), 0).cummax(0).values
    up_to_start = torch.nn.functional.pad(before, (1, 0))[:, :-1][:, first]
    moved = numbers - (before - up_to_start)
    return chosen | {"position_ids": moved.gather(1, columns).to(numbers.dtype)}


def pointers(tensors: Mapping[str, Tensor], main: str) -> tuple[str, ...]:
    """Arguments of whole numbers up to the length, with another number of entries than there are tokens.

    They may be positions in the text, such as the first and last token of a word, or its length.
    """
    width = tensors[main].shape[1]
    return tuple(
        name
        for name, tensor in tensors.items()
        if name != main and not tensor.is_floating_point() and tensor.dtype is not torch.bool
        if tensor.ndim <= 3 and not axes_along(name, tensor, width) and not _hides(name)
        if not any(label in name for label in LABELS)
        if 0 <= int(on_host(tensor).max()) <= width
    )
