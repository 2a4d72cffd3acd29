"""Visit a model with many inputs, batch by batch, and hand it back as it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.intercept import module_names
from whyformer.capture.record import observe, require_sites
from whyformer.capture.roles import Gate, Observe
from whyformer.errors import AmbiguousLayout, BadInput
from whyformer.explainer import BATCH_SIZE, Explainer
from whyformer.inputs.base import Batch
from whyformer.inputs.choose import are_tensors, choose_modality, is_single
from whyformer.output import Output
from whyformer.progress import tracker
from whyformer.run import Run
from whyformer.study import hidden_padding, study_of
from whyformer.types import Cost

T = TypeVar("T")


class Visit:
    """A borrowed model and the inputs that are put through it. Made by :func:`visiting`."""

    def __init__(self, explainer: Explainer, inputs: Any, batch_size: int | None, progress: bool | None) -> None:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
        self.model = explainer.model
        self.modality = choose_modality(explainer.model, explainer.processor, inputs)
        self.step = batch_size or BATCH_SIZE
        self.track = tracker(progress)
        self.names = module_names(explainer.model)
        self.started = time.perf_counter()
        self.forwards = self.backwards = 0.0
        self._whole: Batch | None = None
        self._raw: list[Any] = []
        if are_tensors(inputs):
            self._whole = self.modality.adopt(inputs)
            self.size = self._whole.size
        else:
            self._raw = [inputs] if is_single(inputs) else list(inputs)
            self.size = len(self._raw)
        if not self.size:
            raise BadInput("there are no inputs: the list is empty.")
        self.study, new = study_of(self.modality, self.part(range(min(self.size, self.step))))
        self.setup = self.study.forwards if new else 0
        if not self.study.one_stream and self._compares_inputs():
            self.step = 1

    def _compares_inputs(self) -> bool:
        """Dual encoders compare every input of a batch with every other: there, an input is explained alone."""
        if self.size == 1:
            return False
        sizes = set()
        for count in (1, 2):
            batch = self.part(range(count))
            with torch.no_grad():
                sizes.add(Output(self.modality, batch).logits(batch).shape[1])
            self.setup += count
        return len(sizes) > 1

    # Layers and heads

    @cached_property
    def layers(self) -> tuple[tuple[str, int], ...]:
        """(path, heads) of each layer, in call order; heads that a model computes one by one are one layer."""
        one = self.part([0])
        role = Observe(1, self.names, self.study.batch_axes)
        found = observe(lambda: Output(self.modality, one).logits(one), role)
        require_sites(found)
        self.setup += 1
        return tuple((site.path, site.heads) for site in found.sites)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path, _ in self.layers)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every (layer, head)."""
        return [(layer, head) for layer, (_, heads) in enumerate(self.layers) for head in range(heads)]

    def open_gates(self) -> Tensor:
        """(L, H) ones, as wide as the widest layer."""
        device = next(self.model.parameters(), torch.empty(0)).device
        return torch.ones(len(self.layers), max(heads for _, heads in self.layers), device=device)

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.study.leak.found:
            return ()
        return (
            f"positions also exchange information outside the captured attention (seen at {self.study.leak.path}): "
            "the heads are not the whole story of this model.",
        )

    # Batches

    def part(self, rows: Sequence[int]) -> Batch:
        """Some of the inputs, padded among themselves."""
        if self._whole is not None:
            batch = self._whole.select(rows)
        else:
            batch = self.modality.encode([self._raw[i] for i in rows])
        return hidden_padding(self.modality, batch)

    def run(self, rows: Sequence[int], target: Any = None) -> Run:
        own = [target[i] for i in rows] if isinstance(target, list) else target
        return Run(self.modality, self.part(rows), self.study, target=own, batch_size=self.step, track=self.track)

    def each(
        self, measure: Callable[[Run, list[int]], T], *, target: Any = None, label: str = "heads", sort: bool = True
    ) -> list[tuple[list[int], T]]:
        """``measure(run, rows)`` for every batch; with ``sort``, inputs of like length share a batch."""
        order = self._by_length() if sort else list(range(self.size))
        chunks = [order[i : i + self.step] for i in range(0, self.size, self.step)]
        results: list[tuple[list[int], T]] = []
        for chunk in self.track(chunks, label):
            try:
                results.append(self._one(measure, chunk, target))
            except AmbiguousLayout:
                if len(chunk) == 1:
                    raise
                # Batch and heads could not be told apart at this batch size; a single input leaves no doubt.
                results += [self._one(measure, [row], target) for row in chunk]
        return results

    def _one(self, measure: Callable[[Run, list[int]], T], rows: list[int], target: Any) -> tuple[list[int], T]:
        run = self.run(rows, target)
        found = measure(run, rows)
        self.forwards += float(run.forwards_B.sum())
        self.backwards += float(run.backwards_B.sum())
        return rows, found

    def gather(self, measure: Callable[[Run, list[int]], Tensor], **how: Any) -> np.ndarray[Any, Any]:
        """The (b, …) results of all batches as one float64 array, in the order of the inputs."""
        parts = self.each(measure, **how)
        first = parts[0][1]
        result = np.zeros((self.size, *first.shape[1:]))
        for rows, values in parts:
            result[rows] = values.detach().cpu().double().numpy()
        return result

    def _by_length(self) -> list[int]:
        if not all(isinstance(raw, str) for raw in self._raw):
            return list(range(self.size))
        return sorted(range(self.size), key=lambda i: len(self._raw[i])) if self._raw else list(range(self.size))

    def cost(self) -> Cost:
        """Passes per input, and the time of the whole visit."""
        return Cost(
            forwards=self.forwards / self.size,
            backwards=self.backwards / self.size,
            seconds=time.perf_counter() - self.started,
            setup_forwards=self.setup,
        )


@contextmanager
def visiting(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Iterator[Visit]:
    """Borrow the model for a visit."""
    explainer = Explainer(model, processor, attention_at=attention_at)
    with explainer.borrowed():
        yield Visit(explainer, inputs, batch_size, progress)


def gated(run: Run, rows: Sequence[int], gates: Tensor) -> Tensor:
    """(n, C) logits of the run's inputs ``rows`` (repeats allowed) with heads gated; gates (L, H) or (n, L, H)."""
    batch = run.batch.select(list(rows))
    np.add.at(run.forwards_B, list(rows), 1)
    try:
        with Gate(batch.size, module_names(run.modality.model), run.study.batch_axes, gates=gates):
            return run.output.logits(batch)
    except AmbiguousLayout:
        if batch.size == 1:
            raise
    np.add.at(run.forwards_B, list(rows), -1)
    alone = [gated(run, [row], gates if gates.ndim == 2 else gates[i : i + 1]) for i, row in enumerate(rows)]
    return torch.cat(alone)
