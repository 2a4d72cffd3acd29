"""Run: a batch of inputs with their targets, and where its units stand. Methods ask it; it caches and counts passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from whyformer.borrow import first_weight, known_about, module_names
from whyformer.capture.blocks.anatomy import Dissect, dissect
from whyformer.capture.blocks.block import Anatomy
from whyformer.capture.embeddings import SwapEmbedding
from whyformer.capture.functions import padding_share
from whyformer.capture.leaves import BeforeAttention, Traced, as_leaf
from whyformer.capture.lineage import MOST, Lineage, Unread, Unseen
from whyformer.capture.plan import OffPlan
from whyformer.capture.record import observe, record, require_sites
from whyformer.capture.roles import Edit, Impose, Intervene, Observe, Recorder, Rewrite
from whyformer.errors import BadInput, CaptureError, NotOffered
from whyformer.inputs.base import Batch, Modality
from whyformer.inputs.language import spoken_at
from whyformer.output import Output
from whyformer.study import Study, require_readable, rows_of_each, streams, with_streams
from whyformer.study.interference import MIXES, require_apart, require_same
from whyformer.study.padding import HIDDEN
from whyformer.study.replay import Retained
from whyformer.study.schedule import Schedule
from whyformer.study.slopes import require_reached, require_slopes
from whyformer.study.windows import Windows
from whyformer.targets import are_probabilities, refuse_twice, require_finite, resolve_targets, scalar_at, scalar_of
from whyformer.types import Record, Site, Target, Units

LENGTHS = 32  # of which it is remembered which rows are read


@dataclass
class Attribution:
    """What a method returns for a batch: scores per attention position, and whatever else it has."""

    scores_BN: Tensor
    matrix_BQK: Tensor | dict[tuple[str, str], Tensor] | None = None  # several streams: by (query, key) stream
    layers_BLQK: Tensor | None = None
    detail: list[np.ndarray[Any, Any]] | None = None
    base_B: Tensor | None = None
    errors_BN: Tensor | None = None  # standard errors of the scores
    interactions: list[tuple[tuple[str, str, float], ...]] | None = None  # what two parts do more together than each
    checks: dict[str, Tensor] = field(default_factory=dict)  # name -> (B,), e.g. completeness error
    warnings: list[list[str]] | None = None
    signed: bool | None = None  # where an option decides it; None: as registered
    explained: tuple[str, Tensor] | None = None  # scalar and (B,) values, where they are others than were asked for
    used: dict[str, Any] = field(default_factory=dict)  # option left open -> what was taken, as it could be asked for


def _together(batch: Batch) -> tuple[Batch, int]:
    """Rows of one text, with the longest of them to be run for all; and how many rows that are."""
    if batch.size == 1 or len(set(batch.trunks)) > 1:
        return batch, batch.size
    assert batch.keep_BN is not None
    longest = int(batch.keep_BN.sum(1).argmax())
    return replace(batch, shared=batch.select([longest])), 1


class Run:
    """A batch of inputs with targets, ready to be recorded, scored, differentiated or changed."""

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
        # Several streams of tokens: methods that know the rules for them read maps by stream.
        self.multi_stream: bool = study.multi_stream
        self.front = study.front  # how many positions that the model adds come before the input's; None: all of them
        self.windowed = study.windows is not None  # attention inside windows (Swin), whose places are known
        self.scalar, self.seed, self.batch_size, self.keep_layers = scalar, seed, batch_size, keep_layers
        # How logits are read: of whole answers the output is what is explained already.
        self.reading = "logit" if batch.answers else scalar
        # As the model is run: once, where all rows are beginnings of one text. Variants have rows of their own.
        self.together, self.rows_run = (batch, batch.size) if not batch.trunks else _together(batch)
        self.track = track or (lambda steps, label: steps)
        self.output = Output(modality, batch, scalar)
        self.forwards_B = np.zeros(batch.size)
        self.backwards_B = np.zeros(batch.size)
        self.notes: set[str] = set()  # what explanations of this batch have to say, found on the way
        self.setup_forwards = 0  # spent on checks that are made once for each form of a batch
        # Passes that serve several methods, by what they are asked for: what the method at work owes for them. Its own
        # passes are counted as they run, and owe nothing.
        self.asked: dict[str, tuple[float, int]] = {}
        self._wanted = target
        self._records: dict[bool, Record] = {}
        self._part: tuple[frozenset[int], Record] | None = None  # layers, and a record with the maps of these alone
        self.alone = False  # no other method follows that could use the same record
        self._anatomy: Anatomy | None = None
        self._padding_share_B: Tensor | None = None
        self._logits: Tensor | None = None
        self._unseen = False  # whether they are finite, and logits at all, is still to be asked
        self.logits_on_host = torch.empty(0)  # since they were asked
        self._last_site: Site | None = None  # of which is still to be asked whether other rows are read
        # What a GPU would stop for in the middle of its work is asked when the formula is done; ``readings`` tells then
        # whether it has to be computed again, from other rows.
        self.settles_later, self.readings = False, 0
        self._targets: list[Target] | None = None
        self._value_B: Tensor | None = None
        self.folds = False  # maps are not stored (engines/attention/folded.py)
        self.recomputes = False  # layers are computed again in backward
        self.rows_read: Tensor | None = None  # rows of the map that are read, in place of the one that feeds the head
        self.recorded = False  # as a graph: the host may ask for no number (compiled/)
        self.retained: Retained | None = None  # the pass that was studied, if it was of this batch and nobody used it
        self.gives_probabilities = False  # what the model returns are no logits; known once it has run

    module_names = cached_property(lambda self: module_names(self.modality.model))

    # What is explained

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
            if self._value_B is None and self._unseen and logits_BC.dtype is torch.float32:
                self._value_B = values_B.detach()
        else:
            values_B = scalar_of(logits_BC, self.targets, self.reading)
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
        if not bool(torch.isfinite(logits).all()):
            require_finite(logits)
        # Classes that do not exclude each other need not add up to anything.
        summed = self.output.independent or bool(self.batch.answers)
        self.gives_probabilities = not summed and bool((logits >= 0).all()) and are_probabilities(logits)
        if self.gives_probabilities:
            refuse_twice(self.scalar)

    # Where the units stand in the model's attention, and which rows feed the prediction

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
        return self.modality.keep(self.batch, self.length, self.front)

    @cached_property
    def unpadded(self) -> bool:
        """Every position of every row is real."""
        return not self.recorded and bool(self.keep_BN.all())  # a graph may be replayed with some that are not

    @property
    def attended_BN(self) -> Tensor:
        """(B, N) positions that attention runs over, once it was recorded: the real ones, and padding that the model
        does not hide from it. Rows of such a model are right only with all their columns.
        """
        return self.keep_BN if self.unpadded else self.keep_BN | (self.padding_share_B > HIDDEN)[:, None]

    @property
    def padding_share_B(self) -> Tensor:
        """(B,) how much of the attention of real positions goes to padding; 0 before anything was recorded."""
        share_B = self._padding_share_B
        if share_B is None:
            maps, keep_BN = self._records.get(True) or self._records.get(False), self.keep_BN
            if maps is None or self.multi_stream or self.windowed or self.unpadded:
                share_B = torch.zeros(len(keep_BN), device=keep_BN.device)
            else:
                # The mean share of the attention of real positions, over layers and heads.
                keep, shares = keep_BN.float(), []
                for site in maps.sites:  # as padding_share, written out: the way of a warm call is kept short
                    attention_BHQK, first = site.attention_BHQK.float(), site.first_query
                    rows_BQ = keep[:, first : first + attention_BHQK.shape[2]]
                    lost_B = torch.einsum("bhqk,bq,bk->b", attention_BHQK, rows_BQ, 1 - keep)
                    shares.append(lost_B / (rows_BQ.sum(1).clamp(min=1) * attention_BHQK.shape[1]))
                share_B = torch.stack(shares).mean(0)
            self._padding_share_B = None if maps is None else share_B
        return share_B

    def _glance(self, shares: list[Tensor], attention_BHQK: Tensor, first: int) -> None:
        """The same share of one layer, whose map is not kept."""
        if attention_BHQK.shape[3] == self.keep_BN.shape[1]:  # else not over the units, which is refused later on
            shares.append(padding_share(attention_BHQK, self.keep_BN, first))

    @cached_property
    def units(self) -> list[Units]:
        if self.multi_stream:
            return streams.units_of(self.modality, self.batch, self.stream_sizes, self.study.grid)
        return self.modality.units(self.batch, self.length, self.front, self.study.grid)

    @cached_property
    def segments(self) -> list[tuple[list[list[int]], Units]]:
        """Per input, units that are scored as one, and what they are then; empty where each stands for itself."""
        facts: tuple[Any, ...] = self.batch.encodings or ({},) * len(self.units)
        divided = [self.modality.divided(units, known) for units, known in zip(self.units, facts, strict=True)]
        return [segments for segments in divided if segments is not None]

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
            return self.study.readout.weights(self.keep_BN)
        weights_1N = self.study.read_rows.get(key := (self.study.readout, self.length, self.keep_BN.device))
        if weights_1N is None:
            if len(self.study.read_rows) >= LENGTHS:
                self.study.read_rows.clear()
            weights_1N = self.study.read_rows[key] = self.study.readout.weights(self.keep_BN[:1])
        return weights_1N.expand(self.batch.size, -1)

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

    # Several streams

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

    # Windows

    @property
    def windows(self) -> Windows:
        assert self.study.windows is not None
        return self.study.windows

    # Passes

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
            mask_BN = mask.bool()
            whole = self.unpadded if mask is self.batch.keep_BN and self.study.plain else bool(mask_BN.all())
            gaps += [not whole, not (whole or bool(mask_BN[:, 0].all())), not (whole or bool(mask_BN[:, -1].all()))]
        return (graph, self.batch.size > 1, length, *gaps)

    def require_slopes(self, maps: Record, role: Recorder, score: Callable[[Tensor], Tensor] | None = None) -> None:
        """Refuse gradients at the maps that are not the slope of the score (study/slopes.py), once per model.

        score: what was differentiated; None: the explained values.
        """
        checks = {("slopes",): True, ("lost", role.lost): bool(role.lost)}
        due = [check for check, needed in checks.items() if needed and check not in self.study.undisturbed]
        self.notes.update(self.study.doubts)
        if not due:
            return
        score = self.scalars if score is None else score
        output = Output(self.modality, self.batch, self.scalar)  # what is kept of outputs is of the model as it is

        def changed(rewrite: Rewrite) -> Tensor:
            impose = Impose(self.rows_run, self.module_names, self.study.batch_axes, rewrite=rewrite)
            impose.rows_attend = self.batch.reference_rows > 0
            with torch.no_grad(), impose:
                return score(output.logits(self.together)).detach()

        with torch.no_grad():
            score_B = score(maps.logits).detach()
        for check in reversed(due):
            if check[0] == "lost":
                self.setup_forwards += require_reached(maps, score_B, changed, role.lost)
            else:
                passes, doubt = require_slopes(maps, score_B, changed, self.rows_run < self.batch.size)
                self.setup_forwards += passes
                self.study.doubts.extend([doubt] * bool(doubt))
            self.study.undisturbed.add(check)
        self.notes.update(self.study.doubts)

    def record(  # noqa: PLR0915  (one pass, and what it is held to)
        self,
        grad: bool = False,
        values: bool = False,
        multi_stream: bool = False,
        layers: frozenset[int] | None = None,
        padded: bool = False,
    ) -> Record:
        """Attention maps (and gradients) of the batch; one record serves all methods.

        multi_stream: the method knows what to do with several streams. layers, padded: see :meth:`layers_of`.
        """
        if not self.study.plain:
            require_readable(self.study, multi_stream)
        known = self._records.get(True) or (None if grad else self._records.get(False))
        kind, rows = ("gradients", self.rows_run) if grad else ("maps", self.batch.size)
        if known is not None and not (values and known.sites[0].value_BHKD is None):
            if grad or not self.asked.keys() & {"gradients", "blocks"}:  # those have the maps, too
                self.asked.setdefault(kind, (rows / self.batch.size, int(grad)))
            self.asked.setdefault("logits", (0, 0))
            return known
        self.asked |= {kind: (0, 0), "logits": (0, 0)}
        forward, maps = partial(self.output.logits, self.together if grad else self.batch), None
        if self.study.plain:
            _ = self.unpadded  # asked before the pass, while a GPU has nothing to do
        plans, of_kind = self.study.plans, (grad, rows > 1)
        known_form = self._form(grad) in self.study.undisturbed
        # Of what was watched before, autograd tells the attentions: nothing has to watch it.
        tells = grad and self.study.plain and self.unpadded and not (values or self.recorded)
        unwatched = known_form
        while maps is None:
            plan = plans.plans.get(of_kind) or plans.at(of_kind, self.study.torch_own)
            leaf = None
            if tells and plan is not None and plan.paths and not (plans.watched or self.batch.reference_rows):
                leaf = first_weight(self.modality.model)
            role: Observe | Recorder
            if leaf is not None and plan is not None and unwatched:
                role = Lineage(rows, self.module_names, plan=plan, leaf=leaf)
                role.meanwhile = (lambda: self.units,)
            else:
                role, unwatched = (Recorder if grad else Observe)(rows, self.module_names, self.study.batch_axes), False
                role.rows_attend = self.batch.reference_rows > 0
                role.plan = None if role.rows_attend or padded else plan
                if isinstance(role, Recorder):
                    role.leaf = leaf
            shares: list[Tensor] = []
            if isinstance(role, Observe) and layers is not None:
                role.layers, role.glance = layers, partial(self._glance, shares) if padded else None
            self.forwards_B += rows / self.batch.size
            retained, self.retained, once = self.retained, None, forward
            if retained is not None and not grad and role.plan is not None and role.plan.paths:
                once = partial(retained.handed_to, role, forward)
            try:
                if isinstance(role, Recorder):
                    maps = record(forward, role, partial(self.scalars, ask=False), values, rows < self.batch.size)
                    self.backwards_B += 1
                else:
                    maps = observe(once, role, values)
            except OffPlan:
                plans.missed(of_kind)
            except Unread as error:
                unwatched = False
                plans.watched = not isinstance(error, Unseen) or (plan is not None and len(plan.graphs) >= MOST)
                self.forwards_B -= rows / self.batch.size
                self.setup_forwards += rows
        self.setup_forwards -= int(retained is not None and retained.used)  # among which it was counted
        if self._logits is None:
            self._see(maps.logits)
        elif self._unseen and not unwatched:
            self._see(None)
        if not maps.sites or maps.unclaimed:
            require_sites(maps)
        if not known_form:
            self.require_undisturbed(maps.logits, graph=grad)
        if isinstance(role, Recorder) and role.plan is not None and role.leaf is not None and role.watches:
            plans.watched = role.graph is None
            role.plan.graphs.update([] if role.graph is None else [role.graph])
        if role.plan is None and not role.rows_attend and role.plannable:
            plans.learn(of_kind, role.sites, role.steps)
        if isinstance(role, Recorder):
            self.notes.update(self.study.doubts)
            if role.lost or ("slopes",) not in self.study.undisturbed:
                self.require_slopes(maps, role)
            self._last_site, self._unseen = maps.sites[-1], True
            if not self.settles_later:
                self._see(None)
        if role.plan is None or not role.plan.streams:
            maps = with_streams(maps, self.study)
        if layers is None:
            self._records[grad] = maps
        else:
            self._part = (layers, maps)
            self._padding_share_B = torch.stack(shares).mean(0) if shares else self.keep_BN[:, 0].float() * 0
        return maps

    def lost_to_padding(self, share_B: Tensor) -> None:
        """How much of the attention goes to padding, where no map is stored that would tell it."""
        if self._padding_share_B is None:
            self._padding_share_B = share_B

    def said(self, logits: Tensor) -> None:
        """What a pass said that was made elsewhere (engines/attention/fold_pass.py)."""
        if self._logits is None:
            self._see(logits)
        elif self._unseen:
            self._see(None)

    def adopt(self, maps: Record, grad: bool, padding_share_B: Tensor | None = None) -> None:
        """Take a record that was made elsewhere (compiled/) in place of a pass of its own."""
        self._records[grad], self._padding_share_B = maps, padding_share_B
        self.forwards_B += 1
        self.backwards_B += int(grad)

    def layers_of(self, choice: Callable[[int], Sequence[int]], multi_stream: bool = False) -> Record:
        """A record in which the layers of a choice (their number → theirs) have maps, and others perhaps shapes only.

        All have them where other methods follow that may need them, and where heads that are computed one by one attend
        to padding: the share of a layer is known once it is whole.
        """
        by_one = [site.parallel for site in self.study.sites]
        if self._records or not self.alone or not by_one or self.recorded:
            return self.record(multi_stream=multi_stream)
        padded = not (self.multi_stream or self.windowed or self.unpadded)
        if padded and any(by_one):
            return self.record(multi_stream=multi_stream)
        layers = frozenset(choice(by_one.count(False)))
        if self._part is None or not self._part[0] >= layers:
            maps = self.record(multi_stream=multi_stream, layers=layers, padded=padded)
            if len(maps.sites) == by_one.count(False):
                return maps
            self._part = self._padding_share_B = None  # others than were studied: which are meant is seen in all
            return self.record(multi_stream=multi_stream)
        self.asked.setdefault("maps", (1, 0))
        self.asked.setdefault("logits", (0, 0))
        return self._part[1]

    @property
    def bytes_per_number(self) -> int:
        """Of what the model computes with."""
        return next((p.element_size() for p in self.modality.model.parameters() if p.is_floating_point()), 4)

    # Without storing maps (engines/attention/fold_pass.py)

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

    def anatomy(self) -> Anatomy:
        """The block around each attention (capture/blocks/anatomy.py); its one forward serves as a record, too."""
        self.asked.setdefault("blocks", (int(self._anatomy is not None), 0))
        self.asked.setdefault("logits", (0, 0))
        if self._anatomy is None:
            require_readable(self.study)
            self.forwards_B += 1
            role = Dissect(self.batch.size, self.module_names, self.study.batch_axes)
            role.rows_attend = self.batch.reference_rows > 0
            self._anatomy = dissect(partial(self.output.logits, self.batch), role)
            require_sites(self._anatomy.record)
            self.require_undisturbed(self._anatomy.record.logits, graph=False)
            self._records[False] = with_streams(self._anatomy.record, self.study)
            if self._logits is None:
                self._see(self._anatomy.record.logits)
        return self._anatomy

    def rewritten(self, edit: Edit) -> Tensor:
        """Logits with attention or values changed inside the model (capture/roles.py: Intervene)."""
        role = Intervene(self.batch.size, self.module_names, self.study.batch_axes, edit=edit)
        role.rows_attend = self.batch.reference_rows > 0
        self.forwards_B += 1
        with torch.no_grad(), role:
            return self.output.logits(self.batch)

    # Gradients at the input

    def require_one_input(self) -> None:
        if self.modality.multi_input:
            raise NotOffered(
                "gradients at the input are taken with respect to one tensor, and this model has several streams of "
                "input: one of them would be left out."
            )

    def traced(self, rules: TorchFunctionMode, dtype: torch.dtype | None = None) -> Traced:
        """One forward under a function mode, with the input as leaves of the graph; see :meth:`differentiated`.

        Leaves, in ``dtype`` if one is given, are the word embeddings of ids, the columns of a table that are looked
        up, and whatever comes as floats.
        """
        changed_rules = type(rules) is not BaseTorchFunctionMode
        if changed_rules and self.study.hidden and self.study.trouble is not None:
            raise NotOffered(f"changed gradient rules do not hold where nothing is seen: {self.study.trouble}")
        self.forwards_B += self.rows_run / self.batch.size
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            leaves.append(as_leaf(tensor, dtype))
            return leaves[-1]

        named = self.batch.tensors.items()
        floats = {name: leaf(t) for name, t in named if t.is_floating_point() and "mask" not in name}
        seen = BeforeAttention(self.rows_run, self.length)
        seen.add(*leaves)
        batch = self.batch.with_tensors(**floats) if floats else self.together
        with torch.enable_grad():
            with rules, self.modality.looked_up(batch.shared or self.batch, leaf) as lookups, seen:
                logits = self.output.logits(batch)
            self._require_lookups(lookups)
            if not leaves:
                raise NotOffered(
                    "the word embedding of this model was not found: its ids never pass torch's embedding lookup."
                )
            self.require_undisturbed(logits, graph=True)
            trace = Traced(self.scalars(logits), leaves, seen, batch.shared is not None)
        if changed_rules:
            trace.require_followed()
        return trace

    def _require_lookups(self, lookups: TorchFunctionMode) -> None:
        """Refuse gradients at word embeddings that the model also reads in a way that they leave out."""
        if not isinstance(lookups, SwapEmbedding):
            return
        if lookups.missed:
            raise NotOffered(
                f"the model reads its word embeddings a second time, by {lookups.missed}, so that gradients at those "
                "that enter its layers would leave a part out."
            )
        if lookups.other_tables:
            self.notes.add(
                "the ids are also looked up in a second table; gradients are taken at the model's word embeddings, and "
                "leave out what the other table tells it."
            )

    def differentiated(self, traced: Traced, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Gradient of the explained values under the rules of the trace; zeros where they do not depend on it."""
        self.backwards_B += 1
        return traced.gradients(tensors)
