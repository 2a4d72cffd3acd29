"""Gradients at the input: saliency, input_x_gradient and smooth_grad."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer.engines.gradient import InputSpace, gradient_space
from whyformer.engines.gradient.input_space import Norm
from whyformer.engines.gradient.multi_stream import Where
from whyformer.parameters import Count, Megabytes, Patches, Weight
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run

# Input times gradient.

CANCELLED = 1e-4  # what is left of every unit's terms; by chance some unit would keep hundreds of times as much


@method(
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    meaning="how strongly the answer leans on each part as it stands",
)
def input_x_gradient(run: Run, *, at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """The score's slope at each input times the input itself, summed over the input's dimensions.

    r_i = Σ_d x_id · ∂s/∂x_id. ``at="input"``: x is the word embedding (text), the pixels (images) or the floats
    themselves; ``at="embeddings"``: the vectors that enter the first block, positions and types included (the default
    for tables with categories). With several streams x are the inputs of all of them. ``patch_smoothing``: for pixels,
    each one's share spread by a Gaussian as wide as that many patches, against the patch grid; 0 is off.

    Misleads when: the score saturates: far along a flat stretch the gradient is small although the input decided. A
    model that normalises each input before anything else (DeBERTa) does not care how long it is: r is 0, and what is
    seen are rounding errors. The result warns of that; ``at="embeddings"`` starts behind the norm.
    """
    space = gradient_space(run, at, gradient=True)
    assert space.gradient is not None
    terms = space.inputs * space.gradient
    detail = space.smoothed(terms, patch_smoothing)
    return Attribution(space.per_unit(detail), detail=space.detail(detail), warnings=_cancelled(space, terms))


def _cancelled(space: InputSpace, terms: Tensor) -> list[list[str]]:
    """A word where the terms of every unit add up to nothing."""
    left_B, size_B = (space.per_unit(t).abs().amax(1) for t in (terms, terms.abs()))
    doubt = (
        "input times gradient adds up to nothing in every unit, so these scores are rounding errors: the model "
        "normalises its inputs first, and longer or shorter vectors change nothing. Pass at='embeddings'."
    )
    return [[doubt] if 0 < size and left <= CANCELLED * size else [] for left, size in zip(left_B, size_B, strict=True)]


# Saliency: the size of the gradient.


@method(
    paper="Simonyan, Vedaldi & Zisserman 2014, arXiv:1312.6034; on text: Li et al. 2016, arXiv:1506.01066",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    meaning="where a nudge would change the answer most",
)
def saliency(run: Run, *, norm: Norm = "l2", at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """How sharply the score changes when an input is nudged: the size of the gradient at each unit.

    r_i = ‖∂s/∂x_i‖, x_i being all numbers of unit i: the embedding of a token, the pixels of a patch, a column.
    ``norm``: "l2", "l1", "max" (the largest entry, in absolute value) or "sum" (the signed sum of the entries).
    ``at="input"``: x is the word embedding, the pixels or the floats; ``at="embeddings"``: the vectors that enter
    the first block, positions and types included (the default for tables with categories). With several streams (image
    and text, encoder-decoders) x are the inputs of all of them. The gradient itself is in ``detail``, where it is one
    tensor. ``patch_smoothing``: for pixels, a Gaussian over the gradient, as wide as that many patches, against
    the patch grid; 0 is off.

    Misleads when: the score is saturated, so that what decided it has no slope left; and it says where the score is
    sensitive, not in which direction, nor how much of the score is there.
    """
    space = gradient_space(run, at, gradient=True)
    assert space.gradient is not None
    gradient = space.smoothed(space.gradient, patch_smoothing)
    scores = space.norm(gradient, norm)
    return Attribution(scores, detail=space.detail(gradient), signed=norm == "sum")


GROUPS = 5  # of the samples, for the standard error


@method(
    paper="Smilkov et al. 2017, arXiv:1706.03825; magnitude: Hooker et al. 2019 (SmoothGrad-Squared), arXiv:1806.10758",
    needs={"input_gradients"},
    cost=lambda units, samples=25, **options: (samples + 1, samples),
    cost_text="(samples + 1) forwards + samples backwards",
    signed=False,
    class_specific=True,
    meaning="where a nudge would change the answer most, averaged over noise",
    scalable=("samples", 4),
    slow=True,
)
def smooth_grad(
    run: Run,
    *,
    samples: Count = 25,
    noise: Weight = 0.15,
    magnitude: bool = False,
    norm: Norm = "l2",
    at: Where = None,
    memory_mb: Megabytes = 1024,
    patch_smoothing: Patches = 0.0,
) -> Attribution:
    """The gradient averaged over copies of the input with a little noise, which cancels its fluctuations.

    g = 1/n Σ_k ∂s/∂x(x + ε_k), ε ~ N(0, σ²); r_i = ‖g_i‖. σ is ``noise`` times the range (max - min) of an image or a
    row of floats, and times the standard deviation of embeddings. ``magnitude`` averages the squared gradients in place
    of the gradients, r_i = Σ_d mean(g_id²). ``norm``: "l2", "l1", "max" or "sum", ``at``: as for ``saliency``.
    ``memory_mb`` bounds the memory of a batch of copies. Draws depend on the seed alone; the error that is left, by a
    jackknife over groups of samples, is in ``checks["standard_error"]`` (root mean square over the units), and as a
    share of the largest score in ``checks["standard_error_relative"]``. ``patch_smoothing``: for pixels, a Gaussian
    over what was averaged, as wide as that many patches, against the patch grid; 0 is off. With several streams all of
    them get noise at once, each by its own σ.

    Misleads when: the noise is large enough to leave what the model knows, or too small to leave a bend of the score;
    and where gradients cancel: what matters with changing sign averages to nothing (``magnitude=True`` keeps it).
    """
    space = gradient_space(run, at)
    space.check_smoothing(patch_smoothing)
    sums = _sums(run, space, samples, noise, magnitude, memory_mb)
    counts = torch.tensor([len(range(g, samples, len(sums))) for g in range(len(sums))], dtype=sums.dtype)
    mean = sums.sum(0) / samples

    def smooth(gradient: Tensor) -> Tensor:
        return space.smoothed(gradient, patch_smoothing)

    def score(gradient: Tensor) -> Tensor:
        # NOTE[DIFF] PAIR's code adds the squares up; their mean does not grow with the number of samples.
        gradient = smooth(gradient)
        return space.per_unit(gradient) if magnitude else space.norm(gradient, norm)

    scores = score(mean)
    error_B = _jackknife(sums, counts, samples, score, run.keep_BN)
    largest_B = scores.abs().amax(1)
    return Attribution(
        scores,
        detail=space.detail(smooth(mean)),
        checks={
            "standard_error": error_B,
            "standard_error_relative": torch.where(largest_B > 0, error_B / largest_B, 0.0),
        },
        signed=norm == "sum" and not magnitude,
    )


def _sums(run: Run, space: InputSpace, samples: int, noise: float, magnitude: bool, memory_mb: float) -> Tensor:
    """(groups, B, …) gradients, or their squares, added up per group of samples."""
    spread_B = [noise * space.spread(row) for row in range(run.batch.size)]
    real_B = [space.real(row) for row in range(run.batch.size)]
    sources = [torch.Generator().manual_seed(run.seed) for _ in range(run.batch.size)]
    dtype = torch.promote_types(space.inputs.dtype, torch.float32)
    groups = min(GROUPS, samples)
    sums = torch.zeros(groups, *space.inputs.shape, dtype=dtype, device=space.inputs.device)
    points = [(row, sample) for sample in range(samples) for row in run.explained]
    for chunk in space.in_batches(points, "smooth_grad", memory_mb):
        rows = [row for row, _ in chunk]
        moved = space.inputs[rows]
        for i, row in enumerate(rows):
            # Each input draws its own numbers, for its real positions only: neither batch nor padding changes them.
            drawn = torch.randn(moved[i][real_B[row]].shape, generator=sources[row])
            moved[i][real_B[row]] += (drawn * spread_B[row]).to(moved)
        gradient = space.gradient_at(moved, rows).to(dtype)
        gradient = gradient**2 if magnitude else gradient
        for i, (row, sample) in enumerate(chunk):
            sums[sample % groups, row] += gradient[i]
    return sums


def _jackknife(
    sums: Tensor, counts: Tensor, samples: int, score: Callable[[Tensor], Tensor], keep_BN: Tensor
) -> Tensor:
    """(B,) root mean square over the units of the standard error, from scores that leave one group out."""
    groups = len(sums)
    if groups < 2:
        return torch.zeros(len(keep_BN), device=keep_BN.device)
    total = sums.sum(0)
    without = torch.stack([score((total - sums[g]) / (samples - counts[g])) for g in range(groups)])
    variance_BN = (groups - 1) / groups * ((without - without.mean(0)) ** 2).sum(0)
    return ((variance_BN * keep_BN).sum(1) / keep_BN.sum(1)).sqrt().float()
