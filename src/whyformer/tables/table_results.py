"""Results for tables: scores of columns and of training rows, and their agreement with permutation importance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from whyformer.errors import BadInput, MissingExtra, UnknownName, require
from whyformer.evidence import DRAWS, LEVEL
from whyformer.files import Damaged, made_folder, read_json, readable_folder, write_file, writing
from whyformer.inputs.table_schema import Table
from whyformer.parameters import Named, checked
from whyformer.registry import Method, register_named
from whyformer.results.codec import Float32, Float64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Explanation
from whyformer.run import Attribution, Run
from whyformer.shapes import Array
from whyformer.views.table_marks import agreement_view, context_view, global_view, permutation_view
from whyformer.views.view import view_of

# A tabular model in a folder: which class with which arguments, its weights, and its table.
#
# config.json        {"library": …, "class": …, "arguments": {…}}
# table.json         Table.to_dict()
# model.safetensors  the weights

CONFIG, TABLE, WEIGHTS = "config.json", "table.json", "model.safetensors"
ENTRIES = {"library": str, "class": str, "arguments": dict}

# Only these are built from a file: a folder must not be able to name any code it likes.
CLASSES = {
    "rtdl_revisiting_models": ("FTTransformer",),
    "tab_transformer_pytorch": ("FTTransformer", "TabTransformer"),
}


@checked
def save_model(model: nn.Module, arguments: dict[str, Any], table: Table, folder: str | Path) -> Path:
    """Save a model (with the arguments of its constructor) and its table; ``load_model`` reads them back."""
    from safetensors.torch import save

    library = type(model).__module__.split(".")[0]
    _check(library, type(model).__name__)
    if not isinstance(table, Table):
        raise BadInput(f"table must be a whyformer.Table, not a {type(table).__name__}.")
    config = {"library": library, "class": type(model).__name__, "arguments": arguments}
    try:
        described = json.dumps(table.to_dict(), ensure_ascii=False, indent=1)
        written = {CONFIG: json.dumps(config, indent=1), TABLE: described}
    except (TypeError, ValueError) as error:
        raise BadInput(f"arguments and table cannot be saved as JSON: {error}.") from error
    folder = made_folder(folder)
    with writing(folder):
        for name, text in written.items():
            write_file(folder / name, text.encode())
        write_file(folder / WEIGHTS, save({k: v.contiguous() for k, v in model.state_dict().items()}))
    return folder


@checked
def load_model(folder: str | Path) -> tuple[nn.Module, Table]:
    """Load a saved model, ready to be explained, and its table."""
    from safetensors.torch import load_file

    folder = readable_folder(folder, "saved tabular model in")
    if not (folder / TABLE).is_file():
        raise BadInput(
            f"{str(folder)!r} is not a saved tabular model: it has no {TABLE}, which whyformer.tables.save_model "
            "writes. For a model of texts or images and a file with columns: whyformer batch FILE --column NAME --out "
            "FOLDER"
        )
    try:
        config, described = (read_json(folder / name) for name in (CONFIG, TABLE))
        for key, kind in ENTRIES.items():
            if not isinstance(config, dict) or not isinstance(config.get(key), kind):
                raise Damaged(f"{CONFIG} has no {key!r}, or it is not of type {kind.__name__}")
        library, name, arguments = (config[key] for key in ENTRIES)
        weights = load_file(folder / WEIGHTS)
        _check(library, name)
        _require_modest(arguments, sum(tensor.numel() for tensor in weights.values()))
        require(library, why=f"a saved {name}")
        model: nn.Module = getattr(import_module(library), name)(**arguments)
        model.load_state_dict({k: v.to(model.state_dict()[k].dtype) for k, v in weights.items()})
        return model.eval(), Table.from_dict(described)
    except (UnknownName, MissingExtra):
        raise
    except Exception as error:  # files can hold anything, and the classes of other libraries say it in their own way
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(
            f"{str(folder)!r} is not a saved tabular model ({words}): use whyformer.tables.save_model to write one."
        ) from error


def _require_modest(arguments: Any, weights: int) -> None:
    """Raise if a number is larger than the number of weights: a model of a billion blocks would be built first."""
    parts = arguments.values() if isinstance(arguments, dict) else arguments if isinstance(arguments, list) else ()
    for part in parts:
        _require_modest(part, weights)
    if isinstance(arguments, int) and abs(arguments) > weights:
        raise Damaged(f"{CONFIG} has the number {arguments}, which is more than the {weights} saved weights")


def _check(library: str, name: str) -> None:
    if name not in CLASSES.get(library, ()):
        known = [f"{a}.{b}" for a, names in CLASSES.items() for b in names]
        raise UnknownName("kind of saved model", f"{library}.{name}", known, "Pass other models from Python.")


# Agreement of an explanation with permutation importance.

FEWEST = 3  # columns that can be ranked: two are in one of two orders


@dataclass(frozen=True, eq=False)
class Agreement(Result):
    """Spearman correlation of column scores with permutation importance (or scores passed), with a 95 % interval.

    Scores are means of absolute scores over rows. The interval draws rows, and repeats of the permutation, with
    replacement. ``classes`` compares the rows predicted as each class, ``per_row`` each row with the changes of its own
    prediction; a row without different scores has NaN.
    """

    what: ClassVar[str] = "agreement"
    axes: ClassVar[Mapping[str, str]] = {"labels": "U", "scores": "U", "importance": "U", "per_row": "R"}
    finite: ClassVar[tuple[str, ...]] = ("scores", "importance")

    labels: tuple[str, ...]
    scores: Float64
    importance: Float64  # the fall of the metric when the column is shuffled, or the scores passed
    spearman: float  # NaN where all scores, or all falls, are equal
    low: float  # NaN where neither rows nor repeats are known
    high: float
    method: str
    metric: str = ""  # of the permutation; "" where scores were passed
    classes: dict[str, float] = field(default_factory=dict)
    per_row: Float64 | None = None  # of rows whose predictions were recorded
    rows: int = 0
    warnings: tuple[str, ...] = ()
    model: str = ""

    def to_frame(self) -> DataFrame:
        """Return one row per column."""
        return dataframe({"column": self.labels, "score": self.scores, "importance": self.importance})


def rank_correlation(first_RU: Array, second_RU: Array) -> Array:
    """(R,) Spearman correlation of each row with the row of the other; ties share a rank; NaN where all are equal."""
    from scipy.stats import rankdata

    away = [ranks - ranks.mean(1, keepdims=True) for ranks in (rankdata(x, axis=1) for x in (first_RU, second_RU))]
    with np.errstate(invalid="ignore", divide="ignore"):
        return (away[0] * away[1]).sum(1) / np.sqrt((away[0] ** 2).sum(1) * (away[1] ** 2).sum(1))


class Ranked(NamedTuple):
    """Absolute scores of columns, without special tokens: of each row where they are known, and their mean."""

    labels: tuple[str, ...]
    scores_RU: Array  # (0, U) where only the mean is known
    mean_U: Array
    method: str
    predicted: Sequence[str] = ()  # class of each row


def ranked_rows(explanations: Any) -> Ranked:
    """Return what is compared of an explanation, or of a list of them."""
    rows = [explanations] if isinstance(explanations, Explanation) else explanations
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Explanation) for row in rows):
        raise BadInput(
            "agreement takes what wf.explain or wf.explain_global returned for one method: an explanation, a list of "
            f"them, or a GlobalExplanation, not a {type(explanations).__name__}."
        )
    first = rows[0]
    if any(row.units.labels != first.units.labels for row in rows):
        raise BadInput("the rows have different units: agreement is for tables, whose columns stay the same.")
    plain = [i for i, special in enumerate(first.units.special) if not special]
    scores_RU = np.stack([np.abs(row.scores[plain]).astype(float) for row in rows])
    predicted = [row.prediction.label or str(row.prediction.index) for row in rows]
    return Ranked(tuple(first.units.labels[i] for i in plain), scores_RU, scores_RU.mean(0), first.method, predicted)


def agreement_of(
    ranked: Ranked,
    labels: Sequence[str],
    drops_UK: Array,
    seed: int,
    changes_RU: Array | None = None,
    rows: int = 0,
    **facts: Any,
) -> Agreement:
    """Compare scores with the falls of a metric (columns, repeats) and the changes of single predictions.

    rows: that were shuffled; per row, only scores of as many rows are compared. facts: fields of the result.
    """
    common = [label for label in labels if label in ranked.labels]
    if len(common) < FEWEST:
        raise BadInput(
            f"the explanation and the permutation have {len(common)} columns in common: at least {FEWEST} are needed. "
            "Pass groups= to feature_permutation if columns were explained in groups."
        )
    ours, theirs = [ranked.labels.index(c) for c in common], [list(labels).index(c) for c in common]
    scores_RU, mean_U, drops_UK = ranked.scores_RU[:, ours], ranked.mean_U[ours], drops_UK[theirs]
    low, high = _interval(scores_RU, mean_U, drops_UK, seed)
    left_out = [label for label in (*labels, *ranked.labels) if label not in common]
    warnings = [f"columns in only one of the two are left out: {', '.join(left_out)}."] if left_out else []
    per_row, classes = None, {}
    if changes_RU is not None and len(scores_RU) == rows > 1:
        changes_RU = changes_RU[:, theirs].astype(float)
        per_row = rank_correlation(scores_RU[: len(changes_RU)], changes_RU)
        predicted = np.array(ranked.predicted[: len(changes_RU)])
        for name in dict.fromkeys(predicted.tolist()):
            of_class = (x[np.flatnonzero(predicted == name)].mean(0)[None] for x in (scores_RU, changes_RU))
            classes[name] = float(rank_correlation(*of_class)[0])
    return Agreement(
        labels=tuple(common),
        scores=mean_U,
        importance=drops_UK.mean(1),
        spearman=float(rank_correlation(mean_U[None], drops_UK.mean(1)[None])[0]),
        low=low,
        high=high,
        method=ranked.method,
        classes=classes,
        per_row=per_row,
        rows=len(scores_RU),
        warnings=tuple(warnings),
        **facts,
    )


def _interval(scores_RU: Array, mean_U: Array, drops_UK: Array, seed: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the correlation (percentile bootstrap over rows and over repeats)."""
    rows, repeats = len(scores_RU), drops_UK.shape[1]
    if max(rows, repeats) < 2:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    scores_DU = np.repeat(mean_U[None], DRAWS, 0)
    if rows > 1:
        scores_DU = generator.multinomial(rows, np.full(rows, 1 / rows), size=DRAWS) @ scores_RU / rows
    drops_DU = generator.multinomial(repeats, np.full(repeats, 1 / repeats), size=DRAWS) @ drops_UK.T / repeats
    drawn = rank_correlation(scores_DU, drops_DU)
    drawn = drawn[~np.isnan(drawn)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]) if len(drawn) else (np.nan, np.nan)
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class GlobalExplanation(Result):
    """Scores of many rows, averaged per column, with 95 % confidence intervals of the mean.

    Columns outside the attention (the numerical columns of a TabTransformer) are in ``unseen``, not among the scores.
    ``mean_size`` is the mean of absolute scores, the usual summary of signed ones. ``samples`` are the scores and
    values of some rows, at even distances, for pictures.
    """

    what: ClassVar[str] = "global explanation"
    axes: ClassVar[Mapping[str, str]] = {
        "labels": "U",
        "special": "U",
        **dict.fromkeys(("mean", "low", "high", "mean_size", "size_low", "size_high"), "U"),
        "samples": "SU",
    }
    finite: ClassVar[tuple[str, ...]] = ("mean", "mean_size")

    labels: tuple[str, ...]
    special: tuple[bool, ...]
    mean: Float64
    low: Float64
    high: Float64
    mean_size: Float64
    size_low: Float64
    size_high: Float64
    rows: int
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    scalar: str = "logit"
    signed: bool = False
    unseen: tuple[str, ...] = ()
    matrix: Float64 | None = None  # the mean map (position × position), where the method has one
    samples: Float64 | None = None  # (S, U)
    sample_values: tuple[tuple[str, ...], ...] = ()
    sample_classes: tuple[str, ...] = ()  # predicted
    agreement: Agreement | None = None  # with permutation importance, where reference= was passed
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    model: str = ""

    @property
    def compared(self) -> Ranked:
        """Absolute scores without special tokens, of single rows only where all of them are among the samples."""
        plain = [i for i, special in enumerate(self.special) if not special]
        rows_RU = np.zeros((0, len(plain)))
        if self.samples is not None and len(self.samples) == self.rows:
            rows_RU = np.abs(self.samples[:, plain])
        labels = tuple(self.labels[i] for i in plain)
        return Ranked(labels, rows_RU, self.mean_size[plain], self.method, self.sample_classes)

    @property
    def importance(self) -> Array:
        """(U,) values that columns are ranked by: the mean, or for signed scores the mean absolute score."""
        return self.mean_size if self.signed else self.mean

    def ranked(self, specials: bool = False) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        order = np.argsort(-self.importance, kind="stable")
        return [(self.labels[i], float(self.importance[i])) for i in order if specials or not self.special[i]]

    def to_frame(self) -> DataFrame:
        """Return one row per column; columns outside the attention have no score (NaN)."""
        names = ("mean", "low", "high", "mean_size", "size_low", "size_high")
        rows = [
            {"column": label, "explained": True, "special": self.special[i], **{n: getattr(self, n)[i] for n in names}}
            for i, label in enumerate(self.labels)
        ]
        rows += [
            {"column": c, "explained": False, "special": False, **dict.fromkeys(names, np.nan)} for c in self.unseen
        ]
        return dataframe(rows)


