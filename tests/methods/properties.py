"""What every method must do whatever its formula, the golden numbers it is held to, and runs of test models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from tests import models
from tests.models import CASES
from tests.references import twin
from whyformer.loan.borrow import borrowed
from whyformer.results.types import Explanation
from whyformer.run import Run
from whyformer.study import hidden_padding, study_of
from whyformer.verbs import Explainer

FAMILY, TARGET = twin.FAMILY, twin.TARGET


@cache
def double_model_of(name: str) -> torch.nn.Module:
    return CASES[name].build(CASES[name].implementations[0]).double()


def model_of(name: str, double: bool = False) -> torch.nn.Module:
    return double_model_of(name) if double else models.model_of(name)


def explained(
    name: str, inputs: Any = None, target: Any = TARGET, double: bool = False, **how: Any
) -> list[Explanation]:
    """Explanations of a case; ``double``: of its float64 model, to compare with a twin without float32 noise."""
    model = model_of(name, double)
    return wf.explain(model, CASES[name].inputs() if inputs is None else inputs, target=target, **how)


def batch_is_its_rows(name: str, tolerance: float = 1e-5, **how: Any) -> None:
    """A batch of B gives what B single calls give."""
    inputs = CASES[name].inputs()
    together = explained(name, **how)
    for row, found in enumerate(together):
        if isinstance(inputs, dict):
            single: Any = {k: v[row : row + 1] for k, v in inputs.items()}
        else:
            single = tuple(v[row : row + 1] for v in inputs)
        (alone,) = explained(name, single, **how)
        close(found.scores, alone.scores, tolerance)


def padding_is_nothing(name: str, tolerance: float = 1e-5, **how: Any) -> None:
    """More padding on the right changes no score; nor does padding on the left, where the model itself can bear it
    (a head that reads position 0 cannot)."""
    inputs = CASES[name].inputs()
    plain = explained(name, **how)
    for changed in [padded(inputs, 3), *([] if CASES[name].readout == 0 else [on_the_left(inputs)])]:
        for before, after in zip(plain, explained(name, changed, **how), strict=True):
            close(after.scores, before.scores, tolerance)
            if isinstance(before.matrix, np.ndarray):
                close(after.matrix, before.matrix, tolerance)


class Scored(nn.Module):
    """Two classes of rows of numbers: one has the score that a rule gives the row, the other zero."""

    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.rule = nn.Parameter(torch.ones(1)), rule

    def forward(self, x: Tensor) -> Tensor:
        score = self.rule(x).float() * self.scale
        return torch.stack([score, torch.zeros_like(score)], 1)


def padded(inputs: Any, extra: int) -> dict[str, Tensor]:
    return {k: torch.nn.functional.pad(v, (0, extra)) for k, v in inputs.items()}


def on_the_left(inputs: Any) -> dict[str, Tensor]:
    """The same rows, padding first. Position ids are given, since padding must not move the words."""
    lengths = inputs["attention_mask"].sum(1).tolist()
    width = inputs["attention_mask"].shape[1]
    moved = {
        k: torch.stack([row.roll(width - n) for row, n in zip(v, lengths, strict=True)]) for k, v in inputs.items()
    }
    moved["position_ids"] = (moved["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return moved


def half_precision_is_finite(name: str, dtype: torch.dtype, **how: Any) -> list[Explanation]:
    case = CASES[name]
    model = case.build(case.implementations[0]).to(dtype)
    found = wf.explain(model, case.inputs(), target=TARGET, **how)
    for explanation in found:
        assert np.isfinite(explanation.scores).all()
        assert explanation.scores.any()
    return found


def close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """max|got - want| <= tolerance·max|want|, as the golden data counts."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, want {want.shape}"
    assert np.isfinite(got).all()
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-12)
    assert error <= tolerance, f"off by {error:.2e} of the largest value, allowed {tolerance:.0e}"


def near(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """As ``close`` where values are large; small ones may be off by the tolerance itself."""
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(np.asarray(found) / scale, np.asarray(expected) / scale, rtol=0, atol=tolerance)


@cache
def golden(attention: str = "sdpa") -> SimpleNamespace:
    """The tiny BERT of tests/golden: model, its padded batch, targets, and the authors' numbers."""
    from transformers import BertForSequenceClassification

    folder = Path(__file__).parents[1] / "golden" / "bert_cls"
    meta, arrays = json.loads((folder / "meta.json").read_text()), dict(np.load(folder / "inputs.npz"))
    return SimpleNamespace(
        model=BertForSequenceClassification.from_pretrained(folder, attn_implementation=attention).eval(),
        inputs={k: torch.from_numpy(arrays[k]) for k in meta["build"]["inputs"]},
        target=[int(t) for t in arrays["target"]],
        expected=dict(np.load(folder / "expected.npz")),
        meta=meta,
    )


def meets_golden(got: Any, key: str, row: int) -> None:
    case = golden()
    close(got, case.expected[f"{key}.b{row}"], case.meta["arrays"][key]["tol"])


@contextmanager
def running(
    name: str, double: bool = False, inputs: Any = None, model: nn.Module | None = None, **how: Any
) -> Iterator[Run]:
    model = model_of(name, double) if model is None else model
    explainer = Explainer(model)
    modality, batch, _ = explainer.prepare(CASES[name].inputs() if inputs is None else inputs)
    with borrowed(explainer.model):
        batch = hidden_padding(modality, batch)
        study, _ = study_of(modality, batch)
        yield Run(modality, batch, study, **({"target": TARGET} | how))
