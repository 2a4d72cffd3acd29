"""What methods of one pass cost beside the model's own passes: short batches, compiled ones, and long texts.

    python -m bench.lrp [--batches 1 8] [--rounds 9] [--device cuda] [--compiled]    # BERT-base, ViT-B
    python -m bench.lrp --tokens 1024 8192 --device cuda                             # Llama 1B and Qwen3-8B by shape

BERT-base reads 128 tokens, ViT-B 224 × 224 pixels, in float32; language models read one text in bfloat16. Weights are
random. Rollout is divided by a forward, the others by a forward and a backward down to the input of the first block,
without gradients of weights. All run in turn, round by round, and the fastest round of each counts. --compiled: with
``compiled=True``, whose graphs are recorded before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import whyformer as wf
from bench import long
from bench.engine import MODELS, backward_to_activations, forward
from bench.timing import fastest, finished, machine

ROLLOUT = "attention_rollout"
METHODS = (ROLLOUT, "generic_attention", "input_x_gradient", "attn_lrp", "cp_lrp")
LANGUAGE: dict[str, Callable[[], nn.Module]] = {"Llama 1B": long.llama, "Qwen3-8B": long.qwen3}
FORWARD, BOTH = "forward", "forward + backward"


def of_batch(name: str, batch: int, device: str, compiled: bool) -> dict[str, Callable[[], object]]:
    """A batch of a classifier: the model's own passes, and explanations."""
    model, inputs = MODELS[name]("sdpa")
    model = model.to(device).requires_grad_(False)
    x = {k: v.to(device) for k, v in inputs(batch).items()}
    if name == "bert":
        x["attention_mask"] = torch.ones_like(x["input_ids"])
    explain = wf.Explainer(model, compiled=compiled).explain
    roads: dict[str, Callable[[], object]] = {
        FORWARD: partial(forward, model, x),
        BOTH: partial(backward_to_activations, model, x, freeze=False),
    }
    return roads | {method: partial(explain, x, method=method, target=0) for method in METHODS}


def of_text(model: nn.Module, tokens: int, device: str) -> dict[str, Callable[[], object]]:
    """One text of a language model."""
    ids = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device)
    explain = wf.Explainer(model).explain
    roads: dict[str, Callable[[], object]] = {FORWARD: long.bare(model, ids, False), BOTH: long.bare(model, ids)}
    methods = METHODS[1:]  # rollout of a language model is bench.long's
    return roads | {m: partial(explain, {"input_ids": ids}, method=m, target=0) for m in methods}


def written(name: str, size: str, roads: dict[str, Callable[[], object]], rounds: int, device: str) -> str:
    for road in list(roads.values()) * 2:  # checks that are made once, and recordings
        road()
    times = fastest({name: finished(road, device) for name, road in roads.items()}, rounds)
    ratios = [times[m] / times[FORWARD if m == ROLLOUT else BOTH] if m in times else None for m in METHODS]
    cells = " | ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    return f"| {name} | {size} | {times[FORWARD] * 1e3:.1f} | {times[BOTH] * 1e3:.1f} | {cells} |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--tokens", type=int, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args(argv)
    device = options.device
    print(machine(device))
    print(f"\n| model | size | {FORWARD}, ms | {BOTH}, ms | {' | '.join(METHODS)} |\n|{'---|' * (4 + len(METHODS))}")
    for name in [] if options.tokens else MODELS:
        for batch in options.batches:
            roads = of_batch(name, batch, device, options.compiled)
            print(written(name, f"batch {batch}", roads, options.rounds, device), flush=True)
    for name, made in LANGUAGE.items() if options.tokens else ():
        model: Any = in_half(made, device)
        for tokens in options.tokens:
            print(
                written(name, f"{tokens:,} tokens", of_text(model, tokens, device), options.rounds, device), flush=True
            )
        del model
        if device == "cuda":
            torch.cuda.empty_cache()


def in_half(made: Callable[[], nn.Module], device: str) -> nn.Module:
    """A model whose random weights are made on its device, in bfloat16 on a GPU."""
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        try:
            return made().eval().requires_grad_(False)
        finally:
            torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    main()