@dataclass(frozen=True, eq=False)
class FeaturePermutation(Result, Named):
    """The fall of a metric when a column is shuffled: mean over repeats, with 95 % confidence intervals.

    ``wf.compare(…, method=["attn_lrp", permutation])`` evaluates it as a method that scores every row alike.
    """

    what: ClassVar[str] = "feature permutation"
    axes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("labels", "mean", "low", "high"), "U"), "drops": "UR", "changes": "IU",
    }  # fmt: skip

    labels: tuple[str, ...]
    drops: Float64  # (columns or groups, repeats): metric on the table, less the metric with the column shuffled
    score: float  # the metric on the table itself
    metric: str
    rows: int
    mean: Float64
    low: Float64  # NaN for a single repeat, which shows no spread
    high: Float64
    seed: int = 0
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changes: Float32 | None = None  # mean |change| of the output for the predicted class, of the first rows
    warnings: tuple[str, ...] = ()
    model: str = ""

    def __post_init__(self) -> None:
        register_named(_as_method(self))

    @cached_property
    def name(self) -> str:
        """For example "permutation:1f0c93ab", by which results name it."""
        numbers = np.ascontiguousarray(self.drops, dtype=np.float64).tobytes()
        return "permutation:" + hashlib.blake2b("\n".join(self.labels).encode() + numbers, digest_size=4).hexdigest()

    def agreement(self, explanation: Any, seed: int = 0) -> Agreement:
        """Return the rank correlation of an explanation with this importance, over all rows, per class and per row.

        explanation: what ``wf.explain_global`` returned, or ``wf.explain`` for one method, of the same rows in the
        same order.

        >>> model, table = wf.demo.load_adult()
        >>> rows = wf.demo.census.adult_rows()
        >>> lost = wf.feature_permutation(model, rows, [row["income"] for row in rows], processor=table, repeats=2)
        >>> lost.agreement(wf.explain_global(model, rows, table, method="attn_lrp")).show()
        """
        ranked = explanation.compared if isinstance(explanation, GlobalExplanation) else ranked_rows(explanation)
        facts = {"metric": self.metric, "model": self.model}
        return agreement_of(ranked, self.labels, self.drops, seed, self.changes, self.rows, **facts)

    def ranked(self) -> list[tuple[str, float]]:
        """Columns from the most to the least important; ties keep their order."""
        return [(self.labels[i], float(self.mean[i])) for i in np.argsort(-self.mean, kind="stable")]

    def to_frame(self) -> DataFrame:
        """Return one row per column or group."""
        return dataframe({"column": self.labels, "mean": self.mean, "low": self.low, "high": self.high})


