"""Layer-wise relevance propagation: attn_lrp and cp_lrp."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.errors import NotOffered, NotOverUnits
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.study.interference import INPUT_SLOPES

# AttnLRP: layer-wise relevance propagation through attention.

PLACES = ("input", "tokens")
LOST = 0.01  # of all relevance: ordinary models lose none
CUT = (
    "{share:.0%} of the relevance went to tensors that the model computes with gradients off (detach(), no_grad()), "
    "and is missing from the scores."
)


@method(
    paper="Achtibat et al. 2024 (ICML), arXiv:2402.05602",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    meaning="what the answer is made of, handed back layer by layer",
)
def attn_lrp(run: Run, *, at: Annotated[str, OneOf(*PLACES)] | None = None) -> Attribution:
    """The score handed back layer by layer, each layer sharing it out among what it was made of.

    Linear layers and sums share in proportion to what each term contributed; activations and normalisations pass on
    what they got; a product (attention with values, queries with keys, a gate with what it gates) gives half to each
    factor; softmax shares by its Taylor expansion. All of this is input × gradient under changed gradient rules,
    r_i = Σ_d x_id · g_id. ``at="input"`` reads x at the word embeddings, pixels or floats: positions and biases take a
    share of their own, which is not shown. ``at="tokens"`` reads it at the vectors that enter the first block,
    position and type included; it is the default for tables with categories, raw audio, and text with images.
    Propagation starts at the logits z with R = Σ_j z_j ∂s/∂z_j, which is the explained value s where s is a logit. What
    is missing from R in the sum of scores is ``checks["conservation_error"]``, as a share of R
    ``checks["conservation_error_relative"]``.

    Misleads when: the conservation error is large against R (biases and positions took the rest), and on
    models with an attention sink, whose first token collects what belongs to nobody.
    """
    return relevance(run, GradientRules(attention_is_constant=False), at)


def relevance(run: Run, rules: GradientRules, at: str | None) -> Attribution:
    """input × gradient under the rules, per attention position."""
    _require_one_stream(run)
    trace = run.traced(rules)
    scattered = _is_scattered(run, trace.leaves)
    if scattered and at == "input":
        raise NotOffered(
            "at='input' needs one tensor whose entries are the units (token ids, pixels, floats), and this input has "
            "none. Use at='tokens'."
        )
    space = at or ("tokens" if scattered else "input")
    leaf = trace.leaves[0] if trace.main is None else trace.main
    inputs = leaf if space == "input" else trace.tokens()
    unruled, start_B = rules.unruled_text(trace.value_B), trace.at_answer()
    gradient, *cut = run.differentiated(trace, [inputs, *rules.cut])
    run.require_input_slopes()
    detail = inputs.detach().float() * gradient.float()
    detail = detail if space == "input" else trace.batch_first(detail)
    scores = run.per_unit(detail) if space == "input" else detail.sum(2)
    scores = scores * run.keep_BN
    missing = (scores.sum(1) - start_B).abs()
    lost_B = missing * 0
    if INPUT_SLOPES not in run.study.undisturbed or run.study.doubts:  # else what was detached changes no slope
        for leaf, grad in zip(rules.cut, cut, strict=True):
            arrived = torch.where(grad == 0, 0.0, leaf.detach().float() * grad.float())  # a mask holds infinities
            per_input = arrived.ndim > 1 and len(arrived) == run.batch.size  # else it counts for each input in full
            lost_B = lost_B + (arrived.flatten(1).sum(1) if per_input else arrived.sum())
    share_B = lost_B.abs() / (scores.abs().sum(1) + lost_B.abs())
    return Attribution(
        scores,
        detail=[d.cpu().numpy() for d in detail],
        checks={
            "conservation_error": missing,
            "conservation_error_relative": missing / start_B.abs().clamp_min(torch.finfo(torch.float32).tiny),
        },
        warnings=[unruled + [CUT.format(share=s)] * (s > LOST) for s in share_B.tolist()],
    )


def _is_scattered(run: Run, leaves: list[Tensor]) -> bool:
    """The input is no single tensor (a table with categories, a picture with its text), or its entries are not the
    units (raw audio)."""
    if run.modality.embeds or run.modality.pixels:
        return run.modality.multi_input
    return len(leaves) > 1 or leaves[0].ndim < 2 or not run.modality.in_steps(leaves[0], run.batch, run.length)


def _require_one_stream(run: Run) -> None:
    sites = run.study.sites
    apart = run.modality.embeds and bool(sites) and not run.study.one_stream
    # A learned query that pools one input (SigLIP's classifier) is no input: nothing goes to another stream.
    pools = not run.modality.multi_input and not run.modality.embeds and run.multi_stream
    crossing = [site for site in sites if site.kind == "cross" and not (pools and site.streams[0] == "queries")]
    if apart or crossing:
        raise NotOverUnits(
            "the model has several streams of tokens, and relevance at one of them would hide what went to the others."
        )


@method(
    paper="Ali et al. 2022 (ICML), arXiv:2202.07304",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=True,
    class_specific=True,
    meaning="what the answer is made of, handed back through what attention carried",
)
def cp_lrp(run: Run, *, at: Annotated[str, OneOf(*PLACES)] | None = None) -> Attribution:
    """The score handed back layer by layer through the values alone: where to attend is taken as given.

    The rules of ``attn_lrp``, with attention maps and the gates of gated MLPs as constants, so that all relevance
    of an attention goes to its values and nothing is halved. On a model without biases it is conserved exactly:
    Σ_i r_i is the score. ``at`` and the checks are those of ``attn_lrp``.

    Misleads when: what decides is where the model looks (a query that finds its key), since that carries no relevance.
    """
    return relevance(run, GradientRules(attention_is_constant=True), at)
