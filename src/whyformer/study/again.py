"""The input that was studied run again, or another in its place: does what was seen of it hold, and who hears of what?

Each pass serves as many questions as it can. Of a model whose attentions are all torch's own, the pass that was studied
is replayed with a change, which is the leak audit and, of pictures, the test that rows of the head are fixed; a text of
another length may then be a short one.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from whyformer.errors import CaptureError
from whyformer.inputs.base import Modality, shifted
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.study.dataflow import MarkingSurvey, Tail
from whyformer.study.facts import Study
from whyformer.study.fingerprints import Marks
from whyformer.study.leak import ROUNDING, Leak, audit
from whyformer.study.readout import Reached, Readout, SiteFacts, pooled_besides, readout_rows, reordered
from whyformer.study.replay import Replay, replay, turn_of

SHORT = 16  # tokens of a text that stands for one of another length
BY_CONTENT = (
    "the head reads other rows of another picture than of the one that was studied ({readout}): it finds them by what "
    "stands there, and maps are read at the rows that feed the head."
)


class Passes:
    """Runs the input that is studied, or a variant of it, and counts how often."""

    def __init__(self, modality: Modality, one: Batch) -> None:
        self.one, self._output = one, Output(modality, one)
        self.count = self._output.setup_forwards

    def __call__(self, variant: Batch | None = None) -> Tensor:
        self.count += 1
        return self._output.logits(self.one if variant is None else variant)


class Again:
    """The input that was studied, run again with a change, to hear who hears of it.

    read: the positions that the head reads, where that is known.
    """

    def __init__(
        self,
        modality: Modality,
        run: Passes,
        names: dict[int, str],
        lineage: MarkingSurvey,
        study: Study,
        real: Tensor,
        read: set[int] | None,
    ) -> None:
        self.modality, self.run, self.names, self.sites = modality, run, names, len(lineage.sites)
        self.positions, self.count, self.read = real.nonzero()[:, 0].tolist(), len(real), read
        self.grid, self.convolutions = lineage.grid, lineage.convolutions
        # What the attentions said can be said again where all of them are torch's own.
        self.retained, self.plain = None, Marks()
        if isinstance(lineage, Tail):
            self.plain = lineage.prints.handed_over()
            if study.torch_own and lineage.retained.intact():
                self.retained = lineage.retained

    def forget(self) -> None:
        """Results are of no more use."""
        if self.retained is not None:
            self.retained.drop_results()

    def turned(self, first_BHKD: Tensor) -> Replay | None:
        """With cells of the picture in each other's places, where they are one convolution."""
        if self.retained is None or self.read is None:
            return None
        turn = turn_of(self.grid, self.convolutions, sorted(self.read), first_BHKD)
        return None if turn is None else replay(self.run, self.names, self.retained, self.plain, turn=turn)

    def changed(self, extra: int, position: int, strength: float) -> Tensor:
        """Run with another embedding at one position, where there are embeddings."""
        if not self.modality.embeds or extra:
            return self.run()

        def shift(embedding: Tensor) -> Tensor:
            other = embedding.clone()
            other[:, position] = other[:, position].lerp(shifted(other[:, position]), strength)
            return other

        with self.modality.looked_up(self.run.one, shift):
            return self.run()


def leak_of(again: Again, extra: int, turned: Replay | None) -> Leak:
    """The audit, at a position that the head does not read where there is one."""
    positions, read = again.positions, again.read
    if len(positions) < 2:
        return Leak()
    others = [] if read is None else [p for p in positions if p not in read]
    position = (others or positions)[len(others or positions) // 3]  # not in the middle, which a flip leaves alone
    if turned is not None and turned.unheard and (not others or turned.moved <= ROUNDING):
        return Leak(checked=turned.unheard)
    heard = None
    if again.retained is not None and (turned is None or turned.unheard):  # the head may read a cell that moved
        changed = partial(again.changed, extra, position, 1.0)
        heard = replay(changed, again.names, again.retained, again.plain, position=position)
    # The output may have changed where the head reads what was changed. Whatever else is unlike, the audit decides.
    if heard is not None and heard.unheard and (not others or heard.moved <= ROUNDING):
        return Leak(checked=heard.unheard)
    return audit(
        again.run,
        partial(again.changed, extra, position),
        again.names,
        position,
        again.count,
        sites=again.sites,
        unread=bool(others),
    )


def confirmed(
    modality: Modality,
    run: Passes,
    names: dict[int, str],
    readout: Readout,
    study: Study,
    where: tuple[SiteFacts, int, int | None],
    turned: Reached | None,
) -> Readout:
    """The rule, if it holds on an input of another length and order; else one by which each input is asked.

    Of two tokens, the last is also position 1, and the first is also the last but one. A row may also be found by what
    stands there (the largest id, a mask token): then it moves with the order. turned: rows that feed the head with
    parts of the picture in each other's places, where that is known.
    """
    (site, extra, front), last = where, len(study.sites) - 1
    if modality.pixels and len(run.one.tensors) == 1 and site.queries == site.keys:
        _require_fixed(modality, run, names, readout, last, turned)
    fits = site.queries == site.keys == modality.length(run.one) + extra
    if readout.kind == "rows" or not modality.lengths_vary or not fits or run.one.positions or run.one.spans:
        return readout
    each = Readout("rows", rows=tuple(range(site.keys)))
    # A model may change its ways with the length. One whose attentions all looked at all positions, by torch's own
    # function, had none to change (block-sparse attention needs long inputs); what a short text then says otherwise is
    # asked of a long one.
    if study.torch_own and modality.embeds and not extra:
        short = reordered(run.one, modality.length(run.one), SHORT)
        if short is not None and _holds(modality, run, names, readout, last, short, front):
            return readout
    other = reordered(run.one, modality.length(run.one))
    if other is None:
        return each
    return readout if _holds(modality, run, names, readout, last, other, front) else each


def _holds(
    modality: Modality,
    run: Passes,
    names: dict[int, str],
    readout: Readout,
    last: int,
    other: Batch,
    front: int | None,
) -> bool:
    """Does the head read the rows of the rule on another input?"""
    try:
        rows, count, slots, maximum = readout_rows(partial(run, other), names, last)
    except (RuntimeError, ValueError, IndexError, CaptureError):  # not every order of words is an input of this model
        return False
    if maximum:
        return True
    rows = sorted(slots & set(rows)) if pooled_besides(rows, slots) else rows
    return rows == readout.weights(modality.keep(other, count, front))[0].nonzero()[:, 0].tolist()


def _require_fixed(
    modality: Modality, run: Passes, names: dict[int, str], readout: Readout, last: int, turned: Reached | None
) -> None:
    """Refuse a head that reads other rows of the picture upside down: it finds them by what stands there."""
    picture = run.one.tensors[modality.main]
    other = run.one.with_tensors(**{modality.main: picture.flip(-1, -2)})
    rows, count, slots, maximum = turned or readout_rows(partial(run, other), names, last)
    rows = sorted(slots & set(rows)) if pooled_besides(rows, slots) else rows
    expected = readout.weights(modality.keep(other, count, None))[0].nonzero()[:, 0].tolist()
    if not maximum and rows != expected:
        raise CaptureError(BY_CONTENT.format(readout=readout))
