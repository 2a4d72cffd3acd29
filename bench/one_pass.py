"""Newer methods of one pass, written plainly, on the shipped models: which of them earn a place in the library?

    python -m bench.one_pass text --data dev.tsv [--inputs 60]
    python -m bench.one_pass photos --data FOLDER_OR_TAR [--inputs 24] [--methods value_x_gradient] [--only AttCAT]
                                                            [--device cuda]

Judged as in ``bench.frontier``: how far the probability of the predicted class falls without the highest 1, 5, 10, 20
and 50 % of the parts (comprehensiveness), and with these alone (sufficiency). Absent words are [MASK]; absent patches
have the mean colour of their photo. Differences from generic_attention are paired, with 95 % limits by bootstrap.

"balanced" are formulas on LibraGrad's gradients: attention maps, gates and standard deviations are constants, and an
activation passes f(x)/x. Those are the rules of cp_lrp, with attention maps as leaves, so that they have a gradient.
The integrals of Beyond Intuition and of transition attention maps take ``STEPS`` passes on the way from zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import whyformer as wf
from bench.frontier.claims import difference
from bench.frontier.image import shipped
from bench.frontier.subject import Array, Row
from bench.frontier.text import Sentences, read_sentences
from bench.known_truth.scoring import VARIANTS
from bench.timing import machine
from whyformer.capture.lrp.changed_gradients import GradientRules
from whyformer.demo import load_sentiment

STEPS = 8
BASE = "generic_attention"
METHODS = ["value_x_gradient", "grad_sam(reduce=key)", "cp_lrp", "attn_lrp", "random"]  # beside it


# One pass of a BERT or ViT of transformers with written-out attention: everything that the formulas need.


class Maps(TorchFunctionMode):
    """Attention maps as they stand in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax" and out.ndim > 2:
            self.maps.append(out)
        return out


class BalancedMaps(GradientRules):
    """The same under balanced gradients: maps are leaves."""

    def __init__(self) -> None:
        super().__init__(attention_is_constant=True)
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "softmax" and args[0].ndim > 2:
            with torch.no_grad():
                self.maps.append(func(*args, **(kwargs or {})))
            return self.maps[-1].requires_grad_()
        if any(a is m for a in args for m in self.maps[-1:]):  # A·V: all of the gradient goes to V, and to A beside it
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


@dataclass(frozen=True)
class Pass:
    """Of one input: maps (H, N, N) and block inputs (N, E) of every layer, their gradients, and the blocks."""

    attention: list[Tensor]
    attention_grad: list[Tensor]
    hidden: list[Tensor]
    hidden_grad: list[Tensor]
    blocks: list[nn.Module]


def plain(model: Any) -> Any:
    """Attention written out; weights carry no gradient, which the balanced rules take for the input's."""
    model.set_attn_implementation("eager")
    return model.requires_grad_(False)


def one_pass(model: Any, inputs: dict[str, Tensor], index: int, balanced: bool = False) -> Pass:
    blocks = list(model.bert.encoder.layer if hasattr(model, "bert") else model.vit.layers)
    hidden: list[Tensor] = []

    def enters(block: nn.Module, args: Any, kwargs: Any) -> Any:
        first = args[0] if hidden else args[0].detach().requires_grad_()
        hidden.append(first)
        return (first, *args[1:]), kwargs

    hooks = [block.register_forward_pre_hook(enters, with_kwargs=True) for block in blocks]
    mode = BalancedMaps() if balanced else Maps()
    with torch.enable_grad(), mode:
        score = model(**inputs).logits[0, index]
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(score, [*mode.maps, *hidden])
    each = [[t.detach()[0] for t in tensors] for tensors in (mode.maps, gradients[: len(mode.maps)])]
    return Pass(*each, [h.detach()[0] for h in hidden], [g[0] for g in gradients[len(mode.maps) :]], blocks)


def projected(seen: Pass, layer: int) -> tuple[Tensor, Tensor]:
    """(N, E) what the attention of a block reads, and what all its heads would write of each token: x·W_V·W_O."""
    block: Any = seen.blocks[layer]
    if hasattr(block, "layernorm_before"):
        x = block.layernorm_before(seen.hidden[layer])
        return x, F.linear(block.attention.v_proj(x), block.attention.o_proj.weight)
    x = seen.hidden[layer]
    return x, F.linear(block.attention.self.value(x), block.attention.output.dense.weight)


