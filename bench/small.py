"""What a short input costs: the default on one sentence, beside as many plain forwards in one batch.

    python -m bench.small [--device cuda] [--rounds 40]

Each is called twice in a row and timed the second time, as in a loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import whyformer as wf
from bench.timing import fastest, machine
from whyformer.demo import load_sentiment

SENTENCE = "a gorgeous , witty and seductive film that never lets its dull plot spoil the fun , and I like it very much"


def default_table(device: str, rounds: int, layers: Sequence[int] = (6, 12)) -> None:
    """The shipped model, and BERT of width 768."""
    from transformers import BertConfig, BertForSequenceClassification

    shipped, tokenizer = load_sentiment()
    models = {"shipped": shipped}
    for number in layers:
        config = BertConfig(vocab_size=shipped.config.vocab_size, num_hidden_layers=number)
        models[f"BERT, {number} layers"] = BertForSequenceClassification(config)
    print(f"{machine(device)}\n\n| model | forwards | bare batch, ms | default, ms | ratio |\n|---|---|---|---|---|")
    for name, model in models.items():
        explainer = wf.Explainer(model.to(device).eval(), tokenizer)
        forwards = round(explainer.explain(SENTENCE).cost.forwards)
        encoded = tokenizer([SENTENCE] * forwards, return_tensors="pt").to(device)

        @torch.no_grad()
        def bare(model: nn.Module = model, encoded: Any = encoded) -> object:
            return model(**encoded).logits.cpu()

        def explained(explainer: wf.Explainer = explainer) -> object:
            return explainer.explain(SENTENCE)

        took = fastest({"bare": bare, "default": explained}, rounds, before=1)
        ratio = took["default"] / took["bare"]
        print(f"| {name} | {forwards} | {1e3 * took['bare']:.2f} | {1e3 * took['default']:.2f} | {ratio:.2f} |")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args(argv)
    default_table(options.device, options.rounds)


if __name__ == "__main__":
    main()
