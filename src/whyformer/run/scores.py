"""What the model says about a batch, and the number of it that is explained. Passes are counted where they are made."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.borrow import known_about, module_names, require_known
from whyformer.inputs.batch import Batch
from whyformer.inputs.host import on_host
from whyformer.output import Output
from whyformer.run.positions import PlacedBatch
from whyformer.study.interference import MIXES, require_apart, require_same
from whyformer.targets import are_probabilities, refuse_twice, require_finite, resolve_targets, scalar_at, scalar_of
from whyformer.types import Target


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
    _unconfirmed: Callable[[], bool] | None  # whether what was recorded is all there is, asked at the same time
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
        confirm, self._unconfirmed = self._unconfirmed, None
        if confirm is not None and not confirm():
            self.readings += 1
        elif last is not None:
            elsewhere = self._elsewhere(last.first_query, gradient_BHQK=last.attention_grad_BHQK)
        del confirm, last  # and with them the graph of the pass, which takes time to let go: a GPU is still at work
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
