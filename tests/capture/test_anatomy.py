"""The anatomy of a block, found by dataflow: what is read right, what refused; and the tape that it is read from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import running
from tests.models import CASES, model_of
from tests.models.case import randn, seeded
from tests.models.handwritten import EinsumAttention
from whyformer.capture.blocks.anatomy import Dissect
from whyformer.capture.blocks.remainder import Finish
from whyformer.capture.blocks.tape import Tape, replay_between
from whyformer.errors import NotOffered

WIDTH = 32
LAYER_NORM = partial(nn.LayerNorm, WIDTH)
METHODS = ["value_norms", "alti", "value_zeroing"]


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
    """Two blocks, then a linear layer on token 0."""

    def __init__(self, *how: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(*how), Block(*how)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Block(nn.Module):
    """Attention, an MLP and two norms, which ``written`` puts together."""

    def __init__(self, written: Callable[..., Tensor], norm: Callable[[], nn.Module] = LAYER_NORM) -> None:
        super().__init__()
        self.written = written
        self.attention, self.norm1, self.norm2 = EinsumAttention(), norm(), norm()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def post(block: Any, x: Tensor) -> Tensor:
    x = block.norm1(x + block.attention(x))
    return block.norm2(x + block.mlp(x))


def in_place(block: Any, x: Tensor) -> Tensor:
    y = block.attention(block.norm1(x))
    y += x
    z = F.relu(block.mlp[0](block.norm2(y)), inplace=True)
    return block.mlp[2](z).add_(y)


def in_place_stream(block: Any, x: Tensor) -> Tensor:
    """The attention's result is added to the stream in place."""
    y = x.clone()
    y += block.attention(block.norm1(x))
    return y + block.mlp(block.norm2(y))


def parallel(block: Any, x: Tensor) -> Tensor:
    normed = block.norm1(x)
    return x + block.attention(normed) + block.mlp(normed)


def attention_only(block: Any, x: Tensor) -> Tensor:
    return block.norm1(x + block.attention(x))


def scaled(block: Any, x: Tensor) -> Tensor:
    """DeepNet: the residual stream is multiplied before the sum."""
    x = block.norm1(x * 1.7 + block.attention(x))
    return block.norm2(x * 1.7 + block.mlp(x))


def unprojected(block: Any, x: Tensor) -> Tensor:
    block.attention.out = nn.Identity()
    x = x + block.attention(block.norm1(x))
    return x + block.mlp(block.norm2(x))


def sandwich(block: Any, x: Tensor) -> Tensor:
    """A norm after the attention and one after the MLP, before each sum (Gemma 2, OLMo 2)."""
    x = x + block.norm1(block.attention(x))
    return x + block.norm2(block.mlp(x))


SPELLINGS: dict[str, tuple[Callable[..., Tensor], Callable[[], nn.Module], bool]] = {  # block, norm, post-norm
    "layer_norm": (post, LAYER_NORM, True),
    "written_layer_norm": (post, partial(WrittenNorm, centred=True), True),
    "written_rms_norm": (post, partial(WrittenNorm, centred=False), True),
    "rms_norm": (post, partial(nn.RMSNorm, WIDTH), True),
    "in_place": (in_place, LAYER_NORM, False),
    "in_place_stream": (in_place_stream, LAYER_NORM, False),
    "parallel": (parallel, LAYER_NORM, False),
    "attention_only": (attention_only, LAYER_NORM, True),
    "scaled": (scaled, LAYER_NORM, True),
    "unprojected": (unprojected, LAYER_NORM, False),
    "sandwich": (sandwich, partial(nn.RMSNorm, WIDTH), False),
    "written_sandwich": (sandwich, partial(WrittenNorm, centred=False), False),
}
INPUT = randn(2, 9, WIDTH, seed=6)


def built(*how: Any) -> nn.Module:
    return seeded(lambda: Classifier(*how)).double()


def truth(model: nn.Module, layer: int, token: int | None) -> dict[str, Tensor]:
    """What a block and its first norm give, with a token's value zeroed in that layer."""
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
    ]
    with torch.no_grad():
        model(INPUT.double())
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("name", SPELLINGS)
def test_blocks_are_read_right(name: str) -> None:
    """Zeroing each token in turn: the finished block is the model's own, and the linear parts add up to it."""
    *how, post_norm = SPELLINGS[name]
    model = built(*how)
    with running("einsum", inputs=(INPUT.double(),), model=model) as run, torch.no_grad():
        for layer, (site, block) in enumerate(run.anatomy().layers):
            plain = truth(model, layer, None)
            assert (block.attended.scale_BQ is not None) == post_norm
            torch.testing.assert_close(block.output_BQE, plain["output"], atol=1e-12, rtol=1e-10)
            if post_norm:
                torch.testing.assert_close(block.attended_BQE, plain["norm1"], atol=1e-12, rtol=1e-10)
            for tokens, changed, original in Finish(site, block).without_each([0, 4, 8]):
                for token, one, as_it_was in zip(tokens, changed, original, strict=True):
                    torch.testing.assert_close(as_it_was, plain["output"], atol=1e-10, rtol=1e-8)
                    torch.testing.assert_close(one, truth(model, layer, token)["output"], atol=1e-10, rtol=1e-8)


