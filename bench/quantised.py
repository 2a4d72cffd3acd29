"""Explanations of quantised models against the same models with dequantised weights.

    python -m bench.quantised [--device cuda] [--dtype float16] [--kinds nf4 int8] [--methods attn_lrp]

Loads the shipped sentiment model as transformers quantises it, and prints the smallest cosine over the sentences
between the scores of both, by method; or why a method is refused. Needs bitsandbytes and torchao.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import whyformer as wf
from bench.timing import machine
from tests.support.quantised import KINDS, cosine, dequantised, loaded, quiet

METHODS = (
    "attention_rollout", "generic_attention", "grad_sam", "attn_lrp", "cp_lrp", "transformer_attribution",
    "input_x_gradient", "integrated_gradients", "value_norms", "alti", "decompx", "value_zeroing", "occlusion", "shap",
)  # fmt: skip


def agreement(kind: str, method: str, model: torch.nn.Module, twin: torch.nn.Module) -> str:
    _, tokenizer = wf.demo.load_sentiment()
    sentences = list(wf.demo.SENTENCES)
    try:
        ours, theirs = (
            wf.explain(m, sentences, processor=tokenizer, method=method, target=1, batch_size=1) for m in (model, twin)
        )
    except wf.errors.WhyformerError as error:
        return f"refused: {' '.join(str(error).split())[:90]}"
    return f"{min(cosine(a.scores, b.scores) for a, b in zip(ours, theirs, strict=True)):.6f}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    options = parser.parse_args(argv)
    dtype = getattr(torch, options.dtype)
    print(machine(), options.device, options.dtype)
    for kind in options.kinds:
        try:
            model = loaded(kind, options.device, dtype)
        except Exception as error:  # a kind that this device or this version of a library does not have
            print(f"{kind:22s} not loaded: {type(error).__name__}: {' '.join(str(error).split())[:90]}")
            continue
        twin = dequantised(model, dtype)
        for method in options.methods:
            with quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = agreement(kind, method, model, twin)
            print(f"{kind:22s} {method:24s} {found}", flush=True)


if __name__ == "__main__":
    main()
