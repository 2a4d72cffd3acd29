"""Borrow a model and hand it back exactly as it came.

Explaining from several threads is safe, also where two models share a part (turns.py). Inside, the model is in eval
mode with frozen weights (so that no gradient is kept for them) and with an attention implementation that can be seen;
afterwards, also after an exception or Ctrl-C, every flag is what it was. What was found out about a model is kept
while it is what it was: its structure (fingerprint.py), and its weights by the writes that torch counts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered
from whyformer.loan.digests import Undescribed, digest
from whyformer.loan.fingerprint import Place, Traits, traits_of
from whyformer.loan.parts import Look, Members
from whyformer.loan.spread import BESIDE_OTHERS, NoStage, offloaded, require_loaded
from whyformer.loan.turns import SharedLock, free_in_child, release, take, uninterrupted

P = ParamSpec("P")
T = TypeVar("T")
Changes = list[tuple[Any, str, Any]]  # owner, attribute, value
Marks = tuple[tuple[nn.Module, str, Any], ...]  # whose output is an attention map, its layout, a hook that says so
IS_META, VERSION, ADDRESS = attrgetter("is_meta"), attrgetter("_version"), nn.Parameter.data_ptr
VISIBLE = {None, "sdpa", "eager"}
NO_TOKEN = -1  # stands for the padding token of a model that names none
REMEMBERED = 64  # facts about one model: its forms of input
UNMARKED = ((), "")  # the place of a plain call


Weights = tuple[list[int], list[int]]  # writes and addresses


def weights_of(parameters: Sequence[Tensor], counted: bool = False) -> Weights:
    """Return how often torch counted a write to each weight, and where its numbers are; no number is read."""
    if counted:
        return list(map(VERSION, parameters)), list(map(ADDRESS, parameters))
    # Weights of a class of their own (quantised, sharded) may have no address, or move in every pass. Offloaded ones
    # are other objects after each pass, and writes to those of inference mode are not counted.
    written = [0 if p.is_meta or p.is_inference() else p._version for p in parameters]
    return written, [p.data_ptr() if p.__class__ is nn.Parameter else 0 for p in parameters]


class Known(OrderedDict[Any, Any]):
    """Facts about a model: a cache of ``REMEMBERED`` entries, least recently used first out."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > REMEMBERED:
            self.popitem(last=False)


@dataclass
class Loan:
    """What is kept about a model while it lives: what was found out about it (study/), and the state it holds for."""

    known: Known = field(default_factory=Known)  # at the place below
    place: tuple[Any, Any] = UNMARKED  # which modules are said to give attention maps, and the arguments of the call
    facts: Known = field(default_factory=Known)  # of every place
    traits: Traits = field(default_factory=lambda: Traits({}, {}, {}))
    states: frozenset[Place] = frozenset()  # attributes that a pass changes by itself
    look: Look | None = None  # the model as it was at the last walk
    lent: Members | None = None  # while it is borrowed
    changes: int = 0  # how often it was found to be another than before
    weights: Weights | None = None  # as they were when facts were found; None: look at the model anew
    stands_alone: bool = False  # its passes talk with no other process, collectives aside

    def present(self, model: nn.Module) -> tuple[Look, Members, bool]:
        """Look at the model: its parts, and whether its settings are plainly those for which facts are known.

        It is walked through only if its parts changed.
        """
        members, same = (None, False) if self.look is None else self.look.now(self.states)
        if self.look is None or members is None:
            (self.look, members), same = Look.at(model), False
        return self.look, members, same

    def borrow(self, model: nn.Module, taken: list[SharedLock]) -> tuple[Look, Members, bool]:
        """Look at the model under its locks, which are acquired."""
        while True:
            take(taken, (self.look or self.present(model)[0]).turns)
            look, members, same = self.present(model)
            if all(turn in taken for turn in look.turns):
                return look, members, same
            release(taken)  # it has other parts now, or another thread found some

    def known_at(self, place: tuple[Any, Any]) -> Known:
        if place not in self.facts:
            self.facts[place] = self.known if place == self.place else Known()
        self.facts.move_to_end(place)
        return self.facts[place]

    def forget(self, traits: Traits, look: Look, members: Members) -> None:
        """Drop all facts: the model has changed."""
        self.known.clear()
        self.facts.clear()
        self.traits, self.states = traits, frozenset()
        self.changes += 1
        look.watch(members, traits, self.states)
        self.weights = weights_of(members.parameters, look.counted)

    def learn(self, before: Traits, after: Traits) -> None:
        """Leave out attributes that a pass changes by itself (a counter, a map that is kept): they are no settings."""
        moved = {k for k, v in before.values.items() if after.values.get(k, before) != v}
        moved |= after.values.keys() - before.values.keys()
        moved |= {k for k, refs in before.alive.items() if any(ref() is None for ref in refs)}
        self.states = frozenset(moved)
        values, alive = ({k: v for k, v in part.items() if k not in moved} for part in self.traits[:2])
        self.traits = self.traits._replace(values=values, alive=alive)
        if self.look is not None and self.look.traits is not None:
            self.look.leave_out(self.states)

    def holds(self, look: Look, members: Members) -> bool:
        """Whether the settings of the model are unchanged; compares everything."""
        traits = traits_of(members.modules, self.states)
        gone = any(ref() is None for refs in self.traits.alive.values() for ref in refs)
        if gone or traits.values != self.traits.values:
            return False
        look.watch(members, traits, self.states)
        return True