# What cannot be decomposed says so


def no_residual(block: Any, x: Tensor) -> Tensor:
    return block.mlp(block.attention(x))


def gated(block: Any, x: Tensor) -> Tensor:
    """The attention's result is multiplied before its projection."""
    inner, outer = block.attention, block.attention.out
    inner.out = nn.Identity()
    y = outer(inner(x) * torch.sigmoid(block.mlp[0](x)[..., :WIDTH]))
    inner.out = outer
    return x + y


def adapted(block: Any, x: Tensor) -> Tensor:
    """An adapter beside W_O, not linear, and not a layer of its own."""
    inner, outer = block.attention, block.attention.out
    inner.out = nn.Identity()
    mixed = inner(x)
    inner.out = outer
    return x + (outer(mixed) + block.mlp(mixed))


def between(block: Any, x: Tensor) -> Tensor:
    """Something happens to the stream between the blocks."""
    return post(block, torch.tanh(x))


REFUSED = {
    "no residual stream": no_residual,
    "'mul' before its projection": gated,
    "An adapter beside its projection that is not linear is not followed": adapted,
    "between this block and the one before": between,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_followed_is_refused(message: str) -> None:
    model = built(REFUSED[message]).float()
    for method in METHODS:
        with pytest.raises(NotOffered, match=message):
            wf.explain(model, (INPUT,), method=method)


def experts(block: Any, x: Tensor) -> Tensor:
    """Which part of the MLP runs depends on the numbers."""
    x = x + block.attention(block.norm1(x))
    y = block.norm2(x)
    chosen = (y[..., 0] > 0).nonzero()
    out = torch.zeros_like(x)
    out[chosen[:, 0], chosen[:, 1]] = block.mlp(y[chosen[:, 0], chosen[:, 1]])
    return x + out


def test_experts_are_skipped_by_norms_and_refused_by_zeroing() -> None:
    model = built(experts).float()
    for method in ("value_norms", "alti"):
        assert wf.explain(model, (INPUT,), method=method)[0].scores.any()
    with pytest.raises(NotOffered, match="mixture of experts"):
        wf.explain(model, (INPUT,), method="value_zeroing")


def test_blocks_without_biases_and_with_a_gate() -> None:
    with running("llama", double=True) as run, torch.no_grad():
        for site, block in run.anatomy().layers:
            assert block.bias_E is None and block.attended.scale_BQ is None
            mixed = torch.einsum("bhqk,bhkd,hde->bqe", site.attention_BHQK, site.value_BHKD, block.output_HDE)
            torch.testing.assert_close(mixed, block.projected_BQE, atol=1e-10, rtol=1e-8)
            finish = Finish(site, block)
            assert len(finish.folds) == 2  # gate and value
            for _, _, original in finish.without_each([0]):
                torch.testing.assert_close(original[0], block.output_BQE, atol=1e-6, rtol=1e-6)
    for method, explanations in wf.explain(model_of("llama"), CASES["llama"].inputs(), method=METHODS).items():
        for one in explanations:  # one anatomy serves all three
            assert one.scores.any() and (one.cost.forwards > 5) == (method == "value_zeroing")


def recorded(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tape, Tensor]:
    """Run a function with everything it calls on tape."""
    mode = Dissect(1, {})
    with torch.no_grad(), mode:
        out = function(x)
    return mode.tape, out


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y[0].add_(1)
    return y + 1


def through_vmap(x: Tensor) -> Tensor:
    y = x * 2
    torch.vmap(lambda row: row.add_(1))(y)
    return y + 1


def by_its_numbers(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1 if float(y.sum()) > 0 else y - 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (through_a_view, "overwritten through another view"),
        (through_vmap, "overwritten through another view"),
        (by_its_numbers, "depends on its own numbers"),
    ],
)
def test_what_cannot_run_again_is_refused(function: Callable[[Tensor], Tensor], why: str) -> None:
    x = randn(3, 4, seed=1)
    tape, out = recorded(function, x)
    with pytest.raises(NotOffered, match=why):
        replay_between(tape, tape.number(x), tape.number(out))


def test_a_mask_made_by_vmap_is_no_obstacle_to_writing_in_place() -> None:
    """Masks are made so with transformers 4; tensors inside vmap have no address to compare."""
    other = randn(3, 4, seed=2)

    def masked(x: Tensor) -> Tensor:
        keep = torch.vmap(lambda row: row > 0)(other)
        y = x * 2
        y.add_(1)
        return y * keep

    x = randn(3, 4, seed=1)
    tape, out = recorded(masked, x)
    torch.testing.assert_close(out, (2 * x + 1) * (other > 0))
    again = replay_between(tape, tape.number(x), tape.number(out))
    torch.testing.assert_close(again.run(-x), (1 - 2 * x) * (other > 0))
