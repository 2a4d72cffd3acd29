"""Interference: does looking into a model change what it says, or do the inputs of a batch change each other's answers?

Some code takes another way while it is looked into: torch's fused encoder sets padded rows to zero and is left aside as
soon as a function mode is on. So what a model says under interception is held to what it says by itself, once for each
form of a batch; a difference that is no rounding is an error.

Other code mixes the rows of a batch (Nystromformer divides by the largest sum of all of them). So the plain pass of a
batch is made in two halves: whatever depends on all rows, a mean or a maximum, is another one for at least one half.
Such inputs are run singly from then on, and the results say so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from whyformer.borrow import known_about, modules_of
from whyformer.errors import MixedInputs, NotOffered
from whyformer.loan.quantized import is_quantized

FULL = (1e-3, 1e-5)  # of the largest logit, and besides: what float32 may lose over many layers
COARSE_STEPS = (32.0, 16.0)  # the same in steps of a coarser type
FUSED_ADVICE = (
    "torch's fused encoder (nn.TransformerEncoder in eval mode) sets padded rows to zero, and the head reads them. Let "
    "the head leave padded rows out; or make the model say what its layers say, by "
    "torch.backends.mha.set_fastpath_enabled(False); or give inputs one by one, without padding."
)
OTHER_ADVICE = (
    "Its code takes another way when gradients or torch function modes are on: find where it asks for "
    "torch.is_grad_enabled(), requires_grad or has_torch_function."
)

MIXES = "mixes the inputs of a batch"  # a fact about a model: True or False, once it was tried
SINGLY = (
    "what this model says about an input changes with those beside it in a batch, so that every input, and every "
    "variant of one, was run by itself."
)

PRODUCTS = {"high": 2.0**-10, "medium": 2.0**-7}  # torch.set_float32_matmul_precision: the steps of TF32 and bfloat16

Form = tuple[object, ...]
Part = Callable[[slice], Tensor]  # logits of some rows of a batch, by themselves


def rounding_step(model: nn.Module, logits: Tensor) -> float:
    """The relative step of the coarsest numbers that a model computes with."""
    modules = modules_of(model)
    types = {logits.dtype, *(p.dtype for m in modules for p in m._parameters.values() if p is not None)}
    if torch.is_autocast_enabled(logits.device.type):
        types.add(torch.get_autocast_dtype(logits.device.type))
    if any(map(is_quantized, modules)):
        types.add(torch.bfloat16)  # eight bits
    step = max((torch.finfo(t).eps for t in types if t.is_floating_point and t.itemsize > 1), default=0.0)
    # What users allow torch to round to inside matrix products, whatever the weights are.
    return max(step, PRODUCTS.get(torch.get_float32_matmul_precision(), 0.0))


def rounding(model: nn.Module, logits: Tensor) -> float:
    """How far two passes may differ by rounding: attention written out is rounded otherwise than torch's kernels."""
    largest = float(logits.abs().max()) if logits.numel() else 0.0
    step = rounding_step(model, logits)
    if step <= torch.finfo(torch.float32).eps:
        return FULL[0] * largest + FULL[1]
    return step * (COARSE_STEPS[0] * largest + COARSE_STEPS[1])


def require_same(model: nn.Module, watched: Tensor, part: Part, halves: bool) -> int:
    """Refuse a model that says something else while it is looked into; how many passes that took.

    watched: logits under interception; part: the same rows without any. halves: find out as well whether rows change
    each other's answers.
    """
    everything, looked = slice(len(watched)), watched.detach().float()
    halves = halves and len(watched) > 1 and MIXES not in known_about(model)
    with torch.no_grad():
        plain = halved(part, len(watched)) if halves else part(everything).detach().float()
        if same(model, plain, looked):
            if halves:
                known_about(model)[MIXES] = False
            return 1
        together = part(everything).detach().float() if halves else plain
        again = part(everything).detach().float()
    if not same(model, together, again):
        raise NotOffered(
            f"the model answers differently each time ({_shown(together, again)}), so that no explanation would be of "
            "its answer. Take what is random out of its forward, or seed it there."
        )
    if halves and same(model, together, looked):
        raise mixed(model, together, plain)
    fused = _by_fused_path(model, looked, lambda: part(everything))
    raise NotOffered(
        f"the model says something else while it is looked into ({_shown(together, looked)}), so that this would "
        f"explain another answer. {FUSED_ADVICE if fused else OTHER_ADVICE}"
    )


def require_apart(model: nn.Module, together: Tensor, part: Part) -> int:
    """Refuse rows of a batch that change each other's answers, tried once per model; how many passes that took."""
    facts = known_about(model)
    if MIXES in facts or len(together) < 2:
        return 0
    with torch.no_grad():
        halves = halved(part, len(together))
    if not same(model, halves, together.detach().float()):
        raise mixed(model, together.detach().float(), halves)
    facts[MIXES] = False
    return 1


def mixed(model: nn.Module, together: Tensor, apart: Tensor) -> MixedInputs:
    """The error, and the model known for what it does."""
    known_about(model)[MIXES] = True
    return MixedInputs(
        f"what the model says about an input changes with those beside it in a batch ({_shown(together, apart)}): "
        "its forward mixes the rows. Pass batch_size=1, so that each is run by itself."
    )


def halved(part: Part, rows: int) -> Tensor:
    """(rows, C) of two passes, over half of the rows each."""
    halves = [part(half).detach().float() for half in (slice(0, rows // 2), slice(rows // 2, rows))]
    return torch.cat(halves) if len({half.shape[1] for half in halves}) == 1 else halves[0]


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


def _by_fused_path(model: nn.Module, looked: Tensor, alone: Callable[[], Tensor]) -> bool:
    """Does the model say the same by itself once torch's fused encoder is off?"""
    if not torch.backends.mha.get_fastpath_enabled():
        return False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            unfused = alone().detach().float()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return unfused.shape == looked.shape and _apart(unfused, looked) <= rounding(model, unfused)
