"""Rows of census data for the shipped FT-Transformer (``demo.load_adult``)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from whyformer.demo import model_folder


def rows_file() -> Path:
    return model_folder("adult") / "rows.csv"


def adult_rows() -> list[dict[str, Any]]:
    """Forty rows that the model was not trained on, with the answer in the column ``income``."""
    with rows_file().open(encoding="utf-8", newline="") as stream:
        return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def _value(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
