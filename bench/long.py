"""Long inputs: time and peak memory of explanations beside the model's own passes.

    python -m bench.long                                  CPU, BERT-base-shaped, 4,096 tokens
    python -m bench.long --device cuda --lengths 8192 32768 65536 131072    a Llama-shaped model of 1 B parameters

"bare" is one forward and one backward pass down to the word embeddings, weights frozen, of the last token's logit;
"recipe" is what people write: eager attention with output_attentions, and gradients at all maps. Memory is what was
taken above the weights. Every row is the fastest of a few calls after a first one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import whyformer as wf
from tests.support.live_bytes import peak_bytes
from whyformer.loan.spread import Peak

ROWS = ["bare", "generic", "rollout", "forward", "attn_lrp", "full", "recipe"]


def llama(layers: int = 16, width: int = 2048, vocabulary: int = 128_256, longest: int = 1 << 18) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 256,
        vocab_size=vocabulary,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def qwen3() -> nn.Module:
    """Qwen3-8B by its configuration."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151_936}
    return Qwen3ForCausalLM(Qwen3Config(**shape, max_position_embeddings=40_960, attn_implementation="sdpa"))


def bert(longest: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(max_position_embeddings=longest, attn_implementation="sdpa")
    return BertForSequenceClassification(config)


def bare(model: nn.Module, ids: Tensor, backward: bool = True) -> Callable[[], Any]:
    """The model's own passes."""
    extra = {"logits_to_keep": 1, "use_cache": False} if hasattr(model, "lm_head") else {}

    def run() -> Any:
        with torch.set_grad_enabled(backward):
            vectors = model.get_input_embeddings()(ids).detach().requires_grad_(backward)  # type: ignore[operator]
            logits = model(inputs_embeds=vectors, **extra).logits
            logits = logits[:, -1] if logits.ndim == 3 else logits
            return torch.autograd.grad(logits.max(), vectors) if backward else logits

    return run


def recipe(model: nn.Module, ids: Tensor) -> Callable[[], Any]:
    """Generic attention as its authors' notebooks have it, on a model in eager mode."""

    def run() -> Any:
        out = model(
            input_ids=ids, output_attentions=True, **({"use_cache": False} if hasattr(model, "lm_head") else {})
        )
        logits = out.logits[:, -1] if out.logits.ndim == 3 else out.logits
        grads = torch.autograd.grad(logits.max(), out.attentions)
        size = ids.shape[1]
        relevance = torch.eye(size, device=ids.device)
        for attention, grad in zip(out.attentions, grads, strict=True):
            layer = (attention * grad).clamp(min=0).mean(1)[0].float()
            relevance = relevance + layer @ relevance
        return relevance[0]

    return run


def measured(run: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float] | str:
    """Seconds and GiB, or why not."""
    try:
        run()
        seconds = []
        for _ in range(repeats):
            _wait(device)
            started = time.perf_counter()
            run()
            _wait(device)
            seconds.append(time.perf_counter() - started)
        if device.type == "cuda":
            peak = Peak(device)
            run()
            _wait(device)
            taken = peak.bytes
        else:
            taken = peak_bytes(run)
        return min(seconds), taken / 2**30
    except torch.OutOfMemoryError:
        return "out of memory"
    except wf.errors.NotOffered as refusal:
        return f"refused: {str(refusal)[:90]}"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", choices=("auto", "bert", "llama"), default="auto")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rows", nargs="+", default=["bare", "generic", "rollout", "forward", "attn_lrp", "full", "recipe"]
    )
    asked = parser.parse_args()
    device = torch.device(asked.device)
    kind = ("llama" if device.type == "cuda" else "bert") if asked.model == "auto" else asked.model
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        torch.set_default_dtype(dtype)
        model = llama(asked.layers, asked.width) if kind == "llama" else bert(max(asked.lengths))
        torch.set_default_dtype(torch.float32)
    model.eval().requires_grad_(False)
    weights = sum(p.numel() for p in model.parameters())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{kind}, {weights / 1e9:.2f} B parameters, {dtype}, torch {torch.__version__}, {name}")
    explainer = wf.Explainer(model)
    for length in asked.lengths:
        ids = torch.randint(10, 20_000, (1, length), device=device)
        inputs = {"input_ids": ids}

        def explained(method: str, memory: str, inputs: Any = inputs) -> Callable[[], Any]:
            return lambda: explainer.explain(inputs, method=method, memory=memory)

        rows: dict[str, Callable[[], Any]] = {
            "bare": bare(model, ids),
            "forward": bare(model, ids, backward=False),
            "generic": explained("generic_attention", "fold"),
            "rollout": explained("attention_rollout", "fold"),
            "attn_lrp": explained("attn_lrp", "auto"),
            "full": explained("generic_attention", "full"),
        }
        print(f"\n{length:,} tokens" + " " * 12 + "seconds    ÷ bare     GiB    ÷ bare")
        base: tuple[float, float] | None = None
        for row in asked.rows:
            if row == "recipe":
                if length > 8192:
                    continue
                model.set_attn_implementation("eager")  # type: ignore[operator]
                result = measured(_with_gradients(model, recipe(model, ids)), device, 1)
                model.set_attn_implementation("sdpa")  # type: ignore[operator]
            else:
                result = measured(rows[row], device, asked.repeats)
            if isinstance(result, str):
                print(f"  {row:<20} {result}")
                continue
            base = result if row == "bare" else base
            ratio = "" if base is None else f"{result[0] / base[0]:8.2f}"
            space = "" if base is None else f"{result[1] / base[1]:8.2f}"
            print(f"  {row:<20} {result[0]:9.3f} {ratio} {result[1]:9.2f} {space}", flush=True)


def _with_gradients(model: nn.Module, run: Callable[[], Any]) -> Callable[[], Any]:
    """Maps have gradients where weights have: the recipe leaves them as they came."""

    def again() -> Any:
        model.requires_grad_(True)
        try:
            return run()
        finally:
            model.requires_grad_(False)

    return again


if __name__ == "__main__":
    main()
