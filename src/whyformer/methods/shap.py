"""Shapley values, exact and by regression; by permutations, and Owen values, by the shap package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.choices import OF_SHAP
from whyformer.engines.perturbation.game import Game, game_of_scores, saved_by_prefix
from whyformer.engines.perturbation.maskings import guide_cost, guide_of
from whyformer.engines.perturbation.players import (
    BY,
    Players,
    absent_player,
    held_remark,
    held_units,
    players_of,
    special_doubts,
)
from whyformer.engines.perturbation.regression import TOP, KnownErrors, Pairs, corrected, fitted
from whyformer.engines.perturbation.variants import Replaced, Variants, grouped_variants
from whyformer.errors import BadInput, WhyformerError
from whyformer.inputs.stream_inputs import Numbers
from whyformer.inputs.table_reference import baselines_of
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.methods.input_gradients import alone
from whyformer.parameters import Hold, Limits, OneOf, Replacement
from whyformer.registry import Passes, method
from whyformer.results.interop import shap_package
from whyformer.run import Attribution, Run
from whyformer.shapes import Array

ALGORITHMS = ("auto", "exact", "partition", "permutation", "regression")
ALONE = "+alone"  # suffix of a guide: also use the effect of each player alone, by the gradient at the baseline
GUIDES = tuple(dict.fromkeys(name.removesuffix(ALONE) for name in OF_SHAP))  # "auto" is the first that runs
STRONGEST = 5  # players whose combinations are sampled systematically, not at random
ROUND = 64  # evaluations between two tests of the order
CEILING = 1024  # of evaluations="auto"
UNSETTLED = f"the order of the {TOP} largest scores is not settled"
CLOSE = "some differ by less than their standard errors. Pass a larger evaluations= to continue."
ALL = 2**20  # batch size for shap: it passes all sets at once, and batches are made here
QUEUE = 32  # groups that the partition algorithm opens at a time; part of its result, so it is fixed


def _cost(
    units: int,
    evaluations: int | str = 512,
    guide: str | None = None,
    interactions: int = 0,
    replace: str | int | None = None,
    **options: object,
) -> Passes:
    names = GUIDES if guide == "auto" else [guide.removesuffix(ALONE)] if guide else []
    forwards, backwards = guide_cost(units, names)
    if guide is not None and (guide == "auto" or guide.endswith(ALONE)):
        forwards, backwards = forwards + 2, backwards + 1
    strongest = _players_of_pairs(interactions)
    most = CEILING if evaluations == "auto" else int(evaluations)
    return (most + 1 + strongest * (strongest + 1)) * baselines_of(replace) + 1 + forwards, backwards


@method(
    paper="Shapley 1953; Lundberg & Lee 2017, arXiv:1705.07874; partition: Owen 1977, as in the shap package",
    needs={"perturbation"},
    cost=_cost,
    at_most=True,
    cost_text="2^n forwards (n features) if evaluations allow, else at most evaluations + 2; per baseline row of a "
    "table; plus the guide's passes",
    signed=True,
    class_specific=True,
    meaning="share of the output (Shapley value)",
    scalable=("evaluations", 8),
)
def shap(
    run: Run,
    *,
    by: Annotated[str, OneOf(*BY)] | None = None,
    algorithm: Annotated[str, OneOf(*ALGORITHMS)] = "auto",
    evaluations: Annotated[int, Limits(4, 10**7)] | Annotated[str, OneOf("auto")] = 512,
    guide: str | None = None,
    interactions: Annotated[int, Limits(0, 1000)] = 0,
    replace: Replacement | Numbers = None,
    keep_special: bool | Sequence[int] = True,
    superpixels: Annotated[int, Limits(2, 10**6)] = 32,
    hold: Hold = None,
) -> Attribution:
    """Compute Shapley values: the mean contribution of each feature over all orders in which features are added.

    φ_i = Σ_S |S|!(n-|S|-1)!/n! · (s(S ∪ i) - s(S)); they sum to s(all) - s(none); ``base`` is s(none). ``by``: what is
    masked together: None is a single token, patch or column, "word" a whole word, "superpixel" one of about
    ``superpixels`` groups of patches of similar colour; a group's value is split evenly. ``replace``: the baseline, as
    in ``occlusion``. ``keep_special``: never mask special tokens (True), mask them too (False), or a list of token ids
    to keep. ``hold``: features that are never masked, such as the question in a prompt: its text, a label, a number (-1
    is the last), or a list. ``algorithm``: "exact" (all 2^n coalitions), "partition" (Owen values over a tree of
    neighbours), "permutation" (sampled orders), "regression" (pairs of a coalition and its complement); "auto" is exact
    if ``evaluations`` allow, else regression with a guide or evaluations="auto", else partition for text and images,
    permutation for columns. ``guide``: a cheap method whose scores are a prior of the regression, weighted by how well
    they predict the coalitions (a learned one: by its error on inputs that it was not trained on); "+alone" after its
    name adds the gradient effect of each feature alone; "auto" is both, with a method that was learned for this model
    (wf.learn, loaded or learned in this process) and is better than free ones by its certificate, else the first of
    attn_lrp, generic_attention and input_x_gradient that runs. ``evaluations="auto"`` continues until the order of the
    five largest values is settled, 1,024 at most. ``errors`` holds standard errors of sampled values,
    ``checks["standard_error"]`` their root mean square. ``interactions``: number of pairs to return, among the
    features with the largest values, with how far their joint effect exceeds the sum of their single ones: the mean of
    that excess with none and with all other features present. That is not a Shapley interaction index, which averages
    over all sets of the others and may differ in size and sign.

    Misleads when: masked inputs are unlike anything the model was trained on; partition assigns credit to groups of
    neighbours, so distant features that act together share it with their surroundings.
    """
    replacement = absent_player(run, replace)
    held_BU = held_units(run, hold)
    if algorithm not in {"auto", "regression"} and (guide is not None or evaluations == "auto"):
        raise BadInput(f"guide and evaluations='auto' are for algorithm='regression' or 'auto', not {algorithm!r}.")
    guide, guides_BN, known = _guides(run, guide)
    known = known if by is None else None  # errors are those of single units
    scores, errors = torch.zeros(run.keep_BN.shape), torch.zeros(run.keep_BN.shape)
    base_B, error_B = run.value_B.clone().double().cpu(), torch.full((run.batch.size,), torch.nan)
    doubts: list[tuple[str, ...]] = [()] * run.batch.size
    together: list[tuple[tuple[str, str, float], ...]] = [()] * run.batch.size
    games: list[Game | None] = [None] * run.batch.size
    for row in run.track(range(run.batch.size), "shap"):
        players = players_of(run, row, by, keep_special, superpixels, held_BU[row])
        if not players.members:  # only special tokens
            continue
        made = grouped_variants if run.segments else Replaced
        variants = made(run, row, players.members, replacement)
        games[row] = game = game_of_scores(run, row, variants, len(players.members))
        keep_N = run.keep_BN[row].cpu()
        by_unit = [guide_BN[row, keep_N].numpy() for guide_BN in guides_BN]
        guides = [np.array([guide_U[list(members)].sum() for members in players.members]) for guide_U in by_unit]
        shares = _shares(game, players, algorithm, evaluations, run.seed, guides, known)
        base_B[row], doubts[row] = shares.base, (*variants.remarks, *shares.doubts)
        together[row] = _interactions(run, row, game, players, shares.values_P, interactions)
        scores[row, keep_N] = players.per_unit(shares.values_P)
        if shares.errors_P is not None:
            error_B[row] = float(np.sqrt((shares.errors_P**2).mean()))
            errors[row, keep_N] = players.per_unit(shares.errors_P)
    missing_B = (run.value_B.cpu() - base_B.float() - scores.sum(1)).abs()
    checks = {"additivity_error": missing_B} | saved_by_prefix(games)
    sampled = not error_B.isnan().all()
    if sampled:
        checks["standard_error"] = error_B.nan_to_num(0.0)
    used, remarks = Variants.used(run, replacement, replace is None)
    return Attribution(
        scores.to(run.keep_BN.device),
        base_B=base_B.float(),
        errors_BN=errors if sampled else None,
        interactions=together if interactions else None,
        checks=checks,
        warnings=[
            [*remarks, *special_doubts(run, keep_special), *held_remark(units, held_U), *more]
            for units, held_U, more in zip(run.units, held_BU, doubts, strict=True)
        ],
        used={"replace": used, "guide": guide},
    )


@dataclass(frozen=True)
class _Shares:
    """Return Shapley values of the players, the value of the empty set, and standard errors if sampled."""

    values_P: Array
    base: float
    errors_P: Array | None = None
    doubts: tuple[str, ...] = ()


def _shares(
    game: Game,
    players: Players,
    algorithm: str,
    evaluations: int | str,
    seed: int,
    guides: Sequence[Array],
    known: KnownErrors | None,
) -> _Shares:
    count = game.parts
    few = ROUND if evaluations == "auto" else int(evaluations)
    if count == 1:
        base, whole = game.scores(np.array([[0], [1]])).tolist()
        return _Shares(np.array([whole - base]), base)
    if algorithm == "auto" or (algorithm == "regression" and count <= 40 and 2**count <= few):
        sampled = "regression" if guides or evaluations == "auto" else players.fallback
        algorithm = "exact" if count <= 40 and 2**count <= few else sampled
    if algorithm == "regression":
        return _regressed(game, evaluations, seed, guides, known)
    budget = 2**count if evaluations == "auto" else int(evaluations)
    if algorithm == "exact" and (count > 40 or 2**count > budget):
        raise BadInput(
            f"exact Shapley values of {count} parts need 2^{count} evaluations, and evaluations={budget}. Raise it, or "
            "use algorithm='partition' or 'permutation', or fewer parts (by='word', by='superpixel')."
        )
    if algorithm == "permutation" and budget < 2 * count + 1:
        raise BadInput(
            f"one order of {count} parts, forwards and backwards, needs {2 * count + 1} evaluations, and "
            f"evaluations={budget}. Raise it, or use algorithm='partition'."
        )
    if algorithm == "exact":
        return _exact(game)
    package = shap_package("the method shap")
    masker = _Masker(count, players.tree() if algorithm == "partition" else None)
    explainers = package.explainers
    everyone = np.ones((1, count))
    errors_P = None
    before = np.random.get_state()  # shap uses numpy's global state: seed it, and restore the caller's
    np.random.seed(seed)
    try:
        if algorithm == "partition":
            explainer = explainers.PartitionExplainer(game.scores, masker)
            explained = explainer(everyone, max_evals=budget, batch_size=QUEUE, silent=True)
        else:
            explainer = explainers.PermutationExplainer(game.scores, masker, seed=seed)
            explained = explainer(everyone, max_evals=budget, error_bounds=True, batch_size=ALL, silent=True)
            errors_P = explained.error_std[0] / np.sqrt(2 * (budget // (2 * count + 1)))
    finally:
        np.random.set_state(before)
    return _Shares(explained.values[0], float(np.ravel(explained.base_values)[0]), errors_P)


def _exact(game: Game) -> _Shares:
    """Compute Shapley values from all sets, by definition; a set is the number whose bits are its members."""
    count = game.parts
    sets = np.arange(2**count)
    present_SP = ((sets[:, None] >> np.arange(count)) & 1).astype(bool)
    said_S, size_S = game.scores(present_SP), present_SP.sum(1)
    weight = np.array([1 / (count * comb(count - 1, size)) for size in range(count)])  # |S|!(n-|S|-1)!/n!
    values = []
    for player in range(count):
        without = sets[~present_SP[:, player]]
        values.append(weight[size_S[without]] @ (said_S[without | (1 << player)] - said_S[without]))
    return _Shares(np.array(values), float(said_S[0]))


def _regressed(
    game: Game, evaluations: int | str, seed: int, guides: Sequence[Array], known: KnownErrors | None
) -> _Shares:
    """Run the regression on all pairs at once, or ("auto") in rounds until the order of the largest is settled."""
    none, whole = game.scores(np.stack([np.zeros(game.parts), np.ones(game.parts)])).tolist()
    sizes_P = sum((np.abs(guide_P) / max(np.abs(guide_P).mean(), 1e-300) for guide_P in guides), np.zeros(game.parts))
    strongest = np.argsort(-sizes_P, kind="stable").tolist() if guides else []
    pairs = Pairs(game.parts, seed, strongest[: min(STRONGEST, game.parts - 1)])
    differences: list[float] = []
    most = CEILING if evaluations == "auto" else int(evaluations)
    size = ROUND if evaluations == "auto" else most
    while True:
        sides = pairs.more(size // 2)
        said = game.scores(np.concatenate([sides, ~sides]))
        differences += (said[: len(sides)] - said[len(sides) :]).tolist()
        seen = pairs.drawn, np.array(differences), pairs.weights_K, whole - none
        fit = fitted(*seen, guides) if known is None else corrected(*seen, guides[0], known)
        asked = 2 * len(differences)
        settled = evaluations == "auto" and fit.is_settled()
        if settled or asked + size > most or not len(sides):
            break
    doubts = () if settled or evaluations != "auto" else (f"{UNSETTLED} after {asked} evaluations: {CLOSE}",)
    return _Shares(fit.values_P, none, fit.errors_P, doubts)


def _players_of_pairs(interactions: int) -> int:
    """Return how many of the largest players to pair, so that twice as many pairs are measured as kept."""
    return int(np.ceil((1 + np.sqrt(1 + 16 * interactions)) / 2)) if interactions else 0


def _interactions(
    run: Run, row: int, game: Game, players: Players, values_P: Array, most: int
) -> tuple[tuple[str, str, float], ...]:
    """Return the pairs of the largest players with the largest second differences, and the labels of their units.

    A label that several players have is followed by the number of its first unit: "good [4]".
    """
    first = np.argsort(-np.abs(values_P), kind="stable")[: _players_of_pairs(most)]
    pairs = np.array(list(combinations(sorted(first.tolist()), 2)), dtype=int).reshape(-1, 2)
    if not len(pairs):
        return ()
    second = game.second_differences(pairs)
    names = [run.units[row].text_of(members) for members in players.members]
    several = {name for name, times in Counter(names).items() if times > 1}
    names = [f"{n} [{m[0]}]" if n in several else n for n, m in zip(names, players.members, strict=True)]
    order = np.argsort(-np.abs(second), kind="stable")[:most]
    return tuple((names[pairs[i, 0]], names[pairs[i, 1]], float(second[i])) for i in order)


def _guides(run: Run, name: str | None) -> tuple[str | None, list[Tensor], KnownErrors | None]:
    """Return the name of the guide, and its (B, N) scores: those of a method, and with "+alone" effects alone.

    A learned guide needs no other: how far it is off is known.
    """
    if name is None:
        return None, [], None
    wanted = name.removesuffix(ALONE)
    if wanted == "shap":
        raise BadInput("guide='shap' is circular: use a method of few passes, or 'auto'.")
    guide = guide_of(run, wanted, GUIDES)
    if guide is None:
        return None, [], None
    if (name != "auto" and not name.endswith(ALONE)) or guide.errors is not None:
        return guide.name, [guide.scores_BN], guide.errors
    try:
        refuse_without_gradients(run.modality.model, f"guide={name!r}")
        return guide.name + ALONE, [guide.scores_BN, alone(run).detach().double().cpu()], None
    except WhyformerError:
        if name != "auto":
            raise
        return guide.name, [guide.scores_BN], None


class _Masker:
    """A masker for shap: passes on which players are present; the game masks the input."""

    immutable_outputs = True

    def __init__(self, count: int, clustering: Any) -> None:
        self.shape = (1, count)
        self.clustering = clustering

    def __call__(self, mask: Any, everyone: Any) -> Any:
        return np.asarray(mask, bool)[None]
