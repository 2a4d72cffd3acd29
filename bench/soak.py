"""Does anything stay behind? Thousands of mixed calls, every method, verb and kind of input, in one process.

    python -m bench.soak [--calls 2000] [--seed 0]

Prints, as it goes, how many tensors are alive and how much memory the process has: both have to be flat once every
call was made once. ``calls()`` is also what tests/explainer/test_memory.py takes one by one.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import whyformer as wf
from bench.timing import machine
from tests.models import CASES
from tests.tables.models import LAYOUTS, rows, saint, table
from whyformer import heads, tables
from whyformer.errors import WhyformerError
from whyformer.loan.spread import resident

Call = Callable[[], object]

# One of each kind of input: words, pictures, sound, columns, two streams, two encoders, windows, objects, next words.
MODALITIES = ("bert", "vit", "wav2vec2", "lxmert", "t5", "clip", "swin", "detr", "gpt2", "table")
QUICK: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 3},
    "smooth_grad": {"samples": 2},
    "shap": {"evaluations": 40, "algorithm": "permutation"},
    "vit_cx": {"clusters": 2},
}
CHECKS = {
    "jain_wallace": {"permutations": 2, "candidates": 2, "steps": 2},
    "randomisation": {"copies": 1, "beside": 1},
    "stability": {"draws": 1},
    **{name: {} for name in ("capture_audit", "class_dependence", "invariance", "sinks", "serrano_smith")},
    "wiegreffe_pinter": {},
}
TWO = ["generic_attention", "occlusion"]


@cache
def _model(name: str) -> nn.Module:
    return LAYOUTS["rtdl"].build() if name == "table" else CASES[name].build(CASES[name].implementations[0])


def _asked(name: str) -> dict[str, Any]:
    if name == "table":
        return {"model": _model(name), "inputs": rows(2), "processor": _table()}
    return {"model": _model(name), "inputs": CASES[name].inputs()}


@cache
def _table() -> wf.Table:
    return table(reference=rows(8, seed=1))


def _many() -> dict[str, Any]:
    """As many inputs as recommending takes."""
    return {"model": _model("bert"), "inputs": {k: v.repeat(8, 1) for k, v in CASES["bert"].inputs().items()}}


@cache
def _saint() -> nn.Module:
    return saint()


def _explained(name: str, method: str) -> object:
    with suppress(WhyformerError):  # what is refused has to leave nothing behind, either
        return wf.explain(**_asked(name), method=method, **_options(method))
    return None


def _options(method: str) -> dict[str, Any]:
    known = wf.list_methods()[method].options
    return {k: v for k, v in QUICK.get(method, {}).items() if k in known}


def _concepts() -> object:
    some = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sets = [some[:4] + 0.1 * number for number in range(2)]
    how: dict[str, Any] = {"random_sets": sets, "class_inputs": some[:2], "target": 0}
    return wf.tcav(_model("vit"), layer=1, concepts={"light": some[4:] + 1}, **how)


def _verbs() -> dict[str, Call]:
    bert, gpt2, adult = (partial(_asked, name) for name in ("bert", "gpt2", "table"))
    labels = torch.tensor([0, 1])
    verbs: dict[str, Call] = {
        "compare": lambda: wf.compare(**bert(), method=TWO, progress=False),
        "recommend": lambda: wf.recommend(**_many(), method=TWO, spaces=[], progress=False),
        **{
            f"check {name}": partial(lambda name: wf.check(**bert(), checks={name: CHECKS[name]}, progress=False), name)
            for name in CHECKS
        },
        "record": lambda: wf.Explainer(_model("bert")).record(CASES["bert"].inputs(), grad=True),
        "head_importance": lambda: wf.head_importance(**bert()),
        "circuits": lambda: heads.circuits(_model("gpt2"), CASES["gpt2"].inputs()),
        "direct_logit": lambda: heads.direct_logit(**gpt2(), target=1),
        "induction": lambda: heads.induction(_model("gpt2"), length=4, sequences=1),
        "layer_profile": lambda: heads.layer_profile(**bert()),
        "learn_gates": lambda: heads.learn_gates(**bert(), labels=labels, steps=2),
        "pruning_curve": lambda: heads.pruning_curve(**bert(), labels=labels),
        "roles": lambda: heads.roles(**bert()),
        "tcav": _concepts,
        "activation_maximization": lambda: wf.activation_maximization(_model("vit"), 1, size=(32, 32), steps=2),
        "explain_global": lambda: wf.explain_global(**adult(), method="generic_attention"),
        "feature_permutation": lambda: wf.feature_permutation(
            _model("table"), rows(4), [0, 1] * 2, processor=_table(), repeats=1
        ),
        "row_attention": lambda: tables.row_attention(_saint(), rows(2), processor=table(reference=rows(8, seed=2))),
    }
    return {name: partial(_suppressed, verb) for name, verb in verbs.items()}


def _suppressed(verb: Call) -> object:
    with suppress(WhyformerError):
        return verb()
    return None


def calls() -> dict[str, Call]:
    """Every method on every kind of input, and every verb; each leaves nothing behind but what it returns."""
    explained = {f"{m} {name}": partial(_explained, name, m) for name in MODALITIES for m in sorted(wf.list_methods())}
    return explained | _verbs()


def live_tensors() -> int:
    gc.collect()
    # By type: isinstance() looks at each of a million objects, and some answer with a warning.
    kinds = Counter(map(type, gc.get_objects()))
    return sum(count for kind, count in kinds.items() if issubclass(kind, Tensor))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    every = calls()
    print(f"{options.calls} calls of {len(every)} kinds; {machine()}")
    answered: Counter[bool] = Counter()
    for call in every.values():
        answered[call() is not None] += 1
    print(f"{answered[True]} kinds answer, {answered[False]} are refused")
    draw, names, started = random.Random(options.seed), list(every), time.perf_counter()
    print(f"{'calls':>6s} {'seconds':>8s} {'live tensors':>13s} {'resident MB':>12s}")
    for number in range(options.calls + 1):
        if number % max(1, options.calls // 10) == 0:
            tensors, size = live_tensors(), resident() / 1e6
            print(f"{number:6d} {time.perf_counter() - started:8.0f} {tensors:13d} {size:12.1f}", flush=True)
        every[draw.choice(names)]()


if __name__ == "__main__":
    main()
