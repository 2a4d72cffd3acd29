"""Does a little noise, or other words for the same thing, change the map while the answer stays?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.capture.embeddings import ShiftEmbedding
from whyformer.checks.checkup import Finding, same_order
from whyformer.checks.distances import mean_known, rank_agreement
from whyformer.checks.exam import Exam, ordinary
from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.base import Source
from whyformer.parameters import Count, Rate
from whyformer.types import Explanation

STEADY = 0.7  # mean Spearman from which a map counts as steady


@dataclass(frozen=True)
class Stability:
    """Maps of noisy inputs against the original ones; means over inputs."""

    method: str
    noise: float
    draws: int
    sensitivity: float  # max over draws of ‖φ(x+δ) - φ(x)‖ / ‖φ(x)‖
    spearman: float
    lowest_spearman: float
    same_answer: float  # share of noisy inputs with the same prediction
    paraphrase_spearman: float  # over the words that both have; NaN without paraphrases
    paraphrase_same_answer: float

    def findings(self) -> tuple[Finding, ...]:
        findings = []
        if not math.isnan(self.sensitivity):
            numbers = {"max_sensitivity": self.sensitivity, "spearman": self.spearman, "same_answer": self.same_answer}
            steady = self.spearman >= STEADY
            text = (
                f"Noise of {self.noise:.0%} of the input's spread moves the map by up to {self.sensitivity:.0%}, "
                f"{same_order(self.spearman)}, compared with the original, while {self.same_answer:.0%} of the "
                "answers stay."
            )
            findings.append(Finding("ok" if steady else "warning", "stability", "Noise", text, numbers))
        if not math.isnan(self.paraphrase_same_answer):
            rho, same = self.paraphrase_spearman, self.paraphrase_same_answer
            shown = (
                "too few words are shared to compare" if math.isnan(rho) else f"{same_order(rho)}, over shared words"
            )
            text = f"Said in other words, the answer stays for {same:.0%} of the inputs; the maps: {shown}."
            level = "warning" if rho < STEADY and same == 1 else "ok"
            numbers = {"spearman": rho, "same_answer": same}
            findings.append(Finding(level, "stability", "Paraphrase", text, numbers))
        return tuple(findings)


def stability(
    exam: Exam, *, noise: Rate = 0.05, draws: Count = 5, paraphrases: Sequence[str] | None = None
) -> Stability:
    """Explain again with noise on the input (word embeddings, pixels, floats), or with a paraphrase of each input.

    ``noise``: standard deviation of the normal noise as a share of the spread of the input. Max-sensitivity (Yeh et al.
    2019, arXiv:1901.09392) is the largest relative change over ``draws``. ``paraphrases``: one per input.

    Misleads when: the model itself changes its mind under the noise; look at how many answers stay.
    """
    if noise <= 0 or draws < 1:
        raise BadInput(f"noise={noise}, draws={draws}: noise above 0, at least one draw.")
    if paraphrases is not None and (isinstance(paraphrases, str) or len(paraphrases) != exam.size):
        raise BadInput(f"paraphrases: one per input, {exam.size} here.")
    base = exam.explanations
    each = tuple[tuple[float, float, float], ...]
    drawn = [
        exam.cached(each, ("stability", noise, draw), partial(_moved, exam, base, noise, draw))
        for draw in exam.track(range(draws), "noise")
    ]
    # per input: all draws
    moved, ranks, same = ([[d[row][i] for d in drawn] for row in range(len(base))] for i in range(3))
    said = _paraphrased(exam, list(paraphrases)) if paraphrases is not None else (math.nan, math.nan)
    known = [r for row in ranks for r in row if not math.isnan(r)]
    return Stability(
        exam.method.name,
        noise,
        draws,
        mean_known([max(row) for row in moved]),
        mean_known([mean_known(row) for row in ranks]),
        min(known, default=math.nan),
        mean_known([mean_known(row) for row in same]),
        *said,
    )


def _moved(exam: Exam, base: list[Explanation], noise: float, draw: int) -> tuple[tuple[float, float, float], ...]:
    """Per input: how far the scores moved, how far they agree, and whether the answer stayed."""
    per_input = []
    for before, again in zip(base, _noisy(exam, noise, draw), strict=True):
        a, b = ordinary(before), ordinary(again)
        moved = float(np.linalg.norm(b - a) / max(1e-12, float(np.linalg.norm(a))))
        per_input.append((moved, rank_agreement(a, b), float(again.prediction.index == before.prediction.index)))
    return tuple(per_input)


def _noisy(exam: Exam, noise: float, draw: int) -> list[Explanation]:
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence([exam.seed, draw]).generate_state(1)[0]))
    modality = exam.modality
    if modality.embeds:
        table = modality.embedding()
        if table is None:
            raise NotOffered("the word embedding of this model was not found, so no noise can be put on it.")
        spread = noise * float(table.weight.detach().float().std())
        moves = spread * torch.randn(table.weight.shape, generator=generator)

        def delta(ids: Tensor) -> Tensor:
            return F.embedding(ids.to(moves.device), moves)

        with ShiftEmbedding(table, delta):
            return exam.explain(target=exam.targets)
    main = exam.batch.tensors.get(modality.main)
    several = modality.multi_input and not modality.pixels  # a detector's one input are those
    if main is None or not main.is_floating_point() or several:
        raise NotOffered("noise needs one tensor of numbers or of token ids; this input has several, or categories.")
    noisy = main + noise * float(main.float().std()) * torch.randn(main.shape, generator=generator).to(main)
    changed = exam.batch.with_tensors(**{modality.main: noisy})
    return exam.explain(Source(modality, changed, changed.size), target=exam.targets)


def _paraphrased(exam: Exam, paraphrases: list[str]) -> tuple[float, float]:
    """Mean Spearman over the words that both have, and the share of inputs with the same answer."""
    again = exam.explain(paraphrases, target=exam.targets)
    ranks, same = [], []
    for a, b in zip(exam.explanations, again, strict=True):
        one, other = _by_word(a), _by_word(b)
        shared = sorted(one.keys() & other.keys())
        ranks.append(rank_agreement(np.array([one[w] for w in shared]), np.array([other[w] for w in shared])))
        same.append(float(a.prediction.index == b.prediction.index))
    return mean_known(ranks), mean_known(same)


def _by_word(explanation: Explanation) -> dict[str, float]:
    scores: dict[str, float] = {}
    for word, score in explanation.words():
        scores[word.lower()] = scores.get(word.lower(), 0.0) + score
    return scores