# The formulas: what one pass says of each token. The first row feeds the head.


def chained(layers: Sequence[Tensor], start: Tensor | None = None) -> Tensor:
    """The first row of (I + A_L) ··· (I + A_1) · start."""
    whole = torch.eye(len(layers[0]), device=layers[0].device) if start is None else start
    for layer in layers:
        whole = whole + layer @ whole
    return whole[0]


def products(seen: Pass) -> list[Tensor]:
    return [a * g for a, g in zip(seen.attention, seen.attention_grad, strict=True)]


def cat(seen: Pass) -> list[Tensor]:
    """Class activation of tokens: h · ∂s/∂h, layer by layer."""
    return [(h * g).sum(-1) for h, g in zip(seen.hidden, seen.hidden_grad, strict=True)]


def attcat(seen: Pass) -> Tensor:
    """Qiang et al. 2022: each layer's weighted by the attention that the token gets there."""
    return sum((c * a.mean((0, 1)) for c, a in zip(cat(seen), seen.attention, strict=True)), torch.tensor(0.0))


def token_tm(seen: Pass) -> Tensor:
    """Wu et al. 2024, its rule for attention: columns weighted by how much longer a token gets, and in which way."""
    layers = []
    for number, layer in enumerate(products(seen)):
        x, written = projected(seen, number)
        turned = F.cosine_similarity(x, written, dim=-1).exp()
        layers.append(layer.clamp(min=0).mean(0) * _longer(x, written) * turned / turned.mean())
    return chained(layers, torch.diag(seen.hidden[0].norm(dim=-1)))


def _longer(x: Tensor, written: Tensor) -> Tensor:
    return written.norm(dim=-1) / x.norm(dim=-1)


def bt_token(seen: Pass, last_gradient: Tensor) -> Tensor:
    """Chen et al. 2023, token by token: perceived through all layers, times what the last one is good for."""
    maps = [a.mean(0) * _longer(*projected(seen, n)) for n, a in enumerate(seen.attention)]
    return chained(maps) * last_gradient.clamp(min=0).mean(0)[0]


def bt_head(seen: Pass, last_gradient: Tensor) -> Tensor:
    """The same, heads weighted by their importance."""
    maps = []
    for a, g in zip(seen.attention, seen.attention_grad, strict=True):
        share = (a.transpose(1, 2) @ g).abs().mean((1, 2))
        maps.append((a * (share / share.sum())[:, None, None]).sum(0))
    return chained(maps) * last_gradient.clamp(min=0).mean(0)[0]


def transition(seen: Pass, last_gradient: Tensor) -> Tensor:
    """Yuan et al. 2021: a chain of states from the last row down, times the integrated gradient of the last map."""
    state = seen.attention[-1].mean(0)[0]
    for a in reversed(seen.attention[:-1]):
        state = state @ a.mean(0) + state
    return state * last_gradient.clamp(min=0).mean(0)[0]


Formula = Callable[[Pass], Tensor]
ONE: dict[str, Formula] = {
    "generic attention without its clamp": lambda p: chained([m.mean(0) for m in products(p)]),
    "h × gradient, first block": lambda p: cat(p)[0],
    "h × gradient, all layers (CAT)": lambda p: torch.stack(cat(p)).sum(0),
    "AttCAT": attcat,
}
FORMULAS: dict[str, tuple[Formula, bool]] = {
    **{name: (formula, False) for name, formula in ONE.items()},
    "TokenTM": (token_tm, False),
    "balanced generic attention": (lambda p: chained([m.clamp(min=0).mean(0) for m in products(p)]), True),
    "balanced value × gradient": (lambda p: torch.stack([m.sum((0, 1)) for m in products(p)]).sum(0), True),
    **{f"balanced {name}": (formula, True) for name, formula in ONE.items()},
}
INTEGRALS: dict[str, Callable[[Pass, Tensor], Tensor]] = {
    "Beyond Intuition, tokens": bt_token,
    "Beyond Intuition, heads": bt_head,
    "transition attention maps": transition,
}


