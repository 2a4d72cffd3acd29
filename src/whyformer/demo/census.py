"""The shipped FT-Transformer on census data, its table, and a few rows to try it on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from whyformer.demo import model_folder
from whyformer.extras import require

NAME = "adult"


def rows_file() -> Path:
    """The shipped rows, as CSV."""
    return model_folder(NAME) / "rows.csv"


def load_adult() -> tuple[Any, Any]:
    """The shipped income classifier (<=50K, >50K) and its Table; MODEL_CARD.md in its folder."""
    require("whyformer_models", "rtdl_revisiting_models", why="the shipped model of a table")
    from whyformer.tables.saved import load_model

    return load_model(model_folder(NAME))


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
