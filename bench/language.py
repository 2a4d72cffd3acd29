"""What explaining a language model's answer takes, beside writing it.

    python -m bench.language [--tokens 1000] [--generate 32] [--threads 2]

SmolLM2-135M-Instruct (bench/smollm2.py says how to get it) writes an answer to a prompt; then every token of it is
explained, by each method. Printed: seconds, how many times the limit (4 × writing plus one forward and backward over
the whole text), and the most memory above what was in use before. "one pass": the map of one forward (and one backward
with ``one_pass=True``) serves all tokens; the others take one backward per token. Run on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import whyformer as wf
from bench.smollm2 import load

METHODS: dict[str, dict[str, Any]] = {
    "attention_rollout": {},
    "raw_attention": {},
    "generic_attention (one pass)": {"one_pass": True},
    "attention_x_gradient (one pass)": {"one_pass": True},
    "attn_lrp (span)": {"span": True},
    "generic_attention (span)": {"span": True},
}
SENTENCE = "The harbour of Arlen holds forty boats, and in winter the water freezes. "


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model, tokenizer = load()
    text = SENTENCE
    while len(tokenizer(text)["input_ids"]) < asked.tokens:
        text += SENTENCE
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : asked.tokens]
    prompt = tokenizer.decode(ids[0])
    how = {"max_new_tokens": asked.generate, "min_new_tokens": asked.generate, "do_sample": False}

    def written() -> Any:
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **how)

    def forward_backward() -> None:
        leaf = model.get_input_embeddings()(whole).detach().requires_grad_()
        model(inputs_embeds=leaf, use_cache=False, logits_to_keep=1).logits[0, -1].max().backward()

    written()
    writing, whole = seconds(written)
    forward_backward()
    both, _ = seconds(forward_backward)
    limit = 4 * writing + both
    print(f"{asked.tokens} + {asked.generate} tokens, {asked.threads} threads, torch {torch.__version__}")
    print(f"writing {writing:.1f} s, forward + backward {both:.1f} s, limit {limit:.1f} s\n")
    answer = tokenizer.decode(whole[0, asked.tokens :])
    explainer = wf.Explainer(model, tokenizer)
    print(f"{'method':32} {'seconds':>8} {'of limit':>9} {'memory':>10}")
    for name, options in METHODS.items():
        method = name.split(" ")[0]

        def call(method: str = method, options: dict[str, Any] = options) -> Any:
            return explainer.explain((prompt, answer), method=method, progress=False, **options)

        call()  # the study is made once per model
        took, said = seconds(call)
        first = said if isinstance(said, wf.Explanation) else said[0]
        print(f"{name:32} {took:8.1f} {took / limit:9.2f} {first.cost.peak_bytes / 2**30:7.2f} GiB")


if __name__ == "__main__":
    main()
