"""The anatomy of a block, found by dataflow: spellings that must be read right, and those that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.methods.runs import running
from tests.models import CASES
from tests.models.case import randn, seeded
from tests.models.handwritten import EinsumAttention
from whyformer.capture.blocks.remainder import Finish
from whyformer.errors import NotOffered

WIDTH = 32


class WrittenNorm(nn.Module):
    """LayerNorm or RMSNorm, written out."""

    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.centred = centred
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if not self.centred:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight + self.bias


class Classifier(nn.Module):
    """Two blocks as ``block`` writes them, then a linear layer on token 0."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(), block()])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Post(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(WIDTH)) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = EinsumAttention(), norm(), norm()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class InPlace(Post):
    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.norm1(x))
        y += x
        z = F.relu(self.mlp[0](self.norm2(y)), inplace=True)
        return self.mlp[2](z).add_(y)


class InPlaceStream(Post):
    """The attention's result is added to the stream in place."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y += self.attention(self.norm1(x))
        return y + self.mlp(self.norm2(y))


class Parallel(Post):
    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        return x + self.attention(normed) + self.mlp(normed)


class AttentionOnly(Post):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm1(x + self.attention(x))


class Scaled(Post):
    """DeepNet: the residual stream is multiplied before the sum."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x * 1.7 + self.attention(x))
        return self.norm2(x * 1.7 + self.mlp(x))