_LOANS: dict[int, tuple[weakref.ref[nn.Module], Loan]] = {}  # by identity, as turns are


def loan_of(model: nn.Module) -> Loan:
    entry = _LOANS.get(id(model))
    if entry is not None and entry[0]() is model:
        return entry[1]
    key = id(model)

    def gone(ref: weakref.ref[nn.Module]) -> None:
        if key in _LOANS and _LOANS[key][0] is ref:
            del _LOANS[key]

    try:
        for module in model.modules():
            hash(module)
    except TypeError as error:  # torch itself lists modules in sets: without a hash, model.parameters() fails
        raise BadInput(
            f"{type(model).__name__} holds a module that has no hash ({error}), so that torch cannot list its "
            "parameters: a class that defines __eq__ loses it. Add `__hash__ = torch.nn.Module.__hash__` to the class."
        ) from error
    if entry is not None:  # of one that had this id before
        _LOANS.pop(key, None)
    return _LOANS.setdefault(key, (weakref.ref(model, gone), Loan()))[1]


def known_about(model: nn.Module) -> Known:
    """Return the facts known about a model, to read and to add to; they are dropped when the model changes."""
    loan = loan_of(model)
    if loan.lent is None:
        with borrowed(model):  # which looks whether it still holds
            pass
    return loan.known


def fact(find: Callable[Concatenate[nn.Module, P], T]) -> Callable[Concatenate[nn.Module, P], T]:
    """Make a function find something out about a model once for its other arguments, while the model stays as it is."""

    @wraps(find)
    def known(model: nn.Module, /, *form: P.args, **named: P.kwargs) -> T:
        facts, key = known_about(model), (find, *form, *named.items())
        if key not in facts:
            facts[key] = find(model, *form, **named)
        answer: T = facts[key]
        return answer

    return known


def refresh(model: nn.Module) -> None:
    """Drop the facts known about a model at its next use, for writes that torch does not count."""
    loan_of(model).weights = None


def called_with(model: nn.Module, arguments: Hashable) -> None:
    """Until the model is handed back, use the facts known for calls with these arguments (see ``argument_name``)."""
    loan = loan_of(model)
    if arguments != loan.place[1]:
        place = (loan.place[0], arguments)
        loan.known, loan.place = loan.known_at(place), place


def argument_name(arguments: Mapping[str, Any]) -> Hashable:
    """Return a key for arguments that are no inputs; arguments that cannot be described equal no others."""
    if not arguments:
        return ""
    try:
        return digest(arguments)
    except Undescribed:
        return object()


@dataclass(frozen=True)
class Borrowed:
    """The state of a model when it was borrowed, for callers that use it again without another loan (compiled/)."""

    turns: list[SharedLock]
    changes: int
    tensors: list[Tensor]  # attributes that are no parameters or buffers: their memory stays


def as_borrowed(model: nn.Module) -> Borrowed:
    """Return the state of a model; call it while the model is borrowed."""
    loan = loan_of(model)
    assert loan.look is not None
    objects = [ref() for refs in loan.traits.alive.values() for ref in refs]
    tensors = [thing.detach() for thing in objects if isinstance(thing, Tensor)]
    return Borrowed(list(loan.look.turns), loan.changes, tensors)


@contextlib.contextmanager
def in_turn(borrowed: Borrowed) -> Iterator[None]:
    """Inside ``with``: hold the locks of a model that is run and not changed."""
    taken: list[SharedLock] = []
    try:
        take(taken, borrowed.turns)
        yield
    finally:
        release(taken)


