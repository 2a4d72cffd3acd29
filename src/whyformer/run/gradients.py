"""Gradients of the explained value: at the input, under changed rules, and checks that gradients are slopes."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from whyformer.capture.functions import answered
from whyformer.capture.leaves import BeforeAttention, SwapEmbedding, Traced, as_leaf, require_dependent, slopes
from whyformer.capture.roles import Impose, Recorder, Rewrite
from whyformer.errors import NotOffered
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.results.types import Record
from whyformer.run.scores import ScoredBatch
from whyformer.study.interference import (
    INPUT_SLOPES,
    Inputs,
    require_input_slopes,
    require_reached,
    require_slopes,
    rounding_step,
)


class TracedBatch(ScoredBatch, ABC):
    """A batch whose explained values can be differentiated."""

    notes: set[str]  # warnings for the explanations of this batch

    def require_one_input(self) -> None:
        if self.modality.multi_input:
            raise NotOffered(
                "gradients at the input are taken with respect to one tensor, and this model has several streams of "
                "input: one of them would be left out."
            )

    def traced(self, rules: TorchFunctionMode, dtype: torch.dtype | None = None) -> Traced:
        """Run one forward under a function mode, with the input as leaves of the graph (in ``dtype``, if given).

        Leaves are the word embeddings of ids, the looked-up columns of a table, and all tensors of floats.
        """
        changed_rules = type(rules) is not BaseTorchFunctionMode
        if changed_rules and self.study.hidden and self.study.trouble is not None:
            raise NotOffered(f"changed gradient rules do not hold where nothing is seen: {self.study.trouble}")
        self.forwards_B += self.rows_run / self.batch.size
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            leaves.append(as_leaf(tensor, dtype))
            return leaves[-1]

        batch, floats = self._with_floats(leaf)
        seen = BeforeAttention(self.rows_run, self.length)
        seen.add(*leaves)
        with torch.enable_grad():
            with (
                answered() as answer,
                rules,
                self.modality.looked_up(batch.shared or self.batch, leaf) as lookups,
                seen,
            ):
                logits = self.output.logits(batch)
            self._require_lookups(lookups)
            if not leaves:
                raise NotOffered(
                    "the word embedding of this model was not found: its ids never pass torch's embedding lookup."
                )
            self.require_undisturbed(logits, graph=True)
            # Word embeddings are the first leaf after those that came as floats.
            words = leaves[len(floats)] if self.modality.embeds and len(leaves) > len(floats) else None
            main = None if self.modality.stream == "table" else floats.get(self.modality.main, words)
            answer_B = logits if answer.tensor is None else answer.tensor
            trace = Traced(self.scalars(logits), answer_B, leaves, seen, main, batch.shared is not None)
        if changed_rules:
            trace.require_followed()
        return trace

    def _with_floats(self, make: Callable[[Tensor], Tensor]) -> tuple[Batch, dict[str, Tensor]]:
        """Return the batch with ``make`` applied to every tensor of floats, and those tensors."""
        named = self.batch.tensors.items()
        floats = {name: make(t) for name, t in named if t.is_floating_point() and "mask" not in name}
        return self.batch.with_tensors(**floats) if floats else self.together, floats

    def _require_lookups(self, lookups: TorchFunctionMode) -> None:
        """Raise if the model also reads its word embeddings in a way that these gradients leave out."""
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
        """Return gradients of the explained values under the rules of the trace; zeros where there is no dependence."""
        self.backwards_B += 1
        return traced.gradients(tensors)

    def require_input_slopes(self) -> None:
        """Raise if the gradient at the input is not the slope of the score (study/interference.py), once per model.

        For methods with changed rules: the slope is measured on the model without rules.
        """
        if INPUT_SLOPES not in self.study.undisturbed and not self.batch.reference_rows:
            trace = self.traced(BaseTorchFunctionMode())
            self.forwards_B -= self.rows_run / self.batch.size  # not of the method, but of the setup
            sizes = [leaf.numel() for leaf in trace.leaves]
            output = Output(self.modality, self.batch, self.scalar)  # what is kept of outputs is of the model as it is

            def joined(tensors: Sequence[Tensor]) -> Tensor:
                return torch.cat([tensor.detach().double().flatten() for tensor in tensors])[None]

            def scored(numbers: Tensor) -> Tensor:
                others = iter(zip(numbers[0].split(sizes), trace.leaves, strict=True))

                def other(tensor: Tensor) -> Tensor:
                    flat, leaf = next(others)
                    return flat.view_as(leaf).to(leaf.dtype)

                batch, _ = self._with_floats(other)
                with self.modality.looked_up(batch.shared or self.batch, other):
                    return self.scalars(output.logits(batch))

            def changed(numbers: Tensor) -> Tensor:
                with torch.no_grad():
                    return scored(numbers)

            def differentiated(numbers: Tensor) -> tuple[Tensor, Tensor]:
                leaf = numbers.detach().requires_grad_()
                with torch.enable_grad():
                    values_B = scored(leaf)
                    require_dependent(values_B)
                    (gradient,) = slopes(values_B.sum(), [leaf])
                return values_B.detach(), gradient

            require_dependent(trace.value_B)
            gradient = joined(slopes(trace.value_B.sum(), trace.leaves))
            step = rounding_step(self.modality.model, self.logits)
            inputs = Inputs(joined(trace.leaves), self.logits, step, changed, differentiated)
            passes, doubt = require_input_slopes(inputs, gradient, trace.value_B.detach())
            self.setup_forwards += 1 + passes
            self.study.doubts.extend([doubt] * bool(doubt))
            self.study.undisturbed.add(INPUT_SLOPES)
        self.notes.update(self.study.doubts)

    def require_slopes(self, maps: Record, role: Recorder, score: Callable[[Tensor], Tensor] | None = None) -> None:
        """Raise if gradients at the maps are not the slope of the score (study/interference.py), once per model.

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
            with impose:
                return score(output.logits(self.together))

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
