"""Generic attention explainability: attention weighted by its gradient, added up layer by layer and across streams."""

from __future__ import annotations

from functools import partial

from whyformer.engines.attention.chain import chain, raised_heads
from whyformer.engines.attention.maps import Heads
from whyformer.engines.attention.streams import generic_relevance
from whyformer.parameters import Place
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


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
    rules = partial(generic_relevance, normalize_cross=normalize_cross, self_in_rule_10=self_in_rule_10)
    return chain(run, raised_heads(heads), start_layer=start_layer, streams=rules)
