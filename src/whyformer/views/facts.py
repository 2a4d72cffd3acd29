"""The header of every picture: what was explained, how, at what cost, and what to doubt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whyformer.types import Cost, Explanation, Target
from whyformer.views.image import frames_of, gradient_space
from whyformer.views.scales import ANSWERED, FIRST_TOKEN, first_token, position_read
from whyformer.views.view import Fact

TOLERATED = 0.05  # share of an error that leaves nothing to doubt
RELATIVE = "_relative"
STAND_INS = ("baseline", "replace")
POWERS = 7  # scores of ten million and more are told in powers of ten


def facts(explanation: Explanation) -> tuple[Fact, ...]:
    """All there is to know about one explanation."""
    return (*facts_about_input(explanation), *facts_about_method(explanation))


def facts_about_input(explanation: Explanation) -> tuple[Fact, ...]:
    """What holds for every method that explains the same input and target."""
    said = is_answer(explanation)
    entries = [
        Fact("answer", explanation.target.label) if said else Fact("prediction", predicted(explanation.prediction))
    ]
    if not said and explanation.scalar == "log_probability" and not explanation.prediction.label:
        entries = []  # an answer that was given: what the model would say itself was not asked
    entries.append(Fact("explained", explained(explanation)))
    entries += [Fact("detected", gradient_space(frame)) for frame in frames_of(explanation)]
    if explanation.model:
        entries.append(Fact("model", explanation.model))
    return tuple(entries)


def predicted(prediction: Target) -> str:
    """positive (96.9 %), next negative (3.1 %)"""
    if prediction.probability is None:
        return str(prediction)
    first = f"{prediction} ({percent(prediction.probability)})"
    return first + "".join(f", next {choice} ({percent(choice.probability)})" for choice in (prediction.next or ())[:1])


def facts_about_method(explanation: Explanation) -> tuple[Fact, ...]:
    entries = [Fact("method", explanation.method)]
    settings = options(explanation)
    if settings:
        entries.append(Fact("options", settings))
    if explanation.readout and not is_answer(explanation):
        entries.append(Fact("read from", read_from(explanation)))
    if explanation.base is not None:
        entries.append(Fact("background", f"{number(explanation.base)} (the scores add up from there)"))
    if explanation.errors is not None:
        largest = float(explanation.errors.max(initial=0.0))
        entries.append(Fact("standard errors", f"up to {number(largest)}; limits (±, lines) are 95 %"))
    if explanation.interactions:
        together = [f"'{one}' × '{other}' {number(value)}" for one, other, value in explanation.interactions]
        entries.append(Fact("interactions", ", ".join(together)))
    small = [f"{name} {value}" for name, value, large in _checked(explanation) if not large]
    if small:
        entries.append(Fact("checked", ", ".join(small)))
    entries.append(Fact("cost", cost(explanation)))
    return tuple(entries)


def is_answer(explanation: Explanation) -> bool:
    """What is explained is not one token or class but an answer, as a whole."""
    return explanation.scalar == ANSWERED


def explained(explanation: Explanation) -> str:
    """logit of 'positive' = 3.431"""
    target = explanation.target
    if is_answer(explanation):
        return f"log-probability of this answer = {number(explanation.value)}"
    name = f"'{target.label or target.index}'"
    if target.versus is not None:
        name += f" rather than '{target.versus_label or target.versus}'"
    scalar = explanation.scalar.replace("_", "-")
    text = f"{scalar} of {name} = {number(explanation.value)}"
    if target.versus is None and target.index != explanation.prediction.index:
        text += " (not the prediction)"
    return text


def read_from(explanation: Explanation) -> str:
    """The output row, with the unit that stands there."""
    at = position_read(explanation)
    return explanation.readout if at is None else f"{explanation.readout}, {explanation.units.labels[at]}"


def options(explanation: Explanation) -> str:
    """name=value of the options that differ from the defaults; of all where that is not known.

    What stands for an absent unit is said in any case: scores are differences to it.
    """
    changed = explanation.changed
    said = {k: v for k, v in explanation.options.items() if v is not None}
    if changed is not None:
        said = {k: v for k, v in explanation.options.items() if k in changed or (k in STAND_INS and k in said)}
    return ", ".join(f"{k}={shown(v)}" for k, v in said.items())


def shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def cost(explanation: Explanation) -> str:
    return cost_of(explanation.cost)


def cost_of(spent: Cost) -> str:
    """1 forward + 1 backward, 12 ms"""
    parts = [
        f"{count:g} {name}{'' if count == 1 else 's'}"
        for count, name in ((spent.forwards, "forward"), (spent.backwards, "backward"))
        if count
    ]
    return f"{' + '.join(parts) or 'no pass'}, {duration(spent.seconds)}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "< 1 ms" if seconds < 0.001 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s"


def doubts(explanation: Explanation) -> tuple[str, ...]:
    """What a reader should know before believing the scores; an error that is small is none of it."""
    return (*explanation.warnings, *(f"{name}: {value}" for name, value, large in _checked(explanation) if large))


def doubts_of_all(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """The same of several that stand on one page: each warning once, and of an error how far it goes."""
    warnings = dict.fromkeys(warning for e in explanations for warning in e.warnings)
    errors: dict[str, list[tuple[float, str]]] = {}
    for explanation in explanations:
        for name, words, large in _checked(explanation):
            if large:
                errors.setdefault(name, []).append((explanation.checks[name.replace(" ", "_")], words))
    ranges = []
    for name, found in errors.items():
        (_, lowest), (_, highest) = min(found), max(found)
        several = f" to {highest}, over {len(found)} of {len(explanations)} tokens" if len(found) > 1 else ""
        ranges.append(f"{name}: {lowest}{several}")
    return (*warnings, *ranges)


def _checked(explanation: Explanation) -> list[tuple[str, str, bool]]:
    """Name, value and size of what a method knows of its own error, with its share where that is known.

    Large is more than TOLERATED of that share, or else of the largest score.
    """
    checks = []
    for name, value in explanation.checks.items():
        if name.endswith(RELATIVE) or (name == FIRST_TOKEN and first_token(explanation) is not None):  # the caption
            continue
        share = explanation.checks.get(name + RELATIVE)
        words = number(value) + ("" if share is None else f" ({percent(share)})")
        largest = float(np.abs(explanation.scores).max(initial=0.0))
        large = value > TOLERATED * largest if share is None else share > TOLERATED
        checks.append((name.replace("_", " "), words, "error" in name and large))
    return checks


def percent(share: float) -> str:
    return "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Four significant digits, 8.1e14 for very large ones; a true minus sign is left to typesetters."""
    return f"{value:.4g}".replace("e+", "e")


def short(value: float) -> str:
    """Two decimals, or one digit and its power of ten: what fits into a cell. Nothing for NaN."""
    if math.isnan(value):
        return ""
    return (
        f"{value:.2f}"
        if 0.01 <= abs(value) < 100 or value == 0
        else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    )


def fixed(score: float, digits: int) -> str:
    """A score with so many decimals; what rounds to zero has no sign. Below zero: in so many powers of ten."""
    if digits < 0:
        return f"{fixed(score / 10.0**-digits, 4)}e{-digits}"
    text = f"{score:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def decimals(scores: list[float]) -> int:
    """Decimals that give the largest score five significant digits, so that a column of scores lines up.

    Where nobody could count the digits (a product of norms through many layers), all are told in the power of ten of
    the largest, which is returned below zero.
    """
    largest = max((abs(s) for s in scores if math.isfinite(s)), default=0.0)
    if largest == 0:
        return 1
    power = math.floor(math.log10(largest))
    return -power if power >= POWERS else min(12, max(0, 4 - power))
