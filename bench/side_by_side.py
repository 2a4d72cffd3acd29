"""Time warm calls of two versions of the package in one process, in turn.

    git worktree add /somewhere COMMIT
    python -m bench.side_by_side /somewhere/src [--device cuda] [--batches 1 8] [--rounds 30]

A ratio above 1 means that this tree is slower than the other one: of the fastest call of each, and the median over all
rounds.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from bench.engine import MODELS
from bench.small import finished
from bench.timing import machine, rounds_of

METHODS = ("generic_attention", "attention_rollout", "grad_sam", "input_x_gradient", "attn_lrp")
OWN = Path(__file__).parent.parent / "src"


class Version:
    """The package as one tree has it. Its modules are in ``sys.modules`` only while it is called."""

    def __init__(self, source: Path) -> None:
        self.source, self.modules = str(source.resolve()), dict[str, ModuleType]()
        self.explainers: dict[int, Any] = {}

    def call(self, model: nn.Module, inputs: object, method: str) -> object:
        if id(model) not in self.explainers:
            self.explainers[id(model)] = importlib.import_module("whyformer").Explainer(model)
        return self.explainers[id(model)].explain(inputs, method=method, target=0)

    def __enter__(self) -> None:
        # Functions import modules when they are called: what they get has to be of their own tree.
        for name in [name for name in sys.modules if name.partition(".")[0] == "whyformer"]:
            del sys.modules[name]
        sys.modules.update(self.modules)
        sys.path.insert(0, self.source)

    def __exit__(self, *exc: object) -> None:
        sys.path.remove(self.source)
        self.modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "whyformer"}


def within(version: Version, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with version:
            return call()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder src of the other tree")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if not (options.other / "whyformer").is_dir():  # else this tree would be imported twice and measured against itself
        parser.error(f"{options.other} holds no package whyformer")
    versions = {"other": Version(options.other), "this": Version(OWN)}
    print(f"{machine()}, {options.device}")
    for name in MODELS:
        built, make = MODELS[name]("sdpa")
        model = built.to(options.device)
        for batch in options.batches:
            x = {k: v.to(options.device) for k, v in make(batch).items()}
            for method in METHODS:
                calls = {
                    which: finished(within(version, partial(version.call, model, x, method)), options.device)
                    for which, version in versions.items()
                }
                took = rounds_of(calls, options.rounds, before=1)
                other, this = min(took["other"]), min(took["this"])
                middle = statistics.median(a / b for a, b in zip(took["this"], took["other"], strict=True))
                print(
                    f"{name:5} batch {batch:2}  {method:20} other {other * 1e3:8.2f} ms  this {this * 1e3:8.2f} ms  "
                    f"fastest × {this / other:.3f}  median × {middle:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
