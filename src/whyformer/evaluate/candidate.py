"""Methods as candidates: their explanations of all inputs with the cost, and their evaluation on one input."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from whyformer.capture.lookups import ShiftEmbedding
from whyformer.choices import answers
from whyformer.engines.perturbation.game import Game, cached_file
from whyformer.engines.perturbation.maskings import attributed
from whyformer.engines.perturbation.players import count_of, only_top, without_top
from whyformer.errors import BadInput, WhyformerError, reading
from whyformer.evaluate.games import Games
from whyformer.evidence import NOISE
from whyformer.inputs.modalities import are_tensors
from whyformer.loan.fingerprint import is_library
from whyformer.loan.spread import measured_on_cpu
from whyformer.parameters import Named
from whyformer.registry import AUTO, CLASSES, Metric, get_method, list_methods
from whyformer.results.codec import is_whole, read_piece, write_piece
from whyformer.results.types import Explanation, Units
from whyformer.run import Run
from whyformer.shapes import Array


@dataclass(frozen=True, eq=False)
class Trial:
    """One explanation of one input, and the data for metrics. Parts: the units that can be masked (no specials)."""

    scores_P: Array
    game: Game
    signed: bool = False
    seed: int = 0  # of what metrics draw: the same for all methods, another for every input
    units: Units | None = None
    parts: Array | None = None  # which units the parts are
    explanation: Explanation | None = None  # all that the method returned, special tokens included
    rationale_P: Array | None = None  # what people marked
    region: Array | None = None  # (height, width) where the object is
    again: Callable[[int, float], Array] | None = None  # (draw, radius) → scores of the input with a little noise
    surrogate: Game | None = None  # the same input, asked of a copy that was fine-tuned on masked inputs

    def heat(self) -> Array:
        """(height, width) scores laid over the image, interpolated; not below zero."""
        from whyformer.files import resized

        units = self.units
        assert units is not None and units.grid is not None
        scores = np.asarray(self.scores_P, dtype=float)
        if self.parts is not None:  # patches among tokens of a text, and those that are held, which have no score
            scores_U = np.zeros(len(units))
            scores_U[self.parts] = scores
            streams = {"image"} if len(set(units.stream)) > 1 else set(units.stream)
            patches = [not special and s in streams for special, s in zip(units.special, units.stream, strict=True)]
            scores = scores_U[patches]
        heat: Array = resized(scores.reshape(units.grid), units.image_size)
        return np.clip(heat, 0, None)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with its options. Once evaluated, its explanation of every input, or the reason why it has none."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    signed: bool = False
    cost_class: str = CLASSES[0]
    explanations: tuple[Explanation, ...] = ()
    forwards: float = float("nan")
    backwards: float = float("nan")
    seconds: float = float("nan")  # per input
    peak_bytes: int | None = None  # of the call that explained all inputs
    failure: str = ""

    @property
    def name(self) -> str:
        """For example ``raw_attention(layers=mean)``."""
        inside = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.method}({inside})" if inside else self.method


def wanted(
    methods: str | Named | Mapping[str, Any] | Sequence[str | Named | Mapping[str, Any]] | None, kind: str = ""
) -> list[Candidate]:
    """Return the candidates that ``method=`` names: names, or {"method": name, option: value}; None: all but random.

    kind: of the inputs, for which "auto" stands for the method that explains when none is named.
    """
    if methods is None:
        return [Candidate(name) for name in list_methods() if name != "random"]
    if isinstance(methods, (str, Named, Mapping)):
        methods = [methods]
    candidates = []
    for one in methods:
        options = {k: v for k, v in one.items() if k != "method"} if isinstance(one, Mapping) else {}
        options = {k: v.name if isinstance(v, Named) else v for k, v in options.items()}  # a learned guide
        name = one.get("method") if isinstance(one, Mapping) else one
        if name is None:
            raise BadInput(f"{one!r} has no method: write {{'method': 'raw_attention', 'layers': 'mean'}}.")
        if name == AUTO:
            name, chosen = answers(kind, 1, options.pop("passes", None))[0]
            options = chosen | options
        method = get_method(name)
        method.checked(options)
        candidates.append(Candidate(method.name, options))
    if len({e.name for e in candidates}) != len(candidates):
        raise BadInput(f"a method is named twice: {', '.join(e.name for e in candidates)}.")
    return candidates


def evaluated(candidate: Candidate, games: Games, scalar: str, whole: int = 0) -> Candidate:
    """Return the candidate with its explanations of all inputs, or with a failure. whole: how many keep their maps."""
    settings: dict[str, Any] = {"method": candidate.method, "scalar": scalar, "seed": games.seed}
    settings |= games.asked | games.options_of(candidate.method, candidate.options)
    path = None
    if games.folder is not None:
        formula = get_method(candidate.method).run  # of a method of the user's own, the code may change
        code = None if is_library(formula.__module__) else formula
        contents = {"question": games.question, "how": settings, "whole": whole, "code": code, "targets": games.targets}
        path = cached_file(games.folder, "scores.json", **contents, inputs=games.batch.contents())
    if path is not None and is_whole(path):
        return dataclasses.replace(read_piece(Candidate, path), options=candidate.options)
    settings |= {"target": games.wanted_targets, "batch_size": games.session.asked_size, "progress": False}
    try:
        with measured_on_cpu():
            explanations = games.explainer.explain(games.inputs, **settings)
    except WhyformerError as reason:
        return dataclasses.replace(candidate, failure=str(reason))
    except Exception as error:  # one broken method must not lose the others
        return dataclasses.replace(candidate, failure=f"failed: {type(error).__name__}: {error}")
    # All maps would take too much memory.
    small = {"matrix": None, "layers": None, "detail": None}
    explained = [e if i < whole else e.replace(**small) for i, e in enumerate(explanations)]
    if games.runs[0].attended is not None:
        explained = [
            e.replace(scores=games.over_units(i, e.units, e.scores), units=games.units[i], errors=None, **small)
            for i, e in enumerate(explained)
        ]
    done = dataclasses.replace(
        candidate,
        explanations=tuple(explained),
        signed=explanations[0].signed,
        forwards=float(np.mean([e.cost.forwards for e in explanations])),
        backwards=float(np.mean([e.cost.backwards for e in explanations])),
        seconds=float(np.mean([e.cost.seconds for e in explanations])),
        peak_bytes=max(e.cost.peak_bytes for e in explanations) or None,  # 0: the system does not tell
    )
    if path is not None:
        write_piece(dataclasses.replace(done, options={}), path)  # options are in the name of the file
    return done


def other_games(games: Games, candidates: Sequence[Candidate]) -> list[str]:
    """Return a warning for each method whose own hold differs from that of the evaluation."""
    remarks = []
    for candidate in candidates:
        held = games.held_by(candidate.options["hold"]) if "hold" in candidate.options else games.held_U
        if any((a != b).any() for a, b in zip(held, games.held_U, strict=True)):
            remarks.append(f"{candidate.name} holds other features than the evaluation: pass the same hold=… to both.")
    return remarks


def explains_one(candidate: Candidate, games: Games) -> bool:
    """Return whether a method runs on this model, by explaining the shortest input."""
    number = int(np.argmin([len(u) for u in games.units]))
    settings: dict[str, Any] = {"scalar": games.scalar, "seed": games.seed, "progress": False, **games.asked}
    settings["target"] = None if games.wanted_targets is None else [games.targets[number]]
    options = games.options_of(candidate.method, candidate.options)
    try:
        games.explainer.explain(one_input(games.inputs, number), method=candidate.method, **settings, **options)
    except Exception:  # an unexpected failure means that it does not run, either
        return False
    return True


def one_input(inputs: Any, number: int) -> Any:
    """Return one of the inputs, as a list, table or batch of one."""
    return some_inputs(inputs, [number])


def some_inputs(inputs: Any, numbers: Sequence[int]) -> Any:
    """Return some of the inputs, as a list, table or batch."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[list(numbers)]
    if not are_tensors(inputs):
        return [inputs[number] for number in numbers]
    if isinstance(inputs, Mapping):
        return {k: _rows(v, numbers) for k, v in inputs.items()}
    return tuple(_rows(v, numbers) for v in inputs) if isinstance(inputs, (tuple, list)) else _rows(inputs, numbers)


