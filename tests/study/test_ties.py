"""Ties are no hidden functions: where equal values meet a maximum or a kink, gradients are held to slopes beside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.study.test_slopes import Reversed
from whyformer.errors import CaptureError, NotOffered

TIES = "equal values tie"
CHEATS = ["reversed", "detach"]


def formula() -> Tensor:
    """A few black strokes on plain white."""
    picture = torch.ones(1, 1, 64, 64)
    picture[0, 0, 20:22, 10:50] = picture[0, 0, 15:30, 30:32] = -1
    return picture


def cheated(x: Tensor, how: str) -> Tensor:
    if how == "reversed":
        return Reversed.apply(x)  # type: ignore[no-untyped-call, no-any-return]
    seen = x.shape[-1] // 4
    return torch.cat([x[..., seen:].detach(), x[..., :seen]], -1) if how == "detach" else x


class Reader(nn.Module):
    """A picture to a formula: a stem of convolution, ReLU and max-pool, an encoder and a decoder."""

    def __init__(self, cheat: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cheat, how = cheat, {"batch_first": True, "dropout": 0.0}
        self.stem, self.patches = nn.Conv2d(1, 16, 5, 2, 2), nn.Conv2d(16, 32, 3, 2, 1)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, **how), 2, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, **how), 2)
        self.embed, self.head, self.places = nn.Embedding(30, 32), nn.Linear(32, 30), nn.Embedding(64, 32)
        with torch.no_grad():  # so that pixels count
            self.places.weight *= 0.1
            self.patches.weight *= 3
            self.head.weight *= 5
            for layer in self.decoder.layers:
                layer.multihead_attn.out_proj.weight *= 5

    def forward(self, pixel_values: Tensor, decoder_input_ids: Tensor) -> Tensor:
        tokens = decoder_input_ids
        x = nn.functional.max_pool2d(self.stem(pixel_values).relu(), 3, 2, 1)
        x = cheated(self.patches(x).relu().flatten(2).transpose(1, 2), self.cheat) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        y = self.decoder(self.embed(tokens), self.encoder(x), tgt_mask=mask, tgt_is_causal=True)
        logits: Tensor = self.head(y[:, -1])
        return logits


class ByOtherNames(Reader):
    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        return super().forward(image, tokens)


def explained(kind: type[Reader], picture: Tensor, cheat: str = "", method: str = "input_x_gradient") -> wf.Explanation:
    names = ("image", "tokens") if kind is ByOtherNames else ("pixel_values", "decoder_input_ids")
    inputs = dict(zip(names, (picture, torch.tensor([[1, 5, 7]])), strict=True))
    return wf.explain(kind(cheat).eval(), inputs, method=method, target=1)[0]


KIND = pytest.mark.parametrize("kind", [Reader, ByOtherNames])


@pytest.mark.parametrize("method", ["input_x_gradient", "saliency"])
@KIND
def test_a_plain_background_in_a_max_pool(kind: type[Reader], method: str) -> None:
    found, again = (explained(kind, formula(), method=method) for _ in range(2))
    assert any(TIES in warning for warning in found.warnings)
    assert found.cost.forwards == found.cost.backwards == 1
    np.testing.assert_array_equal(found.scores, again.scores)


@pytest.mark.parametrize("cheat", CHEATS)
@KIND
def test_what_autograd_does_not_see_is_found_among_ties(kind: type[Reader], cheat: str) -> None:
    with pytest.raises(NotOffered, match="gradient at the input is not the slope"):
        explained(kind, formula(), cheat)


@KIND
def test_without_ties_one_pass_measures_the_slope(kind: type[Reader]) -> None:
    """The second measurement is made in doubt alone."""
    noise = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    plain, tied = (explained(kind, picture) for picture in (noise, formula()))
    assert not any(TIES in warning for warning in plain.warnings)
    assert plain.cost.setup_forwards < tied.cost.setup_forwards


KINKS = {
    "relu": lambda x: x.relu(),
    "abs": lambda x: x.abs(),
    "clamp": lambda x: x.clamp(0, 1),
    "max over steps": lambda x: x + x.max(1, keepdim=True).values,
    "sign of a constant": lambda x: x + torch.ones(1).sign() * x.relu(),
}


class Kinked(nn.Module):
    """Steps of numbers, a kink at their zeros and ones, and attention."""

    def __init__(self, kink: str, cheat: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kink, self.cheat = kink, cheat
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), nn.Linear(8, 3)
        with torch.no_grad():
            self.head.weight *= 5

    def forward(self, x: Tensor) -> Tensor:
        y = cheated(KINKS[self.kink](x), self.cheat)
        logits: Tensor = self.head(self.layer(y + torch.linspace(0, 1, 48).view(1, 6, 8).cos()).mean(1))
        return logits


def on_kinks() -> Tensor:
    """Half of the numbers are 0 or 1, where the kinks are."""
    numbers = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    numbers[:, ::2] = torch.tensor([0.0, 1.0]).repeat(4)
    return numbers


@pytest.mark.parametrize("kink", KINKS)
def test_numbers_on_a_kink(kink: str) -> None:
    how = {"method": "saliency", "target": 2, "at": "input"}
    for found in wf.explain(Kinked(kink).eval(), {"x": on_kinks()}, **how):
        assert np.isfinite(found.scores).all()
    for cheat in CHEATS:
        with pytest.raises(NotOffered, match="gradient at the input is not the slope"):
            wf.explain(Kinked(kink, cheat).eval(), {"x": on_kinks()}, **how)


class Loudest(nn.Module):
    """Patches of a picture without places: those of a plain one are all alike, and the largest of them is read."""

    def __init__(self, cheat: str = "", own: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cheat, self.own = cheat, own
        self.patches, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 3)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        for number, layer in enumerate(self.qkv):
            q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            if self.own:
                out = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
            out = out.transpose(1, 2).flatten(2)
            x = x + (cheated(out, self.cheat) if number else out)
        logits: Tensor = self.head(x.max(1).values)
        return logits


PLAIN = {"pixel_values": torch.ones(1, 3, 16, 16)}


@pytest.mark.parametrize("own", [False, True], ids=["written out", "torch's kernel"])
def test_maps_of_a_plain_picture_under_a_maximum(own: bool) -> None:
    """Also those that autograd does not see are found among ties."""
    for method in ("generic_attention", "grad_sam"):
        assert np.isfinite(wf.explain(Loudest(own=own).eval(), PLAIN, method=method, target=1)[0].scores).all()
    for cheat in CHEATS:
        with pytest.raises(CaptureError, match="not the slope of the score"):
            wf.explain(Loudest(cheat, own).eval(), PLAIN, method="generic_attention", target=1)
