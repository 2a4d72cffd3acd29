"""Models that attend over other positions than the units of their input: queries of their own, strides, parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from whyformer.errors import NotOffered, NotOverUnits

IDS = torch.tensor([[6, 7, 17, 8, 18, 12], [9, 11, 4, 4, 13, 5]])
MASK = 3  # the id that stands for a masked one


class Odd(nn.Module):
    """An encoder of ids between a stem and a mean, each of which may be odd."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embed, self.head = how, nn.Embedding(20, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.stem, self.score = nn.Conv1d(8, 8, 3, stride=2, padding=1), nn.Linear(8, 1)
        self.queries, self.ask = nn.Parameter(torch.randn(1, 3, 8)), nn.MultiheadAttention(8, 2, batch_first=True)
        self.beside = nn.Linear(3, 8)

    def forward(self, ids: Tensor, flags: Tensor | None = None) -> Tensor:
        h = self.embed(ids)
        if self.how == "queries":
            asked = self.queries.expand(len(h), -1, -1)
            h = asked + self.ask(asked, h, h)[0]
        if self.how == "stride":
            h = self.stem(h.transpose(1, 2)).transpose(1, 2)
        if self.how == "choice":
            best = self.score(h)[..., 0].topk(3, 1).indices
            h = h.gather(1, best[..., None].expand(-1, -1, 8))
        if self.how == "sentences":
            h = self.layer(h.flatten(0, 1)).mean(1).unflatten(0, ids.shape[:2])
        pooled = self.layer(h).mean(1)
        return self.head(pooled if flags is None else pooled + self.beside(flags.float()))


def values(model: nn.Module, ids: Tensor, gone: Any, target: int, **more: Tensor) -> np.ndarray:
    """The value with ids masked, one set of units at a time."""
    with torch.no_grad():
        return np.array(
            [float(model(ids.index_fill(1, torch.tensor(g).long(), MASK), **more)[0, target]) for g in gone]
        )


@pytest.mark.parametrize("how", ["queries", "stride", "choice"])
def test_methods_that_mask_score_the_ids_that_they_name(how: str) -> None:
    model, everything = seeded(lambda: Odd(how)), list(range(6))
    for ids in IDS.split(1):
        one, two = (wf.explain(model, ids, method=name, replace=MASK)[0] for name in ("occlusion", "two_ended"))
        (shap,) = wf.explain(model, ids, method="shap", replace=MASK)
        target = int(model(ids).argmax())
        without = values(model, ids, [[i] for i in everything], target)
        alone = values(model, ids, [[j for j in everything if j != i] for i in everything], target)
        (whole,), (none,) = values(model, ids, [[]], target), values(model, ids, [everything], target)
        plain = ~np.array(one.units.special)
        assert [label for label, own in zip(one.units.labels, plain, strict=True) if own] == list(
            map(str, ids[0].tolist())
        )
        np.testing.assert_allclose(one.scores[plain], whole - without, atol=1e-5)
        np.testing.assert_allclose(two.scores[plain], (whole - without + alone - none) / 2, atol=1e-5)
        np.testing.assert_allclose(shap.scores.sum(), whole - none, atol=1e-4)


@pytest.mark.parametrize("how", ["stride", "choice"])
def test_attention_over_fewer_positions_than_tokens_is_refused(how: str) -> None:
    with pytest.raises(NotOverUnits, match="positions of 6 tokens"):
        wf.explain(seeded(lambda: Odd(how)), IDS, method="generic_attention")


def test_units_of_sentences_of_ids_are_the_sentences() -> None:
    documents = torch.arange(24).reshape(2, 4, 3) % 17 + 1
    for found in wf.explain(seeded(lambda: Odd("sentences")), documents, method="occlusion"):
        assert found.units.labels == ("0", "1", "2", "3")


def test_flags_of_a_row_beside_ids_are_features() -> None:
    model, flags = seeded(lambda: Odd("")), torch.tensor([[True, False, True], [False, True, True]])
    for row, found in enumerate(wf.explain(model, {"ids": IDS, "flags": flags}, method="occlusion")):
        assert found.units.labels[-3:] == ("flags[0]", "flags[1]", "flags[2]")
        others = torch.stack([flags[row].index_fill(0, torch.tensor(i), False) for i in range(3)])
        with torch.no_grad():
            changed = model(IDS[[row] * 3], others)[:, found.target.index].numpy()
        np.testing.assert_allclose(found.scores[-3:], found.value - changed, atol=1e-5)


