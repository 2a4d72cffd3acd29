"""Explain one batch with several methods: one record for all that need it, and what each of them cost."""

from __future__ import annotations

import time
from typing import Any

import torch

from whyformer.errors import AmbiguousLayout, NotOffered
from whyformer.found import explanations, with_pairs
from whyformer.inputs.base import Batch, Modality
from whyformer.memory import Peak
from whyformer.registry import Method
from whyformer.run import Run
from whyformer.study import Study
from whyformer.types import Cost, Explanation


class BatchRunner:
    """Explains one batch with several methods."""

    def __init__(
        self,
        modality: Modality,
        study: Study,
        scalar: str,
        seed: int,
        batch_size: int,
        keep_layers: bool,
        setup: int,
        track: Any,
    ) -> None:
        self.modality, self.study, self.scalar, self.seed = modality, study, scalar, seed
        self.batch_size, self.keep_layers, self.setup, self.track = batch_size, keep_layers, setup, track

    def run(
        self, batch: Batch, target: Any, chosen: list[Method], settings: dict[str, dict[str, Any]]
    ) -> dict[str, list[Explanation]]:
        """Explanations by method. ``batch_size`` is halved where the device's memory does not suffice."""
        results: dict[str, list[Explanation]] = {m.name: [] for m in chosen}
        first = 0
        while first < batch.size:
            rows = range(first, min(first + self.batch_size, batch.size))
            found = self._within_memory(*part_of(batch, target, rows), chosen, settings)
            if found is None:
                self.batch_size = max(1, self.batch_size // 2)
                torch.cuda.empty_cache()
                continue
            for name, own in found.items():
                results[name] += own
            first = rows.stop
        return results

    def _within_memory(
        self, batch: Batch, target: Any, chosen: list[Method], settings: dict[str, dict[str, Any]]
    ) -> dict[str, list[Explanation]] | None:
        """None where the memory did not suffice; by then the error is gone, and with it the tensors in its frames."""
        try:
            if self.modality.mixes_rows:
                return self._beside_others(batch, target, chosen, settings)
            return self._run_or_singly(batch, target, chosen, settings)
        except torch.OutOfMemoryError as error:
            if self.batch_size > 1:
                return None
            what = " and ".join(m.name for m in chosen)
            raise NotOffered(
                f"{what}: a single input takes more memory than the device has left. Shorten the input, load the model "
                f"in half precision, or use a method that keeps less (attention_rollout, occlusion). torch: {error}"
            ) from None

    def _run_or_singly(
        self, batch: Batch, target: Any, chosen: list[Method], settings: dict[str, dict[str, Any]]
    ) -> dict[str, list[Explanation]]:
        try:
            return self._run(batch, target, chosen, settings)
        except AmbiguousLayout:
            if batch.size == 1:
                raise
        # Batch and heads could not be told apart at this batch size; a single input leaves no doubt.
        results: dict[str, list[Explanation]] = {m.name: [] for m in chosen}
        for row in range(batch.size):
            for name, found in self._run(*part_of(batch, target, range(row, row + 1)), chosen, settings).items():
                results[name] += found
        return results

    def _beside_others(
        self, batch: Batch, target: Any, chosen: list[Method], settings: dict[str, dict[str, Any]]
    ) -> dict[str, list[Explanation]]:
        """Row by row, each beside the reference rows; methods that only ask for scores bring those in themselves."""
        results: dict[str, list[Explanation]] = {m.name: [] for m in chosen}
        asking = [m for m in chosen if m.needs <= {"perturbation"}]
        if asking:
            results |= self._run(batch, target, asking, {m.name: settings[m.name] for m in asking})
        looking = [m for m in chosen if m not in asking]
        for row in range(batch.size if looking else 0):
            one = self.modality.beside_reference_rows(batch.select([row]))
            own = [target[row], *[None] * one.reference_rows] if isinstance(target, list) else target
            for name, found in self._run(one, own, looking, {m.name: settings[m.name] for m in looking}).items():
                results[name] += found[:1]
        return results

    def _cost(
        self, run: Run, m: Method, settings: dict[str, dict[str, Any]], row: int, seconds: float, peak: int
    ) -> Cost:
        """Counted for a single method; where several share passes, what this one takes by itself."""
        passes = float(run.forwards_B[row]), float(run.backwards_B[row])
        if len(settings) > 1:
            passes = m.cost(len(run.units[row]), **settings[m.name])
        return Cost(*passes, seconds=seconds / run.batch.size, peak_bytes=peak, setup_forwards=self.setup)

    def _run(
        self, batch: Batch, target: Any, chosen: list[Method], settings: dict[str, dict[str, Any]]
    ) -> dict[str, list[Explanation]]:
        run = Run(
            self.modality,
            batch,
            self.study,
            target=target,
            scalar=self.scalar,
            seed=self.seed,
            batch_size=self.batch_size,
            keep_layers=self.keep_layers,
            track=self.track,
        )
        started, peak = time.perf_counter(), Peak(next(iter(batch.tensors.values())).device)
        if any("attention_gradients" in m.needs for m in chosen):
            run.record(grad=True, multi_stream=True)  # one record serves every method that follows
        elif len(chosen) > 1 and any({"attention", "values"} <= m.needs for m in chosen):
            run.anatomy()  # likewise, for those that need the blocks around attention as well
        shared = time.perf_counter() - started
        results = {}
        for m in chosen:
            started = time.perf_counter()
            attribution = with_pairs(run, m.run(run, **settings[m.name]))
            _ = run.value_B  # what was explained belongs to the cost, also of methods that never ask for it
            seconds = time.perf_counter() - started
            if m.needs & {"attention", "attention_gradients"}:
                seconds += shared
            highest = peak.bytes
            costs = [self._cost(run, m, settings, row, seconds, highest) for row in range(batch.size)]
            results[m.name] = explanations(run, m, settings[m.name], attribution, costs)
        return results


def part_of(batch: Batch, target: Any, rows: range) -> tuple[Batch, Any]:
    """Some inputs of a batch with their targets."""
    return batch.select(rows), [target[i] for i in rows] if isinstance(target, list) else target
