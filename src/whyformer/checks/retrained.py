"""The experiments of "Attention is not not explanation" (Wiegreffe & Pinter 2019): train copies of a given model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.checks import training as fine_tuning
from whyformer.checks.attention_rows import FAR, SMALL_CHANGE, jsd, tvd
from whyformer.checks.exam import Finding, how_far_apart
from whyformer.errors import BadInput, NotOffered
from whyformer.evidence import ENOUGH, difference_interval, share_interval, with_interval
from whyformer.heads.importance_kinds import checked_labels, label_indices
from whyformer.loan.backwards import refuse_quantised, refuse_without_gradients
from whyformer.parameters import BatchSize, Count, Limits, NotEmpty, OneOf, Rate, Seed, Weight, checked
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run.session import LoadedModel, loaded_as, tracker
from whyformer.views.report_view import retrained_page
from whyformer.views.view import view_of

STARTS = ("model", "fresh")
FEWEST = 10  # examples: with less, a split leaves nothing to measure on
SLACK = 0.02  # TVD that an adversary may have beyond one that only imitates the output (λ = 0)
NAN = math.nan
MODEL, CONTROL, UNIFORM = "the model", "retrained", "retrained, uniform attention"
SEEDS = "retrained, other seed"
LSTM = "base LSTM"  # a BiLSTM with additive attention, over the vectors that the MLP reads
GUIDES = {  # name of the model → name of its accuracy in the finding
    "MLP, uniform weights": "uniform",
    "MLP, weights it learns": "learned",
    "MLP, the base LSTM's attention": "lstm",
    "MLP, the model's attention": "model",
    "MLP, the adversary's attention": "adversary",
}
EVEN, _, _, OWN, _ = GUIDES
BRIEF = "trained too briefly: give more epochs, more examples or a higher lr, and compare again."


@dataclass(frozen=True)
class TrainedModel:
    """Accuracy of one model on the validation examples, and its distance from the user's model."""

    name: str
    weight: float  # λ of an adversary; NaN for others
    accuracy: float
    low: float  # 95 % confidence interval of the accuracy (Wilson), over the validation examples
    high: float
    f1: float  # mean over the classes
    tvd: float  # of its output from the model's
    jsd: float  # of its attention from the model's; NaN for the MLP, which has none of its own


