"""Occlusion: take one unit away at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation.game import Game, game_of_scores, saved_by_prefix
from whyformer.engines.perturbation.variants import (
    LeftOut,
    Variants,
    default_replacement,
    grouped_variants,
    players_of_parts,
)
from whyformer.parameters import Replacement
from whyformer.registry import Passes, method
from whyformer.run import Attribution, Run


def _cost(units: int, **options: object) -> Passes:
    return units + 1, 0


@method(
    paper="Zeiler & Fergus 2014, arXiv:1311.2901; leave-one-out: Li, Monroe & Jurafsky 2016, arXiv:1612.08220",
    needs={"perturbation"},
    cost=_cost,
    cost_text="(units + 1) forwards",
    signed=True,
    class_specific=True,
    specificity="black box",
)
def occlusion(run: Run, *, replace: Replacement = None) -> Attribution:
    """How much the score falls when a unit is taken away: r_i = s(x) - s(x without i).

    ``replace``: what stands in its place. Text: "mask", "unk", "pad", "delete", "attention_mask" or a token id;
    images: "mean", "zero", "blur"; vectors: "zero", "mean" (their own); tables: "zero", or "mean" with
    Table(reference=…). The default is the first of these that the model has. With several streams each takes what it
    has; image tokens inside a text are taken away in the picture.

    Misleads when: units back each other up (taking one of two synonyms away changes nothing) and when the model has
    never seen such gaps.
    """
    replacement: Any = default_replacement(run.modality) if replace is None else replace
    scores = torch.zeros(run.keep_BN.shape, dtype=torch.float32, device=run.keep_BN.device)
    values_B = run.value_B
    games: list[Game | None] = []
    used, remarks = Variants.used(run, replacement, replace is None)
    warnings: list[list[str]] = []
    for row, units in enumerate(run.track(run.units, "occlusion")):
        if run.segments:
            scores_U, game, variants = _of_segments(run, row, replacement)
            games.append(game)
            warnings.append([*remarks, *variants.remarks])
            scores[row, run.keep_BN[row]] = scores_U.to(scores.device)
            continue
        variants = LeftOut(run, row, replacement)
        game = game_of_scores(run, row, variants, len(units))
        games.append(game)
        warnings.append([*remarks, *variants.remarks])
        span = run.input_span(row)
        without_U = torch.from_numpy(game.scores(~np.eye(len(units), dtype=bool)[span])).float()
        drop_U = values_B[row] - without_U.to(scores.device)
        # What stays whatever is asked for (queries of the model's own) has no score.
        removable_U = torch.tensor(run.removable(row)[span], device=drop_U.device)
        scores[row, run.keep_BN[row].nonzero()[span, 0]] = torch.where(removable_U, drop_U, 0.0)
    return Attribution(scores, checks=saved_by_prefix(games), warnings=warnings, used={"replace": used})


def _of_segments(run: Run, row: int, replacement: Any) -> tuple[Tensor, Game, Variants]:
    """(U,) the fall of the score without each stretch of the text, shared out evenly among what stands in it."""
    units, (groups, _) = run.units[row], run.segments[row]
    players = [p for p in players_of_parts(run, row, range(len(groups))) if p]
    variants = grouped_variants(run, row, players, replacement, one_away=True)
    game = game_of_scores(run, row, variants, len(players))
    without = torch.from_numpy(game.scores(~np.eye(len(players), dtype=bool))).float()
    scores_U = torch.zeros(len(units))
    for members, value in zip(players, without, strict=True):
        scores_U[list(members)] = (float(run.value_B[row]) - float(value)) / len(members)
    return scores_U, game, variants
