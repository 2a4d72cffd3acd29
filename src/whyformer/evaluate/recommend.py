"""recommend: search the ways to explain a model, choose by one metric on some inputs, report another on the rest.

After Mylonas et al. 2022 (Optimus), with these changes: candidates are not attention only; the choice is tested on
inputs that had no part in it; perturbed inputs are made of ids, not of re-tokenised text; and RFT is that of the logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.borrow import refuse_without_gradients
from whyformer.defaults import CLASSES
from whyformer.errors import BadInput, NotOffered, WhyformerError, one_of
from whyformer.evaluate.candidates import SPACES, Candidate, Field, cost_class_of, scores_of_each
from whyformer.evaluate.entry import filled, wanted
from whyformer.evaluate.game import VALUES
from whyformer.evaluate.metrics.ranked_truthfulness import ranked
from whyformer.evaluate.outcomes import outcomes_of
from whyformer.evaluate.perturbed import Perturbed, perturbing
from whyformer.evaluate.recommendation import ANY, SCOPES, Choice, Recommendation
from whyformer.explainer import Explainer
from whyformer.run import Run
from whyformer.spelling import spelled

Array = np.ndarray[Any, Any]

BY_CONSTRUCTION = "leave-one-out is what RFT is made of: it would win by construction. Its AOPC is shown beside."
SPACED = {
    "raw_attention": "attention",
    "attention_x_gradient": "gradient",
    "attention_rollout": "rollout",
    "gradient_rollout": "rollout",
    "generic_attention": "rollout",
}
LEADERS = 10


@spelled
def recommend(
    model: Any,
    inputs: Any,
    *,
    processor: Any = None,
    scope: str = "dataset",
    methods: Sequence[str | Mapping[str, Any]] | None = None,
    spaces: Sequence[str] = SPACES,
    report: bool = True,
    value: str = "logit",
    replace: str | int | None = None,
    reference: Any = None,
    target: Any = None,
    scalar: str = "logit",
    attention_at: Mapping[str, str] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Recommendation:
    """How should this model be explained on inputs like these?

    spaces: "attention" is raw attention with every choice of layers (mean, product, each), heads (mean, each) and
    reading (row, column, column mean, column max): (L + 2)(H + 1)·4 candidates, 728 for 12 layers of 12 heads;
    "gradient" the same of attention × gradient; "rollout" every start layer of the rollouts. methods: the others that
    stand too; None is all of them, [] none. All are scored by ranked truthfulness (RFT), from N + 1 forwards per input
    of N parts, on one half of the inputs; what wins is reported by AOPC on the other half.
    scope: one choice for the "dataset", one per "label" (the class that is explained), or one per "instance", which
    is then tested on the same inputs by other variants of them. ``report=False`` chooses only. ``value``: RFT of the
    "logit", or of the "probability" as the authors have it. Other options as for ``compare``.

    Misleads when: inputs are few, or unlike those that will be explained; and RFT takes one part away at a time, so
    what it chooses is best at that.
    """
    one_of("scope", scope, SCOPES)
    one_of("value", value, VALUES)
    for space in spaces:
        one_of("spaces", space, SPACES)
    if methods is not None and not methods and not spaces:
        raise BadInput("there is nothing to choose from: name methods or spaces.")
    entries = wanted(methods)
    explainer = Explainer(model, processor, attention_at=attention_at)
    how = {"target": target, "scalar": scalar, "replace": replace, "reference": reference, "batch_size": batch_size}
    with perturbing(explainer, inputs, seed=seed, progress=progress, cache=cache, **how) as perturbed:
        known = [i for i in range(perturbed.size) if len(perturbed.parts[i])]
        inputs_left = len({perturbed.of[i] for i in known})
        if scope != "instance" and inputs_left < 4:
            raise BadInput(
                f"{inputs_left} inputs cannot be split into those that choose and those that test: give at least 4 "
                "(50 or more say something), or scope='instance'."
            )
        if value == "probability" and any(run.gives_probabilities for run in perturbed.runs):
            raise NotOffered(
                "value='probability' is made of logits, and this model returns probabilities already: use "
                "value='logit', which takes what it returns, or pass a model without the softmax at its end."
            )
        field = _field(perturbed, spaces, entries)
        if not field.candidates:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in field.excluded.items())
            raise NotOffered(f"none of the candidates can explain this model: {reasons}")
        return _recommended(perturbed, field, known, scope, report, value)


def _field(perturbed: Perturbed, spaces: Sequence[str], entries: Sequence[Any]) -> Field:
    excluded: dict[str, str] = {}
    candidates: list[Candidate] = []
    scores: list[Array] = [np.zeros((0, len(parts)), np.float32) for parts in perturbed.parts]
    if spaces:
        try:
            if "gradient" in spaces:
                refuse_without_gradients(perturbed.explainer.model, "spaces='gradient'")
            candidates, units = scores_of_each(perturbed.runs, spaces, _alone)
            scores = [all_U[:, parts] for all_U, parts in zip(units, perturbed.parts, strict=True)]
        except WhyformerError as reason:
            excluded["attention aggregations"] = str(reason)
    aside: dict[str, list[Array]] = {}
    if candidates:  # these methods stand with all of their options already
        entries = [e for e in entries if SPACED.get(e.method) not in spaces or e.options]
    for entry in perturbed.track(list(entries), "explaining"):
        done = filled(entry, perturbed, perturbed.scalar, memory=False)
        if done.failure:
            excluded[entry.name] = done.failure
            continue
        own = [s.scores[parts] for s, parts in zip(done.scored, perturbed.parts, strict=True)]
        if entry.method == "occlusion":
            excluded[entry.name] = BY_CONSTRUCTION
            aside[entry.name] = own
            continue
        cost = cost_class_of(entry.method, entry.options)
        candidates.append(Candidate(entry.method, entry.options, done.scored[0].signed, cost))
        scores = [np.concatenate([s, o[None]]) for s, o in zip(scores, own, strict=True)]
    return Field(candidates, scores, excluded, aside)


def _alone(run: Run, row: int) -> Run:
    return Run(
        run.subject,
        run.batch.select([row]),
        run.study,
        target=[run.targets[row]],
        scalar=run.scalar,
        seed=run.seed,
        batch_size=run.batch_size,
    )


def _recommended(
    perturbed: Perturbed, field: Field, known: list[int], scope: str, report: bool, value: str
) -> Recommendation:
    choosing, testing = _halves(perturbed, known) if report and scope != "instance" else (known, known)
    testing = testing if report else []
    truth_MI = np.full((len(field.candidates), perturbed.size), np.nan)
    signed = np.array([c.signed for c in field.candidates])
    for i in perturbed.track(choosing, "choosing"):
        # NOTE[DIFF] the authors take the probability, which hardly moves where a model is sure, so that what speaks
        # against the class looks like nothing and methods that name it lose; value="probability" is theirs.
        drops = perturbed.game(i).drops(value)
        for kind in (True, False):
            if (signed == kind).any():
                truth_MI[signed == kind, i] = ranked(field.scores[i][signed == kind], drops, kind)
    groups = _groups(perturbed, choosing, scope)
    choices = tuple(
        _choice(field, truth_MI[:, members].mean(1), group, cost_class, len(members))
        for group, members in groups.items()
        for cost_class in (ANY, *CLASSES)
        if any(cost_class in (ANY, c.cost_class) for c in field.candidates)
    )
    mean_M = truth_MI[:, choosing].mean(1)
    leaders = np.argsort(-mean_M, kind="stable")[:LEADERS]
    grid, reading = _grid(field.candidates, mean_M)
    group_of = {i: _group(perturbed, i, scope) for i in testing}
    warnings = _warnings(groups, group_of, scope, len(choosing))
    chosen = {(c.group, c.cost_class): c for c in choices}
    outcomes = outcomes_of(perturbed, field, chosen, group_of, _best_of_all(field, mean_M)) if testing else ()
    warnings = (*perturbed.doubts(), *warnings)  # the variants have been run by now
    return Recommendation(
        scope=scope,
        choices=choices,
        outcomes=outcomes,
        leaders=tuple((field.candidates[m].name, float(mean_M[m])) for m in leaders),
        grid=grid,
        grid_reading=reading,
        candidates=len(field.candidates),
        excluded=field.excluded,
        replacement=str(perturbed.replacement),
        chosen_on=len(choosing),
        reported_on=len(testing),
        variants=perturbed.forwards,
        seed=perturbed.seed,
        warnings=warnings,
        model=type(perturbed.explainer.model).__name__,
        options={"value": value},
    )


def _halves(perturbed: Perturbed, known: list[int]) -> tuple[list[int], list[int]]:
    """Those that choose and those that test. All detections of an image are on one side."""
    inputs = list(dict.fromkeys(perturbed.of[i] for i in known))
    order = np.random.default_rng(perturbed.seed).permutation(inputs).tolist()
    first = set(order[: (len(order) + 1) // 2])
    return [i for i in known if perturbed.of[i] in first], [i for i in known if perturbed.of[i] not in first]


def _group(perturbed: Perturbed, number: int, scope: str) -> str:
    if scope == "dataset":
        return "all inputs"
    return perturbed.label(number) if scope == "label" else f"input {number}"


def _groups(perturbed: Perturbed, choosing: list[int], scope: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i in choosing:
        found.setdefault(_group(perturbed, i, scope), []).append(i)
    return found


def _best_of_all(field: Field, mean_M: Array) -> dict[str, int]:
    """Per class of cost the best over all inputs, for those whose own group had none to choose by."""
    found = {}
    for cost_class in (ANY, *CLASSES):
        stands = [m for m, c in enumerate(field.candidates) if cost_class in (ANY, c.cost_class)]
        if stands:
            found[cost_class] = stands[int(np.argmax(mean_M[stands]))]
    return found


def _choice(field: Field, mean_M: Array, group: str, cost_class: str, inputs: int) -> Choice:
    best = _best_of_all(field, mean_M)[cost_class]
    chosen = field.candidates[best]
    return Choice(group, cost_class, chosen.name, chosen.method, chosen.options, float(mean_M[best]), inputs)


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
    found = []
    if scope == "instance" and group_of:
        found.append(
            "chosen and tested on the same inputs, by different variants of them: RFT takes single parts away, AOPC "
            "many. For a test on other inputs use scope='dataset' or 'label'."
        )
    elif choosing < 20:
        found.append(f"{choosing} inputs chose: with so few, many candidates are equally good by chance.")
    without = sorted(set(group_of.values()) - set(groups))
    if without:
        found.append(f"no input chose for {', '.join(without)}: the choice of all inputs was tested there.")
    return tuple(found)
