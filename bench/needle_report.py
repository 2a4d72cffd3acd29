"""The tables of bench/needle.py: how often the needle came first, by method, aggregation and length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Row = dict[str, Any]
SCOPES = ("passage", "all", "passage, first token out", "all, first token out")  # as needle.judged notes ranks
SIZES = {
    "200-299": (200, 300),
    "300-499": (300, 500),
    "500-799": (500, 800),
    "800-1,199": (800, 1200),
    "1,200-2,000": (1200, 2001),
}


def limits(successes: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson 1927), valid at 0 and 1 as well."""
    z = 1.96
    share, spread = successes / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    width = z * np.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - width), min(1.0, middle + width)


def written(successes: int, count: int) -> str:
    low, high = limits(successes, count)
    return f"{successes / count:.1%} [{low:.1%}, {high:.1%}]"


def share(rows: list[Row], first: Callable[[Row], bool]) -> str:
    return f"{np.mean([first(row) for row in rows]):.1%}" if rows else ""


def came_first(method: str, aggregate: str, scope: str) -> Callable[[Row], bool]:
    return lambda row: row["methods"][method]["ranks"][aggregate][SCOPES.index(scope)] == 1


def merged(rows: list[Row]) -> list[Row]:
    """One row per case, with the methods of all runs that explained it."""
    cases: dict[int, Row] = {}
    for row in rows:
        known = cases.setdefault(row["case"], row)
        if known is not row and row["right"]:
            known["methods"] |= row["methods"]
    return [cases[number] for number in sorted(cases)]


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("|" + "|".join(line) + "|" for line in (head, ["---"] * len(head), *lines))


def by_method(rows: list[Row], methods: dict[str, list[Row]]) -> str:
    """How often the needle comes first, in the passage and in the whole prompt; scores are summed per sentence."""
    lines = []
    for name, answered in methods.items():
        wins = sum(map(came_first(name, "sum", "passage"), answered))
        whole = [share(answered, came_first(name, "sum", scope)) for scope in ("all", "all, first token out")]
        passes = np.mean([row["methods"][name]["passes"] for row in answered], 0)
        cost = "+".join(f"{number:.0f}" for number in passes if number)
        sink = float(np.mean([row["methods"][name]["first_token"] for row in answered]))
        lines.append([name, cost, str(len(answered)), written(wins, len(answered)), *whole, f"{sink:.1%}"])
    lines.sort(key=lambda line: -float(line[3].split("%")[0]))
    for place in ("first", "last"):
        wins = sum(row["position"][place] for row in rows)
        lines.append([f"always the {place} sentence", "0", str(len(rows)), written(wins, len(rows)), "", "", ""])
    chance = float(np.mean([1 / row["sentences"] for row in rows]))
    lines.append(["chance", "0", str(len(rows)), f"{chance:.1%}", "", "", ""])
    head = ["method", "passes", "cases", "first in the passage", "first in the prompt", "without the first token"]
    return table([*head, "score share of the first token"], lines)


def by_aggregate(methods: dict[str, list[Row]], aggregates: list[str]) -> str:
    """How often the needle comes first in the passage, by how token scores are combined into one per sentence."""
    lines = [
        [name, *(share(rows, came_first(name, aggregate, "passage")) for aggregate in aggregates)]
        for name, rows in methods.items()
    ]
    return table(["combined by", *aggregates], lines)


def by_size(rows: list[Row], methods: dict[str, list[Row]]) -> str:
    def between(some: list[Row], low: int, high: int) -> list[Row]:
        return [row for row in some if low <= row["tokens"] < high]

    lines = [["cases", *(str(len(between(rows, *size))) for size in SIZES.values())]]
    for name, answered in methods.items():
        shares = [share(between(answered, *size), came_first(name, "sum", "passage")) for size in SIZES.values()]
        lines.append([name, *shares])
    return table(["tokens", *SIZES], lines)


def report(rows: list[Row]) -> None:
    tried = merged(rows)
    answered = [row for row in tried if row["right"]]
    print(f"{len(answered)} of {len(tried)} prompts were answered from the needle alone")
    if not answered:
        return
    names = dict.fromkeys(name for row in answered for name in row["methods"])
    methods = {name: [row for row in answered if name in row["methods"]] for name in names}
    aggregates = list(answered[0]["methods"][next(iter(answered[0]["methods"]))]["ranks"])
    tokens = [row["tokens"] for row in answered]
    sentences = np.mean([row["sentences"] for row in answered])
    print(f"{min(tokens)} to {max(tokens)} tokens, {sentences:.0f} sentences on average")
    for text in (by_method(answered, methods), by_aggregate(methods, aggregates), by_size(answered, methods)):
        print(f"\n{text}")
