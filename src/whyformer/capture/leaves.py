"""Make the input a leaf of the graph, and find what was computed outside of function modes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture import functions as fn
from whyformer.capture.functions import Args, Function, Kwargs, tensors_in
from whyformer.capture.intercept import Intercept
from whyformer.capture.site import OpenSite
from whyformer.capture.trail import ProjectionSource
from whyformer.errors import AmbiguousLayout, NotOffered

READS = fn.PROJECTIONS | {"matmul", "__matmul__"}  # x @ weight
FOLLOWED = fn.PROJECTIONS | fn.PRODUCTS | fn.ATTENTION | {"softmax"}
REENTRANT = (
    "the model recomputes its layers in backward (re-entrant gradient checkpointing), where gradients of anything but "
    "its weights cannot be followed. Turn it off for explaining: model.gradient_checkpointing_disable(), or pass "
    "use_reentrant=False to checkpoint()."
)


class AttentionInputs(Intercept):
    """Keep the tensor that each attention's values were projected from, with its graph if gradients are on."""

    explicit = False

    def __init__(self, *where: Any) -> None:
        super().__init__(*where)
        self.inputs: list[tuple[str, Tensor | None]] = []  # per site: path, and what it read
        self._read: dict[ProjectionSource, Tensor] = {}  # by projections since the last site

    def at_site(self, site: OpenSite) -> None:
        if not site.parallel:
            # Values, not keys: where positions are added to the keys alone (DETR) these are two tensors, and the
            # gradient of the keys adds up to nothing over the positions.
            sources = [self._trail.at(site.value).source, site.sources[1]]
            read = [self._read[source] for source in sources if source is not None and source in self._read]
            self.inputs.append((site.path, read[0] if read else None))
            self._read = {}

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        name = func.__name__
        if name in READS:
            operand = args[1] if name == "addmm" else (args[0] if args else None)
            if isinstance(operand, Tensor):
                self._read[ProjectionSource.of(operand)] = operand
        return super().__torch_function__(func, types, args, kwargs)


