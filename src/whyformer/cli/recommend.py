"""whyformer recommend: how to explain this model."""

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
    how = common(target, replace, units, hold, batch_size, seed, cache)
    result = run(transformer, raw, processor=processor, scope=scope, methods=others, budget=budget, **how)
    deliver_result(result, out, json)