@dataclass(frozen=True, eq=False)
class RetrainedAttention(Result):
    """Copies of a model with uniform or adversarial attention, and classifiers without context that use attention."""

    what: ClassVar[str] = "retrained attention"
    later: ClassVar[tuple[str, ...]] = ("majority",)

    models: tuple[TrainedModel, ...]
    training: int  # examples
    validation: int
    model: str
    chosen: float = NAN  # λ of the adversary whose attention guides the MLP
    options: dict[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)  # passes per example, of all models together
    warnings: tuple[str, ...] = ()
    majority: float | None = None  # accuracy of always predicting the most frequent class

    def named(self, name: str, weight: float = NAN) -> TrainedModel:
        """One of the models, by name; an adversary by its λ."""
        for one in self.models:
            if one.name == name and (math.isnan(weight) or one.weight == weight):
                return one
        raise BadInput(f"unknown model {name!r}. Known: {', '.join(dict.fromkeys(m.name for m in self.models))}.")

    @property
    def adversaries(self) -> tuple[TrainedModel, ...]:
        """The adversaries, ordered by λ."""
        return tuple(m for m in self.models if not math.isnan(m.weight))

    @property
    def title(self) -> str:
        return f"{self.model}: retrained attention, {self.training} + {self.validation} examples"

    def findings(self) -> tuple[Finding, ...]:
        """The results of the experiments, as sentences."""
        return self._uniform(), *self._seeds(), self._guide(), self._adversary()

    def lost(self, better: TrainedModel, worse: TrainedModel) -> tuple[float, float, float]:
        """The difference of two accuracies, with its 95 % confidence interval."""
        first, second = np.asarray(better.accuracy), np.asarray(worse.accuracy)
        low, high = difference_interval(first, second, self.validation)
        return float(first - second), float(low), float(high)

    def _finding(self, level: str, title: str, text: str, meaning: str, numbers: dict[str, float]) -> Finding:
        if self.validation < ENOUGH:
            few = f"{self.validation} held-out examples are too few for a verdict ({ENOUGH} needed)."
            level, meaning = "note", f"{meaning} {few}" if BRIEF in meaning else few
        return Finding(level, "retrained_attention", title, f"{text} {meaning}", numbers)

    def _uniform(self) -> Finding:
        control, uniform = self.named(CONTROL), self.named(UNIFORM)
        lost, low, high = self.lost(control, uniform)
        level, meaning = "note", self._unlearned(control) or "Inconclusive: the difference is not significant."
        if BRIEF not in meaning and low > 0:
            level, meaning = "ok", "The task needs attention, so tests of attention are meaningful here."
        elif BRIEF not in meaning and high < SMALL_CHANGE:
            level, meaning = "warning", "The task does not need attention, so attention maps explain little here."
        text = (
            f"Accuracy of a copy trained with uniform attention: {uniform.accuracy:.3f}; trained with its own "
            f"attention: {control.accuracy:.3f} (difference {with_interval((lost, low, high))})."
        )
        numbers = {"uniform": uniform.accuracy, "control": control.accuracy, "lost": lost}
        return self._finding(level, "Uniform attention", text, meaning, numbers)

    def _unlearned(self, twin: TrainedModel) -> str:
        """What a copy falls short of that was trained too briefly; "" for others."""
        model = self.named(MODEL)
        if self.majority is not None and twin.low <= self.majority:
            return f"No better than the most frequent class ({self.majority:.3f}): {BRIEF}"
        return f"Worse than the model ({model.accuracy:.3f}): {BRIEF}" if self.lost(model, twin)[1] > 0 else ""

    def _seeds(self) -> tuple[Finding, ...]:
        copies = [m for m in self.models if m.name in (CONTROL, SEEDS)]
        if len(copies) < 2:
            return ()
        numbers = {name: float(np.mean([getattr(m, name) for m in copies])) for name in ("tvd", "jsd", "accuracy")}
        accuracy = numbers.pop("accuracy"), min(m.low for m in copies), max(m.high for m in copies)
        text = (
            f"{len(copies)} copies trained with their own attention: accuracy "
            f"{with_interval(accuracy, sign='')}; on average their attention differs from the model's by "
            f"{how_far_apart(numbers['jsd'])}, their probabilities by {numbers['tvd']:.3f}."
        )
        meaning = "An adversary counts as evidence only beyond that."
        return (self._finding("note", "Other seeds", text, meaning, numbers),)

    def _guide(self) -> Finding:
        even, theirs = self.named(EVEN), self.named(OWN)
        gain, low, high = self.lost(theirs, even)
        level, meaning = "note", "No significant difference: the model's attention is not shown to be informative."
        if low > 0:
            level, meaning = "ok", "The model's attention is informative by itself."
        elif high < 0:
            level = "warning"
            meaning = "The model's attention is worse than uniform weights: it is not informative by itself."
        guides = [m for m in self.models if m.name.startswith("MLP, ")]
        accuracies = "; ".join(f"{m.name.removeprefix('MLP, ')} {m.accuracy:.3f}" for m in guides)
        text = (
            f"Accuracy of a classifier without context, by the weights that it is guided by: {accuracies}. The model's "
            f"attention against uniform weights: {with_interval((gain, low, high))}."
        )
        numbers = {GUIDES[m.name]: m.accuracy for m in guides}
        return self._finding(level, "Guided MLP", text, meaning, numbers)

    def _adversary(self) -> Finding:
        chosen, first = self.named("adversary", self.chosen), self.adversaries[0]
        farthest = max(self.adversaries, key=lambda m: m.jsd)
        at_cost = f"λ = {farthest.weight:g}: JSD {farthest.jsd:.2f}, TVD {farthest.tvd:.3f}"
        level, meaning = "note", f"Whether more different attention costs the output is inconclusive ({at_cost})."
        low, _ = difference_interval(np.asarray(farthest.tvd), np.asarray(first.tvd), self.validation)
        if unlearned := self._unlearned(first):
            meaning = f"The copy trained for the same output (accuracy {first.accuracy:.3f}): {unlearned}"
        elif farthest.jsd < FAR:
            meaning = f"The attention of no copy moved far (largest JSD {farthest.jsd:.2f}): {BRIEF}"
        elif chosen.jsd >= FAR:
            level = "warning"
            meaning = "Different attention did not cost the output: attention is not the only explanation."
        elif low > 0:
            level = "ok"
            meaning = f"More different attention cost the output ({at_cost}): they depend on each other here."
        text = (
            f"A copy was trained for the same output with different attention (λ = {chosen.weight:g}). Its attention "
            f"differs by {how_far_apart(chosen.jsd)}. Its probabilities differ by {chosen.tvd:.3f} (TVD; "
            f"{first.tvd:.3f} for a copy trained for the same output only)."
        )
        numbers = {"jsd": chosen.jsd, "tvd": chosen.tvd, "imitation_tvd": first.tvd, "lambda": chosen.weight}
        return self._finding(level, "Model-consistent adversary", text, meaning, numbers)

    def rows(self) -> list[dict[str, Any]]:
        measured = ("accuracy", "low", "high", "f1", "tvd", "jsd")
        return [{"model": m.name, "lambda": m.weight} | {k: getattr(m, k) for k in measured} for m in self.models]

    def to_frame(self) -> DataFrame:
        """Return one row per model."""
        return dataframe(self.rows())


