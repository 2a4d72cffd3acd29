"""Build the command line from the files of this folder and turn errors into exit codes.

COMMANDS lists the commands of each file: functions of that name, or a Typer where a command has sub-commands.
Heavy libraries are imported inside functions, so that ``--help`` is quick.

Exit codes: 0 done, 1 error (the reason is on stderr), 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from whyformer.brief import as_symbols
from whyformer.errors import WhyformerError
from whyformer.version import __version__

INTERRUPTED = 130  # as in shells, after Ctrl-C
FIRST = ("demo", "explain")  # of the list of commands; the others follow by name
COMMANDS = {
    "analysis_commands": ("check", "compare", "maximize", "methods", "metrics", "recommend", "tcav"),
    "attention_commands": ("attention", "capture", "heads"),
    "explain": ("ask", "explain", "trace"),
    "first_steps": ("demo", "doctor"),
    "service_commands": ("batch", "learn", "proxy", "serve"),
}
WrongUsage: Any = typer.BadParameter.__mro__[2]  # click's root; typer imports click or brings its own, by version


@contextmanager
def short_errors() -> Iterator[None]:
    """Escape control characters in usage errors, which repeat the arguments; print one word on Ctrl-C."""
    try:
        yield
    except WrongUsage as error:
        words = as_symbols(error.format_message())
        error.format_message = lambda: words
        raise
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(INTERRUPTED) from None


class Commands(TyperGroup):
    """Print errors of whyformer as one line; any other exception is a bug and keeps its traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = sorted(super().list_commands(ctx))
        return [n for n in FIRST if n in names] + [n for n in names if n not in FIRST]

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        with short_errors():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        try:
            with short_errors():
                return super().invoke(ctx)
        except WhyformerError as error:
            typer.secho(as_symbols(f"Error: {error}"), fg=typer.colors.RED, err=True)
            raise typer.Exit(1) from None
        except BrokenPipeError:  # the reader (head, less) has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


app = typer.Typer(
    name="whyformer",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="New here? Run: whyformer demo",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whyformer {__version__}")
        raise typer.Exit()


@app.callback()
def whyformer(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Explain the predictions of transformers."""


for _file, _names in COMMANDS.items():
    for _name in _names:
        _command = getattr(import_module(f"whyformer.cli.{_file}"), _name)
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(name=_name)(_command)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # terminals that cannot print ▃ get a question mark, not a crash

    def show_warning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        (file or sys.stderr).write(as_symbols(warnings.formatwarning(message, category, filename, lineno, line)))

    warnings.showwarning = show_warning
    try:
        app(prog_name="whyformer")
    except Exception as error:  # a bug: print the traceback with control characters escaped
        sys.stderr.write(as_symbols("".join(traceback.format_exception(error))))
        sys.exit(1)
