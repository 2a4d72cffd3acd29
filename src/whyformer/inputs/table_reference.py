"""The reference rows of a table: a few of them that cover the rest, and columns that carry the same information."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np

from whyformer.choices import PASSES
from whyformer.inputs.table_schema import Columns, Table, numbers_of
from whyformer.shapes import Array

# A baseline of several rows: real ones, or made of all categories of a column. Its name says how many: "rows:4".

ROWS = re.compile(r"(?:rows|uniform)(?::([1-9]\d{0,5}))?")
MOST_BASELINES = 8  # unless more are asked for
MOST_COMPARED = 1000  # reference rows that are compared with each other; of more, so many at even distances


def rows_asked(name: Any) -> int | None:
    """Return the number of rows in the name of a baseline: 4 of "rows:4", 0 of "uniform", None of any other."""
    match = ROWS.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else int(match[1] or 0)


def baselines_of(name: Any) -> int:
    """Return the number of forwards that one masked variant takes with this baseline."""
    return rows_asked(name) or 1


def default_count(columns: int, most: int = MOST_BASELINES) -> int:
    """Return the number of baseline rows with which both ends of every column fit the default number of passes."""
    return min(most, max(1, (PASSES - 1) // (2 * columns + 1)))


def covering_rows(table: Table, most: int) -> tuple[Array, Array]:
    """Return the numbers of at most so many different reference rows that cover the reference, and their weights.

    Greedy k-medoids: each next row is the one that brings the others nearest to a chosen row, so the first of many
    are those of few. A weight is the number of reference rows whose nearest chosen row it is. The distance of two rows
    is the sum over columns: of numbers, their difference in standard deviations; of categories, 1 if they differ.
    """
    assert table.reference is not None
    numbers, codes = table.encode(table.reference)
    count = len(table.reference[table.columns[0]])
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_COMPARED)).round().astype(int))
    distance_RR = np.zeros((len(places), len(places)))
    for column in () if numbers is None else numbers[places].T:
        spread = column.std()
        distance_RR += np.abs(column[:, None] - column) / spread if spread else 0.0
    for column in () if codes is None else codes[places].T:
        distance_RR += column[:, None] != column
    chosen: list[int] = []
    nearest_R = np.full(len(places), np.inf)
    while len(chosen) < most and (not chosen or nearest_R.any()):
        # Rounded: sums that are equal but for the order of addition must not be decided by their last digit.
        left_R = np.minimum(nearest_R[:, None], distance_RR).sum(0).round(9)
        chosen.append(int(left_R.argmin()))
        nearest_R = np.minimum(nearest_R, distance_RR[:, chosen[-1]])
    owner_R = distance_RR[:, chosen].argmin(1)
    return places[chosen], np.bincount(owner_R, minlength=len(chosen))


def uniform_codes(table: Table, most: int) -> Array:
    """(rows, categorical columns) codes of at most so many rows in which the categories of a column are as frequent.

    The fewest rows that come nearest to that; each column has an order of its own, so that columns are not paired.
    """
    sizes = [len(values) for values in table.categorical.values()]

    def unevenness(rows: int) -> float:
        shares = (np.bincount(np.arange(rows) * size // rows, minlength=size) / rows for size in sizes)
        return round(sum(float(np.abs(share - 1 / size).sum()) for share, size in zip(shares, sizes, strict=True)), 9)

    rows = np.arange(min(range(1, most + 1), key=unevenness))
    orders = (np.random.default_rng(column).permutation(rows) for column in range(len(sizes)))
    codes = [order * size // len(rows) for order, size in zip(orders, sizes, strict=True)]
    return np.stack(codes, 1) + table.first_code


# Columns that carry the same information: each of the two is known from the other.

SAME = 0.95  # share of one column that the other determines, both ways
FEWEST_ROWS = 16  # with fewer, columns agree by chance
LARGEST_SHARE = 0.9  # of one value: a column that hardly varies is determined by any other


def same_columns(table: Table) -> dict[str, tuple[str, ...]]:
    """Return groups of columns of which each is known from the others, in the reference rows of a table.

    Two columns of numbers: a rank correlation of at least 0.95 in size. A category beside another column: of rows
    with the same value in one column, the most frequent value of the other is right in at least 95 % of the rows in
    which two or more share a value; both ways. At least 16 reference rows are needed.

    >>> wf.tables.same_columns(wf.demo.load_adult()[1])
    """
    if table.reference is None or len(table.reference[table.columns[0]]) < FEWEST_ROWS:
        return {}
    values = {name: _ranks(table, table.reference, name) for name in table.columns}
    varied = [n for n, v in values.items() if np.unique(v, return_counts=True)[1].max() <= LARGEST_SHARE * len(v)]
    group = {name: name for name in table.columns}
    for one, other in combinations(varied, 2):
        if _say_the_same(values[one], values[other], {one, other} <= set(table.numerical)):
            old, new = group[other], group[one]
            group = {name: new if leader == old else leader for name, leader in group.items()}
    members = {leader: tuple(n for n in table.columns if group[n] == leader) for leader in group.values()}
    return {" + ".join(names): names for names in members.values() if len(names) > 1}


def _ranks(table: Table, columns: Columns, name: str) -> Array:
    """Return the ranks of numbers; of categories, their codes."""
    if name in table.categorical:
        return np.array([table.codes[name][value] for value in columns[name].tolist()], dtype=float)
    from scipy.stats import rankdata  # about half a second, which other inputs need not wait for

    return np.asarray(rankdata(numbers_of(name, columns[name])), dtype=float)


def _say_the_same(one_R: Array, other_R: Array, numbers: bool) -> bool:
    if numbers:
        return abs(float(np.corrcoef(one_R, other_R)[0, 1])) >= SAME
    return min(_determined(one_R, other_R), _determined(other_R, one_R)) >= SAME


def _determined(by_R: Array, what_R: Array) -> float:
    """Return how often the most frequent value beside the same value is right; a value that occurs once is no test."""
    right = tested = 0
    for value in np.unique(by_R):
        beside = what_R[by_R == value]
        if len(beside) > 1:
            right += int(np.unique(beside, return_counts=True)[1].max())
            tested += len(beside)
    return right / tested if tested >= FEWEST_ROWS // 2 else 0.0
