"""Copies of a model, trained on the user's examples: with their own, uniform, or adversarial attention."""

# A twin is a copy of the model, trained without dropout (its passes draw the same random numbers each time), by Adam,
# for a number of epochs; the last state counts, so that nothing is chosen on the validation examples.

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from whyformer.brief import brief
from whyformer.capture.roles import Impose
from whyformer.checks.attention_rows import probabilities
from whyformer.engines.perturbation.players import count_of
from whyformer.errors import AmbiguousLayout, BadInput, NotOffered
from whyformer.evaluate.games import Games, games_of
from whyformer.explainer import CoreExplainer
from whyformer.heads.importance_kinds import checked_labels, label_indices, loss_of, prediction_of
from whyformer.inputs.batch import Batch
from whyformer.loan.backwards import refuse_quantised, refuse_without_gradients
from whyformer.loan.borrow import module_names
from whyformer.loan.turns import Draws
from whyformer.parameters import BatchSize, Count, Hold, Limits, Rate, Replacement, Seed, checked
from whyformer.run import Run
from whyformer.run.session import LoadedModel, Session, tracker
from whyformer.shapes import Array
from whyformer.study.streams import slices

NOISE = 0.05  # of each weight's spread: where an adversary starts, since at the model itself its loss has no slope
WIDTH = 128  # of the diagnostic
TINY = 1e-8
Loss = Callable[[Run, Tensor, Tensor, list[int]], Tensor]  # run, logits, shown attention, numbers of the examples


@dataclass
class Examples:
    """Inputs with labels, and which of them are trained on."""

    inputs: tuple[Any, ...]  # as they came: those trained on, and those of the validation where they came by themselves
    first: int  # how many examples the first of them holds
    labels: list[Any]
    train: list[int]
    validation: list[int]
    batch_size: int | None = None

    def at(self, row: int) -> tuple[int, int]:
        """Which of the inputs an example is among, and its number there."""
        return (0, row) if row < self.first else (1, row - self.first)


@dataclass
class Said:
    """Outputs of a model per example: probabilities (C,), and attention over the real positions (n,)."""

    probability: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    ordinary: dict[int, Tensor] = field(default_factory=dict)  # (n,) positions that are no special tokens
    values: dict[int, Tensor] = field(default_factory=dict)  # (n, E) what the first attention reads, where asked for


class ExampleRunner:
    """A model with the examples, run batch by batch; ``uniform``: its attention is frozen."""

    def __init__(self, loaded: LoadedModel, examples: Examples, uniform: bool = False) -> None:
        self.loaded, self.examples, self.uniform = loaded, examples, uniform
        options: dict[str, Any] = {"batch_size": examples.batch_size, "progress": False, "at_once": False}
        self.sessions = [Session(loaded, inputs, **options) for inputs in examples.inputs]
        self.step, self.passes = self.sessions[0].step, 0

    def run(self, rows: Sequence[int]) -> Run:
        """Some examples, all of them among the same inputs."""
        places = [self.examples.at(row) for row in rows]
        return self.sessions[places[0][0]].run([number for _, number in places])

    def answers(self, run: Run) -> tuple[Tensor, Tensor]:
        """(B, C) logits and (B, N) the attention that would be shown, in the graph."""
        self.passes += run.batch.size
        try:
            return self._answers(run, run.batch, slice(None))
        except AmbiguousLayout:
            if run.batch.size == 1:
                raise
        # Batch and heads have the same size here and cannot be distinguished; with one input at a time they can.
        alone = [self._answers(run, run.batch.select([i]), slice(i, i + 1)) for i in range(run.batch.size)]
        logits, shown = zip(*alone, strict=True)
        return torch.cat(logits), torch.cat(shown)

    def _answers(self, run: Run, batch: Batch, rows: slice) -> tuple[Tensor, Tensor]:
        keep_BN, special_BN = run.keep_BN[rows], run.special_BN[rows]
        sites = run.record(multi_stream=True).sites
        last: dict[int, list[Tensor]] = {}

        def rewrite(layer: int, first: int, attention_BHQK: Tensor) -> Tensor:
            if self.uniform:
                keys = positions_of(run, sites[layer].streams[1])
                attention_BHQK = _uniform(attention_BHQK, keep_BN[:, keys], special_BN[:, keys])
            if layer not in last:
                last.clear()
            last.setdefault(layer, []).append(attention_BHQK)
            return attention_BHQK

        names, axes = module_names(run.modality.model), run.study.batch_axes
        with Impose(batch.size, names, axes, rewrite=rewrite):
            logits = run.output.logits(batch)
        ((_, maps),) = last.items()
        return logits.float(), _shown(run, torch.cat(maps, 1).float(), rows)

    @torch.no_grad()
    def said(self, rows: Sequence[int], values: bool = False) -> Said:
        """The model's outputs on these examples."""
        result = Said()
        for batch in batches(rows, self.examples, self.step):
            run = self.run(batch)
            logits, shown_BN = self.answers(run)
            keys = positions_of(run, run.record(multi_stream=True).sites[-1].streams[1])
            inputs_BKE = _without_context(run) if values else None
            for i, row in enumerate(batch):
                keep = run.keep_BN[i, keys]
                result.probability[row] = probabilities(logits[i : i + 1])[0].cpu()
                result.attention[row] = shown_BN[i, keys][keep].cpu()
                result.ordinary[row] = ~run.special_BN[i, keys][keep].cpu()
                if inputs_BKE is not None:
                    result.values[row] = inputs_BKE[i][keep].float().cpu()
        return result


