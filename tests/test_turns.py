"""What is run in turn is run: all of it within a few turns, and something of everything in each."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.turns import in_turn


@pytest.mark.parametrize(("rows", "columns", "of"), [(26, 8, 3), (20, 4, 2), (4, 2, 3), (7, 7, 2)])
def test_a_grid_is_covered_within_its_turns(rows: int, columns: int, of: int) -> None:
    grid = [{"method": f"m{r}", "model": f"c{c}"} for r, c in product(range(rows), range(columns))]
    for first in (0, 5):
        turns = [in_turn(grid, of, turn) for turn in range(first, first + of)]
        assert set().union(*turns) == set(range(len(grid)))
        for taken in turns:
            for name in ("method", "model"):
                assert {grid[i][name] for i in taken} == {each[name] for each in grid}
            if min(rows, columns) >= of:
                assert abs(len(taken) - len(grid) / of) <= max(rows, columns)


def test_combinations_that_are_listed_are_taken_by_their_places() -> None:
    listed: list[dict[str, object]] = [{"method": m, "setting": n} for n, m in enumerate("aaaabbb")]
    turns = [in_turn(listed, 2, turn) for turn in range(2)]
    assert turns[0] | turns[1] == set(range(7)) and not turns[0] & turns[1]


def test_what_has_no_other_combination_is_run_every_time() -> None:
    listed: list[dict[str, object]] = [{"name": n, "way": w} for n, w in ("xe", "xs", "ye", "zs")]
    for turn in range(2):
        assert {listed[i]["name"] for i in in_turn(listed, 2, turn)} == {"x", "y", "z"}