def _rows(value: Any, numbers: Sequence[int]) -> Any:
    return value[list(numbers)] if getattr(value, "ndim", 0) else value


def scores_with_noise(games: Games, candidate: Candidate, scalar: str, number: int, draw: int, radius: float) -> Array:
    """(P,) scores of one input with uniform noise of ± radius × the spread of its numbers; NaN where it has none."""
    modality, batch = games.modality, games.batch.select([number])
    generator = torch.Generator().manual_seed(hash((games.seed, number, draw)) % 2**31)

    def noise(shape: Any, like: Tensor, spread: Tensor) -> Tensor:
        uniform = torch.rand(shape, generator=generator).to(device=like.device, dtype=like.dtype) * 2 - 1
        return uniform * radius * spread

    mode: Any = nullcontext()
    table = modality.read.embedding
    if table is not None:
        length = batch.tensors[modality.main].shape[1]
        noise_ND = noise((length, table.embedding_dim), table.weight, table.weight.std())
        mode = ShiftEmbedding(table, lambda ids: noise_ND[: ids.shape[-1]])  # the same at a position each time
    else:
        floats = {k: v for k, v in batch.tensors.items() if v.is_floating_point() and "mask" not in k}
        if not floats or modality.read.embeds:
            return np.full(len(games.parts[number]), np.nan)
        batch = batch.with_tensors(**{k: v + noise(v.shape, v, v.float().std().to(v.dtype)) for k, v in floats.items()})
    method = get_method(candidate.method)
    whole = games.run_of(number)[0]
    study = (whole.attended or whole).study
    run = Run(
        modality, batch, study, target=games.wanted_targets and [games.targets[number]], scalar=scalar, seed=games.seed
    )
    run = run.for_needs(method.needs)
    with mode:
        attribution = attributed(run, method, method.checked(games.options_of(candidate.method, candidate.options)))
    scores = attribution.scores_BN[0, run.keep_BN[0]].detach().float().cpu().numpy()
    return games.per_part(number, games.over_units(number, run.units[0], scores))


