"""Check that interception does not change the output, that inputs do not mix, and that gradients are slopes.

Torch's fused encoder sets padded rows to zero and is left aside as soon as a function mode is on. So the output under
interception is compared with that of a plain pass, once for each form of a batch. Other code mixes the rows of a batch
(Nystromformer divides by the largest sum of all of them). So the plain pass is made in two parts: whatever depends on
all rows is another one for at least one of them. Such inputs are run singly from then on, and the results say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from whyformer.capture.roles import Rewrite
from whyformer.errors import CaptureError, MixedInputs, NotOffered, WhyformerError, refused
from whyformer.loan.backwards import rounds_activations
from whyformer.loan.borrow import fact, known_about, modules_of
from whyformer.results.types import Record
from whyformer.targets import FINE, least_effect

# Slopes: is the gradient that was recorded, at the attention maps or at the input, the slope of the score?
#
# What runs out of autograd's sight (a torch.autograd.Function with a backward of its own, re-entrant checkpointing,
# ``detach()``) leaves maps or inputs without a gradient, or with a part of it. So all of them are changed a little in
# one random direction, and the change of the score is held to what the recorded gradients say. Where they disagree, the
# same is tried beside that point: equal values may tie there, and a tie is no hidden function.

Changed = Callable[[Rewrite], Tensor]  # (B,) scores with every map rewritten
Steps = Sequence[float] | Tensor  # by attention
STEPS = (2.0**-8, 2.0**-5, 2.0**-11)  # by how much of itself a map is changed
TOLERANCE = 0.02  # of what all maps say together
NOISE = 16  # roundings, of which a score may collect as many
INPUT_SLOPES = ("input slopes",)  # among what a study was held to
POINTS = (1, 2)  # seeds of points beside, of which all have to agree: one may do so by chance
APART = 0.25  # of the largest number of a row: noise that parts equal numbers further than a step joins them
UNSTEADY = 0.2  # by how much of itself a slope may change with the step and still be one

JUMPS = (
    "the output jumps close to this input (the model selects experts or positions), so gradients could not be compared "
    "with measured slopes: they are valid between two jumps at most."
)
ROUNDS = (
    "quantised layers of this model round their inputs, too, so its output moves in steps. Gradients are those of the "
    "dequantised weights; they were compared with measured slopes layer by layer."
)

TIES = (
    "some values are exactly equal at this input (pixels of a plain background in a max-pool, zeros under a ReLU): the "
    "gradient there is that of one of them, or zero."
)

REMEDY = (
    "Part of the model is not visible to autograd: a torch.autograd.Function with its own backward, re-entrant "
    "gradient checkpointing, detach() or no_grad(). Turn checkpointing off (model.gradient_checkpointing_disable(), or "
    "use_reentrant=False) or write the function in plain torch."
)

NO_NUMBER = (
    "the gradient holds NaN or infinity, although the output is finite. A weight or a number inside the model may be "
    "NaN or infinite (torch.isfinite(weight).all()), or a function has no slope at this input (the norm of zeros)."
)

NO_SLOPE = (
    "the gradients recorded at the attention maps are not the slope of the score ({said:.3g}; measured: {slope:.3g}), "
    "so maps weighted by them would be wrong. " + REMEDY
)


@dataclass(frozen=True)
class Measured:
    """One direction: the score after a step along it, the slope by the gradients, and how exact both can be."""

    moved: Callable[[float], float]  # the sum of all scores, a step away
    slope: float  # by the gradients
    size: float  # of the terms that it is a sum of
    noise: float  # of a score

    def over(self, step: float) -> float:
        """The slope, from a step to either side."""
        return (self.moved(step) - self.moved(-step)) / (2 * step)

    def agrees(self, slope: float, step: float) -> bool:
        """Whether a slope that was measured by this step is that of the gradients."""
        return abs(slope - self.slope) <= TOLERANCE * self.size + self.noise / step


def require_slopes(maps: Record, score_B: Tensor, changed: Changed, shared: bool = False) -> tuple[int, str]:
    """Raise if gradients are not the slope of ``score_B`` (shared: of one row); return passes, and a warning or ""."""
    rows = slice(0, 1 if shared else None)
    said = [
        # Head by head, and directions drawn anew each time: maps of long inputs fill the memory by themselves.
        sum(
            float((gradient_QK.double() * map_QK.double() * direction_QK).sum())
            for gradient_HQK, map_HQK, direction_HQK in zip(
                site.attention_grad_BHQK,
                site.attention_BHQK,
                _direction(site.attention_BHQK[rows], number).expand(site.attention_BHQK.shape),
                strict=True,
            )
            for gradient_QK, map_QK, direction_QK in zip(gradient_HQK, map_HQK, direction_HQK, strict=True)
        )
        for number, site in enumerate(maps.sites)
        if site.attention_grad_BHQK is not None
    ]

    def scores(steps: Steps, apart: float, seed: int) -> Tensor:
        def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
            whole_BHQK, heads = maps.sites[layer].attention_BHQK[rows], slice(first, first + attention_BHQK.shape[1])
            drawn = layer + 2 * seed * len(maps.sites)
            factor = 1 + steps[layer] * _direction(whole_BHQK, drawn)[:, heads]
            if apart:
                factor = factor * (1 + apart * _direction(whole_BHQK, drawn + len(maps.sites))[:, heads])
            return attention_BHQK * factor.to(attention_BHQK.dtype)

        return changed(rewrite)

    return _require_along(said, len(maps.sites), maps.logits, score_B, scores)


def require_scaled_slopes(
    said: Mapping[int, float], logits: Tensor, score_B: Tensor, changed: Callable[[dict[int, Any]], Tensor]
) -> tuple[int, str]:
    """As :func:`require_slopes`, along a change of each attention's size: ``said`` by its number, Σ A ∘ ∂s/∂A.

    changed: (B,) scores with every attention's result times a number.
    """

    def drawn(seed: int) -> dict[int, float]:
        generator = torch.Generator().manual_seed(seed)
        return {n: float(torch.rand((), generator=generator) + 0.5) * (1 if n % 2 else -1) for n in sorted(said)}

    by = drawn(0)
    terms = [slope * by[number] for number, slope in said.items()]

    def scores(steps: Steps, apart: float, seed: int) -> Tensor:
        by, beside = drawn(2 * seed), drawn(2 * seed + 1)
        return changed({n: (1 + apart * beside[n]) * (1 + steps[n] * direction) for n, direction in by.items()})

    return _require_along(terms, max(said) + 1, logits, score_B, scores)


def _require_along(
    said: Sequence[float], count: int, logits: Tensor, score_B: Tensor, scores: Callable[[Steps, float, int], Tensor]
) -> tuple[int, str]:
    """Raise if the gradients at ``count`` attentions give another slope along a direction than the scores have.

    scores: (B,) a step further along a direction, from a point so far apart; direction and point go by a seed.
    """
    noise = _noise_of(torch.finfo(logits.dtype).eps, logits)

    def moved(apart: float, seed: int, step: float) -> float:
        with torch.no_grad():
            return float(scores([step] * count, apart, seed).double().sum())

    def at(apart: float, seed: int) -> tuple[Measured, Tensor]:
        with torch.enable_grad():
            steps = torch.zeros(count, device=logits.device, requires_grad=True)
            other_B = scores(steps, apart, seed)
            gradient = torch.zeros_like(steps)
            if other_B.requires_grad:
                (gradient,) = torch.autograd.grad(other_B.sum(), steps)
        terms = gradient.tolist()
        return Measured(partial(moved, apart, seed), sum(terms), sum(map(abs, terms)), noise), other_B.detach()

    here = Measured(partial(moved, 0.0, 0), sum(said), sum(map(abs, said)), noise)
    return _require(here, score_B, at, lambda said, slope: CaptureError(NO_SLOPE.format(said=said, slope=slope)))


@dataclass(frozen=True)
class Inputs:
    """Numbers of a batch, and the model as a function of them."""

    numbers: Tensor
    logits: Tensor
    step: float  # of the model's rounding
    changed: Callable[[Tensor], Tensor]  # (B,) scores with other numbers in their place
    differentiated: Callable[[Tensor], tuple[Tensor, Tensor]]  # these scores, and their gradient at those numbers

    def measured(self, numbers: Tensor, gradient: Tensor, seed: int = 0) -> Measured:
        """Along one random direction from these numbers."""
        # Signs are random, because many models normalise their input, so a mere change of scale has no effect.
        direction = _randn(numbers, 2 * seed) * numbers.abs()
        terms = gradient.double() * direction

        def moved(step: float) -> float:
            return float(self.changed((numbers + step * direction).to(self.numbers.dtype)).double().sum())

        noise = _noise_of(self.step, self.logits)
        return Measured(moved, float(terms.sum()), float(terms.square().sum().sqrt()), noise)

    def beside(self, apart: float, seed: int) -> Tensor:
        """Numbers near by, of which no two are equal: each row with noise of a share of its largest number."""
        numbers = self.numbers.detach().double()
        largest = numbers.flatten(1).abs().amax(1).view(-1, *[1] * (numbers.ndim - 1))
        return (numbers + apart * largest * _randn(numbers, 2 * seed + 1)).to(self.numbers.dtype)


def require_input_slopes(inputs: Inputs, gradient: Tensor, score_B: Tensor) -> tuple[int, str]:
    """Raise if input gradients are not the slope of ``score_B``; return the passes that took, and a warning or ""."""

    def at(apart: float, seed: int) -> tuple[Measured, Tensor]:
        others = inputs.beside(apart, seed)
        other_B, slopes = inputs.differentiated(others)
        return inputs.measured(others.double(), slopes, seed), other_B

    def refusal(said: float, slope: float) -> NotOffered:
        return NotOffered(
            f"the gradient at the input is not the slope of the score ({said:.3g}; measured: {slope:.3g}), so scores "
            f"computed from it would be wrong. {REMEDY}"
        )

    return _require(inputs.measured(inputs.numbers.detach().double(), gradient), score_B, at, refusal)


def _require(
    here: Measured,
    score_B: Tensor,
    at: Callable[[float, int], tuple[Measured, Tensor]],
    refusal: Callable[[float, float], WhyformerError],
) -> tuple[int, str]:
    """Raise if a gradient is not the slope; return the passes that took, and a warning or "".

    at: a point so far apart and a direction, by a seed, differentiated in a pass of its own; and the scores there.
    A batch is refused as such: the gradient of each of its inputs alone may be right.
    """
    if not math.isfinite(here.slope):
        raise NotOffered(NO_NUMBER)
    passes, doubt, slope = _held(here, score_B)
    if slope is None:
        return passes, doubt
    # Where equal values tie (pixels of a plain background in a max-pool, zeros under a ReLU) the score has a slope on
    # each side, and no gradient is both. So a gradient that is not the slope here is still accepted if it is what
    # autograd computes here, and if beside the ties autograd computes the slope.
    if not here.agrees(at(0.0, 0)[0].slope, STEPS[0]):
        raise refused(refusal(here.slope, slope), len(score_B))
    passes += 1
    for seed in POINTS:
        there, other_B = at(APART, seed)
        more, doubt, slope = _held(there, other_B)
        passes += 1 + more
        if slope is not None or doubt:
            measured = there.over(STEPS[0]) if slope is None else slope
            raise refused(refusal(there.slope, measured), len(score_B))
    return passes, TIES


def _randn(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)


def _noise_of(step: float, logits: Tensor) -> float:
    return NOISE * step * (float(logits.detach().abs().max()) + 1) * len(logits) ** 0.5


def _held(measured: Measured, score_B: Tensor) -> tuple[int, str, float | None]:
    """Return the passes that took, a warning or "", and the measured slope where it is another."""
    if measured.agrees((measured.moved(STEPS[0]) - float(score_B.double().sum())) / STEPS[0], STEPS[0]):
        return 1, "", None
    slopes: list[float] = []
    for step in STEPS:  # a bend of the model, or one of its choices, may lie within one step, not within all
        slopes.append(measured.over(step))
        if measured.agrees(slopes[-1], step):
            return 1 + 2 * len(slopes), "", None
    passes = 1 + 2 * len(slopes)
    if max(slopes) - min(slopes) > UNSTEADY * max(map(abs, slopes)) + measured.noise / min(STEPS):
        return passes, JUMPS, None
    return passes, "", slopes[0]


def require_reached(lost: Sequence[str], score_B: Tensor, scaled: Callable[[float], Tensor]) -> int:
    """Raise if attentions ``lost`` to autograd (paths) change the score all the same; return the passes that took.

    scaled: (B,) scores with these attentions times a number.
    """
    with torch.no_grad():
        halved_B = scaled(0.5)
        if torch.equal(halved_B, score_B):
            return 1
        # Torch's own kernel, which was recorded, and attention written out, which is changed, are rounded differently.
        if torch.equal(halved_B, scaled(1.0)):
            return 2
    paths = ", ".join(dict.fromkeys(path or "the model itself" for path in lost))
    raise CaptureError(
        f"the attention of {paths} changes the score, but autograd has no path from there, so its gradient would be "
        f"recorded as zero. {REMEDY}"
    )


def _direction(like: Tensor, seed: int) -> Tensor:
    """Random numbers of one sign, so that a change does not average out over a large map."""
    generator = torch.Generator().manual_seed(seed)
    sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
    return sign * (torch.rand(like.shape, generator=generator) + 0.5).to(like.device)


FULL = (1e-3, 1e-5)  # of the largest logit, and besides: what float32 may lose over many layers
COARSE_STEPS = (32.0, 16.0)  # the same in steps of a coarser type
FUSED_ADVICE = (
    "torch's fused encoder (nn.TransformerEncoder in eval mode) sets padded rows to zero, and the head uses them. "
    "Exclude padded rows in the head; or disable the fused encoder, torch.backends.mha.set_fastpath_enabled(False); or "
    "give inputs one by one, without padding."
)
OTHER_ADVICE = (
    "Its code behaves differently when gradients or torch function modes are on: look for torch.is_grad_enabled(), "
    "requires_grad or has_torch_function in it."
)

MIXES = "mixes the inputs of a batch"  # a fact about a model: True or False, once it was tried
LARGEST = "positions of the largest batch that was tried"
FURTHER = 2  # times as many positions are tried again: experts may have room for a number of tokens of a batch
SINGLY = (
    "the output for an input may change with the other inputs of a batch, so every input, and every variant of it, was "
    "run separately."
)

PRODUCTS = {"high": 2.0**-10, "medium": 2.0**-7}  # torch.set_float32_matmul_precision: the steps of TF32 and bfloat16

Form = tuple[object, ...]
Part = Callable[[slice], Tensor]  # logits of some rows of a batch, by themselves


@fact
def _types_in(model: nn.Module) -> set[torch.dtype]:
    types = {p.dtype for m in modules_of(model) for p in m._parameters.values() if p is not None}
    return types | {torch.bfloat16} if rounds_activations(model) else types  # eight bits


def rounding_step(model: nn.Module, logits: Tensor) -> float:
    """The relative step of the coarsest numbers that a model computes with."""
    types = {logits.dtype, *_types_in(model)}
    if torch.is_autocast_enabled(logits.device.type):
        types.add(torch.get_autocast_dtype(logits.device.type))
    step = max((torch.finfo(t).eps for t in types if t.is_floating_point and t.itemsize > 1), default=0.0)
    # What users allow torch to round to inside matrix products, whatever the weights are.
    return max(step, PRODUCTS.get(torch.get_float32_matmul_precision(), 0.0))


class Rerounded(TorchDispatchMode):
    """Inside ``with``: products are moved by up to half a (relative) step at random, as rounding moves them."""

    def __init__(self, device: torch.device, step: float) -> None:
        super().__init__()
        self.step, self.generator = step, torch.Generator(device).manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in {"mm", "bmm", "addmm", "baddbmm"}:
            share = torch.rand(out.shape, generator=self.generator, device=out.device) - 0.5
            out = (out * (1 + self.step * share)).to(out.dtype)
        return out


def rounding(model: nn.Module, logits: Tensor) -> float:
    """How far two passes may differ by rounding: attention written out is rounded otherwise than torch's kernels."""
    largest = float(logits.abs().max()) if logits.numel() else 0.0
    step = rounding_step(model, logits)
    if step <= torch.finfo(torch.float32).eps:
        return FULL[0] * largest + FULL[1]
    return step * (COARSE_STEPS[0] * largest + COARSE_STEPS[1])


