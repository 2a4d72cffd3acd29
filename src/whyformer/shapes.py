"""The letter legend. Tensor names end in these letters, in this order.

B batch · H head · Q query position · K key position · D width of a head · E width of the model · C class · U unit ·
L layer · N sequence position

The aliases below are plain tensors for users; with jaxtyping installed (tests) they carry the axes, and the test run
checks every annotated call of the modules named in tests/conftest.py: a letter has one size per call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    BHQK: TypeAlias = Tensor
    BHKE: TypeAlias = Tensor
    BQK: TypeAlias = Tensor
    BQE: TypeAlias = Tensor
    BQ: TypeAlias = Tensor
    BK: TypeAlias = Tensor
    BN: TypeAlias = Tensor
    AnyBQK: TypeAlias = Tensor
else:
    try:
        from jaxtyping import Float, Shaped

        BHQK = Float[Tensor, "B H Q K"]
        BHKE = Float[Tensor, "B H K E"]
        BQK = Float[Tensor, "B Q K"]
        BQE = Float[Tensor, "B Q E"]
        BQ = Float[Tensor, "B Q"]
        BK = Float[Tensor, "B K"]
        BN = Shaped[Tensor, "B N"]  # masks and weights alike
        AnyBQK = Float[Tensor, "B _ _"]  # one of several maps: rows and columns of its own (a last layer of one row)
    except ImportError:  # users need no jaxtyping
        BHQK = BHKE = BQK = BQE = BQ = BK = BN = AnyBQK = Tensor
