"""head_importance, one number per head, and layer_profile, four curves over the layers; and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import whyformer.heads.importance_kinds as kinds
from whyformer.errors import BadInput, NotOffered, one_of
from whyformer.evidence import interval
from whyformer.heads.head_roles import places
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.methods.value_contributions import mixing_ratio
from whyformer.parameters import BatchSize, OneOf, Seed, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run import Run
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.targets import Aims
from whyformer.views.head_views import importance_view, profile_view
from whyformer.views.view import view_of


def mixing_BL(run: Run) -> Tensor:
    """(B, L) Kobayashi et al. 2021's mixing ratio, mean over real positions; NaN where blocks cannot be taken apart."""
    sites = run.record(multi_stream=run.multi_stream).sites
    unknown_BL = torch.full((run.batch.size, len(sites)), torch.nan)
    if run.multi_stream:
        return unknown_BL
    try:
        ratio_BLN = mixing_ratio(run, level="attn_res_ln")
    except NotOffered:
        return unknown_BL
    computed = torch.zeros_like(ratio_BLN)
    for layer, site in enumerate(sites):
        rows = slice(site.first_query, site.first_query + site.attention_BHQK.shape[2])
        computed[:, layer, rows] = run.keep_BN[:, rows].to(computed)
    return (ratio_BLN * computed).sum(2) / computed.sum(2).clamp(min=1)


CURVES = ("relevance added", "entropy", "distance", "mixing ratio")
UNITS = ("share of all layers", "nats", "tokens or patches", "share from other positions")


