"""Run: a batch with its targets, recorded under an interceptor. It caches records and counts passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.blocks.anatomy import Dissect, dissect
from whyformer.capture.blocks.block import Anatomy
from whyformer.capture.functions import padding_share
from whyformer.capture.record import observe, record, require_sites
from whyformer.capture.roles import HeadGradient, Impose, Observe, Recorder, Rewrite
from whyformer.capture.site import Plan, PlannedSite
from whyformer.inputs.batch import Batch
from whyformer.inputs.decoding import KeptPass
from whyformer.inputs.output import Output
from whyformer.loan.backwards import rounds_activations, with_weights
from whyformer.loan.borrow import known_about
from whyformer.loan.spread import MultiplyAdds
from whyformer.results.types import Record
from whyformer.run.scores import form_of, require_undisturbed, spoke_rows, working
from whyformer.run.traced import TracedBatch
from whyformer.study import Study, interference, require_readable
from whyformer.study.entrance import HIDDEN

ATTENDING = frozenset(("attention", "attention_gradients", "values"))  # needs of a method that reads attention


@dataclass
class Attribution:
    """What a method returns for a batch: scores per attention position, and whatever else it has."""

    scores_BN: Tensor
    matrix_BQK: Tensor | dict[tuple[str, str], Tensor] | None = None  # several streams: by (query, key) stream
    layers_BLQK: Tensor | None = None
    detail: list[np.ndarray[Any, Any]] | Tensor | None = None  # per input, what the scores are sums of
    base_B: Tensor | None = None
    errors_BN: Tensor | None = None  # standard errors of the scores
    interactions: list[tuple[tuple[str, str, float], ...]] | None = None  # what two parts do more together than each
    checks: dict[str, Tensor] = field(default_factory=dict)  # name -> (B,), e.g. completeness error
    warnings: list[list[str]] | None = None
    signed: bool | None = None  # where an option decides it; None: as registered
    explained: tuple[str, Tensor] | None = None  # scalar and (B,) values, where they are others than were asked for
    used: dict[str, Any] = field(default_factory=dict)  # option left open -> what was taken, as it could be asked for


class Run(TracedBatch):
    """A batch of inputs with targets, ready to be recorded, scored, differentiated or changed."""

    unscored: list[list[str]] | None = None  # what of the value depends on no unit, once it was measured
    attended: Run | None = None  # the run of the same batch with the units that attention runs over
    alone = False  # no other method follows that could use the same record
    folds = False  # maps are not stored (engines/attention/chain.py)
    recomputes = False  # layers are computed again in backward
    _ran_before = False  # the forward of the record with gradients is another run's (KeptPass)
    _part: tuple[frozenset[int], Record] | None = None  # layers, and a record with the maps of these alone
    _anatomy: Anatomy | None = None
    _of_blocks = 0.0  # forwards that it took
    _padding_share_B: Tensor | None = None

    @property
    def input_length(self) -> int | None:
        """The number of positions of the input's stream; None where attention runs over other streams only."""
        return self.stream_sizes.get(self.modality.stream) if self.multi_stream else self.length

    def of(self, batch: Batch, study: Study, target: Any) -> Run:
        """Return a run of another batch, of which the same is asked."""
        same = ("scalar", "seed", "batch_size", "keep_layers", "track")
        return Run(self.modality, batch, study, target=target, **{name: getattr(self, name) for name in same})

    def for_needs(self, needs: Set[str]) -> Run:
        """Return the run with the units that a method scores: without attention, all units of the inputs."""
        return self if needs & ATTENDING else self.by_input

    @cached_property
    def by_input(self) -> Run:
        """Return the same batch with all units of the inputs; itself, where attention runs over all of them."""
        modality, study = self.modality, self.study
        if not study.sites or modality.read.joint or self.batch.reference_rows:
            return self
        if self.input_length is not None and modality.place.covers(self.batch, self.input_length):
            return self
        run = self.of(replace(self.batch, by_input=True), study.by_input, self._wanted)
        run.numbers, run.attended = self.numbers, self
        run.forwards_B, run.backwards_B = self.forwards_B, self.backwards_B  # the same arrays: both count in them
        if self._logits is not None:
            run._see(self.logits)
        return run

    @property
    def attended_BN(self) -> Tensor:
        """(B, N) positions that attention runs over: the real ones, and padding that the model does not mask."""
        return self.keep_BN if self.unpadded else self.keep_BN | (self.padding_share_B > HIDDEN)[:, None]

    @property
    def padding_share_B(self) -> Tensor:
        """(B,) share of the attention of real positions that goes to padding; 0 before anything was recorded."""
        share_B = self._padding_share_B
        if share_B is None:
            maps, keep_BN = self._records.get(True) or self._records.get(False), self.keep_BN
            if maps is None or self.multi_stream or self.windowed or self.unpadded:
                share_B = torch.zeros(len(keep_BN), device=keep_BN.device)
            else:
                # The mean share of the attention of real positions, over layers and heads.
                shares = [padding_share(site.attention_BHQK, keep_BN, site.first_query) for site in maps.sites]
                share_B = torch.stack(shares).mean(0)
            self._padding_share_B = None if maps is None else share_B
        return share_B

    def _glance(self, shares: list[Tensor], attention_BHQK: Tensor, first: int) -> None:
        """Add the share of one layer whose map is not kept."""
        if attention_BHQK.shape[3] == self.keep_BN.shape[1]:  # otherwise not over the units, which raises later
            shares.append(padding_share(attention_BHQK, self.keep_BN, first))

    def record(
        self,
        grad: bool = False,
        values: bool = False,
        multi_stream: bool = False,
        layers: frozenset[int] | None = None,
        padded: bool = False,
    ) -> Record:
        """Return attention maps (and gradients) of the batch; one record serves all methods.

        multi_stream: the method supports several streams. layers, padded: see :meth:`layers_of`.
        """
        if not self.study.plain:
            require_readable(self.study, multi_stream)
        known = self._records.get(True) or (None if grad else self._records.get(False))
        kind, rows = ("gradients", self.rows_run) if grad else ("maps", self.batch.size)
        if known is not None and not (values and known.sites[0].value_BHKD is None):
            if grad or not self.asked.keys() & {"gradients", "blocks"}:  # these contain the maps
                forwards = 0 if self._ran_before else rows / self.batch.size
                self.asked.setdefault(kind, (forwards, 1 if grad else self.of_head))
            self.asked.setdefault("logits", (0, 0))
            return known
        self.asked |= {kind: (0, 0), "logits": (0, 0)}
        if self.study.plain:
            _ = self.unpadded  # read before the pass, while the GPU is idle
        known_form = form_of(self, grad) in self.study.undisturbed
        maps, role, shares = self._intercepted(grad, values, layers, padded)
        unchecked = isinstance(role, Recorder) and (role.lost or ("slopes",) not in self.study.undisturbed)
        if self._logits is None:
            self._see(maps.logits)
        elif self._unseen and (unchecked or not (grad and known_form)):  # else later: it forces a synchronisation
            self._see(None)
        if not maps.sites or maps.unclaimed:
            require_sites(maps)
        if not known_form:
            require_undisturbed(self, maps.logits, graph=grad)
        if role.plan is None and not role.rows_attend and role.plannable:
            sites = tuple(map(PlannedSite.of, role.sites))
            self.study.plans.learn((grad, rows > 1), Plan(sites, tuple(role.steps)))
        if isinstance(role, Recorder):
            self.notes.update(self.study.warnings)
            if unchecked:
                self.require_slopes(maps, role)
        self._take_rows(maps, role.spoke_BQ if isinstance(role, Observe) else None)
        if layers is None:
            self._records[grad] = maps
        else:
            self._part = (layers, maps)
            self._padding_share_B = torch.stack(shares).mean(0) if shares else self.keep_BN[:, 0].float() * 0
        return maps

    def _intercepted(
        self, grad: bool, values: bool, layers: frozenset[int] | None, padded: bool
    ) -> tuple[Record, Observe | Recorder, list[Tensor]]:
        """Return the record, the interceptor, and the shares of padding."""
        rows = self.rows_run if grad else self.batch.size
        forward = partial(self.output.logits, self.together if grad else self.batch)
        text_pass = self.text_pass if grad else KeptPass()

        def run_once(plan: Plan | None) -> tuple[Record, Observe | Recorder, list[Tensor]]:
            role: Observe | Recorder
            role = (Recorder if grad else Observe)(rows, self.module_names, self.study.batch_axes)
            role.rows_attend, role.facts = self.batch.reference_rows > 0, self.study.sites
            role.plan = None if role.rows_attend else plan
            shares: list[Tensor] = []
            if isinstance(role, Observe):
                role.count = self.attentions
                if layers is not None:
                    role.layers, role.glance = layers, partial(self._glance, shares) if padded else None
                maps = observe(forward, role, values)
            else:
                before = text_pass.seen(Recorder)
                role, self._ran_before = before or role, (ran := before is not None)
                shared = rows < self.batch.size
                with text_pass.used_by(role):
                    maps = record(forward, role, partial(self.scalars, ask=False), values, shared, ran, text_pass.more)
            return maps, role, shares

        seen = self.study.plans.run((grad, rows > 1), run_once, self.study.torch_own)
        self.forwards_B += 0 if self._ran_before else rows / self.batch.size
        self.backwards_B += 1 if grad else self.of_head
        return seen

    def _take_rows(self, maps: Record, spoke_BQ: Tensor | None) -> None:
        """Compare the rows of the last map that have a gradient with the read-out rule."""
        spoke_BQ = spoke_rows(maps.sites[-1]) if spoke_BQ is None else spoke_BQ
        if spoke_BQ is not None:
            self._see(None, spoke=(maps.sites[-1].first_query, spoke_BQ))
        else:
            self.reads_elsewhere(maps.sites[-1].first_query, None)

    def lost_to_padding(self, share_B: Tensor) -> None:
        """Set the share of attention that goes to padding, if no map is stored."""
        if self._padding_share_B is None:
            self._padding_share_B = share_B

    def said(self, logits: Tensor) -> None:
        """Take the logits of a pass that ran elsewhere (engines/attention/chain.py)."""
        if self._logits is None:
            self._see(logits)
        elif self._unseen:
            self._see(None)

    def adopt(self, maps: Record, grad: bool, padding_share_B: Tensor | None = None) -> None:
        """Take a record that was made elsewhere (compiled/) in place of a pass."""
        self._records[grad], self._padding_share_B = maps, padding_share_B
        self.forwards_B += 1
        self.backwards_B += int(grad)

    def layers_of(self, choice: Callable[[int], Sequence[int]], multi_stream: bool = False) -> Record:
        """Return a record with the maps of the chosen layers (count → numbers); others may have shapes only.

        All layers have maps if other methods follow, or if heads that are computed one by one attend to padding.
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
            self._part = self._padding_share_B = None  # other layers than in the study: record all of them
            return self.record(multi_stream=multi_stream)
        self.asked.setdefault("maps", (1, self.of_head))
        self.asked.setdefault("logits", (0, 0))
        return self._part[1]

    @property
    def of_head(self) -> float:
        """Return the share of a backward that the gradient of the head takes; counted once per model."""
        known = known_about(self.modality.model)
        if HeadGradient not in known and self.attentions is not None:
            role = Observe(self.batch.size, self.module_names, self.study.batch_axes)
            role.count, role.layers, role.rows_attend = self.attentions, frozenset(), self.batch.reference_rows > 0
            with MultiplyAdds() as role.work:
                observe(partial(self.output.logits, self.batch), role)
            known[HeadGradient], self.setup_forwards = role.share, self.setup_forwards + self.batch.size
        return 0.0 if self.attentions is None else known[HeadGradient]

    @property
    def bytes_per_number(self) -> int:
        """Return the size of the model's floats."""
        return next((p.element_size() for p in self.modality.model.parameters() if p.is_floating_point()), 4)

    def anatomy(self) -> Anatomy:
        """Return the block around each attention (capture/blocks/anatomy.py); its forward also serves as a record."""
        self.asked.setdefault("blocks", (self._of_blocks, 0))
        self.asked.setdefault("logits", (0, 0))
        if self._anatomy is None:
            require_readable(self.study)
            if not self.study.sites or self.study.unclaimed:
                self.record()  # raises, with what is missing
            before_B = self.forwards_B.copy()
            role = Dissect(self.batch.size, self.module_names, self.study.batch_axes)
            role.rows_attend, role.facts = self.batch.reference_rows > 0, self.study.sites
            role.count = self.attentions
            with with_weights(self.modality.model), working(self, "blocks"):
                self._anatomy = dissect(partial(self.output.logits, self.batch), role)
            self._of_blocks = float((self.forwards_B - before_B).max())
            require_sites(self._anatomy.record)
            require_undisturbed(self, self._anatomy.record.logits, graph=False)
            self._records[False] = self._anatomy.record
            if self._logits is None:
                self._see(self._anatomy.record.logits)
            self._take_rows(self._anatomy.record, role.spoke_BQ)
        return self._anatomy

    # Checks that gradients at the maps are slopes

    def require_slopes(self, maps: Record, role: Recorder, score: Callable[[Tensor], Tensor] | None = None) -> None:
        """Raise if gradients at the maps are not the slope of ``score`` (None: explained values), once per model."""
        due = self.due_checks(role.lost)
        if due:
            score = score or self.scalars
            output = Output(self.modality, self.batch, self.scalar)  # what is kept of outputs is of the model as it is

            def changed(rewrite: Rewrite) -> Tensor:
                impose = Impose(self.rows_run, self.module_names, self.study.batch_axes, rewrite=rewrite)
                impose.rows_attend = self.batch.reference_rows > 0
                with impose:
                    return score(output.logits(self.together))

            def scaled(share: float) -> Tensor:
                return changed(lambda layer, first, weights: weights * share if layer in role.lost else weights)

            with torch.no_grad():
                score_B = score(maps.logits).detach()
            for check in due:
                if check[0] == "lost":
                    paths = [maps.sites[i].path for i in sorted(role.lost)]
                    self.passed(check, interference.require_reached(paths, score_B, scaled))
                else:
                    shared = self.rows_run < self.batch.size
                    self.passed(check, *interference.require_slopes(maps, score_B, changed, shared))
        self.notes.update(self.study.warnings)

    def due_checks(self, lost: frozenset[int], measured: bool = True) -> list[tuple[Any, ...]]:
        """Return the checks of gradients at the maps that this model has not passed; lost: maps without a gradient."""
        needed = {("lost", lost): bool(lost), ("slopes",): measured}
        return [check for check in needed if needed[check] and check not in self.study.undisturbed]

    def passed(self, check: tuple[Any, ...], passes: int, doubt: str = "") -> None:
        """Remember that the model passed a check, what that took, and what remains open."""
        self.setup_forwards += passes * self.rows_run
        if doubt == interference.JUMPS and rounds_activations(self.modality.model):
            doubt = interference.ROUNDS
        self.study.warnings.extend([doubt] * bool(doubt))
        self.study.undisturbed.add(check)
