"""Positions of the units of a batch, its logits, and the explained scalar. Passes are counted where they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from whyformer.errors import ModelFailed, NotOffered, WhyformerError
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, on_host
from whyformer.inputs.output import Output
from whyformer.inputs.tokens import spoken_at
from whyformer.loan.backwards import why_no_gradients
from whyformer.loan.borrow import known_about, module_names
from whyformer.loan.spread import MultiplyAdds
from whyformer.results.types import Record, Site, Target, Units
from whyformer.study import Study, rows_of_each, streams
from whyformer.study.interference import is_tried, require_apart, require_same
from whyformer.study.readout import MAXIMUM, Passes, require_pooled
from whyformer.study.schedule import Schedule, Windows
from whyformer.targets import are_probabilities, refuse_twice, require_finite, resolve_targets, scalar_at, scalar_of


def spoke_rows(site: Site) -> Tensor | None:
    """(B, Q) whether a row of a map has a gradient; None: there are no gradients."""
    return None if site.attention_grad_BHQK is None else site.attention_grad_BHQK.any(3).any(1)


UNCOMPARED = (
    "the rows that the head reads ({}) are those of the first input of this form: without gradients of the head (its "
    "backward pass raises an error, or there is none), they are not compared on each input."
)
UNMASKED = (
    "the model runs on this input, but not with features of it masked: {}. It needs some of them as they are "
    "(placeholders of sound or images, say), or another replace=."
)
LENGTHS = 32  # cached read-out rows, by length of the input


def _together(batch: Batch) -> tuple[Batch, int]:
    """Return rows of one text with the longest as the one that is run for all, and the number of rows that run."""
    if batch.size == 1 or len(set(batch.trunks)) > 1:
        return batch, batch.size
    assert batch.keep_BN is not None
    longest = int(batch.keep_BN.sum(1).argmax())
    return replace(batch, shared=batch.select([longest])), 1


class ScoredBatch:
    """A batch with targets: positions of its units, the rows that feed the prediction, logits and explained values."""

    recorded = False  # as a CUDA graph: no number may be read on the host (compiled/)
    rows_read: Tensor | None = None  # rows of the map that are read, in place of the one that feeds the head
    setup_forwards = 0  # passes of checks that run once for each form of a batch
    gives_probabilities = False  # the model returns probabilities, not logits; known once it has run
    logits_on_host: Tensor = torch.empty(0)  # once they were checked
    _logits: Tensor | None = None
    _unseen = False  # still to be checked: whether they are finite, and logits at all
    _targets: list[Target] | None = None
    _value_B: Tensor | None = None

    def __init__(
        self,
        modality: Modality,
        batch: Batch,
        study: Study,
        *,
        target: Any = None,
        scalar: str = "logit",
        seed: int = 0,
        batch_size: int = 32,
        keep_layers: bool = False,
        track: Callable[[Sequence[Any], str], Any] | None = None,
    ) -> None:
        self.modality, self.batch, self.study = modality, batch, study
        self.device = next(iter(batch.tensors.values())).device  # of the inputs
        # Several streams of tokens; positions added by the model before the input's (None: all that it adds); attention
        # inside windows (Swin), whose places are known.
        self.multi_stream, self.front, self.windowed = study.multi_stream, study.front, study.windows is not None
        self.seed, self.batch_size, self.keep_layers = seed, batch_size, keep_layers
        # Variants have rows of their own: they are not run together.
        self.together, self.rows_run = (batch, batch.size) if not batch.trunks else _together(batch)
        self.track = track or (lambda steps, label: steps)
        self.output = Output(modality, batch, scalar)
        self.scalar = self.output.scalar
        self.reading = (
            "logit" if batch.answers else self.scalar
        )  # what is read: an answer's output is the scalar already
        self.forwards_B, self.backwards_B = np.zeros(batch.size), np.zeros(batch.size)
        self.notes: set[str] = set()  # warnings for the explanations of this batch
        # (forwards, backwards) of shared passes that the current method has to be charged for, by kind of pass. Its
        # own passes are counted as they run.
        self.asked: dict[str, tuple[float, float]] = {}
        self._wanted, self._records = target, dict[bool, Record]()
        self.numbers: Sequence[int] = range(batch.size)  # of its inputs, among all that were given

    module_names = cached_property(lambda self: module_names(self.modality.model))

    @cached_property
    def length(self) -> int:
        """Return the number of attention positions; several streams are concatenated."""
        if self.multi_stream:
            return sum(self.stream_sizes.values())
        study = self.study
        if not study.sites:
            if study.grid is None or self.batch.by_input:  # a grid inside the model is not that of the units
                return self.modality.place.length(self.batch)
            return study.grid[0] * study.grid[1]
        if study.windows is not None:
            return study.windows.sizes[0]
        if self.modality.place.lengths_vary:
            return self.modality.place.length(self.batch) + study.extra
        return study.sites[0].keys

    @cached_property
    def keep_BN(self) -> Tensor:
        """(B, N) real positions; False at padding."""
        if self.multi_stream:
            sizes = self.stream_sizes.items()
            return torch.cat([streams.keep_in(self.modality, self.batch, stream, size) for stream, size in sizes], 1)
        keep_BN = self.batch.keep_BN
        if self.modality.read.embeds and keep_BN is not None and keep_BN.shape[1] == self.length:
            return keep_BN  # the same object: its numbers are cached on the host
        return self.modality.place.keep(self.batch, self.length, self.front)

    @cached_property
    def unpadded(self) -> bool:
        """Every position of every row is real."""
        return not self.recorded and bool(on_host(self.keep_BN).numpy().all())  # a graph may be replayed with padding

    @cached_property
    def units(self) -> list[Units]:
        if self.multi_stream:
            return streams.units_of(self.modality, self.batch, self.stream_sizes, self.study.grid)
        return self.modality.place.units(self.batch, self.length, self.front, self.study.grid)

    @cached_property
    def segments(self) -> list[tuple[list[list[int]], Units]]:
        """Return, per input, the groups of units that are scored as one, and the units they form; [] if ungrouped."""
        facts: tuple[Any, ...] = self.batch.encodings or ({},) * len(self.units)
        place, by = self.modality.place, self.batch.asked.segments
        divided = [place.divided(units, by, known) for units, known in zip(self.units, facts, strict=True)]
        return [segments for segments in divided if segments is not None]

    @cached_property
    def special_BN(self) -> Tensor:
        """(B, N) special tokens among the attention positions; padding is not special."""
        special = torch.zeros_like(self.keep_BN)
        for row, units in enumerate(self.units):
            special[row, self.keep_BN[row]] = torch.tensor(units.special, device=special.device)
        return special

    @cached_property
    def schedule(self) -> Schedule:
        """Return the streams of queries and keys of each site (study/schedule.py)."""
        assert self.study.schedule is not None
        return streams.placed(self.modality, self.batch, self.study.schedule)

    @cached_property
    def stream_sizes(self) -> dict[str, int]:
        """Return the number of positions of each stream, in the order in which they are concatenated."""
        return streams.lengths(self.modality, self.batch, self.schedule)

    def by_stream(self, values_BN: Tensor) -> dict[str, Tensor]:
        """The columns of each stream."""
        return {stream: values_BN[:, where] for stream, where in streams.slices(self.stream_sizes).items()}

    @cached_property
    def windows(self) -> Windows:
        """Return where the tokens stand, once it is known that the head reads all of them on these inputs."""
        assert self.study.windows is not None
        if MAXIMUM not in self.study.notes:
            sites = self.study.windows.placements
            require_pooled(Passes(self.modality, self.batch), len(sites) - 1, sites[-1].tokens_WN)
            self.setup_forwards += self.batch.size
        return self.study.windows

    @cached_property
    def readout_BN(self) -> Tensor:
        """(B, N) weights of the output rows that feed the head."""
        if self.multi_stream:
            rules = self.study.readouts
            facts = self.modality, self.batch, self.schedule, rules, self.stream_sizes
            read_BN, seen, passes = streams.readout_weights(*facts)
            self.setup_forwards += passes
            self.study = self.study if seen == rules else replace(self.study, readouts=seen)
            return read_BN
        if self.study.readout is None:
            raise NotOffered("the output position of this model is not known.")
        if self.batch.answers:  # each row that predicts a token of the answer, by the size of the token's weight
            said_BN = torch.zeros(self.keep_BN.shape, device=self.keep_BN.device)
            for row, places in enumerate(spoken_at(replace(self.batch, keep_BN=self.keep_BN))):
                sizes = torch.tensor(self.batch.answers[row].weights or (1.0,) * len(places)).abs()
                said_BN[row, places] = (sizes / sizes.sum()).to(said_BN.device)
            return said_BN
        chosen = [tuple(p for p in span if p is not None) for span in self.batch.spans]
        chosen = chosen or [(p,) for p in self.batch.positions if self.modality.mean.outcome != "objects"]
        if chosen:  # the target chooses the rows
            own_BN = self.keep_BN.cumsum(1) - 1 - (0 if self.front is None else self.front)
            rows = zip(own_BN, chosen, strict=True)
            read_BN = torch.stack([torch.isin(own_N, own_N.new_tensor(places)) for own_N, places in rows])
            read_BN = (read_BN & self.keep_BN).float()
            return read_BN / read_BN.sum(1, keepdim=True)
        if self.study.readout.looked_up(self.modality.place.lengths_vary):
            self.setup_forwards += self.batch.size
            read_BN = rows_of_each(self.modality, self.batch, self.study, self.length)
            real_BN = read_BN * self.keep_BN  # a head may read padding, too
            return real_BN / real_BN.sum(1, keepdim=True) if bool(real_BN.any(1).all()) else read_BN
        if not self.unpadded:
            return self.study.readout.weights(self.keep_BN)
        weights_1N = self.study.read_rows.get(key := (self.study.readout, self.length, self.keep_BN.device))
        if weights_1N is None:
            if len(self.study.read_rows) >= LENGTHS:
                self.study.read_rows.clear()
            weights_1N = self.study.read_rows[key] = self.study.readout.weights(self.keep_BN[:1])
        return weights_1N.expand(self.batch.size, -1)

    @property
    def attentions(self) -> int | None:
        """Return how many attentions the model calls, if the rows that its head reads can be checked for each input."""
        return None if not _one_rule(self) or why_no_gradients(self.modality.model) else len(self.study.sites)

    def elsewhere(self, first_query: int, spoke_BQ: Tensor) -> Tensor | None:
        """(B,) whether other rows of the last map have a gradient than the read-out rule reads; None: none, unknown."""
        # A head may find its row by content (token 19, the end of the text), or read one through a gate.
        if self.attentions is None:
            return None
        rows = slice(first_query, first_query + spoke_BQ.shape[1])
        read_BQ = self.readout_BN[:, rows] > 0
        if not (spoke_BQ.is_cuda or self.recorded) and torch.equal(spoke_BQ, read_BQ):
            return None
        # The explained class may depend on no row at all: where its probability is 1 in floating point.
        return ((spoke_BQ ^ read_BQ) & self.keep_BN[:, rows]).any(1) & spoke_BQ.any(1)

    def reads_elsewhere(self, first_query: int, spoke_BQ: Tensor | None) -> bool:
        """Return whether other rows of the last map feed the head than the rule says; they are then searched anew."""
        elsewhere_B = None if spoke_BQ is None else self.elsewhere(first_query, spoke_BQ)
        if spoke_BQ is None and _one_rule(self) and not self.output.causal:
            self.notes.add(UNCOMPARED.format(self.study.rule))
        if elsewhere_B is None or not bool(elsewhere_B.any()):
            return False
        self._read_anew()
        return True

    def _read_anew(self) -> None:
        """Search the rows that feed the head for each input."""
        assert self.study.readout is not None
        self.study = replace(self.study, readout=replace(self.study.readout, kind="rows", varies=True))
        self.__dict__.pop("readout_BN", None)

    # Logits, and the explained value of each input and of its variants

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._see(self.forward(self.together, range(self.batch.size)))
        elif self._unseen:
            self._see(None)
        elif "logits" not in self.asked:  # of another method's pass, which this one would need as well
            self.asked["logits"] = (self.rows_run / self.batch.size, 0)
        assert self._logits is not None
        return self._logits

    @property
    def waits(self) -> bool:
        """Whether the logits of a single input are not known yet and may come from a batch with its variants."""
        plain = not (self.batch.answers or self.batch.spans or self.batch.reference_rows or self.modality.read.opaque)
        alone = self.batch.size == 1 and self.together is self.batch and self.batch.shared is None
        return self._logits is None and alone and plain

    @property
    def targets(self) -> list[Target]:
        # A class that was given needs no look at the logits, which would force a device synchronisation.
        named = isinstance(self._wanted, (int, str)) and self._targets is None
        logits = self._logits if named and self._unseen else self.logits
        assert logits is not None
        if self._targets is None:
            output = self.output
            if self.batch.answers:
                self._targets = [Target(0, answer.text, position=answer.start) for answer in self.batch.answers]
            elif self.batch.spans and isinstance(self._wanted, list):  # spans of text, not classes
                self._targets = self._wanted
            else:
                before, labels = output.setup_forwards, output.labels
                self.setup_forwards += output.setup_forwards - before
                self._targets = resolve_targets(
                    self._wanted, logits, labels, output.positions, output.token_id, output.independent
                )
        return self._targets

    @property
    def value_B(self) -> Tensor:
        logits = self.logits
        if self._value_B is None:
            self._value_B = scalar_of(logits, self.targets, self.reading)
        return self._value_B

    def scalars(self, logits_BC: Tensor, ask: bool = True) -> Tensor:
        """(B,) explained value, differentiable; of the predicted class where no target was given.

        ask: check now whether the logits are finite; otherwise later, to avoid a device synchronisation.
        """
        self.asked.setdefault("logits", (0, 0))
        if self._logits is None:
            self._see(logits_BC, ask)
        if self._targets is None and self._wanted is None and not (self.batch.answers or self.batch.spans):
            assert self._logits is not None
            best_B1 = self._logits.argmax(1, keepdim=True)
            values_B = scalar_at(logits_BC, best_B1, self.reading, self.output.independent)
        else:
            values_B = scalar_of(logits_BC, self.targets, self.reading)
        if self._value_B is None and self._unseen and logits_BC.dtype is torch.float32:
            self._value_B = values_B.detach()
        if not self.batch.reference_rows:
            return values_B
        explained_B = torch.zeros_like(values_B)
        explained_B[: len(self.batch.explained)] = 1
        return values_B * explained_B  # reference rows are not explained

    def _see(self, said: Tensor | None, ask: bool = True, spoke: tuple[int, Tensor] | None = None) -> None:
        """Keep the model's logits (None: they are known already); raise if they are not finite or not logits.

        spoke: the first row of the last map, and whether each of its rows has a gradient, to be compared with the
        read-out rule. On a GPU all of it is one copy, which waits for the device.
        """
        if said is not None:
            self.asked["logits"], self._logits, self._unseen = (0, 0), said.detach().float(), True
        if not ask or self._logits is None:
            return
        self._unseen = False
        if self._logits.is_cuda:  # the GPU is still at work
            with suppress(WhyformerError):  # raised later, where they are read
                _ = self.units
        elsewhere_B = None if spoke is None else self.elsewhere(*spoke)
        if elsewhere_B is None or not elsewhere_B.is_cuda:
            logits, anew = self._logits.cpu(), elsewhere_B is not None and bool(elsewhere_B.any())
        else:
            answers = torch.cat([self._logits.flatten(), elsewhere_B.float()]).cpu()
            logits, elsewhere = answers.split([self._logits.numel(), len(elsewhere_B)])
            logits, anew = logits.view(self._logits.shape), bool(elsewhere.any())
        self.logits_on_host = logits
        if anew:
            self._read_anew()
        numbers = logits.numpy()  # numpy is faster for this few elements
        if not np.isfinite(numbers).all():
            self._unseen = True  # whoever asks next is told, too
            require_finite(logits)
        # Classes that do not exclude each other need not add up to anything.
        summed = self.output.independent or bool(self.batch.answers)
        each = self.output.ends_in_sigmoid
        if each is None:  # known from another pass: a replayed graph, or the study's
            each = self.output.ends_in_sigmoid = bool(known_about(self.modality.model).get("sigmoid"))
        self.gives_probabilities = each or (not summed and are_probabilities(logits))
        if self.scalar == "centred" and (self.gives_probabilities or logits.shape[1] == 1):
            self.scalar = self.reading = "logit"
        if self.gives_probabilities:
            refuse_twice(self.scalar, each)

    def count(self, owners: Sequence[int], passes: float = 1) -> None:
        """Charge these inputs for forward passes."""
        np.add.at(self.forwards_B, list(owners), passes)

    @torch.no_grad()
    def forward(self, batch: Batch, owners: Sequence[int]) -> Tensor:
        """Return the logits of a batch and charge ``owners`` for the pass."""
        self.count(owners, 1 if batch.shared is None else 1 / batch.size)
        logits = self.output.logits(batch)
        if batch.size > 1 and batch.shared is None and not is_tried(self.modality.model, positions_in(self, batch)):
            if not (batch.reference_rows or self.modality.read.mixes_rows or self.modality.kind == "prompt"):  # SAINT
                part, positions = _part_of(self, batch), positions_in(self, batch)
                self.setup_forwards += require_apart(self.modality.model, logits, part, positions)
        return logits

    def score(
        self,
        batch: Batch,
        owner: int,
        logits_of: Callable[[Batch], Tensor] | None = None,
        whole_first: bool = False,
    ) -> Tensor:
        """(n,) explained value of n variants of input ``owner``, in batches; ``logits_of``: a faster way to logits.

        whole_first: the first variant is the input as it is, whose logits are those of the plain pass.
        """
        parts = []
        for start in range(0, batch.size, self.batch_size):
            stop = min(start + self.batch_size, batch.size)
            chunk = batch if stop - start == batch.size else batch.select(range(start, stop))
            try:
                logits = self.forward(chunk, [owner] * chunk.size) if logits_of is None else logits_of(chunk)
            except ModelFailed as failure:
                if self.modality.read.opaque:  # a server that fails does so whatever it is sent
                    raise
                _ = self.logits  # raises if the input itself is at fault
                said = str(failure).split(" (in ")[0].split(", when it was run")[0]
                raise NotOffered(UNMASKED.format(said)) from failure
            if whole_first and self._logits is None:
                self._see(logits[:1])
            parts.append(scalar_of(logits.float(), [self.targets[owner]] * chunk.size, self.reading))
        values = torch.cat(parts)
        if not bool(torch.isfinite(values).all()):
            raise NotOffered(UNMASKED.format("its output is NaN or infinite"))
        return values


def _one_rule(run: ScoredBatch) -> bool:
    """Return whether all inputs are taken to be read by one rule."""
    readout = run.study.readout
    # Between rows of a table columns are mixed once more (SAINT).
    if readout is None or readout.besides or not run.study.plain or run.batch.reference_rows:
        return False
    return not readout.looked_up(run.modality.place.lengths_vary)


def positions_in(run: ScoredBatch, batch: Batch) -> int:
    """Return the number of positions in all rows of a batch; of inputs of one length, the number of rows."""
    return batch.size * (run.modality.place.length(batch) if run.modality.place.lengths_vary else 1)


def _part_of(run: ScoredBatch, batch: Batch) -> Callable[[slice], Tensor]:
    """Return a function that runs some rows of a batch without the others."""
    return lambda rows: run.output.logits(batch if rows == slice(batch.size) else batch.select(rows))


def require_undisturbed(run: ScoredBatch, logits: Tensor, graph: bool) -> None:
    """Raise if the logits differ from those of a plain pass, for the first batch of each form."""
    if run.recorded or (form := form_of(run, graph)) in run.study.undisturbed:
        return
    one_row = run.together.shared is not None or run.batch.reference_rows > 0
    part, apart = _part_of(run, run.together), not (one_row or run.modality.read.mixes_rows)
    run.setup_forwards += require_same(run.modality.model, logits, part, apart, positions_in(run, run.batch))
    run.study.undisturbed.add(form)


def form_of(run: ScoredBatch, graph: bool) -> tuple[Any, ...]:
    """Return what may change the code path of the model: several inputs, rough length, where there is padding."""
    masks = [mask for name, mask in run.batch.tensors.items() if "mask" in name and mask.ndim == 2]
    masks += [] if run.batch.keep_BN is None else [run.batch.keep_BN]
    length = run.modality.place.length(run.batch).bit_length() if run.modality.place.lengths_vary else 0
    gaps = []  # is anything hidden, at the start of a row, at its end?
    for mask in masks:
        mask_BN = on_host(mask).bool()
        whole = run.unpadded if mask is run.batch.keep_BN and run.study.plain else bool(mask_BN.all())
        gaps += [not whole, not (whole or bool(mask_BN[:, 0].all())), not (whole or bool(mask_BN[:, -1].all()))]
    return (graph, run.batch.size > 1, length, *gaps)


@contextmanager
def working(run: ScoredBatch, *kind: Hashable) -> Iterator[None]:
    """Charge all that runs inside as forwards with as many multiply-adds.

    It is counted for the first batch of each shape. Shorter inputs of a batch are charged for what they take
    without padding, about.
    """
    facts, shapes = known_about(run.modality.model), tuple(tensor.shape for tensor in run.batch.tensors.values())
    length_B = on_host(run.keep_BN).sum(1).numpy()
    key, plainly = ("work", *kind, shapes, tuple(length_B.tolist())), ("work", shapes)
    forwards_B, backwards_B, setup = run.forwards_B.copy(), run.backwards_B.copy(), run.setup_forwards
    with nullcontext() if key in facts else MultiplyAdds() as inside:
        yield
    if inside is not None and plainly not in facts:
        # Written out: neither torch's fused encoder nor its fused attention is counted on a CPU.
        written_out = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with MultiplyAdds() as plain, BaseTorchFunctionMode(), written_out, torch.no_grad():
            run.output.logits(run.together)
        facts[plainly] = max(plain.total, 1)
        run.setup_forwards, setup = run.setup_forwards + run.rows_run, setup + run.rows_run
    if inside is not None:  # checks are no work of the method
        facts[key] = inside.total / facts[plainly] - (run.setup_forwards - setup) / run.rows_run
    run.forwards_B[:] = forwards_B + facts[key] * length_B / max(length_B.max(), 1)
    run.backwards_B[:] = backwards_B
