"""The letter legend. Tensor names end in these letters, in this order.

B batch · H head · Q query position · K key position · D width of a head · E width of the model · C class · U unit ·
L layer · N sequence position

The aliases below are plain tensors for users. With jaxtyping installed (tests) they carry the axes, and the test run
checks every annotated call of the modules named in tests/conftest.py: a letter has one size per call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

if TYPE_CHECKING:
    from torch import Tensor

    BHQK: TypeAlias = Tensor
    BHKE: TypeAlias = Tensor
    BQK: TypeAlias = Tensor
    BQE: TypeAlias = Tensor
    BQ: TypeAlias = Tensor
    BK: TypeAlias = Tensor
    BN: TypeAlias = Tensor
    AnyBQK: TypeAlias = Tensor
else:
    # The axes of each alias, as jaxtyping writes them. BN is used for masks and weights alike, so any dtype is allowed.
    # AnyBQK is one of several maps, each with its own number of rows and columns.
    AXES = {
        "BHQK": "B H Q K",
        "BHKE": "B H K E",
        "BQK": "B Q K",
        "BQE": "B Q E",
        "BQ": "B Q",
        "BK": "B K",
        "BN": "B N",
        "AnyBQK": "B _ _",
    }

    # Made on first use: Array is imported by commands that have to start without torch.
    def __getattr__(name):
        if name not in AXES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from torch import Tensor

        try:
            from jaxtyping import Float, Shaped
        except ImportError:  # users need no jaxtyping
            return Tensor
        return (Shaped if name == "BN" else Float)[Tensor, AXES[name]]
