"""How tabular models take their columns: by the names of their arguments, or as their library does it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput
from whyformer.subjects.base import signature_of
from whyformer.subjects.columns import Table

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Arrange = Callable[[Tensor | None, Tensor | None], Arguments]
HOW = (
    "Say how it is called: Table(…, call=lambda numerical, categorical: (…)), with what goes into model(…) as a tuple, "
    "or as a dict of arguments."
)


def arrangement(model: nn.Module, table: Table) -> Arrange:
    """From numbers and codes to the model's arguments."""
    if table.call is not None:
        return _own(table)
    if _is_deeptab(model):
        return _lists
    if _is_pytorch_tabular(model):
        return _named_dict
    parameters = signature_of(model)
    needed = {k: p for k, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    categorical = [k for k in needed if "cat" in k.lower()]
    numerical = [k for k in needed if "num" in k.lower() or "cont" in k.lower()]
    if len(categorical) <= 1 and len(numerical) <= 1 and len(needed) == len(categorical) + len(numerical) > 0:
        return _by_name(needed, numerical, categorical)
    if len(needed) == 1:
        return _one_tensor(table)
    raise BadInput(
        f"{type(model).__name__} takes {', '.join(needed) or 'nothing'}: which of these are numbers and which are "
        f"categories is not clear. {HOW}"
    )


def _own(table: Table) -> Arrange:
    def arrange(numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
        assert table.call is not None
        made = table.call(numerical, categorical)
        if isinstance(made, dict):
            return (), made
        return tuple(made) if isinstance(made, (tuple, list)) else (made,), {}

    return arrange


def _is_deeptab(model: nn.Module) -> bool:
    """deeptab: forward(*data), three lists with one tensor per column."""
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(model.forward).parameters.values())
    return variadic and getattr(getattr(model, "embedding_layer", None), "feature_info", None) is not None


def _lists(numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
    def split(columns: Tensor | None) -> list[Tensor]:
        return [] if columns is None else [columns[:, i : i + 1] for i in range(columns.shape[1])]

    return (split(numerical), split(categorical), []), {}


def _is_pytorch_tabular(model: nn.Module) -> bool:
    """pytorch_tabular: one dict, and settings that count its columns."""
    settings = getattr(model, "hparams", None)
    return getattr(settings, "continuous_dim", None) is not None and callable(getattr(model, "embed_input", None))


def _named_dict(numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
    some = numerical if numerical is not None else categorical
    assert some is not None
    empty = some.new_zeros(len(some), 0)
    return (
        {
            "continuous": empty.float() if numerical is None else numerical,
            "categorical": empty.long() if categorical is None else categorical,
        },
    ), {}


def _by_name(needed: dict[str, inspect.Parameter], numerical: list[str], categorical: list[str]) -> Arrange:
    def arrange(numbers: Tensor | None, codes: Tensor | None) -> Arguments:
        some = numbers if numbers is not None else codes
        assert some is not None
        made: dict[str, Any] = {}
        for names, columns, dtype in ((numerical, numbers, torch.float32), (categorical, codes, torch.int64)):
            if not names and columns is not None:
                raise BadInput(f"the model takes {', '.join(needed)} and the table has other columns as well. {HOW}")
            for name in names:
                optional = "Optional" in str(needed[name].annotation) or "None" in str(needed[name].annotation)
                nothing = None if optional else some.new_zeros(len(some), 0).to(dtype)
                made[name] = nothing if columns is None else columns
        return (), made

    return arrange


def _one_tensor(table: Table) -> Arrange:
    """All columns in one tensor, in the order of ``table.columns``, codes among the numbers."""

    def arrange(numerical: Tensor | None, categorical: Tensor | None) -> Arguments:
        if numerical is None or categorical is None:
            return (numerical if categorical is None else categorical,), {}
        both = torch.cat([numerical, categorical.to(numerical.dtype)], 1)
        names = (*table.numerical, *table.categorical)
        return (both[:, [names.index(c) for c in table.columns]],), {}

    return arrange
