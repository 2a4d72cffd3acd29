"""What relevance rules cost: transformer attribution and AttnLRP against generic attention, on 6 layers of width 384.

All run in turn, round by round, and the fastest round of each counts.
``python -m bench.lrp [--batches 1 8] [--rounds 9]`` prints the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import whyformer as wf
from bench.timing import fastest, machine

TOKENS = 128
METHODS = ("generic_attention", "transformer_attribution", "attn_lrp")
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
Inputs = Callable[[int], dict[str, torch.Tensor]]


def bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SIZES)).eval()
    return model, lambda batch: {
        "input_ids": torch.randint(1000, 20000, (batch, TOKENS), generator=torch.Generator().manual_seed(0))
    }


def vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZES)).eval()  # 196 patches
    return model, lambda batch: {
        "pixel_values": torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    print(machine())
    print("model batch | generic_attention ms | transformer_attribution / generic | attn_lrp / generic")
    for name, made in {"bert": bert, "vit": vit}.items():
        model, inputs = made()
        explain = wf.Explainer(model).explain
        for batch in options.batches:
            roads = {m: partial(explain, inputs(batch), method=m, target=0) for m in METHODS}
            generic, attribution, attn_lrp = fastest(roads, options.rounds).values()
            print(
                f"{name:5s} {batch:5d} | {generic * 1e3:20.1f} | {attribution / generic:33.2f} | "
                f"{attn_lrp / generic:18.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