def is_as_borrowed(model: nn.Module, borrowed: Borrowed) -> bool:
    """Whether a model is unchanged; call it under its lock."""
    loan = loan_of(model)
    if loan.changes != borrowed.changes or loan.lent is not None:
        return loan.changes == borrowed.changes
    look, members, same = loan.present(model)
    return loan.weights == weights_of(members.parameters, look.counted) and (same or loan.holds(look, members))


def share_known(model: nn.Module, copy: nn.Module) -> None:
    """Copy what is known about a model to a copy of it, which may have other weights."""
    loan, facts = loan_of(copy), known_about(model)
    look, members, _ = loan.present(copy)
    loan.forget(traits_of(members.modules), look, members)
    loan.known.update(facts)
    for (marks, arguments), known in loan_of(model).facts.items():
        if not marks:  # which are modules of the model
            loan.known_at((marks, arguments)).update(known)


def modules_of(model: nn.Module) -> list[nn.Module]:
    loan = loan_of(model)
    return (loan.lent or loan.present(model)[1]).modules


def module_names(model: nn.Module) -> dict[int, str]:
    """Dotted paths of the modules, by identity."""
    loan = loan_of(model)
    look = loan.look if loan.lent is not None else None
    return (look or loan.present(model)[0]).names


def unwrapped(model: Any) -> nn.Module:
    """The plain module inside torch.compile, DataParallel, DistributedDataParallel and peft's PeftModel."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        # Adapters are inside the layers of the base model. Learned prompts are not: PeftModel puts them in front.
        if inner is None and any(c.__name__ == "PeftModel" for c in type(model).__mro__):
            adapters: Any = model
            learned = bool(adapters.active_peft_config.is_prompt_learning)
            if learned and type(model).__name__.endswith("LM"):
                raise NotOffered(
                    f"the {type(model).__name__} puts a learned prompt in front of the tokens, so positions of its "
                    "output are not those of the text. Explain the base model, model.get_base_model(), or one with "
                    "adapters in its layers (LoRA)."
                )
            inner = None if learned else adapters.get_base_model()
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            break
        model = inner
    if isinstance(model, torch.jit.ScriptModule):
        raise NotOffered("TorchScript hides its functions from Python. Pass the Python model it was made from.")
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"model is a {type(model).__name__}, not a torch.nn.Module. Pass the module itself, or a transformers "
            "pipeline or model."
        )
    loan_of(model)  # which refuses what torch itself cannot list
    return model


class Running(threading.local):
    """How many passes of a model this thread is inside of."""

    passes = 0


RUNNING = Running()


class Threads:
    """Whether torch may have threads of its own in this process, and whether a fork left them behind."""

    started = lost = False


@dataclass(eq=False)
class Handed:
    """What was taken and changed for a loan, to be put back."""

    turns: list[SharedLock] = field(default_factory=list)
    before: Changes = field(default_factory=list)
    trained: list[nn.Parameter] = field(default_factory=list)  # weights that have gradients, and meanwhile none
    hooks: list[Any] = field(default_factory=list)
    offloaded: list[tuple[nn.Module, str, bool]] = field(default_factory=list)
    drawn: list[tuple[torch.Generator, torch.Tensor]] = field(default_factory=list)  # where random numbers stood
    thread: int = field(default_factory=threading.get_ident)
    back: bool = False  # everything is as it was


_OUT: list[Handed] = []  # loans of all threads that are out


INSIDE = (
    "a model that is being explained calls whyformer in its own forward: the two would see each other's attention. "
    "Take the explanation out of forward."
)
LOST = (
    "this process was forked from one that had explained, and torch's threads stayed there: the model would wait for "
    "them for ever. Start processes with multiprocessing.get_context('spawn'), or call torch.set_num_threads(1) in "
    "this one first."
)


@contextlib.contextmanager
def borrowed(model: nn.Module, marks: Marks = ()) -> Iterator[None]:  # noqa: PLR0915 (all that is put back)
    """Hold the model's lock, with the model ready to be explained."""
    if RUNNING.passes:
        raise NotOffered(INSIDE)
    if torch.get_num_threads() > 1:
        if Threads.lost:
            raise NotOffered(LOST)
        Threads.started = True
    loan, handed = loan_of(model), Handed()
    try:
        try:
            look, members, same = loan.borrow(model, handed.turns)
            modules, parameters, configs = members
            on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
            handed.drawn = [(generator, generator.get_state()) for generator in (torch.default_generator, *on_devices)]
            lent: Traits | None = None
            # flash and flex kernels never pass a torch function: the model runs on sdpa meanwhile.
            hidden = [c for c in configs if getattr(c, "_attn_implementation", None) not in VISIBLE]
            # Such a model takes one input at a time; with an id that no token has, several of one length.
            unnamed = [model.config] if names_no_padding(model) else []
            written = loan.lent is None and loan.weights != weights_of(parameters, look.counted)
            if written or not (same or loan.lent is not None or loan.holds(look, members)):
                loan.forget(lent := traits_of(modules), look, members)
            if not look.counted and any(map(IS_META, parameters)):
                require_loaded(model)
                handed.offloaded = [(m, n, p.requires_grad) for m in modules for n, p in offloaded(m)]
            place = loan.place
            changes: Changes = [(loan, "lent", members)]
            if marks:
                key = tuple((id(module), layout) for module, layout, _ in marks)
                place = (key, "")
                with uninterrupted():
                    handed.hooks = [module.register_forward_hook(hook) for module, _, hook in marks]
            # Written also where it stays: called_with changes it until the model is handed back.
            changes += [(loan, "known", loan.known_at(place)), (loan, "place", place)]
            changes += [(m, "training", False) for m in modules if m.training]
            trained = [p for p in parameters if p.requires_grad]
            if not look.counted:
                trained = [p for p in trained if not p.is_inference()]
            changes += [(c, "_attn_implementation", "sdpa") for c in hidden]
            changes += [(config, "pad_token_id", NO_TOKEN) for config in unnamed]
            handed.before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
            handed.trained = trained
            _OUT.append(handed)
            for weight in trained:
                weight.requires_grad = False
            for owner, name, value in changes:
                setattr(owner, name, value)
            lent = None if lent is None else traits_of(modules)  # as it is for this loan
            with contextlib.ExitStack() as stack:
                if torch.is_inference_mode_enabled():
                    stack.enter_context(torch.inference_mode(False))
                if look.wraps or look.compiled:
                    # compiled parts would run without the function mode being asked
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                # Refuse a model that talks with another process by itself, until a pass has shown that it does not.
                watch = stack.enter_context(NoStage()) if BESIDE_OTHERS() and not loan.stands_alone else None
                yield
            if watch is not None:
                loan.stands_alone = watch.computed
            if lent is not None:
                loan.learn(lent, traits_of(modules))
        finally:
            _hand_back(handed)
    finally:  # two nets: whatever line of the first an interrupt hits, the second still holds
        _hand_back(handed)


