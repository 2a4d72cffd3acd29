"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

# What compare, recommend and check share: the model with its inputs, and options by their Python names.


def loaded(
    model: str | None, trusted: bool, arguments: list[str], file: Path | None, command: str, demo: bool = True
) -> tuple[Any, Any, list[Any]]:
    """Model, processor, inputs; ``demo``: without texts, the sentences of the demo."""
    from whyformer.cli._input import inputs_from
    from whyformer.cli._model import load_any, load_text

    transformer, processor, modality = (*load_text(None), "text") if model is None else load_any(model, trusted)
    return transformer, processor, inputs_from(arguments, file, modality, command, demo)


def common(
    target: str | None,
    replace: str | None,
    units: str,
    hold: list[str] | None,
    batch_size: int | None,
    seed: int,
    cache: Path | None,
) -> dict[str, Any]:
    """Options by the names they have in Python."""
    from whyformer.cli._input import number_or_word, target_from

    token = None if replace is None else number_or_word(replace)
    aim = target_from(target, None)
    held = [number_or_word(part) for part in hold or []] or None
    how = {"target": aim, "replace": token, "units": units, "hold": held}
    return how | {"batch_size": batch_size, "seed": seed, "cache": cache}


# Options that several commands have, each written once.


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
Trusted = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the model. Read it first.", show_default=False),
]
LanguageModel = Annotated[str, typer.Option("--model", metavar="NAME", help="Folder or hub name of a language model.")]
Method = Annotated[
    str | None,
    typer.Option("--method", "-m", metavar="NAME", help="See: whyformer methods", show_default="the one for texts"),
]
TextUnits = Annotated[str, typer.Option("--units", metavar="UNIT", help="What gets a score: token, word or sentence.")]
Replace = Annotated[
    str | None,
    typer.Option(
        "--replace",
        metavar="WHAT",
        help="What stands for absent parts: mask, unk, pad, delete, resample; mean, zero, blur, grey, black.",
        show_default="the first that the model has",
    ),
]
Hold = Annotated[
    list[str] | None,
    typer.Option(
        "--hold",
        metavar="PART",
        help="Always there, such as the question of a prompt: its text, or a number (-1: the last unit); repeatable.",
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
AnyOut = Annotated[
    Path | None,
    typer.Option("--out", dir_okay=False, metavar="FILE", help="Write .html, .png, .svg, .pdf, .json or .npz."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