def positions_of(run: Run, stream: str) -> slice:
    """The positions of a stream, where a model has several: words, and a query of its own that pools them."""
    return slices(run.stream_sizes)[stream] if run.multi_stream else slice(0, run.keep_BN.shape[1])


def _without_context(run: Run) -> Tensor:
    """(B, K, E) vectors of the positions, each of which depends on no other one."""
    if not run.multi_stream:  # the values of the first attention
        return run.record(values=True).sites[0].value_BHKD.transpose(1, 2).flatten(2)  # type: ignore[union-attr]
    vectors_BKE = run.traced(None).leaves[0].detach()  # behind a recurrent encoder, values have context already
    if vectors_BKE.shape[:2] != run.keep_BN[:, positions_of(run, run.modality.stream)].shape:
        raise NotOffered("the diagnostic reads a vector for each position, and the model embeds them otherwise.")
    return vectors_BKE


def _uniform(attention_BHQK: Tensor, keep_BN: Tensor, special_BN: Tensor) -> Tensor:
    """The same weight for every ordinary token that a row can see; for every position, where it sees none."""
    # NOTE[DIFF]: Wiegreffe & Pinter have one attention, of one row; here all rows of all layers are uniform.
    seen = (attention_BHQK > 0) & keep_BN[:, None, None, :]
    ordinary = seen & ~special_BN[:, None, None, :]
    chosen = torch.where(ordinary.any(-1, keepdim=True), ordinary, attention_BHQK > 0).to(attention_BHQK.dtype)
    return chosen / chosen.sum(-1, keepdim=True).clamp(min=1)


def _shown(run: Run, attention_BHQK: Tensor, rows: slice) -> Tensor:
    """(B, N) heads averaged, the rows that feed the head, as shares of the ordinary tokens."""
    site = run.record(multi_stream=True).sites[-1]
    asked, keys = (positions_of(run, stream) for stream in site.streams)
    count = attention_BHQK.shape[2]
    first = asked.start + (0 if count == asked.stop - asked.start else site.first_query)
    read_BQ = run.readout_BN[rows, first : first + count].to(attention_BHQK.dtype)
    row_BK = torch.einsum("bq,bhqk->bk", read_BQ, attention_BHQK)
    row_BK = row_BK * (run.keep_BN & ~run.special_BN)[rows, keys].to(row_BK.dtype)
    row_BK = row_BK / row_BK.sum(-1, keepdim=True).clamp(min=TINY)
    return F.pad(row_BK, (keys.start, run.keep_BN.shape[1] - keys.stop))


def batches(rows: Sequence[int], examples: Examples, step: int) -> Iterator[list[int]]:
    """Examples that are run together, in the order given; training and validation inputs never meet."""
    for number in range(len(examples.inputs)):
        here = [row for row in rows if examples.at(row)[0] == number]
        yield from (here[i : i + step] for i in range(0, len(here), step))


