"""What compare and recommend share: the model with its inputs, and writing what came out."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

ENDINGS = (".html", ".png", ".svg", ".json")

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


def check_out(out: Path | None) -> None:
    """Asked before long work."""
    if out is None:
        return
    if out.suffix not in ENDINGS:
        raise typer.BadParameter(f"{out.name!r}: use {', '.join(ENDINGS)}", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="--out")


def loaded(model: str | None, arguments: list[str], file: Path | None, command: str) -> tuple[Any, Any, list[Any]]:
    """Model, processor, inputs; without texts the sentences of the demo."""
    from whyformer.cli._input import texts_from
    from whyformer.cli._model import load_any, load_text
    from whyformer.cli.demo import SENTENCES
    from whyformer.errors import BadInput

    found, processor, modality = (*load_text(None), "text") if model is None else load_any(model)
    if modality == "text":
        texts = texts_from(arguments, file) if arguments or file is not None else list(SENTENCES)
        return found, processor, texts
    if not arguments or file is not None:
        raise BadInput(f"this is a model of images: give image files, whyformer {command} --model my-vit/ cat.jpg")
    from whyformer.subjects.image import open_image

    return found, processor, [open_image(Path(path)) for path in arguments]


def common(
    target: str | None, replace: str | None, batch_size: int | None, seed: int, cache: Path | None
) -> dict[str, Any]:
    """Options by the names they have in Python."""
    from whyformer.cli._input import target_from

    token = int(replace) if replace is not None and replace.isdigit() else replace
    aim = target_from(target, None)
    return {"target": aim, "replace": token, "batch_size": batch_size, "seed": seed, "cache": cache}


def deliver(result: Any, out: Path | None, json: bool) -> None:
    """Print, and write the file that was asked for."""
    if json:
        typer.echo(json_text.dumps(result.to_dict(), ensure_ascii=False, indent=1))
    else:
        result.show()
    if out is not None:
        result.save(out)
        typer.echo(f"wrote {out}", err=True)
