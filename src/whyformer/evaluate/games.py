"""The inputs of an evaluation and their variants: run once, in full batches, shared by all methods and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whyformer.engines.perturbation import variants as variant_kinds
from whyformer.engines.perturbation.game import COLUMNS, Game, Prefix, VariantStore, cache_of, cached_file
from whyformer.engines.perturbation.players import held_text, held_units
from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.families import says_tokens
from whyformer.parameters import Hold
from whyformer.registry import get_method
from whyformer.results.types import Target, Units
from whyformer.run import Run
from whyformer.run.session import Session
from whyformer.shapes import Array
from whyformer.targets import scalar_at, scalar_of

# A detector's queries under perturbation. The value that is measured is that of the explained query, by its number.
# Where a second query names the same object instead, the value falls although the detector still finds the object:
# that is counted, and a warning says how often.

SAME = 0.5  # overlap (intersection over union) from which two boxes are of one object


def asks_each(modality: Modality, classes: int) -> bool:
    """Return whether classes are independent (sigmoid), as in DETR's successors. DETR has a class "no object"."""
    return modality.mean.outcome == "objects" and classes == getattr(modality.model.config, "num_labels", None)


class Queries:
    """The queries of one image beside the one that is explained."""

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        one = run.batch.select([row])
        self.query, self.index = one.positions[0], run.targets[row].index
        output = self._call(one)
        self.box_4 = output.pred_boxes[0, self.query].float()
        self.had_Q = self._others(output)[0]

    @torch.no_grad()
    def _call(self, batch: Batch) -> Any:
        np.add.at(self.run.forwards_B, [self.row] * batch.size, 1)
        return self.run.modality.read.call(batch, **self.run.output.extra)

    def say(self, batch: Batch) -> list[Tensor]:
        """(M,) each: probability, logit, whether the explained query still names the class, whether a new one does."""
        output = self._call(batch)
        logits_MC = output.logits[:, self.query].float()
        each = asks_each(self.run.modality, logits_MC.shape[1])
        probability = (logits_MC.sigmoid() if each else logits_MC.softmax(1))[:, self.index]
        stays = self._named(logits_MC) == self.index
        taken = (self._others(output) & ~self.had_Q).any(1) & ~stays
        return [probability, logits_MC[:, self.index], stays, taken]

    def _named(self, logits_XC: Tensor) -> Tensor:
        """(X,) the class that a query names: the most probable one; -1 where even that has less than one half."""
        best = logits_XC.argmax(-1)
        if not asks_each(self.run.modality, logits_XC.shape[-1]):
            return best
        return torch.where(logits_XC.amax(-1) > 0, best, -1)

    def _others(self, output: Any) -> Tensor:
        """(M, Q) other queries that name the same class at the same place."""
        naming = self._named(output.logits.float()) == self.index
        naming &= overlap(output.pred_boxes.float(), self.box_4) >= SAME
        naming[:, self.query] = False
        return naming


