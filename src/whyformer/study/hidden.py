"""Hidden attention: modules that ran where no function mode reaches, beside others whose attention was seen.

TorchScript, another thread, a compiled kernel: what happens there is not intercepted. Of a model whose attention all
happens there nothing is captured, which is noticed; of one that has some of it there, a part would pass for the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from whyformer.errors import PartlyCaptured


class Called:
    """Inside ``with``: the modules that are called, by id: in this thread (``here``), and in others."""

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.in_threads: set[int] = set()
        self._thread = threading.get_ident()
        self._handle: Any = None

    def __enter__(self) -> Called:
        self._handle = register_module_forward_hook(self._note)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._handle.remove()

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        (self.here if threading.get_ident() == self._thread else self.in_threads).add(id(module))


def scripted(model: nn.Module) -> list[str]:
    """Paths of the outermost parts of a model that are TorchScript."""
    paths: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        if isinstance(module, torch.jit.ScriptModule) and not inside:
            paths.append(path)
    return paths


def unseen(model: nn.Module, called: Called, sites: Sequence[str]) -> PartlyCaptured | None:
    """What stands against reading the attention of ``sites`` (paths) as all that there is."""
    scripts = scripted(model)
    if scripts:
        return PartlyCaptured(
            f"{', '.join(scripts[:8])}: TorchScript hides its functions from Python, so attention in there is not seen "
            f"and a map would be partial. Pass the Python module that it was made from."
        )
    modules = dict(model.named_modules())
    # What ran here as well is used by somebody else at the same time.
    elsewhere = [path for path, module in modules.items() if id(module) in called.in_threads - called.here]
    if elsewhere:
        return PartlyCaptured(
            f"{', '.join(elsewhere[:8])}: this part of the model ran in another thread, where it is not seen, so a map "
            f"would be partial. Run the model in the calling thread."
        )
    of_torch = ("torch.nn.modules.container", "torch.nn.modules.dropout", "torch.nn.modules.linear")
    kinds = {type(modules[path]) for path in sites if path} - {type(model)} | {nn.MultiheadAttention}
    kinds = {kind for kind in kinds if not kind.__module__.startswith(of_torch)}
    alike = [path for path, m in modules.items() if isinstance(m, tuple(kinds)) and id(m) in called.here]
    blind = [path for path in alike if not any(site == path or site.startswith(f"{path}.") for site in sites)]
    if not blind:
        return None
    return PartlyCaptured(
        f"{', '.join(blind[:8])}: {len(blind)} of {len(alike)} modules of the same kind ran without their attention "
        f"being seen (in a compiled function, or by a kernel that is not torch's), so a map would be partial. "
        "Run the model uncompiled."
    )