class Unprojected(Post):
    def forward(self, x: Tensor) -> Tensor:
        self.attention.out = nn.Identity()
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SandwichRMS(Post):
    """A norm after the attention and one after the MLP, before each sum (Gemma 2, OLMo 2)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attention(x))
        return x + self.norm2(self.mlp(x))


SPELLINGS: dict[str, tuple[Callable[[], nn.Module], bool]] = {  # block, post-norm
    "layer_norm": (Post, True),
    "written_layer_norm": (lambda: Post(lambda: WrittenNorm(centred=True)), True),
    "written_rms_norm": (lambda: Post(lambda: WrittenNorm(centred=False)), True),
    "rms_norm": (lambda: Post(lambda: nn.RMSNorm(WIDTH)), True),
    "in_place": (InPlace, False),
    "in_place_stream": (InPlaceStream, False),
    "parallel": (Parallel, False),
    "attention_only": (AttentionOnly, True),
    "scaled": (Scaled, True),
    "unprojected": (Unprojected, False),
    "sandwich": (lambda: SandwichRMS(lambda: nn.RMSNorm(WIDTH)), False),
    "written_sandwich": (lambda: SandwichRMS(lambda: WrittenNorm(centred=False)), False),
}
INPUT = randn(2, 9, WIDTH, seed=6)


def built(block: Callable[[], nn.Module]) -> nn.Module:
    return seeded(lambda: Classifier(block)).double()


def truth(model: nn.Module, layer: int, token: int | None) -> dict[str, Tensor]:
    """Block output, and what its norms read, with a token's value zeroed in one layer."""
    found: dict[str, Tensor] = {}
    block: Any = model.blocks[layer]

    def zero(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        changed = out.clone()
        if token is not None:
            changed[:, token] = 0
        return changed

    def see(name: str) -> Callable[..., None]:
        return lambda module, args, out: found.update({name: out.detach().clone()})

    hooks = [
        block.attention.v.register_forward_hook(zero),
        block.register_forward_hook(see("output")),
        block.norm1.register_forward_hook(see("norm1")),
        block.attention.register_forward_hook(see("attention")),
    ]
    with torch.no_grad():
        model(INPUT.double())
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("name", SPELLINGS)
def test_blocks_are_read_right(name: str) -> None:
    """Zeroing each token in turn: the finished block is the model's own, and the linear parts add up to it."""
    make, post_norm = SPELLINGS[name]
    model = built(make)
    with running("einsum", inputs=(INPUT.double(),), model=model) as run, torch.no_grad():
        anatomy = run.anatomy()
        for layer, (site, block) in enumerate(anatomy.layers):
            plain = truth(model, layer, None)
            assert block.post_norm == post_norm
            torch.testing.assert_close(block.output_BQE, plain["output"], atol=1e-12, rtol=1e-10)
            if post_norm:
                torch.testing.assert_close(block.attended_BQE, plain["norm1"], atol=1e-12, rtol=1e-10)
            for tokens, changed, original in Finish(site, block).without_each([0, 4, 8]):
                for token, one, as_it_was in zip(tokens, changed, original, strict=True):
                    torch.testing.assert_close(as_it_was, plain["output"], atol=1e-10, rtol=1e-8)
                    torch.testing.assert_close(one, truth(model, layer, token)["output"], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_method_runs_on_every_spelling(name: str) -> None:
    model = built(SPELLINGS[name][0]).float()
    found = wf.explain(model, (INPUT,), method=["value_norms", "alti", "value_zeroing"])
    for explanations in found.values():
        for one in explanations:
            assert np.isfinite(one.scores).all()
            assert one.scores.any()
            assert one.cost.forwards == 1  # one anatomy serves all three


# What cannot be decomposed says so


class NoResidual(Post):
    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


class Gated(Post):
    """The attention's result is multiplied before its projection."""

    def forward(self, x: Tensor) -> Tensor:
        inner, outer = self.attention, self.attention.out
        inner.out = nn.Identity()
        y = outer(inner(x) * torch.sigmoid(self.mlp[0](x)[..., :WIDTH]))
        inner.out = outer
        return x + y


class Adapted(Post):
    """A low-rank adapter beside W_O."""

    def forward(self, x: Tensor) -> Tensor:
        inner, outer = self.attention, self.attention.out
        inner.out = nn.Identity()
        mixed = inner(x)
        inner.out = outer
        return x + (outer(mixed) + self.mlp[2](self.mlp[0](mixed)))


class Between(Post):
    """Something happens to the stream between the blocks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(x))


REFUSED = {
    "no residual stream": NoResidual,
    "'mul' before its projection": Gated,
    "An adapter beside its projection .LoRA. is not followed: merge it": Adapted,
    "between this block and the one before": Between,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_followed_is_refused(message: str) -> None:
    model = built(REFUSED[message]).float()
    for method in ("value_norms", "alti", "value_zeroing"):
        with pytest.raises(NotOffered, match=message):
            wf.explain(model, (INPUT,), method=method)


class Experts(Post):
    """Which part of the MLP runs depends on the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        chosen = (y[..., 0] > 0).nonzero()
        out = torch.zeros_like(x)
        out[chosen[:, 0], chosen[:, 1]] = self.mlp(y[chosen[:, 0], chosen[:, 1]])
        return x + out


def test_experts_are_skipped_by_norms_and_refused_by_zeroing() -> None:
    model = built(Experts).float()
    for method in ("value_norms", "alti"):
        assert wf.explain(model, (INPUT,), method=method)[0].scores.any()
    with pytest.raises(NotOffered, match="mixture of experts"):
        wf.explain(model, (INPUT,), method="value_zeroing")


def test_t5_blocks_without_biases() -> None:
    import transformers

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
            self.encoder = transformers.T5EncoderModel(transformers.T5Config(**sizes, feed_forward_proj="gated-gelu"))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.head(self.encoder(input_ids, attention_mask).last_hidden_state[:, 0])

    model = seeded(Reader, gain=0.9).double()
    inputs = CASES["bert"].inputs()
    with running("bert", inputs=inputs, model=model) as run, torch.no_grad():
        for site, block in run.anatomy().layers:
            assert block.bias_E is None
            assert not block.post_norm
            mixed = torch.einsum("bhqk,bhkd,hde->bqe", site.attention_BHQK, site.value_BHKD, block.output_HDE)
            torch.testing.assert_close(mixed, block.projected_BQE, atol=1e-10, rtol=1e-8)
            finish = Finish(site, block)
            assert len(finish.folds) == 2  # gate and value
            for _, _, original in finish.without_each([0]):
                torch.testing.assert_close(original[0], block.output_BQE, atol=1e-6, rtol=1e-6)
    for method in ("value_norms", "alti", "value_zeroing"):
        assert all(one.scores.any() for one in wf.explain(model, inputs, method=method))


def test_the_model_is_not_disturbed() -> None:
    """Outputs under dissection are the model's own, bit for bit."""
    for name in ("bert", "gpt2", "llama", "gemma2"):
        case = CASES[name]
        model = case.build(case.implementations[0])
        with running(name, model=model) as run:
            assert torch.equal(run.anatomy().record.logits, run.output.logits(run.batch))
