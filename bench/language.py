"""What explaining a language model's answer takes, beside writing it.

    python -m bench.language [--tokens 1000] [--generate 32] [--threads 2] [--folder FOLDER | --random] [--device cuda]

SmolLM2-135M-Instruct (bench/smollm2.py says how to get it; ``--random``: a model of its shape, as fast) writes an
answer to a prompt; every token of it is explained by each method, or the answer as a whole ("span"). Printed: seconds
without the writing itself, their share of the limit (4 × writing plus one forward and backward over the whole text),
and the most memory above what was in use before. "one pass": one forward, and one backward where the method takes
gradients, serve all tokens; otherwise there is one backward per token. Run on an idle machine.

    python -m bench.language --memory attn_lrp

How much memory the process takes for a prompt of 2,000 tokens on a model of 4 layers, 512 wide, on the CPU.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import torch

import whyformer as wf
from bench.smollm2 import load
from tests.support.live_bytes import peak_bytes

METHODS: dict[str, dict[str, Any]] = {
    "attention_rollout": {},
    "raw_attention": {},
    "generic_attention, one pass": {"one_pass": True},
    "generic_attention, span": {"span": True},
    "attn_lrp, span": {"span": True},
}
SENTENCE = "The harbour of Arlen holds forty boats, and in winter the water freezes. "
SHAPE = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192,
}  # fmt: skip


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def model_and_prompt(asked: argparse.Namespace) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    if asked.random:
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
        ids = torch.randint(10, SHAPE["vocab_size"], (1, asked.tokens))
    else:
        model, tokenizer = load(asked.folder)
        ids = tokenizer(SENTENCE * asked.tokens, return_tensors="pt")["input_ids"][:, : asked.tokens]
    return model.to(asked.device), ids.to(asked.device)


def resident() -> float:
    """GiB that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def memory_of_a_long_prompt(method: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1376}
    model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=32000, max_position_embeddings=4096)).eval()
    ids = torch.randint(0, 32000, (1, 2000))
    before = resident()
    took, _ = seconds(lambda: wf.explain(model, {"input_ids": ids}, method=method))
    print(
        f"{method}, 2,000 tokens: {resident():.2f} GiB at most, {before:.2f} before, {took:.1f} s with the first study"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where bench.smollm2 wrote the model")
    parser.add_argument("--random", action="store_true", help="a model of the same shape with random weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", metavar="METHOD", help="of a prompt of 2,000 tokens")
    asked = parser.parse_args()
    if asked.memory:
        memory_of_a_long_prompt(asked.memory)
        return
    torch.set_num_threads(asked.threads)
    model, ids = model_and_prompt(asked)
    how = {"max_new_tokens": asked.generate, "min_new_tokens": asked.generate}

    def written() -> Any:
        with torch.no_grad():
            return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, do_sample=False, **how)

    def forward_backward() -> None:
        leaf = model.get_input_embeddings()(whole).detach().requires_grad_()
        score = model(inputs_embeds=leaf, use_cache=False, logits_to_keep=1).logits[0, -1].max()
        torch.autograd.grad(score, leaf)

    whole = written()
    writing, _ = seconds(written)
    forward_backward()
    both, _ = seconds(forward_backward)
    limit = 4 * writing + both
    print(
        f"{asked.tokens} + {asked.generate} tokens, {asked.device}, {asked.threads} threads, torch {torch.__version__}"
    )
    print(f"writing {writing:.2f} s, forward + backward {both:.2f} s, limit {limit:.2f} s\n")
    explainer = wf.Explainer(model)
    print(f"{'method':30} {'seconds':>8} {'of limit':>9} {'memory':>11}")
    for name, options in METHODS.items():

        def call(method: str = name.split(",")[0], options: dict[str, Any] = options) -> Any:
            return explainer.explain({"input_ids": ids}, method=method, generate=how, progress=False, **options)[0]

        call()  # the study is made once per model
        took = seconds(call)[0] - writing
        print(f"{name:30} {took:8.2f} {took / limit:9.2f} {peak_bytes(call) / 2**30:7.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
