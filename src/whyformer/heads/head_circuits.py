"""Circuits (W_QK, W_OV) of heads, direct logit attribution, and norms of the vectors that attention weights.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". On a pre-norm model the logit is a linear
function of the residual stream once the scale of the final norm is held constant, and the stream is a sum of what the
heads, the MLPs and the embedding wrote. So the logit is a sum of shares: one per head, and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.functions import PROJECTIONS
from whyformer.capture.record import record, require_sites
from whyformer.capture.roles import DirectPath, HeadWeights, Observe, ProjectionFinder, SiteWeights
from whyformer.engines.attention.maps import real
from whyformer.errors import BadInput, NotOffered
from whyformer.heads.head_roles import repeated_tokens
from whyformer.heads.importance_kinds import mask_gradient, open_gates, rows_of, table
from whyformer.inputs.output import Output
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import module_names
from whyformer.methods.value_contributions import LEVELS, layers, mixing_ratio, weighed
from whyformer.parameters import BatchSize, Place, Seed, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost, Target
from whyformer.run import Run
from whyformer.run.session import LoadedModel, loaded_as, passing_through
from whyformer.shapes import Array
from whyformer.targets import Aims
from whyformer.views.head_views import circuits_view, direct_view, level_panels, mixing_panel, scatter_view
from whyformer.views.view import View, view_of

# QK and OV circuits: what a head compares and what it copies, read from its weights alone. With row vectors, a head's
# score between two positions is x_q W_QK x_kᵀ, W_QK = W_Q W_Kᵀ; what it moves between them is x_k W_OV, W_OV = W_V W_O.

WEIGHTS = ("query", "key", "value", "output")


@dataclass(frozen=True, eq=False)
class Circuits(Result):
    """Weights per layer, (H, in, D) for q, k, v and (H, D, out) for o, and summaries (L, H) of them.

    ``copying``: Σλ/Σ|λ| over the eigenvalues of the OV circuit: 1 if the head raises attended tokens, -1 if it lowers
    them. From token to logits (W_E W_V W_O W_U) if the model has both tables, else in the residual stream (W_V W_O).
    ``matching``: the same for the QK circuit: 1 if a token attends to tokens like itself.
    Gains of the norms in between are not folded in; biases are left out.
    """

    what: ClassVar[str] = "circuits"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "copying": "LH", "matching": "LH", **dict.fromkeys(WEIGHTS, "L")}

    query: list[Float32]
    key: list[Float32]
    value: list[Float32]
    output: list[Float32]
    copying: Float32
    matching: Float32
    paths: tuple[str, ...]
    rotary: bool  # W_QK then holds for positions that are the same; others are rotated against each other
    vocabulary: bool  # whether the summaries run from tokens to logits

    def qk(self, layer: int, head: int) -> Array:
        """(in, in) W_QK = W_Q W_Kᵀ, without the 1/√D; at offset zero for rotary models."""
        return self.query[layer][head] @ self.key[layer][head].T

    def ov(self, layer: int, head: int) -> Array:
        """(in, out) W_OV = W_V W_O."""
        return self.value[layer][head] @ self.output[layer][head]

    def to_frame(self) -> DataFrame:
        """Return one row per head: the summaries of its circuits."""
        return dataframe(rows_of(copying=self.copying, matching=self.matching))


@checked
def circuits(
    model: Any,
    inputs: Any = None,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    attention_at: Mapping[str, str] | None = None,
    seed: Seed = 0,
) -> Circuits:
    """Return the QK and OV circuits of every head.

    The weights are found by running the model once and matching each head's queries, keys and values with the outputs
    of its linear layers (capture/roles.py). ``inputs``: one input to run it on; random tokens by default.

    Misleads when: norms, MLPs and other layers lie in between: the product of the matrices ignores them. An eigenvalue
    summary also hides that a head may copy some tokens and suppress others.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    if inputs is None:
        inputs = {"input_ids": repeated_tokens(loaded, 6, 1, seed)}
    with passing_through(loaded, inputs, progress=False) as session:
        one = session.part([0])
        finder, output = ProjectionFinder(session.names), Output(session.modality, one)
        with torch.no_grad(), finder:
            output.logits(one)
        weights = [_complete(site) for site in finder.site_weights]
        tables = _tables(session.model, weights[0]["query"].weight_HXY.shape[1])
        arrays: Any = {name: [w[name].weight_HXY.detach().float().cpu().numpy() for w in weights] for name in WEIGHTS}
        summaries = zip(*(_summaries(w, tables) for w in weights), strict=True)
        copying, matching = (table([layer[None] for layer in layers])[0] for layers in summaries)
        return Circuits(
            **arrays,
            copying=copying.float().cpu().numpy(),
            matching=matching.float().cpu().numpy(),
            paths=session.paths,
            rotary=any(w["query"].rotated or w["key"].rotated for w in weights),
            vocabulary=tables is not None,
        )