def require_same(model: nn.Module, watched: Tensor, part: Part, apart: bool, positions: int = 0) -> int:
    """Raise if ``watched``, logits under interception, differ from those without; return the rows that ran for it.

    apart: find out as well whether rows change each other's answers. positions: of all rows together.
    """
    everything, looked = slice(len(watched)), watched.detach().float()
    apart = apart and len(watched) > 1 and MIXES not in known_about(model)
    with torch.no_grad():
        plain = _split(part, len(watched)) if apart else part(everything).detach().float()
        if same(model, plain, looked):
            if not apart or unmixed(model, plain, looked, positions):
                return len(watched)
            together = part(everything).detach().float()
            if not unmixed(model, plain, together, positions):
                _require_unmixed(model, plain, together, part, positions)
            return 2 * len(watched)
        together = part(everything).detach().float() if apart else plain
        again = part(everything).detach().float()
    if not same(model, together, again):
        raise NotOffered(
            f"the model's output is random ({_shown(together, again)} in two passes), so it cannot be explained. "
            "Remove the randomness from its forward, or seed it there."
        )
    if apart and same(model, together, looked):
        raise mixed(model, together, plain)
    fused = torch.backends.mha.get_fastpath_enabled()
    if fused:  # is the answer the same once torch's fused encoder is off?
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad():
                fused = same(model, part(everything).detach().float(), looked)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    raise NotOffered(
        f"the model's output changes under interception ({_shown(together, looked)}), so the explanation would be "
        f"of another output. {FUSED_ADVICE if fused else OTHER_ADVICE}"
    )


