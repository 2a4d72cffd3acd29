"""Positions of the units of a batch, its logits, and the explained scalar. Passes are counted where they are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, CaptureError, NotOffered
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, on_host
from whyformer.inputs.language import spoken_at
from whyformer.inputs.output import Output
from whyformer.loan.borrow import known_about, module_names, require_known
from whyformer.results.types import Site, Target, Units
from whyformer.study import Study, require_real_rows, rows_of_each, streams
from whyformer.study.interference import MIXES, require_apart, require_same
from whyformer.study.schedule import Schedule, Windows
from whyformer.targets import are_probabilities, refuse_twice, require_finite, resolve_targets, scalar_at, scalar_of

# Where the units of a batch stand in the model's attention, and which of its rows feed the prediction.

LENGTHS = 32  # of which it is remembered which rows are read


class PlacedBatch(ABC):
    """A batch whose units have places: of one stream, of several laid end to end, or of windows."""

    modality: Modality
    output: Output
    batch: Batch
    study: Study
    multi_stream: bool  # several streams of tokens: methods that know the rules for them read maps by stream
    front: int | None  # how many positions that the model adds come before the input's; None: all of them
    windowed: bool  # attention inside windows (Swin), whose places are known
    recorded: bool  # as a graph: the host may ask for no number (compiled/)
    rows_read: Tensor | None  # rows of the map that are read, in place of the one that feeds the head
    setup_forwards: int  # spent on checks that are made once for each form of a batch
    # What a GPU would stop for in the middle of its work is asked when the formula is done.
    settles_later: bool
    _last_site: Site | None  # of which is still to be asked whether other rows are read

    @abstractmethod
    def _see(self, said: Tensor | None, ask: bool = True) -> None:
        """Ask what is still to be asked of the last pass: the rows that are read may turn out to be others."""

    @cached_property
    def length(self) -> int:
        """Positions the model's attention runs over; those of several streams are laid end to end."""
        if self.multi_stream:
            return sum(self.stream_sizes.values())
        study = self.study
        if not study.sites:
            return self.modality.length(self.batch) if study.grid is None else study.grid[0] * study.grid[1]
        if study.windows is not None:
            return study.windows.sizes[0]
        if self.modality.lengths_vary:
            return self.modality.length(self.batch) + study.extra
        return study.sites[0].keys

    @property
    def explained(self) -> range:
        """The rows of the batch that are explained; others may stand beside them (SAINT)."""
        return range(self.batch.size - self.batch.reference_rows)

    @cached_property
    def keep_BN(self) -> Tensor:
        """(B, N) real positions; False at padding."""
        if self.multi_stream:
            return streams.keep_of(self.modality, self.batch, self.stream_sizes)
        keep_BN = self.batch.keep_BN
        if self.modality.embeds and keep_BN is not None and keep_BN.shape[1] == self.length:
            return keep_BN  # the very tensor, whose numbers are known already
        return self.modality.keep(self.batch, self.length, self.front)

    @cached_property
    def unpadded(self) -> bool:
        """Every position of every row is real."""
        return not self.recorded and bool(on_host(self.keep_BN).all())  # a graph may be replayed with some that are not

    @cached_property
    def units(self) -> list[Units]:
        if self.multi_stream:
            return streams.units_of(self.modality, self.batch, self.stream_sizes, self.study.grid)
        return self.modality.units(self.batch, self.length, self.front, self.study.grid)

    def input_span(self, row: int) -> slice:
        """The units of one input that are its own tokens: a model may put others around a text (a learned [CLS])."""
        count, extra = len(self.units[row]), self.study.extra
        if self.multi_stream or self.modality.multi_input or not self.modality.embeds or extra <= 0:
            return slice(0, count)
        before = extra if self.front is None else self.front
        return slice(before, count - (extra - before))

    def removable(self, row: int) -> list[bool]:
        """Per unit of one input, whether it can be taken away."""
        units, span = self.units[row], self.input_span(row)
        may = self.modality.removable(units)
        return [may[i] and span.start <= i < span.stop for i in range(len(units))]

    @cached_property
    def segments(self) -> list[tuple[list[list[int]], Units]]:
        """Per input, units that are scored as one, and what they are then; empty where each stands for itself."""
        facts: tuple[Any, ...] = self.batch.encodings or ({},) * len(self.units)
        divided = [self.modality.divided(units, known) for units, known in zip(self.units, facts, strict=True)]
        return [segments for segments in divided if segments is not None]

    @cached_property
    def special_BN(self) -> Tensor:
        """(B, N) special tokens among the attention positions; padding is not special."""
        special = torch.zeros_like(self.keep_BN)
        for row, units in enumerate(self.units):
            special[row, self.keep_BN[row]] = torch.tensor(units.special, device=special.device)
        return special

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        """Sum (or the largest of) a (B, …) attribution of the input's own numbers per unit → (B, N) positions."""
        return self.modality.per_unit(detail, self, largest)

    @cached_property
    def schedule(self) -> Schedule:
        """Who asks whom (study/schedule.py)."""
        assert self.study.schedule is not None
        return streams.placed(self.modality, self.batch, self.study.schedule)

    @cached_property
    def stream_sizes(self) -> dict[str, int]:
        """Positions of each stream, in the order in which they are laid end to end."""
        return streams.lengths(self.modality, self.batch, self.schedule)

    def by_stream(self, values_BN: Tensor) -> dict[str, Tensor]:
        """The columns of each stream."""
        return {stream: values_BN[:, where] for stream, where in streams.slices(self.stream_sizes).items()}

    @property
    def windows(self) -> Windows:
        assert self.study.windows is not None
        return self.study.windows

    @cached_property
    def readout_BN(self) -> Tensor:
        """(B, N) weights of the output rows that feed the head."""
        if self._last_site is not None and not self.settles_later:
            self._see(None)
        if self.multi_stream:
            rules = self.study.readouts
            return streams.readout_weights(self.modality, self.batch, self.schedule, rules, self.stream_sizes)
        if self.study.readout is None:
            raise NotOffered("which output position feeds the prediction is not known for this model.")
        if self.batch.answers:  # every row that says a part of the answer, alike
            said_BN = torch.zeros(self.keep_BN.shape, device=self.keep_BN.device)
            for row, places in enumerate(spoken_at(replace(self.batch, keep_BN=self.keep_BN))):
                said_BN[row, places] = 1 / len(places)
            return said_BN
        chosen = [tuple(p for p in span if p is not None) for span in self.batch.spans]
        chosen = chosen or [(p,) for p in self.batch.positions if not self.modality.objects]
        if chosen:  # which rows are read is the target's choice
            own_BN = self.keep_BN.cumsum(1) - 1 - (0 if self.front is None else self.front)
            rows = zip(own_BN, chosen, strict=True)
            read_BN = torch.stack([torch.isin(own_N, own_N.new_tensor(places)) for own_N, places in rows])
            read_BN = (read_BN & self.keep_BN).float()
            return read_BN / read_BN.sum(1, keepdim=True)
        if self.study.readout.kind == "rows" and self.modality.lengths_vary:
            self.setup_forwards += self.batch.size
            return rows_of_each(self.modality, self.batch, self.study, self.length)
        if not self.unpadded:
            # A head may read a fixed end, or the first or last real row. Texts are padded where it changes nothing.
            end_B = self.keep_BN[:, -1 if self.study.readout.kind == "last" else 0]
            if not (self.batch.raw or self.output.causal or self.recorded or bool(end_B.all())):
                self.setup_forwards += require_real_rows(self.modality, self.batch, self.keep_BN, self.study)
            return self.study.readout.weights(self.keep_BN)
        weights_1N = self.study.read_rows.get(key := (self.study.readout, self.length, self.keep_BN.device))
        if weights_1N is None:
            if len(self.study.read_rows) >= LENGTHS:
                self.study.read_rows.clear()
            weights_1N = self.study.read_rows[key] = self.study.readout.weights(self.keep_BN[:1])
        return weights_1N.expand(self.batch.size, -1)

    @property
    def read_BRN(self) -> Tensor:
        """(B, R, N) weights of the rows that are read: the one that feeds the head, or those that were asked for."""
        if self.rows_read is None:
            return self.readout_BN[:, None]
        return torch.nn.functional.one_hot(self.rows_read, self.length).float()[None].expand(self.batch.size, -1, -1)

    def layer_count(self, start_layer: int = 0) -> int:
        """How many layers there are; a first one that is none of them is refused."""
        count = max(1, len(self.study.sites))  # without any, the pass itself says so
        if not -count <= start_layer < count:
            raise BadInput(f"start_layer={start_layer}: the model has {count} layers, numbered 0 to {count - 1}.")
        return count

    def _elsewhere(
        self, first_query: int, spoke_BQ: Tensor | None = None, gradient_BHQK: Tensor | None = None
    ) -> Tensor | None:
        """Whether the rule for the rows that feed the head fails: another row of the last map has a gradient.

        A head may find its row by what stands there. Then each text is asked by itself; of other inputs, whose rows are
        fixed, the rule of the first is refused. Either of what is given tells which rows have one. None: it holds.
        """
        readout = self.study.readout
        if readout is None or readout.besides or not self.study.plain:
            return None
        if readout.kind == "rows" and self.modality.lengths_vary:  # found for each
            return None
        if self.batch.reference_rows:  # between rows of a table columns are mixed once more (SAINT)
            return None
        if spoke_BQ is None:
            assert gradient_BHQK is not None
            spoke_BQ = gradient_BHQK.any(3).any(1)
        rows = slice(first_query, first_query + spoke_BQ.shape[1])
        unread_BQ = (self.keep_BN & (self.readout_BN == 0))[:, rows]
        return (spoke_BQ & unread_BQ).any()

    def reads_elsewhere(self, first_query: int, spoke_BQ: Tensor) -> bool:
        """Whether rows of the last map feed the head that no rule foresaw; they are then found for each input."""
        elsewhere = self._elsewhere(first_query, spoke_BQ)
        if elsewhere is None or not bool(elsewhere):
            return False
        self._read_anew()
        return True

    def _read_anew(self) -> None:
        """The rule of the study does not hold for this batch: each text is asked by itself."""
        readout = self.study.readout
        assert readout is not None
        if not self.modality.lengths_vary:
            raise CaptureError(
                f"the head reads other rows of this input than of the one that was studied ({readout}): it finds them "
                "by what stands there, and maps are read at the rows that feed the head."
            )
        self.study = replace(self.study, readout=replace(readout, kind="rows"))
        self.__dict__.pop("readout_BN", None)


