"""Layers with a state: state-space models, linear attention, gated recurrence. Which of their tensors are factors?

MambaLRP (Jafari et al. 2024, arXiv:2406.07592) makes such a layer linear in what it reads: in

    h_t = [A_t] h_{t-1} + [B_t] x_t,    y_t = [C_t] h_t

the factors in brackets are constants, although the model computes them from its input. So all relevance of the state
goes to x and to the state before, and none is lost. Decays and step sizes come out of an exponential, a softplus or a
sigmoid; B and C (keys and queries of linear attention) are pieces of one projection. Gates around the scan share, and
SiLU is one activation, by the rules of every other layer.

A layer is known by a parameter that only such layers have. What its tensors are called differs between models.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from whyformer.capture.functions import Args, Kwargs

DECAYS = ("A_log", "time_decay", "time_mix_receptance", "recurrent_param")  # Mamba, gated delta rules; RWKV (2); RG-LRU
# NOTE[DIFF] Mamba has no sigmoid gates. Those of other layers with a state (β, the input gate, RWKV's receptance) are
# constants here, not shared as SiLU gates are: σ(x)/x, the rule of an activation, has no bound near zero.
FACTORS = frozenset("exp softplus sigmoid logsigmoid".split())  # decays, step sizes and gates of the state
PIECES = frozenset(("split", "split_with_sizes"))


def scanning_layer() -> nn.Module | None:
    """Return the innermost running module if it is a layer with a state."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if "self" in code.co_varnames or "self" in code.co_freevars or "self" in code.co_cellvars:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                return module if any(name in module._parameters for name in DECAYS) else None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def constant_pieces(layer: nn.Module, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    """Return which pieces of a split projection are factors: B and C of a state-space layer, queries and keys."""
    sizes: Any = args[1] if len(args) > 1 else next(iter(v for k, v in kwargs.items() if k.startswith("split_")), None)
    if not isinstance(sizes, Sequence) or len(sizes) != 3:
        return ()
    state, key = getattr(layer, "ssm_state_size", None), getattr(layer, "key_dim", getattr(layer, "qkv_dim", None))
    if isinstance(state, int) and sizes[1] == sizes[2] and sizes[1] in {state, state * getattr(layer, "n_groups", 1)}:
        return (1, 2)  # (x, B, C), or (Δ, B, C)
    return (0, 1) if sizes[0] == sizes[1] == key else ()  # (q, k, v)


def without(pieces: Sequence[Tensor], constants: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the pieces, those that are factors without relevance."""
    return tuple(piece.detach() if number in constants else piece for number, piece in enumerate(pieces))
