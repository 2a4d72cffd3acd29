"""Attention that runs out of sight beside attention that is seen: refused, never a map of a part."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from whyformer.errors import NotOffered, PartlyCaptured

IDS = {"x": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])}
VECTORS = {"x": torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return x + self.out(out.transpose(1, 2).flatten(2))


class InThread(Block):
    def forward(self, x: Tensor) -> Tensor:
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.append(Block.forward(self, x)))
        thread.start()
        thread.join()
        return results[0]


def written_out(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    q, k, v = (x @ weight).chunk(3, -1)
    return x + torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v @ out


class ScriptedFunction(nn.Module):
    """No module of its own kind is seen, and none is TorchScript: only the function is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(16, 48) / 4), nn.Parameter(torch.randn(16, 16) / 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            self.function = torch.jit.script(written_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.out)


class Three(nn.Module):
    def __init__(self, at: int | None, kind: str, pool: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.embed, self.head = pool, nn.Embedding(20, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        if at is not None:
            self.blocks[at] = self.other(kind)

    def other(self, kind: str) -> Any:
        if kind == "script":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchScript is deprecated
                return torch.jit.script(Block())
        return InThread() if kind == "thread" else ScriptedFunction()

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else self.embed(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, 0] if self.pool == "first" else x.mean(1))
        return logits


@pytest.mark.parametrize(("inputs", "pool"), [(IDS, "first"), (VECTORS, "mean")], ids=["ids", "vectors"])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("kind", ["script", "thread"])
def test_a_block_out_of_sight_is_refused_and_named(kind: str, at: int, pool: str, inputs: dict[str, Tensor]) -> None:
    model = Three(at, kind, pool).eval()
    for method in ("attention_rollout", "generic_attention"):
        with pytest.raises(PartlyCaptured, match=rf"blocks\.{at}.*(TorchScript|thread)"):
            wf.explain(model, inputs, method=method, target=0)


@pytest.mark.parametrize(("at", "pool"), [(0, "first"), (2, "mean")])
def test_a_function_out_of_sight_is_heard(at: int, pool: str) -> None:
    model = Three(at, "function", pool).eval()
    with pytest.raises(PartlyCaptured, match="exchange information outside the captured attention"):
        wf.explain(model, IDS, method="attention_rollout", target=0)


@pytest.mark.parametrize("kind", ["script", "thread"])
def test_what_the_error_advises_works(kind: str) -> None:
    model = Three(2, kind, "mean").eval()
    for method in ("integrated_gradients", "occlusion"):
        assert len(wf.explain(model, IDS, method=method, target=0)) == 2
    with pytest.raises(NotOffered, match="do not hold where nothing is seen"):
        wf.explain(model, IDS, method="attn_lrp", target=0)


def test_somebody_else_who_runs_the_model_meanwhile_hides_nothing() -> None:
    model, over = Three(None, "", "first").eval(), threading.Event()

    def predict() -> None:
        while not over.is_set():
            with torch.no_grad():
                model(**IDS)

    thread = threading.Thread(target=predict)
    thread.start()
    try:
        assert len(wf.explain(model, IDS, method="attention_rollout", target=0)) == 2
    finally:
        over.set()
        thread.join()
