"""Gradients at the input: integrated_gradients, input_x_gradient, saliency and smooth_grad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.gradient import InputSpace, MultiStream, SingleInput, gradient_space
from whyformer.engines.gradient.input_space import Norm
from whyformer.engines.gradient.multi_stream import Where
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.inputs.stream_inputs import Baseline, fitted
from whyformer.inputs.tensors import require_steps
from whyformer.loan.borrow import known_about
from whyformer.parameters import Count, Megabytes, Patches, Weight
from whyformer.registry import method, one_backward
from whyformer.run import Attribution, Run
from whyformer.shapes import Array
from whyformer.study.interference import rounding_step

MEMORY_MB = 1024  # of a batch of points
TOLERATED = 0.05  # largest relative completeness error without a warning
NEAR = 1e-3  # fraction of the path before the first of fifty points


@method(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    needs={"input_gradients"},
    cost=lambda units, steps=50, **options: (steps + 2, steps),
    cost_text="(steps + 2) forwards + steps backwards",
    signed=True,
    class_specific=True,
    meaning="gradients integrated along a path from a baseline to the input",
    scalable=("steps", 4),
)
def integrated_gradients(
    run: Run,
    *,
    baseline: Baseline | Mapping[str, Baseline] = None,
    steps: Count = 50,
    at: Where = None,
    keep_special: bool | Sequence[int] = False,
    memory_mb: Megabytes = MEMORY_MB,
    patch_smoothing: Patches = 0.0,
) -> Attribution:
    """Integrate the gradient along the straight line from a baseline to the input; scores sum to the change in output.

    r = (x - x') · ∫ ∂s/∂x(x' + t(x - x')) dt by Gauss–Legendre with ``steps`` points. ``at="input"``: x is the word
    embedding (positions and types stay fixed), the pixels or the floats; ``at="embeddings"``: the vectors that enter
    the first block, with positions and types. ``baseline``: text: "mask" (default if the tokenizer has one, else "pad",
    else "zero"), "pad", "unk", "zero", "mean" (of the input's own vectors) or a token id; if the default is a vector of
    zeros next to which the output jumps, another token is used and named in a warning. Images: "zero" (default),
    "mean", "blur". Sequences of vectors: "zero" (default), "mean". Tables: "zero", or with Table(reference=…) "mean"
    (then the default; alias "typical": mean numbers and most frequent categories). Or a tensor with the shape of one
    input, or (1, …). With several streams (or tensors of columns, by the names of their arguments), all move along one
    path: a name applies to the streams that have it, {"text": "mask", "image": "mean"} sets each; words start from
    "pad". ``keep_special``: keep special tokens unchanged, or a list of
    token ids to keep. ``memory_mb``: memory limit of a batch of points. ``checks["completeness_error"]`` is the
    difference between the sum and the change in output; ``checks["completeness_error_relative"]`` is its share of the
    change. ``patch_smoothing``: for pixels, smooth the scores with a Gaussian as wide as that many patches (the sum
    stays); 0 is off.

    Misleads when: the baseline is meaningful to the model (a sentence of [MASK] has its own prediction), or the
    completeness error is not small: raise ``steps``.
    """
    by_name = (
        isinstance(baseline, Mapping) and not run.modality.read.embeds
    )  # the arguments of a module, as it takes them
    space = gradient_space(run, "input" if at is None and by_name else at)
    space.check_smoothing(patch_smoothing)
    wanted = _away_from_jumps(run, space, _default(run, space)) if baseline is None else baseline
    start, base_B = _baseline(run, space, wanted, keep_special)
    total = _integral(run, space, start, *np.polynomial.legendre.leggauss(steps), memory_mb)
    detail = space.smoothed((space.inputs - start) * total, patch_smoothing)
    scores = space.per_unit(detail)
    change_B = run.value_B - base_B
    error_B = (change_B - scores.sum(1)).abs().float()
    relative_B = error_B / change_B.abs().clamp_min(torch.finfo(torch.float32).tiny).float()
    return Attribution(
        scores,
        detail=space.detail(detail),
        base_B=base_B,
        checks={"completeness_error": error_B, "completeness_error_relative": relative_B},
        warnings=[_completeness_warnings(run, wanted, share, steps) for share in relative_B.tolist()],
        used={"baseline": wanted},
    )


def _default(run: Run, space: InputSpace) -> str | dict[str, str]:
    if isinstance(space, MultiStream):
        each = {entry.stream: entry.fillers[0] for entry in space.stream_inputs}
        return each if len(set(each.values())) > 1 else next(iter(each.values()))
    return run.modality.mask.default_baseline


def _away_from_jumps(run: Run, space: InputSpace, default: str | dict[str, str]) -> str | dict[str, str]:
    """Return the default baseline, or another token if the default is a zero vector and the output jumps there.

    A model that divides word vectors by their length gives the same output for a vector and for a hundredth of it: the
    whole change from zero to the input happens before the first point of the path.
    """
    others = run.modality.mask.other_baselines()
    zeros = isinstance(space, SingleInput) and isinstance(default, str) and not run.modality.mask.has_vector(default)
    if not zeros or not others:
        return default
    facts, key = known_about(run.modality.model), ("jumps at zero", getattr(space, "entrance", None) is None)
    if key not in facts:  # do the logits change only near zero? Tested once per model, with random vectors
        one, like = run.batch.select([0]), space.inputs[:1]
        vectors = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like) * like.std()
        with torch.no_grad():
            zero, near, far = (space.logits(one, vectors * share).double() for share in (0.0, NEAR, 1.0))
        run.setup_forwards += 3
        facts[key] = bool((near - zero).norm() > TOLERATED * (far - zero).norm())
    if not facts[key]:
        return default
    run.notes.add(
        f"integrated gradients use baseline={others[0]!r}: the output jumps next to zero vectors ({default!r}, the "
        "usual default), as in models that divide word vectors by their length, and gradients along the path would "
        "miss the jump."
    )
    return others[0]


def _completeness_warnings(run: Run, baseline: object, share: float, steps: int) -> list[str]:
    if share <= TOLERATED:
        return []
    if run.modality.stream == "table" and isinstance(baseline, str) and baseline == "zero":
        advice = f"start at a typical row, processor=Table(…, reference=rows), or raise steps={steps}."
    else:
        others = [other for other in run.modality.mask.other_baselines() if other != baseline]
        elsewhere = f"pass baseline={others[0]!r}" if others else "choose another baseline"
        advice = f"raise steps={steps}, or {elsewhere}."
    return [f"the completeness error is {share:.0%} of the change in output: {advice}"]


def alone(run: Run) -> Tensor:
    """Return (B, N) the effect of each unit alone, to first order: (x - x') · ∂s/∂x(x') at the baseline x'."""
    space = gradient_space(run, None)
    baseline = "mean" if run.modality.place.pixels else _away_from_jumps(run, space, _default(run, space))
    start, _ = _baseline(run, space, baseline, keep_special=run.modality.read.embeds)
    gradient = _integral(run, space, start, np.array([-1.0]), np.array([2.0]), MEMORY_MB)
    return space.per_unit((space.inputs - start) * gradient)


def _integral(
    run: Run, space: InputSpace, start: Tensor, nodes: Array, weights: Array, memory_mb: float = MEMORY_MB
) -> Tensor:
    """Return (B, …) the mean gradient along the path, at nodes from -1 to 1; inputs share batches."""
    inputs = space.inputs
    total = torch.zeros_like(inputs, dtype=torch.promote_types(inputs.dtype, torch.float32))
    points = [(row, step) for step in range(len(nodes)) for row in run.batch.explained]
    shape = (-1, *[1] * (inputs.ndim - 1))
    for chunk in space.in_batches(points, "integrated_gradients", memory_mb):
        rows, taken = [row for row, _ in chunk], [step for _, step in chunk]
        times = torch.tensor((nodes[taken] + 1) / 2).to(inputs).view(shape)
        shares = torch.tensor(weights[taken] / 2).to(total).view(shape)
        gradient = space.gradient_at(torch.lerp(start[rows], inputs[rows], times), rows)
        total.index_add_(0, torch.tensor(rows, device=inputs.device), gradient.to(total.dtype) * shares)
    return total


def _baseline(run: Run, space: InputSpace, baseline: Any, keep_special: bool | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the (B, …) baselines, and the explained values there."""
    if isinstance(space, MultiStream):
        start = space.start(baseline, keep_special)
        return start, space.values(start)
    assert isinstance(space, SingleInput)
    if isinstance(baseline, Mapping):
        raise BadInput("a baseline for each stream is for models with several; this one has a single input.")
    inputs, free = space.inputs, _free(run, space, keep_special)
    if isinstance(baseline, (Tensor, np.ndarray, float)):
        return _started(space, fitted(baseline, inputs[0], "baseline").expand_as(inputs), free)
    other = run.modality.mask.baseline(baseline, run, keep_special)
    if other is not None:
        return space.seen(other)
    if baseline == "zero":
        return _started(space, torch.zeros_like(inputs), free)
    if baseline == "mean":  # per input, so that scores do not depend on the batch
        require_steps(run.modality.stream)
        if space.entrance is None:
            run.modality.place.require_one_sequence(run.batch)
        width = inputs.shape[-1]
        means = [vectors[space.real(row)].reshape(-1, width).mean(0) for row, vectors in enumerate(inputs)]
        return _started(space, torch.stack(means)[:, None].expand_as(inputs), free)
    raise UnknownName("baseline", baseline, ("zero", "mean", "typical (tables)", "a tensor"))


def _started(space: InputSpace, start: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Restore positions that are kept: padding, and special tokens on request."""
    start = torch.where(free, start, space.inputs)
    return start, space.values(start)


def _free(run: Run, space: SingleInput, keep_special: bool | Sequence[int]) -> Tensor:
    """Return True where the baseline replaces the input, in a shape that expands to the inputs."""
    inputs = space.inputs
    if inputs.ndim != 3:
        if keep_special:
            raise NotOffered("keep_special is for tokens; this input has none that are special.")
        return torch.ones([1] * inputs.ndim, dtype=torch.bool, device=inputs.device)
    aligned = space.entrance is None or not run.study.extra
    open_BN = run.modality.mask.open_tokens(run.batch, keep_special) if aligned else None
    if open_BN is not None:
        return open_BN[:, :, None]
    if keep_special not in (True, False):
        raise BadInput("keep_special takes token ids for plain text only: use True or False here.")
    free_BN = run.keep_BN & ~run.special_BN if keep_special else run.keep_BN.clone()
    free_BN[len(run.batch.explained) :] = False  # reference rows are kept
    added = free_BN.shape[1] - inputs.shape[1]  # tokens that the model adds itself
    if space.entrance is None and added > 0:
        before = added if run.front is None else run.front
        free_BN = free_BN[:, before : before + inputs.shape[1]]
    if free_BN.shape[1] != inputs.shape[1]:  # units that are no steps: variables, blocks of time
        return torch.ones_like(inputs[:1], dtype=torch.bool)
    return free_BN[:, :, None]


ROUNDED = 16  # steps of the model's numbers by which each term may be off (bfloat16: an eighth)
CANCELLED = 1e-4  # largest |sum| / |terms| of all units if the terms cancel; by chance it is hundreds of times larger
ROUNDING = (
    "input × gradient is zero for every feature, and these scores are rounding errors: the model normalises its inputs "
    "first, so their length has no effect. Pass at='embeddings'."
)


@one_backward(
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    needs={"input_gradients"},
    signed=True,
    meaning="gradient × input",
)
def input_x_gradient(run: Run, *, at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """Multiply the gradient of the output by the input, and sum over the dimensions of each feature.

    r_i = Σ_d x_id · ∂s/∂x_id. ``at="input"``: x is the word embedding (text), the pixels (images) or the floats;
    ``at="embeddings"``: the vectors that enter the first block, with positions and types (the default for tables with
    categorical columns). With several streams, x is the input of all of them. ``patch_smoothing``: for pixels, smooth
    the products with a Gaussian as wide as that many patches (removes the patch grid); 0 is off.

    Misleads when: the output saturates: the gradient is small although the input decided. If the model normalises each
    embedding first (DeBERTa), the sum is 0 up to rounding; the result has a warning, and ``at="embeddings"`` avoids it.
    """
    space = gradient_space(run, at, gradient=True)
    assert space.gradient is not None
    terms = space.inputs * space.gradient
    detail = space.smoothed(terms, patch_smoothing)
    sizes = (space.per_unit(each.float()).abs().amax(1) for each in (terms, terms.abs(), terms.square()))
    sums = [(left, size, square**0.5) for left, size, square in torch.stack(list(sizes), 1).tolist()]
    small = any(left < root / 2 for left, _, root in sums)  # else the step does not matter
    step = rounding_step(run.modality.model, run.logits) if small else 0.0
    cancelled_B = [0 < size and left <= max(CANCELLED * size, ROUNDED * step * root) for left, size, root in sums]
    warnings = [[ROUNDING] if cancelled else [] for cancelled in cancelled_B]
    return Attribution(space.per_unit(detail), detail=space.detail(detail), warnings=warnings)


@one_backward(
    paper="Simonyan, Vedaldi & Zisserman 2014, arXiv:1312.6034; on text: Li et al. 2016, arXiv:1506.01066",
    needs={"input_gradients"},
    signed=False,
    meaning="size of the gradient",
)
def saliency(run: Run, *, norm: Norm = "l2", at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """Return the size of the gradient of the output at each feature.

    r_i = ‖∂s/∂x_i‖, where x_i are all numbers of feature i: a token's embedding, a patch's pixels, a column. ``norm``:
    "l2", "l1", "max" (largest absolute entry) or "sum" (signed sum). ``at="input"``: x is the word embedding, the
    pixels or the floats; ``at="embeddings"``: the vectors that enter the first block, with positions and types (the
    default for tables with categorical columns). With several streams, x is the input of all of them. ``detail`` holds
    the gradient if it is one tensor. ``patch_smoothing``: for pixels, smooth the gradient with a Gaussian as wide as
    that many patches (removes the patch grid); 0 is off.

    Misleads when: the output saturates, so that the deciding input has a small gradient. It measures sensitivity:
    neither the direction of the effect nor its size.
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
    meaning="size of the gradient, averaged over noisy copies of the input",
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
    """Average the gradient over noisy copies of the input, and return its size at each feature.

    g = 1/n Σ_k ∂s/∂x(x + ε_k), ε ~ N(0, σ²); r_i = ‖g_i‖. σ is ``noise`` times the range (max - min) of an image or a
    row of floats, or times the standard deviation of embeddings. ``magnitude`` averages squared gradients, r_i = Σ_d
    mean(g_id²). ``norm`` ("l2", "l1", "max", "sum") and ``at``: as in ``saliency``. ``memory_mb``: memory limit of a
    batch of copies. Draws depend on the seed only. ``checks["standard_error"]`` is the sampling error (jackknife over
    groups of samples, root mean square over features), ``checks["standard_error_relative"]`` its share of the largest
    score. ``patch_smoothing``: for pixels, smooth the average with a Gaussian as wide as that many patches; 0 is off.
    With several streams, noise is added to all of them at once, each with its own σ.

    Misleads when: the noise is so large that inputs become unrealistic, or too small to have an effect; and where
    gradients of changing sign cancel (``magnitude=True`` keeps them).
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
    """Return (groups, B, …) sums of gradients, or of their squares, per group of samples."""
    spread_B = [noise * space.spread(row) for row in range(run.batch.size)]
    real_B = [space.real(row) for row in range(run.batch.size)]
    sources = [torch.Generator().manual_seed(run.seed) for _ in range(run.batch.size)]
    dtype = torch.promote_types(space.inputs.dtype, torch.float32)
    groups = min(GROUPS, samples)
    sums = torch.zeros(groups, *space.inputs.shape, dtype=dtype, device=space.inputs.device)
    points = [(row, sample) for sample in range(samples) for row in run.batch.explained]
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
    """Return (B,) the root mean square over units of the jackknife standard error."""
    groups = len(sums)
    if groups < 2:
        return torch.zeros(len(keep_BN), device=keep_BN.device)
    total = sums.sum(0)
    without = torch.stack([score((total - sums[g]) / (samples - counts[g])) for g in range(groups)])
    variance_BN = (groups - 1) / groups * ((without - without.mean(0)) ** 2).sum(0)
    return ((variance_BN * keep_BN).sum(1) / keep_BN.sum(1)).sqrt().float()