@dataclass(frozen=True, eq=False)
class LayerProfile(Result):
    """Mean of each curve over inputs, per layer, with 95 % confidence intervals; ``samples`` (S, 4, L): per input."""

    what: ClassVar[str] = "layer profile"
    later: ClassVar[tuple[str, ...]] = ("parts",)
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "parts": "L", "samples": "SCL"}

    samples: Float32
    paths: tuple[str, ...]
    inputs: int
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    model: str = ""
    parts: tuple[str, ...] | None = None  # encoder, decoder or cross, per layer, where there are several streams

    def curve(self, name: str) -> Array:
        """(L,) mean over the inputs."""
        return self.samples[:, CURVES.index(name)].mean(0)

    def curves(self) -> list[tuple[str, str, Array, Array, Array]]:
        """Return name, unit, mean and 95 % confidence interval of each curve."""
        low, high = interval(self.samples)
        return [(n, u, self.curve(n), low[i], high[i]) for i, (n, u) in enumerate(zip(CURVES, UNITS, strict=True))]

    @property
    def title(self) -> str:
        """Model and number of inputs, on one line."""
        return f"{self.model}: layer profile, {self.inputs} inputs"

    def to_frame(self) -> DataFrame:
        """Return one row per layer."""
        return dataframe(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per layer."""
        curves = {name: self.curve(name) for name in CURVES}
        return [
            {
                "layer": layer,
                **kinds.place_of(self.parts, layer),
                **{name: float(curve[layer]) for name, curve in curves.items()},
                "path": path,
            }
            for layer, path in enumerate(self.paths)
        ]


@checked
def layer_profile(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    target: Aims = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> LayerProfile:
    """Compute relevance added, attention entropy, attention distance and mixing ratio of every layer.

    relevance added: the layer's contribution to generic attention's relevance at the output position, as a share of all
    layers. entropy: -Σ_k A log A, mean over heads and real rows. distance: the attention-weighted mean of |q - k|, in
    tokens (in patches on an image), special tokens left out. mixing ratio: the share of a position's new vector that
    comes from other positions (Kobayashi et al. 2021); NaN where the model's blocks are not understood.

    For translation models, inputs are texts or (text, translation) pairs, and relevance is that of the last token. The
    mixing ratio is available for models with one stream only.

    Misleads when: compared across models of different depth, or inputs of different length: entropy and distance grow
    with length.
    """
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with kinds.through(model, inputs, target=target, progress=progress, **options) as session:
        refuse_without_gradients(session.model, "layer_profile")
        samples = session.gather(lambda run, rows: _curves(run), label="layers")
        return LayerProfile(
            samples.astype(np.float32),
            session.paths,
            session.size,
            session.cost(),
            session.warnings,
            type(session.model).__name__,
            kinds.parts_of(session.study),
        )


def _curves(run: Run) -> Tensor:
    """(b, 4, L)"""
    shares = kinds.shares_of(torch.stack([heads.sum(1) for heads in kinds.relevance_rows(run)], 1))
    return torch.stack([shares, entropy_BL(run), distance_BL(run), mixing_BL(run).to(shares)], 1)


def entropy_BL(run: Run) -> Tensor:
    """(B, L) -Σ_k A log A, mean over heads and real rows."""
    layers = []
    for call in kinds.calls(run):
        if call is None:
            layers.append(torch.full((run.batch.size,), torch.nan, device=run.keep_BN.device))
            continue
        attention = call.site.attention_BHQK.float()
        entropy_BQ = -torch.xlogy(attention, attention).sum(-1).mean(1)
        real_BQ = run.keep_BN[:, call.queries].float()
        layers.append((entropy_BQ * real_BQ).sum(1) / real_BQ.sum(1).clamp(min=1))
    return torch.stack(layers, 1)


def distance_BL(run: Run) -> Tensor:
    """(B, L) mean distance that attention bridges, Σ A·|q - k| / Σ A over heads and pairs of ordinary tokens."""
    layers = []
    for row in range(run.batch.size):
        places_NA = places(run, row)
        # Euclidean, in tokens or patches; NaN where a position has no place.
        apart_NN = (places_NA[:, None] - places_NA[None]).square().sum(-1).sqrt()
        ordinary_N = run.keep_BN[row] & ~run.special_BN[row]
        for call in kinds.calls(run):
            if call is None:
                layers.append(apart_NN.new_tensor(torch.nan))
                continue
            asked_Q, keys_K = ordinary_N[call.queries], ordinary_N[call.keys]  # none: a last layer asks for [CLS] only
            part = call.site.attention_BHQK[row].float()[:, asked_Q][..., keys_K]
            bridged = (part * apart_NN[call.queries, call.keys][asked_Q][:, keys_K]).sum()
            layers.append(bridged / part.sum().clamp(min=torch.finfo(part.dtype).tiny))
    return torch.stack(layers).view(run.batch.size, -1)


NORMALIZATIONS = ("l2", "minmax", "l2_minmax", "share")


def normalized(scores_LH: Array, settings: str | None) -> Array:
    """Each layer of length 1 (l2, Michel's code), all heads from 0 to 1 (minmax), or of absolute sum 1 (share)."""
    if settings in {"l2", "l2_minmax"}:  # both, in this order: Hugging Face's bertology script
        length = np.sqrt(np.nansum(scores_LH**2, axis=1, keepdims=True))
        scores_LH = scores_LH / np.where(length == 0, 1, length)
    if settings in {"minmax", "l2_minmax"}:
        low, high = np.nanmin(scores_LH), np.nanmax(scores_LH)
        scores_LH = (scores_LH - low) / (high - low if high > low else 1)
    if settings == "share":
        total = np.nansum(np.abs(scores_LH))
        scores_LH = scores_LH / (total if total else 1)
    return scores_LH


@dataclass(frozen=True, eq=False)
class HeadImportance(Result):
    """Scores (L, H), with 95 % confidence intervals over inputs; NaN where a layer has fewer heads than the widest."""

    what: ClassVar[str] = "head importance"
    later: ClassVar[tuple[str, ...]] = ("parts",)
    axes: ClassVar[Mapping[str, str]] = {
        "paths": "L",
        "parts": "L",
        "samples": "SLH",
        **dict.fromkeys(("scores", "low", "high", "direction"), "LH"),
    }

    scores: Float32
    low: Float32  # NaN for a single input, which shows no spread
    high: Float32
    samples: Float32  # (S, L, H) before normalisation: one table per input, or per batch for per="batch"
    paths: tuple[str, ...]  # where each layer's attention happened
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: int = 0
    signed: bool = False
    direction: Float32 | None = None  # (L, H) mean signed gradient: positive where the head raised the score
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    model: str = ""
    parts: tuple[str, ...] | None = None  # encoder, decoder or cross, per layer, where there are several streams

    def part(self, name: str) -> Array:
        """Return the scores (layers, H) of one part of the model: "encoder", "decoder", "cross" or a stream."""
        one_of("part", name, tuple(dict.fromkeys(self.parts or ("the model has one stream of tokens",))))
        return self.scores[[i for i, part in enumerate(self.parts or ()) if part == name]]

    def ranked(self) -> list[tuple[int, int, float]]:
        """Return (layer, head, score) from the most to the least important; ties keep their order."""
        flat = self.scores.ravel()
        order = [int(i) for i in np.argsort(-flat, kind="stable") if not np.isnan(flat[i])]
        heads = self.scores.shape[1]
        return [(i // heads, i % heads, float(flat[i])) for i in order]

    @property
    def title(self) -> str:
        """Model, kind of importance and number of inputs, on one line."""
        what = {"confidence": "attention", "relevance": "relevance"}.get(self.kind, self.options.get("scalar", ""))
        inputs = f"{self.inputs} input{'s' if self.inputs != 1 else ''}"
        return f"{self.model}: head importance, {self.kind} ({what}), {inputs}"

    def to_frame(self) -> DataFrame:
        """Return one row per head, the most important first."""
        rows = [
            {
                "layer": layer,
                **kinds.place_of(self.parts, layer),
                "head": head,
                "score": score,
                "low": float(self.low[layer, head]),
                "high": float(self.high[layer, head]),
                "path": self.paths[layer],
            }
            for layer, head, score in self.ranked()
        ]
        return dataframe(rows)


KINDS = ("gradient", "confidence", "relevance", "ablation")
PER = ("example", "token", "batch")
ABLATIONS = ("one", "all_but_one")
RULES = ("lrp", "generic")


@checked
def head_importance(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    target: Aims = None,
    labels: Any = None,
    kind: Annotated[str, OneOf(*KINDS)] = "gradient",
    per: Annotated[str, OneOf(*PER)] = "example",
    scalar: Annotated[str, OneOf(*kinds.SCALARS)] = "logit",
    normalize: Annotated[str, OneOf(*NORMALIZATIONS)] | None = None,
    ablate: Annotated[str, OneOf(*ABLATIONS)] = "one",
    rule: Annotated[str, OneOf(*RULES)] = "lrp",
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> HeadImportance:
    """Compute the importance of each attention head for the predictions on these inputs.

    kind:
      "gradient"    E_x |∂s/∂ξ_h| for a mask ξ on the head's result (Michel et al. 2019, eq. 2); one backward pass.
                    ``per``: where the absolute value is taken: per "example" (the paper), per "token" (the
                    authors' code), or per "batch" (Hugging Face's bertology script; depends on the batch size).
      "confidence"  mean over tokens of the largest attention weight, special tokens left out (Voita et al. 2019).
      "relevance"   share of its layer's relevance that passes through the head: ``rule="lrp"`` (layer-wise relevance
                    propagation, as in Voita et al. 2019) or "generic" (generic attention, Chefer et al. 2021).
      "ablation"    s(x) - s(x without the head), signed; ``ablate="all_but_one"`` removes the others of its layer.
    scalar: "logit" of ``target`` (default: the predicted class), or "loss" at ``labels`` (one per input).
    normalize: None, "l2" (per layer), "minmax", "l2_minmax" or "share" (heads/importance.py).
    For translation models, inputs are texts or (text, translation) pairs, and scores are means over the tokens of the
    translations; ``parts`` of the result marks the layers of encoder, decoder and cross-attention.

    Misleads when: heads are redundant. Gradients and single ablations test one head at a time, so two redundant heads
    both look unimportant. ``heads.pruning_curve`` removes heads together.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.head_importance(model, list(wf.demo.SENTENCES), tokenizer).show()
    """
    _refuse_mixed(kind, per, ablate, rule, scalar, labels, target)
    opening: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    opening |= {"target": target, "progress": progress, "each_token": kind != "confidence"}
    with kinds.through(model, inputs, **opening) as session:
        if kind in {"gradient", "relevance"}:
            refuse_without_gradients(session.model, f'head_importance(kind="{kind}")')
        if labels is not None:
            labels = _labels_for(session, labels)
            if scalar == "logit":  # a label is then the class whose logit is explained
                session.target, labels = labels, None
        direction = None
        if kind == "gradient":
            samples, direction = _gradient_samples(session, per, labels)
        elif kind == "ablation":
            gates, keep_one = kinds.open_gates(session), ablate == "all_but_one"

            def measured(run: Run, rows: list[int]) -> Tensor:
                return kinds.ablation(run, gates, session.heads, kinds.labels_at(labels, rows), keep_one)

            samples = session.gather(measured, label=kind)
        else:
            relevance = kinds.lrp_relevance if rule == "lrp" else kinds.relevance_share
            measure = kinds.confidence if kind == "confidence" else relevance
            samples = session.gather(lambda run, rows: measure(run), label=kind)
        low, high = interval(samples, seed, lambda mean: normalized(mean, normalize))
        options = {"per": per, "scalar": scalar, "normalize": normalize, "seed": seed}
        options |= {"ablation": {"ablate": ablate}, "relevance": {"rule": rule}}.get(kind, {})
        return HeadImportance(
            scores=normalized(samples.mean(0), normalize).astype(np.float32),
            low=low.astype(np.float32),
            high=high.astype(np.float32),
            samples=samples.astype(np.float32),
            direction=None if direction is None else direction.astype(np.float32),
            paths=session.paths,
            kind=kind,
            options=options,
            inputs=session.size,
            signed=kind == "ablation",
            cost=session.cost(),
            warnings=session.warnings,
            model=type(session.model).__name__,
            parts=kinds.parts_of(session.study),
        )


def _refuse_mixed(kind: str, per: str, ablate: str, rule: str, scalar: str, labels: Any, target: Any) -> None:
    """Raise for options that belong to another kind of importance."""
    if per != "example" and kind != "gradient":
        raise BadInput(f'per="{per}" belongs to kind="gradient"; kind="{kind}" has one value per example.')
    if ablate != "one" and kind != "ablation":
        raise BadInput(f'ablate="{ablate}" belongs to kind="ablation".')
    if rule != "lrp" and kind != "relevance":
        raise BadInput(f'rule="{rule}" belongs to kind="relevance".')
    if kind in {"confidence", "relevance"} and (labels is not None or scalar == "loss"):
        raise BadInput(f'kind="{kind}" does not use a loss: omit labels and scalar="loss".')
    if kind == "confidence" and target is not None:
        raise BadInput('kind="confidence" does not depend on the output: omit target.')
    if scalar == "loss" and (labels is None or target is not None):
        raise BadInput('scalar="loss" is the loss at the true labels: pass labels=[…], one per input, and no target.')
    if labels is not None and target is not None:
        raise BadInput("give target or labels, not both.")


def _labels_for(session: Session, labels: Any) -> list[Any]:
    """Return a label per input; raise where there is one per token."""
    if session.at_once:
        raise BadInput(
            "a translation is scored token by token, so labels per input cannot be used: give (source, "
            "translation) pairs, and omit labels."
        )
    return kinds.checked_labels(labels, session.size)


def _gradient_samples(session: Session, per: str, labels: list[Any] | None) -> tuple[Array, Array]:
    """(S, L, H) one table per input (or batch), and the mean signed gradient (L, H)."""
    if per == "token" and not (session.study.one_stream or session.study.multi_stream):
        raise NotOffered(
            'per="token" needs the query and key streams of each layer, which were not found for this model. Use '
            'per="example".'
        )

    def measure(run: Run, rows: list[int]) -> Tensor:
        """(b, 3, L, H): signed gradient, sums of absolute values over tokens, and their number."""
        maps = kinds.recorded(run, kinds.labels_at(labels, rows))
        signed = kinds.mask_gradient(maps)
        if per != "token":
            return signed[:, None]
        counts = kinds.token_counts(run, len(maps.sites))[:, :, None].expand_as(signed)
        sums = kinds.table([kinds.row_products(site).abs().sum(-1) for site in maps.sites])  # as Michel
        return torch.stack([signed, sums, counts], 1)

    if per == "batch":
        # NOTE[DIFF] the script sums |gradient of the batch's mean loss| over batches and divides by the number of
        # tokens; the mean over batches is the same up to one factor for all heads.
        parts = session.each(measure, label="gradients", sort=False)
        signed = np.stack([part[:, 0].mean(0).detach().cpu().double().numpy() for _, part in parts])
        return np.abs(signed), signed.mean(0)
    samples = session.gather(measure, label="gradients")
    if per == "token":
        # Σ over all tokens of the data set / their number, written as a mean over inputs.
        return samples[:, 1] / samples[:, 2].mean(0), samples[:, 0].mean(0)
    return np.abs(samples[:, 0]), samples[:, 0].mean(0)


view_of.register(LayerProfile, profile_view)
view_of.register(HeadImportance, importance_view)
