"""What threads share: parts of models, which they take turns with, Ctrl-C, and torch's random numbers.

A lock belongs to the modules, parameters and configs that are changed, not to the model that was asked for: two
wrappers of one backbone take turns.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from _signal import SIGINT, getsignal  # type: ignore[import-not-found]  # those of signal make enums of the answers
from _signal import signal as set_signal
from collections.abc import Iterable, MutableMapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whyformer.errors import NotOffered

POLL = 0.2  # seconds
PATIENCE = 20.0  # seconds for which a holder has to stand still before it is taken to wait for the one who asks


class uninterrupted:  # noqa: N801 (used like a function)
    """Inside ``with``: delay Ctrl-C until the block is done. Other threads never receive it."""

    __slots__ = ("before", "noted")

    def __enter__(self) -> None:
        self.before: Any = None
        self.noted: list[tuple[int, Any]] = []
        before = getsignal(SIGINT)
        if callable(before) and threading.current_thread() is threading.main_thread():
            self.before = before
            set_signal(SIGINT, lambda *said: self.noted.append(said))

    def __exit__(self, *exc: object) -> None:
        if self.before is not None:
            set_signal(SIGINT, self.before)
            if self.noted:
                self.before(*self.noted[-1])


class SharedLock:
    """The lock of parts that were first borrowed together; a model that shares one of them takes it, too."""

    count = itertools.count()

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.number = next(SharedLock.count)  # several are taken in this order
        self.holder = 0  # the thread that had it last


# By identity: equality and hashes of others' classes are not asked. Without a lock of its own, which a fork or an
# interrupt could leave locked: each step of a dict is whole.
_TURNS: dict[int, tuple[weakref.ref[Any], SharedLock]] = {}
_WAITING: dict[int, SharedLock] = {}  # thread -> what it waits for


def turns_of(members: Iterable[Any]) -> list[SharedLock]:
    """Return the locks of these modules, parameters and configs, in the order in which they are acquired."""
    turns: dict[int, SharedLock] = {}
    new: SharedLock | None = None
    for member in members:
        entry = _TURNS.get(id(member))
        if entry is None or entry[0]() is not member:
            new = SharedLock() if new is None else new
            entry = _enrolled(member, new)
        if entry is not None:
            turns[entry[1].number] = entry[1]
    return [turns[number] for number in sorted(turns)]


def take(taken: list[SharedLock], turns: Iterable[SharedLock]) -> None:
    """Acquire these locks, and append them to ``taken`` one by one."""
    for turn in turns:
        with uninterrupted():  # or it could be held by nobody who knows
            taken += [turn] * turn.lock.acquire(timeout=POLL)
        if turn not in taken:
            _wait(taken, turn)
        turn.holder = threading.get_ident()


def release(taken: list[SharedLock]) -> None:
    """Release these locks; Ctrl-C is delayed until it is done."""
    with uninterrupted():
        while taken:
            taken.pop().lock.release()


def _enrolled(member: Any, turn: SharedLock) -> tuple[weakref.ref[Any], SharedLock] | None:
    """Register a new member; members that are new together share a lock."""
    key = id(member)

    def gone(ref: weakref.ref[Any]) -> None:
        entry = _TURNS.get(key)
        if entry is not None and entry[0] is ref:
            del _TURNS[key]

    try:
        ref = weakref.ref(member, gone)
    except TypeError:  # a config that is a plain dict: nothing is changed there
        return None
    entry = _TURNS.get(key)
    if entry is not None and entry[0]() is None:
        _TURNS.pop(key, None)
    return _TURNS.setdefault(key, (ref, turn))


def _wait(taken: list[SharedLock], turn: SharedLock) -> None:
    """Acquire the lock; raise if its holder waits for this thread (a deadlock)."""
    me, place, since = threading.get_ident(), None, 0.0
    _WAITING[me] = turn
    try:
        while True:
            other = turn.holder
            while other in _WAITING and other != me:
                other = _WAITING[other].holder
            before, place = place, _standing(other)
            since = since + POLL if place is not None and place == before else 0.0
            if other == me or since >= PATIENCE:
                raise NotOffered(
                    "the model is being explained by a thread that waits for this one, so both would wait forever: a "
                    "forward that explains its own model in another thread, or two threads that each explain the "
                    "other's model inside an explanation. Call whyformer outside of forward, one model at a time."
                )
            with uninterrupted():
                taken += [turn] * turn.lock.acquire(timeout=POLL)
            if turn in taken:
                return
    finally:
        _WAITING.pop(me, None)


def _standing(thread: int) -> tuple[int, int] | None:
    """Return where a thread waits for another one (join, result, queue), or None if it does not."""
    frame = sys._current_frames().get(thread)
    names = ("threading", "queue", "concurrent.futures._base", "concurrent.futures.thread", "selectors")
    files = {getattr(sys.modules[name], "__file__", None) for name in names if name in sys.modules}
    if frame is None or frame.f_code.co_filename not in files:
        return None
    return id(frame), frame.f_lasti


def free_in_child() -> None:
    """After a fork there is one thread: release the locks of the others."""
    _WAITING.clear()
    for _, turn in list(_TURNS.values()):
        if not turn.lock._is_owned():
            turn.lock = threading.RLock()
    # Up to Python 3.11 a cached property has a lock, the same one for all objects of its class.
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("whyformer.")]:
        for kind in [thing for thing in vars(module).values() if isinstance(thing, type)]:
            for member in vars(kind).values():
                lock: Any = getattr(member, "lock", None) if isinstance(member, cached_property) else None
                if lock is not None and not lock._is_owned():
                    member.lock = threading.RLock()


# Random numbers of a model: the same ones in every pass, and not from the generators that everybody uses.


SIGMOIDS = (torch.ops.aten.sigmoid.default, torch.ops.aten.sigmoid_.default)


class Watch(TorchDispatchMode):
    """A mode that torch calls as it is. Wrapped against torch's compiler, as others are, its first operator would
    import all of that compiler, for a second and more; parts that are compiled run eagerly here in any case."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Draws(Watch):
    """Inside ``with``, a pass: whatever this thread draws comes from generators of its own, which begin at a seed.

    torch has one generator per device for all threads. Kernels that can be given no other (fused dropout) have theirs
    in it for the moment. Whether the model draws at all is noted in ``facts``. ``sigmoid`` is what the last one gave.
    """

    supports_higher_order_operators = True

    def __init__(self, facts: MutableMapping[Any, Any], seed: int = 0) -> None:
        super().__init__()
        self.facts, self.seed, self.drew = facts, seed, False
        self.sigmoid: Tensor | None = None
        self._generators: dict[torch.device, torch.Generator] = {}

    def __exit__(self, kind: type[BaseException] | None, *exc: Any) -> None:
        super().__exit__(kind, *exc)
        if self.drew or kind is None:
            self.facts["draws"] = self.drew

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in SIGMOIDS:
            self.sigmoid = func(*args, **kwargs)
            return self.sigmoid
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        named = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        dropout = next((a for a in func._schema.arguments if a.name == "dropout_p"), None)
        if dropout is not None and not named.get("dropout_p", dropout.default_value):  # attention in eval mode
            return func(*args, **kwargs)
        first = next((leaf.device for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), torch.device("cpu"))
        device = torch.device(kwargs.get("device") or first)
        if device.type not in {"cpu", "cuda"}:
            self.drew = True
            return func(*args, **kwargs)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        numbers, draw = self._generators[device], func
        if all(argument.name != "generator" for argument in func._schema.arguments):
            # The same operator with a generator as an argument, if torch has one.
            name = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
            draw = getattr(func.overloadpacket, name, None)
        before = numbers.get_state()
        try:
            if draw is not None:
                return draw(*args, **{**kwargs, "generator": numbers})
            everybodys = (
                torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
            )
            with uninterrupted():
                theirs = everybodys.get_state()
                everybodys.set_state(before)
                try:
                    return func(*args, **kwargs)
                finally:
                    numbers.set_state(everybodys.get_state())
                    everybodys.set_state(theirs)
        finally:
            self.drew = self.drew or not torch.equal(before, numbers.get_state())
