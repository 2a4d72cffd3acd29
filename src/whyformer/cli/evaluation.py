"""whyformer check: should this explanation be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli._explaining import deliver_result
from whyformer.cli._input import REPORT, check_out, inputs_from, number_or_word, target_from, texts_from
from whyformer.cli._options import (
    BatchSize,
    Cache,
    File,
    Hold,
    Inputs,
    Json,
    Model,
    Out,
    Replace,
    Seed,
    Target,
    TextUnits,
    Trusted,
    common,
    loaded,
)
from whyformer.errors import BadInput

# whyformer compare: which method to trust here.


def compare(
    inputs: Inputs = None,
    file: File = None,
    model: Model = None,
    trust_remote_code: Trusted = False,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", metavar="NAME", help="A method; repeat for several.", show_default="all"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="A metric; repeat. See: whyformer metrics", show_default="five"),
    ] = None,
    replace: Replace = None,
    units: TextUnits = "token",
    hold: Hold = None,
    target: Target = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    cache: Cache = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare methods: faithfulness with intervals, cost, agreement.

    Random scores run along as the floor, a greedy search as the ceiling.
    Without texts: the five sentences of the demo, which are few.

    \b
    Examples:
      whyformer compare --file reviews.txt --out compare.html
      whyformer compare -m raw_attention -m attn_lrp "I like the movie"
      whyformer compare --file reviews.txt --replace delete
      whyformer compare --model my-lm/ -f prompts.txt --units sentence --hold -1
      whyformer compare --model my-vit/ *.jpg --cache results/
    """
    check_out(out, REPORT)
    from whyformer.registry import get_method, get_metric

    for name in method or []:
        get_method(name)
    for name in metric or []:
        get_metric(name)
    transformer, processor, raw = loaded(model, trust_remote_code, inputs or [], file, "compare")
    from whyformer.evaluate.compare import compare as run

    options = common(target, replace, units, hold, batch_size, seed, cache)
    deliver_result(
        run(transformer, raw, processor=processor, methods=method or None, metrics=metric or None, **options), out, json
    )


# whyformer recommend: how to explain this model.


def recommend(
    inputs: Inputs = None,
    file: File = None,
    model: Model = None,
    trust_remote_code: Trusted = False,
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="One choice for the dataset, per label or per instance.")
    ] = "dataset",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", metavar="NAME", help="A method that stands too; repeat.", show_default="all"),
    ] = None,
    attention_only: Annotated[
        bool, typer.Option("--attention-only", help="Choose among attention aggregations only.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="COST", help="The best within so many forwards (20), or a time (2s, 500ms)."),
    ] = None,
    replace: Replace = None,
    units: TextUnits = "token",
    hold: Hold = None,
    target: Target = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    cache: Cache = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Choose how to explain a model, and test the choice.

    Every layer, head and reading of attention, with and without gradients,
    and all other methods: chosen on half of the inputs, tested on the rest.

    \b
    Examples:
      whyformer recommend --file reviews.txt --out choice.html
      whyformer recommend --file reviews.txt --scope label
      whyformer recommend "I like the movie" --scope instance
      whyformer recommend --file reviews.txt --attention-only
      whyformer recommend --file reviews.txt --budget 20
    """
    check_out(out, REPORT)
    from whyformer.errors import one_of
    from whyformer.registry import get_method

    one_of("--scope", scope, ("dataset", "label", "instance"))
    if budget is not None:
        from whyformer.evaluate.budget import budget_of

        budget_of(budget)  # before a model is loaded
    for name in method or []:
        get_method(name)
    transformer, processor, raw = loaded(model, trust_remote_code, inputs or [], file, "recommend")
    from whyformer.evaluate.recommend import recommend as run

    others = [] if attention_only and not method else method or None
    options = common(target, replace, units, hold, batch_size, seed, cache)
    result = run(transformer, raw, processor=processor, scope=scope, methods=others, budget=budget, **options)
    deliver_result(result, out, json)


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
    from whyformer.cli._options import load_any, load_text

    transformer, processor, modality = (*load_text(None), "text") if name is None else load_any(name, trusted)
    raw = texts if modality == "text" else inputs_from(texts, None, modality, "check")
    options = {"processor": processor, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    deliver_result(retrained_attention(transformer, raw, labels, **options), out, json)


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
