"""whyformer compare: which method to trust here."""

from __future__ import annotations

from typing import Annotated

import typer

from whyformer.cli._input import REPORT, check_out
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
from whyformer.cli._output import deliver_result


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

    how = common(target, replace, units, hold, batch_size, seed, cache)
    deliver_result(
        run(transformer, raw, processor=processor, methods=method or None, metrics=metric or None, **how), out, json
    )
