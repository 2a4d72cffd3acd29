"""Input times gradient."""

from __future__ import annotations

from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    needs={"input_gradients"},
    cost=constant(2, 1),
    cost_text="2 forwards + 1 backward",
    signed=True,
    class_specific=True,
    specificity="gradient",
)
def input_x_gradient(run: Run) -> Attribution:
    """The score's slope at each input times the input itself, summed over the input's dimensions.

    r_i = Σ_d x_id · ∂s/∂x_id, on word embeddings (text), pixels (images) or the floats themselves.

    Misleads when: the score saturates: far along a flat stretch the gradient is small although the input decided.
    """
    inputs = run.embedding()
    gradient, _ = run.input_gradient(inputs, range(run.batch.size))
    detail = (inputs * gradient).float()
    return Attribution(run.per_unit(detail), detail=[d.cpu().numpy() for d in detail])