view_of.register(RetrainedAttention, retrained_page)


@checked
def retrained_attention(
    model: Any,
    inputs: Any,
    labels: Any,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    validation: tuple[Any, Any] | Annotated[float, Limits(0, 0.9, open_low=True)] = 0.2,
    start: Annotated[str, OneOf(*STARTS)] = "model",
    epochs: Count = 3,
    lr: Rate | None = None,
    lambdas: Annotated[Sequence[Weight], NotEmpty()] = (0.0, 0.01, 0.1, 1.0),
    guide_epochs: Count = 20,
    seeds: Count = 2,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> RetrainedAttention:
    """Train copies of the model to test whether the task needs attention, and whether other attention gives the same.

    Uniform: a copy with attention frozen to uniform, and one trained in the same way with its own attention. Guided
    MLP: a classifier that processes each position separately, weighted by uniform weights, learned weights, the model's
    attention, or an adversary's. Adversary: a copy trained with TVD(y_a, y_b) - λ KL(α_a ‖ α_b), for each λ: the same
    output with different attention. α is the attention map of the last layer: mean over heads, the row of the output
    position, over ordinary tokens. The model is not changed.

    labels: one per input, names or numbers of classes. validation: (inputs, labels), or the share of the inputs that is
    held out. start: from the model's weights, or from "fresh" ones, as in the paper. lr: learning rate of Adam; 1e-4,
    or 1e-3 for fresh weights. seeds: number of copies trained with their own attention.

    Misleads when: the training is too short or the learning rate too high: compare "retrained" with "the model".

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts, labels = list(wf.demo.SENTENCES) * 2, list(wf.demo.SENTENCE_LABELS) * 2
    >>> wf.retrained_attention(
    ...     model, texts, labels, tokenizer=tokenizer, validation=0.4, epochs=1, guide_epochs=1, lambdas=[0.1]
    ... ).show()
    """
    started = time.perf_counter()
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    with loaded.borrowed():
        examples = examples_of(loaded, inputs, labels, validation, batch_size, seed)
        refuse_quantised(loaded.model, "retrained_attention trains a copy of the model")
        refuse_without_gradients(loaded.model, "retrained_attention")
        reader = fine_tuning.ExampleRunner(loaded, examples)
        classes_of, notes = _classes(reader)
        rows = [*examples.train, *examples.validation]
        base = reader.said(rows, values=True)
    rate = (1e-3 if start == "fresh" else 1e-4) if lr is None else lr
    settings = {"epochs": epochs, "lr": rate, "seed": seed, "track": tracker(progress)}
    trial = _Trial(loaded, examples, base, classes_of, settings, start)
    models = [trial.measured(MODEL, base)]
    for number in range(seeds):
        name = SEEDS if number else CONTROL
        models.append(trial.measured(name, trial.twin(fine_tuning.supervised(examples.labels), name, later=number)))
    models.append(trial.measured(UNIFORM, trial.twin(fine_tuning.supervised(examples.labels), UNIFORM, uniform=True)))
    copies = len(models)
    adversaries = [trial.adversary(weight) for weight in sorted({0.0, *lambdas})]
    most = adversaries[0][0].tvd + SLACK
    chosen, guide = max((a for a in adversaries if a[0].tvd <= most), key=lambda a: a[0].jsd)
    even = {row: ordinary / ordinary.sum().clamp(min=1) for row, ordinary in base.ordinary.items()}
    models.append(trial.measured(LSTM, lstm := trial.guided(LSTM, None, guide_epochs, recurrent=True)))
    weights_by = (even, None, lstm.attention, base.attention, guide.attention)
    for name, weights_of in zip(GUIDES, weights_by, strict=True):
        mlp = trial.guided(name, weights_of, guide_epochs)
        models.append(trial.measured(name, fine_tuning.Said(mlp.probability)))  # an MLP is no model with attention
    passes = (trial.passes + reader.passes) / len(rows)
    options = {"start": start, "epochs": epochs, "lr": rate, "guide_epochs": guide_epochs, "seed": seed}
    return RetrainedAttention(
        (*models[:copies], *(point for point, _ in adversaries), *models[copies:]),
        len(examples.train),
        len(examples.validation),
        type(loaded.model).__name__,
        chosen.weight,
        options,
        Cost(passes, trial.backwards / len(rows), time.perf_counter() - started),
        notes,
        trial.majority,
    )


@dataclass
class _Trial:
    """The twins of one model, trained one after the other."""

    loaded: LoadedModel
    examples: fine_tuning.Examples
    base: fine_tuning.Said
    classes_of: dict[int, int]
    settings: dict[str, Any]
    start: str
    passes: int = 0
    backwards: int = 0

    def twin(
        self, loss: Callable[..., Tensor], label: str, *, uniform: bool = False, moved: bool = False, later: int = 0
    ) -> fine_tuning.Said:
        """Train a twin, and return its outputs on all examples. later: number of the seed after the first one."""
        twin = fine_tuning.copy_of(self.loaded)
        moved |= later > 0
        seed = self.settings["seed"] + int(moved) + later  # an adversary starts elsewhere
        with fine_tuning.ready(twin, seed, self.start, moved) as parameters:
            reader = fine_tuning.ExampleRunner(twin, self.examples, uniform)

            def losses(rows: list[int]) -> Iterator[Tensor]:
                run = reader.run(rows)
                yield loss(run, *reader.answers(run), rows)

            plan = fine_tuning.plan_of(
                self.examples, self.settings["epochs"], reader.step, self.settings["seed"] + later
            )
            fine_tuning.descend(parameters, self.settings["track"](plan, label), losses, self.settings["lr"], label)
            self.backwards += reader.passes
            said = reader.said([*self.examples.train, *self.examples.validation])
            self.passes += reader.passes
        return said

    def adversary(self, weight: float) -> tuple[TrainedModel, fine_tuning.Said]:
        said = self.twin(fine_tuning.adversarial(self.base, weight), f"adversary, λ = {weight:g}", moved=True)
        return self.measured("adversary", said, weight), said

    @property
    def majority(self) -> float:
        """Accuracy of the most frequent class."""
        classes = [self.classes_of[row] for row in self.examples.validation]
        return max(classes.count(c) for c in set(classes)) / len(classes)

    def guided(
        self, name: str, guide: dict[int, Tensor] | None, epochs: int, recurrent: bool = False
    ) -> fine_tuning.Said:
        device = next(self.loaded.model.parameters()).device
        settings = {"epochs": epochs, "seed": self.settings["seed"], "device": device, "track": self.settings["track"]}
        settings |= {"label": name, "recurrent": recurrent}
        return fine_tuning.guided(self.base, guide, self.classes_of, self.examples, **settings)

    def measured(self, name: str, said: fine_tuning.Said, weight: float = NAN) -> TrainedModel:
        rows = self.examples.validation
        truth = np.array([self.classes_of[row] for row in rows])
        guess = np.array([int(said.probability[row].argmax()) for row in rows])
        hits = (guess == truth).astype(float)
        low, high = share_interval(hits.mean(), len(hits))
        apart = [float(tvd(said.probability[row], self.base.probability[row])) for row in rows]
        looks = [float(jsd(said.attention[row], self.base.attention[row])) for row in rows if said.attention]
        far = float(np.mean(looks)) if looks else NAN
        accuracy = (float(hits.mean()), float(low), float(high))
        # The mean over the classes that occur of 2·hits / (said + true).
        counts = [((guess == c) & (truth == c), (guess == c).sum() + (truth == c).sum()) for c in np.unique(truth)]
        f1 = float(np.mean([2 * float(hit.sum()) / float(count) for hit, count in counts]))
        return TrainedModel(name, weight, *accuracy, f1, float(np.mean(apart)), far)


def examples_of(
    loaded: LoadedModel, inputs: Any, labels: Any, validation: Any, batch_size: int | None, seed: int
) -> fine_tuning.Examples:
    """Check inputs and labels before long work, and split them into training and validation."""
    if labels is None:
        raise BadInput("labels=None: copies are trained on labels, so give one per input.")
    source = loaded.source(inputs)
    if source.single:
        raise BadInput("inputs is a single input: training needs a list of them, with a label for each.")
    known = checked_labels(labels, source.size)
    if source.size < FEWEST:
        raise BadInput(f"{source.size} examples are too few to train on: give at least {FEWEST}, better some hundreds.")
    if len({str(label) for label in known}) < 2:
        raise BadInput(f"all labels are {known[0]!r}: give examples of two classes or more.")
    if isinstance(validation, tuple):
        more = loaded.source(validation[0])
        if more.single:
            raise BadInput("validation holds a single input: give a list of them, with a label for each.")
        others = checked_labels(validation[1], more.size)
        rows = list(range(source.size + more.size))
        both, train_rows, held_rows = (inputs, validation[0]), rows[: source.size], rows[source.size :]
        return fine_tuning.Examples(both, source.size, [*known, *others], train_rows, held_rows, batch_size)
    order = torch.randperm(source.size, generator=torch.Generator().manual_seed(seed)).tolist()
    held = max(1, round(validation * source.size))
    return fine_tuning.Examples((inputs,), source.size, known, sorted(order[held:]), sorted(order[:held]), batch_size)


def _classes(reader: fine_tuning.ExampleRunner) -> tuple[dict[int, int], tuple[str, ...]]:
    """The class of every example as a number, and notes; models that cannot be trained so are refused."""
    examples = reader.examples
    run = reader.run(examples.train[:1])
    # Refuses windows, and attention that cannot be read. A query that pools the words is no stream of the input.
    run.record(multi_stream=run.multi_stream and set(run.stream_sizes) == {"queries", run.modality.stream})
    if run.output.speaks or run.modality.mean.outcome != "classes":
        raise NotOffered(
            "copies are trained as classifiers, and this model generates tokens, compares inputs or detects objects: "
            "give a classifier with one label per input."
        )
    if run.output.independent:
        raise NotOffered("the model is multi-label: only classifiers with one label per input are supported.")
    fine_tuning.require_logits(run)
    try:
        every = label_indices(examples.labels, run.logits.expand(len(examples.labels), -1), run)
    except BadInput as error:
        raise BadInput(f"labels: {error}") from error
    if len(set(every[examples.train].tolist())) < 2:
        raise BadInput("the training examples have one class only: give more examples, or another seed for the split.")
    return dict(enumerate(every.tolist())), reader.sessions[0].warnings
