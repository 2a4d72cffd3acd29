"""A layer by number or name, and what comes out of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.study import Study


def layer_name(model: nn.Module, layer: int | str, study: Study | None) -> str:
    """The dotted name of a module: itself, or the block around the ``layer``-th attention."""
    modules = dict(model.named_modules())
    if isinstance(layer, str):
        if layer not in modules or not layer:
            raise UnknownName("module", layer, [n for n in modules if n])
        return layer
    sites = study.sites if study is not None else ()
    blocks = list(dict.fromkeys(b for b in (_block(modules, site.path) for site in sites) if b))
    if not blocks:
        raise NotOffered("no list of attention blocks was found in the model: give the layer as a dotted module name.")
    if isinstance(layer, bool) or not isinstance(layer, int) or not -len(blocks) <= layer < len(blocks):
        raise BadInput(
            f"layer={layer!r}: a number from 0 to {len(blocks) - 1}, or a module name such as {blocks[0]!r}."
        )
    return blocks[layer]


def _block(modules: dict[str, nn.Module], path: str) -> str:
    """The innermost module around an attention site that is one of a list: its output is the residual stream."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        parent = modules.get(".".join(parts[: end - 1]))
        if isinstance(parent, (nn.ModuleList, nn.Sequential)):
            return ".".join(parts[:end])
    return ""


class Tap:
    """While open, keeps what a module gave; with ``leaf``, as the start of the graph, so that it can be differentiated.

    The weights are frozen (``borrowed``), so nothing before the leaf is kept for a backward pass.
    """

    def __init__(self, model: nn.Module, name: str, leaf: bool = False) -> None:
        self.module, self.name, self.leaf = model.get_submodule(name), name, leaf
        self._found: list[Tensor] = []
        self._handle: Any = None

    def __enter__(self) -> Tap:
        self._handle = self.module.register_forward_hook(self._keep)
        return self

    def __exit__(self, *exc: object) -> None:
        self._handle.remove()
        self._found.clear()

    def _keep(self, module: nn.Module, args: Any, out: Any) -> Any:
        tensor = out[0] if isinstance(out, (tuple, list)) else out
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise NotOffered(f"{self.name} gives a {type(tensor).__name__}, no tensor of activations: choose another.")
        if not self.leaf:
            self._found.append(tensor)
            return None
        tensor = tensor.detach().requires_grad_()
        self._found.append(tensor)
        return (tensor, *out[1:]) if isinstance(out, tuple) else tensor

    def take(self) -> Tensor:
        """What the last pass left here."""
        found, self._found = self._found, []
        if len(found) != 1:
            raise NotOffered(
                f"{self.name} ran {len(found)} times in one pass: a layer that runs exactly once is needed. "
                "Give another module by its dotted name."
            )
        return found[0]
