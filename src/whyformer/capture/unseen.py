"""What a function mode did not see: nodes of autograd's graph that were made between the functions that it saw.

TorchScript, operators of other libraries and a ``torch.autograd.Function`` compute where no mode reaches. Autograd
numbers its nodes in the order in which they are made, so a gap between the end of one function and the beginning of the
next is something that no rule was applied to.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.functions import CASTS, COPIES, LAYOUTS, LINEAR, PIECES, PRODUCTS, REPEATS, WEIGHTED
from whyformer.capture.leaves import nodes_behind

# As autograd calls what only moves entries, beside the names that Python has for it.
MOVES = (LAYOUTS | PIECES | REPEATS | CASTS | COPIES) | frozenset(
    "unsafe_view _unsafe_view as_strided slice select index split_with_sizes to_copy cat stack native_dropout".split()
)
FACTORS = PRODUCTS | WEIGHTED | frozenset("mm mul div".split())


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

    def __exit__(self, *exc: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._end = _next_node()

    def close(self) -> None:
        now = _next_node()
        if not self._depth and self._end is not None and now > self._end:
            self._gaps.append(range(self._end, now))
            self._end = now

    def functions(self, value: Tensor, linear_is_known: bool) -> set[str]:
        """Functions in the graph of ``value`` that were not seen and for which the plain gradient is no rule.

        linear_is_known: it is one for linear functions.
        """
        if not self._gaps:
            return set()
        hidden = [node for node in nodes_behind(value.grad_fn) if self._is_hidden(node)]
        return {name for node in hidden if (name := _name(node)) and not _is_ruled(node, name, linear_is_known)}

    def _is_hidden(self, node: Any) -> bool:
        number = node._sequence_nr()
        return any(number in gap for gap in self._gaps)


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


def _is_ruled(node: Any, name: str, linear_is_known: bool) -> bool:
    if name in MOVES or name == "accumulate_grad":
        return True
    if name in FACTORS:
        return linear_is_known and sum(function is not None for function, _ in node.next_functions) < 2
    return linear_is_known and name in LINEAR


def unruled_text(functions: set[str], hidden: set[str]) -> list[str]:
    """What an explanation has to say of functions without a rule."""
    said = [", ".join(sorted(functions))] if functions else []
    if hidden:
        where = "in code that Python does not see (TorchScript, another library's operator, a torch.autograd.Function)"
        said.append(f"{', '.join(sorted(hidden))} {where}")
    return [f"no relevance rule for {', nor for '.join(said)}: the plain gradient was used there."] if said else []
