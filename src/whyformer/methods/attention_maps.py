"""Attention combined across layers: raw_attention, attention_rollout, gradient_rollout and generic_attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from torch import Tensor

from whyformer.capture.functions import HeadFusion
from whyformer.engines.attention.chain import (
    READINGS,
    attention_heads,
    chain,
    raised_heads,
    read_layers,
    readable_folded,
)
from whyformer.engines.attention.maps import Heads, Layers, over_heads, with_residual
from whyformer.engines.attention.stream_maps import Maps, generic_relevance, rollout_relevance, whole_keep
from whyformer.errors import BadInput, NotOffered
from whyformer.methods.value_contributions import mixing_ratio
from whyformer.parameters import Limits, OneOf, Place, Share
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.shapes import AnyBQK
from whyformer.study.schedule import Schedule

# Raw attention: the map itself, read in one of many ways.


@method(
    paper="Bahdanau, Cho & Bengio 2015, arXiv:1409.0473; readings after Gorishniy 2021, Borisov 2022, Mylonas 2022",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    rowwise=lambda *, read, **options: read == "row",
    folds=readable_folded,
    meaning="where the model looked, whatever the answer",
    space="attention",
    compiles=True,
)
def raw_attention(
    run: Run,
    *,
    layers: Layers = "last",
    heads: Heads = "mean",
    read: Annotated[str, OneOf(*READINGS)] = "row",
) -> Attribution:
    """Where the model looked: attention weights, averaged over heads and read at the position that feeds the head.

    ``layers``: "last", "mean", "product" (A_L···A_1 without residual), a number, or a list (its mean).
    ``heads``: "mean", "max", "min", "sum", a number, or a list (its mean).
    ``read``: "row" (what the readout attends to), "column" (who attends to it), "column_mean", "column_sum",
    "column_max" (attention received), "diagonal". With several streams, layers are counted for each pair of streams
    (who asks whom), and the row is the only reading.

    Misleads when: layers mix tokens before the one that is read, so a weight on a position is no longer a weight on
    the word that stood there; and it is the same for every class.
    """
    if (run.multi_stream or run.windowed) and (read != "row" or layers == "product"):
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, raw attention is read by row, layer by "
            "layer: read='row' and layers='last', 'mean', a number or a list."
        )
    return read_layers(run, attention_heads(heads), layers, read, streams=True)


# Attention rollout: attention multiplied through the layers, with the residual.


@method(
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    rowwise=lambda *, discard, **options: not discard,
    folds=lambda *, discard, residual, **options: not discard and not isinstance(residual, str),
    meaning="where all layers look, one after the other, whatever the answer",
    space="rollout",
    compiles=True,
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


# Gradient rollout: attention weighted by its gradient, multiplied through the layers with the residual.


@method(
    paper="Gildenblat 2020, github.com/jacobgil/vit-explain",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    folds=lambda *, discard, **options: not discard,
    meaning="where all layers look, counting what raises the answer",
    space="rollout",
    compiles=True,
)
def gradient_rollout(
    run: Run,
    *,
    heads: Heads = "mean",
    discard: Annotated[float, Limits(0, 1, open_high=True)] = 0.0,
    start_layer: Place = 0,
    protect_special: bool = False,
) -> Attribution:
    """Rollout of the attention that raises the explained score: Â_L ··· Â_1 of gradient-weighted maps.

    Â_l = rownorm((F_l + I)/2), F_l = ReLU(fuse_h(A_l ∘ ∂s/∂A_l)). ``heads`` fuses: "mean", "max", "min", "sum", a head
    or a list of them. ``discard`` zeroes that share of the smallest entries of each F_l; ``protect_special`` keeps
    rows and columns of special tokens out of it. ``start_layer`` leaves earlier layers out.

    Misleads when: gradients are small against 1, which they usually are: the identity then swamps them, each position
    keeps nearly all of its own score, and only the ranking of the others says something. Heads are fused before the
    clamp, so a head that speaks against the target cancels one that speaks for it.
    """
    # NOTE[DIFF] the authors' code meets layer l's attention with layer L-1-l's gradient (issue #6); here they meet
    # their own.
    weighted = HeadFusion(lambda attention, gradient: over_heads(attention * gradient, heads).clamp(min=0), True)
    # NOTE[DIFF] the authors discard in the first input only, by indices of the whole batch; here in each its own.
    # NOTE[DIFF] the authors divide column j by the sum of row j (a missing keepdim); here rows sum to one.
    return chain(
        run, weighted, normalize=True, start_layer=start_layer, discard=discard, protect_special=protect_special
    )


@method(
    paper="Chefer, Gur & Wolf 2021 (ICCV), arXiv:2103.15679",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    folds=lambda **options: True,
    meaning="attention that raised the answer, followed through all layers",
    space="rollout",
    compiles=True,
)
def generic_attention(
    run: Run,
    *,
    start_layer: Place = 0,
    heads: Heads = "mean",
    normalize_cross: bool = True,
    self_in_rule_10: bool = True,
) -> Attribution:
    """Attention that raised the explained score, followed through all layers: R = (I + Ā_L) ··· (I + Ā_1).

    Ā_l = mean_h max(0, A_l ∘ ∂s/∂A_l) (eqs. 5 and 6). ``start_layer`` leaves earlier layers out; ``heads`` takes
    "max", "min", "sum", one head, or the mean of a list of them in place of the mean of all. Where stream s asks stream
    q (cross-attention): R_sq += R̄_ss^T Ā R̄_qq (eq. 10) and R_ss += Ā R_qs (eq. 11), with R̄ the normalised self
    relevance (eqs. 8 and 9; ``normalize_cross=False`` takes R itself, ``self_in_rule_10=False`` adds Ā alone).

    Misleads when: the scale of the score changes (a temperature, or probability in place of the logit, changes the
    map, not only its size), and when what lowers the score matters: negative evidence is clamped away.
    """
    rules = partial(generic_relevance, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    return chain(run, raised_heads(heads), start_layer=start_layer, streams=rules)