def is_tried(model: nn.Module, positions: int) -> bool:
    """Return whether it is known if rows of batches with about as many positions change each other's answers."""
    facts = known_about(model)
    return MIXES in facts and (facts[MIXES] or positions <= FURTHER * facts.get(LARGEST, positions))


def require_apart(model: nn.Module, together: Tensor, part: Part, positions: int) -> int:
    """Raise if rows of a batch change each other's answers, unless that was tried; return the rows that ran for it."""
    if is_tried(model, positions) or len(together) < 2:
        return 0
    with torch.no_grad():
        apart = _split(part, len(together))
    if unmixed(model, apart, together.detach().float(), positions):
        return len(together)
    _require_unmixed(model, apart, together.detach().float(), part, positions)
    return 3 * len(together)


def _require_unmixed(model: nn.Module, apart: Tensor, together: Tensor, part: Part, positions: int) -> None:
    """Raise for rows that have other logits in smaller batches, unless only cuDNN's rounding makes the difference.

    Its convolutions round to TF32 by default, some of them: which ones depends on the size of the batch.
    """
    if together.is_cuda and torch.backends.cudnn.allow_tf32:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False), torch.no_grad():
            exact = _split(part, len(together)), part(slice(len(together))).detach().float()
        if unmixed(model, *exact, positions):
            return
    raise mixed(model, together, apart)


