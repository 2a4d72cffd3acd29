"""Relevance propagation: transformer_attribution, decompx, attn_lrp and cp_lrp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.decompose.rules import Decompose, Stack
from whyformer.capture.decompose.shares import BIAS_RULES, Shares
from whyformer.capture.lrp.alpha_beta import AlphaBeta
from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.capture.record import require_sites, sites_of
from whyformer.engines.attention import maps as mapped
from whyformer.engines.attention.chain import multiplied, read
from whyformer.engines.gradient.input_space import over_columns
from whyformer.errors import Misplaced, NotOffered, NotOverUnits
from whyformer.loan.backwards import backwards_of, with_weights
from whyformer.parameters import OneOf, Place
from whyformer.registry import constant, method, one_backward
from whyformer.results.types import Record, Site
from whyformer.run import Attribution, Run, working
from whyformer.study import require_readable
from whyformer.study.interference import INPUT_SLOPES
from whyformer.targets import scalar_of

SHARED = {"centred", "log_odds", "log_probability", "probability"}  # scalars that depend on the logits of all classes
DECODED = {"target", "queries"}  # streams that begin with vectors of the model itself, or with its own output
VARIANTS = ("full", "rollout", "last_layer", "lrp")


@method(
    paper="Chefer, Gur & Wolf 2021 (CVPR), arXiv:2012.09838",
    needs={"attention_gradients"},
    cost=constant(5, 1),
    cost_text="1 forward + 1 backward, and the work of 2 to 5 forwards, most of it in double precision",
    works=True,
    signed=False,
    class_specific=True,
    meaning="gradient-weighted relevance of attention, combined across layers",
)
def transformer_attribution(
    run: Run, *, variant: Annotated[str, OneOf(*VARIANTS)] = "full", start_layer: Place = 0, normalize: bool = False
) -> Attribution:
    """Combine gradient-weighted relevance of attention across layers: C = C_L ··· C_1.

    C_l = I + mean_h max(0, ∂s/∂A_l ∘ R(A_l)); R(A_l) is the layer-wise relevance (alpha = 1, beta = 0) of the attention
    map, propagated from a one-hot seed at the target, whatever the scalar. ``start_layer`` skips earlier
    layers; ``normalize`` divides rows by their sum (the authors do so for BERT, not for ViT). ``variant``: "full";
    "rollout" without the gradient, C_l = I + mean_h max(0, R(A_l)); "last_layer" the last attention alone, mean_h
    max(0, R(A_L)); "lrp" the signed relevance of the vectors that enter the first block, without attention maps.

    With several streams, as Chefer, Gur & Wolf (ICCV 2021) compare it: each stream has the product of its own
    self-attention, and stream s reads stream q by the last cross-attention between them. For rules that join all of
    them, see generic_attention.

    Misleads when: evidence against the class matters (it is clamped to zero), and when small differences are read:
    single entries of R can be large by accident, since the rules divide by sums close to zero.
    """
    require_readable(run.study, multi_stream=run.multi_stream)
    if run.multi_stream and (variant == "lrp" or DECODED & set(run.schedule.streams)):
        raise NotOverUnits(
            f"transformer_attribution joins the streams of encoders (LXMERT, CLIP), without variant='lrp'; those of "
            f"this model are {', '.join(run.schedule.streams)}."
        )
    dtype = torch.float32 if run.keep_BN.device.type == "mps" else torch.float64
    rules = AlphaBeta(run.batch.size, run.module_names, run.study.batch_axes, positions=run.length, dtype=dtype)
    with with_weights(run.modality.model), working(run, "relevance"):
        trace = run.traced(rules, dtype)
    if run.reading in SHARED and trace.answer_B.ndim == 2 and not run.batch.reference_rows:
        # A scalar over all classes would start relevance at each of them, with sums that cancel: of shares that are all
        # positive and much alike for every class, noise would be left. The gradient is that of the scalar.
        trace = replace(trace, value_B=scalar_of(trace.answer_B, run.targets, "logit"))
    warnings = [rules.unruled_text(trace.value_B)] * run.batch.size
    if variant == "lrp":
        # NOTE[DIFF] the authors' "full LRP" of a ViT goes on to the pixels, through the patch embedding.
        with working(run, "relevance of tokens"):
            (relevance,) = run.differentiated(trace, [trace.tokens()])
        run.require_input_slopes()
        detail_BND = trace.batch_first(relevance).float()
        scores = detail_BND.sum(2) * run.keep_BN
        return Attribution(scores, detail=[d.cpu().numpy() for d in detail_BND], warnings=warnings, signed=True)
    with working(run, "relevance of maps"):
        relevances = run.differentiated(trace, [site.attention for site in rules.sites])
    # The relevance of every attention map, stored in the gradient field of the record.
    record = Record(tuple(sites_of(rules, False, relevances)), run.logits, rules.unclaimed)
    require_sites(record)
    gradients = run.record(grad=True, multi_stream=run.multi_stream).sites if variant == "full" else None

    def weighted(site: Site, number: int) -> Tensor:
        relevance_BHQK = site.attention_grad_BHQK
        assert relevance_BHQK is not None
        if gradients is not None:
            gradient_BHQK = gradients[number].attention_grad_BHQK
            assert gradient_BHQK is not None
            relevance_BHQK = relevance_BHQK * gradient_BHQK
        return relevance_BHQK.clamp(min=0).mean(1).float()  # clamped first, then the mean over heads

    if run.multi_stream:
        schedule, keep, sites = run.schedule, run.by_stream(run.keep_BN), record.sites
        chosen = mapped.start_sites(schedule, start_layer)
        steps = [step for step in schedule.steps if step.used and step.site in chosen]
        maps = {s.site: mapped.placed(weighted(sites[s.site], s.site), sites[s.site], s, keep) for s in steps}
        if variant == "last_layer":
            return read(run, mapped.layer_means(schedule, maps, "last"), warnings=warnings)
        residual = partial(mapped.with_residual, first_query=0, residual=0.5, normalize=normalize)
        inside, cross = mapped.own_and_cross(schedule, maps, keep, residual)
        return read(run, mapped.rollout_relevance(schedule, inside, cross, keep, joined=False), warnings=warnings)
    sites = mapped.maps_of(record, -1 if variant == "last_layer" else start_layer)
    layers = []
    for number, site in enumerate(sites, len(record.sites) - len(sites)):
        layer = weighted(site, number)
        if variant != "last_layer":
            layer = mapped.plus_identity(layer, site.first_query)
        layer = mapped.real(layer, run.attended_BN, site)
        layers.append(mapped.row_normalized(layer) if normalize else layer)
    return multiplied(run, layers, sites[-1].first_query, warnings)


@method(
    paper="Modarressi et al. 2023 (ACL), arXiv:2306.02873",
    needs={"values"},
    cost=lambda units, **options: (1.2 * units + 2.5, 0),  # a little more where few other numbers are multiplied
    cost_text="1 forward, and the work of 0.7 to 1.2 forwards per token",
    at_most=True,
    signed=True,
    class_specific=True,
    meaning="share of the logit, by decomposing every hidden state over the tokens",
    slow=True,
)
def decompx(run: Run, *, bias: Annotated[str, OneOf(*BIAS_RULES)] | None = "absdot") -> Attribution:
    """Decompose every hidden state into one vector per input token, and propagate these vectors to the logit.

    x_i = Σ_s x_i←s from the embedding on. Linear maps act on each share; attention mixes shares with the model's own
    weights; a norm divides by the true standard deviation; an activation multiplies by f(z)/z; a gate by its value.
    ``bias``: how biases are distributed: "absdot" (∝ |⟨x_i←s, b⟩|), "norm" (∝ ‖x_i←s‖), "equal", "abssim" (∝ |cos|) or
    None (left out). Scores sum to the logit unless biases are left out; ``checks["completeness_error"]`` is the
    difference. ``matrix`` and ``layers`` hold ‖x_i←s‖.

    Misleads when: read as the effect of removing a token. Attention weights, standard deviations and activations are
    those of the full input, so a token that only changes where others attend scores zero.
    """
    require_readable(run.study)
    if run.scalar not in {"logit", "centred"} and not (run.scalar == "log_odds" and run.logits.shape[1] == 1):
        raise NotOffered(f"decompx splits logits, not scalar={run.scalar!r}: use scalar='logit' or 'centred'.")
    if not run.study.sites or run.study.unclaimed:
        run.record()  # raises with the reason
    scores = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    maps: list[Tensor] = []
    _ = run.targets  # of the plain pass, which is counted by itself
    with working(run, "decompx", bias):
        for row in run.track(range(len(scores)), "decompx"):
            scores[row], maps_LQK = _decomposed(run, row, bias)
            maps.append(maps_LQK)
    error = (scores.sum(1) - run.value_B).abs()
    layers = torch.stack(maps)
    return Attribution(
        scores * run.keep_BN,
        matrix_BQK=layers[:, -1],
        layers_BLQK=layers if run.keep_layers else None,
        base_B=torch.zeros(len(scores), device=scores.device),
        checks={"completeness_error": error},
    )


def _decomposed(run: Run, row: int, bias: str | None) -> tuple[Tensor, Tensor]:
    """Return (N,) shares of one input's target logit, and (L, Q, K) norms of the shares of the hidden states."""
    maps: list[Tensor] = []

    def entered(layer: int, shares: Shares) -> None:
        maps.append(_sizes(shares, role.axis))

    stack = Stack.of(run.modality.model, [site.path for site in run.study.sites])
    role = Decompose(run.module_names, stack, run.length, bias, entered)
    with torch.no_grad():
        with with_weights(run.modality.model), role:
            logits = run.output.logits(run.batch.select([row]))
        final = role.settled(logits)
        shares_SC = torch.cat([final.part(*chunk)[:, 0] for chunk in final.chunks()])
        shares = scalar_of(shares_SC, [run.targets[row]] * len(shares_SC), run.reading)
        assert role.stream is not None
        maps.append(_sizes(role.stream, role.axis))
    return shares.float(), torch.stack(maps)


