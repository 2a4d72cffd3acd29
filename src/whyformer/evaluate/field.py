"""Who stands to be chosen: every reading of attention and every method, with their scores of all inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.borrow import refuse_without_gradients
from whyformer.errors import WhyformerError
from whyformer.evaluate.candidates import Candidate, Field, cost_class_of, scores_of_each
from whyformer.evaluate.contender import Contender, filled
from whyformer.evaluate.games import Games
from whyformer.evaluate.metrics.faithfulness import ranked
from whyformer.run import Run

Array = np.ndarray[Any, Any]

LEAVE_ONE_OUT = {"occlusion", "two_ended"}  # wholly, or half
BY_CONSTRUCTION = "leave-one-out is what RFT is made of: it would win by construction. Its AOPC is shown beside."
SPACED = {
    "raw_attention": "attention",
    "attention_x_gradient": "gradient",
    "attention_rollout": "rollout",
    "gradient_rollout": "rollout",
    "generic_attention": "rollout",
}


def field_of(games: Games, spaces: Sequence[str], contenders: Sequence[Contender], aside: bool = True) -> Field:
    """Who stands: the readings of the spaces, then the methods. aside: leave-one-out is measured but not chosen."""
    excluded: dict[str, str] = {}
    candidates: list[Candidate] = []
    scores: list[Array] = [np.zeros((0, len(parts)), np.float32) for parts in games.parts]
    if spaces:
        try:
            if "gradient" in spaces:
                refuse_without_gradients(games.explainer.model, "spaces='gradient'")
            candidates, units = scores_of_each(games.runs, spaces, alone)
            scores = [games.per_part(number, all_U) for number, all_U in enumerate(units)]
        except WhyformerError as reason:
            excluded["attention aggregations"] = str(reason)
    beside: dict[str, list[Array]] = {}
    spaced, measured = len(candidates), dict[str, Contender]()
    if candidates:  # these methods stand with all of their options already
        contenders = [e for e in contenders if SPACED.get(e.method) not in spaces or e.options]
    for entry in games.track(list(contenders), "explaining"):
        done = filled(entry, games, games.scalar, memory=False)
        if done.failure:
            excluded[entry.name] = done.failure
            continue
        entry_scores = [s.scores[parts] for s, parts in zip(done.scored, games.parts, strict=True)]
        if aside and entry.method in LEAVE_ONE_OUT:
            excluded[entry.name] = BY_CONSTRUCTION
            beside[entry.name] = entry_scores
            continue
        measured[entry.name] = done
        cost = cost_class_of(entry.method, entry.options)
        candidates.append(Candidate(entry.method, entry.options, done.scored[0].signed, cost))
        scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, entry_scores, strict=True)]
        without = _without_first_tokens(games, entry_scores)
        if without is not None:  # where a model parks attention there, the method may explain better without it
            options = {**entry.options, "first_token": False}
            candidates.append(Candidate(entry.method, options, done.scored[0].signed, cost))
            measured[candidates[-1].name] = done
            scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, without, strict=True)]
    return Field(candidates, scores, excluded, beside, spaced, measured)


def _without_first_tokens(games: Games, scores: Sequence[Array]) -> list[Array] | None:
    """The scores of a language model's texts with 0 at the first token; None where that is no part of any."""
    if not games.runs[0].output.causal or games.asked["units"] != "token":
        return None
    first = [bool(len(parts)) and parts[0] == 0 for parts in games.parts]
    if not any(first):
        return None
    zeroed = [np.where(np.arange(len(s)) == 0, 0.0, s).astype(s.dtype) for s in scores]
    return [z if is_part else s for z, s, is_part in zip(zeroed, scores, first, strict=True)]


def alone(run: Run, row: int) -> Run:
    return Run(
        run.modality,
        run.batch.select([row]),
        run.study,
        target=[run.targets[row]],
        scalar=run.scalar,
        seed=run.seed,
        batch_size=run.batch_size,
    )


def halves(games: Games, known: list[int]) -> tuple[list[int], list[int]]:
    """Those that choose and those that test. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(games.of[i] for i in known))
    order = np.random.default_rng(games.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if games.of[i] in first], [i for i in known if games.of[i] not in first]


def truthfulness_of(games: Games, field: Field, inputs: Sequence[int], value: str) -> Array:
    """(M, I) ranked truthfulness of every candidate on these inputs, NaN elsewhere."""
    truth_MI = np.full((len(field.candidates), games.size), np.nan)
    signed = np.array([c.signed for c in field.candidates])
    for i in games.track(list(inputs), "choosing"):
        # NOTE[DIFF] the authors take the probability, which hardly moves where a model is sure, so that what speaks
        # against the class looks like nothing and methods that name it lose; value="probability" is theirs.
        drops = games.game(i).drops(value)
        for kind in (True, False):
            if (signed == kind).any():
                truth_MI[signed == kind, i] = ranked(field.scores[i][signed == kind], drops, kind)
    return truth_MI
