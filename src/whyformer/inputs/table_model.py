"""How tabular models take their columns, whether a table fits them, and which token each column becomes."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, ModelFailed, NotOffered
from whyformer.inputs.batch import Batch, signature_of
from whyformer.inputs.table_schema import Table
from whyformer.loan.borrow import borrowed, known_about
from whyformer.loan.fingerprint import told_of
from whyformer.results.types import Record
from whyformer.targets import logits_of

FAILURES = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)
NAME_THEM = "Name the column of each token: Table(…, tokens=[…]), None for the model's own."
Tokens = tuple[tuple[str, ...], ...]  # per attention position, the columns it was made from
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Arrange = Callable[[Tensor | None, Tensor | None], Arguments]
HOW = (
    "Give Table(…, call=lambda numerical, categorical: (…)), which returns the arguments of model(…) as a tuple or a "
    "dict."
)


def arrangement(model: nn.Module, table: Table) -> Arrange:
    """Return the function that makes the model's arguments from numbers and codes."""
    if table.call is not None:
        return partial(_by_call, table.call)
    # deeptab: forward(*data), three lists with one tensor per column
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(model.forward).parameters.values())
    if variadic and getattr(getattr(model, "embedding_layer", None), "feature_info", None) is not None:
        return lambda numerical, categorical: (tuple(_columns(t) for t in (numerical, categorical, None)), {})
    # pytorch_tabular: one dict, and settings that count its columns
    settings = getattr(model, "hparams", None)
    if getattr(settings, "continuous_dim", None) is not None and callable(getattr(model, "embed_input", None)):
        return _named_dict
    needed = {k: p for k, p in signature_of(model).items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    categorical = [k for k in needed if "cat" in k.lower()]
    numerical = [k for k in needed if "num" in k.lower() or "cont" in k.lower()]
    if len(categorical) <= 1 and len(numerical) <= 1 and len(needed) == len(categorical) + len(numerical) > 0:
        return partial(_by_name, needed, (numerical, categorical))
    if len(needed) == 1:
        return partial(_one_tensor, table)
    raise BadInput(
        f"{type(model).__name__} takes {', '.join(needed) or 'nothing'}: it is not clear which of these are numbers "
        f"and which are categories. {HOW}"
    )


def _by_call(call: Callable[[Any, Any], Any], numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
    made = call(numerical, categorical)
    if isinstance(made, dict):
        return (), made
    return tuple(made) if isinstance(made, (tuple, list)) else (made,), {}


def _columns(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor[:, i : i + 1] for i in range(tensor.shape[1])]


def _named_dict(numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
    some = numerical if numerical is not None else categorical
    assert some is not None
    empty = some.new_zeros(len(some), 0)
    numbers = empty.float() if numerical is None else numerical
    codes = empty.long() if categorical is None else categorical
    return ({"continuous": numbers, "categorical": codes},), {}


def _by_name(
    needed: Mapping[str, inspect.Parameter], kinds: tuple[list[str], ...], *tensors: Tensor | None
) -> Arguments:
    """Return numbers and codes (``given``) by the names of each kind; an argument without columns is None or empty."""
    some = next(columns for columns in tensors if columns is not None)
    made: dict[str, Any] = {}
    for names, columns, dtype in zip(kinds, tensors, (torch.float32, torch.int64), strict=True):
        if not names and columns is not None:
            raise BadInput(f"the model takes {', '.join(needed)} and the table has other columns as well. {HOW}")
        for name in names:
            optional = "Optional" in str(needed[name].annotation) or "None" in str(needed[name].annotation)
            nothing = None if optional else some.new_zeros(len(some), 0).to(dtype)
            made[name] = nothing if columns is None else columns
    return (), made


def _one_tensor(table: Table, numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
    """Put all columns into one tensor, in the order of ``table.columns``, codes among the numbers."""
    if numerical is None or categorical is None:
        return (numerical if categorical is None else categorical,), {}
    both = torch.cat([numerical, categorical.to(numerical.dtype)], 1)
    names = (*table.numerical, *table.categorical)
    return (both[:, [names.index(c) for c in table.columns]],), {}


class TabularModel(Protocol):
    """A model and the table whose rows it reads (inputs/table.py)."""

    model: nn.Module
    table: Table

    def any_row(self) -> Batch: ...
    def call_alone(self, batch: Batch) -> Any: ...
    def observed(self, one: Batch, values: bool = False) -> Record: ...
    def where(self, name: str) -> tuple[str, int]: ...


def outputs_of(modality: TabularModel) -> int | None:
    """Return the number of outputs per row (None: not one row each), after trying columns and categories."""
    facts = facts_of(modality)
    if "outputs" not in facts:
        with borrowed(modality.model), torch.no_grad():
            output, error = _attempt(modality, modality.any_row())
            if error is not None:
                table = modality.table
                sizes = ", ".join(f"{name} ({len(values)} categories)" for name, values in table.categorical.items())
                raise BadInput(
                    f"{type(modality.model).__name__} cannot be called with the columns of this table, "
                    f"{len(table.numerical)} numerical ({', '.join(table.numerical) or 'none'}) and "
                    f"{len(table.categorical)} categorical ({sizes or 'none'}): it fails with {_said(error)}. Describe "
                    "the columns that it was built with, in its order, or how it is called (Table(call=…))."
                ) from error
            logits = logits_of(output)
            _try_categories(modality)
        facts["outputs"] = logits.shape[1] if logits.ndim == 2 else 1 if logits.ndim == 1 else None
    outputs: int | None = facts["outputs"]
    return outputs


def facts_of(modality: TabularModel) -> dict[Any, Any]:
    """Return the cached facts about the model with this table; they are dropped when the table changes."""
    tables = known_about(modality.model).setdefault("tables", weakref.WeakKeyDictionary())
    told, _ = told_of(vars(modality.table))
    if modality.table not in tables or tables[modality.table][0] != told:
        tables[modality.table] = told, {}
    facts: dict[Any, Any] = tables[modality.table][1]
    return facts


def require_classes(modality: TabularModel, outputs: int | None) -> tuple[str, ...]:
    """Return the names of the outputs; a single output is the logit of the second of two classes."""
    classes = modality.table.classes
    if outputs == 1 and len(classes) == 2:
        return classes[1:]
    if classes and outputs is not None and outputs != len(classes):
        raise BadInput(
            f"the table names {len(classes)} classes ({', '.join(classes)}) and {type(modality.model).__name__} has "
            f"{outputs} output{'s' * (outputs != 1)}: give Table(classes=…) one name per output, in their order."
        )
    return classes


def _try_categories(modality: TabularModel) -> None:
    """Run the last category of every column, on a CPU: on a GPU an index out of range would end the process."""
    row = modality.any_row()
    codes = row.tensors.get("categorical")
    if codes is None or codes.device.type != "cpu":
        return
    counts = [len(values) for values in modality.table.categorical.values()]
    last = codes.repeat(len(counts), 1) + torch.diag(torch.tensor(counts) - 1)
    whole = {k: v.expand(len(counts), -1) for k, v in row.tensors.items()}
    if _attempt(modality, Batch(whole | {"categorical": last}))[1] is None:
        return
    for at, (name, values) in enumerate(modality.table.categorical.items()):
        for number, value in enumerate(values):
            other = codes.clone()
            other[0, at] += number
            _, error = _attempt(modality, row.with_tensors(categorical=other))
            if error is not None:
                raise BadInput(
                    f"column {name!r} has {len(values)} categories and {type(modality.model).__name__} takes {number} "
                    f"there: it fails at {value!r}, code {int(other[0, at])}, with {_said(error)}. Give the categories "
                    "that it was built with, and categorical columns in the order of the model's."
                ) from error


def _attempt(modality: TabularModel, batch: Batch) -> tuple[Any, Exception | None]:
    """Return the model's output, or None and the error that it raised."""
    try:
        return modality.call_alone(batch), None
    except ModelFailed as failure:
        if not isinstance(failure.__cause__, FAILURES):
            raise
        return None, failure.__cause__


def _said(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def found_tokens(modality: TabularModel, batch: Batch, length: int) -> Tokens:
    """Return the columns of each token: as the table names them, else those that change the values of the token."""
    table, one = modality.table, batch.select([0])
    if table.tokens:
        if (count := len(table.tokens)) != length:
            raise BadInput(f"tokens names {count} tokens and the model attends over {length}: name each of them.")
        return tuple((name,) if name is not None else () for name in table.tokens)
    plain = _entering(modality, one)
    if plain is None:  # without attention, each column by itself
        return tuple((name,) for name in table.columns)
    where: list[list[str]] = [[] for _ in range(length)]
    for name in table.columns:
        changed = _entering(modality, _with_other_value(modality, one, name))
        assert changed is not None
        moved = (changed != plain).any(-1).nonzero()[:, 0].tolist()
        if len(moved) > 1:
            raise NotOffered(
                f"column {name!r} reaches {len(moved)} tokens before any attention, so columns cannot be matched with "
                f"tokens. {NAME_THEM}"
            )
        for position in moved:
            where[position].append(name)
    return tuple(map(tuple, where))


def _entering(modality: TabularModel, one: Batch) -> Tensor | None:
    """(positions, …) the values of the first attention."""
    sites = modality.observed(one, values=True).sites
    if not sites or sites[0].value_BHKD is None:
        return None
    return sites[0].value_BHKD[0].transpose(0, 1).flatten(1)


def _with_other_value(modality: TabularModel, one: Batch, name: str) -> Batch:
    kind, at = modality.where(name)
    changed = one.tensors[kind].clone()
    if kind == "numerical":
        changed[:, at] = changed[:, at] * -1.5 + 0.7
    else:
        first, count = modality.table.first_code, len(modality.table.categorical[name])
        if count == 1:
            raise NotOffered(f"column {name!r} has one category only, so its token cannot be found. {NAME_THEM}")
        changed[:, at] = (changed[:, at] - first + 1) % count + first
    return one.with_tensors(**{kind: changed})
