"""The result of a study, and two audits: leaks between positions, and attention that was not intercepted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from whyformer.brief import brief
from whyformer.capture.functions import Args, Function, Kwargs
from whyformer.capture.intercept import current_path
from whyformer.capture.roles import Outline
from whyformer.capture.site import OpenSite, Plan, PlannedSite, Plans
from whyformer.errors import BadInput, CaptureError, NotOverUnits, PartlyCaptured
from whyformer.study.dataflow import Fingerprints, Marks
from whyformer.study.interference import SINGLY, Form
from whyformer.study.readout import Passes, Readout, SiteFacts
from whyformer.study.schedule import Schedule, Windows

# Hidden attention: what runs in TorchScript, another thread or a compiled kernel is not intercepted. A model with some
# of its attention there would seem to be captured as a whole.


class Called(NamedTuple):
    """The modules that are called, by id: in this thread (``here``), and in others."""

    here: set[int]
    in_threads: set[int]


@contextmanager
def noting_calls() -> Iterator[Called]:
    """Inside ``with``: note the modules that are called."""
    called, thread = Called(set(), set()), threading.get_ident()

    def note(module: nn.Module, args: Any, output: Any) -> None:
        (called.here if threading.get_ident() == thread else called.in_threads).add(id(module))

    handle = register_module_forward_hook(note)
    try:
        yield called
    finally:
        handle.remove()


def unseen(model: nn.Module, called: Called, sites: Sequence[str]) -> PartlyCaptured | None:
    """The error that the attention of ``sites`` (paths) is not all that there is, or None."""
    scripts: list[str] = []  # the outermost parts that are TorchScript
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and not any(path.startswith(f"{s}.") for s in scripts):
            scripts.append(path)
    if scripts:
        return PartlyCaptured(
            f"{', '.join(scripts[:8])}: attention inside TorchScript cannot be captured, so a map would be incomplete. "
            f"Pass the Python module that it was made from."
        )
    modules = dict(model.named_modules())
    # What ran here as well is used by somebody else at the same time.
    elsewhere = [path for path, module in modules.items() if id(module) in called.in_threads - called.here]
    if elsewhere:
        return PartlyCaptured(
            f"{', '.join(elsewhere[:8])}: this part of the model ran in another thread, where it cannot be captured, "
            f"so a map would be incomplete. Run the model in the calling thread."
        )
    of_torch = ("torch.nn.modules.container", "torch.nn.modules.dropout", "torch.nn.modules.linear")
    kinds = {type(modules[path]) for path in sites if path} - {type(model)} | {nn.MultiheadAttention}
    kinds = {kind for kind in kinds if not kind.__module__.startswith(of_torch)}
    alike = [path for path, m in modules.items() if isinstance(m, tuple(kinds)) and id(m) in called.here]
    blind = [path for path in alike if not any(site == path or site.startswith(f"{path}.") for site in sites)]
    if not blind:
        return None
    return PartlyCaptured(
        f"{', '.join(blind[:8])}: the attention of {len(blind)} of {len(alike)} modules of the same kind was not "
        f"captured (a compiled function, or a kernel outside torch), so a map would be incomplete. Run the model "
        "uncompiled."
    )


# The leak audit: does information pass between positions anywhere outside the captured attention?
#
# Every captured map is forced to the identity and one position's values are changed at the first site. Wherever the
# model later holds one vector per position, all other positions must be what they were, bit for bit. What enters the
# head is compared, too, and the output, where the head does not read the changed position: a last block whose attention
# was not seen shows nowhere else. With several streams there is one run per stream, and no other stream may change,
# except tokens that a stream's result is placed at. With windows, the token that a merged one contains may change it.

ROUNDING = 1e-4  # of a fingerprint; what is larger is no rounding
GENTLE = (2**-5, 2**-10)  # sizes of a change; 1 is a strong one
MOST = 64  # positions that are told apart; of more, some pairs have the same number


@dataclass(frozen=True)
class Leak:
    """Largest change at a position that should not have changed, and the first place where it showed."""

    amount: float = 0.0
    path: str = ""
    checked: int = 0  # places that were compared

    @property
    def found(self) -> bool:
        return self.amount != 0.0


@dataclass(frozen=True)
class Probe:
    """Positions to disturb at one attention call, and those that may change with each, by number of positions."""

    site: int
    heard: Mapping[int, Mapping[int, Set[int]]]

    def of(self, positions: Iterable[int]) -> Probe:
        """Return the probe of some of its positions."""
        return Probe(self.site, {position: self.heard[position] for position in positions})

    @property
    def may(self) -> dict[int, set[int]]:
        """By number of positions, all that may change; of others none."""
        together = dict[int, set[int]]()
        for heard in self.heard.values():
            for length, places in heard.items():
                together[length] = together.get(length, set()) | places
        return together


def leak_of(run: Passes, sites: int, real: Tensor, read: Set[int] | None, extra: int, front: int | None) -> Leak:
    """Run one input with changes at some of its positions, and compare the other ones.

    Once at one that the head does not ``read``, where there is one. real: (N,) which positions hold the input.
    """
    positions = real.nonzero()[:, 0].tolist()
    if len(positions) < 2:
        return Leak()
    others = [] if read is None else [p for p in positions if p not in read]
    moving = [p for p in others or positions if 2 * p != positions[0] + positions[-1]]  # a flip leaves the middle alone
    position = (moving or others)[len(moving or others) // 3]
    length = len(real)
    everyone = Probe(0, {p: {length: {p}} for p in positions})
    # Where there are embeddings, what happens before the first site is audited as well. Convolutional front ends mix
    # neighbours legitimately: there the audit starts at the first site.
    embedded = run.modality.read.embeds and extra in {0, front}  # all that the model adds comes first
    words = range(extra, length)

    def changed(probe: Probe, strength: float = 1.0, embedded: bool = embedded) -> Marks:
        shifted = [p - extra for p in probe.heard if p in words] if embedded else []
        forward = partial(run.shifted, shifted, strength) if shifted else run
        return _marks(forward, _Isolate(run.names, {length}, probe, strength=strength, last=sites, read=read))

    probe, plain = everyone.of([position]), _marks(run, _Isolate(run.names, {length}, last=sites, read=read))
    strong = changed(probe)
    leak, moved = _verdict(plain, strong, partial(changed, probe), probe), _moved(plain, strong)
    del strong  # marks of three passes at a time
    leak = leak if leak.found else _between(plain, everyone, changed)
    if leak.found or not others or moved <= ROUNDING:
        return leak
    # Embeddings may go to the head around all layers, which is no exchange that maps would have to show. And a head
    # that chooses its rows may have chosen another: it does not after a small change.
    amounts = [_moved(plain, changed(probe, strength, embedded=False)) for strength in (1.0, GENTLE[-1])]
    if amounts[0] <= ROUNDING or not amounts[1]:
        return leak
    again = _marks(run, _Isolate(run.names, {length}))  # a model may answer differently each time
    return leak if _moved(plain, again) > ROUNDING else Leak(amounts[0], "the output", len(plain))


def _between(plain: Marks, everyone: Probe, changed: Callable[[Probe, float], Marks]) -> Leak:
    """Compare passes with changes at sets of positions with those at none and at all; a small change shows a leak, too.

    Each position has a number, and sets go by its digits. So of any two positions there is a set of one without the
    other: what the first changes at the second shows beside the pass with none of them changed, or with all.
    """
    positions = list(everyone.heard)
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(0)).tolist()
    digits = range((min(len(positions), MOST) - 1).bit_length())
    sets = [[p for p, n in zip(positions, order, strict=True) if n % MOST >> digit & 1] for digit in digits]
    whole = changed(everyone, 1.0)

    def leak_of_some(crowd: Probe, marks: Marks) -> Leak:
        for other, beside in ((everyone.of([]), plain), (everyone, whole)):
            apart = everyone.of(crowd.heard.keys() ^ other.heard.keys()).may
            leak = _compared(beside, marks, apart)[0]
            if leak.found and beside.way == marks.way:
                # Layers of eight bits scale a column by its largest number, which a small change leaves as it is.
                little = changed(other, GENTLE[-1])
                if _compared(little, changed(crowd, GENTLE[-1]), apart)[0].found:
                    return leak
        return Leak(checked=len(plain))

    leak = leak_of_some(everyone, whole)
    for some in sets:
        leak = leak if leak.found else leak_of_some(everyone.of(some), changed(everyone.of(some), 1.0))
    return leak


def _moved(plain: Marks, changed: Marks) -> float:
    """Return the relative change of the output; 0 where it is not finite."""
    share = float((plain.output - changed.output).abs().max() / plain.output.abs().max().clamp_min(1e-30))
    return share if math.isfinite(share) else 0.0


def audit_streams(run: Passes, probes: Sequence[Probe], cross: Set[int], lengths: Set[int]) -> Leak:
    """Compare runs with changes of one stream each with one without; ``cross``: calls where one stream asks another."""
    plain = _marks(run, _Isolate(run.names, lengths, cross=cross))

    def changed(probe: Probe, strength: float = 1.0) -> Marks:
        return _marks(run, _Isolate(run.names, lengths, probe, cross, strength))

    for everyone in probes:
        positions = list(everyone.heard)
        probe = everyone.of([positions[len(positions) // 2]])
        leak = _verdict(plain, changed(probe), partial(changed, probe), probe)
        leak = leak if leak.found else _between(plain, everyone, changed)
        if leak.found:
            return leak
    return Leak(checked=len(plain) * len(probes))


def _verdict(plain: Marks, strong: Marks, changed: Callable[[float], Marks], probe: Probe) -> Leak:
    """A leak, unless it is of the size of rounding and goes away once both runs take the same way through the model."""
    leak, share = _compared(plain, strong, probe.may)
    if not leak.found or plain.way == strong.way:
        return leak
    # A router may send the changed position to another expert. Then the others are sorted and multiplied in groups of
    # another size, and rounded differently. A change that is small enough leaves the router where it was.
    for strength in GENTLE:
        gentle = changed(strength)
        if gentle.way == plain.way:
            small = _compared(plain, gentle, probe.may)[0]
            return leak if small.found and share > ROUNDING else small
    return leak


def _marks(forward: Callable[[], Tensor], intercept: _Isolate) -> Marks:
    with torch.no_grad(), intercept:
        output = forward()
    marks = intercept.prints.marks
    marks.output = output.detach().double()
    return marks


def _compared(plain: Marks, changed: Marks, may: Mapping[int, Set[int]]) -> tuple[Leak, float]:
    """Return the first place that changed and is none that ``may``, and the size of the change relative to it."""
    moved: list[tuple[Leak, float]] = []
    for (path, before), (_, after) in zip(plain, changed, strict=False):
        if len(before) != len(after) or torch.equal(before, after):
            continue
        apart, heard = (before - after).abs(), list(may.get(len(before), ()))
        itself = float(apart[heard].max()) if heard else 0.0
        apart[heard] = 0
        amount = float(apart.max())
        if not amount:
            moved = []
            continue
        moved.append((Leak(amount, path, len(plain)), amount / max(float(before.abs().max()), 1e-30)))
        if itself or int((apart > 0).sum()) > len(heard):
            return moved[0]
    # Experts take tokens in another order (sorted by expert), and put them back: a leak if a later module shows it.
    if len({leak.path.rpartition(".")[0] for leak, _ in moved}) > 1:
        return moved[0]
    return Leak(checked=len(plain)), 0.0


class _Isolate(Outline):
    """Forces every map to the identity, and keeps a fingerprint of each position wherever it has a vector."""

    explicit = True

    def __init__(
        self,
        names: dict[int, str],
        lengths: Set[int],
        probe: Probe | None = None,
        cross: Set[int] | None = None,
        strength: float = 1.0,
        last: int | None = None,
        read: Set[int] | None = None,
    ) -> None:
        super().__init__(1, names)
        self.lengths, self.probe, self.cross, self.strength = lengths, probe, cross, strength
        self.prints = Fingerprints(lengths, partial(current_path, names), last, read)

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        self.prints.see(func.__name__, args, out, len(self.sites))
        return out

    def at_site(self, site: OpenSite) -> None:
        weights, value = site.attention_BHQK, site.value_BHKD
        queries, keys = weights.shape[-2:]
        identity = torch.zeros(weights.shape, dtype=weights.dtype, device=value.device)  # weights may be a mere shape
        index = len(self.sites)
        if site.kind == "self" if self.cross is None else index not in self.cross:
            rows = torch.arange(queries, device=identity.device)
            identity[:, :, rows, rows + site.first_query] = 1
        site.attention_BHQK = identity  # cross-attention is silenced: no other stream may speak
        if len(value) == 1 and keys in self.lengths:  # values may have been mixed since they were projected
            self.prints.add(value[0].transpose(0, 1).flatten(1))
        probe = self.probe
        places = [p for p in probe.heard if p < keys] if probe is not None and index == probe.site else []
        if places:
            changed = value.clone()
            value_HPD = changed[0, :, places]  # of windows, in the first one
            changed[0, :, places] = value_HPD.lerp(value_HPD * -1.5 + 0.5, self.strength)
            site.value_BHKD = changed


@dataclass(frozen=True)
class Study:
    """What is known about a model and a kind of input."""

    sites: tuple[SiteFacts, ...] = ()
    readout: Readout | None = None
    grid: tuple[int, int] | None = None
    leak: Leak = field(default_factory=Leak)
    unclaimed: tuple[str, ...] = ()
    extra: int = 0  # positions that the model adds to those of the input (CLS)
    input_length: int = 0
    forwards: int = 0  # passes that the study took
    front: int | None = None  # how many of those come before the input's; None: all
    trouble: CaptureError | None = field(default=None, compare=False)
    schedule: Schedule | None = None  # streams, and who asks whom
    readouts: dict[str, Readout] = field(default_factory=dict)  # per stream, for several
    windows: Windows | None = None  # where the tokens stand, for attention inside windows
    notes: tuple[str, ...] = ()  # what every explanation has to say about this model
    fused: bool = False  # every map came out of torch's own attention function
    hidden: bool = False  # part of the model ran out of sight
    by_content: bool = False  # the structure may be another for each input, which is then studied by itself
    warnings: list[str] = field(default_factory=list, compare=False)  # about gradients, once they were taken
    plans: Plans = field(default_factory=Plans, compare=False)  # the calls of later passes
    read_rows: dict[Any, Tensor] = field(default_factory=dict, compare=False)  # by length: weights of unpadded rows
    undisturbed: set[Form] = field(default_factory=set, compare=False)  # batches on which looking changed nothing

    def __repr__(self) -> str:
        return brief(self)

    def refused(self, error: CaptureError, **known: Any) -> Study:
        """Return the study with the error that attention cannot be read; its traceback would keep the model alive."""
        error.__traceback__ = error.__context__ = error.__cause__ = None
        return replace(self, trouble=error, **known)

    @cached_property
    def by_input(self) -> Study:
        """Return the study for methods that read no attention, whose units are those of the inputs."""
        general = tuple(note for note in self.notes if note == SINGLY)
        return Study(grid=self.grid, input_length=self.input_length, undisturbed=self.undisturbed, notes=general)

    def layer_count(self, start_layer: int = 0) -> int:
        """Return the number of layers; raise if ``start_layer`` is none of them."""
        count = max(1, len(self.sites))  # a pass without attention raises by itself
        if not -count <= start_layer < count:
            raise BadInput(f"start_layer={start_layer}: the model has {count} layers, numbered 0 to {count - 1}.")
        return count

    @cached_property
    def multi_stream(self) -> bool:
        """Several streams of tokens, whose maps were put in order."""
        return bool(self.readouts)

    @cached_property
    def rule(self) -> str:
        """Which rows feed the head, in words."""
        if self.multi_stream:
            rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in self.readouts.items()}
            return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
        return "" if self.readout is None else str(self.readout)

    @cached_property
    def plain(self) -> bool:
        """Self-attention over one sequence without leaks: any method may read it."""
        return self.trouble is None and bool(self.sites) and self.one_stream and not self.leak.amount

    @cached_property
    def torch_own(self) -> Plan | None:
        """The plan of passes, if all attentions are torch's own function in its plain form."""
        plain = all(
            s.kind == "self" and s.windows == 1 and s.queries == s.keys and s.heads > 1 and not s.parallel
            for s in self.sites
        )
        plain = plain and 1 not in self.batch_axes.values()  # heads in front of the inputs
        sites = [PlannedSite.fused(s.path, s.heads, s.keys) for s in self.sites]
        return Plan.fused(sites) if self.fused and plain and not self.unclaimed else None

    @cached_property
    def batch_axes(self) -> dict[int, int]:
        """Which axis of a map counts the inputs, by site, where it is one of two."""
        return {i: s.batch_axis for i, s in enumerate(self.sites) if s.batch_axis is not None}

    @cached_property
    def one_stream(self) -> bool:
        """Plain self-attention over one sequence."""
        return (
            all(s.kind == "self" and s.windows == 1 for s in self.sites)
            and len({(s.keys, s.streams) for s in self.sites}) == 1
        )


def require_readable(study: Study, multi_stream: bool = False) -> None:
    """Raise where an attention explanation would be empty, partial, or not about the units.

    multi_stream: the method knows the rules for several streams, and for windows.
    """
    if study.trouble is not None:
        raise type(study.trouble)(*study.trouble.args)  # a new one: the study outlives the frames it would hold
    if not study.sites or study.unclaimed:
        return  # the record itself says what is missing
    ruled = multi_stream and (study.windows is not None or study.multi_stream)
    if not ruled and any(s.windows > 1 for s in study.sites):
        raise NotOverUnits(
            "attention runs inside windows of the image (Swin), so maps of different layers cannot be combined."
        )
    if not ruled and not study.one_stream:
        raise NotOverUnits(
            "the model has several streams of tokens (cross-attention), or layers over different numbers of them: "
            + ", ".join(sorted({f"{s.kind} {s.queries}×{s.keys}" for s in study.sites}))
            + ". A layer that uses the keys and values of an earlier one (Gemma 3n) counts as cross-attention."
        )
    if study.leak.amount:
        raise PartlyCaptured(
            f"positions exchange information outside the captured attention (at {study.leak.path}: a change of "
            f"{study.leak.amount:.1e}, expected 0), so an attention map would miss part of the computation."
        )
