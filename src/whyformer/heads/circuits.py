"""QK and OV circuits: what a head compares and what it copies, read from its weights alone.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". With row vectors, a head's score between two
positions is x_q W_QK x_kᵀ, W_QK = W_Q W_Kᵀ, and what it moves from one to the other is x_k W_OV, W_OV = W_V W_O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.projections import HeadWeights, ProjectionFinder, SiteWeights
from whyformer.codec import Float32
from whyformer.errors import NotOffered
from whyformer.heads.induction import repeated_tokens
from whyformer.interop import dataframe
from whyformer.output import Output
from whyformer.parameters import Seed, checked
from whyformer.result import Result
from whyformer.session import LoadedModel, loaded_as, passing_through
from whyformer.views.heads import circuits_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Circuits(Result):
    """Weights per layer, (H, in, D) for q, k, v and (H, D, out) for o, and summaries (L, H) of them.

    ``copying``: Σλ/Σ|λ| over the eigenvalues of the OV circuit, 1 where what is attended to is raised, -1 where it is
    lowered. From token to logits (W_E W_V W_O W_U) where the model has both tables, else in the stream (W_V W_O).
    ``matching``: the same of the QK circuit: 1 where a token looks for tokens like itself.
    Gains of the norms in between are not folded in, biases are left out.
    """

    what: ClassVar[str] = "circuits"
    axes: ClassVar[Mapping[str, str]] = {
        "paths": "L",
        "copying": "LH",
        "matching": "LH",
        **dict.fromkeys(("query", "key", "value", "output"), "L"),
    }

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
        product: Array = self.query[layer][head] @ self.key[layer][head].T
        return product

    def ov(self, layer: int, head: int) -> Array:
        """(in, out) W_OV = W_V W_O."""
        product: Array = self.value[layer][head] @ self.output[layer][head]
        return product

    def to_frame(self) -> pd.DataFrame:
        """One row per head: the summaries of its circuits."""
        heads = [tuple(map(int, at)) for at in np.argwhere(~np.isnan(self.copying))]
        names = ("copying", "matching")
        rows = [{"layer": i, "head": j} | {name: float(getattr(self, name)[i, j]) for name in names} for i, j in heads]
        return dataframe(rows)


view_of.register(Circuits, circuits_view)


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
    """The QK and OV circuits of every head.

    The weights are found by running the model once and looking for each head's queries, keys and values among what its
    linear layers produced (capture/projections.py). ``inputs``: one input to run it on; random tokens by default.

    Misleads when: norms, MLPs and other layers stand in between, which the product of a few matrices does not see; an
    eigenvalue summary also hides that a head may copy some tokens and suppress others.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    if inputs is None:
        inputs = {"input_ids": repeated_tokens(loaded, 6, 1, seed)}
    with passing_through(loaded, inputs, progress=False) as session:
        one = session.part([0])
        finder, output = ProjectionFinder(session.names), Output(session.modality, one)
        with torch.no_grad(), finder:
            output.logits(one)
        weights = [_complete(site) for site in finder.found]
        tables = _tables(session.model, weights[0]["query"].weight_HXY.shape[1])
        copying = [_copying(w, tables) for w in weights]
        matching = [_matching(w, tables) for w in weights]
        return Circuits(
            query=[_array(w["query"]) for w in weights],
            key=[_array(w["key"]) for w in weights],
            value=[_array(w["value"]) for w in weights],
            output=[_array(w["output"]) for w in weights],
            copying=_ragged(copying),
            matching=_ragged(matching),
            paths=session.paths,
            rotary=any(w["query"].rotated or w["key"].rotated for w in weights),
            vocabulary=tables is not None,
        )


def _complete(site: SiteWeights) -> dict[str, HeadWeights]:
    weights: dict[str, HeadWeights] = {}
    for name in ("query", "key", "value", "output"):
        weight = getattr(site, name)
        if weight is None:
            raise NotOffered(
                f"{site.path}: the weight that makes the {name}s of its heads was not found among the model's linear "
                "layers"
                + (
                    " (queries or keys that are normalised per head have no fixed W_QK)"
                    if name in {"query", "key"}
                    else ""
                )
                + ". Circuits are offered for plain, packed and grouped projections, with or without rotary positions."
            )
        weights[name] = weight
    return weights


def _array(weights: HeadWeights) -> Array:
    array: Array = weights.weight_HXY.detach().float().cpu().numpy()
    return array


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


def _copying(weights: dict[str, HeadWeights], tables: tuple[Tensor, Tensor] | None) -> list[float]:
    """AB and BA share their eigenvalues (but zeros), so a D × D matrix will do for the vocabulary-sized circuit."""
    value, output = (weights[name].weight_HXY.double() for name in ("value", "output"))
    between = None if tables is None else tables[1].t() @ tables[0]
    if value.shape[1] != output.shape[2]:  # no stream to compare with itself
        return [float("nan")] * len(value)
    return [positive_share(o @ v if between is None else o @ between @ v) for v, o in zip(value, output, strict=True)]


def _matching(weights: dict[str, HeadWeights], tables: tuple[Tensor, Tensor] | None) -> list[float]:
    query, key = (weights[name].weight_HXY.double() for name in ("query", "key"))
    between = None if tables is None else tables[0].t() @ tables[0]
    return [
        positive_share(k.t() @ q if between is None else k.t() @ between @ q) for q, k in zip(query, key, strict=True)
    ]


def positive_share(matrix: Tensor) -> float:
    """Σλ/Σ|λ| over the eigenvalues: 1 if all are positive, -1 if all are negative, 0 if there are none."""
    values = torch.linalg.eigvals(matrix)
    total = float(values.abs().sum())
    return float(values.real.sum()) / total if total else 0.0


def _ragged(rows: list[list[float]]) -> Array:
    widest = max(map(len, rows))
    return np.array([row + [float("nan")] * (widest - len(row)) for row in rows], np.float32)
