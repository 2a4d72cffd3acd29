"""Does another device say what the CPU says? Every method on every tiny test model, and the larger verbs.

    python -m bench.device_agreement [--device cuda] [--models bert vit] [--methods occlusion]

Prints per method on how many models it ran, how many refused it (on both devices alike), the largest difference of
scores relative to the largest score, and where; then whatever raised on one device only.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from PIL import Image

import whyformer as wf
from bench.timing import machine
from tests.models import CASES, UNUSUAL, Case
from whyformer.demo import SENTENCES, load_adult, load_sentiment, load_textures
from whyformer.demo.census import adult_rows
from whyformer.demo.pictures import picture, swatch
from whyformer.errors import WhyformerError

QUICK: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 5},
    "smooth_grad": {"samples": 3},
    "sequential_gradients": {"steps": 5},
    "attn_lrp(maskings=3)": {"method": "attn_lrp", "maskings": 3},
    "value_x_gradient(maskings=3)": {"method": "value_x_gradient", "maskings": 3},
}
FAR = 1e-4  # said of each model that is further apart than that
TEXTS = ["Not bad at all, surprisingly funny.", "A dull and endless film."]


def moved(inputs: Any, device: str) -> Any:
    if isinstance(inputs, dict):
        return {k: moved(v, device) for k, v in inputs.items()}
    if isinstance(inputs, tuple | list):
        return type(inputs)(moved(v, device) for v in inputs)
    return inputs.to(device) if isinstance(inputs, torch.Tensor) else inputs


def scores(case: Case, method: str, device: str) -> np.ndarray | str:
    """All scores of the case's inputs in a row, or how it was refused."""
    model = case.build(case.implementations[0]).to(device)
    target = {"detr": (2, 1), "clip": 0, "siglip": 0}.get(case.name, 1)
    torch.manual_seed(0)
    try:
        how = {"method": method, "target": target, **QUICK.get(method, {})}
        found = wf.explain(model, moved(case.inputs(), device), **how)
    except WhyformerError as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    except (RuntimeError, TypeError, ValueError) as error:
        return f"RAISED {type(error).__name__}: {error}"
    return np.concatenate([f.scores for f in found])


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12))


MEASURED = {"seconds", "bytes", "cost", "memory"}  # another device, another figure


def numbers(value: Any) -> list[float]:
    """Every number of a result that a device has no say in."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return [n for key, v in value.items() if not any(m in key for m in MEASURED) for n in numbers(v)]
    if isinstance(value, list | tuple):
        return [n for v in value for n in numbers(v)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def sentiment(device: str) -> dict[str, Any]:
    model, tokenizer = load_sentiment()
    return {"model": model.to(device), "processor": tokenizer}


def concepts(device: str, **options: Any) -> dict[str, Any]:
    model, processor = load_textures()
    shown = [Image.fromarray(picture("horse", "striped", seed)) for seed in range(8)]
    known = {name: [Image.fromarray(swatch(name, s)) for s in range(12)] for name in ("striped", "bubbly", "plain")}
    sets = [known.pop("bubbly"), known.pop("plain")]
    how = {"random_sets": sets, "class_inputs": shown, "target": 0, "processor": processor, "pooling": "mean"}
    return wf.tcav(model.to(device), layer=2, concepts=known, **how).to_dict()


def table(device: str, **how: Any) -> list[Any]:
    model, own = load_adult()
    rows = adult_rows()[:8]
    permuted = wf.feature_permutation(model.to(device), rows, [0, 1] * 4, processor=own)
    return [asdict(permuted), *(e.scores for e in wf.explain(model, rows, processor=own, **how))]


TWO = ["generic_attention", "occlusion"]
VERBS: dict[str, Callable[..., Any]] = {  # what stands above a single explanation, on the shipped models
    "explain": lambda d, **how: [e.scores for e in wf.explain(inputs=TEXTS, **sentiment(d), **how)],
    "compare": lambda d, **how: wf.compare(inputs=TEXTS, method=TWO, **sentiment(d), **how).to_dict(),
    "recommend": lambda d, **how: wf.recommend(inputs=list(SENTENCES), method=TWO, **sentiment(d), **how).to_dict(),
    "check": lambda d, **how: wf.check(inputs=TEXTS, **sentiment(d)).to_dict(),
    "head_importance": lambda d, **how: wf.head_importance(inputs=TEXTS, **sentiment(d)).scores,
    "tcav": concepts,
    "explain and permute a table": table,
}


class Tally:
    """How one method did over the models."""

    def __init__(self) -> None:
        self.ran = self.refused = 0
        self.worst, self.where = 0.0, ""
        self.broken: list[str] = []

    def add(self, name: str, here: np.ndarray | str, there: np.ndarray | str) -> None:
        if isinstance(here, str) and isinstance(there, str):
            self.refused += 1
            if here.split(":")[0] != there.split(":")[0] or "RAISED" in here:
                self.broken.append(f"{name}: cpu {here[:200]} | other {there[:200]}")
        elif isinstance(here, str) or isinstance(there, str):
            self.broken.append(f"{name}, one device only: {str(here)[:300]} | {str(there)[:300]}")
        else:
            self.ran += 1
            difference = apart(there, here)
            if difference > FAR:
                self.broken.append(f"{name}: {difference:.1e} apart, largest score {np.abs(here).max():.1e}")
            if difference > self.worst:
                self.worst, self.where = difference, name


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="*", default=sorted(CASES | UNUSUAL))
    parser.add_argument("--methods", nargs="*", default=sorted(QUICK.keys() | wf.list_methods().keys()))
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False  # patch embeddings would have ten bits
    print(f"{options.device} against cpu; {machine()}")
    print(f"{'method':28s} {'ran':>4s} {'refused':>8s}  largest difference")
    broken: list[str] = []
    for method in options.methods:
        tally = Tally()
        for name in options.models:
            case = (CASES | UNUSUAL)[name]
            try:
                tally.add(name, scores(case, method, "cpu"), scores(case, method, options.device))
            except ImportError as missing:
                broken.append(f"{name}: {missing}")
        print(f"{method:28s} {tally.ran:4d} {tally.refused:8d}  {tally.worst:.1e} {tally.where}", flush=True)
        broken += [f"{method} on {line}" for line in tally.broken]
    for name, verb in VERBS.items():
        try:
            found, expected = (np.asarray(numbers(verb(device))) for device in (options.device, "cpu"))
            print(f"{name:28s} {apart(found, expected):.1e} of {len(expected)} numbers", flush=True)
        except (RuntimeError, TypeError, ValueError, WhyformerError) as error:
            broken.append(f"{name}: {type(error).__name__}: {error}")
    print("\n".join(dict.fromkeys(broken)) or "no disagreement")


if __name__ == "__main__":
    main()
