"""The three experiments of "Attention is not explanation" (Jain & Wallace 2019, arXiv:1902.10186) on a given model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.checks.attention_rows import (
    FAR,
    SMALL_CHANGE,
    Choice,
    LayerRows,
    Rows,
    column_of,
    gradient_x_input,
    jsd,
    kendall,
    leave_one_out,
    logits_with,
    mean_known,
    mixing,
    outputs_with,
    rows_of,
    tvd,
)
from whyformer.checks.exam import Exam, Finding
from whyformer.evidence import mean_within, with_interval
from whyformer.parameters import Count, Limits
from whyformer.results.types import Explanation
from whyformer.run import Run
from whyformer.views.explained import title_of

# Adversarial attention: the most different map with the same output (Jain & Wallace 2019, section 4.2.2).

START = 3.0  # standard deviation of the first logits around a uniform map, as the authors have it
PENALTY = 500.0
MARGIN = 0.01  # |Δp| that the search allows itself; what is reported may have up to ε
PATIENCE = 30  # steps without a better map after which the search ends
GAIN = 1e-3  # JSD that counts as better


@dataclass(frozen=True)
class Adversarial:
    """The adversarial attention that was found, or the model's own attention if there was none."""

    jsd: float  # of the shown maps, mean over layers: 0 to ln 2
    change: float  # |Δp|, total variation distance of the outputs
    shown: tuple[Tensor, ...]  # per place (P,)
    probability_C: Tensor


def adversarial_attention(
    run: Run,
    places: Sequence[LayerRows],
    before_C: Tensor,
    *,
    candidates: int = 5,
    steps: int = 100,
    lr: float = 0.1,
    epsilon: float = 0.05,
    seed: int = 0,
    track: Callable[[Sequence[Any], str], Any] = lambda steps, label: steps,
) -> Adversarial:
    """maximise mean_k JSD(a_k, a) + mean_kl JSD(a_k, a_l) - 500·max(0, |Δp_k| - 0.01) over K maps by Adam.

    Return the largest JSD among all maps met on the way with |Δp| ≤ ``epsilon`` and the same decision.
    """
    # NOTE[DIFF]: the authors look at the last step only, and take 500 steps at a learning rate of 0.01.
    generator = torch.Generator().manual_seed(seed)
    original = [place.shown(place.weights_HRK[None])[0] for place in places]
    starts = [torch.randn((candidates, *place.weights_HRK.shape), generator=generator) for place in places]
    thetas = [(START * start).to(original[0].device).requires_grad_() for start in starts]
    optimizer = torch.optim.Adam(thetas, lr=lr, amsgrad=True)
    best = Adversarial(0.0, 0.0, tuple(original), before_C)
    since = 0
    for _ in track(range(steps), "adversarial attention"):
        with torch.enable_grad():
            rows = [
                place.full(theta.masked_fill(~place.free_RK, -torch.inf).softmax(-1).nan_to_num(0.0))
                for place, theta in zip(places, thetas, strict=True)
            ]
            output = places[0].said(logits_with(run, places, rows))
            shown = [place.shown(r) for place, r in zip(places, rows, strict=True)]
            apart = torch.stack([jsd(s, o) for s, o in zip(shown, original, strict=True)]).mean(0)
            change = tvd(output, before_C)
            # Candidates are pushed away from each other, too: the mean JSD of pairs.
            pairs = [jsd(s[:, None], s[None]).sum() / max(1, candidates * (candidates - 1)) for s in shown]
            diversity = torch.stack(pairs).mean()
            objective = apart.sum() + diversity - PENALTY * (change - MARGIN).clamp(min=0).sum()
            grads = torch.autograd.grad(objective, thetas)
        run.backwards_B[0] += candidates
        allowed = (change <= epsilon) & (output.argmax(-1) == before_C.argmax(-1))
        value = torch.where(allowed, apart, -1.0).detach()
        top = int(value.argmax())
        since = 0 if float(value[top]) > best.jsd + GAIN else since + 1
        if float(value[top]) > best.jsd:
            picked = tuple(s[top].detach() for s in shown)
            best = Adversarial(float(value[top]), float(change[top].detach()), picked, output[top].detach())
        if since >= PATIENCE and best.jsd > 0:
            break
        for theta, grad in zip(thetas, grads, strict=True):
            theta.grad = -grad
        optimizer.step()
    return best


SIGNIFICANT = 0.05
LOW_AGREEMENT = 0.3  # Kendall's τ below which the rankings are called different


