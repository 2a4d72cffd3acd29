"""Adversarial attention: the most different map with the same output (Jain & Wallace 2019, section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.errors import BadInput
from whyformer.evaluate.checks.divergence import decisions, jsd, tvd
from whyformer.evaluate.checks.rows import LayerRows, logits_with
from whyformer.run import Run

START = 3.0  # standard deviation of the first logits around a uniform map, as the authors have it
PENALTY = 500.0
MARGIN = 0.01  # |Δp| that the search allows itself; what is reported may have up to ε
PATIENCE = 30  # steps without a better map after which the search ends
GAIN = 1e-3  # JSD that counts as better


@dataclass(frozen=True)
class Adversarial:
    """What the search found; where nothing differs and keeps the output, the model's own attention."""

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
    track: Callable[[Sequence[Any], str], Any] | None = None,
) -> Adversarial:
    """maximise mean_k JSD(a_k, a) + mean_kl JSD(a_k, a_l) - 500·max(0, |Δp_k| - 0.01) over K maps by Adam.

    The value is the largest JSD among all maps met on the way with |Δp| ≤ ``epsilon`` and the same decision; the
    model's own attention is one of them, so it is never negative.

    NOTE[DIFF]: the authors look at the last step only, and take 500 steps at a learning rate of 0.01.
    """
    if candidates < 1 or steps < 1 or not 0 < epsilon <= 1:
        raise BadInput(
            f"candidates={candidates}, steps={steps}, epsilon={epsilon}: at least one candidate and one step, epsilon "
            "above 0 and at most 1."
        )
    generator = torch.Generator().manual_seed(seed)
    own = [place.shown(place.own_HRK[None])[0] for place in places]
    thetas = [_start(place, candidates, generator) for place in places]
    optimizer = torch.optim.Adam(thetas, lr=lr, amsgrad=True)
    best = Adversarial(0.0, 0.0, tuple(own), before_C)
    since = 0
    for _ in range(steps) if track is None else track(range(steps), "adversarial attention"):
        with torch.enable_grad():
            rows = [
                place.full(theta.masked_fill(~place.free_RK, -torch.inf).softmax(-1).nan_to_num(0.0))
                for place, theta in zip(places, thetas, strict=True)
            ]
            output = places[0].said(logits_with(run, places, rows))
            shown = [place.shown(r) for place, r in zip(places, rows, strict=True)]
            apart = torch.stack([jsd(s, o) for s, o in zip(shown, own, strict=True)]).mean(0)
            change = tvd(output, before_C)
            objective = apart.sum() + _diversity(shown) - PENALTY * (change - MARGIN).clamp(min=0).sum()
            grads = torch.autograd.grad(objective, thetas)
        run.backwards_B[0] += candidates
        allowed = (change <= epsilon) & (decisions(output) == decisions(before_C))
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


def _start(place: LayerRows, candidates: int, generator: torch.Generator) -> Tensor:
    shape = (candidates, *place.own_HRK.shape)
    return (START * torch.randn(shape, generator=generator)).to(place.own_HRK.device).requires_grad_()


def _diversity(shown: Sequence[Tensor]) -> Tensor:
    """Candidates are pushed away from each other, too: the mean JSD of pairs."""
    count = len(shown[0])
    pairs = [jsd(s[:, None], s[None]).sum() / max(1, count * (count - 1)) for s in shown]
    return torch.stack(pairs).mean()