def _hand_back(handed: Handed) -> None:
    """Restore everything and release the locks; calling it again does nothing. Ctrl-C is delayed until it is done."""
    if handed.back:
        return
    with uninterrupted():
        RUNNING.passes = 0
        for owner, name, value in handed.before:
            setattr(owner, name, value)
        for weight in handed.trained:
            weight.requires_grad = True
        handed.before, handed.trained = [], []
        # A pass draws from numbers of its own (turns.Draws). What was drawn besides is taken back, unless it may have
        # been another thread that drew.
        for generator, state in handed.drawn if threading.active_count() == 1 else ():
            generator.set_state(state)
        handed.drawn = []
        while handed.hooks:
            handed.hooks.pop().remove()
        for module, name, requires_grad in handed.offloaded:
            # Such a weight is another object after each pass, so that it is known by its name only.
            parameter = module._parameters.get(name)
            if parameter is not None and parameter.requires_grad != requires_grad:
                parameter.requires_grad = requires_grad
        if handed in _OUT:
            _OUT.remove(handed)
        while handed.turns:
            handed.turns.pop().lock.release()
        handed.back = True


def _after_fork_in_child() -> None:
    """After a fork, release the locks of threads that do not exist here, and restore what they had changed."""
    free_in_child()
    Threads.lost = Threads.started
    for handed in reversed(list(_OUT)):
        if handed.thread != threading.get_ident():
            handed.turns, handed.drawn = [], []
            _hand_back(handed)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def names_no_padding(model: nn.Module) -> bool:
    """Whether a classifier of transformers has no padding id, by which those on decoders find the last token."""
    if getattr(model.__dict__.get("config"), "pad_token_id", 0) not in (None, NO_TOKEN):
        return False
    return any(c.__name__.endswith("ForSequenceClassification") for c in type(model).__mro__)
