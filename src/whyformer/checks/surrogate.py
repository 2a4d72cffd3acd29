"""A copy of a model that does not mind a few absent parts: fine-tuned on inputs with some of them masked at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.borrow import refuse_without_gradients
from whyformer.brief import brief
from whyformer.checks.training import copy_of, ready
from whyformer.engines.perturbation.ranking import count_of
from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.games import Games, games_of
from whyformer.explainer import Explainer
from whyformer.heads.importance_kinds import checked_labels, label_indices, loss_of, prediction_of
from whyformer.parameters import BatchSize, Count, Hold, Limits, Rate, Replacement, Seed, checked
from whyformer.session import tracker

Array = np.ndarray[Any, Any]
FEWEST = 8  # examples
HELD = 0.2  # of them, on which the copy is measured before and after
PLAIN = 1  # variants of an example that are the example itself


@dataclass(frozen=True, eq=False)
class MaskedSurrogate:
    """The copy, and how often it says the label on examples that it was not trained on, masked at random."""

    model: nn.Module  # for compare(surrogate=…)
    before: float
    after: float
    trained_on: int
    measured_on: int
    beta: float

    def __repr__(self) -> str:
        return brief(self)


@checked
def masked_surrogate(
    model: Any,
    inputs: Any,
    labels: Any = None,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    beta: Annotated[float, Limits(0, 1, open_low=True)] = 0.1,
    epochs: Count = 3,
    lr: Rate = 1e-4,
    draws: Count = 4,
    replace: Replacement = None,
    hold: Hold = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> MaskedSurrogate:
    """Fine-tune a copy of a classifier on inputs with parts masked at random, for F-Fidelity (Zheng et al. 2025).

    Of every example, ``draws`` variants with none to a share ``beta`` of the parts away, and the example itself, are
    trained on with cross-entropy and Adam. labels: one per input, names or numbers; None trains on what the model says
    itself, so that the copy keeps its answers. The model is not changed, and no scores play a part, so that no method
    gains. One example in five is held out: ``before`` and ``after`` are how often its masked variants get their label.
    Inputs for this should not be those that are compared on. replace, hold: as for ``wf.compare``.

    Misleads when: ``after`` is not above ``before``, or far below 1: then the copy minds absent parts still, and is
    another model for nothing.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> surrogate = wf.masked_surrogate(model, list(wf.demo.SENTENCES) * 2, tokenizer=tokenizer, epochs=1)
    >>> surrogate.before, surrogate.after
    """
    loaded = Explainer(model, processor, attention_at=attention_at)
    refuse_without_gradients(loaded.model, "masked_surrogate")
    source = loaded.source(inputs)
    if source.single or source.size < FEWEST:
        raise BadInput(f"{source.size} examples are too few to train on: give at least {FEWEST}, better some hundreds.")
    known = None if labels is None else checked_labels(labels, source.size)
    twin = copy_of(loaded)
    how = {"replace": replace, "hold": hold, "batch_size": batch_size, "seed": seed, "progress": False}
    copied = Explainer(twin.model, loaded.processor, attention_at=loaded.attention_at)
    with games_of(copied, inputs, **how) as games, ready(twin, seed, "model") as parameters:
        training = _Training(games, _labels(games, known), beta, draws, seed)
        order = np.random.default_rng(seed).permutation(games.size).tolist()
        held, rest = order[: max(1, round(HELD * len(order)))], order[max(1, round(HELD * len(order))) :]
        before = training.accuracy(held)
        training.run(parameters, rest, epochs, lr, progress)
        after = training.accuracy(held)
    return MaskedSurrogate(twin.model, before, after, len(rest), len(held), beta)


def _labels(games: Games, known: list[Any] | None) -> list[int]:
    run = games.runs[0]
    if run.output.speaks or games.modality.compares or games.modality.objects or run.output.independent:
        raise NotOffered(
            "a surrogate is trained as a classifier with one label per input, and this model writes tokens, compares "
            "inputs, finds objects or has classes that do not exclude each other."
        )
    if run.gives_probabilities:
        raise NotOffered(
            "the model returns probabilities, and training needs logits: leave its last softmax or sigmoid out."
        )
    if known is None:
        return [int(label) for each in games.runs for label in prediction_of(each.logits)]
    return [int(i) for i in label_indices(known, run.logits.expand(len(known), -1), run)]


class _Training:
    """The examples with their variants, and the passes over them."""

    def __init__(self, games: Games, labels: list[int], beta: float, draws: int, seed: int) -> None:
        self.games, self.labels, self.beta, self.draws, self.seed = games, labels, beta, draws, seed

    def masks(self, number: int, generator: np.random.Generator) -> Array:
        """(1 + D, P) the example itself, then with none to a share β of its parts away."""
        parts = len(self.games.parts[number])
        present = np.ones((PLAIN + self.draws, parts), dtype=bool)
        most = count_of(self.beta, parts)
        for row in present[PLAIN:]:
            row[generator.permutation(parts)[: int(generator.integers(0, most + 1))]] = False
        return present

    def logits(self, number: int, present_MP: Array) -> Tensor:
        """(M, C) of variants of one example."""
        run, _ = self.games.run_of(number)
        variants = self.games.variants(number)
        rows = variants.batches(present_MP, len(present_MP))
        return torch.cat([run.output.logits(variants.batch(present_MP[some])).float() for some in rows])

    def run(
        self, parameters: Sequence[nn.Parameter], numbers: Sequence[int], epochs: int, lr: float, progress: bool | None
    ) -> None:
        optimizer, generator = torch.optim.Adam(parameters, lr=lr), np.random.default_rng([self.seed, 1])
        step = self.games.batch_size
        plan: list[list[int]] = []
        for _ in range(epochs):
            order = generator.permutation(numbers).tolist()
            plan += [order[i : i + step] for i in range(0, len(order), step)]
        for some in tracker(progress)(plan, "fine-tuning"):
            optimizer.zero_grad()
            for number in some:  # texts differ in length, so each example is a batch of its variants
                with torch.enable_grad():
                    logits = self.logits(number, self.masks(number, generator))
                    wanted = torch.full((len(logits),), self.labels[number], device=logits.device)
                    loss = loss_of(logits, wanted).mean() / len(some)
                if not bool(torch.isfinite(loss)):
                    raise NotOffered(f"training went to infinity: give a smaller lr than {lr:g}.")
                loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

    @torch.no_grad()
    def accuracy(self, numbers: Sequence[int]) -> float:
        """The share of masked variants that get their label; the same variants whenever it is asked."""
        generator = np.random.default_rng([self.seed, 2])
        right = [
            float((prediction_of(self.logits(n, self.masks(n, generator)[PLAIN:])) == self.labels[n]).float().mean())
            for n in numbers
        ]
        return float(np.mean(right))
