"""Generic attention explainability (self-attention): attention weighted by its gradient, added up layer by layer."""

from __future__ import annotations

import torch

from whyformer.registry import constant, method
from whyformer.relevance import cumulative, identity, maps_of, product, read_row, real
from whyformer.run import Attribution, Run
from whyformer.shapes import BHQK, BQK


def weighted(attention_BHQK: BHQK, gradient_BHQK: BHQK) -> BQK:
    """Ā = mean_h max(0, ∂s/∂A ∘ A): clamp, then head mean (eq. 5)."""
    return (gradient_BHQK * attention_BHQK).clamp(min=0).mean(1)


@method(
    paper="Chefer, Gur & Wolf 2021 (ICCV), arXiv:2103.15679",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
)
def generic_attention(run: Run, *, start_layer: int = 0, normalize_cross: bool = True) -> Attribution:
    """Attention that raised the explained score, followed through all layers: R = (I + Ā_L) ··· (I + Ā_1).

    Ā_l = mean_h max(0, A_l ∘ ∂s/∂A_l) (eqs. 5 and 6). ``start_layer`` leaves earlier layers out; ``normalize_cross``
    (eqs. 8 and 9) matters only where several streams meet.

    Misleads when: the scale of the score changes (a temperature, or probability in place of the logit, changes the
    map, not only its size), and when what lowers the score matters: negative evidence is clamped away.
    """
    sites = maps_of(run.record(grad=True), start_layer)
    keep_BN = run.keep_BN
    layers = []
    for site in sites:
        assert site.attention_grad_BHQK is not None
        layer = weighted(site.attention_BHQK.float(), site.attention_grad_BHQK.float())
        layers.append(real(layer + identity(layer, site.first_query), keep_BN, site))
    whole = product(layers)
    scores = read_row(whole, run.readout_BN, sites[-1].first_query)
    square = layers[0].shape == layers[-1].shape
    kept = torch.stack(cumulative(layers), 1) if run.keep_layers and square else None
    return Attribution(scores, matrix_BQK=whole, layers_BLQK=kept)
