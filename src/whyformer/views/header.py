"""The header of every picture: what was explained, how, at what cost, with which warnings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from whyformer.brief import cut
from whyformer.choices import PASSES, answers, default_method
from whyformer.errors import shown
from whyformer.registry import get_method, meaning_of
from whyformer.results.types import EXPLAINS_PROBABILITY, Choice, Cost, Explanation, Hop, Target, scalar_name
from whyformer.views.image_marks import box_words, frames_of
from whyformer.views.marks import Scale
from whyformer.views.scales import ANSWERED, FIRST_TOKEN, first_token, position_read
from whyformer.views.view import Fact

# What was explained by what, and the checks of a method, for readers who know neither.

DEFAULT_FOR: Mapping[str, str] = {
    "text": "texts",
    "language": "language models",
    "image": "images",
    "table": "tables",
    "prompt": "models behind an API",
    "function": "functions",
    "detector": "detectors",
    "streams": "models of several inputs",
    "video": "videos",
    "series": "time series",
}

UNVALIDATED = "not validated", "run with --report (in Python: wf.report) to test this explanation"


def method_words(name: str) -> str:
    """Return name and meaning: "occlusion: drop in the output when the feature is masked"."""
    meaning = meaning_of(name)
    return f"{name}: {meaning}" if meaning else name


def choice_words(explanation: Explanation) -> str:
    """Why no other method: the most faithful one known for texts within 128 passes; or what was asked, passes=3"""
    inputs, size = explanation.default_for or "", len(explanation.units)
    kind, first = DEFAULT_FOR.get(inputs, "such models"), answers(inputs, size, explanation.passes)[0][0]
    asked = "" if explanation.passes is None else f"within passes={explanation.passes}"
    if explanation.method not in (first, default_method(inputs)):
        return f"{asked or f'for {kind}'}, since {first} gave no result here"
    if asked:
        return asked
    if explanation.options.get("passes") != PASSES:
        return f"the default for {kind}"
    quick = get_method(answers(inputs, size, 3)[0][0])
    forwards, backwards = quick.cost(size, **quick.defaults)
    few = f"{forwards:.0f} forward{'s' * (forwards > 1)}" + (f" + {backwards:.0f} backward" if backwards else "")
    return f"the most faithful method known for {kind} within {PASSES} passes (passes=3: {quick.name}, {few})"


# What a method knows of its own error: sums that should come out and do not, and what that leaves to read.
_ORDER = "Trust the order of the features, not the size of single scores."
_SUMS: Mapping[str, str] = {
    "conservation error": "the relevance at the model's output",
    **dict.fromkeys(("completeness error", "additivity error"), "the change of the output"),
}
_UNRULED = re.compile(r"^no relevance rule for (.+?)(?: in code that .*)?: ")  # a warning of relevance propagation
_CUT = "tensors that the model computes with gradients off"
_OTHERS: Mapping[str, str] = {
    "standard error": (
        "The scores come from random draws, with a standard error of {value}{of}: features whose scores differ by "
        "less are tied."
    ),
    "split error": (
        "The split of the flow among the features has an error of {value}{of} (split error): features whose scores "
        "differ by less are tied."
    ),
}


def check_words(name: str, value: str, share: str | None, causes: str = "") -> str:
    """A sentence about an error that is large, with its figures and possible causes."""
    if name in _SUMS:
        amount = f"by {value} ({name})" if share is None else f"by {share} of it ({name} {value})"
        return f"The scores should add up to {_SUMS[name]}, and their sum differs {amount}. {causes}{_ORDER}"
    words = _OTHERS.get(name, "The method reports an error of {value}{of} ({name}).")
    return words.format(value=value, name=name, of="" if share is None else f" ({share} of {_whole(name)})")


def possible_causes(explanation: Explanation) -> str:
    """Return what can keep or add relevance on its way through the model; "" for methods of which that is not known."""
    if explanation.method not in {"attn_lrp", "cp_lrp"}:
        return ""
    causes = ["the rule for softmax, which does not conserve relevance"] * (explanation.method == "attn_lrp")
    others = "biases" if explanation.options.get("at") == "tokens" else "biases, position embeddings or added tokens"
    causes.append(f"{others}, if the model has them: they are not features of the input")
    rules = [name for warning in explanation.warnings for name in _UNRULED.findall(warning)]
    causes += [f"functions without a relevance rule ({name.replace(', nor for ', ', ')})" for name in rules]
    causes += [_CUT] * any(_CUT in warning for warning in explanation.warnings)
    return f"Possible causes: {'; '.join(causes)}. "


# Names of checks whose errors are small, before their figures.
_SMALL: Mapping[str, str] = {
    **{name: name for name in _SUMS},
    "standard error": "standard error",
    "prefix reused": "share of the text reused from the cache",
    "outside units": "score outside all features",
}


NUMBER = "output"  # of a model with a single one: a regression, a reward
_NUMBERS = ("", "score")  # what it is called where its configuration has no name for it

TIED = 1e-6  # probabilities that differ by no more are tied: the rest is rounding
TOLERATED = 0.05  # relative error up to which there is no warning
RELATIVE = "_relative"
STAND_INS = ("baseline", "replace")
LONGEST_SPAN, MOST_HOPS = 40, 6  # characters of a span that handed relevance on, and how many are listed
POWERS = 7  # scores of ten million and more are told in powers of ten


def facts(explanation: Explanation) -> tuple[Fact, ...]:
    """Return all facts of one explanation: the answer, then method and cost."""
    return (answer(explanation), *details(explanation))


def answer(explanation: Explanation) -> Fact:
    """Return the first line of every picture: the prediction, its probability, and the next class."""
    whole = is_answer(explanation) and explanation.prediction.probability is None and explanation.target.label
    other = "" if is_predicted(explanation) else f"; explained is {named(explanation.target)}"
    return Fact("answer" if whole else "prediction", answer_words(explanation) + other)


def is_predicted(explanation: Explanation) -> bool:
    """Explained is what the model says, and not a class or token that it does not; a contrast names both."""
    target, said = explanation.target, explanation.prediction
    if target.versus is not None or is_answer(explanation):
        return True
    return target.index == said.index and (not target.label or not said.label or target.label == said.label)


def details(explanation: Explanation) -> tuple[Fact, ...]:
    """Return the facts below a picture: method, cost, input, and whether it was validated."""
    untested = () if doubts(explanation) or explanation.nothing_found else (Fact(*UNVALIDATED),)
    return (*facts_about_method(explanation), *facts_about_input(explanation), *untested)


def answer_words(explanation: Explanation) -> str:
    """positive (probability 96.9 %), next negative (3.1 %); of a model without classes, the number that it gives."""
    said, target = explanation.prediction, explanation.target
    if said.probability is not None:
        return predicted(said)
    if is_answer(explanation) and target.versus is not None:  # two answers: the likelier one first
        values = [explanation.checks.get(f"{explanation.scalar}{side}", math.nan) for side in ("", "_versus")]
        each = zip((target.label, target.versus_label), values, strict=True)
        (first, high), (second, low) = sorted(each, key=lambda answer: -answer[1])
        return f"{first} (probability {_likelihood(high)} as a whole), next {second} ({_likelihood(low)})"
    if is_answer(explanation) and target.label:
        return f"{target.label} (probability {_likelihood(explanation.value)} as a whole)"
    if explanation.scalar in {"cosine", "maxsim"}:
        return f"similarity {number(explanation.value)}"
    same = target.versus is None and (target.index, target.position) == (said.index, said.position)
    if not same or explanation.scalar != "logit":
        return named(said)
    nameless = said.label in ("", "LABEL_0")  # a single output: none, or the name that configurations make up
    return number(explanation.value) if nameless else f"{named(said)} = {number(explanation.value)}"


def _likelihood(log_probability: float) -> str:
    return percent(math.exp(min(0.0, log_probability)))


def named(choice: Target | Choice) -> str:
    """A class by its name, a token in quotation marks where it begins or ends with a space."""
    words = str(choice)
    return repr(words) if words != words.strip() or not words.isprintable() else words


def predicted(prediction: Target) -> str:
    """positive (probability 96.9 %), next negative (3.1 %)"""
    if prediction.probability is None:
        return named(prediction)
    first = f"{named(prediction)} (probability {percent(prediction.probability)})"
    for choice in (prediction.next or ())[:1]:
        tied = math.isclose(choice.probability, prediction.probability, abs_tol=TIED)
        first += f", {'tied with' if tied else 'next'} {named(choice)} ({percent(choice.probability)})"
    return first


def facts_about_input(explanation: Explanation) -> tuple[Fact, ...]:
    """Return the facts that are the same for every method with this input and target."""
    entries = [Fact("explained", explained(explanation))]
    entries += [Fact("detected", box_words(frame)) for frame in frames_of(explanation)]
    if explanation.model:
        entries.append(Fact("model", explanation.model))
    return tuple(entries)


def facts_about_method(explanation: Explanation) -> tuple[Fact, ...]:
    entries = [Fact("method", method_words(explanation.method))]
    if explanation.default_for is not None:
        entries.append(Fact("chosen", choice_words(explanation)))
    settings = options(explanation)
    if settings:
        entries.append(Fact("options", settings))
    entries.append(Fact("cost", cost_of(explanation.cost)))
    if explanation.readout and not is_answer(explanation):
        at = position_read(explanation)
        place = "" if at is None else f", {explanation.units.labels[at]}"
        entries.append(Fact("output position", explanation.readout.removeprefix("position ") + place))
    if explanation.base is not None:
        entries.append(
            Fact("baseline value", f"{number(explanation.base)} (baseline value + scores = explained value)")
        )
    if explanation.hops is not None and len(explanation.hops) > 1:
        entries.append(Fact("handed on", handed_words(explanation.hops)))
    if explanation.errors is not None:
        largest = float(explanation.errors.max(initial=0.0))
        entries.append(Fact("standard errors", f"up to {number(largest)}; ± and lines are 95 % confidence intervals"))
    if explanation.interactions:
        together = [f"'{one}' × '{other}' {number(value)}" for one, other, value in explanation.interactions]
        entries.append(
            Fact("joint effects", f"{', '.join(together)} (mean with none and all of the others; no Shapley index)")
        )
    small = [
        f"{_SMALL.get(name, name)} {number(value)}"
        + ("" if share is None else f" ({percent(share)} of {_whole(name)})")
        for name, value, share, large in _checked(explanation)
        if not large
    ]
    if small:
        entries.append(Fact("checked", ", ".join(small)))
    return tuple(entries)


def handed_words(hops: Sequence[Hop]) -> str:
    """1.2 of 2.1 (sum of all scores, which hops keep), in 1 hop: 1.2 from 'thought'"""
    direct, rounds = hops[0], hops[-1].number
    others = [hop for hop in hops if hop.number == rounds]
    listed = [f"{number(hop.handed)} from '{cut(' '.join(hop.text.split()), LONGEST_SPAN)}'" for hop in others]
    more = f", and from {len(listed) - MOST_HOPS} more" if len(listed) > MOST_HOPS else ""
    return (
        f"to what produced the spans between prompt and answer, in {rounds} hop{'s' * (rounds > 1)}: "
        f"{', '.join(listed[:MOST_HOPS])}{more}; the sum of all scores stays {number(direct.handed)}"
    )


def _whole(check: str) -> str:
    """Return what an error of this name is relative to."""
    return "the expected sum" if check in _SUMS else "the largest |score|"


def is_answer(explanation: Explanation) -> bool:
    """Return whether a whole answer is explained, not one token or class."""
    return explanation.scalar == ANSWERED


def scalar_words(explanation: Explanation) -> str:
    """logit, log-odds, …; what a model without logits returns is called by its name."""
    said = explanation.prediction
    if explanation.scalar == "logit" and any(EXPLAINS_PROBABILITY in warning for warning in explanation.warnings):
        return "probability"
    if explanation.scalar == "logit" and said.probability is None and said.index == 0 and said.label in _NUMBERS:
        return NUMBER
    return scalar_name(explanation.scalar)


def explained(explanation: Explanation) -> str:
    """logit of 'positive' = 3.431"""
    target = explanation.target
    name = f"'{target.label or target.index}'"
    if target.versus is not None:
        name += f" rather than '{target.versus_label or target.versus}'"
    if is_answer(explanation):
        answers = "this answer" if target.versus is None else name
        return f"log-probability of {answers} = {number(explanation.value)}"
    scalar = scalar_words(explanation)
    if scalar == NUMBER:
        return f"{scalar} = {number(explanation.value)}"
    notes = [] if is_predicted(explanation) else ["not the prediction"]
    likely = [_likely(explanation, index) for index in (target.index, target.versus) if index is not None]
    if scalar != "probability" and all(likely):
        notes.insert(0, f"probabilit{'y' if len(likely) == 1 else 'ies'} {' and '.join(likely)}")
    return f"{scalar} of {name} = {number(explanation.value)}" + (f" ({', '.join(notes)})" if notes else "")


def _likely(explanation: Explanation, index: int) -> str:
    """Return the predicted probability of a class in per cent; "" if it is not known."""
    share = likelihood(explanation.prediction, index)
    return "" if share is None else percent(share)


def likelihood(said: Target, index: int) -> float | None:
    """The probability of a class or token, where it is among the likeliest ones that are known."""
    if said.index == index:
        return said.probability
    return next((choice.probability for choice in said.next or () if choice.index == index), None)


def options(explanation: Explanation) -> str:
    """name=value of the options that differ from the defaults, of all where that is not known; and the baseline."""
    changed = explanation.changed
    told = []
    for name, value in explanation.options.items():
        # Scores are differences to the baseline: it is named even where it is the default.
        if (value is not None and (changed is None or name in STAND_INS)) or name in (changed or ()):
            told.append(f"{name}={value if isinstance(value, str) else shown(value)}")
    return ", ".join(told)


def cost_of(spent: Cost) -> str:
    """1 forward + 1 backward, 12 ms"""
    parts = [
        f"{round(count, 2):g} {name}{'' if count == 1 else 's'}"
        for count, name in ((spent.forwards, "forward"), (spent.backwards, "backward"))
        if count
    ]
    return f"{' + '.join(parts) or 'no pass'}, {duration(spent.seconds)}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "< 1 ms" if seconds < 0.001 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s"


def doubts(*explanations: Explanation) -> tuple[str, ...]:
    """Warnings, each once, and errors that are not small; of several explanations how far such an error goes."""
    warnings = dict.fromkeys(warning for e in explanations for warning in e.warnings)
    errors: dict[str, list[tuple[float, float | None, str]]] = {}
    for explanation in explanations:
        for name, value, share, large in _checked(explanation):
            if large:
                causes = possible_causes(explanation) if name == "conservation error" else ""
                errors.setdefault(name, []).append((value, share, causes))
    ranges = []
    for name, sizes in errors.items():
        value, share, causes = max(sizes, key=lambda size: size[0] if size[1] is None else size[1])
        largest = f" This is the largest of {len(explanations)} explanations." if len(sizes) > 1 else ""
        shown = None if share is None else percent(share)
        ranges.append(check_words(name, number(value), shown, causes) + largest)
    return (*warnings, *ranges)


def _checked(explanation: Explanation) -> list[tuple[str, float, float | None, bool]]:
    """Each check of a method: name, value, its share if known, and whether it is an error above TOLERATED."""
    checks = []
    for name, value in explanation.checks.items():
        if name.endswith(RELATIVE) or (name == FIRST_TOKEN and first_token(explanation) is not None):  # below the bars
            continue
        share = explanation.checks.get(name + RELATIVE)
        largest = float(np.abs(explanation.scores).max(initial=0.0))
        large = value > TOLERATED * largest if share is None else share > TOLERATED
        checks.append((name.replace("_", " "), value, share, "error" in name and large))
    return checks


def percent(share: float) -> str:
    """12.3 %, < 0.1 % of what would round to nothing, > -0.1 % where it is below zero."""
    small = share != 0 and abs(share) < 0.001
    return f"{'> -' if share < 0 else '< '}0.1 %" if small else f"{100 * share:.1f} %"


def whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Four significant digits, 8.1e14 for very large ones; a true minus sign is left to typesetters."""
    return f"{value:.4g}".replace("e+", "e")


