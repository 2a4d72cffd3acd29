"""Integrated gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.gradient import InputSpace, MultiStream, SingleInput, gradient_space
from whyformer.engines.gradient.multi_stream import Where
from whyformer.errors import BadInput, NotOffered, UnknownName, reading
from whyformer.inputs.tensors import require_steps
from whyformer.loan.borrow import known_about
from whyformer.parameters import Count, Megabytes, Patches
from whyformer.registry import method
from whyformer.run import Attribution, Run
from whyformer.shapes import Array
from whyformer.targets import require_dense

MEMORY_MB = 1024  # of a batch of points
TOLERATED = 0.05  # share of the change in score that may be missing without a warning
NEAR = 1e-3  # of the way: what changes before is not seen by fifty points
Start = str | int | float | Tensor | np.ndarray[Any, Any]
Baseline = Start | None


@method(
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    needs={"input_gradients"},
    cost=lambda units, steps=50, **options: (steps + 2, steps),
    cost_text="(steps + 2) forwards + steps backwards",
    signed=True,
    class_specific=True,
    meaning="what each part adds on the way from a neutral input to this one",
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
    """Gradients added up along the straight line from a baseline to the input; they add up to the change in score.

    r = (x - x') · ∫ ∂s/∂x(x' + t(x - x')) dt by Gauss–Legendre with ``steps`` points. ``at="input"``: x are word
    embeddings (positions and types stay), pixels or floats; ``at="embeddings"``: the vectors that enter the first
    block, with positions and types. ``baseline``: for text "mask" (the default where the tokenizer has one, else
    "pad", else "zero"; another token, named in a warning, where that is a vector of zeros and the score jumps next to
    it), "pad", "unk", "zero", "mean" (of the input's own vectors) or a token id; for images "zero" (default), "mean" or
    "blur"; for sequences of vectors "zero" (default) or "mean" (of the input's own vectors); for tables "zero", or with
    Table(reference=…) "mean" (then the default; also called "typical": mean numbers, most frequent categories of those
    rows); or a tensor of your own that fits x of one input (for text: vectors). With several streams all move along one
    path, and the scores of all of them add up: a name goes to the streams that have it, or each has its own, {"text":
    "mask", "image": "mean"}; words start from "pad" there. ``keep_special`` leaves special tokens as they are; a list
    of token ids says which those are. ``memory_mb`` bounds the memory of a batch of points. What is missing from the
    sum is in ``checks["completeness_error"]``, as a share of the change in score in
    ``checks["completeness_error_relative"]``. ``patch_smoothing``: for pixels, each one's share spread by a Gaussian as
    wide as that many patches, against the patch grid; the sum stays, and 0 is off.

    Misleads when: the baseline means something to the model (a sentence of [MASK] has its own prediction), or the error
    is not small against the change in score: raise ``steps``.
    """
    space = gradient_space(run, at)
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
        warnings=[_doubt(run, wanted, share, steps) for share in relative_B.tolist()],
        used={"baseline": wanted},
    )


def _default(run: Run, space: InputSpace) -> str | dict[str, str]:
    if isinstance(space, MultiStream):
        each = {entry.stream: entry.fillers[0] for entry in space.stream_inputs}
        return each if len(set(each.values())) > 1 else next(iter(each.values()))
    return run.modality.default_baseline


def _away_from_jumps(run: Run, space: InputSpace, default: str | dict[str, str]) -> str | dict[str, str]:
    """The default baseline, or another token where that one is a vector of zeros and the model jumps there.

    A model that divides word vectors by their length reads the same of a vector and of a hundredth of it: all that
    changes from zero to the input changes within a step that no point of the line falls into.
    """
    others = run.modality.other_baselines()
    zeros = isinstance(space, SingleInput) and isinstance(default, str) and not run.modality.has_vector(default)
    if not zeros or not others or not _jumps_at_zero(run, space):
        return default
    run.notes.add(
        f"integrated gradients start at baseline={others[0]!r}: next to vectors of zeros ({default!r}, the default "
        "elsewhere) the score jumps, as it does where a model divides word vectors by their length. Gradients along "
        "the line would miss the jump."
    )
    return others[0]


def _jumps_at_zero(run: Run, space: InputSpace) -> bool:
    """Whether the logits change near zeros alone, tried once per model with random vectors in place of words."""
    facts, key = known_about(run.modality.model), ("jumps at zero", getattr(space, "entrance", None) is None)
    if key not in facts:
        one, like = run.batch.select([0]), space.inputs[:1]
        vectors = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like) * like.std()
        with torch.no_grad():
            zero, near, far = (space.logits(one, vectors * share).double() for share in (0.0, NEAR, 1.0))
        run.setup_forwards += 3
        facts[key] = bool((near - zero).norm() > TOLERATED * (far - zero).norm())
    return bool(facts[key])


def _doubt(run: Run, baseline: object, share: float, steps: int) -> list[str]:
    if share <= TOLERATED:
        return []
    if run.modality.stream == "table" and isinstance(baseline, str) and baseline == "zero":
        advice = f"start at a typical row, processor=Table(…, reference=rows), or raise steps={steps}."
    else:
        others = [other for other in run.modality.other_baselines() if other != baseline]
        elsewhere = f"pass baseline={others[0]!r}" if others else "choose another baseline"
        advice = f"raise steps={steps}, or {elsewhere}."
    return [f"the scores miss {share:.0%} of the change in score: {advice}"]


def alone(run: Run) -> Tensor:
    """(B, N) what each unit does where there is no other, to first order: (x - x') · ∂s/∂x(x') at the baseline x'."""
    space = gradient_space(run, None)
    baseline = "mean" if run.modality.pixels else _away_from_jumps(run, space, _default(run, space))
    start, _ = _baseline(run, space, baseline, keep_special=run.modality.embeds)
    gradient = _integral(run, space, start, np.array([-1.0]), np.array([2.0]), MEMORY_MB)
    return space.per_unit((space.inputs - start) * gradient)


def _integral(
    run: Run, space: InputSpace, start: Tensor, nodes: Array, weights: Array, memory_mb: float = MEMORY_MB
) -> Tensor:
    """(B, …) the mean gradient along the way, at nodes from -1 to 1, all inputs' points in common batches."""
    inputs = space.inputs
    total = torch.zeros_like(inputs, dtype=torch.promote_types(inputs.dtype, torch.float32))
    points = [(row, step) for step in range(len(nodes)) for row in run.explained]
    shape = (-1, *[1] * (inputs.ndim - 1))
    for chunk in space.in_batches(points, "integrated_gradients", memory_mb):
        rows, taken = [row for row, _ in chunk], [step for _, step in chunk]
        times = torch.tensor((nodes[taken] + 1) / 2).to(inputs).view(shape)
        shares = torch.tensor(weights[taken] / 2).to(total).view(shape)
        gradient = space.gradient_at(torch.lerp(start[rows], inputs[rows], times), rows)
        total.index_add_(0, torch.tensor(rows, device=inputs.device), gradient.to(total.dtype) * shares)
    return total


def _baseline(
    run: Run, space: InputSpace, baseline: Start | Mapping[str, Baseline], keep_special: bool | Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(B, …) where the line starts, and the explained values there."""
    if isinstance(space, MultiStream):
        start = space.start(baseline, keep_special)
        return start, space.values(start)
    assert isinstance(space, SingleInput)
    if isinstance(baseline, Mapping):
        raise BadInput("a baseline for each stream is for models with several; this one has a single input.")
    inputs, free = space.inputs, _free(run, space, keep_special)
    if isinstance(baseline, (Tensor, np.ndarray, float)):
        return _started(space, _expanded(baseline, inputs), free)
    other = run.modality.baseline(baseline, run, keep_special)
    if other is not None:
        return space.seen(other)
    if baseline == "zero":
        return _started(space, torch.zeros_like(inputs), free)
    if baseline == "mean":
        return _started(space, _means(run, space), free)
    raise UnknownName("baseline", baseline, ("zero", "mean", "typical (tables)", "a tensor"))


def _means(run: Run, space: SingleInput) -> Tensor:
    """(B, N, D) each input's mean over its own positions: who else is in the batch must not matter."""
    require_steps(run.modality.stream)
    width = space.inputs.shape[-1]
    means = [vectors[space.real(row)].reshape(-1, width).mean(0) for row, vectors in enumerate(space.inputs)]
    return torch.stack(means)[:, None].expand_as(space.inputs)


def _started(space: InputSpace, start: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Positions that are not free (padding, special tokens to be kept) stay what they are."""
    start = torch.where(free, start, space.inputs)
    return start, space.values(start)


def _expanded(baseline: Tensor | np.ndarray[Any, Any] | float, inputs: Tensor) -> Tensor:
    with reading("baseline is no tensor of numbers", "Give a tensor or an array of them."):
        tensor = torch.as_tensor(baseline)
    require_dense("baseline", tensor, "give it{}.")
    tensor = tensor.to(inputs)
    if not bool(torch.isfinite(tensor).all()):
        raise BadInput("baseline holds NaN or infinity, and scores are differences from it: give finite numbers.")
    try:
        return tensor.expand(inputs.shape[1:]).expand_as(inputs)
    except RuntimeError:
        raise BadInput(
            f"baseline has shape {tuple(tensor.shape)}; what it replaces has {tuple(inputs.shape[1:])} in every input. "
            "Give one of that shape, or one that expands to it."
        ) from None


def _free(run: Run, space: SingleInput, keep_special: bool | Sequence[int]) -> Tensor:
    """True where the baseline may stand, in a shape that expands to the inputs."""
    inputs = space.inputs
    if inputs.ndim != 3:
        if keep_special:
            raise NotOffered("keep_special is for tokens; this input has none that are special.")
        return torch.ones([1] * inputs.ndim, dtype=torch.bool, device=inputs.device)
    aligned = space.entrance is None or not run.study.extra
    open_BN = run.modality.open_tokens(run.batch, keep_special) if aligned else None
    if open_BN is not None:
        return open_BN[:, :, None]
    if keep_special not in (True, False):
        raise BadInput("keep_special takes token ids for plain text only: use True or False here.")
    free_BN = run.keep_BN & ~run.special_BN if keep_special else run.keep_BN.clone()
    free_BN[len(run.explained) :] = False  # rows that are only looked at stay what they are
    added = free_BN.shape[1] - inputs.shape[1]  # tokens that the model adds to vectors that it is given
    if space.entrance is None and added > 0:
        before = added if run.front is None else run.front
        free_BN = free_BN[:, before : before + inputs.shape[1]]
    return free_BN[:, :, None]