def rationale_of(marked: Any, units: Units, parts: Array) -> Array:
    """Return the (P,) marked features, from one number or boolean per token or word, or from character ranges."""
    with reading("a rationale cannot be read", "Give one number per token or word, or ranges [(start, end), …]."):
        values = list(marked)
        if values and isinstance(values[0], (tuple, list)):
            if units.spans is None:
                raise BadInput("character ranges need a text and a fast tokenizer: give one entry per token instead.")
            where = [units.spans[p] for p in parts]
            return np.array([any(a < end and start < b for start, end in values) for a, b in where], dtype=bool)
        flags = np.asarray(values, dtype=float) > 0.5
    if len(flags) == len(parts):
        return flags
    if len(flags) == len(units):
        return flags[parts]
    words = 0 if units.word is None else max(units.word, default=-1) + 1
    if len(flags) == words:
        assert units.word is not None
        return np.array([units.word[p] >= 0 and bool(flags[units.word[p]]) for p in parts], dtype=bool)
    raise BadInput(
        f"a rationale has {len(flags)} entries, and its input {len(parts)} tokens ({words} words, {len(units)} "
        "with special tokens): give one entry per token or per word, or character ranges [(start, end), …]."
    )


def region_of(marked: Any, units: Units) -> Array:
    """(height, width) of the model's view of the image, from a mask, or from boxes in its pixels or as shares of it."""
    if units.image_size is None:
        raise BadInput("masks and boxes are for images: this input has no patches.")
    from whyformer.files import resized

    height, width = units.image_size
    with reading("a mask cannot be read", "Give an array, height × width, or boxes (left, top, right, bottom)."):
        if isinstance(marked, (list, tuple)) and all(isinstance(b, (list, tuple)) and len(b) == 4 for b in marked):
            region = np.zeros((height, width), dtype=bool)
            for box in np.asarray(marked, dtype=float):
                scale = np.array([width, height, width, height]) if box.max() <= 1 else np.ones(4)
                left, top, right, bottom = np.round(box * scale).astype(int)
                region[top:bottom, left:right] = True
            return region
        mask = np.asarray(marked)
        if mask.ndim != 2:
            raise BadInput(f"a mask has shape {mask.shape}: expected height × width, or a list of boxes.")
        return resized(mask.astype(float), (height, width), "nearest") > 0


