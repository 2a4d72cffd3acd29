"""Saliency: the size of the gradient."""

from __future__ import annotations

from whyformer.engines.gradient import gradient_space
from whyformer.engines.gradient.input_space import Norm
from whyformer.engines.gradient.multi_stream import Where
from whyformer.parameters import Patches
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Simonyan, Vedaldi & Zisserman 2014, arXiv:1312.6034; on text: Li et al. 2016, arXiv:1506.01066",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="gradient",
)
def saliency(run: Run, *, norm: Norm = "l2", at: Where = None, patch_smoothing: Patches = 0.0) -> Attribution:
    """How sharply the score changes when an input is nudged: the size of the gradient at each unit.

    r_i = ‖∂s/∂x_i‖, x_i being all numbers of unit i: the embedding of a token, the pixels of a patch, a column.
    ``norm``: "l2", "l1", "max" (the largest entry, in absolute value) or "sum" (the signed sum of the entries).
    ``at="input"``: x is the word embedding, the pixels or the floats; ``at="embeddings"``: the vectors that enter
    the first block, positions and types included (the default for tables with categories). With several streams (image
    and text, encoder-decoders) x are the inputs of all of them. The gradient itself is in ``detail``, where it is one
    tensor. ``patch_smoothing``: for pixels, a Gaussian over the gradient, as wide as that many patches, against
    the patch grid; 0 is off.

    Misleads when: the score is saturated, so that what decided it has no slope left; and it says where the score is
    sensitive, not in which direction, nor how much of the score is there.
    """
    space = gradient_space(run, at, gradient=True)
    assert space.gradient is not None
    gradient = space.smoothed(space.gradient, patch_smoothing)
    scores = space.norm(gradient, norm)
    return Attribution(scores, detail=space.detail(gradient), signed=norm == "sum")
