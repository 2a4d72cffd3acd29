"""TCAV: sensitivity of a model's output to a concept that is given by examples (Kim et al. 2018)."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor

from whyformer.concepts.reader import POOLINGS, Reader
from whyformer.errors import BadInput, UnknownName, require
from whyformer.evidence import limits_of_repeats
from whyformer.explainer import CoreExplainer
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import borrowed
from whyformer.parameters import BatchSize, Limits, NotEmpty, OneOf, Place, Seed, checked
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.run.session import tracker
from whyformer.shapes import Array
from whyformer.targets import Aims
from whyformer.views.head_views import scores_view
from whyformer.views.view import view_of

CLASSIFIERS = ("logistic", "sgd")
Examples = Sequence[Any] | Mapping[str, Any] | Tensor  # inputs, as for explain
FEWEST = 4  # of each side: two to learn from, and some held out


@dataclass(frozen=True, eq=False)
class CAV:
    """A concept vector of length 1, which points towards the concept."""

    direction_D: Array
    accuracy: float  # on the held-out third

    def __neg__(self) -> CAV:
        """The vector in the opposite direction."""
        return CAV(-self.direction_D, self.accuracy)


def fit_cav(
    concept_ND: Array, other_ND: Array, classifier: str = "logistic", seed: int = 0, size: int | None = None
) -> CAV:
    """Learn the direction on two thirds of both sets, cut to the size of the smaller; score it on the rest."""
    size = min(len(concept_ND), len(other_ND), size or len(other_ND))
    if size < FEWEST:
        raise BadInput(f"a concept vector needs at least {FEWEST} examples on each side; there are {size}.")
    held = max(1, size // 3)
    # Stratified: the same number of both sides on either part of the split.
    drawn = (x_ND[np.random.default_rng(seed).permutation(len(x_ND))[:size]] for x_ND in (concept_ND, other_ND))
    parts = [x_ND.astype(np.float64) for x_ND in drawn]
    train_ND = np.concatenate([p[held:] for p in parts])
    test_ND = np.concatenate([p[:held] for p in parts])
    train_y, test_y = (np.repeat([1, 0], n) for n in (size - held, held))
    middle_D = train_ND.mean(0)
    # One number for all features: it turns no direction, and makes the penalty independent of the activations' unit.
    scale = float(np.sqrt(((train_ND - middle_D) ** 2).mean())) or 1.0
    weight_D, bias = _fitted((train_ND - middle_D) / scale, train_y, classifier, seed)
    length = float(np.linalg.norm(weight_D))
    direction_D = weight_D / length if length > 0 else weight_D
    right = (((test_ND - middle_D) / scale @ weight_D + bias) > 0) == test_y
    return CAV(direction_D, float(right.mean()))


def _fitted(x_ND: Array, y_N: Array, classifier: str, seed: int) -> tuple[Array, float]:
    require("sklearn", why="tcav")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    if classifier == "logistic":
        # Newton's method reaches the optimum to the last digits; its Hessian is too large for flattened activations.
        solver = "newton-cholesky" if x_ND.shape[1] <= 1024 else "lbfgs"
        model = LogisticRegression(C=0.1, tol=1e-10, max_iter=2000, solver=solver)
    else:  # as in the authors' code, but seeded
        model = SGDClassifier(loss="hinge", alpha=0.01, max_iter=1000, tol=1e-5, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x_ND, y_N)
    return model.coef_[0], float(model.intercept_[0])


@dataclass(frozen=True)
class ConceptScore:
    """One concept against random inputs, or against another concept."""

    concept: str
    versus: str  # "random", or the other concept
    scores: tuple[float, ...]  # one per concept vector: share of inputs whose logit rises along it
    mean: float
    low: float  # 95 % limits of the mean
    high: float
    p: float  # Welch against random-vs-random, Holm-corrected over all concepts; NaN without random sets
    significant: bool  # p is below alpha, the vectors share no examples (p would be too small), the row is not doubtful
    accuracy: float  # mean over concept vectors, on held-out examples
    magnitude: float  # mean derivative of the logit along concept vectors of length 1
    doubtful: bool = False  # the layer does not know this concept: no claim is made
    small: bool = False  # a typical random vector moves the logit more

    @property
    def name(self) -> str:
        """The concept, and the concept that it was compared with if that was not random."""
        return self.concept if self.versus == "random" else f"{self.concept} | {self.versus}"


@dataclass(frozen=True)
class TCAVResult(Result):
    """One row per concept, and the scores of random concepts that they are compared with."""

    what: ClassVar[str] = "tcav"

    rows: tuple[ConceptScore, ...]
    random: tuple[float, ...]  # random-vs-random scores
    layer: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""
    random_magnitude: float = math.nan  # root mean square over random vectors

    def __getitem__(self, name: str) -> ConceptScore:
        for row in self.rows:
            if name in (row.name, row.name.replace(" ", "")):
                return row
        raise UnknownName("concept", name, [row.name for row in self.rows])

    @property
    def title(self) -> str:
        """Model, class, layer and number of inputs, on one line."""
        return f"{self.model}: concepts for {self.target!r} at {self.layer}, {self.inputs} inputs"

    def to_frame(self) -> DataFrame:
        """Return one row per concept."""
        return dataframe([dataclasses.asdict(row) for row in self.rows])


view_of.register(TCAVResult, scores_view)


def welch(scores: Array, others: Array, back: Array | None = None) -> float:
    """Two-sided p of equal means; variances may differ. Without any spread: 1 for equal means, else 0.

    back: the others once more, read the other way round. Mean and spread are then those of both, while they count
    once: what is random in one direction is so in the other, and a concept and its opposite get the same p.
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(scores), len(others)) < 2:
        return float("nan")
    both = others if back is None else np.concatenate([others, back])
    if np.ptp(scores) == 0 and np.ptp(both) == 0:
        return 1.0 if scores[0] == both[0] else 0.0
    # From mean and spread: a set of equal scores is common here, and no reason for a warning.
    facts = (scores.mean(), scores.std(ddof=1), len(scores), both.mean(), both.std(ddof=1), len(others))
    return float(ttest_ind_from_stats(*facts, equal_var=False).pvalue)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down correction; NaN stays NaN and does not count."""
    corrected = [float("nan")] * len(p_values)
    known = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        corrected[i] = highest
    return corrected


RUNS = 20  # concept vectors per pair of concepts where no random sets say how many
SMALLEST = 6  # examples of a side that each of these vectors has for its own, where there are enough
FAIR = 0.6  # held-out accuracy below which a layer is said not to know the concept


@checked
def tcav(
    model: Any,
    *,
    layer: Place | str,
    concepts: Annotated[Mapping[str, Examples], NotEmpty()],
    random_sets: Sequence[Examples] = (),
    class_inputs: Any,
    target: Aims,
    processor: Any = None,
    tokenizer: Any = None,
    relative: bool | Sequence[tuple[str, str]] = False,
    pooling: Annotated[str, OneOf(*POOLINGS)] = "cls",
    classifier: Annotated[str, OneOf(*CLASSIFIERS)] = "logistic",
    alpha: Annotated[float, Limits(0, 1, open_low=True, open_high=True)] = 0.05,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> TCAVResult:
    """Measure how often a concept raises the model's output for a class (TCAV).

    score = share of class inputs x with ∇h f_target(x) · v > 0, where f is the logit, h the pooled output of a layer
    and v the concept vector: the weights of a linear classifier of the concept's activations against others'.

    layer: number of an attention block (its residual stream), or a dotted module name.
    concepts: name → example inputs. random_sets: lists of random inputs, 20 or more; each gives one vector per concept,
    from separate examples if the concept has enough of them.
    relative: compare concepts with each other instead, all pairs or those given. ``random_sets`` are then used for the
    test only; without them, concepts of 120 examples or more are tested against shuffled ones.
    pooling: "cls" (first token), "mean" (real tokens), "flat" (inputs of one length).
    classifier: "logistic", or "sgd" (hinge loss, as in the authors' code).

    Scores are tested by Welch's test, Holm-corrected over the concepts. A score counts as significant only if the
    vectors also classify 60 % of the held-out examples correctly.

    Misleads when: the random sets differ from the concept examples in other ways, too (background, length); the concept
    is not linear in this layer (see ``accuracy``); or concepts are correlated in the data. A score counts how often the
    output rises, not by how much: see ``magnitude``.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> likes = [f"I like the {thing}" for thing in ("movie", "book", "film", "song", "story", "play")]
    >>> others = [[f"The {thing} number {i}" for thing in ("movie", "book", "film", "song")] for i in range(4)]
    >>> examples = {"concepts": {"liking": likes}, "random_sets": others, "class_inputs": likes}
    >>> wf.tcav(model, layer=1, target="positive", tokenizer=tokenizer, **examples).show()
    """
    require("sklearn", why="tcav")
    if not len(random_sets) and relative is False:
        raise BadInput(
            "concepts are compared with random_sets: give 20 or more, or compare two concepts with each other with "
            "relative=True."
        )
    pairs = _pairs(concepts, relative)
    explainer = CoreExplainer(model, processor)
    track = tracker(progress)
    with borrowed(explainer.model):
        refuse_without_gradients(explainer.model, "tcav")
        reader = Reader(explainer, layer, class_inputs, pooling, batch_size)
        gradient_BD, aim = reader.gradients(class_inputs, target)
        known = {name: reader.activations(inputs) for name, inputs in track(list(concepts.items()), "concepts")}
        others = [reader.activations(inputs) for inputs in track(list(random_sets), "random sets")]
    null = _null_vectors(known, others, classifier, seed)
    fits: dict[tuple[str, str], list[CAV]] = {}
    for name, versus in track(pairs, "concept vectors"):
        # Both ways round come from one fit, so that one score is exactly 1 − the other (but for exact zeros).
        back = fits.get((versus, name))
        fits[name, versus] = [-cav for cav in back] if back else _vectors(known, name, versus, others, classifier, seed)
    size = _random_magnitude(null, gradient_BD)
    rows = _rows(fits, gradient_BD, null, size, alpha, {pair for pair in fits if _share(known, pair, others)})
    tested = "random sets" if others else "shuffled concepts"
    return TCAVResult(
        rows=rows,
        random=tuple(score(gradient_BD, cav) for cav in null),
        layer=reader.name,
        target=aim,
        options={"pooling": pooling, "classifier": classifier, "alpha": alpha, "seed": seed, "tested_against": tested},
        inputs=len(gradient_BD),
        warnings=_warnings(rows, known, others, gradient_BD, size),
        model=type(explainer.model).__name__,
        random_magnitude=size,
    )


def _pairs(concepts: Mapping[str, Any], relative: bool | Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each concept with the concept (or "random") that it is compared with."""
    if "random" in concepts:
        raise BadInput('the name "random" is reserved: rename the concept.')
    if relative is False:
        return [(name, "random") for name in concepts]
    pairs = [(a, b) for a in concepts for b in concepts if a != b] if relative is True else list(relative)
    for name in (n for pair in pairs for n in pair):
        if name not in concepts:
            raise UnknownName("concept", name, concepts)
    if not pairs or any(a == b for a, b in pairs):
        raise BadInput("relative concepts are pairs of different names: give at least two concepts.")
    return pairs


def score(gradient_BD: Array, cav: CAV) -> float:
    """Share of inputs whose score rises along the concept vector."""
    return float((gradient_BD @ cav.direction_D > 0).mean())


def _vectors(
    known: dict[str, Array], name: str, versus: str, others: list[Array], classifier: str, seed: int
) -> list[CAV]:
    runs = len(others) or RUNS
    if versus == "random":
        parts = _parts(known[name], _size(known, (name,), others), runs, seed)
        pairs = list(zip(parts, others, strict=True))
        return [fit_cav(a, b, classifier, seed + run) for run, (a, b) in enumerate(pairs)]
    first, second = sorted((name, versus))  # the way round that was asked for first must not matter
    size = _size(known, (first, second), others)
    pairs = list(zip(*(_parts(known[n], size, runs, seed) for n in (first, second)), strict=True))
    fits = [fit_cav(a, b, classifier, seed + run, size) for run, (a, b) in enumerate(pairs)]
    return fits if name == first else [-cav for cav in fits]


def _size(known: dict[str, Array], names: tuple[str, ...], others: list[Array]) -> int:
    """Return how many examples a vector learns from per side; without random sets, separate ones if they suffice."""
    most = min([len(known[name]) for name in names] + [len(other) for other in others])
    return most // RUNS if not others and most >= RUNS * SMALLEST else most


def _parts(examples_ND: Array, size: int, runs: int, seed: int) -> list[Array]:
    """Return the examples of each vector: separate parts if there are enough of them, else all for each."""
    if len(examples_ND) < size * runs:
        return [examples_ND] * runs
    order = np.random.default_rng(seed).permutation(len(examples_ND))
    return [examples_ND[order[size * run : size * (run + 1)]] for run in range(runs)]


def _share(known: dict[str, Array], pair: tuple[str, str], others: list[Array]) -> bool:
    """Return whether the vectors of a pair share examples, because there are too few; they are then not independent."""
    names = tuple(name for name in pair if name != "random")
    needed = _size(known, names, others) * (len(others) or RUNS)
    return any(len(known[name]) < needed for name in names)


def _null_vectors(known: dict[str, Array], others: list[Array], classifier: str, seed: int) -> list[CAV]:
    """Return vectors of each random set against the next; without random sets, of shuffled examples of all concepts."""
    fewest = min(map(len, known.values()))
    if len(others) < 3 if others else fewest < RUNS * SMALLEST:  # vectors that share examples are too much alike
        return []
    firsts, seconds = others, [*others[1:], *others[:1]]
    if not others:
        rng = np.random.default_rng(seed)
        drawn = [x_ND[rng.permutation(len(x_ND))[:fewest]] for x_ND in known.values()]
        sides = np.array_split(rng.permutation(np.concatenate(drawn))[: 2 * RUNS * (fewest // RUNS)], 2 * RUNS)
        firsts, seconds = sides[::2], sides[1::2]
    pairs = zip(firsts, seconds, strict=True)
    return [fit_cav(a, b, classifier, seed + run) for run, (a, b) in enumerate(pairs)]


def _magnitude(gradient_BD: Array, cav: CAV) -> float:
    """Mean derivative of the logit along the vector."""
    return float((gradient_BD @ cav.direction_D).mean())


def _random_magnitude(null: list[CAV], gradient_BD: Array) -> float:
    """Return the root mean square derivative of the logit along random vectors."""
    return float(np.sqrt(np.mean([_magnitude(gradient_BD, cav) ** 2 for cav in null]))) if null else float("nan")


def _rows(
    fits: dict[tuple[str, str], list[CAV]],
    gradient_BD: Array,
    null: list[CAV],
    random_magnitude: float,
    alpha: float,
    sharing: set[tuple[str, str]],
) -> tuple[ConceptScore, ...]:
    scores = [np.array([score(gradient_BD, cav) for cav in cavs]) for cavs in fits.values()]
    there = np.array([score(gradient_BD, cav) for cav in null])
    back = np.array([score(gradient_BD, -cav) for cav in null])
    corrected = holm([welch(s, there, back) for s in scores])
    rows = []
    for ((name, versus), cavs), s, p in zip(fits.items(), scores, corrected, strict=True):
        accuracy = float(np.mean([cav.accuracy for cav in cavs]))
        magnitude = float(np.mean([_magnitude(gradient_BD, cav) for cav in cavs]))
        doubtful, small = accuracy < FAIR, abs(magnitude) < random_magnitude
        claimed = bool(p < alpha) and not doubtful and (name, versus) not in sharing
        low, high = np.clip(limits_of_repeats(s), 0, 1)
        numbers = (float(s.mean()), float(low), float(high), p, claimed, accuracy, magnitude, doubtful, small)
        rows.append(ConceptScore(name, versus, tuple(s.tolist()), *numbers))
    return tuple(rows)


def _warnings(
    rows: tuple[ConceptScore, ...],
    known: dict[str, Array],
    others: list[Array],
    gradient_BD: Array,
    random_magnitude: float,
) -> tuple[str, ...]:
    remarks = [
        f"{row.name}: inconclusive. The concept vectors classify {row.accuracy:.0%} of the held-out examples "
        "correctly, little better than chance: this layer does not represent the concept."
        for row in rows
        if row.doubtful
    ]
    remarks += [
        f"{row.name}: significant (p = {row.p:.2g}), but the effect is small: the logit changes by "
        f"{row.magnitude:+.2g} along the concept vector, and by ±{random_magnitude:.2g} along random vectors."
        for row in rows
        if row.significant and row.small
    ]
    sets = len(others)
    needed = sets * min(map(len, others), default=0)
    few = [name for name, examples in known.items() if len(examples) < needed]
    if few and sets >= 3:
        remarks.append(
            f"{', '.join(few)}: inconclusive. There are fewer than {needed} examples ({sets} vectors of "
            f"{needed // sets}), so vectors share examples, scores are not independent, and p is too small. Give more "
            "examples, or fewer or smaller random sets."
        )
    if not sets:
        fewest = min(map(len, known.values()))
        if fewest < RUNS * SMALLEST:
            remarks.append(
                f"significance cannot be tested: {fewest} examples of a concept are too few for {RUNS} separate "
                f"vectors. Give {RUNS * SMALLEST} or more, or random sets."
            )
    elif sets < 3:
        remarks.append("significance cannot be tested: there are fewer than three random sets.")
    elif sets < 10:
        remarks.append(f"the test is weak: {sets} random sets; 20 or more are usual.")
    if not gradient_BD.any():
        remarks.append("the target's logit does not depend on the pooled output of this layer: all gradients are zero.")
    return tuple(remarks)