def _complete(site: SiteWeights) -> dict[str, HeadWeights]:
    """Weights by name; raise if one was not found."""
    weights = {name: getattr(site, name) for name in WEIGHTS}
    missing = [name for name, weight in weights.items() if weight is None]
    if missing:
        per_head = " (queries or keys that are normalised per head have no fixed W_QK)"
        raise NotOffered(
            f"{site.path}: the weight of the {missing[0]}s of its heads was not found among the model's linear layers"
            f"{per_head if missing[0] in {'query', 'key'} else ''}. Circuits support plain, packed and grouped "
            "projections, with or without rotary positions."
        )
    return weights


def _tables(model: Any, width: int) -> tuple[Tensor, Tensor] | None:
    """Token embedding and unembedding, both (vocabulary, width), where the model has them."""
    weights = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        try:
            weight = getattr(getattr(model, name)(), "weight", None)
        except (AttributeError, NotImplementedError):
            return None
        if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[1] != width:
            return None
        weights.append(weight.detach().double())
    return (weights[0], weights[1]) if weights[0].shape == weights[1].shape else None


def _summaries(weights: dict[str, HeadWeights], tables: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """(H,) copying and matching."""
    # AB and BA share their eigenvalues (but zeros), so a D × D matrix will do for the circuit over tokens.
    query, key, value, output = (weights[name].weight_HXY.double() for name in WEIGHTS)
    matching = _positive_shares(key.mT, None if tables is None else tables[0].t() @ tables[0], query)
    if value.shape[1] != output.shape[2]:  # no stream to compare with itself
        return torch.full((len(value),), torch.nan, dtype=torch.float64), matching
    return _positive_shares(output, None if tables is None else tables[1].t() @ tables[0], value), matching


def _positive_shares(left: Tensor, between: Tensor | None, right: Tensor) -> Tensor:
    """(H,) Σλ/Σ|λ| over the eigenvalues: 1 if all are positive, -1 if all are negative, 0 if there are none."""
    shares = []
    for a, b in zip(left, right, strict=True):
        values = torch.linalg.eigvals(a @ b if between is None else a @ between @ b)
        total = float(values.abs().sum())
        shares.append(float(values.real.sum()) / total if total else 0.0)
    return torch.tensor(shares).double()


@dataclass(frozen=True, eq=False)
class DirectShares(Result):
    """``shares`` (B, L, H) and ``rest`` (B,) of the logit ``value`` (B,): for each input, they add up to it.

    Its pictures take ``index``, the input that is drawn.
    """

    what: ClassVar[str] = "direct shares"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "shares": "BLH", "rest": "B", "value": "B", "targets": "B"}

    shares: Float32
    rest: Float32  # embedding, MLPs, biases
    value: Float32
    targets: tuple[Target, ...]
    paths: tuple[str, ...]
    cost: Cost = field(default_factory=Cost)
    model: str = ""

    def ranked(self, index: int = 0) -> list[tuple[int, int, float]]:
        """Return (layer, head, share) of one input, the largest first."""
        known = np.argwhere(~np.isnan(self.shares[index])).tolist()
        return sorted(((i, j, float(self.shares[index, i, j])) for i, j in known), key=lambda head: -head[2])

    def to_frame(self) -> DataFrame:
        """Return one row per input and head."""
        known = np.argwhere(~np.isnan(self.shares)).tolist()
        rows = [{"input": n, "layer": i, "head": j, "share": float(self.shares[n, i, j])} for n, i, j in known]
        return dataframe(rows)


