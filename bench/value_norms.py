"""value_norms against building every vector α_ij^h f_h(x_j), as (heads, N, N, width) per layer.

    python -m bench.value_norms [--layers 2] [--tokens 192]

Prints the peak memory of both roads above what they started with (the model and its record are there already), their
ratio, seconds, and how far the maps are apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.timing import growth, machine
from bench.value_zeroing import bert
from whyformer.loan.borrow import borrowed
from whyformer.methods.value_contributions import contributions
from whyformer.run import Run
from whyformer.study import study_of
from whyformer.verbs import Explainer

LEVEL = "enc"


def by_vectors(layers: list[tuple[Any, Any]]) -> list[Tensor]:
    """‖Σ_h α_ij^h F_jh + δ_ij X_i‖ · s_i with all vectors of a layer in memory, head by head."""
    maps = []
    for site, block in layers:
        parts = contributions(site, block, LEVEL)
        vectors_HQKE = parts.attention_BHQK[0, :, :, :, None] * parts.vectors_BHKE[0, :, None]
        total_QKE = vectors_HQKE.sum(0)
        own = torch.arange(len(total_QKE))
        assert parts.residual_BQE is not None and parts.scale_BQ is not None
        total_QKE[own, own] += parts.residual_BQE[0]
        maps.append(total_QKE.norm(dim=-1) * parts.scale_BQ[0, :, None])
    return maps


def by_gram_matrices(layers: list[tuple[Any, Any]]) -> list[Tensor]:
    return [contributions(site, block, LEVEL).norms_BQK[0] for site, block in layers]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=192)
    options = parser.parse_args(argv)
    model = bert(options.layers)
    ids = torch.randint(1000, 20000, (1, options.tokens), generator=torch.Generator().manual_seed(0))
    explainer = Explainer(model)
    modality, batch, _ = explainer.prepare({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    results: dict[str, list[Tensor]] = {}
    spent, seconds = {}, {}
    with borrowed(model), torch.no_grad():
        layers = list(Run(modality, batch, study_of(modality, batch)[0]).anatomy().layers)
        roads: dict[str, Callable[[list[tuple[Any, Any]]], list[Tensor]]] = {
            "Gram matrices": by_gram_matrices,
            "all vectors": by_vectors,
        }
        for name, road in roads.items():

            def work(name: str = name, road: Any = road) -> None:
                results[name] = road(layers)

            started = time.perf_counter()
            spent[name] = growth(work)
            seconds[name] = time.perf_counter() - started
    config: Any = model.config
    whole = options.tokens**2 * config.num_attention_heads * config.hidden_size * 4 / 2**20
    size = f"{options.tokens} tokens, {config.num_attention_heads} heads, width {config.hidden_size}"
    print(f"value norms, {size}; {machine()}")
    print(f"  one layer's (heads, N, N, width) in float32: {whole:.0f} MB")
    for name in ("all vectors", "Gram matrices"):
        print(f"  {name:14s} peak {spent[name]:7.0f} MB   {seconds[name]:6.2f} s")
    part = spent["all vectors"] / max(spent["Gram matrices"], 1e-9)
    print(f"  peak memory: 1/{part:.0f} of the vectors' (wanted: below 1/10)")
    pairs = zip(results["all vectors"], results["Gram matrices"], strict=True)
    print(f"  largest difference, relative: {max(float((a - b).abs().max() / a.max()) for a, b in pairs):.1e}")


if __name__ == "__main__":
    main()
