"""Torch's own attention kernels, swayed: each gives a little more or less weight to its rows and to its values.

It happens below everything that a model's code asks about: no function mode is on, no gradient, no hook. So the model
runs as it runs by itself, and what it says differs by no more than this. Scaling row q of a result by 1 + εa_q and
value k by 1 + εb_k is the map A with ε·A∘(a_q + b_k) added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer.loan.turns import Watch
from whyformer.results.types import Site

KERNELS = frozenset(
    f"aten::_scaled_dot_product_{kind}"
    for kind in (
        "flash_attention_for_cpu",
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
)


class Direction(NamedTuple):
    """How one attention is swayed; numbers of one sign, so that a change does not average out over a large map."""

    results_BHQ1: Tensor
    values_B1K1: Tensor

    @classmethod
    def of(cls, shape: Sequence[int], number: int, device: torch.device) -> Direction:
        """Drawn for a map of this shape, the same each time for the attention of this number."""
        generator = torch.Generator().manual_seed(number)
        sign = 1 if torch.rand((), generator=generator) < 0.5 else -1
        inputs, heads, queries, keys = shape
        shapes = ((inputs, heads, queries, 1), (inputs, 1, keys, 1))
        return cls(*(sign * (torch.rand(s, generator=generator) / 2 + 0.25).to(device) for s in shapes))

    def slopes(self, site: Site) -> Tensor:
        """(B,) what the recorded gradients say of this direction: Σ A ∘ ∂s/∂A ∘ (a_q + b_k)."""
        gradient_BHQK = site.attention_grad_BHQK
        assert gradient_BHQK is not None
        slopes_B = torch.zeros(len(gradient_BHQK), dtype=torch.float64)
        for row, heads in enumerate(zip(site.attention_BHQK, gradient_BHQK, strict=True)):
            of_values_K = torch.zeros(heads[0].shape[-1], dtype=torch.float64, device=heads[0].device)
            for head, (map_QK, gradient_QK) in enumerate(zip(*heads, strict=True)):  # long maps fill the memory
                weighted_QK = map_QK * gradient_QK
                of_values_K += weighted_QK.sum(0, dtype=torch.float64)
                of_results_Q = weighted_QK.sum(1, dtype=torch.float64)
                slopes_B[row] += float(of_results_Q @ self.results_BHQ1[row, head, :, 0].double())
            slopes_B[row] += float(of_values_K @ self.values_B1K1[row, 0, :, 0].double())
        return slopes_B

    def part(self, rows: slice) -> Direction:
        """Of some of the inputs."""
        return Direction(self.results_BHQ1[rows], self.values_B1K1[rows])


class Sway(Watch):
    """Inside ``with``, kernels are swayed by ``step``, one by one in their ``directions``.

    ``fits``: they were those for which there are directions, and no others.
    """

    def __init__(self, directions: Sequence[Direction], step: float) -> None:
        super().__init__()
        self.directions, self.step = directions, step
        self._met, self._alike = 0, True

    @property
    def fits(self) -> bool:
        return self._alike and self._met == len(self.directions)

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name not in KERNELS:
            return func(*args, **kwargs)
        number, self._met = self._met, self._met + 1
        query, _, value, *others = args
        direction = self.directions[number] if number < len(self.directions) else None
        if direction is None or query.ndim != 4 or not self._matches(direction, query, value):
            self._alike = False
            return func(*args, **kwargs)
        swayed = value * (1 + self.step * direction.values_B1K1.to(value.dtype))
        result, *rest = func(*args[:2], swayed, *others, **kwargs)
        return result * (1 + self.step * direction.results_BHQ1.to(result.dtype)), *rest

    @staticmethod
    def _matches(direction: Direction, query: Tensor, value: Tensor) -> bool:
        asked, read = direction.results_BHQ1.shape, direction.values_B1K1.shape
        return tuple(query.shape[:3]) == tuple(asked[:3]) and (value.shape[0], value.shape[2]) == (read[0], read[2])
