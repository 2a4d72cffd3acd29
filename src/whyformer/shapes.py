"""The letter legend. Tensor names end in these letters, in this order.

B batch · H head · Q query position · K key position · D width · C class · U unit · L layer · N sequence position

The aliases below are plain tensors for users; with jaxtyping installed (tests) they carry the axes, and the test run
checks every annotated call against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    BHQK: TypeAlias = Tensor
    BQK: TypeAlias = Tensor
    BQ: TypeAlias = Tensor
    BK: TypeAlias = Tensor
    BN: TypeAlias = Tensor
else:
    try:
        from jaxtyping import Float

        BHQK = Float[Tensor, "B H Q K"]
        BQK = Float[Tensor, "B Q K"]
        BQ = Float[Tensor, "B Q"]
        BK = Float[Tensor, "B K"]
        BN = Float[Tensor, "B N"]
    except ImportError:  # users need no jaxtyping
        BHQK = BQK = BQ = BK = BN = Tensor
