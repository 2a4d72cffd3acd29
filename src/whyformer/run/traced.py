"""TracedBatch: gradients of the explained values at the input, under a model's own rules or changed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whyformer.capture.functions import answered
from whyformer.capture.leaves import BeforeAttention, Traced, as_leaf, require_dependent, slopes
from whyformer.capture.lookups import SwapEmbedding
from whyformer.capture.lrp.changed_gradients import GradientRules, Step
from whyformer.errors import NotOffered
from whyformer.inputs.batch import Batch
from whyformer.inputs.decoding import KeptPass
from whyformer.inputs.output import Output
from whyformer.loan.backwards import has_adapter, with_activations
from whyformer.run.scores import ScoredBatch, require_undisturbed
from whyformer.study import interference
from whyformer.study.interference import INPUT_SLOPES

NO_LOOKUPS = ("no lookups",)  # a model of pixels that looks nothing up: later passes need no mode that sees lookups


class TracedBatch(ScoredBatch):
    """A batch that can be run with its input as leaves of the graph."""

    recomputes: bool  # layers are computed again in backward
    notes: set[str]
    passed: Callable[..., None]

    @property
    def text_pass(self) -> KeptPass:
        """The forward that several stretches of a text share; a new one if nothing is shared."""
        shared = None if self.recomputes else self.batch.text_pass
        return KeptPass() if shared is None else shared

    def require_one_input(self) -> None:
        if self.modality.read.joint:
            raise NotOffered(
                "gradients at the input are taken with respect to one tensor, and this model has several streams of "
                "input: the others would be left out."
            )

    def traced_by_plan(self, rules: GradientRules) -> Traced:
        """Run ``traced`` with a plan of an earlier pass (``plan_rules``), if there is one. Only leaves are known."""
        return self.study.plans.run(self._rules_kind(rules), lambda plan: self.traced(rules, plan=plan))

    def plan_rules(self, trace: Traced) -> None:
        """Keep which function met which rule, for later passes of this kind."""
        plan = None if trace.features or self.batch.reference_rows else trace.rules.plan
        if plan is not None:
            self.study.plans.learn(self._rules_kind(trace.rules), plan)

    def _rules_kind(self, rules: GradientRules) -> tuple[bool, bool, bool]:
        return (
            rules.attention_is_constant,
            self.rows_run > 1,
            bool(self.batch.real_BN.all()) if self.batch.keep_BN is not None else True,
        )

    def traced(
        self,
        rules: TorchFunctionMode | None,
        dtype: torch.dtype | None = None,
        plan: Sequence[Step] | None = None,
        entrance: bool = True,
    ) -> Traced:
        """Run one forward under a function mode, with the input as leaves of the graph (in ``dtype``, if given).

        Leaves are the word embeddings of ids, the looked-up columns of a table, and all tensors of floats.
        rules: None for the model's own gradients. plan: of an earlier pass under the same rules. entrance: the vectors
        that enter the first block can be asked for.
        """
        changed_rules, modes = rules is not None, plan is None and (entrance or rules is not None)
        if changed_rules and self.study.hidden and self.study.trouble is not None:
            raise NotOffered(f"changed gradient rules need a captured model: {self.study.trouble}")
        text_pass = self.text_pass if changed_rules else KeptPass()
        if (before := text_pass.seen(Traced)) is not None:
            return self._traced_again(before, text_pass)
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            leaves.append(as_leaf(tensor, dtype))
            return leaves[-1]

        batch, floats = self._with_floats(leaf)
        seen = BeforeAttention(self.rows_run, self.length, unmixed=not floats)
        seen.add(*leaves)
        lookups = self.modality.read.looked_up(batch.shared or self.batch, leaf)
        if isinstance(rules, GradientRules):
            rules.expect(plan, lookups)
        unneeded = plan is not None or (not modes and NO_LOOKUPS in self.study.undisturbed)
        with torch.enable_grad():
            with (
                answered() as answer,
                nullcontext() if unneeded else lookups,
                self.modality.read.handed_over(lambda features, _: leaf(features)) as features,
                rules or nullcontext(),
                seen if modes else nullcontext(),
                text_pass.used_by(None),
                with_activations(self.modality.model) if changed_rules else nullcontext(),
            ):
                logits = self.output.logits(batch)
            if isinstance(rules, GradientRules):
                rules.require_done()
            self.forwards_B += self.rows_run / self.batch.size
            words = self._words(lookups) if isinstance(lookups, SwapEmbedding) else None
            if not leaves:
                raise NotOffered(
                    "the word embedding of this model was not found: its ids never pass torch's embedding lookup."
                )
            if self.modality.place.pixels and len(leaves) == len(floats):
                self.study.undisturbed.add(NO_LOOKUPS)
            require_undisturbed(self, logits, graph=True)
            main = None if self.modality.stream == "table" else floats.get(self.modality.main, words)
            answer_B = logits if answer.tensor is None else answer.tensor
            trace = Traced(
                self.scalars(logits), answer_B, leaves, seen, main, batch.shared is not None, features, rules
            )
        if changed_rules:
            trace.require_followed()
        if text_pass.more:
            text_pass.seen_by, trace.again = trace, True
        return trace

    def _words(self, lookups: SwapEmbedding) -> Tensor | None:
        """Return the word embeddings of a pass; raise if the model also read them in a way that gradients leave out."""
        if lookups.missed:
            raise NotOffered(
                f"the model reads its word embeddings a second time, by {lookups.missed}, so gradients at the "
                "embeddings that enter its layers would be incomplete."
            )
        checked = INPUT_SLOPES in self.study.undisturbed  # of this model, at an earlier call
        if not checked and has_adapter(self.modality.model, lookups.table):
            raise NotOffered(
                "the word embedding of this model has an adapter, and gradients at the embedding would leave its part "
                "out. Merge the adapter: model = model.merge_and_unload()."
            )
        if lookups.other_tables:
            self.notes.add(
                "the ids are also looked up in a second table; gradients are taken at the model's word embeddings only."
            )
        return lookups.vectors

    def _traced_again(self, trace: Traced, text_pass: KeptPass) -> Traced:
        """Return a trace of a pass that was kept, with the values that this run explains."""
        with torch.enable_grad(), answered() as answer, text_pass.used_by(trace):
            logits = self.output.logits(self.together)
            answer_B = logits if answer.tensor is None else answer.tensor
            value_B = self.scalars(logits)
        return replace(trace, value_B=value_B, answer_B=answer_B, again=text_pass.more)

    def _with_floats(self, make: Callable[[Tensor], Tensor]) -> tuple[Batch, dict[str, Tensor]]:
        """Return the batch with ``make`` applied to every tensor of floats, and those tensors."""
        named = self.batch.tensors.items()
        floats = {name: make(t) for name, t in named if t.is_floating_point() and "mask" not in name}
        return self.batch.with_tensors(**floats) if floats else self.together, floats

    def differentiated(self, traced: Traced, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients of the explained values under the rules of the trace; zeros where there is no dependence."""
        self.backwards_B += 1
        return traced.gradients(tensors)

    def require_input_slopes(self) -> None:
        """Raise if the gradient at the input, without changed rules, is not the slope of the score, once per model."""
        if INPUT_SLOPES not in self.study.undisturbed and not self.batch.reference_rows:
            trace = self.traced(None)
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
                with (
                    self.modality.read.looked_up(batch.shared or self.batch, other),
                    self.modality.read.handed_over(lambda features, _: other(features)),
                ):
                    return self.scalars(output.logits(batch))

            require_dependent(trace.value_B)
            gradient = joined(slopes(trace.value_B.sum(), trace.leaves))
            self.compare_slopes(joined(trace.leaves), gradient, trace.value_B.detach(), scored)
            self.setup_forwards += self.rows_run
        self.notes.update(self.study.warnings)

    def compare_slopes(
        self, numbers: Tensor, gradient: Tensor, value_B: Tensor, scored: Callable[[Tensor], Tensor]
    ) -> None:
        """Raise if ``gradient`` is not the slope of ``scored``, the explained values as a function of ``numbers``."""

        def changed(others: Tensor) -> Tensor:
            with torch.no_grad():
                return scored(others)

        def differentiated(others: Tensor) -> tuple[Tensor, Tensor]:
            leaf = others.detach().requires_grad_()
            with torch.enable_grad():
                values_B = scored(leaf)
                require_dependent(values_B)
                (slope,) = slopes(values_B.sum(), [leaf])
            return values_B.detach(), slope

        step = interference.rounding_step(self.modality.model, self.logits)
        inputs = interference.Inputs(numbers, self.logits, step, changed, differentiated)
        self.passed(INPUT_SLOPES, *interference.require_input_slopes(inputs, gradient, value_B))
