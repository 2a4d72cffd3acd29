"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT...", help="Texts (image files for an image model); '-' reads lines from stdin."),
]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="Read one text per line."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped sentiment model"),
]
Replace = Annotated[
    str | None,
    typer.Option(
        "--replace",
        metavar="WHAT",
        help="What stands for absent parts: mask, unk, pad, delete, resample; mean, zero, blur, grey, black.",
        show_default="the first that the model has",
    ),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="CLASS", help="Class, by name or index.", show_default="the prediction"),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, metavar="N", help="Inputs per pass.", show_default="16")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of what is drawn at random.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", file_okay=False, metavar="FOLDER", help="Keep results here; a stopped job goes on."),
]
Out = Annotated[
    Path | None, typer.Option("--out", dir_okay=False, metavar="FILE", help="Write .html, .png, .svg or .json.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