def short(value: float) -> str:
    """Two decimals, or one digit and its power of ten: what fits into a cell. Nothing for NaN."""
    if math.isnan(value):
        return ""
    if 0.01 <= abs(value) < 100 or value == 0:
        return f"{value:.2f}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def fixed(score: float, digits: int) -> str:
    """A score with so many decimals; what rounds to zero has no sign. Below zero: in so many powers of ten."""
    if digits < 0:
        return f"{fixed(score / 10.0**-digits, 2)}e{-digits}"
    text = f"{score:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def decimals(scores: Sequence[float]) -> int:
    """Decimals that give the largest score three significant digits; of very large ones its power of ten, negative.

    The page's script has the same rule (frontend/src/data.js).
    """
    largest = max((abs(s) for s in scores if math.isfinite(s)), default=0.0)
    if largest == 0:
        return 1
    power = math.floor(math.log10(largest))
    return -power if power >= POWERS else min(12, max(0, 2 - power))


def column(scores: Sequence[float], scale: Scale) -> Callable[[float], str]:
    """Return a formatter for the numbers of one list: shares in per cent, scores with the same number of decimals."""
    if scale.shares:
        return percent
    digits = decimals(scores)
    return lambda score: fixed(score, digits)


def legend_words(scale: Scale, gap: str) -> str:
    low, high = ends(scale)
    return f"{low} … {'0 … ' if scale.signed else ''}{high}{gap}{scale.meaning}"


def ends(scale: Scale) -> tuple[str, str]:
    """Format both ends of a scale like its scores, with more decimals if they would look alike."""
    told = column([scale.low, scale.high], scale)
    if not scale.shares and scale.low != scale.high and told(scale.low) == told(scale.high):
        told = column([scale.high - scale.low], scale)
    texts = ["0" if end == 0 else told(end) for end in (scale.low, scale.high)]
    low, high = (text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text for text in texts)
    return low, high
