"""Later passes of a model under the rules of AttnLRP: which function meets which rule is known from the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import Args, Function, Kwargs, in_model
from whyformer.capture.lrp.changed_gradients import GradientRules, Step, carried_by
from whyformer.capture.site import OffPlan

Attribute = type(Tensor.shape.__get__)  # type: ignore[attr-defined]  # x.shape, x.dtype, …
LOOKUPS = frozenset(("embedding", "embedding_bag", "__getitem__"))


def steps_of(rules: GradientRules) -> tuple[Step, ...] | None:
    """The functions of a pass with their rules; None if something in it has to be watched each time."""
    watched = rules.unruled or rules.cut or rules.gaps or not rules.plannable
    return None if watched else tuple(rules.steps)


class PlannedRules(TorchFunctionMode):
    """Apply the rules of an earlier pass step by step; OffPlan if the model does something else.

    lookups: the mode that makes the word embeddings leaves. It is asked only where something is looked up: each further
    mode costs microseconds per function.
    """

    def __init__(self, steps: Sequence[Step], lookups: TorchFunctionMode, attention_is_constant: bool) -> None:
        super().__init__()
        self.steps, self.lookups, self.attention_is_constant = steps, lookups, attention_is_constant
        self.cut, self.unruled, self.gaps = (), (), ()  # nothing, as in the plan's pass
        self._next = iter(steps)

    def __torch_function__(self, func: Function, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if type(func) is Attribute:
            return func(*args)
        function, rule, carried = next(self._next, (None, None, None))
        if func is not function and func != function:
            if function is None and not in_model():  # the scalar is computed from the answer
                return func(*args, **(kwargs or {}))
            raise OffPlan
        if carried is not None and carried_by(args, kwargs or {}) != carried:  # another rule may hold
            raise OffPlan
        if rule is not None:
            return rule(self, func, args, kwargs or {})
        if func.__name__ in LOOKUPS:
            return self.lookups.__torch_function__(func, types, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def require_done(self) -> None:
        """Raise OffPlan if the pass ended early."""
        if next(self._next, None) is not None:
            raise OffPlan

    def unruled_text(self, *_: Any) -> list[str]:
        """Return what the plan's pass had to say of functions without a rule."""
        return []
