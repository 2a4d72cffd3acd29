"""What all tests of a process share besides models: a file of tests restores it, or fails at its end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from tests.support.sharing import changed_tokenizers

# Set by pytest for each test, and by torch and scikit-learn when they are imported.
OF_LIBRARIES = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def process_state() -> dict[str, object]:
    """Settings of the process, of torch and of whyformer that a test could leave changed."""
    from whyformer import registry
    from whyformer.checks.check import CHECKS
    from whyformer.compiled.graph import RECORDERS
    from whyformer.inputs.modalities import KINDS
    from whyformer.loan.borrow import _OUT
    from whyformer.verbs import Explainer

    registry.list_methods(), registry.list_metrics()  # registered when first listed
    # torch 2.6 adds a folder for code that it generates, when torch.distributed is first imported
    instantiator = sys.modules.get("torch.distributed.nn.jit.instantiator")
    generated = getattr(instantiator, "INSTANTIATED_TEMPLATE_DIR_PATH", None)
    loggers = [logging.getLogger(), logging.getLogger("whyformer")]
    return {
        **{f"environment variable {name}": value for name, value in os.environ.items() if name not in OF_LIBRARIES},
        "working directory": Path.cwd(),
        "sys.path": [folder for folder in sys.path if folder != generated],
        **{f"module {name}, imported twice": True for name in split_modules()},
        **{f"logger {log.name}": (list(log.handlers), log.level, log.propagate, log.disabled) for log in loggers},
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "tracing": (sys.gettrace(), sys.getprofile(), sys.excepthook),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "torch": (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.is_autocast_enabled("cpu"),
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
        ),
        "methods": dict(registry._METHODS),
        "metrics": dict(registry._METRICS),
        "modalities": list(KINDS),
        "checks": dict(CHECKS),
        "recorders": dict(RECORDERS),
        "models on loan": list(_OUT),
        "advice": Explainer.advises,
        "shared tokenizers": changed_tokenizers(),
    }


def split_modules() -> list[str]:
    """Modules of whyformer that were imported twice: ``import`` and the attribute of their package name two modules."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.startswith("whyformer.")
        and module is not None
        and (parent := sys.modules.get(name.rpartition(".")[0])) is not None
        and isinstance(there := getattr(parent, name.rpartition(".")[2], None), ModuleType | None)
        and there is not module
    ]


@contextmanager
def restored() -> Iterator[None]:
    before = process_state()
    yield
    after = process_state()
    # Names alone: the environment may hold secrets, and this is printed.
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not changed, f"changed for all tests that follow in this process: {', '.join(changed)}"