class Patches(nn.Module):
    """A row of numbers, in overlapping pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x.unfold(1, 16, 8))).mean(1))


def test_a_guide_over_other_units_does_not_guide() -> None:
    model, x = seeded(Patches), torch.randn(1, 80, generator=torch.Generator().manual_seed(0))
    (found,) = wf.explain(model, x)
    assert (found.method, len(found.units), found.options["guide"]) == ("two_ended", 80, "attn_lrp(maskings=8)")
    with pytest.raises(NotOffered, match="does not attend over the units"):
        wf.explain(model, x, method="two_ended", guide="value_x_gradient")


class Pieces(nn.Module):
    """Squares of a plane without channels, or columns beside a flag that says which are known."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.scale, self.head = nn.Conv2d(1, 8, 4, 4), nn.Parameter(torch.randn(2, 8)), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        if known is None:
            return self.head(self.layer(self.patches(x[:, None]).flatten(2).mT).mean(1))
        return self.head(self.layer(torch.where(known[..., None], x[..., None], 1.0) * self.scale[0]).mean(1))


def test_rows_of_a_plane_are_units_whatever_grid_the_model_makes() -> None:
    model, x = seeded(Pieces), torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    (found,) = wf.explain(model, x, method="occlusion", replace="zero")
    with torch.no_grad():
        drops = [
            found.value - float(model(x.index_fill(1, torch.tensor(i), 0))[0, found.target.index]) for i in range(8)
        ]
    np.testing.assert_allclose(found.scores, drops, atol=1e-5)


def test_which_columns_are_known_is_a_feature() -> None:
    inputs = {"x": torch.tensor([[0.5, -1.0, 2.0]]), "known": torch.tensor([[True, False, True]])}
    (found,) = wf.explain(seeded(Pieces), inputs, method="occlusion")
    assert found.units.labels[3:] == ("known[0]", "known[1]", "known[2]")
    assert found.scores[3] and not found.scores[1]


class Shrunk(nn.Module):
    """Patches of an image, every second of which is kept, or the largest of four; and a category of the whole image."""

    def __init__(self, pools: bool) -> None:
        super().__init__()
        self.patches, self.site, self.head = nn.Conv2d(3, 8, 4, 4), nn.Embedding(5, 8), nn.Linear(8, 3)
        self.layer, self.pools = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), pools

    def forward(self, pixel_values: Tensor, site: Tensor) -> Tensor:
        h = self.patches(pixel_values)
        h = nn.functional.max_pool2d(h, 2).flatten(2).mT if self.pools else h.flatten(2).mT[:, ::2]
        return self.head(self.layer(h).mean(1) + self.site(site))


def test_patches_are_those_of_the_model_where_it_attends_over_fewer() -> None:
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    inputs: dict[str, Any] = {"pixel_values": image[..., :8, :8], "site": torch.tensor([3])}
    (found,) = wf.explain(seeded(lambda: Shrunk(False)), inputs, method="occlusion")
    assert found.units.grid == (2, 2) and (found.scores != 0).tolist() == [True, False, True, False]
    assert "depends on site, which is not scored" in " ".join(found.warnings)
    with pytest.raises(NotOverUnits, match="2 positions of 4 tokens or patches"):
        wf.explain(seeded(lambda: Shrunk(False)), inputs, method="generic_attention")
    (pooled,) = wf.explain(seeded(lambda: Shrunk(True)), inputs | {"pixel_values": image}, method="generic_attention")
    assert pooled.units.grid == (2, 2)


def test_truth_values_of_tokens_that_no_unit_stands_for_are_named() -> None:
    class Marked(Odd):
        def forward(self, ids: Tensor, is_upper: Tensor) -> Tensor:
            return self.head(self.layer(self.embed(ids) + is_upper[..., None] * self.queries[:, :1]).mean(1))

    for found in wf.explain(seeded(lambda: Marked("")), {"ids": IDS, "is_upper": IDS > 10}, method="occlusion"):
        assert "depends on is_upper, which is not scored" in " ".join(found.warnings)
