"""ViT-CX against its own masked pictures in full batches, on the shipped model of pets.

python -m bench.vit_cx [--rounds 5]
"""

from __future__ import annotations

import argparse
import time

import torch

import whyformer as wf
from bench.timing import machine, ratios
from whyformer.demo import load_pets
from whyformer.demo.pictures import face

BATCH = 16


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    print(machine())
    model, processor = load_pets()
    x = dict(processor(images=face("cat"), return_tensors="pt"))
    explainer = wf.Explainer(model)
    (found,) = explainer.explain(x, method="vit_cx", batch_size=BATCH)
    pictures = int(found.cost.forwards)
    stack = x["pixel_values"].expand(pictures, -1, -1, -1).contiguous()

    @torch.no_grad()
    def forwards() -> None:
        for part in stack.split(BATCH):
            model(pixel_values=part)

    ratio = ratios(
        {"ours": lambda: explainer.explain(x, method="vit_cx", batch_size=BATCH), "forwards": forwards},
        rounds=options.rounds,
        clock=time.process_time,
    )["ours", "forwards"]
    print(f"vit_cx, {found.checks['masks']:.0f} masks: {ratio:.3f} × its {pictures} forwards in full batches")


if __name__ == "__main__":
    main()
