"""Attention rollout: attention multiplied through the layers, with the residual."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from torch import Tensor

from whyformer.engines.attention.chain import attention_heads, chain
from whyformer.engines.attention.maps import Heads, with_residual
from whyformer.engines.attention.streams import Maps, rollout_relevance, whole_keep
from whyformer.errors import BadInput, NotOffered
from whyformer.methods.value_norms import mixing_ratio
from whyformer.parameters import Limits, OneOf, Place, Share
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.shapes import AnyBQK
from whyformer.study.schedule import Schedule


@method(
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda *, discard, **options: not discard,
    folds=lambda *, discard, residual, **options: not discard and not isinstance(residual, str),
)
def attention_rollout(
    run: Run,
    *,
    heads: Heads = "mean",
    residual: Share | Annotated[str, OneOf("mixing")] = 0.5,
    normalize: bool = True,
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """How much of each input is left at the output if attention only mixed tokens: Â_L ··· Â_1.

    Â_l = rownorm((1-a)·fuse_h A_l + a·I), a = ``residual``. ``residual="mixing"`` measures it instead: of row i the
    mixing ratio r_i of the whole block (value_norms) goes to the other positions and 1 - r_i stays (GlobEnc's W-Res).
    ``normalize=False`` gives A + I, which for the plain head mean is the same map times 2^L. ``discard`` zeroes that
    share of the smallest entries of each fused map;
    ``protect_special`` keeps rows and columns of special tokens out of it.

    With several streams, each is rolled out by itself; stream s reads stream q by R_ss^T A R_qq, A the last
    cross-attention between them (the baseline of Chefer, Gur & Wolf 2021).

    Misleads when: values and MLPs do more than mixing (they do), and on deep models, where the product flattens out.
    It is the same for every class.
    """
    if (run.multi_stream or run.windowed) and discard:
        raise NotOffered("discard is for one stream of plain self-attention: leave it at 0 on this model.")
    share = 0.0 if isinstance(residual, str) else residual
    if isinstance(residual, str) and not normalize:
        raise BadInput('residual="mixing" gives rows that sum to 1 by themselves: leave normalize at True.')
    return chain(
        run,
        attention_heads(heads),
        residual=mixing_ratio(run, "enc") if isinstance(residual, str) else residual,
        normalize=normalize,
        start_layer=start_layer,
        discard=discard,
        protect_special=protect_special,
        streams=partial(_rolled_out, residual=share, normalize=normalize),
    )


def _rolled_out(
    schedule: Schedule, maps: Mapping[int, AnyBQK], keep: Mapping[str, Tensor], residual: float, normalize: bool
) -> Maps:
    """Roll out each stream by itself, and join two streams by the last cross-attention between them."""
    every, layers, cross = whole_keep(schedule, keep), {}, {}
    for step in schedule.steps:
        if step.site in maps and step.cross:
            cross[step.site] = maps[step.site]
        elif step.site in maps:
            mixed = with_residual(maps[step.site], 0, residual, normalize)
            real_BN = every[step.query].to(mixed.dtype)
            layers[step.site] = mixed * real_BN[:, :, None] * real_BN[:, None, :]
    return rollout_relevance(schedule, layers, cross, keep)
