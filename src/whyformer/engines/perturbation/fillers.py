"""What stands in place of an absent part, where a modality has no such thing itself: black, means, other inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.base import Batch, Modality
from whyformer.inputs.detection import DetectionInput
from whyformer.inputs.image import ImageInput, patch_index
from whyformer.inputs.table import TableInput
from whyformer.inputs.tensors import TensorInput
from whyformer.inputs.text import TextInput
from whyformer.run import Run

DRAWS = 4  # inputs drawn per variant, for replace="resample"

# Replacements made here, and the modalities that have them.
OWN: dict[str, tuple[type, ...]] = {
    "mean": (TensorInput, TableInput),
    "grey": (ImageInput,),
    "black": (ImageInput,),
    "resample": (TextInput, ImageInput, TensorInput, TableInput),
}


def made_here(modality: Modality, replacement: str | int) -> bool:
    """Is this replacement one of ours, for this modality? Detectors have the plain colours."""
    if not isinstance(replacement, str) or not isinstance(modality, OWN.get(replacement, ())):
        return False
    if isinstance(modality, DetectionInput):  # other images have other sizes, and padding
        return replacement != "resample"
    return not modality.multi_input


def fillers(
    run: Run, row: int, parts: Sequence[int], replacement: str, pool: Batch, seed: Sequence[int]
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """For every tensor, which part owns each entry (-1: none), and what is put there: one filling per draw."""
    owner = _owners(run, row, parts)
    one, name = run.batch.select([row]), run.modality.main
    if isinstance(run.modality, DetectionInput) and replacement in run.modality.replacements:
        return owner, [{name: run.modality.filling(run.units[row], one.tensors[name], replacement)}]
    if replacement == "resample":
        generator = np.random.default_rng(list(seed))
        # As many different inputs as there are.
        others = np.resize(generator.permutation(pool.size), DRAWS)
        return owner, [_drawn(run, one, owner, pool, int(other), generator) for other in others]
    if replacement == "mean":
        if pool.size == 1 and all(torch.equal(pool.tensors[name], one.tensors[name]) for name in owner):
            raise BadInput("replace='mean' of a single input is the input itself: pass reference=[…], or more inputs.")
        return owner, [{name: _typical(pool.tensors[name]) for name in owner}]
    return owner, [{name: _plain_colour(run, one.tensors[name], replacement)}]


def _owners(run: Run, row: int, parts: Sequence[int]) -> dict[str, Tensor]:
    """Per tensor (without the batch axis): the part that each entry belongs to."""
    modality, units = run.modality, run.units[row]
    part_U = torch.full((len(units),), -1)
    part_U[list(parts)] = torch.arange(len(parts))
    if isinstance(modality, ImageInput):
        pixels = run.batch.tensors[modality.main][row]
        assert units.grid is not None
        if isinstance(modality, DetectionInput):
            patch = modality.owner(units, pixels).cpu()
        else:
            patch = patch_index(units.grid, *pixels.shape[-2:])
        part_of_patch = part_U[~torch.tensor(units.special)]
        owned = torch.where(patch >= 0, part_of_patch[patch.clamp(min=0)], -1)
        return {modality.main: owned.expand(pixels.shape).to(pixels.device)}
    if isinstance(modality, (TensorInput, TableInput)):
        return _column_owners(run, part_U)
    if not isinstance(modality, TextInput) or run.study.extra or run.batch.keep_BN is None:
        raise NotOffered("which tensor entries belong to which unit is not known here: use another replacement.")
    ids, keep = run.batch.tensors[modality.main][row], run.batch.keep_BN[row].cpu()
    owner = torch.full(ids.shape, -1)
    owner[keep] = part_U
    return {modality.main: owner.to(ids.device)}


def _column_owners(run: Run, part_U: Tensor) -> dict[str, Tensor]:
    tensors = run.batch.tensors
    owner = {name: torch.full(tensor.shape[1:], -1) for name, tensor in tensors.items()}
    for unit, (name, column) in _columns(run):
        owner[name][column] = part_U[unit]
    return {name: own.to(tensors[name].device) for name, own in owner.items() if (own >= 0).any()}


def _columns(run: Run) -> list[tuple[int, tuple[str, int]]]:
    """(unit, (tensor, column)) for every column that a unit stands for."""
    modality, units = run.modality, run.units[0]
    if isinstance(modality, TableInput):
        tokens = enumerate(modality.tokens(run.batch, len(units)))
        return [(unit, modality.where(name)) for unit, names in tokens for name in names]
    assert isinstance(modality, TensorInput)
    columns = modality.seen_columns(run.batch, len(units))
    if not columns:
        raise NotOffered(
            f"the model attends over {len(units)} positions of its own making; which input belongs to which is not "
            "known, so none can be taken away."
        )
    return list(zip([i for i, special in enumerate(units.special) if not special], columns, strict=True))


def _typical(values_BX: Tensor) -> Tensor:
    """The mean of numbers, the most frequent of categories."""
    if values_BX.is_floating_point():
        return values_BX.float().mean(0, keepdim=True).to(values_BX.dtype)
    return values_BX.mode(0, keepdim=True).values


def _plain_colour(run: Run, pixels: Tensor, replacement: str) -> Tensor:
    """Grey is zero in the model's input space; black is what the processor makes of black."""
    if replacement == "grey":
        return torch.zeros_like(pixels)
    processor = getattr(run.modality.processor, "image_processor", run.modality.processor)
    if processor is None:
        raise NotOffered("what black looks like to the model is known to its image processor: pass processor=….")
    if not getattr(processor, "do_normalize", True):
        return torch.zeros_like(pixels)
    mean, std = (torch.tensor(getattr(processor, name)).to(pixels) for name in ("image_mean", "image_std"))
    return (-mean / std)[None, :, None, None].expand_as(pixels)


def _drawn(
    run: Run, one: Batch, owner: dict[str, Tensor], pool: Batch, other: int, generator: np.random.Generator
) -> dict[str, Tensor]:
    """Another input's values at the same places; for text, tokens drawn from all of the pool's."""
    if isinstance(run.modality, TextInput):
        ids = pool.tensors[run.modality.main]
        keep = torch.ones_like(ids, dtype=torch.bool) if pool.keep_BN is None else pool.keep_BN
        tokens = ids[keep].cpu().numpy()
        tokens = tokens[~np.isin(tokens, list(run.modality.special_ids()))]
        if not len(tokens):
            raise BadInput("replace='resample' draws tokens from the reference inputs, and they have none.")
        shape = one.tensors[run.modality.main].shape
        return {run.modality.main: torch.from_numpy(generator.choice(tokens, size=shape)).to(ids.device)}
    for name in owner:
        if pool.tensors[name].shape[1:] != one.tensors[name].shape[1:]:
            raise BadInput(
                f"replace='resample' needs reference inputs of the shape of the input: {name} is "
                f"{tuple(one.tensors[name].shape[1:])}, the reference {tuple(pool.tensors[name].shape[1:])}."
            )
    return {name: pool.tensors[name][other][None] for name in owner}