def scores_of(model: Any, inputs: dict[str, Tensor], index: int, names: Sequence[str]) -> dict[str, Array]:
    """(N,) scores of every formula for one input, whose only floats are scaled along the integrals' way."""
    passes: dict[bool, Pass] = {}
    scores = {}
    for name in names:
        if name in FORMULAS:
            formula, balanced = FORMULAS[name]
            if balanced not in passes:
                passes[balanced] = one_pass(model, inputs, index, balanced)
            scores[name] = formula(passes[balanced])
    if any(name in INTEGRALS for name in names):
        seen, total = passes.get(False) or one_pass(model, inputs, index), torch.tensor(0.0)
        for share in np.linspace(0, 1, STEPS):
            scaled = {k: v * float(share) if v.is_floating_point() else v for k, v in inputs.items()}
            total = total + one_pass(model, scaled, index).attention_grad[-1] / STEPS
        scores |= {name: formula(seen, total) for name, formula in INTEGRALS.items() if name in names}
    return {name: s.cpu().numpy() for name, s in scores.items()}


# Sentences and photos


def sentences(path: Path, count: int, methods: Sequence[str], names: Sequence[str], device: str) -> list[Row]:
    model, tokenizer = load_sentiment()
    plain(model.to(device))
    judge = Sentences(wf.Explainer(model, tokenizer), read_sentences(path, count, 0))
    rows = [judge.of_method(name, *asked_as(name)) for name in methods]
    collected: dict[str, list[Array]] = {}
    for ids, free, index in zip(judge.ids, judge.free, judge.classes, strict=True):
        vectors = model.get_input_embeddings()(ids[None].to(device)).detach()
        inputs = {"inputs_embeds": vectors, "attention_mask": torch.ones_like(ids, device=device)[None]}
        for name, scores in scores_of(model, inputs, index, names).items():
            collected.setdefault(name, []).append(scores[free])
    return rows + [judge.row(name, scores, *passes_of(name)) for name, scores in collected.items()]


def asked_as(name: str) -> tuple[str, dict[str, Any]]:
    """A registered method by its name, or one of its well-known readings."""
    return VARIANTS.get(name, (name, {}))


def passes_of(name: str) -> tuple[int, int]:
    return (1 + STEPS, 1 + STEPS) if name in INTEGRALS else (1, int(name != "random"))


def photos(path: Path, count: int, methods: Sequence[str], names: Sequence[str], device: str) -> list[Row]:
    judge = shipped("pets", count, path, device)
    model = plain(judge.model)
    rows = [judge.of_method(name, *asked_as(name)) for name in methods]
    collected: dict[str, list[Array]] = {}
    for pixels, index in zip(judge.pixels, judge.classes, strict=True):
        for name, scores in scores_of(model, {"pixel_values": pixels}, index, names).items():
            collected.setdefault(name, []).append(scores[-(judge.side**2) :])
    return rows + [judge.row(name, scores, *passes_of(name)) for name, scores in collected.items()]


def table(rows: Sequence[Row]) -> str:
    """By comprehensiveness; how much better than generic attention, above zero in both."""
    base = next(row for row in rows if row.name == BASE)
    lines = [
        "| scores | forwards + backwards | comprehensiveness ↑ | sufficiency ↓ | comprehensiveness, more than "
        f"{BASE} | sufficiency, better than {BASE} |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: -r.values_IM[:, 0].mean()):
        means = row.values_IM.mean(0)
        limits = [f"{m:+.3f} ({a:+.3f} to {b:+.3f})" for m, a, b in zip(*difference(row, base), strict=True)]
        passes = f"{row.forwards:g} + {row.backwards:g}"
        lines.append(f"| {row.name} | {passes} | {means[0]:.3f} | {means[1]:.3f} | {limits[0]} | {limits[1]} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("text", "photos"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--methods", nargs="*", choices=["auto", *wf.list_methods(), *VARIANTS], default=METHODS)
    every = [*FORMULAS, *INTEGRALS]
    parser.add_argument("--only", nargs="*", choices=every, default=every, help="formulas; all where none is named")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    print(machine(options.device))
    methods = [BASE, *options.methods]
    if options.kind == "text":
        rows = sentences(options.data, options.inputs or 60, methods, options.only, options.device)
    else:
        rows = photos(options.data, options.inputs or 24, methods, options.only, options.device)
    print(f"{len(rows[0].values_IM)} inputs\n{table(rows)}", flush=True)
    return 0


if __name__ == "__main__":
    main()
