"""W_O: the projection that reads the attention's result, however the model spells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.blocks.block import Places
from whyformer.capture.blocks.residual import Follow, Heads, State, Stream
from whyformer.capture.blocks.tape import Ref, TapedCall
from whyformer.capture.functions import ADDS, JOINS, LAYOUTS, UNCHANGED
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOffered

Matrix = tuple[Tensor, Tensor | None]  # (in, out) and bias


@dataclass(frozen=True)
class Projected:
    """The projected result by its number on the tape, and the projection."""

    number: int
    output_HDE: Tensor
    bias_E: Tensor | None


def project(follow: Follow, call: TapedCall, sites: list[OpenSite], places: Places) -> Projected | None:
    """The projection, if this call is it: the first one that does more than lay out the heads side by side.

    The layout of its result is the one under which the numbers agree: map · values · W_O must be what the model made.
    """
    values, where = follow.tape.values, sites[0].path or "the model itself"
    affine = _matrix(call, values, follow.states)
    if affine is None and call.name in UNCHANGED | LAYOUTS | JOINS:
        return None
    mixed_BQM = _mixed(sites)
    if affine is not None:
        (matrix, bias), number = affine, call.outs[0]
    elif call.name in ADDS:  # no projection at all: the heads side by side are what is added
        matrix, bias = torch.eye(mixed_BQM.shape[-1], dtype=mixed_BQM.dtype, device=mixed_BQM.device), None
        number = next(n for n in call.inputs if isinstance(follow.states.get(n), Heads))
    else:
        raise NotOffered(
            f"{where}: the attention's result passes {call.name!r} before its projection, which is not linear in the "
            f"values of single tokens."
        )
    assert number is not None
    heads = sum(s.layout.heads for s in sites)
    if matrix.shape[0] == mixed_BQM.shape[-1]:
        expected = mixed_BQM @ matrix.to(mixed_BQM.dtype)
        expected = expected if bias is None else expected + bias.to(mixed_BQM.dtype)
        rows = _reading(values[number], expected, places)
        if rows is not None:
            follow.states[number] = Stream(rows)
            return Projected(number, matrix.reshape(heads, -1, matrix.shape[1]), bias)
    raise NotOffered(
        f"{where}: the projection of shape {tuple(matrix.shape)} does not give the attention's result of shape "
        f"{tuple(values[number].shape)} from {heads} heads side by side."
    )


def _mixed(sites: list[OpenSite]) -> Tensor:
    """(B, Q, H·D) the heads' results side by side, from the captured maps and values."""
    parts = []
    for site in sites:
        value = site.value_BHKD
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        parts.append(torch.matmul(site.attention_BHQK.to(wide), value.to(wide)))
    return torch.cat(parts, 1).transpose(1, 2).flatten(2)


def _reading(result: Tensor, expected_BQE: Tensor, places: Places) -> Tensor | None:
    """Row numbers of a tensor that must hold these numbers, batch or positions first."""
    rows_BQ = places.canonical_rows(result.device)
    half = result.dtype in (torch.float16, torch.bfloat16)
    tolerance = (3e-2 if half else 1e-4) * float(expected_BQE.abs().max())
    for rows, expected in ((rows_BQ, expected_BQE), (rows_BQ.t(), expected_BQE.transpose(0, 1))):
        if result.shape in (expected.shape, expected.flatten(0, 1).shape):
            error = (result.reshape(expected.shape) - expected).abs().max()
            if float(error) <= tolerance:
                return rows.reshape(result.shape[:-1])
    return None


def _matrix(call: TapedCall, values: Mapping[int, Tensor], states: Mapping[int, State]) -> Matrix | None:
    """Matrix and bias of a call that multiplies a live tensor with a weight, if it is one."""

    def constant(argument: Any) -> Tensor | None:
        known = isinstance(argument, Ref) and argument.number not in states
        return values[argument.number] if known else None

    if call.name == "linear":
        weight = constant(call.argument(1, "weight"))
        return None if weight is None else (weight.t(), constant(call.argument(2, "bias")))
    if call.name == "addmm" and not {"alpha", "beta"} & set(call.kwargs):
        weight = constant(call.argument(2, "mat2"))
        return None if weight is None else (weight, constant(call.argument(0, "input")))
    if call.name in {"matmul", "mm", "__matmul__"}:
        weight = constant(call.argument(1, "other", call.kwargs.get("mat2")))
        return None if weight is None or weight.ndim != 2 else (weight, None)
    return _einsum(call, constant) if call.name == "einsum" else None


def _einsum(call: TapedCall, constant: Callable[[Any], Tensor | None]) -> Matrix | None:
    """ "ibnd,hnd->ibh": letters that both operands have and the result has not are summed, in the input's order."""
    operands = call.args[1] if len(call.args) == 2 else call.args[1:]
    left, arrow, result = str(call.args[0]).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != 2 or len(operands) != 2:
        return None
    weight = constant(operands[1])
    summed = [c for c in terms[0] if c in terms[1] and c not in result]
    made = [c for c in terms[1] if c not in terms[0]]
    whole = len(made) == 1 and len(summed) + 1 == len(terms[1])
    if weight is None or not whole or result != terms[0].replace("".join(summed), made[0]):
        return None
    order = [terms[1].index(c) for c in (*summed, *made)]
    return weight.permute(order).flatten(0, -2), None
