"""Integrated gradients against its own bound, steps × (forward + backward to activations), and against Captum.

    python -m bench.integrated_gradients [--steps 50] [--rounds 5]

The bound is the same number of points in full batches, differentiated with respect to the word embeddings (pixels) and
nothing else; weights are frozen. Captum runs where it is installed, with the same baseline, rule, steps and batch, and
with its convergence delta, since ours reports its error, too. Ratios of CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import whyformer as wf
from bench.timing import machine, ratios

BATCH = 16


def text() -> tuple[Any, dict[str, Tensor]]:
    """BERT of the size of MiniLM: 6 layers, width 384; 64 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    ids = torch.randint(1000, 20000, (1, 64), generator=torch.Generator().manual_seed(0))
    return BertForSequenceClassification(config).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def image() -> tuple[Any, dict[str, Tensor]]:
    """The shipped model of pets on a drawn cat."""
    from whyformer.demo import load_pets
    from whyformer.demo.pictures import face

    model, processor = load_pets()
    return model, dict(processor(images=face("cat"), return_tensors="pt"))


def start_and_end(model: Any, x: dict[str, Tensor]) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Baseline, input, and the logit as a function of what lies between them."""
    if "pixel_values" in x:
        end = x["pixel_values"]
        return torch.zeros_like(end), end, lambda pixels: model(pixel_values=pixels).logits[:, 0]
    table = model.get_input_embeddings()
    with torch.no_grad():
        end = table(x["input_ids"])
        start = table(torch.full_like(x["input_ids"], model.config.pad_token_id))
    mask = x["attention_mask"]
    return start, end, lambda e: model(inputs_embeds=e, attention_mask=mask.expand(len(e), -1)).logits[:, 0]


def bound(model: Any, x: dict[str, Tensor], steps: int) -> None:
    start, end, score = start_and_end(model, x)
    model.requires_grad_(False)
    times = torch.linspace(0, 1, steps).split(BATCH)
    for part in times:
        points = torch.lerp(start, end, part.view(-1, *[1] * (end.ndim - 1))).requires_grad_()
        torch.autograd.grad(score(points).sum(), points)
    model.requires_grad_(True)


def captum(model: Any, x: dict[str, Tensor], steps: int) -> Callable[[], Tensor] | None:
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        return None
    start, end, score = start_and_end(model, x)
    method = IntegratedGradients(score)
    how = {"n_steps": steps, "method": "gausslegendre", "internal_batch_size": BATCH}
    # With its convergence delta, since ours reports its own error, too.
    return lambda: method.attribute(end, baselines=start, return_convergence_delta=True, **how)[0]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    print(machine())
    for name, build in (("text", text), ("image", image)):
        model, x = build()
        explainer = wf.Explainer(model)
        how = {"method": "integrated_gradients", "target": 0, "steps": options.steps, "batch_size": BATCH}

        def ours(explainer: wf.Explainer = explainer, x: Any = x, how: Any = how) -> Any:
            return explainer.explain(x, **how)

        contenders: dict[str, Callable[[], object]] = {
            "ours": ours,
            "bound": lambda model=model, x=x: bound(model, x, options.steps),
        }
        theirs = captum(model, x, options.steps)
        if theirs is not None:
            contenders["captum"] = theirs
        found = ratios(contenders, rounds=options.rounds, clock=time.process_time)
        line = f"{name:5s} {options.steps} steps: ours / bound {found['ours', 'bound']:.3f}"
        if theirs is None:
            print(line + "; Captum is not installed", flush=True)
            continue
        apart = float((torch.from_numpy(ours()[0].detail) - theirs().detach()[0]).abs().max())
        size = float(theirs().detach().abs().max())
        print(
            f"{line}, captum / bound {found['captum', 'bound']:.3f}, ours / captum {found['ours', 'captum']:.3f}; "
            f"largest difference {apart / size:.1e} of the largest value",
            flush=True,
        )


if __name__ == "__main__":
    main()
