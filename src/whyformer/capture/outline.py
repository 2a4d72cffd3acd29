"""An interceptor for studies: where attention is and how it flows, without its numbers.

No map is computed beside torch's own kernel; maps and values that the model makes itself are let go when the site
closes. What is left of them are their shapes (tensors on the "meta" device), so a study holds no activation longer than
the model does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite


class Outline(Intercept):
    """Sees every site; keeps shapes in place of maps and values.

    explicit: the fused kernel does not run, and ``at_site`` puts a map of its own in its place.
    """

    explicit = False

    def at_site(self, site: OpenSite) -> None:
        """Nothing to change, and of a fused kernel nothing to see but shapes."""

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        out = None if self.explicit else func(*args, **kwargs)
        operands = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key = self._followed(operands["query"]), self._followed(operands["key"])
        grouped = {"enable_gqa": kwargs.get("enable_gqa", False)}
        return super()._sdpa(lambda *_, **__: out, (query, key, operands["value"]), grouped)

    def _followed(self, tensor: Tensor) -> Tensor:
        """The shape of a tensor, under the notes of the tensor itself."""
        return self._noted(shape_of(tensor), tensor)

    def _noted(self, copy: Tensor, tensor: Tensor) -> Tensor:
        """A stand-in of a tensor, with what is known about that."""
        for trail in (self._trail, self._since_site):
            note = trail.get(tensor)
            if note is not None:
                trail.put(copy, note)
        return copy

    def _close(self, site: OpenSite, out: Tensor) -> None:
        super()._close(site, out)
        site.attention, site.value = shape_of(site.attention), shape_of(site.value)


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor without numbers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class _FirstValues(Outline):
    """Keeps the values of the first attention."""

    value_BHKD: Tensor | None = None

    def at_site(self, site: OpenSite) -> None:
        if self.value_BHKD is None:
            self.value_BHKD = site.value_BHKD


def first_values(forward: Callable[[], Tensor], names: dict[int, str]) -> Tensor:
    """(1, H, K, D) what the first attention reads at each position of one input."""
    intercept = _FirstValues(1, names)
    with torch.no_grad(), intercept:
        forward()
    value_BHKD, intercept.value_BHKD = intercept.value_BHKD, None
    assert value_BHKD is not None
    return value_BHKD
