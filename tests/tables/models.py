"""Tiny tabular models of every library and layout, over one table; and their own maps, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded, softmax_outputs
from tests.models.text_image_table import few_rounds
from tests.support.sharing import Shared
from tests.tables.saint import SAINT, Mixer

NUMBERS = ("age", "hours", "gain")
CATEGORIES = {"work": ("private", "state", "self"), "sex": ("f", "m")}
SIZES = tuple(len(v) for v in CATEGORIES.values())
CLASSES = ("no", "yes", "maybe")
WIDTH, HEADS, LAYERS = 16, 2, 2
COLUMNS = (*NUMBERS, *CATEGORIES)
CODES_FIRST = (*CATEGORIES, *NUMBERS)


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {n: float(rng.normal()) for n in NUMBERS} | {k: v[int(rng.integers(len(v)))] for k, v in CATEGORIES.items()}
        for _ in range(count)
    ]


def table(**more: Any) -> wf.Table:
    return wf.Table(numerical=NUMBERS, categorical=CATEGORIES, classes=CLASSES, **more)


def tensors(some: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    numbers = torch.tensor([[row[n] for n in NUMBERS] for row in some], dtype=torch.float64)
    return numbers, torch.tensor([[v.index(row[k]) for k, v in CATEGORIES.items()] for row in some])


class HomeMade(nn.Module):
    """Column tokens, a class token first, last or none; the head reads it, or the mean."""

    def __init__(self, cls: str) -> None:
        super().__init__()
        self.cls = cls
        self.weight, self.bias = (nn.Parameter(torch.zeros(len(NUMBERS), WIDTH)) for _ in range(2))
        self.embeddings = nn.ModuleList(nn.Embedding(n, WIDTH) for n in SIZES)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder = nn.Sequential(*(Mixer(WIDTH, HEADS, 0.0, 2) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, len(CLASSES))

    def forward(self, numerical: Tensor, categorical: Tensor) -> Tensor:
        numbers = numerical[:, :, None] * self.weight + self.bias
        codes = torch.stack([e(categorical[:, i]) for i, e in enumerate(self.embeddings)], 1)
        token = self.token.expand(len(numbers), -1, -1)
        order = {"first": [token, numbers, codes], "last": [codes, numbers, token], "none": [numbers, codes]}
        x = self.encoder(torch.cat(order[self.cls], 1))
        return self.head(x.mean(1) if self.cls == "none" else x[:, 0 if self.cls == "first" else -1])


class OneTensor(nn.Module):
    """Everything in one tensor of floats, codes among them: rounded inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HomeMade("first")

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, : len(NUMBERS)], x[:, len(NUMBERS) :].round().long())


RTDL: dict[str, Any] = {
    "n_cont_features": len(NUMBERS), "cat_cardinalities": list(SIZES), "d_out": len(CLASSES), "n_blocks": LAYERS,
    "d_block": WIDTH, "attention_n_heads": HEADS, "attention_dropout": 0.1, "ffn_d_hidden": None,
    "ffn_d_hidden_multiplier": 2.0, "ffn_dropout": 0.1, "residual_dropout": 0.0,
}  # fmt: skip


def rtdl(**more: Any) -> nn.Module:
    from rtdl_revisiting_models import FTTransformer

    return FTTransformer(**RTDL | more)


def lucidrains(name: str, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import tab_transformer_pytorch

        size: dict[str, Any] = {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "dim_head": 8, "dim_out": len(CLASSES)}
        kind = getattr(tab_transformer_pytorch, name)
        return few_rounds(kind(categories=SIZES, num_continuous=len(NUMBERS), **size, **more))

    return make


@dataclass(frozen=True)
class Layout:
    """How to build a model, the tokens it makes (None: its own), and the positions that feed its head."""

    make: Callable[[], nn.Module]
    tokens: tuple[str | None, ...]
    readout: tuple[int, ...]
    call: Callable[[nn.Module, Tensor, Tensor], Any] = lambda model, numbers, codes: model(numbers, codes)

    def build(self) -> nn.Module:
        return seeded(self.make)


def flipped(model: nn.Module, numbers: Tensor, codes: Tensor) -> Any:
    return model(codes, numbers)


LAYOUTS = {
    "rtdl": Layout(rtdl, (None, *COLUMNS), (0,)),
    "lucidrains_ft": Layout(lucidrains("FTTransformer"), (None, *CODES_FIRST), (0,), flipped),
    "lucidrains_tab": Layout(
        lucidrains("TabTransformer", mlp_act=nn.ReLU()), tuple(CATEGORIES), (0, 1), flipped
    ),
    "cls_first": Layout(lambda: HomeMade("first"), (None, *COLUMNS), (0,)),
    "cls_last": Layout(lambda: HomeMade("last"), (*CODES_FIRST, None), (5,)),
    "no_cls": Layout(lambda: HomeMade("none"), COLUMNS, (0, 1, 2, 3, 4)),
    "one_tensor": Layout(
        OneTensor, (None, *COLUMNS), (0,), lambda model, numbers, codes: model(torch.cat([numbers, codes], 1))
    ),
}  # fmt: skip


# Models that are only explained, and studied once for all tests of a process.
shared = Shared(lambda name: LAYOUTS[name].build(), lambda model, name: None)


def saint(layers: int = 2) -> nn.Module:
    return seeded(lambda: SAINT(len(NUMBERS), SIZES, len(CLASSES), width=8, layers=layers, heads=HEADS))


def maps_of(layout: Layout, row: dict[str, Any], target: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(H, Q, K) maps of a fresh float64 model on one row, and the gradient of a logit at them."""
    model = layout.build().double()
    with softmax_outputs() as found:
        logits = layout.call(model, *tensors([row]))
    gradients = torch.autograd.grad(logits[0, target], found)
    whole = [
        (a.flatten(0, -3).detach().numpy(), g.flatten(0, -3).numpy()) for a, g in zip(found, gradients, strict=True)
    ]
    return [a for a, _ in whole], [g for _, g in whole]
