"""Input times gradient."""

from __future__ import annotations

from whyformer.places import place_of
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    specificity="gradient",
)
def input_x_gradient(run: Run, *, at: str | None = None, patch_smoothing: float = 0.0) -> Attribution:
    """The score's slope at each input times the input itself, summed over the input's dimensions.

    r_i = Σ_d x_id · ∂s/∂x_id. ``at="input"``: x is the word embedding (text), the pixels (images) or the floats
    themselves; ``at="embeddings"``: the vectors that enter the first block, positions and types included (the default
    for tables with categories). With several streams x are the inputs of all of them. ``patch_smoothing``: for pixels,
    each one's share spread by a Gaussian as wide as that many patches, against the patch grid; 0 is off.

    Misleads when: the score saturates: far along a flat stretch the gradient is small although the input decided.
    """
    place = place_of(run, at, gradient=True)
    assert place.gradient is not None
    detail = place.smoothed(place.inputs * place.gradient, patch_smoothing)
    return Attribution(place.per_unit(detail), detail=place.detail(detail))
