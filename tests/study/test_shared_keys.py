"""Layers that ask for the keys and values of an earlier one (Gemma 3n): the same tokens, and no second stream."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randint, seeded
from tests.test_errors import refused
from whyformer import errors

WIDTH, HEADS = 16, 4
IDS = {"input_ids": randint(1, 30, 2, 7)}


class SharedKeys(nn.Module):
    """keys_of: per layer, the layer whose keys and values are asked for."""

    def __init__(self, keys_of: tuple[int, ...]) -> None:
        super().__init__()
        self.keys_of, count = keys_of, len(keys_of)
        self.words, self.head = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, 3)
        self.query, self.key, self.value, self.out = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count)) for _ in range(4)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(count))

    def forward(self, input_ids: Tensor) -> Tensor:
        x, made = self.words(input_ids), []

        def heads(vectors: Tensor) -> Tensor:
            return vectors.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        for i, source in enumerate(self.keys_of):
            read = self.norm[i](x)
            made.append((heads(self.key[i](read)), heads(self.value[i](read))) if source == i else made[source])
            key, value = made[-1]
            attention = torch.softmax(heads(self.query[i](read)) @ key.transpose(-2, -1), -1)
            x = x + self.out[i]((attention @ value).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


@pytest.mark.parametrize("keys_of", [(0, 0), (0, 1, 1), (0, 0, 2)])
@pytest.mark.parametrize("method", ["generic_attention", "grad_sam"])
def test_maps_are_refused_and_no_token_stands_there_twice(keys_of: tuple[int, ...], method: str):
    model = seeded(lambda: SharedKeys(keys_of))
    with refused(errors.NotOverUnits, "cross 7×7", "keys and values of an earlier one"):
        wf.explain(model, IDS, method=method, progress=False)


def test_others_give_one_score_per_token():
    model = seeded(lambda: SharedKeys((0, 0)))
    assert len(wf.explain(model, IDS, method="occlusion", progress=False)[0].scores) == 7
    apart = seeded(lambda: SharedKeys((0, 1)))  # each layer has its own
    result = wf.explain(apart, IDS, method="generic_attention", progress=False)[0]
    assert set(result.units.stream) == {"text"} and len(result.scores) == 7
