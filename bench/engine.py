"""What capture costs: rollout against one forward, generic attention against forward + backward to activations.

All run in turn, round by round, and the fastest round of each counts.

Beside them the usual recipe: eager attention, ``output_attentions=True``, ``retain_grad`` on every map, full backward.
``python -m bench.engine [--device cuda] [--batches 1 8]`` prints the table;
``python -m bench.engine MODEL BATCH CONTENDER`` one peak of memory on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import whyformer as wf
from bench.timing import fastest, finished, growth, machine, peak_megabytes

TOKENS = 128


def bert(attention: str) -> tuple[nn.Module, Callable[[int], dict[str, torch.Tensor]]]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification._from_config(BertConfig(), attn_implementation=attention).eval()
    return model, lambda batch: {
        "input_ids": torch.randint(1000, 20000, (batch, TOKENS), generator=torch.Generator().manual_seed(0))
    }


def vit(attention: str) -> tuple[nn.Module, Callable[[int], dict[str, torch.Tensor]]]:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification._from_config(ViTConfig(), attn_implementation=attention).eval()
    return model, lambda batch: {
        "pixel_values": torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    }


MODELS = {"bert": bert, "vit": vit}


def forward(model: nn.Module, x: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        model(**x)


def backward_to_activations(model: nn.Module, x: dict[str, torch.Tensor], freeze: bool = True) -> None:
    """The bound: no weight gradients, the input of the first block as the leaf; freeze=False: they are frozen."""
    if freeze:
        model.requires_grad_(False)
    leaf: list[torch.Tensor] = []

    def cut(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        leaf.append(out.detach().requires_grad_())
        return leaf[0]

    embeddings = next(m for n, m in model.named_modules() if n.endswith("embeddings"))
    handle = embeddings.register_forward_hook(cut)
    try:
        score = model(**x).logits[:, 0].sum()
        torch.autograd.grad(score, leaf[0])
    finally:
        handle.remove()
        if freeze:
            model.requires_grad_(True)


def usual_recipe(model: nn.Module, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """Chefer et al.'s loop as people write it on transformers models."""
    model.zero_grad()
    out = model(**x, output_attentions=True)
    for attention in out.attentions:
        attention.retain_grad()
    out.logits[:, 0].sum().backward()
    relevance = torch.eye(out.attentions[0].shape[-1], device=out.logits.device).expand(len(out.logits), -1, -1)
    for attention in out.attentions:
        layer = (attention.grad * attention.detach()).clamp(min=0).mean(1)
        relevance = relevance + layer @ relevance
    model.zero_grad()
    return relevance.cpu()


def contenders(name: str, batch: int, device: str = "cpu") -> dict[str, Callable[[], object]]:
    model, inputs = MODELS[name]("sdpa")
    eager, _ = MODELS[name]("eager")
    model, eager = model.to(device), eager.to(device)
    x = {k: v.to(device) for k, v in inputs(batch).items()}
    explainer = wf.Explainer(model)
    roads: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(model, x),
        "rollout": lambda: explainer.explain(x, method="attention_rollout", target=0),
        "forward + backward to activations": lambda: backward_to_activations(model, x),
        "generic_attention": lambda: explainer.explain(x, method="generic_attention", target=0),
        "usual recipe": lambda: usual_recipe(eager, x),
    }
    return {name: finished(road, device) for name, road in roads.items()}


def peaks(name: str, batch: int, roads: dict[str, Callable[[], object]], device: str) -> list[float]:
    """Megabytes of each road: on the CPU in a process of its own, on a GPU as its allocator counts them."""
    if device == "cpu":
        return [peak_megabytes("bench.engine", name, str(batch), who) for who in PEAKS]
    found = []
    for who in PEAKS:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        roads[who]()
        found.append((torch.cuda.max_memory_allocated() - before) / 2**20)
    return found


PEAKS = ("forward", "rollout", "generic_attention", "usual recipe")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    options = parser.parse_args(argv)
    print(f"{machine()}, {options.device}")
    print(
        "model batch | forward ms | rollout / forward | generic / (fwd+bwd) | recipe / (fwd+bwd) | "
        "peak MB: forward rollout generic recipe"
    )
    for name in MODELS:
        for batch in options.batches:
            roads = contenders(name, batch, options.device)
            short = batch < 64 and options.device != "cpu"  # a matter of milliseconds
            took = fastest(roads, rounds=25 if batch == 1 or short else 9, before=int(short))
            bound = took["forward + backward to activations"]
            print(
                f"{name:5s} {batch:5d} | {took['forward'] * 1e3:10.1f} | {took['rollout'] / took['forward']:17.2f} | "
                f"{took['generic_attention'] / bound:19.2f} | {took['usual recipe'] / bound:18.2f} | "
                + " ".join(f"{p:7.0f}" for p in peaks(name, batch, roads, options.device)),
                flush=True,
            )


def one_peak(name: str, batch: int, who: str) -> None:
    """Peak of one contender alone, above the loaded model."""
    model, inputs = MODELS[name]("eager" if who == "usual recipe" else "sdpa")
    x = inputs(batch)
    run = {
        "forward": lambda: forward(model, x),
        "rollout": lambda: wf.explain(model, x, method="attention_rollout", target=0),
        "generic_attention": lambda: wf.explain(model, x, method="generic_attention", target=0),
        "usual recipe": lambda: usual_recipe(model, x),
    }[who]
    run()  # what is learned once per model is not part of it
    print(growth(run))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        one_peak(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
