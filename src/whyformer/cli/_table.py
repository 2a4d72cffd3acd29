"""Explaining the rows of a CSV file: some of them one by one, or all of them on average."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import typer

from whyformer.errors import BadInput

MOST = 10  # rows that are explained one by one without being asked for by number


def load_table(name: str | None) -> tuple[Any, Any]:
    """Model and Table: shipped, from a folder, or from a function of the user's."""
    from whyformer.inputs.table_schema import Table

    if name is None:
        from whyformer.demo import load_adult

        return load_adult()
    if ":" not in name or Path(name).is_dir():
        from whyformer.tables.saved import load_model

        return load_model(name)
    module, _, function = name.rpartition(":")
    load = getattr(_module(module), function, None)
    if load is None:
        raise BadInput(f"there is no {function!r} in {module!r}: --model module:function names a function.")
    made = load()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Table):
        raise BadInput(f"{name} has to return (model, whyformer.Table).")
    return made[0], made[1]


def _module(name: str) -> Any:
    path = Path(name)
    if path.suffix != ".py":
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            raise BadInput(f"{name!r} cannot be imported ({error}). Give file.py:function, or a folder.") from None
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"there is no file {name!r}.")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def rows_of(path: Path | None, table: Any, size: int) -> Any:
    """The rows of the file, or those that are shipped."""
    from whyformer.demo.census import FOLDER
    from whyformer.tables.csv_rows import CsvRows

    return CsvRows(path or FOLDER / "rows.csv", table, size)


def chosen_rows(path: Path | None, model: str | None, numbers: list[int]) -> tuple[Any, list[Any], list[str]]:
    """An Explainer, the rows, and what they are called."""
    from whyformer.explainer import Explainer

    loaded, table = load_table(model)
    rows = rows_of(path, table, 1024)
    if not numbers and rows.rows > MOST:
        raise typer.BadParameter(
            f"there are {rows.rows} rows: choose some with --row N, or average them all with --overall",
            param_hint="--row",
        )
    wanted = numbers or list(range(rows.rows))
    beyond = [n for n in wanted if n >= rows.rows]
    if beyond:
        raise BadInput(f"--row {beyond[0]}: the file has {rows.rows} rows, numbered 0 to {rows.rows - 1}.")
    picked: dict[int, dict[str, Any]] = {}
    for start, piece in zip(range(0, rows.rows, rows.size), rows, strict=False):
        for n in wanted:
            if start <= n < start + rows.size:
                picked[n] = {name: values[n - start] for name, values in piece.items()}
    return Explainer(loaded, table), [picked[n] for n in wanted], [f"row {n}" for n in wanted]


def overall_picture(
    path: Path | None, model: str | None, methods: list[str], out: Path | None, json: bool, how: dict[str, Any]
) -> None:
    from whyformer.cli._output import print_json, say_written
    from whyformer.tables.global_explanation import BATCH_SIZE, explain_global

    if len(methods) > 1:
        raise typer.BadParameter("--overall takes one method at a time", param_hint="--method")
    loaded, table = load_table(model)
    rows = rows_of(path, table, how["batch_size"] or BATCH_SIZE)
    result = explain_global(loaded, rows, processor=table, method=methods[0] if methods else None, **how)
    if json:
        print_json(result.to_dict(), indent=None)
    else:
        result.show()
    if out is not None:
        say_written([result.save(out)])