def plan_of(examples: Examples, epochs: int, step: int, seed: int) -> list[list[int]]:
    """The batches of all epochs, each in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(examples.train), generator=generator).tolist() for _ in range(epochs)]
    return [rows for order in orders for rows in batches([examples.train[i] for i in order], examples, step)]


def copy_of(loaded: LoadedModel) -> LoadedModel:
    """A copy of the model in single precision, to be trained."""
    try:
        twin = copy.deepcopy(loaded.model).float()
    except Exception as error:
        raise NotOffered(
            f"a copy of the model is trained, and {type(loaded.model).__name__} cannot be copied: {error}"
        ) from error
    return LoadedModel(twin, loaded.processor, attention_at=loaded.attention_at)


@contextmanager
def ready(twin: LoadedModel, seed: int, start: str, moved: bool = False) -> Iterator[list[nn.Parameter]]:
    """The twin's weights, ready to be trained: as they are, or drawn anew. moved: beside them, by a little noise."""
    with twin.borrowed():
        parameters = [p for p in twin.model.parameters() if p.is_floating_point()]
        with Draws({}, seed):
            if start == "fresh":
                _draw(twin.model)
            elif moved:
                for parameter in parameters:
                    if parameter.numel() > 1:
                        parameter.data += NOISE * parameter.data.std() * torch.randn_like(parameter)
        for parameter in parameters:
            parameter.requires_grad_()
        yield parameters


def _draw(model: nn.Module) -> None:
    """As transformers, or torch, makes each module; what neither draws as random numbers of equal mean and spread."""
    initialise = getattr(model, "_init_weights", None) if hasattr(model, "config") else None
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        here = [p for p in module.parameters(recurse=False) if p.is_floating_point()]
        before = [p.detach().clone() for p in here]
        with torch.no_grad():
            if callable(initialise):
                initialise(module)
            elif callable(reset):
                reset()
        for parameter, was in zip(here, before, strict=True):
            if torch.equal(parameter, was):
                spread = was.std() if was.numel() > 1 else was.abs().mean()
                parameter.data = was.mean() + spread * torch.randn_like(was)


def descend(
    parameters: Sequence[nn.Parameter],
    plan: Iterable[list[int]],
    losses: Callable[[list[int]], Iterable[Tensor]],
    lr: float,
    label: str,
) -> None:
    """One step of Adam per batch of the plan, on the sum of its losses; gradients are clipped to length 1."""
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for rows in plan:
        optimizer.zero_grad()
        with torch.enable_grad():
            for loss in losses(rows):
                if not bool(torch.isfinite(loss)):
                    raise NotOffered(f"training ({label}) diverged: give a smaller lr than {lr:g}.")
                loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def supervised(labels: list[Any]) -> Loss:
    """Cross-entropy at the labels."""

    def loss(run: Run, logits_BC: Tensor, shown_BN: Tensor, rows: list[int]) -> Tensor:
        return loss_of(logits_BC, label_indices([labels[row] for row in rows], logits_BC.detach(), run)).mean()

    return loss


def adversarial(base: Said, weight: float) -> Loss:
    """TVD(y_a, y_b) - λ KL(α_a ‖ α_b), the mean over the batch (Wiegreffe & Pinter 2019, eq. 1)."""

    def loss(run: Run, logits_BC: Tensor, shown_BN: Tensor, rows: list[int]) -> Tensor:
        theirs_BC = torch.stack([base.probability[row] for row in rows]).to(logits_BC)
        change = (probabilities(logits_BC) - theirs_BC).abs().sum(-1) / 2
        looked_BN = torch.zeros_like(shown_BN)
        keys = positions_of(run, run.record(multi_stream=True).sites[-1].streams[1])
        for i, row in enumerate(rows):
            looked_BN[i, keys][run.keep_BN[i, keys]] = base.attention[row].to(shown_BN)
        apart = (shown_BN * (shown_BN.clamp(min=TINY).log() - looked_BN.clamp(min=TINY).log())).sum(-1)
        return (change - weight * apart).mean()

    return loss


