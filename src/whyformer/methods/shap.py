"""Shapley and Owen values, by the shap package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch

from whyformer.engines.perturbation.game import Game, game_of_scores, saved_by_prefix
from whyformer.engines.perturbation.players import BY, Players, absent_player, players_of, special_doubts
from whyformer.engines.perturbation.variants import Replaced, Variants, grouped_variants
from whyformer.errors import BadInput
from whyformer.parameters import Limits, OneOf, Replacement
from whyformer.registry import Passes, method
from whyformer.result import shap_package
from whyformer.run import Attribution, Run

ALGORITHMS = ("auto", "exact", "partition", "permutation")
ALL = 2**20  # hand over all sets at once: batches are made here, not by shap
QUEUE = 32  # groups that the partition algorithm opens at a time; part of its result, so it is fixed


def _cost(units: int, evaluations: int = 512, **options: object) -> Passes:
    return evaluations + 2, 0


@method(
    paper="Shapley 1953; Lundberg & Lee 2017, arXiv:1705.07874; partition: Owen 1977, as in the shap package",
    needs={"perturbation"},
    cost=_cost,
    at_most=True,
    cost_text="2^players forwards where that is within ``evaluations``, else at most evaluations + 2",
    signed=True,
    class_specific=True,
    specificity="black box",
)
def shap(
    run: Run,
    *,
    by: Annotated[str, OneOf(*BY)] | None = None,
    algorithm: Annotated[str, OneOf(*ALGORITHMS)] = "auto",
    evaluations: Annotated[int, Limits(4, 10**7)] = 512,
    replace: Replacement = None,
    keep_special: bool | Sequence[int] = True,
    superpixels: Annotated[int, Limits(2, 10**6)] = 32,
) -> Attribution:
    """A fair share of the score for every part of the input: its mean contribution over all orders of joining.

    φ_i = Σ_S |S|!(n-|S|-1)!/n! · (s(S ∪ i) - s(S)); they add up to s(all) - s(none), which is ``base``. ``by``: what
    joins: None is the unit itself (token, patch, column), "word" whole words, "superpixel" about ``superpixels``
    groups of patches of like colour; a group's share is split evenly among its units. ``replace``: what stands for the
    absent, as for ``occlusion``. ``keep_special``: special tokens are always there (True), join too (False), or a list
    of the token ids to keep. ``algorithm``: "exact" (all 2^n sets), "partition" (Owen values over a tree of
    neighbours), "permutation" (sampled orders, with ``checks["standard_error"]``, root mean square over the players);
    "auto" is exact where ``evaluations`` allow, else partition for text and images, permutation for columns.

    Misleads when: absent parts make inputs that the model never saw; partition gives credit by groups of neighbours,
    so parts that work together from afar share it with their surroundings.
    """
    replacement = absent_player(run, replace)
    scores = torch.zeros(run.keep_BN.shape)
    base_B, errors_B = run.value_B.clone().double().cpu(), torch.full((run.batch.size,), torch.nan)
    games: list[Game | None] = [None] * run.batch.size
    for row in run.track(range(run.batch.size), "shap"):
        players = players_of(run, row, by, keep_special, superpixels)
        if not players.members:  # nothing but special tokens
            continue
        made = grouped_variants if run.segments else Replaced
        variants = made(run, row, players.members, replacement)
        games[row] = game = game_of_scores(run, row, variants, len(players.members))
        values, base_B[row], errors_B[row] = _values(game, players, algorithm, evaluations, run.seed)
        scores[row, run.keep_BN[row].cpu()] = players.per_unit(values)
    error_B = (run.value_B.cpu() - base_B.float() - scores.sum(1)).abs()
    checks = {"additivity_error": error_B} | saved_by_prefix(games)
    if not errors_B.isnan().all():
        checks["standard_error"] = errors_B.nan_to_num(0.0)
    used, remarks = Variants.used(run, replacement)
    return Attribution(
        scores.to(run.keep_BN.device),
        base_B=base_B.float(),
        checks=checks,
        warnings=[[*remarks, *special_doubts(run, keep_special)]] * run.batch.size,
        used={"replace": used},
    )


def _values(game: Game, players: Players, algorithm: str, evaluations: int, seed: int) -> tuple[Any, float, float]:
    """Shapley values of the players, the value of none of them, and the standard error (nan: nothing was sampled)."""
    count = game.parts
    if algorithm == "auto":
        algorithm = "exact" if count <= 40 and 2**count <= evaluations else players.fallback
    if count == 1:
        base = float(game.scores(np.zeros((1, 1)))[0])
        return np.array([float(game.scores(np.ones((1, 1)))[0]) - base]), base, np.nan
    _require_enough(algorithm, count, evaluations)
    package = shap_package("the method shap")
    masker = _Masker(count, players.tree() if algorithm == "partition" else None)
    explainers = package.explainers
    everyone = np.ones((1, count))
    with _seeded(seed):
        if algorithm == "exact":
            explained = explainers.ExactExplainer(game.scores, masker)(
                everyone, max_evals=2**count, batch_size=ALL, silent=True
            )
        elif algorithm == "partition":
            explainer = explainers.PartitionExplainer(game.scores, masker)
            explained = explainer(everyone, max_evals=evaluations, batch_size=QUEUE, silent=True)
        else:
            explainer = explainers.PermutationExplainer(game.scores, masker, seed=seed)
            explained = explainer(everyone, max_evals=evaluations, error_bounds=True, batch_size=ALL, silent=True)
    error = np.nan
    if algorithm == "permutation":
        orders = 2 * (evaluations // (2 * count + 1))
        error = float(np.sqrt((explained.error_std[0] ** 2 / orders).mean()))
    return explained.values[0], float(np.ravel(explained.base_values)[0]), error


def _require_enough(algorithm: str, count: int, evaluations: int) -> None:
    if algorithm == "exact" and (count > 40 or 2**count > evaluations):
        raise BadInput(
            f"exact Shapley values of {count} parts need 2^{count} evaluations, and evaluations={evaluations}. Raise "
            "it, or use algorithm='partition' or 'permutation', or fewer parts (by='word', by='superpixel')."
        )
    if algorithm == "permutation" and evaluations < 2 * count + 1:
        raise BadInput(
            f"one order of {count} parts, forwards and backwards, needs {2 * count + 1} evaluations, and "
            f"evaluations={evaluations}. Raise it, or use algorithm='partition'."
        )


class _Masker:
    """To shap a player is present or not; what that means for the input is for the game to say."""

    immutable_outputs = True

    def __init__(self, count: int, clustering: Any) -> None:
        self.shape = (1, count)
        self.clustering = clustering

    def __call__(self, mask: Any, everyone: Any) -> Any:
        return np.asarray(mask, bool)[None]


class _seeded:  # noqa: N801  (reads as a statement)
    """shap draws from numpy's global state: seed it, and put the caller's back."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> None:
        self.before = np.random.get_state()
        np.random.seed(self.seed)

    def __exit__(self, *exc: object) -> None:
        np.random.set_state(self.before)
