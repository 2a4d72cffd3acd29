"""whyformer batch and serve: explain a dataset into a folder, and serve models to a browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._input import load_table
from whyformer.cli._options import CommandArguments, load, load_any, takes
from whyformer.cli._results import say_written
from whyformer.extras import SHIPPED, require
from whyformer.files import quiet

if TYPE_CHECKING:
    from whyformer.serve.models import ServedModel


@takes(
    "source out/batch model/batch trust_remote_code method column key target/explain versus target_column scalar "
    "passes option too_long part_rows batch_tokens batch_size/rows engine workers address seed/explain quiet log"
)
def batch(asked: CommandArguments) -> None:
    """Explain every row of a dataset into a folder of Parquet files.

    Stopped, it goes on where it was: run the same again. Rows that cannot be
    explained are in DIR/errors with their reason; DIR/summary.html shows what
    matters overall, outliers, and rows where methods disagree.

    \b
    Examples:
      whyformer batch reviews.csv --column text --out why/
      whyformer batch reviews.jsonl --model my-bert/ --out why/ \\
          -m generic_attention -m attn_lrp
      whyformer batch photos/ --model my-vit/ --out why/ --log
      whyformer batch rows.csv --model mine.py:load --out why/
      whyformer batch reviews.parquet --out why/ --workers 2
      whyformer batch reviews.parquet --out why/ --engine ray --workers 8
    """
    if asked.quiet and asked.log:
        raise typer.BadParameter("--quiet says nothing, and --log writes lines: choose one", param_hint="--quiet")
    options = asked.settings | {"column": asked.column or None, "method": asked.method or None}
    require("pyarrow", *(["ray"] if asked.engine == "ray" else []), why="whyformer batch")
    from whyformer.jobs import explain_dataset
    from whyformer.jobs.source import rows_of

    rows_of(asked.source)  # what cannot be read is refused before a model is loaded
    if asked.model is not None and _is_table(asked.model):
        model, processor = load_table(asked.model)
    else:
        model, processor, _ = asked.load_any()
    shown: Any = "json" if asked.log else False if asked.quiet else None
    dataset = explain_dataset(model, asked.source, out=asked.out, processor=processor, progress=shown, **options)
    if not asked.quiet and not asked.log:
        dataset.summary.overview().show()
        say_written(asked.out)


def _is_table(name: str) -> bool:
    """A saved tabular model, or a function that returns model and Table."""
    return (Path(name) / "table.json").is_file() or (":" in name and not Path(name).exists())


@takes("model/serve port host store token allow_models")
def serve(asked: CommandArguments) -> None:
    """Open a page in the browser: ask models, and see why they say it.

    Reachable from this machine only, unless --host says otherwise.

    \b
    Examples:
      whyformer serve
      whyformer serve --model my-bert/ --model my-vit/ --port 9000
      whyformer serve --host 0.0.0.0 --store results.sqlite
    """
    require("fastapi", "uvicorn", *(() if asked.model else SHIPPED), why="whyformer serve")
    from whyformer.serve.app import Served, run
    from whyformer.serve.jobs import Jobs
    from whyformer.serve.models import Models, shipped_models
    from whyformer.serve.safety import token_for
    from whyformer.serve.store import Store

    logging.basicConfig(format="%(name)s: %(message)s")  # what went wrong, beside what clients are told
    token = token_for(asked.host, asked.token)
    results = Store(asked.store)
    typer.echo("loading models …", err=True)
    served = [served_model(name) for name in asked.model or []]
    if not served:
        with quiet():
            served = shipped_models()
    models = Models(served, hub_model if asked.allow_models else None)
    typer.echo(f"{', '.join(models.by_name)}; results in {asked.store}; Ctrl-C ends it.", err=True)
    run(Served(models, results, Jobs(), asked.host, token), asked.port, typer.echo)


def served_model(name: str) -> ServedModel:
    """A model that the user named: a folder, a name on the hub, or a function that returns model and Table."""
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    short = Path(name).name or name  # clients are not shown where a folder is
    if _is_table(name):
        return ServedModel(short, "table", Explainer(*load_table(name)))
    if (Path(name) / "1_Pooling").is_dir():  # a SentenceTransformer, which may read its tokens in a way of its own
        return ServedModel(short, "similarity", Explainer(*load("encoder", name)))
    model, processor, kind = load_any(name)
    explainer = Explainer(model, processor)
    return ServedModel(short, kind_of(explainer, kind), explainer)


def hub_model(name: str) -> ServedModel:
    """Load a model that a client named: from the hub only, weights from safetensors only, none of its code."""
    from whyformer.errors import BadInput
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    if Path(name).exists():  # which transformers would take for the model
        raise BadInput(f"{name!r} cannot be loaded from here: name it with --model when the server is started.")
    model, processor, kind = load_any(name, pickles=False)
    explainer = Explainer(model, processor)
    return ServedModel(name, kind_of(explainer, kind), explainer)
