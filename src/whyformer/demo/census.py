"""The shipped FT-Transformer on census data, its table, and a few rows to try it on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "adult"


def load_adult() -> tuple[Any, Any]:
    """The shipped income classifier (<=50K, >50K) and its Table; demo/adult/MODEL_CARD.md."""
    from whyformer.tables.saved import load_model

    return load_model(FOLDER)


def adult_rows() -> list[dict[str, Any]]:
    """Forty rows that the model was not trained on, with the answer in the column ``income``."""
    with (FOLDER / "rows.csv").open(encoding="utf-8", newline="") as stream:
        return [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def _value(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