def _sizes(shares: Shares, axis: int) -> Tensor:
    """(Q, K) ‖x_q←k‖."""
    parts = [torch.linalg.vector_norm(shares.part(*chunk), dim=-1) for chunk in shares.chunks()]
    sizes_KQ = torch.cat(parts).select(2 - axis, 0)
    return sizes_KQ.T.float()


PLACES = ("input", "tokens")
LOST = 0.01  # share of relevance at detached tensors that raises a warning; usually it is zero
CUT = (
    "{share:.0%} of the relevance went to tensors that the model computes with gradients off (detach(), no_grad()), "
    "and is missing from the scores."
)


@one_backward(
    paper="Achtibat et al. 2024 (ICML), arXiv:2402.05602",
    needs={"input_gradients"},
    signed=True,
    meaning="relevance propagated from the output to the input",
    compiles=True,
)
def attn_lrp(run: Run, *, at: Annotated[str, OneOf(*PLACES)] | None = None) -> Attribution:
    """Propagate relevance from the output to the input, layer by layer, through attention, MLPs and norms.

    Linear layers and sums distribute relevance in proportion to each term's contribution; activations and norms pass it
    on; products (attention × values, queries × keys, gates) give half to each factor; softmax uses its Taylor
    expansion; layers with a state (Mamba, linear attention) are linear in what they read (MambaLRP). This equals input
    × gradient with modified gradients, r_i = Σ_d x_id · g_id. ``at="input"``: x is the word embedding, the pixels or
    the floats; relevance of positions and biases is not shown. ``at="tokens"``: the vectors that enter the first block,
    with position and type; the default for tables with categorical columns, raw audio, and text with images.
    Propagation starts with R = Σ_j z_j ∂s/∂z_j at the logits z; R = s if s is a logit. ``checks["conservation_error"]``
    is the completeness error, R minus the sum of scores; ``checks["conservation_error_relative"]`` is its share of R.

    Misleads when: the conservation error is large compared with R (softmax, biases or positions received the rest), and
    on models with an attention sink, whose first token collects relevance.
    """
    return relevance(run, GradientRules(attention_is_constant=False), at)


