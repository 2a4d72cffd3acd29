"""Generic attention explainability: attention weighted by its gradient, added up layer by layer and across streams."""

from __future__ import annotations

from functools import partial

import torch

from whyformer.engines.attention.folded import chained, folded_maps, raised_heads, with_identity
from whyformer.engines.attention.maps import (
    Heads,
    cumulative,
    in_one_go,
    maps_of,
    over_heads,
    over_windows,
    plus_identity,
    product,
    read_row,
    real,
)
from whyformer.engines.attention.streams import generic_relevance, placed_maps, read_streams, start_sites
from whyformer.parameters import Place
from whyformer.registry import constant, method
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import BHQK, BQK


def weighted(attention_BHQK: BHQK, gradient_BHQK: BHQK, heads: Heads = "mean") -> BQK:
    """Ā = mean_h max(0, ∂s/∂A ∘ A): clamp, then head mean (eq. 5), or another choice of heads."""
    maps_BHQK = (gradient_BHQK * attention_BHQK).clamp(min=0)
    return maps_BHQK.mean(1) if heads == "mean" else over_heads(maps_BHQK, heads)


@method(
    paper="Chefer, Gur & Wolf 2021 (ICCV), arXiv:2103.15679",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
    folds=lambda **options: True,
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
    if run.multi_stream:
        return _over_streams(run, start_layer, heads, normalize_cross, self_in_rule_10)
    if run.windowed:
        return over_windows(
            run, True, partial(_weighted, heads=heads), lambda layer: plus_identity(layer, 0), start_layer
        )
    if run.folds:
        return chained(run, raised_heads(heads), with_identity, start_layer)
    sites = maps_of(run.record(grad=True), start_layer)
    layers = []
    for site, count in in_one_go(sites):
        assert site.attention_grad_BHQK is not None
        layer = weighted(site.attention_BHQK.float(), site.attention_grad_BHQK.float(), heads)
        layer.diagonal(site.first_query, dim1=-2, dim2=-1).add_(1)  # the residual; nobody else has this map
        layer = layer if run.unpadded else real(layer, run.attended_BN.repeat(count, 1), site)
        layers += layer.unflatten(0, (count, -1)).unbind()
    whole = product(layers)
    scores = read_row(whole, run.readout_BN, sites[-1].first_query)
    square = layers[0].shape == layers[-1].shape
    per_layer = torch.stack(cumulative(layers), 1) if run.keep_layers and square else None
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=per_layer)


def _weighted(site: Site, heads: Heads) -> BQK:
    assert site.attention_grad_BHQK is not None
    return weighted(site.attention_BHQK.float(), site.attention_grad_BHQK.float(), heads)


def _over_streams(
    run: Run, start_layer: int, heads: Heads, normalize_cross: bool, self_in_rule_10: bool
) -> Attribution:
    schedule, keep = run.schedule, run.by_stream(run.keep_BN)
    if run.folds:
        maps = folded_maps(run, raised_heads(heads), keep)
    else:
        record = run.record(grad=True, multi_stream=True)
        maps = placed_maps(record, schedule, keep, partial(_weighted, heads=heads))
    chosen = start_sites(schedule, start_layer)
    maps = {site: m for site, m in maps.items() if site in chosen}
    whole = generic_relevance(schedule, maps, keep, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    return Attribution(read_streams(whole, run.by_stream(run.readout_BN), keep), matrix_BQK=whole)
