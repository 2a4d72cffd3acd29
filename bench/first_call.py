"""What the first explanation of a model costs: a plain forward, the first call, the second.

Each model and method in fresh processes, a few times in turn; the fastest and leanest count. Time is that of the CPU,
which other work on the machine changes little. The library is imported and the forward is warm before anything is
measured: what the first call has over the second is the study of the model. Weights are random, but for "pets", which
was trained.
``python -m bench.first_call`` prints the table; ``python -m bench.first_call MODEL METHOD`` runs one process;
``python -m bench.first_call passes`` counts the passes of the first call and of the second, which no load changes.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import whyformer as wf
from bench.engine import TOKENS, bert, vit
from bench.timing import machine
from whyformer.loan.spread import Peak

METHODS = ("attention_rollout", "generic_attention")
PASSES_OF = (*METHODS, "input_x_gradient")
PHASES = ("forward", "first", "second")
PROCESSES = 3


def gpt2(attention: str) -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(GPT2Config(), attn_implementation=attention).eval()
    return model, lambda batch: {
        "input_ids": torch.randint(1000, 20000, (batch, TOKENS), generator=torch.Generator().manual_seed(0))
    }


def pets(attention: str) -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    model, _ = wf.demo.load_pets()
    size, numbers = model.config.image_size, torch.Generator().manual_seed(0)
    return model, lambda batch: {"pixel_values": torch.randn(batch, 3, size, size, generator=numbers)}


MODELS = {"bert": bert, "vit": vit, "gpt2": gpt2, "pets": pets}
FORWARD: dict[str, dict[str, Any]] = {"gpt2": {"logits_to_keep": 1, "use_cache": False}}  # as it is explained

Figures = dict[str, tuple[float, float]]  # phase -> seconds, megabytes


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the CPU, and megabytes of the process above where it started."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that was used before and freed would hide the growth
    peak, start = Peak(torch.device("cpu")), time.process_time()
    run()
    return time.process_time() - start, peak.bytes / 2**20


def one_process(name: str, method: str) -> None:
    """The three phases of one model and method, one line each."""
    wf.list_methods(), wf.explain  # names are loaded when asked for, and imports are not part of it
    model, inputs = MODELS[name]("sdpa")
    x = inputs(1)

    def forward() -> None:
        with torch.no_grad():
            model(**x, **FORWARD.get(name, {}))

    forward()
    rounds = [measured(forward) for _ in range(5)]
    print(min(seconds for seconds, _ in rounds), min(megabytes for _, megabytes in rounds))
    for _ in range(2):
        print(*measured(lambda: wf.explain(model, x, method=method, target=0)))


def passes() -> None:
    """How often each model runs, on the input of the table."""
    print("model method              first  second")
    for name, build in MODELS.items():
        for method in PASSES_OF:
            model, inputs = build("sdpa")
            x, calls, counts = inputs(1), list[int](), [0]
            # One hook for both calls: with another one it is another model, which is studied anew.
            model.register_forward_pre_hook(lambda module, arguments, calls=calls: calls.append(1))
            for _ in range(2):
                wf.explain(model, x, method=method, target=0)
                counts.append(len(calls))
            print(f"{name:5s} {method:18s} {counts[1]:7d} {counts[2] - counts[1]:7d}", flush=True)


def fresh_process(name: str, method: str) -> Figures:
    command = [sys.executable, "-m", "bench.first_call", name, method]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in out.strip().splitlines()[-len(PHASES) :]]
    return {phase: (float(s), float(m)) for phase, (s, m) in zip(PHASES, lines, strict=True)}


def main() -> None:
    print(machine())
    print(
        "model method             |  ms: forward   first  second | first / forward  second / forward | "
        "MB: forward first second"
    )
    for name in MODELS:
        for method in METHODS:
            figures = [fresh_process(name, method) for _ in range(PROCESSES)]
            ms, mb = ({p: min(f[p][i] for f in figures) * scale for p in PHASES} for i, scale in ((0, 1000), (1, 1)))
            print(
                f"{name:5s} {method:18s} | {ms['forward']:12.0f} {ms['first']:7.0f} {ms['second']:7.0f} | "
                f"{ms['first'] / ms['forward']:15.2f} {ms['second'] / ms['forward']:17.2f} | "
                f"{mb['forward']:11.0f} {mb['first']:5.0f} {mb['second']:6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["passes"]:
        passes()
    elif len(sys.argv) == 3:
        one_process(sys.argv[1], sys.argv[2])
    else:
        main()
