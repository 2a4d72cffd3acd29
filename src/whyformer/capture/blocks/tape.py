"""A tape of torch function calls, so that a stretch of a model can be followed, and run again on other numbers.

Every tensor on the tape has a number. A call that changes a tensor in place gives it a new number, and what the old
number stood for is kept as a copy. A stretch is run again on tensors of the shape it was recorded with.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from whyformer.capture.functions import DECIDES, IN_PLACE
from whyformer.errors import NotOffered

LOST = -1  # a tensor whose memory was overwritten through another view of it
Env = dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor among the arguments of a call, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class TapedCall:
    """One torch function call. ``outs`` holds a number per result, None where a result is no tensor."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    several: bool  # the function returns a tuple or list of tensors
    in_place: bool

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(_refs((self.args, self.kwargs)))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def run(self, env: Mapping[int, Tensor]) -> tuple[Any, ...]:
        """The results on other tensors; what is passed in is never changed."""
        args, kwargs = _filled(self.args, env), _filled(self.kwargs, env)
        if self.in_place:
            target = args[0].clone()
            self.func(target, *args[1:], **kwargs)
            return (target,)
        out = self.func(*args, **kwargs)
        return tuple(out) if self.several else (out,)


class Tape:
    """Calls in order, and every tensor they read or made, until it is told to forget."""

    def __init__(self) -> None:
        self.calls: list[TapedCall] = []
        self.values: Env = {}
        self._numbers: dict[int, int] = {}  # id of a tensor that ``values`` keeps alive -> number
        self._count = 0

    def number(self, tensor: Tensor) -> int:
        known = self._numbers.get(id(tensor))
        return self._new(tensor) if known is None else known

    def _new(self, tensor: Tensor) -> int:
        self._count += 1
        self._numbers[id(tensor)] = self._count
        self.values[self._count] = tensor
        return self._count

    def refs(self, arguments: Any) -> Any:
        """Arguments with tensors replaced by their numbers."""
        if isinstance(arguments, Tensor):
            return Ref(self.number(arguments))
        if type(arguments) in (list, tuple):
            return type(arguments)(self.refs(a) for a in arguments)
        if isinstance(arguments, dict):
            return {k: self.refs(v) for k, v in arguments.items()}
        return arguments

    def preserve(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        """Return the tensor that a call will overwrite; keep what shares its memory, and trust no other view of it."""
        in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or bool(kwargs.get("inplace"))
        if not in_place or not args or not isinstance(args[0], Tensor):
            return None
        target: Tensor = args[0]
        place = _memory(target)
        for number, value in list(self.values.items()):
            # What torch.vmap wrapped cannot be used any more once it has ended.
            if number > 0 and not is_functorch_wrapped_tensor(value) and _memory(value) == place:
                self.values[number] = value.clone()
                self._numbers[id(value)] = LOST
                self.values[-number - 1] = value  # keeps the id from being given to another tensor
        return target

    def record(
        self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, out: Any, overwritten: Tensor | None
    ) -> TapedCall | None:
        """Append a call whose arguments are already numbers; None where it made nothing new."""
        if overwritten is not None:
            results: tuple[Any, ...] = (overwritten,)
            outs: tuple[int | None, ...] = (self._new(overwritten),)
        else:
            results = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            if name not in DECIDES and not any(isinstance(r, Tensor) and id(r) not in self._numbers for r in results):
                return None  # nothing but what was there before: contiguous(), dropout in eval mode, sizes
            outs = tuple(self.number(r) if isinstance(r, Tensor) else None for r in results)
        several = overwritten is None and isinstance(out, (tuple, list))
        call = TapedCall(name, func, args, kwargs, outs, several, overwritten is not None)
        self.calls.append(call)
        return call

    def detach(self) -> None:
        """After the pass: let go of the graph that the gradient of the head was taken in."""
        self.values = {number: value.detach() for number, value in self.values.items()}

    def makers(self) -> dict[int | None, TapedCall]:
        """The call that made each tensor, by its number."""
        return {number: call for call in self.calls for number in call.outs}

    def forget(self, before: int) -> None:
        """Drop the first calls, and every tensor that no later call read or made."""
        self.calls = self.calls[before:]
        needed = {n for call in self.calls for n in (*call.inputs, *call.outs)}
        for number in [n for n in self.values if n not in needed]:
            value = self.values.pop(number)
            if self._numbers.get(id(value)) in (number, LOST):
                del self._numbers[id(value)]


def ancestors(calls: Iterable[TapedCall], numbers: Iterable[int]) -> set[int]:
    """Everything the given tensors were made from."""
    past = set(numbers)
    for call in reversed(list(calls)):
        if past.intersection(call.outs):
            past.update(call.inputs)
    return past


def descendants(calls: Iterable[TapedCall], numbers: Iterable[int]) -> set[int]:
    """Everything made from the given tensors."""
    future = set(numbers)
    for call in calls:
        if future.intersection(call.inputs):
            future.update(n for n in call.outs if n is not None)
    return future


@dataclass(frozen=True)
class Replay:
    """The calls that lead from one tensor to another, with everything else they read: ready to run again."""

    start: int
    end: int
    calls: tuple[TapedCall, ...]
    constants: Env

    def run(self, tensor: Tensor, instead: Mapping[int, Callable[[Env], Tensor]] | None = None) -> Tensor:
        """The end for another start; ``instead`` computes some results (by number) in another way."""
        env: Env = {self.start: tensor}
        last_use = {n: i for i, call in enumerate(self.calls) for n in call.inputs}
        for i, call in enumerate(self.calls):
            other = instead.get(call.outs[0] or 0) if instead else None
            results = (other(env),) if other is not None else call.run(ChainMap(env, self.constants))
            env.update({n: r for n, r in zip(call.outs, results, strict=True) if n is not None})
            for n in call.inputs:
                if n in env and last_use[n] == i and n != self.end:
                    del env[n]
        return env[self.end]


def _memory(tensor: Tensor) -> int:
    """Return the address that views of one tensor share; inside ``torch.vmap``, that of the wrapped tensor."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr()


def replay_between(tape: Tape, start: int, end: int) -> Replay:
    """Cut the calls between two tensors out of the tape."""
    first = next((i for i, c in enumerate(tape.calls) if start in c.inputs), len(tape.calls))
    last = next((i for i, c in enumerate(tape.calls) if end in c.outs), first)
    calls = tape.calls[first : last + 1]
    live, needed = descendants(calls, [start]), ancestors(calls, [end])
    if LOST in needed:
        raise NotOffered(
            "part of the block works on memory that was overwritten through another view, so it cannot be run again "
            "on other numbers. Rewrite that in-place operation."
        )
    if any(c.name in DECIDES and live.intersection(c.inputs) for c in calls):
        raise NotOffered(
            "what the block computes next depends on its own numbers (a mixture of experts, an if), so it cannot be "
            "run again on other ones."
        )
    between = tuple(c for c in calls if live.intersection(c.inputs) and needed.intersection(c.outs))
    read = {n for call in between for n in call.inputs if n not in live}
    return Replay(start, end, between, {n: tape.values[n] for n in read})


def _refs(arguments: Any) -> Iterator[int]:
    if isinstance(arguments, Ref):
        yield arguments.number
    elif isinstance(arguments, (list, tuple)):
        for a in arguments:
            yield from _refs(a)
    elif isinstance(arguments, dict):
        for a in arguments.values():
            yield from _refs(a)


def _filled(arguments: Any, env: Mapping[int, Tensor]) -> Any:
    if isinstance(arguments, Ref):
        return env[arguments.number]
    if type(arguments) in (list, tuple):
        return type(arguments)(_filled(a, env) for a in arguments)
    if isinstance(arguments, dict):
        return {k: _filled(v, env) for k, v in arguments.items()}
    return arguments
