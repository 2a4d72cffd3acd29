"""Which tensors carry relevance, which were computed element by element from one, and which weigh others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Kwargs
from whyformer.capture.intercept import running_modules
from whyformer.capture.trail import Notes

# Which tensors are functions, element by element, of one and the same tensor, and which weigh others.
#
# Activations are often written out: ``0.5 * x * (1 + tanh(…x…))``, ``x * sigmoid(1.702 * x)``. Rules for products would
# take such a line apart. So every tensor that was computed element by element from a single tensor carries that
# tensor's mark: a product of two tensors with the same mark is a piece of an activation, a product of two others is a
# gate.
#
# Of two factors the gate is the one that an activation or a softmax made, and that was only moved, chosen from or
# normalised since: act(Wx) of a gated MLP, the weights a router gives its experts.

# Curved: f(x) is not proportional to x. Of these the rules know BENDS as activations.
BENDS = fn.ACTIVATIONS | fn.RARE_ACTIVATIONS
CURVED = BENDS | fn.CLAMPS | frozenset("exp expm1 log log1p abs reciprocal __rdiv__".split())
STRAIGHT = (fn.CASTS | fn.DROPOUTS | fn.RARE_DROPOUTS) | frozenset(
    "add sub rsub __rsub__ mul div neg negative positive contiguous clone".split()
)
# A clamp is curved and makes no gate: GPT-OSS clamps what is gated as well.
WEIGHING = (CURVED - fn.CLAMPS) | {"softmax"}
MOVES = (fn.LAYOUTS | fn.PIECES | fn.REPEATS | fn.LISTED) | frozenset(
    "topk sort gather take_along_dim index_select select narrow __getitem__ where masked_fill masked_select scatter "
    "scatter_add index_put roll flip broadcast_to".split()
)
LIKE = frozenset("type_as to view_as reshape_as expand_as".split())  # another tensor says what type or shape it gets


def carrying(values: Any) -> list[Tensor]:
    """Return the tensors that depend on the input, lists and tuples opened: those that require a gradient."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.requires_grad:
                tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(carrying(value))
    return tensors


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor was computed from, element by element."""

    origin: object  # a token of the tensor: that may be gone by now
    curved: bool = False  # f(x) is not proportional to x
    weighs: bool = False  # it weighs what it is multiplied with


class Elementwise:
    """The origin of every tensor that a rule has met."""

    def __init__(self) -> None:
        self._origins = Notes[Origin]()

    def of(self, tensor: Tensor) -> Origin:
        """Where it comes from: from itself, if nothing is known."""
        origin = self._origins.get(tensor)
        if origin is None:
            origin = Origin(object())
            self._origins.put(tensor, origin)
        return origin

    def follow(self, name: str, operands: Sequence[Tensor], out: Any) -> None:
        """``out`` is ``name`` of these operands, constants left out."""
        operands = operands[:1] if name in LIKE else operands
        if name in MOVES or name == "softmax":
            weighs = name in WEIGHING or all(self.of(t).weighs for t in operands)
            for moved in carrying((out,)) if weighs else ():
                self._origins.put(moved, Origin(object(), weighs=True))
        if not isinstance(out, Tensor) or not operands or (name not in CURVED and name not in STRAIGHT):
            return
        origins = [self.of(t) for t in operands]
        if any(o.origin is not origins[0].origin for o in origins):
            weighs = all(o.weighs for o in (origins[:1] if name == "div" else origins))
            self._origins.put(out, Origin(object(), weighs=weighs))  # out may be an operand, written in place
            return
        several = len(origins) > 1 and name in {"mul", "div"}
        curved = several or name in CURVED or any(o.curved for o in origins)
        weighs = several or name in WEIGHING or any(o.weighs for o in origins)
        self._origins.put(out, Origin(origins[0].origin, curved, weighs))


# Layers with a state: state-space models, linear attention, gated recurrence. Which of their tensors are factors?
#
# MambaLRP (Jafari et al. 2024, arXiv:2406.07592) makes such a layer linear in what it reads: in
#
#     h_t = [A_t] h_{t-1} + [B_t] x_t,    y_t = [C_t] h_t
#
# the factors in brackets are constants, although the model computes them from its input. So all relevance of the state
# goes to x and to the state before, and none is lost. Decays and step sizes come out of an exponential, a softplus or a
# sigmoid; B and C (keys and queries of linear attention) are pieces of one projection. Gates around the scan share, and
# SiLU is one activation, by the rules of every other layer. A layer is known by a parameter that only such layers have.


DECAYS = ("A_log", "time_decay", "time_mix_receptance", "recurrent_param")  # Mamba, gated delta rules; RWKV (2); RG-LRU
# NOTE[DIFF] Mamba has no sigmoid gates. Those of other layers with a state (β, the input gate, RWKV's receptance) are
# constants here, not shared as SiLU gates are: σ(x)/x, the rule of an activation, has no bound near zero.
FACTORS = frozenset("exp softplus sigmoid logsigmoid".split())  # decays, step sizes and gates of the state
PIECES = frozenset(("split", "split_with_sizes"))


def scanning_layer() -> nn.Module | None:
    """Return the innermost running module if it is a layer with a state."""
    module = next(running_modules(), None)
    return module if module is not None and any(name in module._parameters for name in DECAYS) else None


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
