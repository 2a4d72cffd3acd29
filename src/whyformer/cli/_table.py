"""Explaining the rows of a CSV file: some of them one by one, or all of them on average."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import typer

from whyformer.cli._options import CommandArguments
from whyformer.cli._results import deliver
from whyformer.errors import BadInput

MOST = 10  # rows that are explained one by one without being asked for by number
FIRST = 3  # of more rows


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
    from whyformer.demo.census import rows_file
    from whyformer.tables.global_explanation import CsvRows

    return CsvRows(path or rows_file(), table, size)


def chosen_rows(path: Path | None, model: str | None, numbers: list[int]) -> tuple[Any, list[Any], list[str]]:
    """An Explainer, the rows, and what they are called."""
    from whyformer.verbs import Explainer

    loaded, table = load_table(model)
    rows = rows_of(path, table, 1024)
    if not numbers and rows.rows > MOST:
        words = (
            f"The first {FIRST} of {rows.rows} rows: choose others with --row N, or average them all with --overall."
        )
        typer.echo(words, err=True)
    wanted = numbers or list(range(rows.rows if rows.rows <= MOST else FIRST))
    beyond = [n for n in wanted if n >= rows.rows]
    if beyond:
        raise BadInput(f"--row {beyond[0]}: the file has {rows.rows} rows, numbered 0 to {rows.rows - 1}.")
    picked: dict[int, dict[str, Any]] = {}
    for start, piece in zip(range(0, rows.rows, rows.size), rows, strict=False):
        for n in wanted:
            if start <= n < start + rows.size:
                picked[n] = {name: values[n - start] for name, values in piece.items()}
    return Explainer(loaded, table), [picked[n] for n in wanted], [f"row {n}" for n in wanted]


def in_context_pictures(path: Path | None, context: Path, numbers: list[int], asked: CommandArguments) -> None:
    """Explain rows beside training rows (in-context models); their answers are in the table's target column."""
    from dataclasses import replace

    from whyformer.tables.global_explanation import CsvRows
    from whyformer.tables.in_context import explain_in_context

    method = _one_method(asked, "--context")
    explainer, raw, titles = chosen_rows(path, asked.model, numbers)
    table = explainer.processor
    if not table.target:
        raise BadInput("which column of the training rows is the answer? Name it: Table(…, target='…').")
    if asked.out is not None and len(raw) > 1:
        raise typer.BadParameter("one file holds one row: choose it with --row N", param_hint="--out")
    known = CsvRows(context, table, 2**31 - 1)
    (columns,) = list(known)
    if table.target not in columns:
        raise BadInput(f"{str(context)!r} has no column {table.target!r}, the answers that the model is told.")
    answers = [str(v) if str(v) in table.classes else _number(table.target, v) for v in columns.pop(table.target)]
    options = {k: v for k, v in asked.settings.items() if k not in {"batch_size", "seed"}} | method
    results = explain_in_context(explainer.model, raw, context=columns, answers=answers, processor=table, **options)
    assert isinstance(results, list)
    views = [result.view() for result in results]
    titled = [replace(view, title=f"{title}: {view.title}") for title, view in zip(titles, views, strict=True)]
    deliver([[result] for result in results], asked, views=titled, names=titles)


def _number(column: str, value: Any) -> float | int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(
            f"column {column!r} of the training rows holds {value!r}, which is no class of the table and no number."
        ) from None
    return int(number) if number.is_integer() else number


def overall_picture(path: Path | None, asked: CommandArguments) -> None:
    """Explain all rows and deliver the mean scores of the columns."""
    from whyformer.tables.global_explanation import BATCH_SIZE, explain_global

    method = _one_method(asked, "--overall")
    loaded, table = load_table(asked.model)
    rows = rows_of(path, table, asked.batch_size or BATCH_SIZE)
    deliver(explain_global(loaded, rows, processor=table, **method, **asked.settings), asked)


def _one_method(asked: CommandArguments, flag: str) -> dict[str, Any]:
    if len(asked.method or []) > 1:
        raise typer.BadParameter(f"{flag} takes one method at a time", param_hint="--method")
    return {"method": asked.method[0]} if asked.method else {}
