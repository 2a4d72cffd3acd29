"""What is known about one attention and the block around it (capture/blocks/anatomy.py finds it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.blocks.residual import Step, Stream
from whyformer.capture.blocks.tape import Stretch
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered
from whyformer.types import Record, Site


@dataclass(frozen=True)
class Linear:
    """What happens to a vector on its way, the norms' statistics being what they were: scale_i · steps(vector)."""

    steps: tuple[Step, ...]
    scale_BQ: Tensor | None

    def apply(self, vectors: Tensor) -> Tensor:
        """The steps; the scale of the position that a vector arrives at comes on top."""
        for step in self.steps:
            if isinstance(step, Tensor):
                vectors = vectors * step.to(vectors.dtype)
            else:
                vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors

    def scaled(self, vectors_BQE: Tensor) -> Tensor:
        return vectors_BQE if self.scale_BQ is None else vectors_BQE * self.scale_BQ[..., None].to(vectors_BQE.dtype)


class Places:
    """Between the model's own layouts and (B, Q, width), for one site.

    ``rows`` gives, for each position of a tensor, batch row · keys + key position.
    """

    def __init__(self, site: OpenSite, batch: int) -> None:
        self.batch, self.first = batch, site.first_query
        self.keys = site.attention.shape[site.contraction.key]
        self.queries = site.attention.shape[site.contraction.query]
        self._in_order: dict[int, tuple[Tensor, bool]] = {}  # by id of rows, which are kept so that ids stay theirs

    def canonical_rows(self, device: torch.device) -> Tensor:
        starts = torch.arange(self.batch, device=device)[:, None] * self.keys + self.first
        return starts + torch.arange(self.queries, device=device)

    def in_order(self, rows: Tensor) -> bool:
        if id(rows) not in self._in_order:
            wanted = self.canonical_rows(rows.device).flatten()
            self._in_order[id(rows)] = rows, rows.numel() == wanted.numel() and torch.equal(rows.flatten(), wanted)
        return self._in_order[id(rows)][1]

    def read(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """The model's tensor → (B, Q, width)."""
        flat = tensor.reshape(-1, tensor.shape[-1])
        if self.in_order(rows):
            return flat.view(self.batch, self.queries, -1)
        place = torch.zeros(self.batch * self.keys, dtype=torch.long, device=rows.device)
        place[rows.flatten()] = torch.arange(rows.numel(), device=rows.device)
        return flat[place[self.canonical_rows(rows.device)]]

    def write(self, tensor_BQE: Tensor, rows: Tensor) -> Tensor:
        """(B, Q, width) → the model's layout; positions that the site has no query for are zero."""
        shape = (*rows.shape, tensor_BQE.shape[-1])
        if self.in_order(rows):
            return tensor_BQE.reshape(shape)
        whole = tensor_BQE.new_zeros(self.batch * self.keys, tensor_BQE.shape[-1])
        whole[self.canonical_rows(rows.device).flatten()] = tensor_BQE.flatten(0, 1)
        return whole[rows.flatten()].view(shape)

    def linear(self, stream: Stream) -> Linear:
        scale = None if stream.scale is None else self.read(stream.scale, stream.rows)[..., 0]
        return Linear(stream.steps, scale)


@dataclass(frozen=True)
class Block:
    """One attention and what follows it. Tensors are (B, Q, E), E being the width of the residual stream."""

    path: str
    output_HDE: Tensor  # W_O by head
    bias_E: Tensor | None  # b_O, where the projection has one
    projected_BQE: Tensor  # the attention's result after W_O and b_O
    residual_BQE: Tensor  # x, as it is added
    before: Linear  # from projected to what is added: a gain, a norm, usually nothing
    attended: Linear  # from the sum to where the MLP is added: the first norm of a post-norm block
    finished: Linear  # from the sum to the block's output, the MLP left out
    attended_BQE: Tensor  # output of the attention half (post-norm: after its norm)
    output_BQE: Tensor  # the block's output: what the next block adds to
    replay: Stretch | NotOffered  # from projected to the block's output; or why that cannot be run again
    streams: dict[int, Stream]  # what is linear along ``replay``, by number
    places: Places

    @property
    def rest(self) -> Stretch:
        """Everything from ``projected`` to the block's output, MLP included, ready to be run on other numbers."""
        if isinstance(self.replay, NotOffered):
            raise self.replay
        return self.replay

    @property
    def post_norm(self) -> bool:
        return self.attended.scale_BQ is not None


@dataclass(frozen=True)
class Anatomy:
    """The record of one forward pass, and the block around each of its sites."""

    record: Record
    blocks: tuple[Block, ...]

    @property
    def layers(self) -> Iterator[tuple[Site, Block]]:
        return zip(self.record.sites, self.blocks, strict=True)
