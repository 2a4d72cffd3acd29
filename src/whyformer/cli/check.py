"""whyformer check: should this explanation be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli._input import REPORT, check_out, inputs_from, number_or_word, target_from, texts_from
from whyformer.cli._options import BatchSize, Cache, File, Inputs, Json, Model, Seed, Target, Trusted, loaded
from whyformer.cli._output import deliver_result
from whyformer.errors import BadInput


def check(
    inputs: Inputs = None,
    file: File = None,
    model: Model = None,
    trust_remote_code: Trusted = False,
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
    train: Annotated[
        Path | None,
        typer.Option(
            "--train",
            dir_okay=False,
            metavar="FILE",
            help="Train twins of the model on text<TAB>label lines: is its attention needed, could it be another?",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", help="Of the training, with --train.")] = 3,
    target: Target = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    cache: Cache = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, metavar="FILE", help="Write a file too: .html, .png, .svg or .json."),
    ] = None,
    json: Json = False,
) -> None:
    """Check what an explanation can be trusted with.

    Random weights, other classes, noise, padding; and the debate on attention: shuffled,
    erased, uniform and adversarial attention inside the unmodified model.

    \b
    Examples:
      whyformer check "I like the movie"
      whyformer check "So boring" -c jain_wallace -c serrano_smith
      whyformer check --file reviews.txt -m grad_sam --out check.html
      whyformer check --file reviews.txt --cache results/
      whyformer check cat.jpg --model my-vit/ --out check.png
      whyformer check --model my-bert/ --train reviews.tsv --out trained.html
    """
    check_out(out, REPORT)
    if train is not None:
        if inputs or file is not None or checks or method is not None or target is not None or cache is not None:
            raise BadInput("--train trains on the examples of its file: give no texts, --file, --checks or --method.")
        _trained(train, epochs, model, trust_remote_code, batch_size, seed, out, json)
        return
    from whyformer.checks.check import check as run_checks

    transformer, processor, raw = loaded(model, trust_remote_code, inputs or [], file, "check", demo=False)
    result = run_checks(
        transformer,
        raw,
        processor=processor,
        checks=checks or None,
        method=method,
        target=target_from(target, None),
        seed=seed,
        batch_size=batch_size,
        cache=cache,
    )
    deliver_result(result, out, json)


def _trained(
    file: Path,
    epochs: int,
    name: str | None,
    trusted: bool,
    batch_size: int | None,
    seed: int,
    out: Path | None,
    json: bool,
) -> None:
    texts, labels = labelled(file)
    from whyformer.checks.retrained import retrained_attention
    from whyformer.cli._model import load_any, load_text

    transformer, processor, modality = (*load_text(None), "text") if name is None else load_any(name, trusted)
    raw = texts if modality == "text" else inputs_from(texts, None, modality, "check")
    how = {"processor": processor, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    deliver_result(retrained_attention(transformer, raw, labels, **how), out, json)


def labelled(file: Path) -> tuple[list[str], list[str | int]]:
    """Texts and labels of a file with one text<TAB>label in each line; numbers are classes, words their names."""
    texts: list[str] = []
    labels: list[str | int] = []
    for number, line in enumerate(texts_from([], file), 1):
        text, tab, label = line.rpartition("\t")
        if not tab or not text.strip() or not label.strip():
            raise BadInput(f"{file.name}, line {number}: one text, a tab and its label were expected.")
        texts.append(text)
        labels.append(number_or_word(label.strip()))
    return texts, labels
