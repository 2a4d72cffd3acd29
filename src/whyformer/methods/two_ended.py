"""Two ends: what a part does alone, and what its absence does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch

from whyformer.engines.perturbation.game import Game, game_of_scores, saved_by_prefix
from whyformer.engines.perturbation.players import (
    BY,
    absent_player,
    held_remark,
    held_units,
    leave_one_out,
    players_of,
    special_doubts,
)
from whyformer.engines.perturbation.variants import Variants, grouped_variants
from whyformer.parameters import Hold, Limits, OneOf, Replacement
from whyformer.registry import Passes, method
from whyformer.run import Attribution, Run


def _cost(units: int, **options: object) -> Passes:
    return 2 * units + 2, 0


@method(
    paper="semivalues: Dubey, Neyman & Weber 1981, doi:10.1287/moor.6.1.122; the two ends of a path: this library",
    needs={"perturbation"},
    cost=_cost,
    at_most=True,  # special tokens do not play, and with two players a part alone is the other's absence
    cost_text="(2 · players + 2) forwards",
    signed=True,
    class_specific=True,
    specificity="black box",
)
def two_ended(
    run: Run,
    *,
    by: Annotated[str, OneOf(*BY)] | None = None,
    replace: Replacement = None,
    keep_special: bool | Sequence[int] = True,
    superpixels: Annotated[int, Limits(2, 10**6)] = 32,
    hold: Hold = None,
) -> Attribution:
    """What a part does when all others are there and when none is: the mean of leave-one-out and keep-one.

    r_i = ½ [s(all) - s(all without i)] + ½ [s(i alone) - s(none)]: the semivalue with half of its weight on the
    empty and half on the full coalition. Of two players it is the Shapley value; of a sum of parts, every part's term.
    ``by``, ``replace``, ``keep_special``, ``superpixels`` and ``hold`` are those of ``shap``; "delete" is possible.

    Misleads when: evidence is doubled in such a way that neither end shows it (any two of three signs suffice: one
    alone is too little, without one there are still enough). Scores do not add up to the change of the score.
    """
    replacement = absent_player(run, replace)
    held_BU = held_units(run, hold)
    scores = torch.zeros(run.keep_BN.shape)
    games: list[Game | None] = [None] * run.batch.size
    about: list[tuple[str, ...]] = [()] * run.batch.size
    for row in run.track(range(run.batch.size), "two_ended"):
        players = players_of(run, row, by, keep_special, superpixels, held_BU[row])
        count = len(players.members)
        if not count:  # nothing but special tokens
            continue
        variants = grouped_variants(run, row, players.members, replacement)
        games[row] = game = game_of_scores(run, row, variants, count)
        about[row] = variants.remarks
        # One end after the other: variants that begin like the input share what a language model has read of it.
        whole, without_P = np.split(game.scores(leave_one_out(count)), [1])
        none, alone_P = np.split(game.scores(~leave_one_out(count)), [1])
        scores[row, run.keep_BN[row].cpu()] = players.per_unit((whole - without_P + alone_P - none) / 2)
    used, remarks = Variants.used(run, replacement, replace is None)
    return Attribution(
        scores.to(run.keep_BN.device),
        checks=saved_by_prefix(games),
        warnings=[
            [*remarks, *more, *special_doubts(run, keep_special), *held_remark(units, held_U)]
            for units, held_U, more in zip(run.units, held_BU, about, strict=True)
        ],
        used={"replace": used},
    )
