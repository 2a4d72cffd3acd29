"""Explain an input with a little noise on it: pixels, columns, or word embeddings."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.evaluate.contender import Contender
from whyformer.evaluate.games import Games
from whyformer.registry import get_method
from whyformer.run import Run

Array = np.ndarray[Any, Any]


class NoisyEmbedding(TorchFunctionMode):
    """Adds noise to whatever is looked up in one embedding table; the same noise at a position each time."""

    def __init__(self, weight: Tensor, noise_ND: Tensor) -> None:
        super().__init__()
        self.weight, self.noise_ND = weight, noise_ND

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ != "embedding" or all(a is not self.weight for a in (*args, *(kwargs or {}).values())):
            return out
        return out + self.noise_ND[: out.shape[-2]]


def scores_with_noise(games: Games, entry: Contender, scalar: str, number: int, draw: int, radius: float) -> Array:
    """(P,) scores of one input with uniform noise of ± radius × the spread of its numbers; NaN where it has none."""
    modality, batch = games.modality, games.batch.select([number])
    generator = torch.Generator().manual_seed(hash((games.seed, number, draw)) % 2**31)

    def noise(shape: Any, like: Tensor, spread: Tensor) -> Tensor:
        uniform = torch.rand(shape, generator=generator).to(device=like.device, dtype=like.dtype) * 2 - 1
        return uniform * radius * spread

    mode: Any = nullcontext()
    table = modality.embedding()
    if table is not None:
        length = batch.tensors[modality.main].shape[1]
        mode = NoisyEmbedding(table.weight, noise((length, table.embedding_dim), table.weight, table.weight.std()))
    else:
        floats = {k: v for k, v in batch.tensors.items() if v.is_floating_point() and "mask" not in k}
        if not floats or modality.embeds:
            return np.full(len(games.parts[number]), np.nan)
        batch = batch.with_tensors(**{k: v + noise(v.shape, v, v.float().std().to(v.dtype)) for k, v in floats.items()})
    method = get_method(entry.method)
    study = games.run_of(number)[0].study
    run = Run(
        modality, batch, study, target=games.wanted_targets and [games.targets[number]], scalar=scalar, seed=games.seed
    )
    with mode:
        attribution = method.run(run, **method.checked(games.options_of(entry.method, entry.options)))
    scores = attribution.scores_BN[0, run.keep_BN[0]].detach().float().cpu().numpy()
    return games.per_part(number, scores)