@checked
def direct_logit(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    target: Aims = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> DirectShares:
    """Split the target logit of each input into the direct contribution of every head, and the rest.

    share_h = w_t · N(W_O^h A_h V_h at the readout row), N the final norm with its scale held constant. For models whose
    heads reach the logits along the residual stream through norms and linear maps only: GPT-2, Llama and similar
    models, ViT. ``target`` as in ``explain``; ``(a, b)`` splits the difference of two logits.

    Misleads when: a head acts through later layers (for example, an MLP uses the information that it moves): its direct
    contribution is then small, although ablating it changes the output much.
    """
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with passing_through(model, inputs, target=target, progress=progress, **options) as session:
        refuse_without_gradients(session.model, "direct_logit")
        if not session.study.one_stream:
            raise NotOffered(
                "the model has several streams of tokens, combined by a product or by cross-attention: its logits "
                'cannot be split into contributions of heads. Use head_importance (kind="gradient" or "ablation").'
            )
        targets: dict[int, Target] = {}

        def measure(run: Run, rows: list[int]) -> Tensor:
            shares = _shares(run)
            targets.update(zip(rows, run.targets, strict=True))
            return torch.cat([run.value_B[:, None].to(shares), shares.flatten(1)], 1)

        columns = session.gather(measure, label="direct shares")
        value, shares = columns[:, 0], columns[:, 1:].reshape(session.size, *open_gates(session).shape)
        return DirectShares(
            shares=shares.astype(np.float32),
            rest=(value - np.nansum(shares, (1, 2))).astype(np.float32),
            value=value.astype(np.float32),
            targets=tuple(targets[i] for i in range(session.size)),
            paths=session.paths,
            cost=session.cost(),
            model=type(session.model).__name__,
        )


def _shares(run: Run) -> Tensor:
    """(b, L, H): ∂s/∂ξ, as in heads/importance_kinds.py, with only the direct path in the graph."""
    names, axes = module_names(run.modality.model), run.study.batch_axes
    counter = _Counter(run.batch.size, names, axes)
    with torch.no_grad(), counter:
        run.output.logits(run.batch)
    role = DirectPath(run.batch.size, names, axes, last=counter.projections - 1)
    run.forwards_B += 2
    run.backwards_B += 1
    try:
        maps = record(lambda: run.output.logits(run.batch), role, run.scalars)
    except NotOffered as error:
        if "does not depend on any captured attention" not in str(error):
            raise
        raise NotOffered(
            "the logits are not a linear function of the residual stream (there is a pooler or an MLP before them), so "
            'they cannot be split into contributions of heads. Use head_importance (kind="gradient" or "ablation").'
        ) from None
    require_sites(maps)
    return mask_gradient(maps)


class _Counter(Observe):
    """Counts projections: the last one makes the logits."""

    projections = 0

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in PROJECTIONS:
            self.projections += 1
        return super().__torch_function__(func, types, args, kwargs)


# Attention weights against the vectors that they weight: norms, the residual stream, and mixing ratios.


@checked
def norms_scatter(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    layer: Place | None = None,
    attention_at: Mapping[str, str] | None = None,
) -> View:
    """Draw attention weight against ‖f(x)‖, a point per layer, head and token, coloured by token type (Kobayashi 2020).

    Tokens with high attention and a small norm (lower right) contribute little: often [SEP] and punctuation. ``layer``
    draws one layer only.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.heads.norms_scatter(model, list(wf.demo.SENTENCES), tokenizer).show()
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    many = inputs if isinstance(inputs, (list, dict)) else [inputs]
    return scatter_view(weighed(loaded, many), layer)


@checked
def level_maps(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    layer: Place = 0,
    attention_at: Mapping[str, str] | None = None,
) -> View:
    """Draw one layer's contributions of each token before and after the residual stream and the norm (Kobayashi 2021).

    inputs: one input. Maps are shares of rows, and the last panel is the mixing ratio of each position and layer: the
    share of its new vector that comes from other positions.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.heads.level_maps(model, "a gorgeous film", tokenizer, layer=1).show()
    """
    one = inputs if isinstance(inputs, (list, dict)) else [inputs]
    with (
        passing_through(model, one, processor=processor, attention_at=attention_at) as session,
        torch.no_grad(),
    ):
        if session.size != 1:
            raise BadInput(f"level_maps draws one input, and got {session.size}.")
        run = session.run(range(1))
        keep_N, units = run.keep_BN[0].cpu().numpy(), run.units[0]
        maps = {}
        for level in LEVELS:
            each = [real(parts.norms_BQK, run.keep_BN, site)[0] for site, parts in layers(run, level)]
            if not -len(each) <= layer < len(each):
                raise BadInput(f"layer={layer}: there are {len(each)}, numbered 0 to {len(each) - 1}.")
            values = each[layer].float().cpu().numpy()[:, keep_N]
            maps[level] = values[keep_N] if len(values) == len(keep_N) else values
        ratios_LN = mixing_ratio(run, "attn_res_ln")[0].float().cpu().numpy()[:, keep_N]
    panels, legend = level_panels(maps, units.labels)
    title = f"layer {layer}: share of each position (row) that comes from each token (column)"
    computed = np.where(ratios_LN > 0, ratios_LN, np.nan)
    return View(title, (*panels, mixing_panel(computed, units.labels)), columns=2, legend=legend)


view_of.register(Circuits, circuits_view)
view_of.register(DirectShares, direct_view)