def relevance(run: Run, rules: GradientRules, at: str | None) -> Attribution:
    """Return input × modified gradient per attention position."""
    modality, whole = run.modality, run
    if run.attended is not None and not (
        modality.read.embeds or modality.place.pixels
    ):  # columns that go around the tokens
        run = run.attended
    _refuse_streams(run)
    trace = run.traced(rules) if at == "tokens" else run.traced_by_plan(rules)
    rules = trace.rules  # of the pass, which may have been made for another stretch of the text
    # Scattered: the input is several tensors (a table with categories, an image with its text), or its entries are not
    # the units (raw audio).
    first = trace.leaves[0]
    scattered = modality.read.joint and not trace.features
    if not (modality.read.embeds or modality.place.pixels):
        single = len(trace.leaves) == 1 and first.ndim > 1 and whole is run
        scattered = not (single and modality.place.in_steps(first, run.batch, run.length))
    if scattered and at == "input":
        raise NotOffered(
            "at='input' needs one tensor whose entries are the units (token ids, pixels, floats), and this input has "
            "none. Use at='tokens'."
        )
    space = at or ("tokens" if scattered else "input")
    pieces = trace.features and isinstance(run.study.trouble, NotOverUnits)  # of an image, in another order
    if pieces or (space == "tokens" and isinstance(run.study.trouble, Misplaced)):
        raise NotOverUnits(*run.study.trouble.args)  # type: ignore[union-attr]
    if space == "input":
        run.plan_rules(trace)
    leaf = first if trace.main is None else trace.main
    inputs = leaf if space == "input" else trace.tokens()
    # The gradient of a linear layer is its rule, also of a quantised one: its backward pass was checked.
    linear = [backward for _, backward in backwards_of(modality.model)] if rules.unruled or rules.gaps else []
    known = {function for backward in linear for function in backward.functions}
    unruled, start_B = rules.unruled_text(trace.value_B, inputs, known), trace.at_answer()
    names = [] if whole is run else [k for k, v in run.batch.tensors.items() if v.is_floating_point()]
    names = [name for name in names if "mask" not in name]
    others = [*trace.leaves[: len(names)], *(features for features, _ in trace.features)]
    gradients = run.differentiated(trace, [inputs, *others, *rules.cut])
    gradient, cut = gradients[0], gradients[1 + len(others) :]
    run.require_input_slopes()
    detail = inputs.detach().float() * gradient.float()
    detail = detail if space == "input" else trace.batch_first(detail)
    scores = modality.place.per_unit(detail, run) if space == "input" else detail.sum(2)
    for (features, token), slope in zip(trace.features, gradients[1:], strict=False):
        scores = scores + _at_image_tokens(run, token, features, slope)
    scores = scores * run.keep_BN
    if whole is not run:
        leaves = zip(names, others, gradients[1:], strict=False)
        scores = over_columns(
            whole, scores, {name: leaf.detach().float() * grad.float() for name, leaf, grad in leaves}
        )
    missing = (scores.sum(1) - start_B).abs()
    shares = _cut_shares(run, rules, cut, scores)
    return Attribution(
        scores,
        detail=detail,
        checks={
            "conservation_error": missing,
            "conservation_error_relative": missing / start_B.abs().clamp_min(torch.finfo(torch.float32).tiny),
        },
        warnings=[unruled + [CUT.format(share=s)] * (s > LOST) for s in shares],
        used={"at": space},
    )


