"""Ablation methods: occlusion (leave one out), two_ended (alone and left out), and random scores as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.choices import FEWEST, MASKS, PER_UNIT, STRONGEST, guides
from whyformer.engines.perturbation.game import Game, game_of_scores, saved_by_prefix
from whyformer.engines.perturbation.maskings import Guide, guide_cost, guide_of, random_maskings
from whyformer.engines.perturbation.players import (
    BY,
    Players,
    absent_player,
    held_remark,
    held_units,
    players_of,
    special_doubts,
)
from whyformer.engines.perturbation.variants import (
    Variants,
    default_replacement,
    grouped_variants,
    input_span,
    left_out,
    maskable,
    players_of_parts,
)
from whyformer.evidence import ABOUT_95, difference_interval
from whyformer.inputs.stream_inputs import Numbers
from whyformer.inputs.table_reference import baselines_of
from whyformer.parameters import Hold, Limits, OneOf, Replacement
from whyformer.registry import Passes, method, one_forward
from whyformer.run import Attribution, Run
from whyformer.shapes import Array

# Random scores: a reference that every method should beat.


@one_forward(
    paper="a baseline, no paper",
    needs=set(),
    meaning="random numbers, as a reference for other methods",
)
def random(run: Run) -> Attribution:
    """Draw one random number per feature from a seeded generator, independent of the model.

    Misleads always: use it as a reference. A method that does not score better on a faithfulness metric is
    uninformative.
    """
    keep_BN = run.keep_BN
    scores = torch.zeros(keep_BN.shape)
    for row, keep in enumerate(keep_BN.cpu()):
        # Each input draws its own stream, so that neither batch nor padding changes its scores.
        generator = torch.Generator().manual_seed(run.seed)
        scores[row, keep] = torch.rand(int(keep.sum()), generator=generator)
    return Attribution(scores.to(keep_BN.device))


# Occlusion: mask one feature at a time.


@method(
    paper="Zeiler & Fergus 2014, arXiv:1311.2901; leave-one-out: Li, Monroe & Jurafsky 2016, arXiv:1612.08220",
    needs={"perturbation"},
    cost=lambda units, replace=None, **options: (units * baselines_of(replace) + 1, 0),
    cost_text="(features + 1) forwards; with B baseline rows of a table (B·features + 1)",
    signed=True,
    class_specific=True,
    meaning="drop in the output when the feature is masked",
)
def occlusion(run: Run, *, replace: Replacement | Numbers = None) -> Attribution:
    """Measure how far the output drops when one feature is masked: r_i = s(x) - s(x without i).

    Answers of a chat server are sampled: ``errors`` then span the 95 % confidence interval of each difference.

    ``replace``: the baseline. Text: "mask", "unk", "pad", "delete", "attention_mask" or a token id; images: "mean",
    "zero", "blur"; vectors: "zero", "mean" (of the input's own); all floats: a tensor with the shape of one input, or
    {argument: tensor} of a module with several; tables with Table(reference=…): "rows" (a few
    reference rows that cover the others, and the weighted mean over them; "rows:16" for another number), "mean" (one
    row of means and most frequent categories), "zero"; without: "uniform" (0, and the mean over all categories of a
    column), "zero". The default is the first of these that the model supports. With several streams, each uses its
    own default; image tokens inside a text are masked in the image.

    Misleads when: features are redundant (masking one of two synonyms changes nothing), or the masked input is unlike
    anything the model was trained on.
    """
    modality = run.modality
    replacement: Any = (
        default_replacement(modality, run.batch) if replace is None else modality.mask.replacement(replace)
    )
    scores = torch.zeros(run.keep_BN.shape, dtype=torch.float32, device=run.keep_BN.device)
    games: list[Game | None] = []
    used, remarks = Variants.used(run, replacement, replace is None)
    warnings: list[list[str]] = []
    errors = torch.zeros_like(scores) if modality.mean.samples else None
    drops_of = _of_segments if run.segments else _of_units
    for row in run.track(range(run.batch.size), "occlusion"):
        drops_U, game, variants = drops_of(run, row, replacement)
        games.append(game)
        warnings.append([*remarks, *variants.remarks])
        scores[row, run.keep_BN[row]] = drops_U.to(scores.device)
        if errors is not None:
            errors[row, run.keep_BN[row]] = _sampling_errors(float(run.value_B[row]), drops_U, modality.mean.samples)
    checks = saved_by_prefix(games)
    return Attribution(scores, errors_BN=errors, checks=checks, warnings=warnings, used={"replace": used})


def _sampling_errors(value: float, drops_U: Tensor, samples: int) -> Tensor:
    """Return (U,) standard errors whose 95 % intervals hold those of the differences of two shares."""
    drops = drops_U.double().numpy()
    low, high = difference_interval(np.full_like(drops, value), np.clip(value - drops, 0.0, 1.0), samples)
    return torch.from_numpy(np.maximum(drops - low, high - drops) / ABOUT_95).float()


def _of_units(run: Run, row: int, replacement: Any) -> tuple[Tensor, Game, Variants]:
    """Return (U,) the drop of the output without each unit; units that cannot be masked have no score."""
    count, span = len(run.units[row]), input_span(run, row)
    variants = left_out(run, row, replacement)
    game = game_of_scores(run, row, variants, count, whole_first=True)
    drops_U = torch.zeros(count)
    drops_U[span] = torch.where(torch.tensor(maskable(run, row)[span]), _drops(game, span), 0.0)
    return drops_U, game, variants


def _of_segments(run: Run, row: int, replacement: Any) -> tuple[Tensor, Game, Variants]:
    """Return (U,) the drop of the output without each span of the text, split evenly among the units in it."""
    units, (groups, _) = run.units[row], run.segments[row]
    players = [p for p in players_of_parts(run, row, range(len(groups))) if p]
    variants = grouped_variants(run, row, players, replacement, one_away=True)
    game = game_of_scores(run, row, variants, len(players), whole_first=True)
    scores_U = torch.zeros(len(units))
    for members, drop in zip(players, _drops(game).tolist(), strict=True):
        scores_U[list(members)] = drop / len(members)
    return scores_U, game, variants


def _drops(game: Game, away: slice = slice(None)) -> Tensor:
    """Return how far the output drops without each of these players; the input as it is comes in the same batch."""
    everyone = np.ones((1, game.parts), dtype=bool)
    whole, without = np.split(game.scores(np.concatenate([everyone, ~np.eye(game.parts, dtype=bool)[away]])), [1])
    return torch.from_numpy(whole - without).float()


# two_ended: each player masked, and each player alone.

ONE_ROW = "{} passes allow a single baseline row, and scores depend on which row that is: raise passes=."


def _cost_of_ends(
    units: int, passes: int | None = None, guide: str | None = None, replace: str | int | None = None, **options: object
) -> Passes:
    forwards = (2 * units + 1.0) * baselines_of(replace) + 1
    if guide is None and (passes is None or 2 * units + 2 <= passes):  # with fewer baseline rows, if need be
        return forwards if passes is None else min(forwards, passes), 0.0
    more, backwards = guide_cost(units, [guides(passes)[0] if guide in (None, "auto") else str(guide)])
    if passes is None:
        return forwards + more, backwards
    most = passes - 2 * backwards
    few, masks = _spent(units, int(most - more - 1) // baselines_of(replace))
    return most if masks or few < units else min(forwards + more, most), backwards


def _spent(count: int, passes: int) -> tuple[int, int]:
    """Return how many players are measured at both ends, and how many random maskings there are besides."""
    few = min(count, STRONGEST)
    masks = passes - 2 * few - 1
    return (few, masks) if masks >= max(count, MASKS) else (max(1, min(count, (passes - 1) // 2)), 0)


@method(
    paper="semivalues: Dubey, Neyman & Weber 1981, doi:10.1287/moor.6.1.122; weights on the two ends: this library",
    needs={"perturbation"},
    cost=_cost_of_ends,
    at_most=True,  # special tokens are not masked; with two players, one alone is the other one masked
    cost_text="(2·features + 2) forwards, per baseline row of a table, or at most passes; plus the guide's passes",
    signed=True,
    class_specific=True,
    meaning="mean of two effects: masking the feature, and showing it alone",
    slow=True,
)
def two_ended(
    run: Run,
    *,
    by: Annotated[str, OneOf(*BY)] | None = None,
    replace: Replacement | Numbers = None,
    keep_special: bool | Sequence[int] = True,
    superpixels: Annotated[int, Limits(2, 10**6)] = 32,
    hold: Hold = None,
    passes: Annotated[int, Limits(FEWEST, 10**7)] | None = None,
    guide: str | None = None,
) -> Attribution:
    """Average two effects of a feature: masking it (leave-one-out) and showing it alone (keep-one).

    r_i = ½ [s(all) - s(all without i)] + ½ [s(i alone) - s(none)]: a semivalue with half of the weight on the empty and
    half on the full coalition. For two features it is the Shapley value; for an additive model, each feature's term.
    ``by``, ``replace``, ``keep_special``, ``superpixels`` and ``hold`` are those of ``shap``; "delete" is supported.
    ``passes``: the most passes per input (a backward counts as two). If they do not suffice, a table uses fewer
    baseline rows (``replace``). If they do not suffice for all features even so, a ``guide`` of few passes
    ("auto": attn_lrp, else value_x_gradient, averaged over 8 maskings) selects the features that are measured.
    The others get the guide's scores, scaled to the measured ones; a measured feature gets the mean of both, or its own
    value where guide and measured values are opposed (Σ of their products ≤ 0). If no guide runs, neighbours are
    measured in groups, and the strongest groups are split. A guide that is passed explicitly is used for any input of
    more than two features, and may be averaged: "value_x_gradient(maskings=8)". Where 50 features leave enough
    ``passes``, the rest mask features at random, and a ridge regression corrects the guide.

    Misleads when: evidence is redundant in a way that neither effect shows (any two of three signs suffice: one alone
    is too little, and without one there are still enough). Scores do not sum to the change in output.
    """
    replacement = absent_player(run, replace)
    held_BU = held_units(run, hold)
    scores = torch.zeros(run.keep_BN.shape)
    games: list[Game | None] = [None] * run.batch.size
    about: list[tuple[str, ...]] = [()] * run.batch.size
    start_B = torch.full((run.batch.size,), torch.nan)
    players_B = [players_of(run, row, by, keep_special, superpixels, held_BU[row]) for row in range(run.batch.size)]
    most = max(len(players.members) for players in players_B)
    guiding: Guide | None = None
    if most > 2 and (guide is not None or (passes is not None and 2 * most + 2 > passes)):
        guiding = guide_of(run, guide or "auto", guides(passes))
    rows = baselines_of(replacement)
    left_B = None if passes is None else passes - 1 - (guiding.passes_B if guiding else np.zeros(run.batch.size))
    if left_B is not None and rows > 1:
        kind, _, _ = str(replacement).partition(":")
        replacement = run.modality.mask.replacement(f"{kind}:{min(rows, max(1, int(left_B.min()) // (2 * most + 1)))}")
    fewer = [ONE_ROW.format(passes)] if passes is not None and rows > 1 and baselines_of(replacement) == 1 else []
    for row in run.track(range(run.batch.size), "two_ended"):
        players = players_B[row]
        count = len(players.members)
        if not count:  # only special tokens
            continue
        variants = grouped_variants(run, row, players.members, replacement)
        games[row] = game = game_of_scores(run, row, variants, count, whole_first=True)
        about[row] = variants.remarks
        left = 2 * count + 1 if left_B is None else max(3, int(left_B[row]) // variants.draws)
        keep_N = run.keep_BN[row].cpu()
        fits = guide is None and (passes is None or 2 * count + 2 <= passes)
        if guiding is not None and count > 2 and not fits:
            values_P = _guided(game, players, guiding, guiding.scores_BN[row, keep_N].numpy(), left, run.seed)
        elif fits or count <= (left - 1) // 2:
            values_P = _both_ends(game, np.eye(count, dtype=bool))
        else:
            values_P = _coarse_to_fine(game, players, (left - 1) // 2)
        start_B[row] = game.scores(np.zeros((1, count), dtype=bool))[0]
        scores[row, keep_N] = players.per_unit(values_P)
    used, remarks = Variants.used(run, replacement, replace is None)
    # From there the picture of a row goes to its own value. It is no ``base``: the scores need not add up.
    known = run.modality.stream == "table" and not start_B.isnan().any()
    return Attribution(
        scores.to(run.keep_BN.device),
        checks=saved_by_prefix(games) | ({"baseline_value": start_B} if known else {}),
        warnings=[
            [*remarks, *fewer, *more, *special_doubts(run, keep_special), *held_remark(units, held_U)]
            for units, held_U, more in zip(run.units, held_BU, about, strict=True)
        ],
        used={"replace": used, "guide": None if guiding is None else guiding.name},
    )


def _both_ends(game: Game, together_GP: Array) -> Array:
    """Return (G,) the effect of each group of players: mean of the drop without it and the rise with it alone."""
    everyone = np.ones((1, game.parts), dtype=bool)
    outer, inner = np.concatenate([everyone, ~together_GP]), np.concatenate([~everyone, together_GP])
    if game.prefix is None or not game.prefix.offered:
        game.ask(np.concatenate([outer, inner]))  # fewer, larger batches
    # Else one end after the other: variants with the same prefix share a language model's key-value cache.
    whole, without_G = np.split(game.scores(outer), [1])
    none, alone_G = np.split(game.scores(inner), [1])
    values_G: Array = (whole - without_G + alone_G - none) / 2
    return values_G


def _guided(game: Game, players: Players, guide: Guide, guide_U: Array, passes: int, seed: int) -> Array:
    """Return (P,) scores: measured and guided for the players that the guide ranks first, guided for the others.

    Passes that could mask every player several times, beside measuring the strongest, mask players at random: the
    guide's scores are moved towards those that explain these values.
    """
    guide_P, signed = np.array([guide_U[list(members)].sum() for members in players.members]), guide.signed
    few, masks = _spent(game.parts, passes)
    if masks:
        guide_P, signed = _moved(game, guide_P, masks, seed), True
    first = np.argsort(-np.abs(guide_P), kind="stable")[:few]
    measured = _both_ends(game, np.eye(game.parts, dtype=bool)[first])
    size = np.abs(guide_P[first]).sum()
    values_P: Array = guide_P * (np.abs(measured).sum() / size if size else 0.0)
    guided = values_P[first] if signed else np.abs(values_P[first]) * np.sign(measured)
    agree = float(guided @ measured) > 0  # else a mean of both would cancel out
    values_P[first] = (measured + guided) / 2 if agree else measured
    return values_P


def _moved(game: Game, guide_P: Array, masks: int, seed: int) -> Array:
    """Return (P,) φ = α·guide + δ by ridge regression of the values of random maskings: δ is drawn to 0, α is free."""
    present_KP = random_maskings(masks, game.parts, seed)
    x_KP, y_K = present_KP - present_KP.mean(0), game.scores(present_KP)
    y_K = y_K - y_K.mean()
    guided_K = x_KP @ guide_P
    size = max(float(guided_K @ y_K) / max(float(guided_K @ guided_K), 1e-300), 0.0)
    ridge_PP = x_KP.T @ x_KP + masks / PER_UNIT * np.eye(game.parts)
    values_P: Array = size * guide_P + np.linalg.solve(ridge_PP, x_KP.T @ (y_K - size * guided_K))
    return values_P


def _coarse_to_fine(game: Game, players: Players, room: int) -> Array:
    """Return (P,) scores of groups of neighbours; split the strongest into players within ``room`` measurements."""
    from scipy.cluster.hierarchy import fcluster

    group_P = fcluster(players.tree(), max(1, room // 2), "maxclust")
    groups = [np.flatnonzero(group_P == group) for group in np.unique(group_P)]
    together_GP = np.stack([np.isin(np.arange(game.parts), members) for members in groups])
    values_G, left = _both_ends(game, together_GP), room - len(groups)
    values_P = np.zeros(game.parts)
    single: list[int] = []
    for group in np.argsort(-np.abs(values_G), kind="stable"):
        members = groups[group]
        values_P[members] = values_G[group] / len(members)
        if 1 < len(members) <= left:
            single += members.tolist()
            left -= len(members)
    if single:
        values_P[single] = _both_ends(game, np.eye(game.parts, dtype=bool)[single])
    return values_P
