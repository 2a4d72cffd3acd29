"""Which column each token of a tabular model stands for: as the user says, or found by changing column after column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from whyformer.errors import BadInput, NotOffered
from whyformer.subjects.base import Batch
from whyformer.subjects.columns import Table

if TYPE_CHECKING:
    from whyformer.subjects.table import TableSubject

Tokens = tuple[tuple[str, ...], ...]  # per attention position, the columns it was made from
NAME_THEM = "Name the column of each token: Table(…, tokens=[…]), None for the model's own."


def named_tokens(table: Table, length: int) -> Tokens:
    given = table.tokens or ()
    if len(given) != length:
        raise BadInput(f"tokens names {len(given)} tokens and the model attends over {length}: name each of them.")
    return tuple((name,) if name is not None else () for name in given)


def found_tokens(subject: TableSubject, batch: Batch, length: int) -> Tokens:
    """A column's token is the one whose values move when the column does; columns of a model without attention are
    their own."""
    table, one = subject.table, batch.select([0])
    plain = _entering(subject, one)
    if plain is None:
        return tuple((name,) for name in table.columns)
    where: list[list[str]] = [[] for _ in range(length)]
    for name in table.columns:
        changed = _entering(subject, _with_other_value(subject, one, name))
        assert changed is not None
        moved = (changed != plain).any(-1).nonzero()[:, 0].tolist()
        if len(moved) > 1:
            raise NotOffered(
                f"column {name!r} reaches {len(moved)} tokens before any attention, so which token stands for which "
                f"column is not clear. {NAME_THEM}"
            )
        for position in moved:
            where[position].append(name)
    return tuple(map(tuple, where))


def _entering(subject: TableSubject, one: Batch) -> Tensor | None:
    """(positions, …) the values of the first attention."""
    sites = subject.observed(one, values=True).sites
    if not sites or sites[0].value_BHKD is None:
        return None
    return sites[0].value_BHKD[0].transpose(0, 1).flatten(1)


def _with_other_value(subject: TableSubject, one: Batch, name: str) -> Batch:
    kind, at = subject.where(name)
    changed = one.tensors[kind].clone()
    if kind == "numerical":
        changed[:, at] = changed[:, at] * -1.5 + 0.7
    else:
        first, count = subject.table.first_code, len(subject.table.categorical[name])
        if count == 1:
            raise NotOffered(f"column {name!r} has one category only, so its token cannot be found. {NAME_THEM}")
        changed[:, at] = (changed[:, at] - first + 1) % count + first
    return one.with_tensors(**{kind: changed})