@dataclass(frozen=True)
class AttentionTest:
    """The experiments on one input."""

    title: str
    units: int
    tau_gradient: float  # Kendall's τ of attention with |gradient × input|
    p_gradient: float
    tau_loo: float  # with leave-one-out
    p_loo: float
    tau_between: float  # of |gradient × input| with leave-one-out: how far the other two agree
    max_attention: float
    median_change: float  # |Δp| over the permutations
    mixing: float  # share of the readout's new vector that attention brings from other positions
    jsd: float
    change: float
    original: Explanation  # the shown attention, with the output as its value
    adversarial: Explanation | None

    @property
    def entropy(self) -> float:
        """Entropy of the attention on ordinary tokens, as a share of the largest possible; NaN for a single token."""
        weights = self.original.scores[~np.array(self.original.units.special, bool)].astype(float)
        shares = weights[weights > 0] / max(weights.sum(), np.finfo(float).tiny)
        return float(-(shares * np.log(shares)).sum() / math.log(len(weights))) if len(weights) > 1 else math.nan


@dataclass(frozen=True)
class JainWallace:
    """All inputs."""

    inputs: tuple[AttentionTest, ...]
    layers: str
    heads: str
    rows: str
    permutations: int
    candidates: int
    epsilon: float

    @property
    def where(self) -> str:
        return f"layer {self.layers}, heads {self.heads}, rows {self.rows}"

    def mean(self, name: str) -> float:
        return mean_known([getattr(i, name) for i in self.inputs])

    def significant(self, name: str) -> float:
        """Share of inputs whose correlation (``"gradient"``, ``"loo"``) is positive with p < 0.05."""
        known = [(getattr(i, f"tau_{name}"), getattr(i, f"p_{name}")) for i in self.inputs]
        known = [(tau, p) for tau, p in known if not math.isnan(p)]
        return mean_known([float(p < SIGNIFICANT and tau > 0) for tau, p in known])

    def spread(self, name: str) -> tuple[float, float, float]:
        """Mean over the inputs with its 95 % confidence interval."""
        values = [float(getattr(i, name)) for i in self.inputs]
        return mean_within(values, -1.0 if name.startswith("tau") else 0.0, math.log(2) if name == "jsd" else 1.0)

    def findings(self) -> tuple[Finding, ...]:
        return (*self._correlation(), self._permutation(), self._adversary())

    def _correlation(self) -> tuple[Finding, ...]:
        gradient, loo, between = (self.spread(f"tau_{name}") for name in ("gradient", "loo", "between"))
        known = [t for t in (gradient, loo) if not math.isnan(t[0])]
        if not known:
            return ()
        level = _level(max(known), LOW_AGREEMENT)
        like = {"ok": "partly like", "note": "perhaps differently from", "warning": "differently from"}[level]
        numbers = {
            "tau_gradient": gradient[0],
            "tau_loo": loo[0],
            "tau_gradient_with_loo": between[0],
            "significant_gradient": self.significant("gradient"),
            "significant_loo": self.significant("loo"),
        }
        text = (
            f"Attention ranks the units {like} other importance scores: "
            f"Kendall's τ is {_signed(gradient)} with gradient × input and {_signed(loo)} with leave-one-out "
            f"({_signed(between)} between these two; 1: same order, 0: chance)."
        )
        return (Finding(level, "jain_wallace", "Attention and importance", text, numbers),)

    def _permutation(self) -> Finding:
        change, largest, mixing = self.spread("median_change"), self.mean("max_attention"), self.mean("mixing")
        numbers = {"median_change": change[0], "max_attention": largest, "mixing_ratio": mixing}
        level = _level(change, SMALL_CHANGE)
        then = {
            "ok": ": the attention pattern matters. ",
            "note": f": inconclusive, a change below {SMALL_CHANGE:g} counts as none. ",
            "warning": f", although the largest weight is {largest:.2f}. ",
        }[level]
        text = (
            f"Shuffling the attention weights of ordinary tokens changes the probability by "
            f"{with_interval(change, '')} (median of {self.permutations} shuffles){then}"
        )
        if not math.isnan(mixing):
            text += f"Attention contributes {mixing:.0%} of the vector at the output position; the residual the rest."
        return Finding(level, "jain_wallace", "Shuffled attention", text.strip(), numbers)

    def _adversary(self) -> Finding:
        far, change = self.spread("jsd"), self.mean("change")
        numbers = {"jsd": far[0], "change": change, "epsilon": self.epsilon, "largest_possible_jsd": math.log(2)}
        level = {"ok": "warning", "warning": "ok"}.get(_level(far, FAR), "note")
        apart = f"JSD {with_interval(far, '')}; 0: same map, 0.69: no overlap"
        text = {
            "warning": f"A different attention map ({apart}) gives the same output (the probability changes by "
            f"{change:.3f}): attention is not the only explanation.",
            "ok": f"A very different attention map with the same output was not found (best: {apart}; allowed change "
            f"of the probability: {self.epsilon:g}).",
            "note": f"Whether a different attention map gives the same output is inconclusive ({apart}; from {FAR:g} "
            "on, maps count as different).",
        }[level]
        return Finding(level, "jain_wallace", "Adversarial attention", text, numbers)