class GuidedMLP(nn.Module):
    """tanh(W x) at each position by itself, weighted, and a decision: Wiegreffe & Pinter 2019, section 3.4.

    recurrent: a BiLSTM over the positions instead, weighted by its own additive attention (Jain & Wallace 2019).
    """

    def __init__(self, width: int, classes: int, recurrent: bool = False) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, WIDTH)
        self.encode = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True) if recurrent else None
        self.inner, self.score = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2, 1, bias=False)
        self.decide = nn.Linear(WIDTH, classes)

    def forward(
        self, values_BNE: Tensor, ordinary_BN: Tensor, counts_B: Tensor, guide_BN: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, C) logits, and the (B, N) weights; counts_B: positions of each example, those behind are padding."""
        states = self.project(self.norm(values_BNE)).tanh()
        if self.encode is not None:
            packed = pack_padded_sequence(states, counts_B, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.encode(packed)[0], batch_first=True, total_length=states.shape[1])
        if guide_BN is None:  # it learns its own
            guide_BN = self.score(self.inner(states).tanh())[..., 0].masked_fill(~ordinary_BN, -1e9).softmax(-1)
        return self.decide((guide_BN[..., None] * states).sum(1)), guide_BN


def guided(
    base: Said,
    guide: dict[int, Tensor] | None,
    classes_of: dict[int, int],
    examples: Examples,
    *,
    epochs: int,
    seed: int,
    device: torch.device,
    track: Callable[[Sequence[Any], str], Any],
    label: str,
    recurrent: bool = False,
) -> Said:
    """Probabilities and weights of a diagnostic that was trained with the guide's weights, or with its own."""
    # It reads the values of the model's first attention at each position, which depend on no other position.
    # NOTE[DIFF]: the authors learn word vectors for it; these are the model's, and not only of words.
    step = 32
    width, classes = base.values[examples.train[0]].shape[1], max(2, len(base.probability[examples.train[0]]))

    def outputs(mlp: GuidedMLP, rows: list[int]) -> tuple[Tensor, Tensor]:
        parts = [base.values, base.ordinary] + ([] if guide is None else [guide])
        padded = [pad_sequence([part[row] for row in rows], batch_first=True).to(device) for part in parts]
        counts = torch.tensor([len(base.ordinary[row]) for row in rows])
        logits, weights = mlp(padded[0], padded[1], counts, None if guide is None else padded[2])
        return logits, weights

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(seed)
        mlp = GuidedMLP(width, classes, recurrent).to(device)
        optimizer = torch.optim.Adam(mlp.parameters(), lr=1e-3)
        for rows in track(plan_of(examples, epochs, step, seed), label):
            wanted = torch.tensor([classes_of[row] for row in rows], device=device)
            loss = F.cross_entropy(outputs(mlp, rows)[0], wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    result = Said(ordinary=base.ordinary)
    with torch.no_grad():
        for rows in batches([*examples.train, *examples.validation], examples, step):
            logits, weights = outputs(mlp, rows)
            for i, row in enumerate(rows):
                result.probability[row] = logits[i].softmax(-1).cpu()
                result.attention[row] = weights[i, : len(base.ordinary[row])].cpu()
    return result


FEWEST = 8  # examples
HELD = 0.2  # of them, on which the copy is measured before and after
PLAIN = 1  # variants of an example that are the example itself


@dataclass(frozen=True, eq=False)
class MaskedSurrogate:
    """A fine-tuned copy, and its accuracy on held-out examples masked at random."""

    model: nn.Module  # for compare(surrogate=…)
    before: float
    after: float
    trained_on: int
    measured_on: int
    beta: float

    def __repr__(self) -> str:
        return brief(self)


@checked
def masked_surrogate(
    model: Any,
    inputs: Any,
    labels: Any = None,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    beta: Annotated[float, Limits(0, 1, open_low=True)] = 0.1,
    epochs: Count = 3,
    lr: Rate = 1e-4,
    draws: Count = 4,
    replace: Replacement = None,
    hold: Hold = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> MaskedSurrogate:
    """Fine-tune a copy of a classifier on randomly masked inputs, for F-Fidelity (Zheng et al. 2025) and IDSDS.

    The copy is trained with cross-entropy and Adam on every example and ``draws`` variants of it, with up to a share
    ``beta`` of the features masked. labels: one per input, names or numbers; None uses the model's own predictions as
    labels. The model is not changed. Explanations are not used in training, so no method has an advantage. One example
    in five is held out: ``before`` and ``after`` are the accuracies on its masked variants. Use other inputs than those
    for ``wf.compare``. replace, hold: as for ``wf.compare``.

    Misleads when: ``after`` is not above ``before``, or far below 1: then the copy is still sensitive to masking.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> surrogate = wf.masked_surrogate(model, list(wf.demo.SENTENCES) * 2, tokenizer=tokenizer, epochs=1)
    >>> surrogate.before, surrogate.after
    """
    loaded = CoreExplainer(model, processor, attention_at=attention_at)
    refuse_quantised(loaded.model, "masked_surrogate trains a copy of the model")
    refuse_without_gradients(loaded.model, "masked_surrogate")
    source = loaded.source(inputs)
    if source.single or source.size < FEWEST:
        raise BadInput(f"{source.size} examples are too few to train on: give at least {FEWEST}, better some hundreds.")
    known = None if labels is None else checked_labels(labels, source.size)
    twin = copy_of(loaded)
    options = {"replace": replace, "hold": hold, "batch_size": batch_size, "seed": seed, "progress": False}
    copied = CoreExplainer(twin.model, loaded.processor, attention_at=loaded.attention_at)
    with games_of(copied, inputs, **options) as games, ready(twin, seed, "model") as parameters:
        training = _Training(games, _labels(games, known), beta, draws, seed)
        order = np.random.default_rng(seed).permutation(games.size).tolist()
        held, rest = order[: max(1, round(HELD * len(order)))], order[max(1, round(HELD * len(order))) :]
        before = training.accuracy(held)
        training.run(parameters, rest, epochs, lr, progress)
        after = training.accuracy(held)
    return MaskedSurrogate(twin.model, before, after, len(rest), len(held), beta)


def require_logits(run: Run) -> None:
    if run.gives_probabilities:
        raise NotOffered(
            "the model returns probabilities, and training needs logits: remove its final softmax or sigmoid."
        )


def _labels(games: Games, known: list[Any] | None) -> list[int]:
    run = games.runs[0]
    if run.output.speaks or games.modality.mean.outcome != "classes" or run.output.independent:
        raise NotOffered(
            "a surrogate is trained as a classifier with one label per input, and this model generates tokens, "
            "compares inputs, detects objects or is multi-label."
        )
    require_logits(run)
    if known is None:
        return [int(label) for each in games.runs for label in prediction_of(each.logits)]
    return [int(i) for i in label_indices(known, run.logits.expand(len(known), -1), run)]


class _Training:
    """The examples with their variants, and the passes over them."""

    def __init__(self, games: Games, labels: list[int], beta: float, draws: int, seed: int) -> None:
        self.games, self.labels, self.beta, self.draws, self.seed = games, labels, beta, draws, seed

    def masks(self, number: int, generator: np.random.Generator) -> Array:
        """(1 + D, P) the example itself, then with none to a share β of its parts away."""
        parts = len(self.games.parts[number])
        present = np.ones((PLAIN + self.draws, parts), dtype=bool)
        most = count_of(self.beta, parts)
        for row in present[PLAIN:]:
            row[generator.permutation(parts)[: int(generator.integers(0, most + 1))]] = False
        return present

    def logits(self, number: int, present_MP: Array) -> Tensor:
        """(M, C) of variants of one example."""
        run, _ = self.games.run_of(number)
        variants = self.games.variants(number)
        rows = variants.batches(present_MP, len(present_MP))
        return torch.cat([run.output.logits(variants.batch(present_MP[some])).float() for some in rows])

    def run(
        self, parameters: Sequence[nn.Parameter], numbers: Sequence[int], epochs: int, lr: float, progress: bool | None
    ) -> None:
        generator, step = np.random.default_rng([self.seed, 1]), self.games.batch_size
        orders = [generator.permutation(numbers).tolist() for _ in range(epochs)]
        plan = [order[i : i + step] for order in orders for i in range(0, len(order), step)]

        def losses(some: list[int]) -> Iterator[Tensor]:
            for number in some:  # texts differ in length, so each example is a batch of its variants
                logits = self.logits(number, self.masks(number, generator))
                wanted = torch.full((len(logits),), self.labels[number], device=logits.device)
                yield loss_of(logits, wanted).mean() / len(some)

        descend(parameters, tracker(progress)(plan, "fine-tuning"), losses, lr, "fine-tuning")

    @torch.no_grad()
    def accuracy(self, numbers: Sequence[int]) -> float:
        """Return the accuracy on masked variants, which are the same in every call."""
        generator = np.random.default_rng([self.seed, 2])
        right = [
            float((prediction_of(self.logits(n, self.masks(n, generator)[PLAIN:])) == self.labels[n]).float().mean())
            for n in numbers
        ]
        return float(np.mean(right))
