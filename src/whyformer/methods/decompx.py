"""DecompX: every hidden state split over the input tokens, all the way to the logit."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whyformer.capture.decompose.role import Decompose, Stack
from whyformer.capture.decompose.shares import BIAS_RULES, Shares
from whyformer.errors import NotOffered
from whyformer.loan.borrow import module_names
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.study import require_readable


@method(
    paper="Modarressi et al. 2023 (ACL), arXiv:2306.02873",
    needs={"values"},
    cost=constant(2, 0),
    cost_text="2 forwards, one of them with every hidden state split over N inputs",
    signed=True,
    class_specific=True,
    meaning="what each part adds to the answer when every step is split up exactly",
    extra_cost=lambda units: units,
    slow=True,
)
def decompx(run: Run, *, bias: Annotated[str, OneOf(*BIAS_RULES)] | None = "absdot") -> Attribution:
    """What each input token adds to the logit, found by splitting every hidden state over the tokens it came from.

    x_i = Σ_s x_i←s from the embedding on. Linear maps act on each share; attention mixes shares with the model's own
    weights; a norm divides by the true deviation; a nonlinearity multiplies by its slope f(z)/z; a gate by its value.
    ``bias`` says how biases are shared: "absdot" (∝ |⟨x_i←s, b⟩|), "norm" (∝ ‖x_i←s‖), "equal", "abssim"
    (∝ |cos|) or None (left out). Shares add up to the logit (not without biases); the error is in
    ``checks["completeness_error"]``. The matrix and layers hold ‖x_i←s‖.

    Misleads when: read as what would happen without a token. Attention weights, deviations and slopes are those of
    the whole input and are credited to nobody, so a token that steers attention and adds nothing itself scores zero.
    """
    require_readable(run.study)
    if run.scalar != "logit" and not (run.scalar == "log_odds" and run.logits.shape[1] == 1):
        raise NotOffered(f"decompx splits logits, not scalar={run.scalar!r}: use scalar='logit'.")
    if not run.study.sites or run.study.unclaimed:
        run.record()  # raises, and says what is missing
    scores = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    maps: list[Tensor] = []
    for row in run.track(range(len(scores)), "decompx"):
        scores[row], maps_LQK = _decomposed(run, row, bias)
        maps.append(maps_LQK)
    error = (scores.sum(1) - run.value_B).abs()
    layers = torch.stack(maps)
    return Attribution(
        scores * run.keep_BN,
        matrix_BQK=layers[:, -1],
        layers_BLQK=layers if run.keep_layers else None,
        base_B=torch.zeros(len(scores), device=scores.device),
        checks={"completeness_error": error},
    )


def _decomposed(run: Run, row: int, bias: str | None) -> tuple[Tensor, Tensor]:
    """(N,) shares of one input's target logit, and (L, Q, K) sizes of the shares of the hidden states."""
    model, one = run.modality.model, run.batch.select([row])
    maps: list[Tensor] = []

    def entered(layer: int, shares: Shares) -> None:
        maps.append(_sizes(shares, role.axis))

    stack = Stack.of(model, [site.path for site in run.study.sites])
    role = Decompose(module_names(model), stack, run.length, bias, entered)
    with torch.no_grad():
        with role:
            logits = run.output.logits(one)
        run.forwards_B[row] += 1
        final = role.settled(logits)
        target = run.targets[row]
        shares_SC = torch.cat([final.part(*chunk)[:, 0] for chunk in final.chunks()])
        shares = shares_SC[:, target.index]
        if target.versus is not None:
            shares = shares - shares_SC[:, target.versus]
        assert role.stream is not None
        maps.append(_sizes(role.stream, role.axis))
    return shares.float(), torch.stack(maps)


def _sizes(shares: Shares, axis: int) -> Tensor:
    """(Q, K) ‖x_q←k‖."""
    parts = [torch.linalg.vector_norm(shares.part(*chunk), dim=-1) for chunk in shares.chunks()]
    sizes_KQ = torch.cat(parts).select(2 - axis, 0)
    return sizes_KQ.T.float()
