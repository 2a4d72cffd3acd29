"""Retrained attention on two tasks: one that needs attention by construction, and one that does not.

    python -m bench.retrained_attention [--examples 400] [--epochs 8]

Ten words each, the first of which says nothing. "marked": one word is a marker, and the class is the parity of the word
behind it, so that a model has to look there. "counted": the class is whether most words are odd, which a mean over all
words tells as well. A transformer of torch.nn (two layers, two heads, 32 wide) learns each task, and
wf.retrained_attention trains its twins.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

import whyformer as wf

WORDS, LENGTH, MARKER = 24, 10, 1


class Classifier(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        block = {"nhead": 2, "dim_feedforward": 2 * width, "dropout": 0.0, "batch_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, **block) for _ in range(2))  # type: ignore[arg-type]
        self.decide = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.words(ids) + self.places(torch.arange(LENGTH, device=ids.device))
        for block in self.blocks:
            states = block(states)
        logits: Tensor = self.decide(states[:, 0])
        return logits


def task(name: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, WORDS, (count, LENGTH), generator=generator)
    ids[:, 0] = 2
    if name == "counted":
        return ids, ((ids[:, 1:] % 2).sum(1) > LENGTH // 2 - 1).long()
    place = torch.randint(1, LENGTH - 1, (count,), generator=generator)
    rows = torch.arange(count)
    ids[rows, place] = MARKER
    return ids, ids[rows, place + 1] % 2


def trained(name: str, seed: int, steps: int = 800) -> Classifier:
    torch.manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    ids, labels = task(name, 2000, seed)
    for _ in range(steps):
        rows = torch.randint(0, len(ids), (64,))
        loss = nn.functional.cross_entropy(model(ids[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=400, help="for training the twins; 200 more for validation")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in ("marked", "counted"):
        model = trained(name, arguments.seed)
        inputs, labels = task(name, arguments.examples, seed=1000 + arguments.seed)
        validation = task(name, 200, seed=2000 + arguments.seed)
        how = {"epochs": arguments.epochs, "lr": 1e-3, "batch_size": 32, "seed": arguments.seed}
        result = wf.retrained_attention(model, inputs, labels, validation=validation, **how)
        print(f"\n| {name} | accuracy | 95 % limits | TVD of the output | JSD of attention |\n|---|---|---|---|---|")
        for m in result.models:
            label = m.name if math.isnan(m.weight) else f"{m.name}, λ = {m.weight:g}"
            distances = " | ".join("" if math.isnan(v) else f"{v:.3f}" for v in (m.tvd, m.jsd))
            print(f"| {label} | {m.accuracy:.3f} | {m.low:.3f} – {m.high:.3f} | {distances} |")
        print(f"\n{result.cost.seconds:.0f} s, {result.cost.forwards:.0f} forwards per example", flush=True)


if __name__ == "__main__":
    main()
