"""recommend: search the ways to explain a model, choose by one metric on some inputs, report another on the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from whyformer.engines.perturbation.game import VALUES
from whyformer.errors import BadInput, NotOffered
from whyformer.evaluate.budget import budget_of, within_effort
from whyformer.evaluate.candidates import SPACES, Candidate, Field
from whyformer.evaluate.choose_within import chosen_within
from whyformer.evaluate.contender import other_games, wanted
from whyformer.evaluate.field import field_of, halves, truthfulness_of
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.outcomes import outcomes_of
from whyformer.evaluate.recommendation import ANY, SCOPES, ChosenMethod, Recommendation
from whyformer.explainer import Explainer, Segments
from whyformer.parameters import BatchSize, Count, Filled, Hold, OneOf, Replacement, Seed, checked
from whyformer.registry import CLASSES
from whyformer.targets import Aims, Scalar

Array = np.ndarray[Any, Any]

LEADERS = 10
EFFORT = 1500


@checked
def recommend(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    scope: Annotated[str, OneOf(*SCOPES)] = "dataset",
    methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    spaces: Sequence[Annotated[str, OneOf(*SPACES)]] = SPACES,
    budget: Count | Annotated[str, Filled()] | None = None,
    effort: Count | None = EFFORT,
    report: bool = True,
    value: Annotated[str, OneOf(*VALUES)] = "logit",
    replace: Replacement = None,
    reference: Any = None,
    target: Aims = None,
    scalar: Scalar = "logit",
    units: Segments = "token",
    hold: Hold = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Recommendation:
    """How should this model be explained on inputs like these?

    spaces: "attention" is raw attention with every choice of layers (mean, product, each), heads (mean, each) and
    reading (row, column, column mean, column max): (L + 2)(H + 1)·4 candidates, 728 for 12 layers of 12 heads;
    "gradient" the same of attention × gradient; "rollout" every start layer of the rollouts. methods: the others that
    stand too; None is all of them, [] none. effort: about so many forwards per input are spent on methods that nobody
    named; on long inputs the dearest are left out, and ``excluded`` says which. None: no end.
    budget: the best method that costs no more than so many forwards (20; a backward counts as two) or seconds ("2s",
    "500ms") per explanation. Costs are those that methods declare for the longest input, and methods that can do with
    fewer passes (integrated_gradients, smooth_grad, shap, also with a guide) stand with as many as fit; a time is
    estimated from passes that are timed here, then measured. Chosen is by AOPC, leave-one-out stands too, and
    ``budgeted`` has what each cost and how far the choice is behind the best in hindsight.
    Without a budget, all are scored by ranked truthfulness (RFT), from N + 1 forwards per input of N parts, on one half
    of the inputs; what wins is reported by AOPC on the other half.
    scope: one choice for the "dataset", one per "label" (the class that is explained), or one per "instance", which
    is then tested on the same inputs by other variants of them. ``report=False`` chooses only. ``value``: RFT of the
    "logit", or of the "probability" as the authors have it. Other options as for ``compare``.

    Misleads when: inputs are few, or unlike those that will be explained; and RFT takes one part away at a time, so
    what it chooses is best at that.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = ["I like the movie", "This is so boring", "She hates the book", "A great film"]
    >>> wf.recommend(model, texts, tokenizer, spaces=[], methods=["grad_sam", "saliency"]).show()
    """
    if methods is not None and not methods and not spaces:
        raise BadInput("there is nothing to choose from: name methods or spaces.")
    limit = None if budget is None else budget_of(budget)
    if limit is not None and scope != "dataset":
        raise BadInput(f"budget={budget!r} chooses one method for all inputs: leave scope={scope!r} out.")
    contenders = wanted(methods)
    explainer = Explainer(model, processor, attention_at=attention_at)
    explainer.advises = False
    how = {"target": target, "scalar": scalar, "replace": replace, "reference": reference, "batch_size": batch_size}
    how |= {"units": units, "hold": hold}
    with games_of(explainer, inputs, seed=seed, progress=progress, cache=cache, **how) as games:
        known = [i for i in range(games.size) if len(games.parts[i])]
        inputs_left = len({games.of[i] for i in known})
        if scope != "instance" and inputs_left < 4:
            raise BadInput(
                f"{inputs_left} inputs cannot be split into those that choose and those that test: give at least 4 "
                "(50 or more say something), or scope='instance'."
            )
        if value == "probability" and any(run.gives_probabilities for run in games.runs):
            raise NotOffered(
                "value='probability' is made of logits, and this model returns probabilities already: use "
                "value='logit', which takes what it returns, or pass a model without the softmax or sigmoid at its end."
            )
        otherwise = other_games(games, contenders)
        if limit is not None:
            guided = methods is None or any(entry.method == "shap" for entry in contenders)
            within = chosen_within(games, contenders, spaces, known, limit, value, report, guided)
            return replaced(within, warnings=(*otherwise, *within.warnings))
        mean_units = float(np.mean([len(units) for units in games.units]))
        contenders, dear = (contenders, {}) if methods is not None else within_effort(contenders, mean_units, effort)
        field = field_of(games, spaces, contenders)
        field.excluded.update(dear)
        if not field.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in field.excluded.items())
            raise NotOffered(f"none of the candidates can explain this model: {reasons}")
        best = _recommended(games, field, known, scope, report, value)
        return replaced(best, warnings=(*otherwise, *best.warnings))


def _recommended(games: Games, field: Field, known: list[int], scope: str, report: bool, value: str) -> Recommendation:
    choosing, testing = halves(games, known) if report and scope != "instance" else (known, known)
    testing = testing if report else []
    truth_MI = truthfulness_of(games, field, choosing, value)
    groups = _groups(games, choosing, scope)
    choices = tuple(
        _choice(games, field, truth_MI[:, members].mean(1), group, cost_class, len(members))
        for group, members in groups.items()
        for cost_class in (ANY, *CLASSES)
        if any(cost_class in (ANY, c.cost_class) for c in field.candidates)
    )
    mean_M = truth_MI[:, choosing].mean(1)
    leaders = np.argsort(-mean_M, kind="stable")[:LEADERS]
    grid, reading = _grid(field.candidates, mean_M)
    group_of = {i: _group(games, i, scope) for i in testing}
    warnings = _warnings(groups, group_of, scope, len(choosing))
    chosen = {(c.group, c.cost_class): c for c in choices}
    outcomes = outcomes_of(games, field, chosen, group_of, _best_of_all(field, mean_M)) if testing else ()
    warnings = (*games.doubts(), *warnings)  # the variants have been run by now
    return Recommendation(
        scope=scope,
        choices=choices,
        outcomes=outcomes,
        leaders=tuple((field.candidates[m].name, float(mean_M[m])) for m in leaders),
        grid=grid,
        grid_reading=reading,
        candidates=len(field.candidates),
        excluded=field.excluded,
        replacement=str(games.replacement),
        chosen_on=len(choosing),
        reported_on=len(testing),
        variants=games.forwards,
        seed=games.seed,
        warnings=warnings,
        model=type(games.explainer.model).__name__,
        options={"value": value},
        held=games.held,
    )


def _group(games: Games, number: int, scope: str) -> str:
    if scope == "dataset":
        return "all inputs"
    return games.label(number) if scope == "label" else f"input {number}"


def _groups(games: Games, choosing: list[int], scope: str) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i in choosing:
        groups.setdefault(_group(games, i, scope), []).append(i)
    return groups


def _best_of_all(field: Field, mean_M: Array) -> dict[str, int]:
    """Per class of cost the best over all inputs, for those whose own group had none to choose by."""
    best = {}
    for cost_class in (ANY, *CLASSES):
        stands = [m for m, c in enumerate(field.candidates) if cost_class in (ANY, c.cost_class)]
        if stands:
            best[cost_class] = stands[int(np.argmax(mean_M[stands]))]
    return best


def _choice(games: Games, field: Field, mean_M: Array, group: str, cost_class: str, inputs: int) -> ChosenMethod:
    best = _best_of_all(field, mean_M)[cost_class]
    chosen = field.candidates[best]
    options = games.options_of(chosen.method, chosen.options)
    return ChosenMethod(group, cost_class, chosen.name, chosen.method, options, float(mean_M[best]), inputs)


def _grid(candidates: list[Candidate], mean_M: Array) -> tuple[tuple[tuple[float, ...], ...], str]:
    """RFT of raw attention, layers × heads, in the reading that its best candidate has."""
    raw = [(c.options, float(v)) for c, v in zip(candidates, mean_M, strict=True) if c.method == "raw_attention"]
    if not raw or "read" not in raw[0][0]:
        return (), ""
    reading = max(raw, key=lambda pair: pair[1])[0]["read"]
    rows: dict[Any, list[float]] = {}
    for options, value in raw:
        if options["read"] == reading:
            rows.setdefault(options["layers"], []).append(value)
    return tuple(map(tuple, rows.values())), reading


def _warnings(groups: dict[str, list[int]], group_of: dict[int, str], scope: str, choosing: int) -> tuple[str, ...]:
    warnings = []
    if scope == "instance" and group_of:
        warnings.append(
            "chosen and tested on the same inputs, by different variants of them: RFT takes single parts away, AOPC "
            "many. For a test on other inputs use scope='dataset' or 'label'."
        )
    elif choosing < 20:
        warnings.append(f"{choosing} inputs chose: with so few, many candidates are equally good by chance.")
    without = sorted(set(group_of.values()) - set(groups))
    if without:
        warnings.append(f"no input chose for {', '.join(without)}: the choice of all inputs was tested there.")
    return tuple(warnings)