class ScoredBatch(PlacedBatch, ABC):
    """A batch with targets: its logits, the explained value of each input, and that of variants of them."""

    output: Output
    scalar: str
    reading: str  # how logits are read: of whole answers the output is what is explained already
    batch_size: int
    together: Batch  # as the model is run: once, where all rows are beginnings of one text
    rows_run: int
    forwards_B: np.ndarray[Any, Any]
    backwards_B: np.ndarray[Any, Any]
    # Passes that serve several methods, by what they are asked for: what the method at work owes for them. Its own
    # passes are counted as they run, and owe nothing.
    asked: dict[str, tuple[float, int]]
    readings: int  # how often the rows that are read turned out to be others: a formula is then computed again
    gives_probabilities: bool  # what the model returns are no logits; known once it has run
    logits_on_host: Tensor  # since they were asked
    _wanted: Any
    _logits: Tensor | None
    _unseen: bool  # whether they are finite, and logits at all, is still to be asked
    _targets: list[Target] | None
    _value_B: Tensor | None

    module_names = cached_property(lambda self: module_names(self.modality.model))

    @property
    def logits(self) -> Tensor:
        if self._logits is None:
            self._see(self.forward(self.together, range(self.batch.size)))
        elif self._unseen:
            self._see(None)
        elif "logits" not in self.asked:  # another method's pass, and this one needs it, too
            self.asked["logits"] = (self.rows_run / self.batch.size, 0)
        assert self._logits is not None
        return self._logits

    @property
    def targets(self) -> list[Target]:
        # Classes that were asked for are known before the model's answer was looked at, for which a GPU would stop.
        named = isinstance(self._wanted, (int, str)) and self._targets is None
        logits = self._logits if named and self._unseen else self.logits
        assert logits is not None
        if self._targets is None:
            output = self.output
            if self.batch.answers:
                self._targets = [Target(0, answer.text, position=answer.start) for answer in self.batch.answers]
            elif self.batch.spans and isinstance(self._wanted, list):  # answers are no classes, and known already
                self._targets = self._wanted
            else:
                self._targets = resolve_targets(
                    self._wanted, logits, output.labels, output.positions, output.token_id, output.independent
                )
        return self._targets

    @property
    def value_B(self) -> Tensor:
        logits = self.logits
        if self._value_B is None:
            self._value_B = scalar_of(logits, self.targets, self.reading)
        return self._value_B

    def scalars(self, logits_BC: Tensor, ask: bool = True) -> Tensor:
        """(B,) explained value, differentiable; picks the predicted class where no target was given.

        ask: whether the logits are finite. Later, where a GPU would have to stop in the middle of its work.
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
        explained_B[: len(self.explained)] = 1
        return values_B * explained_B  # others are looked at, not explained

    def _see(self, said: Tensor | None, ask: bool = True) -> None:
        """Keep what the model said (None: it is known already); refuse what is not finite. Are these logits at all?"""
        if said is not None:
            self.asked["logits"], self._logits, self._unseen = (0, 0), said.detach().float(), True
        if not ask or self._logits is None:
            return
        self._unseen = False
        last, self._last_site, elsewhere = self._last_site, None, None
        if self._logits.is_cuda:  # it is still at work on what was asked of it
            require_known(self.modality.model)
        if last is not None:
            elsewhere = self._elsewhere(last.first_query, gradient_BHQK=last.attention_grad_BHQK)
        if elsewhere is None:
            logits = self.logits_on_host = self._logits.cpu()  # once for all questions
        else:
            answers = torch.cat([self._logits.flatten(), elsewhere.float()[None]]).cpu()
            logits = self.logits_on_host = answers[:-1].view(self._logits.shape)
            if answers[-1]:
                self._read_anew()
                self.readings += 1
        numbers = logits.numpy()  # who asks for so few sooner than torch does
        if not np.isfinite(numbers).all():
            require_finite(logits)
        # Classes that do not exclude each other need not add up to anything.
        summed = self.output.independent or bool(self.batch.answers)
        each = self.output.ends_in_sigmoid
        if each is None:  # another pass said so: a graph that was replayed, or the study's
            each = self.output.ends_in_sigmoid = bool(known_about(self.modality.model).get("sigmoid"))
        self.gives_probabilities = each or (not summed and bool((numbers >= 0).all()) and are_probabilities(logits))
        if self.gives_probabilities:
            refuse_twice(self.scalar, each)

    def count(self, owners: Sequence[int], passes: float = 1) -> None:
        """Forwards that were made for these inputs."""
        np.add.at(self.forwards_B, list(owners), passes)

    @torch.no_grad()
    def forward(self, batch: Batch, owners: Sequence[int]) -> Tensor:
        """Logits of a batch; ``owners`` are the inputs it is charged to."""
        self.count(owners, 1 if batch.shared is None else 1 / batch.size)
        logits = self.output.logits(batch)
        if batch.size > 1 and batch.shared is None and MIXES not in known_about(self.modality.model):
            self.require_apart(batch, logits)
        return logits

    def require_apart(self, batch: Batch, logits: Tensor) -> None:
        """Refuse rows that change each other's answers, tried once per model; those of a table may (SAINT)."""
        if not (batch.reference_rows or self.modality.mixes_rows or self.modality.opaque):
            self.setup_forwards += require_apart(self.modality.model, logits, self._part_of(batch))

    def _part_of(self, batch: Batch) -> Callable[[slice], Tensor]:
        """Logits of some rows of a batch, which run without the others; all of them are the batch as it is."""

        def part(rows: slice) -> Tensor:
            whole = rows == slice(batch.size)
            return self.output.logits(batch if whole else batch.select(rows))

        return part

    def score(self, batch: Batch, owner: int, logits_of: Callable[[Batch], Tensor] | None = None) -> Tensor:
        """(n,) explained value of n variants of input ``owner``, in batches.

        logits_of: a shorter way to their logits, where there is one.
        """
        parts = []
        for start in range(0, batch.size, self.batch_size):
            chunk = batch.select(range(start, min(start + self.batch_size, batch.size)))
            logits = self.forward(chunk, [owner] * chunk.size) if logits_of is None else logits_of(chunk)
            parts.append(scalar_of(logits.float(), [self.targets[owner]] * chunk.size, self.reading))
        return torch.cat(parts)

    def require_undisturbed(self, logits: Tensor, graph: bool) -> None:
        """Refuse a model that says something else while it is looked into, with a ``graph`` or without.

        One plain pass, for the first batch of each form.
        """
        form = self._form(graph)
        if form in self.study.undisturbed:
            return
        one_row = self.together.shared is not None or self.batch.reference_rows > 0
        part, halves = self._part_of(self.together), not (one_row or self.modality.mixes_rows)
        self.setup_forwards += require_same(self.modality.model, logits, part, halves)
        self.study.undisturbed.add(form)

    def _form(self, graph: bool) -> tuple[Any, ...]:
        """What about a batch may send the model another way: one input or several, about how long, where padded."""
        masks = [mask for name, mask in self.batch.tensors.items() if "mask" in name and mask.ndim == 2]
        masks += [] if self.batch.keep_BN is None else [self.batch.keep_BN]
        length = self.modality.length(self.batch).bit_length() if self.modality.lengths_vary else 0
        gaps = []  # is anything hidden, at the start of a row, at its end?
        for mask in masks:
            mask_BN = on_host(mask).bool()
            whole = self.unpadded if mask is self.batch.keep_BN and self.study.plain else bool(mask_BN.all())
            gaps += [not whole, not (whole or bool(mask_BN[:, 0].all())), not (whole or bool(mask_BN[:, -1].all()))]
        return (graph, self.batch.size > 1, length, *gaps)
