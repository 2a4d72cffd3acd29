"""Value zeroing against running each block once per token, on a model of BERT-base's size.

    python -m bench.value_zeroing [--layers 12] [--tokens 128] [--threads 1] [--device cpu]

Prints seconds of each road (of the processor; on a GPU, of the clock), their ratio beside the bound that counting
multiplications gives, and how far the maps are apart. The roads take turns layer by layer, and as all layers are the
same work, the fastest layer of each is compared too: it is the one that the rest of the machine disturbed least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bench.timing import machine
from whyformer.capture.blocks.remainder import Finish
from whyformer.loan.borrow import borrowed
from whyformer.methods.value_contributions import cosine
from whyformer.run import Run
from whyformer.study import study_of
from whyformer.verbs import Explainer

ROADS = {
    "rerun": "each block once per token",
    "finish": "subtract and finish the block",
    "folded": "the same, first MLP matrix folded in",
}


def bert(layers: int) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(num_hidden_layers=layers, num_labels=2)).eval()


@torch.no_grad()
def block_inputs(model: Any, inputs: dict[str, Tensor]) -> list[tuple[tuple[Any, ...], dict[str, Any], Tensor]]:
    """What each block is called with, and what it returns."""
    found: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = []

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        found.append((args, kwargs, out if isinstance(out, Tensor) else out[0]))

    hooks = [block.register_forward_hook(keep, with_kwargs=True) for block in model.bert.encoder.layer]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    return found


Columns = Iterator[tuple[list[int], Tensor]]


def rerun(block: Any, call: tuple[tuple[Any, ...], dict[str, Any], Tensor]) -> Columns:
    """1 - cos between a block's output and what it gives with a token's value zeroed, token by token."""
    args, kwargs, original = call
    for token in range(original.shape[1]):

        def zeroed(module: nn.Module, args: Any, out: Tensor, token: int = token) -> Tensor:
            changed = out.clone()
            changed[:, token] = 0
            return changed

        hook = block.attention.self.value.register_forward_hook(zeroed)
        out = block(*args, **kwargs)
        hook.remove()
        yield [token], cosine(out if isinstance(out, Tensor) else out[0], original)[0][:, None]


def finished(site: Any, block: Any, fold: bool) -> Columns:
    """The same by subtracting and finishing the block; what is done once per block is part of the first step."""
    finish = Finish(site, block, fold=fold)
    for tokens, changed, original in finish.without_each(list(range(site.attention_BHQK.shape[-1]))):
        yield tokens, cosine(changed, original)[:, 0].T


def flops(width: int, mlp: int, tokens: int, heads: int) -> dict[str, float]:
    """Multiplications per (position, zeroed token) of one block."""
    attention = 4 * width * width + 2 * tokens * width
    return {
        "rerun": attention + 2 * width * mlp,
        "finish": heads * width + 2 * width * mlp,
        # once per block: W_O times the folded matrix, once per token: its head vectors
        "folded": heads * width + heads * mlp + width * mlp + width * mlp * (width + tokens) / tokens**2,
    }


def now(device: torch.device) -> float:
    """Seconds of this process; on a GPU of the clock, once it has done what it was told to."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    model = bert(options.layers).to(options.device)
    ids = torch.randint(1000, 20000, (1, options.tokens), generator=torch.Generator().manual_seed(0)).to(options.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    explainer = Explainer(model)
    modality, batch, _ = explainer.prepare(inputs)
    with borrowed(model), torch.no_grad():
        run = Run(modality, batch, study_of(modality, batch)[0])
        seconds: dict[str, list[float]] = {name: [] for name in ROADS}
        worst = 0.0
        calls = block_inputs(model, inputs)
        for module, call, (site, block) in zip(model.bert.encoder.layer, calls, run.anatomy().layers, strict=True):
            maps = {name: torch.zeros(options.tokens, options.tokens, device=ids.device) for name in ROADS}
            roads = {"rerun": rerun(module, call), "finish": finished(site, block, False)}
            roads["folded"] = finished(site, block, True)
            for name, road in roads.items():
                started = now(ids.device)
                for tokens, columns in road:
                    maps[name][:, tokens] = columns
                seconds[name].append(now(ids.device) - started)
            worst = max(worst, *(float((m - maps["rerun"]).abs().max() / maps["rerun"].max()) for m in maps.values()))
    config = model.config
    bound = flops(config.hidden_size, config.intermediate_size, options.tokens, config.num_attention_heads)
    print(f"value zeroing, {options.layers} layers, {options.tokens} tokens, width {config.hidden_size}; {machine()}")
    for name, text in ROADS.items():
        took, limit = seconds[name], bound["rerun"] / bound[name]
        ratio, fastest = sum(seconds["rerun"]) / sum(took), min(seconds["rerun"]) / min(took)
        figures = f"{ratio:4.2f} ×  fastest layer {fastest:4.2f} ×  FLOP bound {limit:4.2f} ×"
        print(f"  {text:38s} {sum(took):6.2f} s  {figures}")
    print(f"  largest difference between the maps, relative: {worst:.1e}")


if __name__ == "__main__":
    main()
