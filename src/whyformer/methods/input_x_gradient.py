"""Input times gradient."""

from __future__ import annotations

from torch import Tensor

from whyformer.engines.gradient import InputSpace, gradient_space
from whyformer.engines.gradient.multi_stream import Where
from whyformer.parameters import Patches
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run

CANCELLED = 1e-4  # what is left of every unit's terms; by chance some unit would keep hundreds of times as much


@method(
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    specificity="gradient",
)
def input_x_gradient(run: Run, *, at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """The score's slope at each input times the input itself, summed over the input's dimensions.

    r_i = Σ_d x_id · ∂s/∂x_id. ``at="input"``: x is the word embedding (text), the pixels (images) or the floats
    themselves; ``at="embeddings"``: the vectors that enter the first block, positions and types included (the default
    for tables with categories). With several streams x are the inputs of all of them. ``patch_smoothing``: for pixels,
    each one's share spread by a Gaussian as wide as that many patches, against the patch grid; 0 is off.

    Misleads when: the score saturates: far along a flat stretch the gradient is small although the input decided. A
    model that normalises each input before anything else (DeBERTa) does not care how long it is: r is 0, and what is
    seen are rounding errors. The result warns of that; ``at="embeddings"`` starts behind the norm.
    """
    space = gradient_space(run, at, gradient=True)
    assert space.gradient is not None
    terms = space.inputs * space.gradient
    detail = space.smoothed(terms, patch_smoothing)
    return Attribution(space.per_unit(detail), detail=space.detail(detail), warnings=_cancelled(space, terms))


def _cancelled(space: InputSpace, terms: Tensor) -> list[list[str]]:
    """A word where the terms of every unit add up to nothing."""
    left_B, size_B = (space.per_unit(t).abs().amax(1) for t in (terms, terms.abs()))
    doubt = (
        "input times gradient adds up to nothing in every unit, so these scores are rounding errors: the model "
        "normalises its inputs first, and longer or shorter vectors change nothing. Pass at='embeddings'."
    )
    return [[doubt] if 0 < size and left <= CANCELLED * size else [] for left, size in zip(left_B, size_B, strict=True)]
