"""Writing what was found: to the terminal, as JSON, or to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._input import DATA
from whyformer.symbols import as_symbols, escaped_json

if TYPE_CHECKING:
    from whyformer.types import Explanation

Results = list[list["Explanation"]]  # per input, one per method


def print_json(plain: Any, indent: int | None = 1) -> None:
    """JSON on stdout, which may be a terminal: what would steer it is written as JSON's own escapes."""
    typer.echo(escaped_json(json.dumps(plain, ensure_ascii=False, indent=indent)))


def plain_of(results: Results) -> list[dict[str, Any]]:
    """One object per input and method, as ``Explanation.save("x.json")`` writes it."""
    return [e.to_dict() for row in results for e in row]


def views_of(
    results: Results,
    *,
    images: list[Any] | None = None,
    titles: list[str] | None = None,
    by: str = "token",
    shared: bool = True,
    detail: bool = False,
    others: list[Any] | None = None,
) -> list[Any]:
    """One view per input: a single explanation in full, several side by side."""
    from whyformer.views import side_by_side, view_of

    views = []
    for i, row in enumerate(results):
        how: dict[str, Any] = {"image": images[i] if images else None, "title": titles[i] if titles else "", "by": by}
        how |= {"detail": detail, "others": others[i] if others else ()}
        views.append(view_of(row[0], **how) if len(row) == 1 else side_by_side(row, shared=shared, **how))
    return views


def write(results: Results, views: list[Any], out: Path, title: str) -> list[Path]:
    """One HTML page for everything; one picture per input; one data file per explanation."""
    from whyformer.views import page

    if out.suffix == ".html":
        return [page(views, title).save(out)]
    if out.suffix in DATA:
        explanations = [(f"{i + 1}-{e.method}", e) for i, row in enumerate(results) for e in row]
        return [e.save(_numbered(out, name, len(explanations))) for name, e in explanations]
    return [view.save(_numbered(out, str(i + 1), len(views))) for i, view in enumerate(views)]


def _numbered(out: Path, name: str, count: int) -> Path:
    return out if count == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}")


def say_written(paths: list[Path]) -> None:
    """On stderr, so that a pipe gets the result only."""
    for path in paths:
        typer.echo(as_symbols(f"wrote {path}"), err=True)


def deliver_results(results: list[Any], out: Path | None, as_json: bool) -> None:
    """Print results of one input, one per method, and write them: one page, or numbered files."""
    from whyformer.views import page

    if len(results) == 1:
        deliver_result(results[0], out, as_json)
        return
    if as_json:
        print_json([result.to_dict() for result in results])
    for result in [] if as_json else results:
        result.show()
    if out is not None and out.suffix == ".html":
        say_written([page([result.view() for result in results], "Why did the model say that?").save(out)])
    elif out is not None:
        say_written([r.save(_numbered(out, r.method, len(results))) for r in results])


def deliver_result(result: Any, out: Path | None, as_json: bool) -> None:
    """Print a result that can show and save itself, and write the file that was asked for."""
    if as_json:
        print_json(result.to_dict())
    else:
        result.show()
    if out is not None:
        result.save(out)
        say_written([out])
