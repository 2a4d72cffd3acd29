"""deeptab and pytorch_tabular: the same twins as for the others, where the libraries are installed; their calling
conventions on stand-ins, always."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded, softmax_outputs
from tests.tables.libraries import LIBRARIES
from tests.tables.models import CATEGORIES, HEADS, NUMBERS, HomeMade, Layout, rows, table, tensors
from tests.tables.test_readings import READINGS, TARGET


def written_out(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> Tensor:
    """What the fused kernel computes, with a softmax that can be seen."""
    return F.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1) @ value


def maps_beside(layout: Layout, some: list[dict[str, Any]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Maps over columns of the first row of a batch, and the gradient of its logit; maps between rows left out."""
    model = layout.build().double()
    with patch.object(F, "scaled_dot_product_attention", written_out), softmax_outputs() as found:
        logits = layout.call(model, *tensors(some))
    tokens = len(layout.tokens)
    own = [a for a in found if a.shape[-1] == tokens]
    gradients = torch.autograd.grad(logits[0, TARGET], own)
    whole = [
        (a.reshape(len(some), HEADS, *a.shape[-2:])[0].detach().numpy(), g.reshape(len(some), HEADS, *g.shape[-2:])[0])
        for a, g in zip(own, gradients, strict=True)
    ]
    return [a for a, _ in whole], [g.numpy() for _, g in whole]


def test_libraries_that_are_installed_equal_their_twins() -> None:
    row, reference = rows(1)[0], rows(8, seed=7)
    for name, layout in LIBRARIES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # theirs, on import
            model = layout.build()
            maps, gradients = maps_beside(layout, [row, *reference] if name == "deeptab_saint" else [row])
        for reading, (method, options, twin_of) in READINGS.items():
            found = wf.explain(
                model, row, processor=table(reference=reference), method=method, target=TARGET, **options
            )
            assert tuple(None if x == "[CLS]" else x for x in found.units.labels) == layout.tokens, name
            expected = twin_of(maps, gradients, layout.readout)
            np.testing.assert_allclose(found.scores, expected, atol=1e-5, err_msg=f"{name}, {reading}")
        shares = wf.explain(
            model, row, processor=table(reference=reference), method="integrated_gradients", target=TARGET, steps=40
        )
        assert np.isfinite(shares.scores).all()


class ListsOfColumns(nn.Module):
    """deeptab's convention: three lists with one (B, 1) tensor per column."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("first")
        self.embedding_layer = nn.Identity()
        self.embedding_layer.feature_info = ({}, {}, {})  # type: ignore[assignment]

    def forward(self, *data: Any) -> Tensor:
        numbers, codes, embeddings = data
        assert embeddings == [] and all(x.shape[1] == 1 for x in (*numbers, *codes))
        return self.inner(torch.cat(numbers, 1), torch.cat(codes, 1))


class OneDict(nn.Module):
    """pytorch_tabular's: one dict in, one dict out; the class token comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("last")
        self.hparams = SimpleNamespace(continuous_dim=len(NUMBERS))

    def embed_input(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return x

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.embed_input(x)
        logits = self.inner(x["continuous"], x["categorical"])
        return {"logits": logits, "backbone_features": logits}


def test_calling_conventions() -> None:
    row = rows(1)[0]
    for kind, tokens in (
        (ListsOfColumns, ("[CLS]", *NUMBERS, *CATEGORIES)),
        (OneDict, (*CATEGORIES, *NUMBERS, "[CLS]")),
    ):
        model = seeded(kind)
        found = wf.explain(model, row, processor=table(), target=TARGET)
        assert found.units.labels == tokens
        plain = wf.explain(model.inner, row, processor=table(), target=TARGET)
        np.testing.assert_allclose(found.scores, plain.scores, atol=1e-6)


def test_embeddings_that_are_written_into() -> None:
    """pytorch_tabular's shared embeddings overwrite a part of what they looked up."""

    class Overwritten(HomeMade):
        def forward(self, numerical: Tensor, categorical: Tensor) -> Tensor:
            codes = []
            for i, embed in enumerate(self.embeddings):
                looked_up = embed(categorical[:, i])
                looked_up[:, :2] = self.bias[0, :2]
                codes.append(looked_up)
            x = torch.cat([numerical[:, :, None] * self.weight + self.bias, torch.stack(codes, 1)], 1)
            return self.head(self.encoder(x).mean(1))

    found = wf.explain(
        seeded(lambda: Overwritten("none")), rows(1)[0], processor=table(reference=rows(5, seed=1)),
        method="integrated_gradients", steps=40, target=TARGET,
    )  # fmt: skip
    assert found.base is not None
    assert abs(float(found.scores.sum()) - (found.value - found.base)) < 1e-3