def unmixed(model: nn.Module, apart: Tensor, together: Tensor, positions: int) -> bool:
    """Return whether rows have the logits that they have in smaller batches; if so, and if rows differ, remember it."""
    result = same(model, apart, together)
    if result and rounding_step(model, apart) <= torch.finfo(torch.float32).eps:
        least = FINE * (float(apart.abs().max()) + 1)  # the same rows: rounding is all that may differ
        result = _apart(apart, together) <= min(least_effect(apart), least)
    if result and not torch.equal(apart, apart[:1].expand_as(apart)):  # equal rows may cancel out what they change
        known_about(model).update({MIXES: False, LARGEST: positions})
    return result


def mixed(model: nn.Module, together: Tensor, apart: Tensor) -> MixedInputs:
    """Return the error, and remember that the model mixes rows."""
    known_about(model)[MIXES] = True
    return MixedInputs(
        f"the output for an input changes with the other inputs of a batch ({_shown(together, apart)}): the forward "
        "mixes the rows of a batch. Pass batch_size=1."
    )


def _split(part: Part, rows: int) -> Tensor:
    """(rows, C) of two passes, the first row alone and all others: halves of masked inputs may have the same mean."""
    parts = [part(some).detach().float() for some in (slice(0, 1), slice(1, rows))]
    return torch.cat(parts) if len({some.shape[1] for some in parts}) == 1 else parts[0]


def same(model: nn.Module, one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and _apart(one, other) <= rounding(model, one)


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference; where both are NaN or the same infinity there is none."""
    same = (one == other) | (one.isnan() & other.isnan())
    return float((one - other).abs().masked_fill(same, 0).nan_to_num(nan=torch.inf).max()) if one.numel() else 0.0


def _shown(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"outputs of shape {tuple(one.shape)} and {tuple(other.shape)}"
    row, column = divmod(int((one - other).abs().nan_to_num(nan=torch.inf).argmax()), one.shape[1])
    return f"{float(one[row, column]):.4g} and {float(other[row, column]):.4g} for class {column} of input {row}"
