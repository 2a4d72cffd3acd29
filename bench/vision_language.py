"""Does an explanation of a vision-language model point at the object that was asked about?

    python -m bench.vision_language [--seed 1] [method …]

Trains a small LLaVA on pictures of coloured shapes (training/shapes.py), then explains its right answers to new
pictures: is the highest-scored piece of the image the one that holds the object?
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import whyformer as wf
from training.shapes import SIDE, encoded, question, train

METHODS = ("attn_lrp", "cp_lrp", "generic_attention", "occlusion", "two_ended", "value_x_gradient", "input_x_gradient",
           "integrated_gradients", "attention_rollout", "raw_attention", "random")  # fmt: skip


def pointing(net: nn.Module, reads: Any, count: int, methods: Sequence[str | None]) -> Iterator[tuple[str, float]]:
    """Yield, by method, how often the highest-scored piece of the image holds the object that was asked about."""
    generator = np.random.default_rng(1)
    questions = [question(generator) for _ in range(count)]
    inputs, answers = encoded(questions, reads.image_processor)
    with torch.no_grad():
        right = (net(**inputs, logits_to_keep=1).logits[:, -1].argmax(1) == answers).tolist()
    asked = [q for q, is_right in zip(questions, right, strict=True) if is_right]
    raw: list[Any] = [(q.picture, q.text) for q in asked]
    explainer = wf.Explainer(net, reads)
    yield "answered right", sum(right) / count
    for method in methods:
        found = explainer.explain(raw, method=method, progress=False)
        hits = [int(e.heatmap().argmax()) == q.cell for e, q in zip(found, asked, strict=True)]
        yield f"default ({found[0].method})" if method is None else method, sum(hits) / max(len(hits), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the training: weights and pictures")
    parser.add_argument("methods", nargs="*", help="beside the default; all if none is given")
    arguments = parser.parse_args()
    net, reads = train(steps=arguments.steps, seed=arguments.seed, verbose=True)
    print(f"\n{arguments.questions} questions; chance: {1 / SIDE**2:.1%}")
    for name, share in pointing(net, reads, arguments.questions, (None, *(arguments.methods or METHODS))):
        print(f"{name:24} {share:6.1%}", flush=True)


if __name__ == "__main__":
    main()
