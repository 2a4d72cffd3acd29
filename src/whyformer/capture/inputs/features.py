"""What each attention reads: the tensor that its values were projected from, alive and in the graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import PROJECTIONS, Source

PRODUCTS = frozenset({"matmul", "__matmul__"})  # x @ weight


class AttentionInputs(Intercept):
    """Keeps the input of every attention: the output of the norm before it, where there is one.

    The model's own kernels run; outside ``torch.no_grad`` the kept tensors can be differentiated with respect to.
    """

    explicit = False

    def __init__(self, batch: int, names: dict[int, str], batch_axes: dict[int, int] | None = None) -> None:
        super().__init__(batch, names, batch_axes)
        self.inputs: list[tuple[str, Tensor | None]] = []  # per site: path, and what it read
        self._read: dict[Source, Tensor] = {}  # by projections since the last site

    def at_site(self, site: OpenSite) -> None:
        if not site.parallel:
            # Values, not keys: where positions are added to the keys alone (DETR) these are two tensors, and the
            # gradient of the keys adds up to nothing over the positions.
            sources = [self._trail.at(site.value).source, site.sources[1]]
            read = [self._read[source] for source in sources if source is not None and source in self._read]
            self.inputs.append((site.path, read[0] if read else None))
            self._read = {}

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name in PROJECTIONS or name in PRODUCTS:
            operand = args[1] if name == "addmm" else (args[0] if args else None)
            if isinstance(operand, Tensor):
                self._read[Source.of(operand)] = operand
        return super().__torch_function__(func, types, args, kwargs)