def overlap(boxes: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (…, 4) given by centre, width and height."""
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    other_low, other_high = other[:2] - other[2:] / 2, other[:2] + other[2:] / 2
    sides = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0)
    inside = sides.prod(-1)
    union = boxes[..., 2:].prod(-1) + other[2:].prod() - inside
    return inside / union.clamp(min=1e-12)


TOGETHER = 2**14  # tokens of a batch in which variants of different inputs run

# Parameters that are in the names of files by what they came to (targets, players, variants, the description of the
# model), and those that change no number. Every other one is in all of the names.
RESOLVED = {
    "self", "explainer", "inputs", "target", "scalar", "replace", "reference", "units", "hold", "seed",
    "batch_size", "progress", "cache", "perturb", "together",
}  # fmt: skip


class Games:
    """A session's inputs, what is explained of each, and one game per input. Made by :func:`games_of`."""

    def __init__(
        self,
        explainer: CoreExplainer,
        inputs: Any,
        *,
        target: Any = None,
        scalar: str = "logit",
        replace: str | int | None = None,
        reference: Any = None,
        batch_size: int | None = None,
        seed: int = 0,
        progress: bool | None = None,
        cache: str | Path | None = None,
        perturb: bool = True,
        units: Any = "token",
        hold: Hold = None,
        runner_up: bool = False,
        together: bool | None = None,
    ) -> None:
        """runner_up: games also return the logit of the second most likely class, where there is one.

        together: variants of different inputs may share a batch (:meth:`ask`); by default on a GPU, where a batch of
        one short input's variants takes about as long as a full one.
        """
        asked = {name: value for name, value in locals().items() if name not in RESOLVED}
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "progress": progress, "units": units}
        source = explainer.source(inputs)
        paired = bool(source.raw) and all(isinstance(raw, tuple) for raw in source.raw)  # (prompt, answer)
        if paired and says_tokens(source.modality.model) and not source.modality.read.joint:
            settings["decoding"] = Decoding(span=True)  # an answer is judged as a whole: by its log-probability
        self.session = session = Session(explainer, source, target=target, scalar=scalar, **settings)
        # What explanations are asked for besides the method, so that they are of the same.
        self.asked = {"units": units, "span": "decoding" in settings}
        self.runner_up = runner_up
        self.explainer, self.seed, self.batch_size, self.track = explainer, seed, session.step, session.track
        self.modality, self.batch = session.modality, session.batch
        on_gpu = next(iter(self.batch.tensors.values())).device.type != "cpu"
        self.together = (on_gpu if together is None else together) and self._can_share()
        # Where an input gives several explanations (detections, tokens of an answer), each is judged by itself.
        self.of = self.batch.groups or tuple(range(self.batch.size))  # per explanation: the input it is of
        self.inputs = [inputs] if session.single else inputs
        if expanded := self.batch is not session.padded and not self.batch.answers:
            # Explanations of one input as inputs of their own: the image once per detection, the text once per answer.
            if session.one_by_one or any("written" in facts for facts in self.batch.encodings):
                raise NotOffered(
                    "each input has one explanation per token of its answer, and these tokens have to be run one by "
                    "one here: they cannot be compared. Pass the tensors of one prefix (decoder_input_ids) instead."
                )
            self.inputs = {**self.batch.tensors, **self.batch.constants}
        self.replacement = variant_kinds.checked_replacement(self.modality, self.batch, replace) if perturb else None
        self.by_default = replace is None
        # The inputs that means and resampling are taken from.
        reference = self.modality.read.reference if reference is None else reference
        self.pool: Batch = self.batch if reference is None else explainer.prepare(reference)[1]
        self.runs = [session.run(rows).by_input for rows in session.parts()]
        # What is always there, before anything is run: a part that is not in an input is refused at once.
        self.hold, self.held_U = hold, self.held_by(hold)
        if hold is not None and expanded:
            # Methods get tensors here, without the text: the numbers of what is held, where all inputs have the same.
            numbers = {tuple(np.flatnonzero(held_U).tolist()) for held_U in self.held_U}
            self.hold = list(numbers.pop()) if len(numbers) == 1 else hold
        self.targets: list[Target] = [t for run in self.runs for t in run.targets]
        self.scalar = self.runs[0].scalar
        self.units: list[Units] = [u for run in self.runs for u in ([units for _, units in run.segments] or run.units)]
        self.parts = [self._parts(number, u) for number, u in enumerate(self.units)]
        # Everything that an answer depends on besides the input, what is explained of it, and the variant.
        self.folder, self.question = cache_of(cache, lambda: (explainer.question(), asked))
        self._games: dict[int, Game] = {}
        self._variants: dict[int, variant_kinds.Variants] = {}
        self._seconds: dict[int, list[int]] = {}  # by the id of a run: the second most likely class of each row

    @property
    def size(self) -> int:
        return self.batch.size

    @property
    def input_count(self) -> int:
        """Inputs that the user gave."""
        return max(self.of, default=-1) + 1

    def each(self, marks: Sequence[Any]) -> Sequence[Any]:
        """Return one annotation per explanation, from one per explanation or per input."""
        return marks if len(marks) == self.size else [marks[i] for i in self.of]

    @property
    def forwards(self) -> int:
        """Variants that were run."""
        return sum(game.forwards for game in self._games.values())

    def held_by(self, hold: Hold) -> list[Array]:
        """(tokens,) of each input, which of them are held."""
        return [held_U for run in self.runs for held_U in held_units(run, hold)]

    @property
    def held(self) -> tuple[str, ...] | None:
        """The text of what was held, per input."""
        if self.hold is None:
            return None
        units = [units for run in self.runs for units in run.units]
        return tuple(held_text(*each) for each in zip(units, self.held_U, strict=True))

    def options_of(self, method: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a method; its ``hold``, if it has one without a value, is that of the evaluation."""
        if self.hold is None or "hold" not in get_method(method).options:
            return dict(options)
        return {"hold": self.hold, **options}

    def warnings(self) -> tuple[str, ...]:
        """Warnings about the variants of these inputs, once they were run."""
        warnings = _held_in_words(self.held)
        if self._games and self.replacement is not None:
            warnings += variant_kinds.baseline_remarks(self.modality, self.replacement, self.by_default)
        warnings += dict.fromkeys(remark for each in self._variants.values() for remark in each.remarks)
        if self.input_count < self.size:
            warnings.append(
                f"{self.size} explanations of {self.input_count} inputs: an input with several explanations counts "
                "several times in the means. Confidence intervals are over inputs, because explanations of one input "
                "are not independent."
            )
        said = [game.said for game in self._games.values()] if self.modality.mean.outcome == "objects" else []
        gone_N = np.concatenate([s[s[:, 2] < 1] for s in said]) if said else np.zeros((0, COLUMNS + 1))
        taken = int(gone_N[:, COLUMNS].sum())
        if taken:
            warnings.append(
                f"another query detected the object (same class, boxes overlap by half or more) in {taken} of the "
                f"{len(gone_N)} variants in which the explained query lost it ({taken / len(gone_N):.0%}): there the "
                "explained value falls, although the detector still finds the object."
            )
        return tuple(warnings)

    def label(self, number: int) -> str:
        """The name of what is explained of one input."""
        run, target = self.run_of(number)[0], self.targets[number]
        return target.label or run.output.name(target.index) or str(target.index)

    def run_of(self, number: int) -> tuple[Run, int]:
        """Return the run that an input belongs to, and its row there."""
        step = 1 if self.session.one_by_one else self.batch_size
        return self.runs[number // step], number % step

    def second_class(self, number: int) -> int | None:
        """The second most likely class of an input, where the model chooses among classes."""
        run, row = self.run_of(number)
        if self.batch.answers or self.batch.spans or not run.output.chooses or run.output.independent:
            return None
        if run.logits.shape[1] < 2:
            return None
        if id(run) not in self._seconds:  # of all rows at once: each would be read from the GPU by itself
            self._seconds[id(run)] = run.logits.topk(2).indices[:, 1].tolist()
        return self._seconds[id(run)][row]

    def over_units(self, number: int, units: Units, scores_U: Array) -> Array:
        """Return the scores of one input over all of its units: 0 for those that a method of attention leaves out."""
        if self.run_of(number)[0].attended is None:
            return scores_U
        scored = dict(zip(units.labels, scores_U, strict=True))
        return np.array([scored.get(label, 0.0) for label in self.units[number].labels], dtype=scores_U.dtype)

    def per_part(self, number: int, scores_XU: Array) -> Array:
        """(…, P) scores of the tokens of one input, added up over its parts."""
        run, row = self.run_of(number)
        if not run.segments:
            return np.asarray(scores_XU[..., self.parts[number]])
        groups = run.segments[row][0]
        return np.stack([scores_XU[..., groups[part]].sum(-1) for part in self.parts[number]], -1)

    @property
    def wanted_targets(self) -> list[Target] | None:
        """The targets of explanations; None where each input brings its answer."""
        return None if self.batch.answers else list(self.targets)

    def _parts(self, number: int, units: Units) -> Array:
        """Return the units that are evaluated: those that can be masked, without special tokens and held features."""
        removable = np.array(self.modality.mask.removable(units, self.batch), dtype=bool)
        parts = np.flatnonzero(removable & ~np.array(units.special, dtype=bool))
        run, row = self.run_of(number)
        groups, held_U = run.segments[row][0] if run.segments else [[i] for i in range(len(units))], self.held_U[number]
        return parts[[not held_U[groups[part]].all() for part in parts]] if held_U.any() else parts

    def _players(self, number: int) -> list[tuple[int, ...]]:
        """Return the tokens of each part, which are masked together."""
        return variant_kinds.players_of_parts(*self.run_of(number), self.parts[number].tolist(), self.held_U[number])

    def game(self, number: int) -> Game:
        """The game of one input, shared by all methods and metrics; made on first use."""
        if number not in self._games:
            self._games[number] = self.new_game(number)
        return self._games[number]

    def variants(self, number: int) -> variant_kinds.Variants:
        """Return the variants of one input: tensors with some of its parts masked."""
        assert self.replacement is not None
        run, row = self.run_of(number)
        pool = self.pool
        if self.replacement == "resample" and pool is self.batch:  # its own values would leave the input as it is
            if self.size == 1:
                raise BadInput(
                    "replace='resample' draws from other inputs: pass reference=[…], or more than one input."
                )
            pool = pool.select([i for i in range(self.size) if i != number])
        seed, trim = (self.seed, number), not self.together
        return variant_kinds.variants_of(run, row, self._players(number), self.replacement, pool, seed, trim)

    def ask(self, asked: Mapping[int, Array]) -> dict[int, Array]:
        """(M, columns) what the model says of variants (M, P) of several inputs, by the number of the input."""
        if self.together:
            for run in self.runs:
                numbers = [number for number in asked if self.run_of(number)[0] is run]
                self._run_together(run, {number: self.game(number).unknown(asked[number]) for number in numbers})
        return {number: self.game(number).ask(present_MP) for number, present_MP in asked.items()}

    def _can_share(self) -> bool:
        """Return whether variants of different inputs may share a batch: independent rows, and no cached prefix."""
        rows_apart = not (self.batch.reference_rows or self.modality.read.mixes_rows)
        plain = not (self.modality.mean.outcome == "objects" or self.modality.read.opaque or self.modality.read.joint)
        return rows_apart and plain and not self.batch.answers and not says_tokens(self.modality.model)

    def _run_together(self, run: Run, asked: Mapping[int, Array]) -> None:
        """Run variants of several inputs in full batches, and store the outputs in their games."""
        variants = {number: self._variants[number] for number in asked}
        if not all(isinstance(each, variant_kinds.Filled) and each.draws == 1 for each in variants.values()):
            return
        for some in _full_batches(asked, max(1, TOGETHER // max(1, self.modality.place.length(run.batch)))):
            batches = [variants[number].batch(present_MP) for number, present_MP in some.items()]
            changed = {name: torch.cat([batch.tensors[name] for batch in batches]) for name in run.batch.tensors}
            numbers = [number for number, present_MP in some.items() for _ in present_MP]
            rows = [self.run_of(number)[1] for number in numbers]
            logits = run.forward(run.batch.select(rows).with_tensors(**changed), rows).float()
            seconds = [self.second_class(number) for number in numbers] if self.runner_up else ()
            said = iter(_columns(_said(run, rows, logits, seconds)))
            for number, present_MP in some.items():
                self.game(number).tell(present_MP, np.stack([next(said) for _ in present_MP]))

    def new_game(self, number: int) -> Game:
        """Return a new game of one input, with no values but those on disk."""
        run, row = self.run_of(number)
        parts, variants = self.parts[number], self.variants(number)
        self._variants[number] = variants
        queries = Queries(run, row) if self.modality.mean.outcome == "objects" else None
        second = self.second_class(number) if self.runner_up else None
        columns = COLUMNS + (queries is not None or second is not None)
        store = None
        if self.folder is not None:
            # The players: of "a b a", without what is left of it when everything is away, a held "a" may be either.
            about = (self.targets[number], self.scalar, self.replacement, self._players(number), columns)
            contents = {"question": self.question, "about": about, "inputs": variants.contents(len(parts))}
            path = cached_file(self.folder, "variants", **contents)
            store = None if path is None else VariantStore(path, len(parts), columns)
        return Game(
            len(parts),
            partial(_say, run, row, variants, queries, Prefix(run, row), second),
            batches=lambda present_MP: variants.batches(present_MP, run.batch_size),
            store=store,
            draws=variants.draws,
            columns=columns,
        )


def _held_in_words(held: tuple[str, ...] | None, most: int = 3) -> list[str]:
    """Return a warning that names the held features: once if all inputs hold the same, else for the first few."""
    if held is None:
        return []
    always = "never masked, neither by the evaluation nor by methods with hold=, and not evaluated."
    if len(set(held)) == 1:
        return [f"{held[0]} is held in {'every input' if len(held) > 1 else 'the input'}: {always}"]
    named = "; ".join(f"{text} (input {number})" for number, text in enumerate(held[:most]))
    rest = f"; and so on, {len(held)} inputs" if len(held) > most else ""
    return [f"Held, {always} {named}{rest}."]


def _say(
    run: Run,
    row: int,
    variants: variant_kinds.Variants,
    queries: Queries | None,
    prefix: Prefix,
    second: int | None,
    present_MP: Array,
) -> Array:
    """(M, 3) probability, logit, whether the target is predicted; a fourth: see COLUMNS."""
    drawn = []
    for draw in range(variants.draws):
        batch = variants.batch(present_MP, draw)
        if queries is not None:
            drawn.append(_columns(queries.say(batch)))
            continue
        logits = prefix.logits(batch).float()
        drawn.append(_columns(_said(run, [row] * len(logits), logits, [second] * len(logits))))
    return variants.mean(drawn)


def _columns(said: Sequence[Tensor]) -> Array:
    return np.stack([part.detach().double().cpu().numpy() for part in said], 1)


def _said(run: Run, rows: Sequence[int], logits: Tensor, seconds: Sequence[int | None] = ()) -> list[Tensor]:
    """(M,) each, of variants of these rows: COLUMNS; the logits of second classes, where there are any."""
    targets = [run.targets[row] for row in rows]
    single = logits.shape[1] == 1  # a number, not a class: there is no probability
    known_as = run.scalar if run.modality.kind == "prompt" else "logit" if single else "probability"
    probability = scalar_of(logits, targets, known_as)
    if run.batch.answers:  # whether an answer is the predicted one is not known from its log-probability
        stays = torch.full_like(probability, torch.nan)
    elif single:
        stays = (logits[:, 0] > 0) == (run.logits[list(rows), 0] > 0)
    else:
        stays = logits.argmax(1) == torch.tensor([target.index for target in targets], device=logits.device)
    logit = "centred" if run.scalar == "centred" else "logit"
    others = [each for each in seconds if each is not None]
    also = [scalar_at(logits, torch.tensor(others, device=logits.device)[:, None], logit)] if others else []
    return [probability, scalar_of(logits, targets, logit), stays, *also]


def _full_batches(asked: Mapping[int, Array], step: int) -> Iterator[dict[int, Array]]:
    """Yield variants of several inputs in batches of ``step`` rows."""
    rows = [(number, row) for number, present_MP in asked.items() for row in present_MP]
    for start in range(0, len(rows), step):
        some: dict[int, list[Array]] = {}
        for number, row in rows[start : start + step]:
            some.setdefault(number, []).append(row)
        yield {number: np.stack(each) for number, each in some.items()}


@contextmanager
def games_of(explainer: CoreExplainer, inputs: Any, **settings: Any) -> Iterator[Games]:
    """Yield the games of these inputs; the model is borrowed meanwhile."""
    with explainer.borrowed():
        yield Games(explainer, inputs, **settings)
