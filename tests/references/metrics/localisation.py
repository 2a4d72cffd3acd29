"""A map laid over an image, pixel by pixel: Otsu 1979, Zhang et al. 2016, Arras et al. 2022, average precision."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from tests.references.metrics.twin import Facts, MetricTwin, Pixel

Heat = dict[Pixel, float]


def heat(facts: Facts) -> Heat:
    """Scores at the centres of the patches, bilinear between them, the border's own beyond them; not below zero."""
    rows, columns = facts.grid
    height, width = facts.size
    found = {}
    for y in range(height):
        for x in range(width):
            top, bottom, down = neighbours(y, rows, height)
            left, right, across = neighbours(x, columns, width)
            sides = []
            for column in (left, right):
                above, below = facts.scores[top * columns + column], facts.scores[bottom * columns + column]
                sides.append(above * (1 - down) + below * down)
            found[y, x] = max(0.0, sides[0] * (1 - across) + sides[1] * across)
    return found


def neighbours(pixel: int, patches: int, pixels: int) -> tuple[int, int, float]:
    """The patches before and after a pixel's centre, and how far it has come from the one to the other."""
    centre = (pixel + 0.5) * patches / pixels - 0.5
    before = min(max(math.floor(centre), 0), patches - 1)
    return before, min(before + 1, patches - 1), min(max(centre - before, 0.0), 1.0)


def pointing_game(facts: Facts, tolerance: int = 0) -> float:
    values = heat(facts)
    y, x = max(values, key=lambda pixel: (values[pixel], -pixel[0], -pixel[1]))  # the first of equal ones
    return float(any((y - a) ** 2 + (x - b) ** 2 <= tolerance**2 for a, b in facts.object))


def relevance_mass(facts: Facts) -> float:
    values = heat(facts)
    total = sum(values.values())
    return sum(values[pixel] for pixel in facts.object) / total if total else math.nan


def otsu(values: list[float], levels: int = 256) -> float:
    """The border between two bins with the largest variance between what lies below and above."""
    edges = np.linspace(min(values), max(values), levels + 1).tolist()
    centres = [(a + b) / 2 for a, b in pairwise(edges)]
    bins = [min(sum(edge <= v for edge in edges) - 1, levels - 1) for v in values]
    best, threshold = -1.0, 0.0
    for cut in range(1, levels):
        below = [centres[b] for b in bins if b < cut]
        above = [centres[b] for b in bins if b >= cut]
        apart = sum(below) / len(below) - sum(above) / len(above)
        between = len(below) * len(above) * apart**2
        if between > best + 1e-12 * abs(best):  # of equal ones the first
            best, threshold = between, edges[cut]
    return threshold


def iou_otsu(facts: Facts) -> float:
    values = heat(facts)
    if len(set(values.values())) == 1:
        bright = set(values)
    else:
        threshold = otsu(list(values.values()))
        bright = {pixel for pixel, value in values.items() if value > threshold}
    return len(bright & facts.object) / len(bright | facts.object)


def mean_average_precision(facts: Facts) -> float:
    """Σ_n (R_n - R_{n-1}) P_n, one threshold after the other."""
    values = heat(facts)
    total, recall = 0.0, 0.0
    for threshold in sorted(set(values.values()), reverse=True):
        named = {pixel for pixel, value in values.items() if value >= threshold}
        hits = len(named & facts.object)
        total += (hits / len(facts.object) - recall) * hits / len(named)
        recall = hits / len(facts.object)
    return total


TWINS = {
    "pointing_game": MetricTwin(pointing_game, [{}, {"tolerance": 2}]),
    "relevance_mass": MetricTwin(relevance_mass),
    "iou_otsu": MetricTwin(iou_otsu),
    "mean_average_precision": MetricTwin(mean_average_precision),
}
