"""CP-LRP: layer-wise relevance propagation with attention taken as constant."""

from __future__ import annotations

from typing import Annotated

from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.methods.attn_lrp import PLACES, relevance
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Ali et al. 2022 (ICML), arXiv:2202.07304",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    specificity="gradient",
)
def cp_lrp(run: Run, *, at: Annotated[str, OneOf(*PLACES)] | None = None) -> Attribution:
    """The score handed back layer by layer through the values alone: where to attend is taken as given.

    The rules of ``attn_lrp``, with attention maps and the gates of gated MLPs as constants, so that all relevance
    of an attention goes to its values and nothing is halved. On a model without biases it is conserved exactly:
    Σ_i r_i is the score. ``at`` and the checks are those of ``attn_lrp``.

    Misleads when: what decides is where the model looks (a query that finds its key), since that carries no relevance.
    """
    return relevance(run, GradientRules(attention_is_constant=True), at)
