"""What lower and higher layers do: four curves over the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import NotOffered
from whyformer.evidence import interval
from whyformer.heads.head_roles import distances, places
from whyformer.heads.importance_kinds import Call, calls, parts_of, place_of, relevance_rows, shares_of, through
from whyformer.loan.borrow import refuse_without_gradients
from whyformer.methods.value_contributions import mixing_ratio
from whyformer.parameters import BatchSize, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run import Run
from whyformer.shapes import Array
from whyformer.targets import Aims
from whyformer.views.head_views import profile_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


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
    """Per layer, the mean over inputs of each curve with its 95 % limits; ``samples`` (S, 4, L) holds every input."""

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
        """Name, unit, mean and 95 % limits of each curve."""
        low, high = interval(self.samples)
        return [(n, u, self.curve(n), low[i], high[i]) for i, (n, u) in enumerate(zip(CURVES, UNITS, strict=True))]

    @property
    def title(self) -> str:
        """Model and number of inputs, on one line."""
        return f"{self.model}: what its layers do, {self.inputs} inputs"

    def to_frame(self) -> pd.DataFrame:
        """One row per layer."""
        return dataframe(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One dict per layer."""
        curves = {name: self.curve(name) for name in CURVES}
        return [
            {
                "layer": layer,
                **place_of(self.parts, layer),
                **{name: float(curve[layer]) for name, curve in curves.items()},
                "path": path,
            }
            for layer, path in enumerate(self.paths)
        ]


view_of.register(LayerProfile, profile_view)


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
    """Relevance added, attention entropy, attention distance and mixing ratio of every layer.

    relevance added: what the layer adds to generic attention's relevance of the readout row, as a share of what all
    layers add. entropy: -Σ_k A log A, mean over heads and real rows. distance: the mean of |q - k| that attention
    bridges, in tokens (in patches on an image), special tokens left out. mixing ratio: how much of a position's new
    vector comes from others (Kobayashi et al. 2021), NaN where the model's blocks cannot be taken apart.

    Of a model that translates, inputs are texts or (text, translation) pairs: the decoder reads the translation, and
    relevance is that of its last token. Between encoder and decoder, distance is how far a position of one lies from
    the same position of the other; the mixing ratio is known for models with one stream only.

    Misleads when: the layers are compared across models of different depth, or inputs of different length: entropy and
    distance grow with length.
    """
    options: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with through(model, inputs, target=target, progress=progress, **options) as session:
        refuse_without_gradients(session.model, "layer_profile")
        samples = session.gather(lambda run, rows: _curves(run), label="layers")
        return LayerProfile(
            samples.astype(np.float32),
            session.paths,
            session.size,
            session.cost(),
            session.warnings,
            type(session.model).__name__,
            parts_of(session.study),
        )


def _curves(run: Run) -> Tensor:
    """(b, 4, L)"""
    shares = shares_of(torch.stack([heads.sum(1) for heads in relevance_rows(run)], 1))
    return torch.stack([shares, entropy_BL(run), distance_BL(run), mixing_BL(run).to(shares)], 1)


def entropy_BL(run: Run) -> Tensor:
    """(B, L) -Σ_k A log A, mean over heads and real rows."""
    layers = []
    for call in calls(run):
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
    rows = []
    for row in range(run.batch.size):
        apart_NN = distances(places(run, row))
        ordinary_N = run.keep_BN[row] & ~run.special_BN[row]
        rows.append(torch.stack([_distance(call, row, apart_NN, ordinary_N) for call in calls(run)]))
    return torch.stack(rows)


def _distance(call: Call | None, row: int, apart_NN: Tensor, ordinary_N: Tensor) -> Tensor:
    if call is None:
        return apart_NN.new_tensor(torch.nan)
    queries_Q, keys_K = ordinary_N[call.queries], ordinary_N[call.keys]  # none where a last layer asks for [CLS] only
    part = call.site.attention_BHQK[row].float()[:, queries_Q][..., keys_K]
    bridged = (part * apart_NN[call.queries, call.keys][queries_Q][:, keys_K]).sum()
    return bridged / part.sum().clamp(min=torch.finfo(part.dtype).tiny)
