"""whyformer check: should this explanation be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli._input import REPORT, check_out, target_from
from whyformer.cli._options import BatchSize, Cache, File, Inputs, Json, Model, Seed, Target, Trusted, loaded
from whyformer.cli._output import deliver_result


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
    """
    check_out(out, REPORT)
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