def _refuse_streams(run: Run) -> None:
    """Raise for several streams of tokens, of which only one would get relevance."""
    read, sites = run.modality.read, run.study.sites
    apart = read.embeds and bool(sites) and not run.study.one_stream
    # A learned query that pools one input (SigLIP's classifier) is not an input: no relevance goes to another stream.
    pools = not read.joint and not read.embeds and run.multi_stream
    if apart or any(site.kind == "cross" and not (pools and site.streams[0] == "queries") for site in sites):
        raise NotOverUnits(
            "the model has several streams of tokens, and scores of one stream would omit the relevance of the others."
        )


def _cut_shares(run: Run, rules: GradientRules, gradients: Sequence[Tensor], scores: Tensor) -> list[float]:
    """Return, per input, the share of relevance that went to tensors which the model detached."""
    if not rules.cut:
        return [0.0] * len(scores)
    lost_B = torch.zeros_like(scores[:, 0])
    if INPUT_SLOPES not in run.study.undisturbed or run.study.warnings:  # else what was detached changes no slope
        for leaf, grad in zip(rules.cut, gradients, strict=True):
            arrived = torch.where(grad == 0, 0.0, leaf.detach().float() * grad.float())  # a mask holds infinities
            per_input = arrived.ndim > 1 and len(arrived) == run.batch.size  # else it counts for each input in full
            lost_B = lost_B + (arrived.flatten(1).sum(1) if per_input else arrived.sum())
    shares: list[float] = (lost_B.abs() / (scores.abs().sum(1) + lost_B.abs())).tolist()
    return shares


def _at_image_tokens(run: Run, token: int, features: Tensor, gradient: Tensor) -> Tensor:
    """(B, N) relevance of the vectors that a vision encoder handed over, at the tokens that hold their places."""
    places_BN = run.batch.real_BN & (run.batch.tensors[run.modality.main] == token)
    # The rows of one text (shared) were run as one: a gradient for each of them, of the same vectors.
    relevance = (features.detach().float() * gradient.float().unflatten(0, (-1, len(features)))).sum(-1).flatten()
    scores_BN = relevance.new_zeros(places_BN.shape)
    if len(relevance) != int(places_BN.sum()):
        raise NotOffered(
            f"the vision encoder hands over vectors of shape {tuple(features.shape)}, and the text holds "
            f"{int(places_BN.sum())} image tokens: relevance cannot be assigned to them."
        )
    scores_BN[places_BN] = relevance
    return scores_BN


@one_backward(
    paper="Ali et al. 2022 (ICML), arXiv:2202.07304",
    needs={"input_gradients"},
    signed=True,
    meaning="relevance propagated through the values, attention held constant",
    compiles=True,
)
def cp_lrp(run: Run, *, at: Annotated[str, OneOf(*PLACES)] | None = None) -> Attribution:
    """Propagate relevance from the output to the input through the values, with attention weights held constant.

    Uses the rules of ``attn_lrp``, but attention maps and the gates of gated MLPs are constants: all relevance of an
    attention goes to its values, and no product is halved. On a model without biases the scores sum to the explained
    logit. ``at`` and the checks are those of ``attn_lrp``.

    Misleads when: the prediction depends on where the model attends (a query that matches its key): queries and keys
    receive no relevance.
    """
    return relevance(run, GradientRules(attention_is_constant=True), at)
