"""Value times gradient where there are several streams or windows, against hooks on the value projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES, run

TARGET = 1


def by_hooks(model: nn.Module, inputs: Any, ends: str | tuple[str, ...], logit: Any) -> dict[str, Tensor]:
    """Module name → (B, positions) v · ∂s/∂v of every module whose name ends so, s being ``logit`` of the output."""
    values: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda m, args, out, name=name: values.update({name: out}))
        for name, module in model.named_modules()
        if name.endswith(ends)
    ]
    try:
        score = logit(run(model, inputs)).sum()
    finally:
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(score, list(values.values()))
    pairs = zip(values.items(), gradients, strict=True)
    return {name: (value * gradient).sum(-1).detach() for (name, value), gradient in pairs}


def test_both_streams_of_an_encoder_and_decoder() -> None:
    """T5: the source is asked by itself and by the target (cross-attention), the target by itself alone."""
    case = CASES["t5"]
    model, inputs = case.build("eager"), case.inputs()
    explained = wf.explain(model, inputs, method="value_x_gradient", target=TARGET)
    handed = by_hooks(model, inputs, ".v", lambda out: out.logits[:, -1, TARGET])
    streams = {"source": 0, "target": 0}
    for name, scores in handed.items():
        streams["target" if "decoder" in name and "SelfAttention" in name else "source"] += scores
    for row, one in enumerate(explained):
        for stream, expected_BN in streams.items():
            here = np.array([s == stream for s in one.units.stream])
            want = expected_BN[row].numpy()[: here.sum()]
            np.testing.assert_allclose(one.scores[here], want, atol=1e-5 * np.abs(want).max())


def test_windows_lose_nothing_and_the_first_layer_stands_where_it_is() -> None:
    case = CASES["swin"]
    model, inputs = case.build("eager"), case.inputs()
    handed = by_hooks(model, inputs, ("value", "v_proj"), lambda out: out.logits[:, TARGET])
    explained = wf.explain(model, inputs, method="value_x_gradient", target=TARGET)
    totals = sum(scores.reshape(len(explained), -1).sum(1) for scores in handed.values())
    assert isinstance(totals, Tensor)
    size = max(float(scores.abs().max()) for scores in handed.values())
    for one, total in zip(explained, totals.tolist(), strict=True):
        assert abs(one.scores.sum() - total) <= 1e-4 * size
    first = wf.explain(model, inputs, method="value_x_gradient", target=TARGET, layers=0)
    windows = next(iter(handed.values())).reshape(len(first), -1)
    for one, scores in zip(first, windows, strict=True):
        np.testing.assert_allclose(np.sort(one.scores), np.sort(scores.numpy()), atol=1e-5 * size)
