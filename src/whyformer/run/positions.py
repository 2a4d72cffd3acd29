"""Where the units of a batch stand in the model's attention, and which of its rows feed the prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput, CaptureError, NotOffered
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.host import on_host
from whyformer.inputs.language import spoken_at
from whyformer.output import Output
from whyformer.study import Study, require_real_rows, rows_of_each, streams
from whyformer.study.schedule import Schedule
from whyformer.study.windows import Windows
from whyformer.types import Site, Units

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