def _level(value: tuple[float, float, float], bar: float) -> str:
    """Return "ok" above the bar and "warning" below it; "note" where the interval of several inputs holds the bar."""
    mean, low, high = value
    low, high = (mean, mean) if math.isnan(low) else (low, high)
    return "ok" if low >= bar else "warning" if high < bar else "note"


def jain_wallace(
    exam: Exam,
    *,
    layers: Choice = "last",
    heads: Choice = "all",
    rows: Rows = "readout",
    permutations: Count = 100,
    candidates: Count = 5,
    steps: Count = 100,
    epsilon: Annotated[float, Limits(0, 1, open_low=True)] = 0.05,
) -> JainWallace:
    """Compare attention with importance scores, shuffle it, and search for another map with the same output.

    τ: Kendall's rank correlation of the shown attention (mean over heads and chosen layers, readout row) with
    |gradient × input|, attention held constant in the graph, and with leave-one-out. Permutation: median |Δp| when the
    weights of ordinary tokens are shuffled, each head by itself. Adversary: the largest JSD under |Δp| ≤ ``epsilon``.

    Misleads when: the changed layer contributes little (see the mixing ratio). An adversarial map shows that attention
    is not the only explanation, not that it is no explanation (Wiegreffe & Pinter 2019; check ``wiegreffe_pinter``).
    """
    shown = exam.explain(method="raw_attention", scalar=exam.decision)
    settings: dict[str, Any] = {"candidates": candidates, "steps": steps, "epsilon": epsilon}

    def one(row: int) -> AttentionTest:
        run = exam.run(row)
        return _one(exam, run, rows_of(run, layers, heads, rows), shown[row], permutations, settings)

    key = ("jain_wallace", layers, heads, rows, permutations, candidates, steps, epsilon)
    tests = exam.each(AttentionTest, key, one, "attention is not explanation")
    return JainWallace(tests, str(layers), str(heads), rows, permutations, candidates, epsilon)


def _one(
    exam: Exam, run: Run, places: list[LayerRows], shown: Explanation, permutations: int, settings: dict[str, Any]
) -> AttentionTest:
    attention_N = torch.stack([place.shown(place.weights_HRK[None])[0] for place in places]).mean(0)
    units = run.keep_BN[0].nonzero()[:, 0]
    words = (~run.special_BN[0][units]).cpu().numpy()
    before = outputs_with(run, places, [p.weights_HRK[None] for p in places])
    attention = attention_N[units].cpu().numpy()
    slopes, losses = gradient_x_input(run), leave_one_out(run)
    tau_gradient, p_gradient = kendall(attention[words], slopes[words])
    tau_loo, p_loo = kendall(attention[words], losses[words])
    shuffled = outputs_with(run, places, permuted(places, permutations, exam.seed))
    adversary = adversarial_attention(run, places, before[0], seed=exam.seed, track=exam.track, **settings)
    target = column_of(run)
    scalar = "share" if run.modality.mean.outcome == "similarity" else shown.scalar
    maps = [m[units].cpu().numpy().astype(np.float32) for m in (attention_N, torch.stack(adversary.shown).mean(0))]
    values = float(before[0, target]), float(adversary.probability_C[target])
    original = shown.replace(scores=maps[0], value=values[0], method="attention", scalar=scalar)
    correlations = (tau_gradient, p_gradient, tau_loo, p_loo, kendall(slopes[words], losses[words])[0])
    return AttentionTest(
        title_of(shown),
        int(words.sum()),
        *correlations,
        float(attention.max()),
        float(tvd(shuffled, before).median()),
        mean_known([mixing(run, place) for place in places]),
        adversary.jsd,
        adversary.change,
        original,
        original.replace(scores=maps[1], value=values[1], method="adversarial attention"),
    )


def permuted(places: list[LayerRows], count: int, seed: int) -> list[Tensor]:
    """Per layer (V, H, R, K): the weights of the free keys shuffled, every row of every head by itself."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for place in places:
        rows = place.weights_HRK.repeat(count, 1, 1, 1)
        for r, free in enumerate(place.free_RK):
            keys = free.nonzero()[:, 0]
            noise = torch.rand((count, len(place.heads), len(keys)), generator=generator).to(rows.device)
            weights = place.weights_HRK[:, r, keys].expand(count, -1, -1)
            rows[:, :, r, keys] = weights.gather(2, noise.argsort(-1))
        result.append(rows)
    return result


def _signed(value: tuple[float, float, float]) -> str:
    return "undefined" if math.isnan(value[0]) else with_interval(value)
