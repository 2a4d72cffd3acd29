"""Value and scores of one input of any kind of model, by three formulas on the model's own forward, without whyformer.

Attention: rules 5 and 6 of Chefer et al. 2021 on the maps that the model itself reports, or on all softmaxes of it,
where none are reported. Gradients: input × gradient at the word embeddings, pixels or floats, put in by hooks. Black
box: one plain forward per unit that is taken away. Inputs stand alone, their padding cut off.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.models.case import Case, Inputs, alone, run, softmax_outputs
from tests.models.hf import last_logits

TARGET, FILLER = 1, 7
Labels = tuple[str, ...]


def answer(model: nn.Module, one: Inputs, **options: Any) -> Any:
    """A plain forward; models that remember what they read (RWKV) are told not to."""
    if "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    return run(model, one, **options)


def logit(case: Case, output: Any) -> Tensor:
    """The target's logit of an input that stands alone; of a language model, after its last token."""
    if case.logits is None:
        raise NotImplementedError("its answer is no row of logits")
    rows = output.logits[:, -1] if case.logits is last_logits else case.logits(output)
    return rows[0, TARGET]


# Attention


@contextmanager
def explicit_attention() -> Iterator[list[Tensor]]:
    """All softmaxes of a forward; torch's fused attention is written out, so that its softmax is among them."""

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0,
        is_causal: bool = False,
        **how: Any,
    ) -> Tensor:
        scale = how.get("scale") or q.shape[-1] ** -0.5
        scores = q @ k.transpose(-2, -1) * scale
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        return torch.softmax(scores, -1) @ v

    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.nn.functional, "scaled_dot_product_attention", attention))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield stack.enter_context(softmax_outputs())


def maps_and_output(model: nn.Module, one: Inputs, spied: bool) -> tuple[list[Tensor], Any]:
    """Attention per call, in the graph of the output: as the model reports it, or every softmax over positions."""
    if not spied:
        output = answer(model, one, output_attentions=True)
        return list(output.attentions), output
    with explicit_attention() as found:
        output = answer(model, one)
    return found, output


