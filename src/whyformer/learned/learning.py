"""learn: gather outputs for masked inputs, train the network, and certify it on inputs that it never saw."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from whyformer.choices import ONE_PASS
from whyformer.engines.perturbation.game import COLUMNS
from whyformer.errors import BadInput, NonFinite, NotOffered
from whyformer.evaluate.candidate import some_inputs, wanted
from whyformer.evaluate.compare import chosen_metrics, comparing
from whyformer.evaluate.games import Games, games_of
from whyformer.evidence import interval, spread
from whyformer.explainer import CoreExplainer
from whyformer.inputs.modalities import Source
from whyformer.inputs.units import Segments
from whyformer.learned.learned import (
    UNKNOWN,
    Certificate,
    CertifiedMethod,
    Interval,
    Learned,
    UnitFeatures,
    features_of,
    fingerprint_of,
    head_counts,
    refuse,
)
from whyformer.learned.network import Example, ExampleTable, Network, drawn_masks, known_errors, removal_error, trained
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.digests import versions
from whyformer.options import Evaluation
from whyformer.parameters import BatchSize, Limits, Replacement, Seed, checked
from whyformer.run import Run
from whyformer.run.session import Track, tracker
from whyformer.shapes import Array

FEWEST_INPUTS = 30
CERTIFIED = (10, 50)  # inputs of the certificate: a tenth of all, within these
FEWEST_MASKS, MOST_MASKS = 8, 64  # more inputs with few masks are better than few inputs with many
FEATURES = 3  # passes that the features of an example take: a backward counts two
CHUNK = 64  # inputs that are gathered at a time
MOST_BYTES = 2**31  # of features, all of which are in memory while training
FAR = 1.25  # times the 99th percentile of feature distances: beyond that, an input is unlike those learned from


def _refuse_unusable(explainer: CoreExplainer, source: Source, units: Segments) -> None:
    """Raise for models and inputs that nothing is learned from."""
    refuse(source.modality)
    refuse_without_gradients(explainer.model, "learn")
    if source.single or source.size < FEWEST_INPUTS:
        count = 1 if source.single else source.size
        raise BadInput(f"learn needs at least {FEWEST_INPUTS} inputs (got {count}); some hundreds are better.")
    if not isinstance(units, str):
        raise BadInput("units: name a kind of unit ('token', 'word', 'sentence'); ranges are those of one text.")


@checked
def learn(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    forwards: Annotated[int, Limits(500, 10**9)] = 20_000,
    units: Segments = "token",
    replace: Replacement = None,
    hold: int | None = None,
    linear: bool = False,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    cache: str | Path | None = None,
) -> Learned:
    """Learn to explain one model in one pass, from unlabelled inputs of the kind that will be explained.

    About ``forwards`` masked variants of the inputs are run once, at least 8 of each, and a small network is trained to
    predict Shapley values from the attention, gradients and value vectors of one pass. A tenth of the inputs (10 to 50)
    is held out for the certificate, which compares the result with other methods; its passes come on top. Pass the
    result as ``method=`` to explain, compare, recommend or explain_dataset, or as ``guide=`` to shap. linear: learn
    weights of attention heads only, and show them. units: as for ``explain``; "sentence" for prompts of language
    models. replace: the baseline of masked features, as in ``occlusion``. hold: the number of a unit that is never
    masked, such as -1, the question at the end of every prompt. cache: a folder for what was computed; interrupted
    learning resumes from there.

    Misleads when: inputs explained later are unlike those learned from (explanations then have a warning).

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> words = "good bad great boring funny sad".split()
    >>> texts = [f"The {what} was {how}" for what in ("film", "plot", "cast", "story", "end") for how in words]
    >>> learned = wf.learn(model, texts, tokenizer, forwards=500, linear=True)  # few texts, for a quick look
    >>> learned.save("sentiment.learned")
    >>> wf.explain(model, "I like the movie", tokenizer, method="sentiment.learned").show()
    """
    started = time.perf_counter()
    explainer = CoreExplainer(model, processor, attention_at=attention_at)
    source = explainer.source(inputs)
    _refuse_unusable(explainer, source, units)
    order = np.random.default_rng(seed).permutation(source.size).tolist()
    held = order[: min(max(CERTIFIED[0], source.size // 10), CERTIFIED[1])]
    asked = Evaluation(
        units=units, batch_size=batch_size, seed=seed, cache=cache, replace=replace, hold=hold, progress=progress
    )
    # The mean row of a table must not depend on which rows are gathered together.
    plain = source.modality.stream == "table" and source.modality.read.reference is None
    if plain:
        asked = dataclasses.replace(asked, reference=some_inputs(inputs, order[:512]))
    shown = sys.stderr.isatty() if progress is None else progress
    gathering = Gathering(
        explainer, inputs, dataclasses.replace(asked, progress=False), forwards, seed, tracker(progress), shown
    )
    examples = gathering.all(order[len(held) :])
    validating = max(3, len(examples) // 10)
    split = [[e for each in part for e in each] for part in (examples[:validating], examples[validating:])]
    options: dict[str, Any] = {"heads": gathering.heads, "linear": linear, "seed": seed, "device": gathering.device}
    network = trained(split[1], split[0], **options, track=tracker(progress)).cpu()
    learned = Learned(
        model=type(explainer.model).__name__,
        fingerprint=fingerprint_of(explainer.model),
        kind=source.modality.kind,
        units=str(units),
        replace=replace,
        hold=hold,
        scalar=gathering.scalar,
        heads=gathering.heads,
        linear=linear,
        inputs=gathering.inputs_used,
        forwards=gathering.passes,
        seconds=time.perf_counter() - started,
        seed=seed,
        error=removal_error(network, split[0]),
        errors=known_errors(network, split[0]),
        distance=_limit(network, split[1]),
        weights={name: tensor.numpy() for name, tensor in network.state_dict().items()},
        versions=versions(),
    )
    certificate = certify(explainer, learned.name, some_inputs(inputs, held), asked)
    return dataclasses.replace(learned, certificate=certificate)


def _limit(network: Network, examples: Sequence[Example]) -> float:
    device = next(network.parameters()).device
    distances = np.concatenate([b.distances(network).cpu().numpy() for b in ExampleTable(examples, device).batches()])
    return FAR * float(np.quantile(distances, 0.99))


@dataclass
class Gathering:
    """Run masked variants of inputs, chunk by chunk."""

    explainer: CoreExplainer
    inputs: Any
    asked: Evaluation
    forwards: int
    seed: int
    track: Track
    shown: bool
    passes: int = 0
    inputs_used: int = 0
    heads: tuple[int, ...] = ()
    scalar: str = "logit"
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    draws: int = 1  # forward passes that one masked input takes: rows of a table may have several baselines

    def all(self, rows: list[int]) -> list[list[Example]]:
        """Return training examples per input, of as many inputs as ``forwards`` pay for."""
        with self.explainer.session(some_inputs(self.inputs, rows[:1]), units=self.asked.units) as session:
            _ = session.run([0]).logits  # raises for NaN, which later checks would take for something else
        started = time.perf_counter()
        first = self._chunk(rows[:CHUNK], FEWEST_MASKS)
        draws = self.draws
        made = [example for examples in first.values() for example in examples]
        each = len(made) / len(first)  # examples per input: some have a second class
        size = sum(e.heads_UF.nbytes + e.states_US.nbytes for e in made) / len(first)
        most = min(self.forwards / (FEWEST_MASKS * draws), MOST_BYTES / size)
        count = min(len(rows), max(CHUNK, int(most)))
        masks = min(max(int(self.forwards / count) // draws // 2 * 2, FEWEST_MASKS), MOST_MASKS)
        expected = count * ((masks + 2) * draws + FEATURES * each)
        self._say(expected, time.perf_counter() - started, count, masks)
        if masks > FEWEST_MASKS:
            first = {}  # drawn again, with more masks
        self.inputs_used = count
        examples = dict(first)
        rest = self._by_length(rows[CHUNK if first else 0 : count])
        for start in self.track(range(0, len(rest), CHUNK), "learning"):
            examples |= self._chunk(rest[start : start + CHUNK], masks)
        return [examples[row] for row in rows[:count] if row in examples]

    def _by_length(self, rows: list[int]) -> list[int]:
        """Return the rows with texts sorted by length, since those of a chunk are padded to the longest."""
        some = some_inputs(self.inputs, rows)
        texts = isinstance(some, list) and all(isinstance(each, str) for each in some)
        lengths = [len(each) for each in some] if texts else [0] * len(rows)
        return [rows[place] for place in np.argsort(lengths, kind="stable")]

    def _say(self, expected: float, seconds: float, count: int, masks: int) -> None:
        """Print the expected number of passes and time, by those of the first chunk."""
        if self.shown and self.passes:
            minutes = expected * seconds / self.passes / 60
            told = f"about {minutes:.0f} min" if minutes >= 1.5 else f"about {60 * minutes:.0f} s"
            words = (
                f"learning from {count} inputs with {masks} masks each: {expected:,.0f} forward passes, {told}, then"
            )
            sys.stderr.write(f"{words} training and the certificate\n")

    def _chunk(self, rows: Sequence[int], masks: int) -> dict[int, list[Example]]:
        """Return examples by row: of the predicted class and, for every second input, of the runner-up.

        The masked passes say the logits of both; only features need another pass, with other gradients.
        """
        some = some_inputs(self.inputs, rows)
        examples, seconds = self._played(some, rows, masks)
        if seconds:
            members = list(seconds)
            others = some_inputs(some, members)
            settings = {**vars(self.asked), "target": [each[0] for each in seconds.values()]}
            with games_of(self.explainer, others, **settings) as games:
                features = self._read(games)
                for place, (_, drawn, said, parts) in enumerate(seconds.values()):
                    examples[members[place]].append(_example(features[place], parts, drawn, said))
                self.passes += FEATURES * games.size
        return {rows[place]: made for place, made in examples.items()}

    def _played(
        self, inputs: Any, rows: Sequence[int], masks: int
    ) -> tuple[dict[int, list[Example]], dict[int, tuple[int, Array, Array, Array]]]:
        """Return examples of the predicted class by place; for the runner-up: class, masks, logits and parts."""
        with games_of(self.explainer, inputs, **vars(self.asked), runner_up=True) as games:
            if games.size != len(rows):
                raise NotOffered("explanations cannot be learned where an input has several of them: give one target.")
            self.scalar, self.device = games.scalar, next(iter(games.batch.tensors.values())).device
            answers = self._answers(games, masks, rows)
            if not self.heads:  # the first inputs: before anything long
                _require_varying([said[:, 0] for _, said in answers.values()])
            features = self._read(games)
            made = {
                place: [_example(features[place], games.parts[place], drawn, said[:, 0])]
                for place, (drawn, said) in answers.items()
            }
            seconds = {
                place: (second, drawn, said[:, 1], games.parts[place])
                for place, (drawn, said) in answers.items()
                if rows[place] % 2 == 0 and (second := games.second_class(place)) is not None
            }
            self.passes += games.forwards + FEATURES * games.size
            return made, seconds

    def _read(self, games: Games) -> list[UnitFeatures]:
        """Return the features of all inputs of these games."""
        features: dict[int, UnitFeatures] = {}
        for rows, read in games.session.each(self._features, label="reading", what="learn"):
            features |= dict(zip(rows, read, strict=True))
        return [features[place] for place in range(games.size)]

    def _features(self, run: Run, rows: list[int]) -> list[UnitFeatures]:
        features, heads = features_of(run, torch.device("cpu")), head_counts(run)
        if self.heads and heads != self.heads:
            raise NotOffered("explanations cannot be learned here: inputs run through different attention layers.")
        self.heads = heads
        return features

    def _answers(self, games: Games, masks: int, rows: Sequence[int]) -> dict[int, tuple[Array, Array]]:
        """Return masks and logits by place in the chunk; logits are for all features, for none, and for each mask."""
        drawn = {
            place: drawn_masks(len(parts), masks, np.random.default_rng([self.seed, rows[place]]))
            for place, parts in enumerate(games.parts)
            if len(parts) > 1
        }
        answers = {}
        ends = [[True], [False]]  # masks of all features, and of none, in front of those that were drawn
        asked = {place: np.concatenate([np.repeat(ends, each.shape[1], 1), each]) for place, each in drawn.items()}
        for place, said in games.ask(asked).items():
            game = games.game(place)
            self.draws = game.draws
            if not np.isfinite(said).all():
                raise NonFinite("the model's output holds NaN or infinity for masked inputs: run it in float32.")
            answers[place] = drawn[place], said[:, [1, *range(COLUMNS, game.columns)]]
        return answers


def _require_varying(answers: Sequence[Array]) -> None:
    if not answers:
        raise BadInput("no input has two features that can be masked: there is nothing to learn.")
    largest = max(float(np.abs(said).max()) for said in answers)
    if max(float(np.ptp(said)) for said in answers) <= 1e-6 * max(largest, 1e-6):
        raise BadInput(
            "the model's output stays the same whatever is masked: there is nothing to learn. Check that the inputs "
            "reach the model, and that it is not a constant."
        )


def _example(features: UnitFeatures, parts: Array, drawn_MP: Array, said: Array) -> Example:
    """Return a training example. said: the output for all features, for none, and for each mask."""
    return Example(features.heads_UF, features.states_US, parts, drawn_MP, said[2:], float(said[0]), float(said[1]))


# The certificate

METRICS = ("comprehensiveness", "sufficiency")
GUIDED = {"method": "shap", "evaluations": 64, "guide": "auto"}
SHAPLEY: dict[str, Any] = {"algorithm": "regression", "evaluations": 512}  # exact where there are fewer sets
SHAPLEY_INPUTS = 10


def certify(explainer: CoreExplainer, name: str, inputs: Any, asked: Evaluation) -> Certificate:
    """Compare the learned method ``name`` on held-out inputs."""
    kind, free = explainer.source(inputs).modality.kind, list(ONE_PASS)
    # The default of a kind of input may be one of the free methods: it is evaluated once.
    judged = chosen_metrics(METRICS, False, False)
    candidates = list({c.name: c for c in [*wanted([name, "auto", GUIDED], kind), *wanted(free)]}.values())
    with comparing(explainer, inputs, candidates, judged, asked, search=False) as (comparison, games):
        values = {row.name: row for row in comparison.rows if not row.baseline}
        each = {n: [np.array(comparison.values[metric][n]) for metric in METRICS] for n in values}
        gains = {n: more - less for n, (more, less) in each.items()}
        order = sorted(values, key=lambda n: (n != name, n in free))
        methods = tuple(
            CertifiedMethod(
                n,
                values[n].forwards,
                values[n].backwards,
                _limits(each[n][0], games.seed),
                _limits(each[n][1], games.seed),
                ahead=UNKNOWN if n == name else _limits(gains[name] - gains[n], games.seed),
                free=n in free,
            )
            for n in order
        )
        agreeing = _agreement(explainer, games, name, asked)
        return Certificate(games.size, *agreeing, methods)


def _limits(values_I: Array, seed: int) -> Interval:
    mean, low, high = (float(each[0]) for each in spread(values_I[:, None], seed))
    return mean, low, high


def _agreement(explainer: CoreExplainer, games: Any, name: str, asked: Evaluation) -> tuple[int, Interval, Interval]:
    """R² and rank correlation with Shapley values, on the first few inputs."""
    from scipy.stats import spearmanr

    count = min(SHAPLEY_INPUTS, games.input_count)
    some = some_inputs(games.inputs, range(count))
    targets = games.wanted_targets and games.wanted_targets[:count]
    common: dict[str, Any] = {**games.asked, "target": targets, "batch_size": asked.batch_size}
    common |= {"seed": games.seed, "progress": False}
    truth = explainer.explain(some, method="shap", **SHAPLEY, replace=asked.replace, hold=asked.hold, **common)
    learned = explainer.explain(some, method=name, **common)
    squares, ranks = [], []
    for number, (one, other) in enumerate(zip(truth, learned, strict=True)):
        parts = games.parts[number]
        true_P, learned_P = one.scores[parts].astype(float), other.scores[parts].astype(float)
        if len(parts) < 2 or np.ptp(true_P) == 0:
            continue
        squares.append([((true_P - learned_P) ** 2).sum(), ((true_P - true_P.mean()) ** 2).sum()])
        ranks.append(0.0 if np.ptp(learned_P) == 0 else float(spearmanr(true_P, learned_P).statistic))
    if not squares:
        return 0, UNKNOWN, UNKNOWN
    table = np.array(squares)

    def share(mean: Array) -> Array:
        return np.array(1 - mean[0] / max(mean[1], 1e-300))

    low, high = interval(table, games.seed, share)
    return len(ranks), (float(share(table.mean(0))), float(low), float(high)), _limits(np.array(ranks), games.seed)
