"""whyformer check: should this explanation be believed?"""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

ENDINGS = (".html", ".png", ".svg", ".json")


def check(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Texts (image files for an image model); '-' reads lines from stdin."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="Read one text per line."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped sentiment model"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", metavar="NAME", help="Whose explanations are checked.", show_default="the default method"
        ),
    ] = None,
    checks: Annotated[
        list[str] | None,
        typer.Option("--checks", "-c", metavar="NAME", help="A check; repeatable.", show_default="all"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="CLASS", help="Class, by name or index.", show_default="the prediction"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Inputs per pass.", show_default="16")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of what is drawn at random.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, metavar="FILE", help="Write a file too: .html, .png, .svg or .json."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what an explanation can be trusted with.

    Random weights, other classes, noise, padding; and the debate on attention: shuffled,
    erased, uniform and adversarial attention inside the unmodified model.

    \b
    Examples:
      whyformer check "I like the movie"
      whyformer check "So boring" -c jain_wallace -c serrano_smith
      whyformer check --file reviews.txt -m grad_sam --out check.html
      whyformer check cat.jpg --model my-vit/ --out check.png
    """
    _check_out(out)
    from whyformer.cli._input import target_from
    from whyformer.cli._model import load_any, load_text
    from whyformer.evaluate.checks.check import check as run_checks

    loaded, processor, modality = (*load_text(None), "text") if model is None else load_any(model)
    found = run_checks(
        loaded,
        _inputs(inputs or [], file, modality),
        processor=processor,
        checks=checks or None,
        method=method,
        target=target_from(target, None),
        seed=seed,
        batch_size=batch_size,
    )
    if json:
        typer.echo(json_text.dumps(found.to_dict(), ensure_ascii=False, indent=1))
    else:
        found.show()
    if out is not None:
        found.save(out)
        typer.echo(f"wrote {out}", err=True)


def _check_out(out: Path | None) -> None:
    """Asked before long work."""
    if out is None:
        return
    if out.suffix not in ENDINGS:
        raise typer.BadParameter(f"{out.name!r}: use {', '.join(ENDINGS)}", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="--out")


def _inputs(arguments: list[str], file: Path | None, modality: str) -> list[Any]:
    from whyformer.cli._input import texts_from
    from whyformer.errors import BadInput

    if modality == "text":
        return texts_from(arguments, file)
    if not arguments or file is not None:
        raise BadInput("this is a model of images: give image files, e.g. whyformer check --model my-vit/ cat.jpg")
    from whyformer.subjects.image import open_image

    return [open_image(Path(path)) for path in arguments]
