"""Rows of the shipped census model: the probability of the predicted class, masked columns from reference rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import whyformer as wf
from bench.frontier.contenders import Contenders, of_many_passes, of_one_pass
from bench.frontier.subject import Array, Subject
from whyformer.demo import load_adult
from whyformer.demo.census import adult_rows


class Rows(Subject):
    """Masked columns take their values from each of the table's reference rows; the mean over these is evaluated."""

    name = "table"

    def __init__(
        self, explainer: wf.Explainer, rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]] = ()
    ) -> None:
        super().__init__(explainer, len(rows))
        self.others = others
        self.model: Any = explainer.model
        self.device = next(self.model.parameters()).device
        table: Any = explainer.processor
        self.rows = [{name: row[name] for name in table.columns} for row in rows]
        self.columns = [*table.numerical, *table.categorical]  # as the model reads them
        self.numbers, self.codes = (torch.from_numpy(a) for a in table.encode(table.read(self.rows)[0]))
        numbers, codes = table.encode(table.reference)
        self.reference = torch.from_numpy(numbers).float(), torch.from_numpy(codes)
        everything = np.ones((1, len(self.columns)), bool)
        self.classes = [int(self._probabilities(number, everything)[0].argmax()) for number in range(self.count)]
        self.made_of = f"{self.count} rows of {len(self.columns)} columns"

    @torch.no_grad()
    def _probabilities(self, number: int, present_VP: Array) -> Array:
        numerical = self.numbers.shape[1]
        there = torch.from_numpy(present_VP)[:, None]  # variants × reference rows × columns
        numbers = torch.where(there[..., :numerical], self.numbers[number].float(), self.reference[0])
        codes = torch.where(there[..., numerical:], self.codes[number], self.reference[1])
        logits = self.model(numbers.flatten(0, 1).to(self.device), codes.flatten(0, 1).to(self.device))
        probabilities: Array = logits.softmax(-1).unflatten(0, numbers.shape[:2]).mean(1).cpu().numpy()
        return probabilities

    def inputs(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [self.rows[i] for i in rows]

    def further(self, count: int) -> Any:
        return list(self.others[:count]) if len(self.others) else super().further(count)

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        by_name = dict(zip(explanation.units.labels, explanation.scores, strict=True))
        return np.array([by_name[name] for name in self.columns])

    def values(self, number: int, present_VP: Array) -> Array:
        values: Array = self._probabilities(number, present_VP)[:, self.classes[number]]
        return values


def contenders() -> Contenders:
    return of_one_pass() | of_many_passes(None) | {"two_ended, mean row": ("two_ended", {"replace": "mean"})}


def subject(count: int, device: str = "cpu", path: Path | None = None, seed: int = 0) -> Rows:
    """The shipped rows, or some of a file with the same columns (its rows may have been trained on)."""
    model, table = load_adult()
    rows, others = adult_rows()[:count], []
    if path is not None:
        drawn = pd.read_csv(path, skipinitialspace=True)[list(table.columns)].sample(frac=1, random_state=seed)
        rows, others = drawn[:count].to_dict("records"), drawn[count:].to_dict("records")
    return Rows(wf.Explainer(model.to(device), table), rows, others)
