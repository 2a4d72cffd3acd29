"""Sums over many rows: what each word, column or region of the picture is worth, per method and class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whyformer.shapes import Array

ACROSS, DOWN = ("left", "middle", "right"), ("top", "middle", "bottom")
MOST_KEPT = 100_000  # units of one method and class: of more, those that hardly occur are dropped
# Of texts with many words, one that occurs less often is no general one: at all, or as a share of the class's rows.
RARE, RARE_SHARE = 2, 0.005
MANY = 50  # units, from which on rare ones are left out


class Tallies:
    """Count, sum and sum of sizes, by method, class and unit."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], dict[str, list[float]]] = {}
        self.rows: Counter[tuple[str, str]] = Counter()
        self.dropped = 0
        self.unit = "unit"

    def add(self, method: str, target: str, units: Mapping[str, Any], scores: Array) -> None:
        """One explanation: its units as they are in a file."""
        sums = self.sums.setdefault((method, target), {})
        self.rows[method, target] += 1
        for name, score in self._named(units, scores):
            entry = sums.get(name)
            if entry is None:
                sums[name] = [1, score, abs(score)]
            else:
                entry[0] += 1
                entry[1] += score
                entry[2] += abs(score)
        if len(sums) > MOST_KEPT:
            often = dict(sorted(sums.items(), key=lambda item: -item[1][0])[: MOST_KEPT // 2])
            self.dropped += len(sums) - len(often)
            self.sums[method, target] = often

    def _named(self, units: Mapping[str, Any], scores: Array) -> Iterator[tuple[str, float]]:
        labels, special = units["labels"], units["special"]
        if units["values"] is not None:
            self.unit = "column"
            yield from ((label, float(s)) for label, s, own in zip(labels, scores, special, strict=True) if not own)
        elif units["grid"] is not None:
            self.unit = "region"
            yield from _regions(units, scores)
        elif units["word"] is not None:
            self.unit = "word"
            yield from _words(units, scores)
        else:
            yield from ((label, float(s)) for label, s, own in zip(labels, scores, special, strict=True) if not own)

    def importances(self, most: int) -> tuple[list[tuple[str, str, str, int, float, float]], int]:
        """(method, class, unit, count, mean, mean size), the largest first; and how many are left out."""
        listed: list[tuple[str, str, str, int, float, float]] = []
        left_out = self.dropped
        for (method, target), sums in sorted(self.sums.items()):
            least = max(RARE, RARE_SHARE * self.rows[method, target]) if len(sums) > MANY else 1
            often = [(name, entry) for name, entry in sums.items() if entry[0] >= least]
            often.sort(key=lambda item: (-item[1][2] / item[1][0], item[0]))
            left_out += len(sums) - len(often[:most])
            for name, (count, total, size) in often[:most]:
                listed.append((method, target, name, int(count), total / count, size / count))
        return listed, left_out


def _words(units: Mapping[str, Any], scores: Array) -> Iterator[tuple[str, float]]:
    """Word pieces summed, without their case; special tokens left out."""
    groups: dict[int, list[int]] = {}
    for i, word in enumerate(units["word"]):
        if word >= 0:
            groups.setdefault(word, []).append(i)
    text, spans, labels = units["text"], units["spans"], units["labels"]
    for members in groups.values():
        name = ""
        if text is not None and spans is not None:
            name = text[spans[members[0]][0] : spans[members[-1]][1]].strip()
        name = name or "".join(labels[i].removeprefix("##").lstrip("Ġ▁") for i in members)
        if name:
            yield name.casefold(), float(sum(scores[i] for i in members))


def _regions(units: Mapping[str, Any], scores: Array) -> Iterator[tuple[str, float]]:
    """The picture in nine: the sum of the patches in each."""
    rows, columns = units["grid"]
    patches = [i for i in range(len(scores)) if _is_patch(units, i)]
    sums: dict[str, float] = {}
    for place, i in enumerate(patches[: rows * columns]):
        row, column = divmod(place, columns)
        name = _region(DOWN[row * 3 // rows], ACROSS[column * 3 // columns])
        sums[name] = sums.get(name, 0.0) + float(scores[i])
    yield from sums.items()


def _region(down: str, across: str) -> str:
    return "centre" if (down, across) == ("middle", "middle") else f"{down} {across}"


def _is_patch(units: Mapping[str, Sequence[Any]], index: int) -> bool:
    """As ``Units.is_patch``."""
    stream = units["stream"]
    return not units["special"][index] and (stream[index] == "image" or len(set(stream)) == 1)
