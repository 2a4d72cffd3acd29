"""The self-test of ``whyformer doctor``: a tiny model whose attention is known, which needs torch when imported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TOKENS = (3, 1, 4, 1, 5)
WIDTH = 4
CLOSE = 1e-4


class Tiny(nn.Module):
    """One attention over a handful of tokens, its weights by formula: the same whatever draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, WIDTH, _weight=_waves(8, WIDTH, 1.0))
        self.query, self.key, self.value = (nn.Parameter(_waves(WIDTH, WIDTH, step)) for step in (0.7, 1.3, 2.1))
        self.head = nn.Parameter(_waves(WIDTH, 2, 0.9))

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        query, key, value = hidden @ self.query, hidden @ self.key, hidden @ self.value
        attention = (query @ key.transpose(-1, -2) / WIDTH**0.5).softmax(-1)
        read: Tensor = (hidden + attention @ value)[:, 0] @ self.head
        return read


def _waves(rows: int, columns: int, step: float) -> Tensor:
    return torch.sin(step * torch.arange(1, rows * columns + 1, dtype=torch.float64)).view(rows, columns).float()


def self_test(device: str) -> dict[str, Any]:
    """Compare two methods with numpy, and the model before and after; ``trouble`` is empty if both hold."""
    start = time.perf_counter()
    try:
        trouble = _trouble(device)
    except Exception as error:  # any error is reported as the outcome
        trouble = f"{type(error).__name__}: {error}"
    return {"device": device, "seconds": time.perf_counter() - start, "trouble": trouble}


def _trouble(device: str) -> str:
    from whyformer.verbs import explain

    model = Tiny().to(device).eval()
    inputs: dict[str, Any] = {"input_ids": torch.tensor([TOKENS], device=device)}
    with torch.no_grad():
        before = model(**inputs)
    explained = explain(model, inputs, method=["raw_attention", "generic_attention"], scalar="logit", progress=False)
    looked, counted = (e[0] if isinstance(e, list) else e for e in explained.values())
    with torch.no_grad():
        after = model(**inputs)
    if not torch.equal(before, after):
        return "the model's output changed after it was explained."
    for method, scores, known in zip(explained, (looked.scores, counted.scores), by_hand(), strict=True):
        far = float(np.abs(np.asarray(scores, float) - known).max())
        if not far <= CLOSE:
            return f"{method} is off by {far:.1e} from what numpy computes."
    return ""


def by_hand() -> tuple[Any, Any]:
    """Return both methods' scores from numpy in double precision: the first row of A, and that of I + (A ∘ ∇A)⁺."""
    model = Tiny()
    parts = (model.embedding.weight, model.query, model.key, model.value, model.head)
    table, query, key, value, head = (part.detach().double().numpy() for part in parts)
    hidden = table[list(TOKENS)]
    weights = np.exp(hidden[0] @ query @ (hidden @ key).T / WIDTH**0.5)
    attention = weights / weights.sum()
    said = int(np.argmax((hidden[0] + attention @ hidden @ value) @ head))
    itself = np.eye(len(TOKENS))[0]
    return attention, itself + np.maximum(0, attention * (hidden @ value @ head[:, said]))