def _as_method(permutation: FeaturePermutation) -> Method:
    """Return the entry of the registry, which ``list_methods()`` leaves out."""

    def explain(run: Run) -> Attribution:
        """Score each column by the fall of the metric, the same for every row; falls below 0 are 0.

        Misleads when: rows differ: it knows what a column is worth to all of them.
        """
        falls = dict(zip(permutation.labels, np.clip(permutation.mean, 0, None).tolist(), strict=True))
        scores = torch.zeros(run.keep_BN.shape)
        for row, (units, keep) in enumerate(zip(run.units, run.keep_BN.cpu(), strict=True)):
            missing = [n for n, special in zip(units.labels, units.special, strict=True) if not special | (n in falls)]
            if missing:
                raise BadInput(f"{permutation.name} has no importance of {missing[0]!r}: shuffle the same columns.")
            scores[row, keep] = torch.tensor([falls.get(name, 0.0) for name in units.labels])
        return Attribution(scores.to(run.keep_BN.device))

    return Method(
        name=permutation.name,
        run=explain,
        paper="Breiman 2001",
        needs=frozenset(),
        cost=lambda units, **options: (1, 0),
        cost_text="1 forward; the permutation is done",
        signed=False,
        class_specific=False,
        specificity="black box",
        idea="Score each column by the fall of a metric when it is shuffled, the same for every row.",
        meaning=f"fall of {permutation.metric} when the column is shuffled",
        unfit="it scores every row alike",
    )


