"""One-pass formulas: LibraGrad is cp_lrp, values by attention are values by hooks, and the command in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import whyformer as wf
from bench.one_pass import FORMULAS, INTEGRALS, main, one_pass, plain, products
from tests.models import CASES
from whyformer.demo import load_sentiment


class LibraGrad(TorchFunctionMode):
    """Mehri et al. 2024 in their own terms: paths that are not affine are pruned from the backward pass."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            return out.detach()  # self-attention: values alone
        if func.__name__ == "gelu":
            return args[0] * torch.special.ndtr(args[0]).detach()  # x · Φ(x): the gate is pruned
        if func.__name__ == "layer_norm":
            x = args[0]
            deviation = (x.var(-1, correction=0, keepdim=True) + kwargs["eps"]).sqrt().detach()
            return (x - x.mean(-1, keepdim=True)) / deviation * kwargs["weight"] + kwargs["bias"]
        return out


def test_input_times_libra_gradient_is_cp_lrp() -> None:
    case = CASES["vit"]
    model, inputs = case.build("eager"), case.inputs()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    with LibraGrad():
        score = model(pixel_values=pixels).logits[:, 1].sum()
    terms = (pixels * torch.autograd.grad(score, pixels)[0]).detach()
    explained = wf.explain(model, inputs, method="cp_lrp", target=1)
    for one, expected in zip(explained, terms, strict=True):
        assert one.detail is not None
        np.testing.assert_allclose(one.detail, expected.numpy(), atol=1e-5 * float(expected.abs().max()))


def test_values_times_gradient_from_the_maps_of_one_pass() -> None:
    model, tokenizer = load_sentiment()
    text = "a slow film , but not a bad one"
    expected = wf.explain(model, text, processor=tokenizer, method="value_x_gradient", target=1).scores
    maps = products(one_pass(plain(model), dict(tokenizer(text, return_tensors="pt")), 1))
    summed = torch.stack([m.sum((0, 1)) for m in maps]).sum(0).numpy()
    np.testing.assert_allclose(summed, expected, atol=1e-5 * np.abs(expected).max())


def test_the_command_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.tsv"
    path.write_text("a fine film\t1\nso very boring\t0\n")
    assert main(["text", "--data", str(path), "--inputs", "2", "--methods", "value_x_gradient"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines() if line.startswith("| ")]
    assert set(rows) == {"scores", "generic_attention", "value_x_gradient", *FORMULAS, *INTEGRALS}
    assert "nan" not in shown
