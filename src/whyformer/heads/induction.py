"""What the heads of a language model do with repetition: previous-token, duplicate-token and induction heads.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022 (arXiv:2209.11895). The
model reads random tokens twice, [A B C D][A B C D]: nothing but the repetition can be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.codec import Float32
from whyformer.errors import BadInput, NotOffered
from whyformer.heads.importance_kinds import table
from whyformer.inputs.text import TextInput
from whyformer.interop import dataframe
from whyformer.parameters import BatchSize, Count, Limits, Seed, checked
from whyformer.result import Result
from whyformer.run import Run
from whyformer.session import LoadedModel, loaded_as, passing_through
from whyformer.views.heads import induction_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]


def previous_token(attention_BHQK: Tensor) -> Tensor:
    """(B, H) mean attention to the token before."""
    return attention_BHQK.diagonal(-1, dim1=-2, dim2=-1).mean(-1)


def duplicate_token(attention_BHQK: Tensor, period: int) -> Tensor:
    """(B, H) mean attention, in the second copy, to the same token in the first: ``period`` back."""
    return attention_BHQK.diagonal(-period, dim1=-2, dim2=-1)[..., -period:].mean(-1)


def induction_score(attention_BHQK: Tensor, period: int) -> Tensor:
    """(B, H) mean attention, in the second copy, to the token after the first occurrence: ``period`` - 1 back."""
    return attention_BHQK.diagonal(1 - period, dim1=-2, dim2=-1)[..., -period:].mean(-1)


@dataclass(frozen=True, eq=False)
class InductionScores(Result):
    """Mean attention (L, H) of each kind on repeated random tokens, between 0 and 1."""

    what: ClassVar[str] = "induction scores"
    axes: ClassVar[Mapping[str, str]] = {
        "paths": "L",
        "previous_token": "LH",
        "duplicate_token": "LH",
        "induction": "LH",
    }

    previous_token: Float32
    duplicate_token: Float32
    induction: Float32
    paths: tuple[str, ...]
    length: int
    sequences: int

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        names = ("previous_token", "duplicate_token", "induction")
        heads = [tuple(map(int, at)) for at in np.argwhere(~np.isnan(self.induction))]
        rows = [{"layer": i, "head": j} | {name: float(getattr(self, name)[i, j]) for name in names} for i, j in heads]
        return dataframe(rows)


view_of.register(InductionScores, induction_view)


@checked
def induction(
    model: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    length: Annotated[int, Limits(2, 10**6)] = 20,
    sequences: Count = 8,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> InductionScores:
    """Score each head of a causal model on ``sequences`` of ``length`` random tokens, each read twice.

    Misleads when: a head attends there for another reason (a head that always looks ``length`` - 1 back scores as an
    induction head: try two lengths).
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    ids = repeated_tokens(loaded, length, sequences, seed)
    with passing_through(loaded, {"input_ids": ids}, batch_size=batch_size, progress=progress) as session:
        scores = session.gather(lambda run, rows: _scores(run, length), label="induction").mean(0)
        previous, duplicate, induced = scores.astype(np.float32)
        return InductionScores(previous, duplicate, induced, session.paths, length, sequences)


def repeated_tokens(loaded: LoadedModel, length: int, sequences: int, seed: int) -> Tensor:
    """(S, 2·length) ids, or one more with a start token where the model has one."""
    modality = TextInput(loaded.model, loaded.processor)
    embedding = modality.embedding()
    config = getattr(loaded.model, "config", None)
    others = [
        name for name in modality.parameters if name.startswith(("pixel_", "visual_", "image_", "input_features"))
    ]
    if embedding is None or others or getattr(config, "is_encoder_decoder", False):
        raise NotOffered("random tokens can be made for a model of one text only, which knows its token embedding.")
    special = modality.special_ids()
    start = getattr(config, "bos_token_id", None)
    words = torch.tensor([i for i in range(embedding.num_embeddings) if i not in special])
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([words[torch.randperm(len(words), generator=generator)[:length]] for _ in range(sequences)])
    if drawn.shape[1] < length:
        raise BadInput(f"length={length}: the vocabulary has only {drawn.shape[1]} tokens.")
    twice = torch.cat([drawn, drawn], 1)
    return twice if start is None else torch.cat([torch.full((sequences, 1), int(start)), twice], 1)


def _scores(run: Run, period: int) -> Tensor:
    """(b, 3, L, H)"""
    layers: list[list[Tensor]] = [[], [], []]
    for site in run.record().sites:
        attention = site.attention_BHQK.float()
        if bool(attention.triu(1).any()):
            raise NotOffered(
                f"{site.path} looks ahead: previous-token, duplicate-token and induction scores are about causal "
                "models. For encoders use heads.roles."
            )
        layers[0].append(previous_token(attention))
        layers[1].append(duplicate_token(attention, period))
        layers[2].append(induction_score(attention, period))
    return torch.stack([table(kind) for kind in layers], 1)