@dataclass(frozen=True, eq=False)
class ContextExplanation(Result):
    """Scores of the columns of one row and of the training rows beside it, for one prediction.

    ``cells`` are the scores of the training rows' cells, (R, U). ``scores`` and ``cells`` are NaN if a row is one token
    and the method uses attention, which cannot score columns then.
    """

    what: ClassVar[str] = "in-context explanation"
    axes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("columns", "values", "scores"), "U"), **dict.fromkeys(("answers", "row_scores"), "R"),
        "cells": "RU",
    }  # fmt: skip

    columns: tuple[str, ...]
    values: tuple[str, ...]  # what the row holds
    scores: Float32
    answers: tuple[str, ...]  # of the training rows, as the model was told
    row_scores: Float32
    cells: Float32
    method: str
    target: str
    value: float  # what is explained
    scalar: str = "logit"
    options: dict[str, Any] = field(default_factory=dict)
    signed: bool = True
    rows_signed: bool = True
    forwards: int = 1
    backwards: int = 1
    setup_forwards: int = 0  # of the study of the model, where it was made now
    warnings: tuple[str, ...] = ()
    model: str = ""

    def ranked(self) -> list[tuple[str, float]]:
        """Return columns from the highest score to the lowest; ties keep their order."""
        return [(self.columns[i], float(self.scores[i])) for i in np.argsort(-self.scores, kind="stable")]

    def ranked_rows(self) -> list[tuple[int, float]]:
        """Return numbers of training rows from the highest score to the lowest; ties keep their order."""
        return [(int(i), float(self.row_scores[i])) for i in np.argsort(-self.row_scores, kind="stable")]

    def to_frame(self) -> DataFrame:
        """Return one row per column, then one per training row."""
        listed = [
            {"kind": "column", "name": name, "value": value, "score": float(score)}
            for name, value, score in zip(self.columns, self.values, self.scores, strict=True)
        ]
        listed += [
            {"kind": "training row", "name": str(i), "value": answer, "score": float(score)}
            for i, (answer, score) in enumerate(zip(self.answers, self.row_scores, strict=True))
        ]
        return dataframe(listed)


view_of.register(Agreement, agreement_view)
view_of.register(GlobalExplanation, global_view)
view_of.register(FeaturePermutation, permutation_view)
view_of.register(ContextExplanation, context_view)