def by_layer(case: Case, maps: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    """(Q, K) per layer: the mean over heads of (∇A ⊙ A)⁺; heads may be folded into the batch, or come one by one."""
    if any(a.ndim == 4 and len(a) > 1 for a in maps):
        raise NotImplementedError("attention inside windows")
    cams = [(a * g).clamp(min=0).flatten(0, -3).detach() for a, g in zip(maps, gradients, strict=True)]
    heads = len(cams) // case.sites
    return [torch.cat(cams[i : i + heads]).mean(0) for i in range(0, len(cams), heads)]


def generic_attention(case: Case, rows: Any, model: nn.Module, row: int, count: int) -> Tensor:
    """R ← R + (∇A ⊙ A)⁺ R, read at the rows that feed the head."""
    one = alone(case.inputs(), row)
    reports = isinstance(one, dict) and hasattr(model, "config")
    for spied in (False, True) if reports else (True,):
        with torch.enable_grad():
            maps, output = maps_and_output(model, one, spied)
            if not maps:  # V-JEPA 2 reports none
                continue
            gradients = torch.autograd.grad(logit(case, output), maps, allow_unused=True)
        if all(g is not None for g in gradients):
            break
    else:
        raise NotImplementedError("maps that the answer does not come from")
    if any(a.shape[-1] != count for a in maps):
        raise NotImplementedError("layers over different numbers of positions")
    relevance = torch.eye(count, dtype=maps[0].dtype)
    for cam in by_layer(case, maps, list(gradients)):
        start = relevance if len(cam) == count else relevance[: len(cam)]  # the last layer asks for a few rows
        relevance = start + cam @ relevance
    read: Any = {
        "last": [-1], "mean": slice(None), "all but first": slice(1, None), "first two": slice(2),
    }.get(rows, [rows])  # fmt: skip
    return relevance[read].mean(0)


# What a unit is made of


def tensors(model: nn.Module, one: Inputs) -> dict[str, Tensor]:
    """Inputs by the names of the model's arguments."""
    if isinstance(one, dict):
        return dict(one)
    return dict(zip(inspect.signature(model.forward).parameters, one, strict=False))


def embedding_of(model: nn.Module) -> nn.Module:
    if hasattr(model, "get_input_embeddings"):
        return model.get_input_embeddings()
    return next(m for m in model.modules() if isinstance(m, nn.Embedding))


def squares(pixels: Tensor, count: int) -> list[tuple[slice, slice]]:
    """As many squares as there are units, row by row."""
    height, width = pixels.shape[-2:]
    side = round((height * width / count) ** 0.5)
    starts = [(top, left) for top in range(0, height, side) for left in range(0, width, side)]
    return [(slice(top, top + side), slice(left, left + side)) for top, left in starts]


def blocks(shape: tuple[int, ...], labels: Labels) -> list[tuple[slice, ...]]:
    """Parts of a video or a series, (1, steps, …), of the kind that their labels name, in the order of the labels."""
    parts = [re.fullmatch(r"frame (\d+), patch (\d+),(\d+)", label) for label in labels]
    found: list[tuple[slice, ...]] = []
    if any(parts):
        named = [[int(number) for number in match.groups()] for match in parts if match is not None]
        steps, rows, columns = (len({place[i] for place in named}) for i in range(3))
        deep, high, wide = shape[1] // steps, shape[3] // rows, shape[4] // columns
        for frame, row, column in named:
            top, left = (row - 1) * high, (column - 1) * wide
            cut = slice(frame - 1, frame - 1 + deep), slice(None), slice(top, top + high), slice(left, left + wide)
            found.append((slice(None), *cut))
    for label in labels:
        match = re.fullmatch(r"(?:variable (\d+), )?t (\d+)(?:–(\d+))?", label)
        if match is not None:
            variable, start, end = match.groups()
            time = slice(int(start), int(end or start) + 1)
            found.append((slice(None), time, *([slice(int(variable), int(variable) + 1)] if variable else [])))
    return found


def spans(samples: int, count: int) -> list[slice]:
    edges = [round(i * samples / count) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


# Gradients


def input_x_gradient(
    case: Case, model: nn.Module, row: int, entrance: str, labels: Labels, special: tuple[bool, ...], cut: bool = True
) -> tuple[Tensor, float]:
    """Σ_d x_d · ∂s/∂x_d per unit, and the largest Σ_d |x_d · ∂s/∂x_d|, of which rounding is a share.

    ``entrance``: the module whose input the vectors are, where they are no input of the model.
    """
    one = tensors(model, alone(case.inputs(), row, cut))
    leaf: list[Tensor] = []

    def hold(vectors: Any) -> Any:
        if leaf:
            return vectors
        if isinstance(vectors, tuple):
            return hold(vectors[0]), *vectors[1:]
        leaf.append(vectors.detach().clone().requires_grad_())
        return leaf[0].clone()

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (hold(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hold(kwargs["hidden_states"])}

    with torch.enable_grad(), ExitStack() as hooks:
        if entrance:
            hooks.callback(model.get_submodule(entrance).register_forward_pre_hook(enter, with_kwargs=True).remove)
        elif "input_ids" in one or not next(iter(one.values())).is_floating_point():
            hooks.callback(embedding_of(model).register_forward_hook(lambda m, args, out: hold(out)).remove)
        else:
            name = next(iter(one))
            one[name] = hold(one[name])
        score = logit(case, answer(model, one))
        (gradient,) = torch.autograd.grad(score, leaf)
    detail = leaf[0].detach() * gradient
    own = len(special) - sum(special)
    if cuts := blocks(tuple(detail.shape), labels):
        parts = [detail[each] for each in cuts]
    elif detail.ndim == 4:
        parts = [detail[0][:, rows, columns] for rows, columns in squares(detail, own)]
    elif detail.ndim == 2:  # columns
        parts = list(detail[0])
    else:
        if detail.shape[0] != 1:  # positions first
            detail = detail.transpose(0, 1)
        parts = list(detail[0][: len(special)])  # without padding, which Longformer adds some of
    scores = spread(torch.stack([part.sum() for part in parts]), special)
    return scores, max(float(part.abs().sum()) for part in parts)


def spread(per_unit: Tensor, special: tuple[bool, ...]) -> Tensor:
    """Tokens of the model's own have no numbers of the input."""
    if len(per_unit) == len(special):
        return per_unit
    if len(per_unit) + sum(special) != len(special):
        raise NotImplementedError("units that are no entries of the input (patches of a spectrogram)")
    whole = per_unit.new_zeros(len(special))
    whole[~torch.tensor(special)] = per_unit
    return whole


# Black box


@torch.no_grad()
def occlusion(
    case: Case, model: nn.Module, row: int, labels: Labels, special: tuple[bool, ...], kind: str, cut: bool = True
) -> Tensor:
    """s(x) - s(x without the unit), one plain forward each."""
    one = tensors(model, alone(case.inputs(), row, cut))
    main = next(iter(one))
    x = one.get("input_ids", one[main])
    name = "input_ids" if "input_ids" in one else main

    def score(**changed: Tensor) -> float:
        return float(logit(case, answer(model, one | changed)))

    variants: list[Callable[[], float]] = []
    columns = [re.fullmatch(r"(\w+)\[(\d+)\]", label) for label in labels]
    if any(columns):  # several tensors of columns
        for match in columns:
            if match is not None:
                changed = one[match[1]].clone()
                changed[:, int(match[2])] = 0
                variants.append(lambda n=match[1], c=changed: score(**{n: c}))
    elif not x.is_floating_point():
        for i in range(x.shape[1] if cut else len(labels)):
            changed = x.clone()
            changed[:, i] = FILLER
            variants.append(lambda c=changed: score(**{name: c}))
    elif cuts := blocks(tuple(x.shape), labels):
        mean = x.mean((1, 3, 4) if x.ndim == 5 else 1, keepdim=True).expand_as(x)
        for each in cuts:
            changed = x.clone()
            changed[each] = mean[each]
            variants.append(lambda c=changed: score(**{name: c}))
    elif x.ndim == 4:
        mean = x.mean((2, 3), keepdim=True)
        for rows, cols in squares(x, len(special) - sum(special)):
            changed = x.clone()
            changed[:, :, rows, cols] = mean
            variants.append(lambda c=changed: score(**{name: c}))
    elif kind == "sound" and x.ndim == 3:
        raise NotImplementedError("units that are patches of a spectrogram")
    elif kind == "sound":
        for span in spans(x.shape[-1], len(labels)):
            changed = x.clone()
            changed[..., span] = 0
            variants.append(lambda c=changed: score(**{name: c}))
    else:
        for i in range(x.shape[1]):
            changed = x.clone()
            changed[:, i] = 0
            variants.append(lambda c=changed: score(**{name: c}))
    whole = score()
    return spread(torch.tensor([whole - variant() for variant in variants]), special)
