"""Random numbers of a model: the same ones in every pass, and not from the generators that everybody uses."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whyformer.turns import uninterrupted


class Draws(TorchDispatchMode):
    """Inside ``with``, a pass: whatever this thread draws comes from numbers of its own, which begin at seed 0.

    There is one generator per device for all threads. It holds the numbers of the pass during a draw and no longer, so
    that others go on with theirs. Whether the model draws at all is noted in ``facts``.
    """

    supports_higher_order_operators = True

    def __init__(self, facts: MutableMapping[Any, Any]) -> None:
        super().__init__()
        self.facts, self.drew = facts, False
        self._states: dict[torch.device, Tensor] = {}

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        super().__exit__(kind, *exc)
        if self.drew or kind is None:
            self.facts["draws"] = self.drew

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        first = next((leaf.device for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), torch.device("cpu"))
        device = torch.device(kwargs.get("device") or first)
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            generator = torch.cuda.default_generators[device.index]
        elif device.type == "cpu":
            generator = torch.default_generator
        else:
            self.drew = True
            return func(*args, **kwargs)
        start = self._states.get(device)
        if start is None:
            start = torch.Generator(device).manual_seed(0).get_state()
        with uninterrupted():
            others = generator.get_state()
            generator.set_state(start)
            try:
                return func(*args, **kwargs)
            finally:
                self._states[device] = generator.get_state()
                generator.set_state(others)
                self.drew = self.drew or not torch.equal(start, self._states[device])
