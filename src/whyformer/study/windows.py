"""Which tokens sit in which window: read from how the model moves them, not from its settings.

Beside every tensor goes a shadow of the same shape that holds the number of the token each value belongs to. What the
model does to move tokens (view, roll, transpose, slice, pad) is done to the shadow as well, so at an attention the
shadow of the queries says which token stands where in which window, shifted or not. Where four tokens are laid side by
side and projected (patch merging), the shadow says which: their places in the grid are numbered anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import LAYOUTS, MATMULS, sdpa_operands
from whyformer.capture.notes import Notes
from whyformer.capture.site import OpenSite
from whyformer.errors import NotOverUnits
from whyformer.study.readout import Survey

MOVES = LAYOUTS | frozenset("contiguous roll __getitem__ cat clone to expand chunk split narrow stack".split())
PADDING = -1


@dataclass(frozen=True)
class Placement:
    """Where the tokens of one attention call stand: (windows, places) token numbers, and the stage they are of."""

    tokens_WN: Tensor
    stage: int


@dataclass(frozen=True)
class Windows:
    """All placements in call order; ``merges[s]`` (N of stage s+1, N of stage s): which tokens became which."""

    placements: tuple[Placement, ...]
    merges: tuple[Tensor, ...]
    sizes: tuple[int, ...]  # tokens of each stage

    def whole(self, maps_WQK: Tensor, site: int) -> Tensor:
        """(B·W, n, n) maps inside windows → (B, N, N), zero between windows."""
        placement = self.placements[site]
        tokens = placement.tokens_WN.to(maps_WQK.device)
        windows, places = tokens.shape
        count = self.sizes[placement.stage]
        inside = maps_WQK.view(-1, windows, places, places)
        rows = tokens[:, :, None].expand(windows, places, places)
        columns = tokens[:, None, :].expand(windows, places, places)
        real = (rows >= 0) & (columns >= 0)
        result = maps_WQK.new_zeros(len(inside), count, count)
        result[:, rows[real], columns[real]] = inside[:, real]
        return result

    def merged(self, relevance_BNK: Tensor, before: int, after: int) -> Tensor:
        """Rows of an earlier stage → rows of a later one: a merged token is the mean of those it was made of."""
        for stage in range(before, after):
            relevance_BNK = self.merges[stage].to(relevance_BNK) @ relevance_BNK
        return relevance_BNK


class Shadows(Survey):
    """Follows the tokens of one image from the patch embedding on."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(1, names)
        self.placements: list[Placement] = []
        self.merges: list[Tensor] = []
        self.sizes: list[int] = []
        self._shadows = Notes[Tensor]()
        self._asking = Notes[Tensor]()  # beside scores: the shadow of their queries
        self._fused: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name == "scaled_dot_product_attention":
            self._fused = self._shadows.get(sdpa_operands(args, kwargs)["query"])
        before = len(self.placements)
        out = super().__torch_function__(func, types, args, kwargs)
        self._fused = None
        with torch._C.DisableTorchFunction():
            if len(self.placements) > before:
                self._attended(out)
            else:
                self._follow(name, func, args, kwargs, out)
        return out

    def at_site(self, site: OpenSite) -> None:
        super().at_site(site)
        asked = self._fused if self._fused is not None else self._asking.get(site.attention)
        if asked is None:
            raise NotOverUnits(f"{site.path}: which tokens its windows hold could not be followed.")
        rows = asked.movedim(1, 0)[0] if asked.ndim == 4 else asked  # heads hold the same tokens
        self.placements.append(Placement(rows[..., 0].long(), len(self.sizes) - 1))
        self._last = asked

    def _attended(self, out: Any) -> None:
        if isinstance(out, Tensor) and out.shape[:-1] == self._last.shape[:-1]:
            self._shadows.put(out, self._last[..., :1].expand(out.shape))

    def _follow(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, out: Any) -> None:
        if name == "conv2d" and not self.placements and isinstance(out, Tensor):
            self._start(out)
            return
        first = args[0] if args else next(iter(kwargs.values()), None)
        members = list(first) if isinstance(first, (list, tuple)) else [first]
        shadows = [self._shadows.get(t) for t in members]
        if name in MOVES and shadows and all(s is not None for s in shadows):
            moved = func(shadows if isinstance(first, (list, tuple)) else shadows[0], *args[1:], **kwargs)
            for result, shadow in zip(_each(out), _each(moved), strict=True):
                self._shadows.put(result, shadow)
            return
        if not isinstance(out, Tensor):
            return
        numbers = next((s for t in args if isinstance(t, Tensor) and (s := self._shadows.get(t)) is not None), None)
        if name == "pad" and numbers is not None:
            self._shadows.put(out, torch.nn.functional.pad(numbers, args[1], value=PADDING))
        elif name in {"linear", "layer_norm"} and numbers is not None:
            self._projected(numbers, out)
        elif name in MATMULS and numbers is not None and out.ndim == numbers.ndim:
            self._asking.put(out, numbers)
        elif numbers is not None and numbers.shape == out.shape:
            self._shadows.put(out, numbers)
        else:
            asked = next((a for t in args if (a := self._asking.get(t)) is not None), None)
            if asked is not None and out.shape[: asked.ndim - 1][-1:] == asked.shape[-2:-1]:
                self._asking.put(out, asked)

    def _start(self, out: Tensor) -> None:
        rows, columns = out.shape[-2:]
        numbers = torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)
        self.sizes, self.merges = [rows * columns], []
        self._shadows.put(out, numbers.expand(out.shape).clone())

    def _projected(self, numbers: Tensor, out: Tensor) -> None:
        """One token per vector stays itself; several side by side become a new one."""
        if numbers.shape[:-1] != out.shape[:-1]:
            return
        if (numbers == numbers[..., :1]).all():
            self._shadows.put(out, numbers[..., :1].expand(out.shape))
            return
        flat = numbers.reshape(-1, numbers.shape[-1])
        merge = torch.zeros(len(flat), self.sizes[-1], dtype=torch.float32)
        for i, values in enumerate(flat):
            tokens = values[values >= 0].unique().long()
            merge[i, tokens] = 1 / max(len(tokens), 1)
        self.merges.append(merge)
        self.sizes.append(len(flat))
        fresh = torch.arange(len(flat), dtype=torch.float64).view(*numbers.shape[:-1], 1)
        self._shadows.put(out, fresh.expand(out.shape))


def _each(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else list(out)


def windows_of(forward: Callable[[], Tensor], names: dict[int, str]) -> Windows:
    """Placements of one image's tokens, by one forward pass."""
    shadows = Shadows(names)
    with torch.no_grad(), shadows:
        forward()
    return Windows(tuple(shadows.placements), tuple(shadows.merges), tuple(shadows.sizes))
