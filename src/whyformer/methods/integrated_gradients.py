"""Integrated gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, UnknownName
from whyformer.registry import Passes, method
from whyformer.run import Attribution, Run
from whyformer.subjects.image import ImageSubject
from whyformer.subjects.text import TextSubject


def _cost(units: int, steps: int = 50, **options: object) -> Passes:
    return steps + 2, steps


@method(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    needs={"input_gradients"},
    cost=_cost,
    cost_text="(steps + 2) forwards + steps backwards",
    signed=True,
    class_specific=True,
    specificity="gradient",
)
def integrated_gradients(
    run: Run, *, baseline: str | int | None = None, steps: int = 50, keep_special: bool = False
) -> Attribution:
    """Gradients added up along the straight line from a baseline to the input; they add up to the change in score.

    r = (x - x') · ∫ ∂s/∂x(x' + t(x - x')) dt by Gauss–Legendre with ``steps`` points, on word embeddings, pixels or
    floats. ``baseline``: for text "pad" (default), "mask", "unk", "zero" or a token id; for images "zero" (default),
    "mean" or "blur"; for floats "zero" or "mean". ``keep_special`` leaves special tokens as they are. The error of
    the sum is in ``checks["completeness_error"]``.

    Misleads when: the baseline means something to the model (a [PAD] sentence has its own prediction), or the error
    is not small against the change in score: raise ``steps``.
    """
    if not isinstance(steps, int) or steps < 1:
        raise BadInput(f"steps={steps!r}: a whole number of at least 1.")
    inputs = run.embedding()
    start = _baseline(run, inputs, baseline, keep_special)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros_like(inputs, dtype=torch.float32)
    size = run.batch.size
    points = [(row, step) for step in range(steps) for row in range(size)]
    chunks = [points[i : i + run.batch_size] for i in range(0, len(points), run.batch_size)]
    for chunk in run.track(chunks, "integrated_gradients"):
        rows = [row for row, _ in chunk]
        times = torch.tensor([(nodes[step] + 1) / 2 for _, step in chunk]).to(inputs)
        shares = torch.tensor([weights[step] / 2 for _, step in chunk], device=inputs.device, dtype=torch.float32)
        shape = (-1, *[1] * (inputs.ndim - 1))
        at = start[rows] + times.view(shape) * (inputs[rows] - start[rows])
        gradient, _ = run.input_gradient(at, rows)
        total.index_add_(0, torch.tensor(rows, device=inputs.device), gradient.float() * shares.view(shape))
    detail = (inputs - start).float() * total
    base_B = _value_at(run, start)
    scores = run.per_unit(detail)
    error = (run.value_B - base_B - scores.sum(1)).abs()
    return Attribution(
        scores,
        detail=[d.cpu().numpy() for d in detail],
        base_B=base_B,
        checks={"completeness_error": error},
    )


def _value_at(run: Run, inputs: Tensor) -> Tensor:
    from whyformer.outputs import scalar_of

    with torch.no_grad():
        logits = run.logits_at(run.batch, inputs)
    run.forwards_B += 1
    return scalar_of(logits.float(), run.targets, run.scalar)


def _baseline(run: Run, inputs: Tensor, baseline: str | int | None, keep_special: bool) -> Tensor:
    subject = run.subject
    if isinstance(subject, TextSubject):
        start = _text_baseline(run, subject, inputs, baseline)
    elif isinstance(subject, ImageSubject):
        start = subject.background(inputs, str(baseline or "zero"))
    elif baseline in {None, "zero"}:
        start = torch.zeros_like(inputs)
    elif baseline == "mean":
        start = inputs.mean(0, keepdim=True).expand_as(inputs)
    else:
        raise UnknownName("baseline", baseline, ("zero", "mean"))
    if keep_special and inputs.ndim == 3:
        kept = run.special_BN[:, : inputs.shape[1], None]
        start = torch.where(kept, inputs, start)
    return start


def _text_baseline(run: Run, subject: TextSubject, inputs: Tensor, baseline: str | int | None) -> Tensor:
    if baseline is None:
        baseline = "pad" if "pad" in subject.replacements else "zero"
    if baseline == "zero":
        return torch.zeros_like(inputs)
    ids = torch.full_like(run.batch.tensors[subject.main], subject.replacement_id(baseline))
    start = run.embed_ids(ids)
    keep = run.batch.keep_BN
    assert keep is not None
    return torch.where(keep[:, :, None], start, inputs)  # padding stays padding
