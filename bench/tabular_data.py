"""The three tables of the tabular study: read with the csv module, split, and described for whyformer."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whyformer.inputs.table_schema import Columns, Table

Array = np.ndarray[Any, Any]
FILES = {
    "adult": ("adult_census_xai.csv.gz", "loan"),
    "bank": ("bank-full.csv.gz", "y"),
    "california": ("california_housing.csv.gz", "median_house_value"),
}
NUMBERS = {
    "adult": ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    "bank": ("age", "balance", "day", "duration", "campaign", "pdays", "previous"),
    "california": (
        "longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms", "population", "households",
        "median_income",
    ),
}  # fmt: skip
TRAIN, VALIDATION = 0.7, 0.1  # the rest is for testing


@dataclass(frozen=True)
class Part:
    columns: Columns
    truth: Array


@dataclass(frozen=True)
class Data:
    name: str
    table: Table
    train: Part
    validation: Part
    test: Part

    @property
    def regression(self) -> bool:
        return not self.table.classes


@dataclass(frozen=True)
class Normal:
    """Quantiles of the training rows → those of a normal distribution, as FT-Transformer's authors do it."""

    quantiles: tuple[Array, ...]  # per column, increasing

    def __call__(self, numbers: Array) -> Array:
        made = np.empty_like(numbers)
        for i, known in enumerate(self.quantiles):
            share = np.linspace(0, 1, len(known))
            # ties: the middle of the stretch of equal values
            up, down = np.interp(numbers[:, i], known, share), 1 - np.interp(-numbers[:, i], -known[::-1], share)
            made[:, i] = torch.special.ndtri(torch.from_numpy(np.clip((up + down) / 2, 1e-3, 1 - 1e-3))).numpy()
        return made


def load(name: str, folder: Path, seed: int, rows: int | None = None) -> Data:
    """One table; ``rows`` takes that many at random."""
    file, target = FILES[name]
    with gzip.open(folder / file, "rt", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = [h.strip().removeprefix("b'") for h in next(reader)]
        lines = [[cell.strip() for cell in line] for line in reader if len(line) == len(header)]
    kept = [line for line in lines if all(c or not h for c, h in zip(line, header, strict=True))]  # no missing values
    raw = {h: np.array([line[i] for line in kept], dtype=object) for i, h in enumerate(header) if h}
    truth = raw.pop(target)
    classes = () if name == "california" else tuple(sorted(set(truth.tolist())))
    y = truth.astype(float) if not classes else np.array([classes.index(v) for v in truth])
    columns = {k: v.astype(float) if k in NUMBERS[name] else v for k, v in raw.items()}
    order = np.random.default_rng(seed).permutation(len(y))[:rows]
    ends = np.cumsum([int(TRAIN * len(order)), int(VALIDATION * len(order))])
    parts = [Part({k: v[i] for k, v in columns.items()}, y[i]) for i in np.split(order, ends)]
    if not classes:
        mean, std = parts[0].truth.mean(), parts[0].truth.std()
        parts = [Part(p.columns, (p.truth - mean) / std) for p in parts]
    numbers = list(NUMBERS[name])
    quantiles = tuple(np.quantile(parts[0].columns[n], np.linspace(0, 1, 500)) for n in numbers)
    categories = {k: sorted(set(v.tolist())) for k, v in columns.items() if k not in numbers}
    reference = {k: v[:31] for k, v in parts[0].columns.items()}
    table = Table(
        numerical=numbers,
        categorical=categories,
        preprocess=Normal(quantiles),
        classes=classes,
        reference=reference,
        reference_name="training rows",
    )
    return Data(name, table, *parts)
