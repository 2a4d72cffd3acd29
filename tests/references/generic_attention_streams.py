"""Generic attention explainability for several streams (Chefer, Gur & Wolf 2021, ICCV), rule by rule, one input.

The published schedules are written out per kind of model, next to section 3 of the paper; nothing is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from tests.models import CASES, run
from tests.models.case import softmax_outputs
from tests.references.eager_attention import one_input

Array = np.ndarray
Layer = tuple[Array, Array]  # attention and its gradient, (H, Q, K)


def cam(layer: Layer) -> Array:
    """Eq. 5: mean over heads of the positive part of gradient times attention."""
    attention, gradient = layer
    heads, queries, keys = attention.shape
    result = np.zeros((queries, keys))
    for h in range(heads):
        for i in range(queries):
            for j in range(keys):
                result[i, j] += max(0.0, float(gradient[h, i, j]) * float(attention[h, i, j])) / heads
    return result


def self_attention(a: Array, r_ss: Array, r_sq: Array) -> tuple[Array, Array]:
    """Eqs. 6 and 7."""
    return r_ss + a @ r_ss, r_sq + a @ r_sq


def normalized(r: Array) -> Array:
    """Eqs. 8 and 9; a row without anything but itself stays as it is."""
    result = np.eye(len(r))
    for m in range(len(r)):
        hat = r[m].copy()
        hat[m] -= 1
        total = hat.sum()
        if total != 0:
            result[m] += hat / total
    return result


def cross_attention(
    a: Array, r_ss: Array, r_qq: Array, r_qs: Array, normalize: bool = True, with_self: bool = True
) -> tuple[Array, Array]:
    """What eqs. 10 and 11 add to R_sq and R_ss, for queries of s and keys of q."""
    left, right = (normalized(r_ss), normalized(r_qq)) if normalize else (r_ss, r_qq)
    return left.T @ a @ right if with_self else a, a @ r_qs


def co_attention(
    text: Sequence[Layer], image: Sequence[Layer], crosses: Sequence[tuple[Layer, Layer, Layer, Layer]], **how: bool
) -> dict[tuple[str, str], Array]:
    """LXMERT. ``crosses``: (text asks image, image asks text, text self, image self) of each cross layer."""
    n, m = text[0][0].shape[-1], image[0][0].shape[-1]
    r_tt, r_ii, r_ti, r_it = np.eye(n), np.eye(m), np.zeros((n, m)), np.zeros((m, n))
    for layer in text:
        r_tt, r_ti = self_attention(cam(layer), r_tt, r_ti)
    for layer in image:
        r_ii, r_it = self_attention(cam(layer), r_ii, r_it)
    for number, (text_image, image_text, text_self, image_self) in enumerate(crosses):
        add_ti, add_tt = cross_attention(cam(text_image), r_tt, r_ii, r_it, **how)
        last = number == len(crosses) - 1  # only the text goes on to the answer
        if not last:
            add_it, add_ii = cross_attention(cam(image_text), r_ii, r_tt, r_ti, **how)
            r_it, r_ii = r_it + add_it, r_ii + add_ii
        r_ti, r_tt = r_ti + add_ti, r_tt + add_tt
        r_tt, r_ti = self_attention(cam(text_self), r_tt, r_ti)
        if not last:
            r_ii, r_it = self_attention(cam(image_self), r_ii, r_it)
    return {("text", "text"): r_tt, ("text", "image"): r_ti, ("image", "image"): r_ii, ("image", "text"): r_it}


def encoder_decoder(
    encoder: Sequence[Layer], decoder: Sequence[tuple[Layer, Layer]], source: str, target: str, **how: bool
) -> dict[tuple[str, str], Array]:
    """DETR, T5, BART. ``decoder``: (self, cross) of each layer. The encoder never asks the decoder."""
    n, m = encoder[0][0].shape[-1], decoder[0][0][0].shape[-1]
    r_ss, r_tt, r_ts, r_st = np.eye(n), np.eye(m), np.zeros((m, n)), np.zeros((n, m))
    for layer in encoder:
        r_ss, r_st = self_attention(cam(layer), r_ss, r_st)
    for own, cross in decoder:
        r_tt, r_ts = self_attention(cam(own), r_tt, r_ts)
        add_ts, add_tt = cross_attention(cam(cross), r_tt, r_ss, r_st, **how)
        r_ts, r_tt = r_ts + add_ts, r_tt + add_tt
    return {(source, source): r_ss, (target, source): r_ts, (target, target): r_tt}


def one_stream(layers: Sequence[Layer]) -> Array:
    """VisualBERT, and each tower of CLIP."""
    relevance = np.eye(layers[0][0].shape[-1])
    for layer in layers:
        relevance = relevance + cam(layer) @ relevance
    return relevance


@cache
def layers_of(name: str, index: int, target: int) -> list[Layer]:
    """(attention, gradient) of every attention call, in call order: all softmaxes of an eager float64 model."""
    case = CASES[name]
    model = case.build("eager").double()
    one = one_input(case.inputs(), index)
    assert case.logits is not None
    with softmax_outputs() as found:
        logits = case.logits(run(model, one))[0]
    maps = [p for p in found if p.ndim == 4] or found  # DETR, before transformers 5: (H, Q, K) of the only input
    gradients = torch.autograd.grad(logits[target], maps, allow_unused=True)
    return [
        tuple(x.detach().double().numpy()[(0,) * (x.ndim - 3)] for x in (p, torch.zeros_like(p) if g is None else g))
        for p, g in zip(maps, gradients, strict=True)
    ]
