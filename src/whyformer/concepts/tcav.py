"""TCAV: does the output of a model depend on a concept that people have a word for? (Kim et al. 2018)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.borrow import borrowed, refuse_without_gradients
from whyformer.concepts.cav import CAV, CLASSIFIERS, fit_cav
from whyformer.concepts.layer import Tap, layer_name
from whyformer.concepts.pooling import POOLINGS, pooled, pooled_gradient
from whyformer.concepts.result import ConceptScore, TCAVResult
from whyformer.concepts.significance import holm, interval, welch
from whyformer.errors import BadInput, UnknownName, one_of
from whyformer.explainer import BATCH_SIZE, Explainer
from whyformer.head import Head
from whyformer.outputs import require_finite, resolve_targets, scalar_of
from whyformer.progress import tracker
from whyformer.study import study_of
from whyformer.subjects.base import Batch, Subject
from whyformer.types import Target

Array = np.ndarray[Any, Any]

RUNS = 20  # concept vectors per pair of concepts where no random sets say how many
FAIR = 0.6  # held-out accuracy below which a layer is said not to know the concept


def tcav(
    model: Any,
    layer: int | str,
    concepts: Mapping[str, Any],
    random_sets: Sequence[Any],
    class_inputs: Any,
    target: Any,
    *,
    processor: Any = None,
    relative: bool | Sequence[tuple[str, str]] = False,
    pooling: str = "cls",
    classifier: str = "logistic",
    alpha: float = 0.05,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> TCAVResult:
    """How often would more of a concept raise the model's score for a class?

    score = share of class inputs x with ∇h f_target(x) · v > 0, where f is the logit, h the pooled output of a layer
    and v the concept vector: the weights of a linear classifier of the concept's activations against others'.

    layer: number of an attention block (its residual stream), or a dotted module name.
    concepts: name → inputs that show it. random_sets: lists of inputs that show nothing in particular, 20 or more; each
    gives one vector per concept. Each vector learns from examples of its own where the concept has enough of them
    (random sets × their size), else from a new draw among all.
    relative: compare concepts with each other instead, all pairs or those given; ``random_sets`` then serve the test.
    pooling: "cls" (first token), "mean" (real tokens), "flat" (inputs of one length).
    classifier: "logistic", or "sgd" (hinge loss, as in the authors' code).

    Scores are tested against those of random concepts (Welch, Holm-corrected over the concepts). A claim also needs
    vectors that are right for 60 % of the held-out examples, and a mean derivative no smaller than random vectors have.

    Misleads when: the random sets differ from the concept in more than the concept (background, length); the concept
    is no direction in this layer (see ``accuracy``); concepts go together in the data. A score says how often, not how
    much: see ``magnitude``.
    """
    _check(concepts, random_sets, pooling, classifier, alpha, batch_size)
    pairs = _pairs(concepts, relative)
    explainer = Explainer(model, processor)
    track = tracker(progress)
    with borrowed(explainer.model):
        refuse_without_gradients(explainer.model, "tcav")
        reader = _Reader(explainer, layer, class_inputs, pooling, batch_size or BATCH_SIZE)
        gradient_BD, aim = reader.gradients(class_inputs, target)
        known = {name: reader.activations(inputs) for name, inputs in track(list(concepts.items()), "concepts")}
        others = [reader.activations(inputs) for inputs in track(list(random_sets), "random sets")]
    null = _random_vectors(others, classifier, seed)
    fits: dict[tuple[str, str], list[CAV]] = {}
    for name, versus in track(pairs, "concept vectors"):
        # Both ways round come from one fit, so that one score is exactly 1 − the other (but for exact zeros).
        back = fits.get((versus, name))
        fits[name, versus] = [-cav for cav in back] if back else _vectors(known, name, versus, others, classifier, seed)
    size = _random_magnitude(null, gradient_BD)
    rows = _rows(fits, gradient_BD, null, size, alpha)
    return TCAVResult(
        rows=rows,
        random=tuple(score(gradient_BD, cav) for cav in null),
        layer=reader.name,
        target=aim,
        options={"pooling": pooling, "classifier": classifier, "alpha": alpha, "seed": seed},
        inputs=len(gradient_BD),
        warnings=_warnings(rows, known, others, gradient_BD, size, alpha),
        model=type(explainer.model).__name__,
        random_magnitude=size,
    )


def _check(
    concepts: Mapping[str, Any],
    random_sets: Sequence[Any],
    pooling: str,
    classifier: str,
    alpha: float,
    batch_size: int | None,
) -> None:
    one_of("pooling", pooling, POOLINGS)
    one_of("classifier", classifier, CLASSIFIERS)
    if not 0 < alpha < 1:
        raise BadInput(f"alpha={alpha!r}: a level between 0 and 1, e.g. 0.05.")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
    if not isinstance(concepts, Mapping) or not concepts:
        raise BadInput('concepts is a dict of name → inputs with at least one entry, e.g. {"striped": [images]}.')
    if "random" in concepts:
        raise BadInput('"random" is what concepts are compared with: call the concept something else.')
    if isinstance(random_sets, (str, Mapping)) or not isinstance(random_sets, Sequence):
        raise BadInput("random_sets is a list of sets, each a list of inputs.")


def _pairs(concepts: Mapping[str, Any], relative: bool | Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    if relative is False:
        return [(name, "random") for name in concepts]
    pairs = [(a, b) for a in concepts for b in concepts if a != b] if relative is True else list(relative)
    for name in (n for pair in pairs for n in pair):
        if name not in concepts:
            raise UnknownName("concept", name, concepts)
    if not pairs or any(a == b for a, b in pairs):
        raise BadInput("relative concepts are pairs of two different names: give at least two concepts.")
    return pairs


class _Reader:
    """Reads activations and gradients of one layer; used inside ``borrowed``."""

    def __init__(self, explainer: Explainer, layer: int | str, example: Any, pooling: str, step: int) -> None:
        self.explainer, self.model, self.pooling, self.step = explainer, explainer.model, pooling, step
        if isinstance(layer, str):
            self.name = layer_name(self.model, layer, None)
        else:
            subject, batch = next(self._batches(example))
            self.name = layer_name(self.model, layer, study_of(subject, batch)[0])

    def _batches(self, inputs: Any) -> Any:
        """Subject and batch, ``step`` inputs at a time."""
        if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(x, Tensor) for x in inputs):
            inputs = torch.stack(list(inputs))  # a list of images, not a list of arguments
        if isinstance(inputs, (Tensor, Mapping)):
            subject, batch, _ = self.explainer.prepare(inputs)
            for start in range(0, batch.size, self.step):
                yield subject, batch.select(slice(start, start + self.step))
            return
        raw = list(inputs)
        if isinstance(inputs, str) or not raw:
            raise BadInput("each set of inputs is a list with at least one text or image.")
        for start in range(0, len(raw), self.step):
            subject, batch, _ = self.explainer.prepare(raw[start : start + self.step])
            yield subject, batch

    def activations(self, inputs: Any) -> Array:
        """(N, D)"""
        parts = []
        with Tap(self.model, self.name) as tap, torch.no_grad():
            for subject, batch in self._batches(inputs):
                Head(subject, batch).logits(batch)
                parts.append(_double(pooled(tap.take().detach(), batch.keep_BN, self.pooling)))
        return _joined(parts)

    def gradients(self, inputs: Any, target: Any) -> tuple[Array, str]:
        """(N, D) of the target's logit, and the target's name."""
        parts, name = [], ""
        with Tap(self.model, self.name, leaf=True) as tap, torch.enable_grad():
            for subject, batch in self._batches(inputs):
                head = Head(subject, batch)
                logits_BC = head.logits(batch)
                require_finite(logits_BC)
                aims = _aims(head, batch, logits_BC, target)
                name = _name(head, subject, aims[0])
                leaf = tap.take()
                score = scalar_of(logits_BC, aims, "logit").sum()
                gradient = torch.zeros_like(leaf)
                if score.requires_grad:  # a model whose output does not depend on this layer has no gradient at all
                    gradient = torch.autograd.grad(score, leaf, allow_unused=True)[0]
                    gradient = torch.zeros_like(leaf) if gradient is None else gradient
                parts.append(_double(pooled_gradient(gradient, batch.keep_BN, self.pooling)))
        return _joined(parts), name


def _aims(head: Head, batch: Batch, logits_BC: Tensor, target: Any) -> list[Target]:
    if target is None or isinstance(target, list):
        raise BadInput("tcav asks about one class: give target, by name or index.")
    return resolve_targets(target, logits_BC, head.labels(), head.positions, head.token_id)


def _name(head: Head, subject: Subject, target: Target) -> str:
    first = target.label or head.name(target.index) or str(target.index)
    if target.versus is None:
        return first
    return f"{first} rather than {target.versus_label or head.name(target.versus) or target.versus}"


def _double(values: Tensor) -> Array:
    return values.detach().cpu().double().numpy()


def _joined(parts: list[Array]) -> Array:
    if len({p.shape[1] for p in parts}) > 1:
        raise BadInput('pooling="flat" needs inputs of one length: use "cls" or "mean".')
    return np.concatenate(parts)


# Vectors and scores


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
    """Examples of each side that a vector learns from."""
    return min([len(known[name]) for name in names] + [len(other) for other in others])


def _parts(examples_ND: Array, size: int, runs: int, seed: int) -> list[Array]:
    """What each vector may draw from: parts without common examples where there are enough of them, else all."""
    if len(examples_ND) < size * runs:
        return [examples_ND] * runs
    order = np.random.default_rng(seed).permutation(len(examples_ND))
    return [examples_ND[order[size * run : size * (run + 1)]] for run in range(runs)]


def _random_vectors(others: list[Array], classifier: str, seed: int) -> list[CAV]:
    """Each random set as a concept against the next one."""
    if len(others) < 3:
        return []
    pairs = zip(others, [*others[1:], others[0]], strict=True)
    return [fit_cav(a, b, classifier, seed + run) for run, (a, b) in enumerate(pairs)]


def _magnitude(gradient_BD: Array, cav: CAV) -> float:
    """Mean derivative of the logit along the vector."""
    return float((gradient_BD @ cav.direction_D).mean())


def _random_magnitude(null: list[CAV], gradient_BD: Array) -> float:
    """What a random vector does, root mean square: scores count signs, however small the effect, so size counts too."""
    return float(np.sqrt(np.mean([_magnitude(gradient_BD, cav) ** 2 for cav in null]))) if null else float("nan")


def _rows(
    fits: dict[tuple[str, str], list[CAV]], gradient_BD: Array, null: list[CAV], random_magnitude: float, alpha: float
) -> tuple[ConceptScore, ...]:
    scores = [np.array([score(gradient_BD, cav) for cav in cavs]) for cavs in fits.values()]
    there = np.array([score(gradient_BD, cav) for cav in null])
    back = np.array([score(gradient_BD, -cav) for cav in null])
    corrected = holm([welch(s, there, back) for s in scores])
    rows = []
    for ((name, versus), cavs), s, p in zip(fits.items(), scores, corrected, strict=True):
        accuracy = float(np.mean([cav.accuracy for cav in cavs]))
        magnitude = float(np.mean([_magnitude(gradient_BD, cav) for cav in cavs]))
        low, high = interval(s)
        doubtful, small = accuracy < FAIR, abs(magnitude) < random_magnitude
        claimed = bool(p < alpha) and not doubtful and not small
        rows.append(
            ConceptScore(
                name,
                versus,
                tuple(s.tolist()),
                float(s.mean()),
                low,
                high,
                p,
                claimed,
                accuracy,
                magnitude,
                doubtful,
                small,
            )
        )
    return tuple(rows)


def _warnings(
    rows: tuple[ConceptScore, ...],
    known: dict[str, Array],
    others: list[Array],
    gradient_BD: Array,
    random_magnitude: float,
    alpha: float,
) -> tuple[str, ...]:
    found = [
        f"{row.name}: the concept vectors are right for {row.accuracy:.0%} of the held-out examples, little better "
        "than guessing; this layer does not know the concept, and no claim is made."
        for row in rows
        if row.doubtful
    ]
    found += [
        f"{row.name}: signs agree more than by chance (p = {row.p:.2g}), but the logit moves by {row.magnitude:+.2g} "
        f"only, and by ±{random_magnitude:.2g} along random vectors; no claim is made."
        for row in rows
        if row.p < alpha and row.small and not row.doubtful
    ]
    sets = len(others)
    needed = sets * min(map(len, others), default=0)
    few = [name for name, examples in known.items() if len(examples) < needed]
    if few and sets >= 3:
        found.append(
            f"{', '.join(few)}: fewer than {needed} examples ({sets} vectors of {needed // sets}), so vectors share "
            "some, their scores are not independent, and p is too small."
        )
    if sets < 3:
        found.append("fewer than three random sets: nothing can be said about significance.")
    elif sets < 10:
        found.append(f"{sets} random sets make a weak test: 20 or more are usual.")
    if not gradient_BD.any():
        found.append("the target's logit does not depend on this layer as it was pooled: all derivatives are zero.")
    return tuple(found)
