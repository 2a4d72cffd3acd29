"""The three models of the tabular study, small, and how they are trained."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.saint import SAINT
from bench.tabular_data import Data, Part

MODELS = ("FT-Transformer", "TabTransformer", "SAINT")
NEEDS = {  # packages that they come from
    "FT-Transformer": ("rtdl_revisiting_models",),
    "TabTransformer": ("tab_transformer_pytorch",),
    "SAINT": (),
}
EPOCHS, PATIENCE, BATCH, RATE = 16, 3, 256, 1e-3


def build(name: str, data: Data) -> nn.Module:
    table = data.table
    numbers, categories = len(table.numerical), [len(v) for v in table.categorical.values()]
    outputs = len(table.classes) or 1
    if name == "FT-Transformer":
        from rtdl_revisiting_models import FTTransformer

        return FTTransformer(
            n_cont_features=numbers,
            cat_cardinalities=categories,
            d_out=outputs,
            n_blocks=3,
            d_block=64,
            attention_n_heads=8,
            attention_dropout=0.1,
            ffn_d_hidden=None,
            ffn_d_hidden_multiplier=4 / 3,
            ffn_dropout=0.1,
            residual_dropout=0.0,
        )
    if name == "TabTransformer":
        from tab_transformer_pytorch import TabTransformer

        return TabTransformer(
            categories=tuple(categories),
            num_continuous=numbers,
            dim=32,
            depth=3,
            heads=8,
            dim_head=8,
            dim_out=outputs,
            mlp_act=nn.ReLU(),
            attn_dropout=0.1,
            ff_dropout=0.1,
            num_residual_streams=1,  # the published model has plain residuals
        )
    return SAINT(numbers, tuple(categories), outputs, width=16, layers=2, heads=4)


def encoded(data: Data, part: Part, device: str) -> dict[str, Tensor]:
    numbers, codes = data.table.encode(part.columns)
    assert numbers is not None and codes is not None
    return {
        "numerical": torch.tensor(numbers, dtype=torch.float32, device=device),
        "categorical": torch.tensor(codes, device=device),
    }


def call(model: nn.Module, x: dict[str, Tensor]) -> Tensor:
    if type(model).__name__ == "TabTransformer":
        return model(x["categorical"], x["numerical"])
    return model(x["numerical"], x["categorical"])


def losses(data: Data, logits: Any, truth: Any) -> Any:
    """(rows,) squared error or log loss, in numpy."""
    if data.regression:
        return (logits[:, 0] - truth) ** 2
    shifted = logits - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(truth)), truth]


def train(name: str, data: Data, seed: int, device: str) -> nn.Module:
    """AdamW, stopped when the validation loss has not fallen for a few epochs; the best weights are kept."""
    torch.manual_seed(seed)
    model = build(name, data).to(device)
    x, held = encoded(data, data.train, device), encoded(data, data.validation, device)
    y = torch.tensor(data.train.truth, device=device, dtype=torch.float32 if data.regression else torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    best, kept, waited = np.inf, copy.deepcopy(model.state_dict()), 0
    for _ in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(y), generator=generator).to(device).split(BATCH):
            logits = call(model, {k: v[rows] for k, v in x.items()})
            loss = F.mse_loss(logits[:, 0], y[rows]) if data.regression else F.cross_entropy(logits, y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        now = float(losses(data, predicted(model, held), data.validation.truth).mean())
        if now < best - 1e-4:
            best, kept, waited = now, copy.deepcopy(model.state_dict()), 0
        else:
            waited += 1
            if waited > PATIENCE:
                break
    model.load_state_dict(kept)
    return model.eval()


@torch.no_grad()
def predicted(model: nn.Module, x: dict[str, Tensor]) -> Any:
    model.eval()
    size = len(x["numerical"])
    parts = [call(model, {k: v[i : i + 512] for k, v in x.items()}) for i in range(0, size, 512)]
    return torch.cat(parts).float().cpu().numpy()


def quality(data: Data, logits: Any, truth: Any) -> float:
    """Accuracy, or R²."""
    if data.regression:
        return float(1 - ((logits[:, 0] - truth) ** 2).mean() / truth.var())
    return float((logits.argmax(1) == truth).mean())
