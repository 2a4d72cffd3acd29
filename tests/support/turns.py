"""Products of many methods and many models: each run takes some of the combinations, the next run others.

``@pytest.mark.in_turn(3)`` leaves a third of them. Every method still meets a third of the models, and every model a
third of the methods; as ``WHYFORMER_TURN`` goes up by one every day (`make test-part` sets and prints it), three days
in a row run all. Without that variable (`make test`, or pytest by itself) nothing is left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest


def left_for_later(items: list[pytest.Item], turn: int) -> set[str]:
    """The ids of tests that are not run in this turn."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_turn") is not None:
            functions[item.nodeid.partition("[")[0]].append(item)
    later: set[str] = set()
    for combinations in functions.values():
        marker = combinations[0].get_closest_marker("in_turn")
        assert marker is not None
        taken = in_turn([parameters(item) for item in combinations], marker.args[0], turn)
        later |= {item.nodeid for number, item in enumerate(combinations) if number not in taken}
    return later


def parameters(item: Any) -> dict[str, object]:
    """Words and numbers by what they are, anything else by which one it is: some cannot be hashed."""
    return {n: v if isinstance(v, str | int | None) else id(v) for n, v in item.callspec.params.items()}


def in_turn(combinations: list[dict[str, object]], of: int, turn: int) -> set[int]:
    """Which of the combinations are run: along the diagonals of their grid, and each value at least once."""
    places: dict[str, dict[object, int]] = defaultdict(dict)
    for combination in combinations:
        for name, value in combination.items():
            places[name].setdefault(value, len(places[name]))
    diagonals = [sum(places[name][value] for name, value in each.items()) for each in combinations]
    taken = {number for number, diagonal in enumerate(diagonals) if (diagonal + turn) % of == 0}
    for name, values in places.items():
        if len(values) < len(combinations):  # else each value is a combination of its own
            met = {combinations[number][name] for number in taken}
            for value in values.keys() - met:
                taken.add(next(number for number, each in enumerate(combinations) if each[name] == value))
    return taken
