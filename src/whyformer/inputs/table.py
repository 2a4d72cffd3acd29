"""Rows of a table, for any model whose columns are described by a Table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.capture.record import observe
from whyformer.capture.roles import Observe
from whyformer.choices import PASSES
from whyformer.errors import BadInput, NotOffered, UnknownName, listed
from whyformer.inputs.base import Mask, Mean, Modality, Place, Read, over_features
from whyformer.inputs.batch import Batch, Filling, Placed, Raw, SamplePool, require_numbers
from whyformer.inputs.table_model import Tokens, arrangement, facts_of, found_tokens, outputs_of, require_classes
from whyformer.inputs.table_reference import (
    MOST_BASELINES,
    covering_rows,
    default_count,
    rows_asked,
    same_columns,
    uniform_codes,
)
from whyformer.inputs.table_schema import Table
from whyformer.inputs.units import GROUPS, Column, of_pool, owners_of_columns
from whyformer.loan.borrow import known_about, module_names
from whyformer.results.types import Record, Units
from whyformer.shapes import Array
from whyformer.targets import logits_of

NO_REFERENCE = (
    "{} of its reference rows, not of the rows that are explained together, and this table has none: pass "
    "Table(…, reference=rows), or use 'zero'."
)
GIVE_ROWS = "pass Table(…, reference=rows), typical rows of the training data, to compare the row with those."
UNIFORM = (
    "the table has no reference rows, so a masked column holds 0 or, if it is categorical, each of its categories "
    f"alike: {GIVE_ROWS}"
)
UNTYPICAL = {
    "zero": f"a masked column holds 0 or its first category, and a column that holds this already scores 0: {GIVE_ROWS}"
}
KINDS = {"numerical": torch.float32, "categorical": torch.int64}
TOGETHER = '{} carry the same information, so their scores depend on each other: units="groups" scores them as one.'
COMPANY = (
    "rows of this model attend to each other: explained beside {count} {name}. Attention between rows is not included "
    "(see whyformer.tables.in_context); columns also mix there, which methods over several layers miss."
)


class TableRead(Read):
    """Rows of a table; units are the tokens that columns become, and the model's own token is special."""

    stream = "table"
    precision = torch.float32  # of numbers, before they are moved to the model

    def __init__(self, model: nn.Module, table: Table) -> None:
        super().__init__(model, table)
        self.table = table
        self.classes = table.classes
        self.has_categories = bool(table.categorical)
        self.reference, self.reference_name = table.reference, table.reference_name
        self.main = "numerical" if table.numerical else "categorical"
        self._arrange = arrangement(model, table)

    def ready(self, inputs: Any) -> tuple[Batch, bool]:
        """Encode rows, or adopt tensors {"numerical": …, "categorical": …}; return also whether it was one row."""
        if isinstance(inputs, Mapping) and any(isinstance(v, Tensor) for v in inputs.values()):
            return self.adopt(inputs), False
        if isinstance(inputs, (tuple, list)) and any(isinstance(v, Tensor) and v.ndim == 2 for v in inputs):
            return self.adopt(inputs), False  # which raises: they need names
        columns, single = self.table.read(inputs)
        tensors = {
            kind: self.move(torch.from_numpy(values).to(self.precision if dtype.is_floating_point else dtype))
            for (kind, dtype), values in zip(KINDS.items(), self.table.encode(columns), strict=True)
            if values is not None
        }
        numbers = tensors.get("numerical")
        if numbers is not None and not bool(torch.isfinite(numbers).all()):
            row, at = (~torch.isfinite(numbers)).nonzero()[0].tolist()
            raise BadInput(
                f"column {self.table.numerical[at]!r} in row {row} is too large for {numbers.dtype}, which the model "
                "computes in: scale the column."
            )
        self._fit()
        count = len(next(iter(tensors.values())))
        return Batch(tensors, raw=tuple(self.table.shown(columns, i) for i in range(count))), single

    def encode(self, raw: Sequence[Raw]) -> Batch:
        return self.ready(list(raw))[0]

    def adopt(self, tensors: Mapping[str, Any] | Sequence[Any] | Tensor) -> Batch:
        """Adopt numbers and codes that were preprocessed already."""
        wanted = {k: n for k, n in zip(KINDS, self.widths, strict=True) if n}
        ready = dict(tensors) if isinstance(tensors, Mapping) else {}
        if set(ready) != set(wanted):
            raise BadInput(
                f"ready tensors of a table are {' and '.join(map(repr, wanted))}, in a dict; got "
                f"{', '.join(map(repr, ready)) or type(tensors).__name__}. Or give rows: a DataFrame, dicts, an array."
            )
        for kind, width in wanted.items():
            if ready[kind].ndim != 2 or ready[kind].shape[1] != width:
                raise BadInput(f"{kind!r} has shape {tuple(ready[kind].shape)}; the table has {width} such columns.")
        if len({len(v) for v in ready.values()}) > 1 or not len(ready[next(iter(wanted))]):
            raise BadInput("the tensors hold different numbers of rows, or none.")
        require_numbers({k: ready[k] for k in wanted}, "numerical")
        for at, (name, values) in enumerate(self.table.categorical.items()):
            codes = ready["categorical"][:, at]
            first, last = self.table.first_code, self.table.first_code + len(values) - 1
            low, high = int(codes.min()), int(codes.max())
            if low < first or high > last:
                raise BadInput(
                    f"column {name!r} holds codes from {low} to {high}; its categories are {first} to {last}."
                )
        self._fit()
        return Batch({k: self.move(ready[k]) for k in wanted})

    def _fit(self) -> None:
        """Raise for a description that does not fit the model, before anything is computed."""
        outputs = outputs_of(self)
        self.classes = require_classes(self, outputs)
        self.either = self.table.classes if outputs == 1 and len(self.table.classes) == 2 else ()

    @property
    def widths(self) -> tuple[int, int]:
        return len(self.table.numerical), len(self.table.categorical)

    def called_with(self, constants: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**constants, "call": self.table.call} if self.table.call is not None else constants

    def call(self, batch: Batch, **extra: Any) -> Any:
        """Run the model; a model that mixes rows gets each row beside the reference rows."""
        if batch.reference_rows or batch.alone or not self.mixes_rows:
            return self.call_alone(batch)
        rows = (self.beside_reference_rows(batch.select([row])) for row in range(batch.size))
        return torch.cat([logits_of(self.call_alone(row))[:1] for row in rows])

    def call_alone(self, batch: Batch) -> Any:
        """Run the model on the rows as they are."""
        arguments, named = self._arrange(batch.tensors.get("numerical"), batch.tensors.get("categorical"))
        return self.run_model(batch, *arguments, **named)

    @property
    def mixes_rows(self) -> bool:  # type: ignore[override]  # found out when it is asked
        """Whether the model attends between rows (SAINT): on a single row, such a map has one entry."""
        facts = facts_of(self)
        if "mixes rows" not in facts:
            sizes = {tuple(site.attention_BHQK.shape[-2:]) for site in self.observed(self.any_row()).sites}
            facts["mixes rows"] = (1, 1) in sizes and len(sizes) > 1
        if facts["mixes rows"] and self.table.reference is None:
            raise BadInput(
                "rows of this model attend to each other (SAINT), so the output for one depends on the others: give "
                "reference rows, Table(…, reference=rows, reference_name='…'); 16 to 64 are usual."
            )
        return bool(facts["mixes rows"])

    def beside_reference_rows(self, one: Batch) -> Batch:
        """Append the reference rows to one row."""
        reference = self.reference_batch()
        tensors = {k: torch.cat([v, reference.tensors[k].to(v.device)]) for k, v in one.tensors.items()}
        raw = (*one.raw, *reference.raw) if one.raw else ()
        return replace(one, tensors=tensors, raw=raw, warnings=(), alone=False, reference_rows=reference.size)

    def reference_batch(self) -> Batch:
        assert self.table.reference is not None
        facts = facts_of(self)
        if "reference" not in facts:
            whole, _ = self.ready(self.table.reference)
            site = self.observed(whole.select([0])).sites[0]
            taken = {*site.attention_BHQK.shape[1:]}  # heads, positions: rows must be told from them by their number
            count = next((n for n in range(whole.size, 0, -1) if n + 1 not in taken), 0)
            if not count:
                raise BadInput(f"{whole.size} reference rows are too few for this model: give 8 or more.")
            facts["reference"] = whole.select(range(count))
        reference: Batch = facts["reference"]
        return replace(reference, tensors={k: self.move(v) for k, v in reference.tensors.items()})

    def any_row(self) -> Batch:
        """Return a row of zeros and first categories."""
        zeros = {k: torch.zeros(1, n, dtype=d) for (k, d), n in zip(KINDS.items(), self.widths, strict=True) if n}
        if "categorical" in zeros:
            zeros["categorical"] += self.table.first_code
        return Batch({k: self.move(v) for k, v in zeros.items()})

    def observed(self, one: Batch, values: bool = False) -> Record:
        """Record the attention of one row by itself."""
        alone = replace(one, alone=True)
        return observe(lambda: logits_of(self.call(alone)), Observe(1, module_names(self.model)), values)

    def where(self, name: str) -> tuple[str, int]:
        """Return the tensor of a column, and its place there."""
        table = self.table
        if name in table.categorical:
            return "categorical", list(table.categorical).index(name)
        return "numerical", table.numerical.index(name)

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """The groups that the table names, else columns that carry the same information in its reference."""
        if self.table.groups is not None:
            return self.table.groups
        facts = facts_of(self)
        if "groups" not in facts:
            facts["groups"] = same_columns(self.table)
        groups: dict[str, tuple[str, ...]] = facts["groups"]
        return groups


