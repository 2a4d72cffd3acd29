"""Traces of agents, in plain torch: one method of tests/references/hops.py per step, then sums and shares in loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Span = tuple[int, int]  # first token, and the one after the last
Method = Callable[[Any, list[int], int, list[float], bool], list[float]]


def traced(
    lm: Any, ids: list[int], steps: Sequence[Span], read: Sequence[Span], method: Method
) -> tuple[list[dict[Span, float]], list[dict[Span, float]], list[dict[Span, float]], list[float]]:
    """Return, per step, scores, shares and origins of the spans before it, and the sum of all scores of tokens.

    read: the spans that the model did not write.
    """
    all_scores, all_shares, all_origins, totals = [], [], [], []
    for first, stop in steps:
        tokens = method(lm, ids[:stop], first, [1.0] * (stop - first), True)
        totals.append(sum(tokens))
        before = sorted(span for span in (*read, *steps) if span[1] <= first)
        scores = {span: sum(tokens[span[0] : span[1]]) for span in before}
        total = sum(max(score, 0.0) for score in scores.values())
        shares = {span: max(score, 0.0) / total if total else 0.0 for span, score in scores.items()}
        origins: dict[Span, float] = {}
        for span, share in shares.items():
            # Of a step, by what drove it in turn; one that nothing speaks for keeps its share.
            onwards = all_origins[list(steps).index(span)] if span in steps else {}
            for origin, part in (onwards if any(onwards.values()) else {span: 1.0}).items():
                origins[origin] = origins.get(origin, 0.0) + share * part
        all_scores.append(scores)
        all_shares.append(shares)
        all_origins.append(origins)
    return all_scores, all_shares, all_origins, totals


@torch.no_grad()
def log_probability(lm: Any, ids: list[int], first: int) -> float:
    """Return Σ log p(t | tokens before t) of the tokens from ``first`` on."""
    logits = lm(input_ids=torch.tensor([ids])).logits[0]
    return sum(float(logits[place - 1].log_softmax(0)[ids[place]]) for place in range(first, len(ids)))