RANDOM_SEEDS = 5
STEPS = 20  # of greedy search: more parts than that go several at a time
VARIANTS = 512  # about so many are tried in one search: with very many parts there are fewer steps, but no less than 4


def random_scores(parts: int, number: int, seed: int, draws: int = RANDOM_SEEDS) -> list[Array]:
    """Return random scores: one set per draw, different for every input."""
    return [np.random.default_rng([seed, number, draw]).random(parts) for draw in range(draws)]


def greedy(game: Game, search: str) -> Array:
    """(P,) scores of an order: what lowers the prediction most goes first ("remove"), or raises it most ("keep")."""
    # Each step runs every part that is left, P·(steps + 1)/2 variants in all. Another order may be better.
    parts = game.parts
    present = np.full(parts, search == "remove")
    scores = np.zeros(parts)
    steps = min(parts, STEPS, max(4, 2 * VARIANTS // parts - 1))
    for step in range(steps):
        left = np.flatnonzero(present if search == "remove" else ~present)
        variants = np.repeat(present[None], len(left), axis=0)
        variants[np.arange(len(left)), left] = search != "remove"
        values = game.values(variants)
        best = left[np.argsort(values if search == "remove" else -values, kind="stable")]
        taken = best[: count_of((step + 1) / steps, parts) - (parts - len(left))]
        scores[taken] = len(left) - np.arange(len(taken))
        present[taken] = search != "remove"
    return scores


Judged = list[tuple[Metric, dict[str, Any]]]  # metrics with their options
Values = dict[str, dict[str, Array]]  # metric → method → one value per input
Curves = dict[str, dict[str, list[Array]]]  # kind → method → one curve per input

FLOOR, CEILING = "random", "greedy"


@dataclass(frozen=True)
class Annotations:
    """Further data for metrics: human annotations per input, and the games of a surrogate model."""

    rationales: Sequence[Any] | None = None
    masks: Sequence[Any] | None = None
    surrogate: Games | None = None  # the same inputs, for a copy of the model that was fine-tuned on masked ones


class OneInput:
    """One input on which all methods are evaluated."""

    def __init__(self, games: Games, number: int, marks: Annotations, scalar: str) -> None:
        self.games, self.number, self.scalar = games, number, scalar
        # Other draws for every input, the same for all methods: sets that all rows of a table had in common would be
        # an error that more rows do not average out, and that limits over rows do not show.
        self.seed = int(np.random.SeedSequence([games.seed, number]).generate_state(1)[0])
        self.units, self.parts = games.units[number], games.parts[number]
        self.game: Any = games.game(number) if games.replacement is not None else None
        self.surrogate = None if marks.surrogate is None else marks.surrogate.game(number)
        self._searched: dict[str, Trial] = {}
        self._common: dict[str, Any] = {"units": self.units, "parts": self.parts, "seed": self.seed}
        self._common["surrogate"] = self.surrogate
        if marks.rationales is not None:
            self._common["rationale_P"] = rationale_of(marks.rationales[number], self.units, self.parts)
        if marks.masks is not None:
            self._common["region"] = region_of(marks.masks[number], self.units)

    def searched(self, kind: str) -> Trial:
        """Return the ceiling of a metric: a greedy search, or leave-one-out where that is the best by construction."""
        if kind not in self._searched:
            by_drops = kind == "leave_one_out"
            self._searched[kind] = self.trial(self.game.drops() if by_drops else greedy(self.game, kind), by_drops)
        return self._searched[kind]

    def trials_of(self, candidates: list[Candidate]) -> dict[str, Trial]:
        explained = [(candidate, candidate.explanations[self.number]) for candidate in candidates]
        return {c.name: self.trial(e.scores[self.parts], e.signed, c) for c, e in explained}

    def trial(self, scores_P: Array, signed: bool, candidate: Candidate | None = None) -> Trial:
        facts: dict[str, Any] = {}
        if candidate is not None:
            noisy = partial(scores_with_noise, self.games, candidate, self.scalar, self.number)
            facts = {"explanation": candidate.explanations[self.number], "again": noisy}
        return Trial(np.asarray(scores_P, dtype=float), self.game, signed, **self._common, **facts)


def judge(
    one: OneInput, trials: Mapping[str, Trial], judged: Judged, values: Values, curves: Curves | None = None
) -> None:
    """Write each metric of each trial of one input into ``values``. curves: None leaves out curves and the ceiling."""
    number = one.number
    floor = [one.trial(scores, False) for scores in random_scores(len(one.parts), number, one.games.seed)]
    _ask_together(one, [*trials.values(), *floor], judged)
    for metric, options in judged:
        by_method = values[metric.name]
        for name, trial in trials.items():
            by_method[name][number] = metric.run(trial, **options)
        by_method[FLOOR][number] = mean_of([metric.run(trial, **options) for trial in floor])
        if metric.ceiling is not None and curves is not None:
            by_method[CEILING][number] = metric.run(one.searched(metric.ceiling), **options)
    if curves is not None:
        _add_curves(one, trials, floor, judged, curves)


def mean_ranks(metrics: Judged, values: Values, names: Sequence[str]) -> Array:
    """(inputs, methods) rank of each method on each input, 1 = best, averaged over the metrics."""
    ranks = []
    for metric, _ in metrics:
        values_IM = np.round(np.stack([values[metric.name][name] for name in names], 1) / NOISE)
        ranks.append(rankdata(-values_IM if metric.higher_is_better else values_IM, axis=1, nan_policy="omit"))
    with warnings.catch_warnings():  # an input of special tokens alone has no rank
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(np.stack(ranks), 0)


def run_variants(games: Games, candidate: Candidate, judged: Judged) -> None:
    """Run the variants that metrics need of one candidate, so that ``judge`` finds them cached."""
    for number in range(games.size):
        if len(games.parts[number]) and not candidate.failure:
            one = OneInput(games, number, Annotations(), games.scalar)
            _ask_together(one, list(one.trials_of([candidate]).values()), judged)


def _ask_together(one: OneInput, trials: list[Trial], judged: Judged) -> None:
    """Run all variants that any metric needs of any method, in full batches."""
    hard: list[Array] = []
    on_surrogate: list[Array] = []
    for metric, options in judged:
        if metric.masks is None:
            continue
        masks = [metric.masks(trial, **options) for trial in trials]
        if one.surrogate is not None and metric.on_surrogate:
            on_surrogate += masks
        else:
            hard += masks
    if hard:
        one.game.ask(np.concatenate(hard))
    if one.surrogate is not None and on_surrogate:
        one.surrogate.ask(np.concatenate(on_surrogate))


def mean_of(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def _add_curves(one: OneInput, trials: Mapping[str, Trial], floor: list[Trial], judged: Judged, curves: Curves) -> None:
    """Return deletion and insertion curves, if the metrics have run their variants anyway."""
    names = {metric.name for metric, options in judged if not options}
    for kind, make, drawn_by in (("remove", without_top, {"aopc", "deletion"}), ("keep", only_top, {"insertion"})):
        if not names & drawn_by:
            continue
        for value, key in (("probability", kind), ("logit", f"{kind}_logit")):
            by_method = curves.setdefault(key, {})
            for name, trial in (*trials.items(), (CEILING, one.searched(kind))):
                by_method.setdefault(name, []).append(one.game.values(make(trial.scores_P), value))
            flat = [one.game.values(make(trial.scores_P), value) for trial in floor]
            by_method.setdefault(FLOOR, []).append(np.mean(flat, axis=0))