def as_leaf(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return tensor.detach().to(dtype or tensor.dtype, copy=True).requires_grad_()


class BeforeAttention(TorchFunctionMode):
    """Keep every tensor with one vector per position that the model makes before its first attention.

    in_order: also those without a gradient, and none after the model sorted anything.
    unmixed: none after a convolution or a recurrent layer, which mix neighbours.
    """

    def __init__(self, batch: int, positions: int, in_order: bool = False, unmixed: bool = False) -> None:
        super().__init__()
        self.in_order, self.unmixed = in_order, unmixed
        self.shapes = ((batch, positions), (positions, batch))
        self.vectors: list[Tensor] = []
        self.over = self.sorted = False
        self.unfollowed = ""  # a product that was taken of the input with gradients off, by its function's name

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__
        # A softmax over weights of one query only pools.
        self.over |= name in fn.ATTENTION or (name == "softmax" and out.ndim > 2 and min(out.shape[-2:]) > 1)
        kernel = args[1].shape[2:].numel() if name.startswith("conv") and len(args) > 1 else 1
        self.over |= self.unmixed and (name in fn.RECURRENT or kernel > 1)
        self.sorted |= self.in_order and not self.over and name in fn.SORTS
        if not torch.is_grad_enabled() and name in FOLLOWED and any(t.requires_grad for t in tensors_in(args)):
            self.unfollowed = name
        if not self.over and not self.sorted and isinstance(out, Tensor):
            self.add(out)
        return out

    def add(self, *tensors: Tensor) -> None:
        vectors = [t for t in tensors if t.ndim == 3 and tuple(t.shape[:2]) in self.shapes]
        self.vectors += [t for t in vectors if t.requires_grad or self.in_order]


def require_dependent(value_B: Tensor) -> None:
    """Raise if the explained values have no gradient."""
    if not value_B.requires_grad:
        raise NotOffered(
            "the explained output does not depend on the input by way of anything differentiable. If the model "
            "computes under torch.no_grad() or detaches its features, remove that."
        )


@dataclass
class Traced:
    """A forward pass that can still be differentiated; ``main`` is the leaf that the units are steps of."""

    value_B: Tensor
    answer_B: Tensor  # what the model answered: the values are computed from it
    leaves: list[Tensor]
    seen: BeforeAttention
    main: Tensor | None = None
    shared: bool = False  # the values are of one row, which was run once for all of them
    # Leaves that an encoder out of sight handed over, vectors of image tokens, and the id of those tokens.
    features: Sequence[tuple[Tensor, int]] = ()
    rules: Any = None  # the function mode that the pass was run under
    again: bool = False  # other values of the same pass follow

    def gradients(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        require_dependent(self.value_B)
        if not self.shared:
            return slopes(self.value_B.sum(), tensors, self.again)
        rows = [slopes(value, tensors, again=True) for value in self.value_B]
        return [torch.cat(each) for each in zip(*rows, strict=True)]

    def at_answer(self) -> Tensor:
        """(B,) Σ_j z_j ∂s/∂z_j: what rules that start at the model's answer z propagate. No pass through the model."""
        require_dependent(self.value_B)
        (gradient,) = slopes(self.value_B.sum(), [self.answer_B], again=True)
        return (self.answer_B.detach() * gradient).flatten(1).sum(1).float()

    def require_followed(self) -> None:
        """Raise if a part of the pass ran out of sight of changed rules."""
        if self.seen.unfollowed:
            raise NotOffered(
                f"part of the model runs with gradients off ({self.seen.unfollowed} of what depends on the input): a "
                "torch.autograd.Function with a backward of its own, or re-entrant gradient checkpointing. Changed "
                "gradient rules do not hold there. Write the function out in plain torch, or turn checkpointing off."
            )

    def tokens(self) -> Tensor:
        """Return the vectors that enter the first block: the last before any attention that nothing goes around.

        Without attention they are the first, since any block may have mixed those that follow.
        """
        if self.seen.shapes[0] == self.seen.shapes[1] != (1, 1):
            raise AmbiguousLayout(
                f"{self.seen.shapes[0][0]} inputs of as many positions cannot be told apart. Use another batch size."
            )
        leaves = {id(leaf) for leaf in self.leaves}
        for candidate in reversed(self.seen.vectors) if self.seen.over else self.seen.vectors:
            # What these leaves reach the output through alone. Others (TabTransformer's numbers, which go straight to
            # its head) do not matter.
            node = candidate.grad_fn
            behind = {id(candidate)} & leaves if node is None else _ends(node, None, leaves)
            named = self.main is None or id(self.main) in behind
            closed = candidate if node is None else node
            if named and behind and not behind & _ends(self.value_B.grad_fn, closed, behind):
                return candidate
        raise NotOffered(
            "the vectors that enter the first block were not found: no tensor with one vector per position carries all "
            "of the input."
        )

    def batch_first(self, tokens: Tensor) -> Tensor:
        """Tokens in the model's own order → (B, N, D)."""
        return tokens if tuple(tokens.shape[:2]) == self.seen.shapes[0] else tokens.transpose(0, 1)


def slopes(total: Tensor, tensors: Sequence[Tensor], again: bool = False) -> list[Tensor]:
    """The gradient of one number by tensors; zeros where it does not depend on them. again: another number follows."""
    try:
        gradients = torch.autograd.grad(total, list(tensors), retain_graph=again, allow_unused=True)
    except torch.utils.checkpoint.CheckpointError as error:
        raise NotOffered(
            "the model recomputes its layers in backward (gradient checkpointing), where changed rules cannot "
            "follow. Turn it off for explaining: model.gradient_checkpointing_disable()."
        ) from error
    except RuntimeError as error:
        if "use_reentrant" in str(error):
            raise NotOffered(REENTRANT) from error
        raise
    except (AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise NotOffered(
            f"the backward pass that the model brings along (a torch.autograd.Function) raised {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200].rstrip('.')}. There are no gradients to be had of it."
        ) from error
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True)]


def nodes_behind(start: Any, closed: Any = None) -> set[Any]:
    """Return all nodes of the graph behind one (None: no graph), without entering ``closed``."""
    seen, waiting = {start} - {None}, [start] if start is not None else []
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node is not closed and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def _ends(start: Any, closed: Any, ends: set[int]) -> set[int]:
    """Which of ``ends`` (leaves, by id) can be reached from a node of the graph without entering ``closed``."""
    leaves = (getattr(node, "variable", None) for node in nodes_behind(start, closed))
    return {id(leaf) for leaf in leaves if leaf is not None and leaf is not closed} & ends


@dataclass(frozen=True)
class Entrance:
    """Which of the tensors that depend on the input, counted as the model makes them, enters the first block."""

    number: int
    sequence_first: bool

    @classmethod
    def of(cls, trace: Traced, leaf_count: int) -> Entrance | None:
        """Found in a traced pass; None where it is the input itself. ``leaf_count``: leaves that no function made."""
        tokens = trace.tokens()
        number = next(i for i, t in enumerate(trace.seen.vectors) if t is tokens) - leaf_count
        first = tuple(tokens.shape[:2]) != trace.seen.shapes[0]
        return None if number < 0 else cls(number, first)


class Enter(TorchFunctionMode):
    """A later pass: keep the vectors (B, N, D) that enter the first block in ``seen``, or replace them.

    The input has to be a leaf that requires a gradient, as it was in the traced pass.
    """

    def __init__(self, entrance: Entrance, batch: int, positions: int, vectors_BND: Tensor | None = None) -> None:
        super().__init__()
        self.entrance, self.vectors_BND = entrance, vectors_BND
        self.seen: Tensor | None = None
        self._before = BeforeAttention(batch, positions)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        counted = len(self._before.vectors)
        out = self._before.__torch_function__(func, types, args, kwargs)
        if len(self._before.vectors) == counted or counted != self.entrance.number:
            return out
        self.seen = out.transpose(0, 1) if self.entrance.sequence_first else out
        self._before.over = True  # nothing after it is counted
        if self.vectors_BND is None:
            return out
        return self.vectors_BND.transpose(0, 1) if self.entrance.sequence_first else self.vectors_BND


# What a function mode did not see: nodes of autograd's graph that were made between the functions that it saw.
#
# TorchScript, operators of other libraries and a ``torch.autograd.Function`` compute where no mode reaches. Autograd
# numbers its nodes in the order in which they are made, so a gap between the end of one function and the beginning of
# the next is something that no rule was applied to.

# As autograd calls what only moves entries, beside the names that Python has for it.
MOVES = (fn.LAYOUTS | fn.PIECES | fn.REPEATS | fn.CASTS | fn.COPIES) | frozenset(
    "unsafe_view _unsafe_view as_strided slice select index split_with_sizes to_copy cat stack native_dropout".split()
)
FACTORS = fn.PRODUCTS | fn.WEIGHTED | frozenset("mm mul div".split())


class Gaps:
    """Enter it around every function that a mode sees; ``close`` it when the model has run."""

    def __init__(self) -> None:
        self._gaps: list[range] = []
        self._depth = 0
        self._end: int | None = None

    def __enter__(self) -> None:
        if not self._depth:
            self.close()
        self._depth += 1

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def __exit__(self, *exc: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._end = _next_node()

    def close(self) -> None:
        now = _next_node()
        if not self._depth and self._end is not None and now > self._end:
            self._gaps.append(range(self._end, now))
            self._end = now

    def functions(
        self, value: Tensor, linear_is_known: bool, linear: Collection[type] = (), inputs: Tensor | None = None
    ) -> set[str]:
        """Return unseen functions behind ``value`` that have no rule; linear ones have one if ``linear_is_known``.

        linear: classes of torch.autograd.Function that are linear (those of quantised layers). inputs: what is behind
        them does not count.
        """
        names = set()
        closed = None if inputs is None else inputs.grad_fn
        for node in nodes_behind(value.grad_fn, closed) if self._gaps else ():
            number = node._sequence_nr()
            if not any(number in gap for gap in self._gaps):
                continue
            name = _name(node)
            known = linear_is_known and (name in fn.LINEAR or getattr(node, "_forward_cls", None) in linear)
            if name in FACTORS:  # linear in one factor at a time
                known = linear_is_known and sum(function is not None for function, _ in node.next_functions) < 2
            if name and not known and name not in MOVES and name != "accumulate_grad":
                names.add(name)
        return names


def _next_node() -> int:
    """The number that the next node will get in this thread."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number


def _name(node: Any) -> str:
    """TanhBackward0 → tanh; the name of a class with a backward of its own; none of what moves between processes."""
    written = getattr(node, "_forward_cls", None)
    if written is not None:
        # What passes tensors between processes adds and copies: its plain gradient is the rule.
        ruled = written.__module__.startswith(("whyformer.", "torch.distributed."))
        return "" if ruled else str(written.__name__)
    name = re.sub(r"Backward\d*$", "", node.name().rsplit("::", 1)[-1])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def unruled_text(functions: set[str], hidden: set[str]) -> list[str]:
    """Return the warning about functions without a relevance rule."""
    said = [", ".join(sorted(functions))] if functions else []
    if hidden:
        where = "in code that Python does not see (TorchScript, another library's operator, a torch.autograd.Function)"
        said.append(f"{', '.join(sorted(hidden))} {where}")
    return [f"no relevance rule for {', nor for '.join(said)}: the plain gradient was used there."] if said else []