class TablePlace(Place):
    """The tokens that columns become."""

    read: TableRead

    named_columns = True

    def length(self, batch: Batch) -> int:
        """Count the columns, which are the units of a model without attention."""
        return len(self.read.table.columns)

    def is_one_token(self, one: Batch, keys: int, values: Callable[[Batch], Tensor]) -> bool:
        facts, key = known_about(self.read.model), self._one_token
        if key not in facts and keys > 1 and len(self.read.table.columns) > 1 and not self.read.table.tokens:
            try:
                facts[key] = any(len(names) == len(self.read.table.columns) for names in self.tokens(one, keys))
            except NotOffered:  # a column reaches several tokens: raised again where tokens are needed
                facts[key] = False
        return bool(facts.get(key))

    @property
    def _one_token(self) -> tuple[Any, ...]:
        """The key of a fact about the model and its call, whatever the names of the columns."""
        return "row is one token", self.read.widths, self.read.table.call

    def tokens(self, batch: Batch, length: int) -> Tokens:
        """Return the columns of each attention position, or of each unit where units are the columns."""
        alone = known_about(self.read.model).get(self._one_token)
        if batch.by_input or (alone and length == len(self.read.table.columns)):
            return tuple((name,) for name in self.read.table.columns)
        facts, key = facts_of(self.read), ("tokens", length)
        if key not in facts:
            facts[key] = found_tokens(self.read, batch, length)
        tokens: Tokens = facts[key]
        return tokens

    def covers(self, batch: Batch, length: int) -> bool:
        return not self.unseen(batch, length)

    def unseen(self, batch: Batch, length: int) -> tuple[str, ...]:
        """Return columns without a token (TabTransformer's numbers)."""
        seen = {name for names in self.tokens(batch, length) for name in names}
        return tuple(c for c in self.read.table.columns if c not in seen)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        tokens = self.tokens(batch, length)
        extra = [i for i, names in enumerate(tokens) if not names]
        labels = tuple(
            " + ".join(n) or ("[CLS]" if len(extra) == 1 else f"[EXTRA{extra.index(i)}]") for i, n in enumerate(tokens)
        )
        special = tuple(not names for names in tokens)
        unseen = self.unseen(batch, length)
        result = []
        for row in range(batch.size):
            raw = batch.raw[row] if batch.raw else None
            values = None if raw is None else tuple(", ".join(raw[n] for n in names) for names in tokens)
            result.append(Units(labels, special, (self.read.stream,) * length, values=values, unseen=unseen))
        return result

    def divided(self, units: Units, by: Any, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        if by != GROUPS:
            return super().divided(units, by, facts)
        if self.read.table.groups is None and self.read.table.reference is None:
            raise BadInput(
                'units="groups" scores columns that carry the same information as one; they are found in reference '
                "rows, and this table has none: pass Table(…, reference=rows), or Table(…, groups={name: columns})."
            )
        tokens = self.tokens(replace(self.read.any_row(), by_input=units.labels == self.read.table.columns), len(units))
        group_of = {column: name for name, members in self.read.groups.items() for column in members}
        together: dict[Any, list[int]] = {}
        for unit, names in enumerate(tokens):
            name = next((group_of[column] for column in names if column in group_of), None)
            together.setdefault(unit if name is None else name, []).append(unit)
        places = {column: place for members in self.read.groups.values() for place, column in enumerate(members)}
        for members in together.values():  # in the order of the group's own columns, so that values follow its name
            members.sort(key=lambda unit: [places.get(column, -1) for column in tokens[unit]])
        labels = tuple(units.labels[key] if isinstance(key, int) else key for key in together)
        first = [members[0] for members in together.values()]
        values = units.values
        return list(together.values()), Units(
            labels,
            tuple(units.special[i] for i in first),
            tuple(units.stream[i] for i in first),
            values=None if values is None else tuple(", ".join(values[i] for i in m) for m in together.values()),
            unseen=units.unseen,
        )

    def beside(self, batch: Batch, length: int) -> dict[str, Column]:
        return {name: self.read.where(name) for name in self.unseen(batch, length)}

    def per_unit(self, detail: Tensor, placed: Placed, largest: bool = False) -> Tensor:
        """(B, length) the numbers of numerical columns, at the positions of their tokens."""
        columns = over_features(detail, largest)
        scores = columns.new_zeros(len(columns), placed.length)
        for position, names in enumerate(self.tokens(placed.batch, placed.length)):
            for name in names:
                if name in self.read.table.numerical:
                    scores[:, position] += columns[:, self.read.table.numerical.index(name)]
        return scores


class TableMask(Mask):
    """Typical values, or those of reference rows, stand in place of masked columns."""

    read: TableRead
    place: TablePlace

    fillers = ("mean", "resample")

    @property
    def default_baseline(self) -> str:
        return "mean" if self.read.table.reference else "zero"

    def baseline(self, name: str | int, placed: Placed, keep_special: bool | Sequence[int]) -> Batch | None:
        """Replace every explained row by a typical row of the reference; columns without a token stay."""
        if name not in {"typical", "mean"}:
            return None
        batch, source = placed.batch, self._source()
        changed = {k: v.clone() for k, v in batch.tensors.items()}
        for names in self.place.tokens(batch, placed.length):
            for column in names:
                kind, at = self.read.where(column)
                changed[kind][: batch.size - batch.reference_rows, at] = _typical(source[kind][:, at])
        return batch.with_tensors(**changed)

    def _source(self) -> dict[str, Tensor]:
        """Return the reference rows: with means over the explained rows, scores would depend on each other."""
        if self.read.table.reference is None:
            raise BadInput(NO_REFERENCE.format("the mean (or typical) row of a table is that"))
        return self.read.ready(self.read.table.reference)[0].tensors

    @property
    def replacements(self) -> tuple[str, ...]:
        if self.read.table.reference is not None:
            return self.replacement("rows"), "mean", "zero"
        return (self.replacement("uniform"), "zero", "mean") if self.read.has_categories else ("zero", "mean")

    def replacement(self, name: Any) -> Any:
        """Return "rows" or "uniform" (the default) with the number of rows, as "rows:4": at most all different ones."""
        name = self.replacements[0] if name is None else name
        asked = rows_asked(name)
        if asked is None:
            return name
        several, most = ("uniform", PASSES) if self.read.table.reference is None else ("rows", MOST_BASELINES)
        if several == "uniform" and name.startswith("rows"):
            raise BadInput(NO_REFERENCE.format("the baseline rows of a table are some"))
        if not name.startswith(several) or not (self.read.has_categories or several == "rows"):
            raise UnknownName("replacement", name, self.replacements)
        return f"{several}:{len(self._baseline_rows(asked or default_count(len(self.read.table.columns), most))[0])}"

    def require_replacement(self, name: Any) -> None:
        super().require_replacement(name if rows_asked(self.replacement(name)) is None else self.replacements[0])

    def about_baseline(self, name: Any) -> tuple[str, ...]:
        return () if self.read.table.reference is not None or name == "mean" else (UNTYPICAL.get(name, UNIFORM),)

    def _baseline_rows(self, most: int) -> tuple[list[dict[str, Tensor]], Array]:
        """Return the rows of a baseline, and their weights: of the reference, or with all categories alike."""
        facts, key = facts_of(self.read), ("baseline rows", most)
        if key not in facts:
            if self.read.table.reference is None:
                codes, plain = torch.from_numpy(uniform_codes(self.read.table, most)), self.read.any_row().tensors
                rows = [{**plain, "categorical": self.read.move(row[None])} for row in codes]
                facts[key] = rows, np.ones(len(rows))
            else:
                source, (places, weights) = self._source(), covering_rows(self.read.table, most)
                facts[key] = [{k: v[row][None] for k, v in source.items()} for row in places.tolist()], weights
        rows_and_weights: tuple[list[dict[str, Tensor]], Array] = facts[key]
        return rows_and_weights

    def filling_weights(self, name: Any) -> Array | None:
        asked = rows_asked(self.replacement(name))
        return self._baseline_rows(asked)[1] if asked else None

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        tokens = enumerate(self.place.tokens(one, len(units)))
        return owners_of_columns(one, ((unit, self.read.where(name)) for unit, names in tokens for name in names))

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        """Return zero and the first category, mean and most frequent category, or several rows.

        With a pool, means and resampled rows are taken from there.
        """
        if pool is not None:
            return of_pool(name, self.owners(units, one), one, pool)
        self.require_replacement(name)
        if name == "zero":
            nothing = {"numerical": 0, "categorical": self.read.table.first_code}
            return [{kind: torch.full_like(tensor, nothing[kind]) for kind, tensor in one.tensors.items()}]
        if asked := rows_asked(self.replacement(name)):
            return list(self._baseline_rows(asked)[0])
        source = self._source()
        return [{kind: torch.stack([_typical(column) for column in source[kind].T])[None] for kind in one.tensors}]


class TableMean(Mean):
    """Outputs with the names that the table gives them."""

    read: TableRead
    place: TablePlace

    def notes(self, batch: Batch, length: int) -> tuple[str, ...]:
        unseen, notes = self.place.unseen(batch, length), []
        if batch.asked.segments != GROUPS and self.read.table.groups is None:
            seen = set(self.read.table.columns) - set(unseen)
            groups = [[name for name in members if name in seen] for members in self.read.groups.values()]
            notes += [TOGETHER.format(listed(names, "and")) for names in groups if len(names) > 1]
        if self.read.mixes_rows:
            notes.append(COMPANY.format(count=self.read.reference_batch().size, name=self.read.table.reference_name))
        return tuple(notes)


TableInput = Modality.of(TableRead, TablePlace, TableMask, TableMean)


def _typical(column: Tensor) -> Tensor:
    """Return the mean of numbers, the most frequent of codes."""
    if column.is_floating_point():
        return column.mean()
    return column.new_tensor(Counter(column.tolist()).most_common(1)[0][0])
