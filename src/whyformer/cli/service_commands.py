"""whyformer batch and serve: explain a dataset into a folder, and serve models to a browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._options import CommandArguments, load, load_any, takes
from whyformer.cli._results import say_written
from whyformer.cli._table import load_table
from whyformer.extras import SHIPPED, require

if TYPE_CHECKING:
    from whyformer.serve.models import ServedModel


# whyformer batch: a whole dataset explained into a folder, resumed where it stopped.


@takes(
    "out model/batch trust_remote_code method column key target/explain versus target_column scalar option too_long "
    "part_rows batch_tokens batch_size/rows engine workers address seed/explain quiet log"
)
def batch(
    asked: CommandArguments,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A .csv, .tsv, .jsonl, .parquet or .txt file, or a folder of images.")
    ],
    out: Annotated[
        Path, typer.Option("--out", file_okay=False, metavar="DIR", help="A new folder, or one to go on in.")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", metavar="NAME", help="Column that holds the input; twice for a pair of texts."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="NAME", help="Column that names the rows.")] = None,
    target_column: Annotated[
        str | None, typer.Option("--target-column", metavar="NAME", help="Column that says what to explain of a row.")
    ] = None,
    too_long: Annotated[
        str, typer.Option("--too-long", metavar="WHAT", help="Texts beyond the model's length: error or cut.")
    ] = "error",
    part_rows: Annotated[
        int | None, typer.Option("--part-rows", min=1, metavar="N", help="Rows per file.", show_default="512")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens", min=1, metavar="N", help="Positions per pass.", show_default="1024, 16384 on a GPU"
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="local, or ray: parts on a Ray cluster.")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            metavar="N",
            help="Processes that explain, each with a copy of the model.",
            show_default="this one; of ray one per GPU, or per CPU",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="Of a running Ray cluster.", show_default="one started here"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
    log: Annotated[bool, typer.Option("--log", help="Progress as JSON lines on stderr, no summary.")] = False,
) -> None:
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
    if quiet and log:
        raise typer.BadParameter("--quiet says nothing, and --log writes lines: choose one", param_hint="--quiet")
    options = asked.settings | {"column": column or None, "key": key, "method": asked.method or None}
    options |= {"target_column": target_column, "too_long": too_long, "part_rows": part_rows}
    options |= {"batch_tokens": batch_tokens, "engine": engine, "workers": workers, "address": address}
    require("pyarrow", *(["ray"] if engine == "ray" else []), why="whyformer batch")
    from whyformer.jobs import explain_dataset
    from whyformer.jobs.source import rows_of

    rows_of(source)  # what cannot be read is refused before a model is loaded
    if asked.model is not None and _is_table(asked.model):
        model, processor = load_table(asked.model)
    else:
        model, processor, _ = asked.load_any()
    shown: Any = "json" if log else False if quiet else None
    dataset = explain_dataset(model, source, out=out, processor=processor, progress=shown, **options)
    if not quiet and not log:
        dataset.summary.overview().show()
        say_written(out)


def _is_table(name: str) -> bool:
    """A saved tabular model, or a function that returns model and Table."""
    return (Path(name) / "table.json").is_file() or (":" in name and not Path(name).exists())


STORE = Path("whyformer.sqlite")


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Folder or hub name, or a table model's folder or file.py:function; repeatable.",
            show_default="the shipped models",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes any that is free.")
    ] = 8765,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Another than this machine's own asks for a token.")
    ] = "127.0.0.1",
    store: Annotated[Path, typer.Option("--store", metavar="FILE", help="Where results are kept.")] = STORE,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="WORD", help="Ask for this token.", show_default="made up where one is needed"),
    ] = None,
    allow_models: Annotated[
        bool,
        typer.Option("--allow-models", help="Let the page load models from the hub by name.", show_default=False),
    ] = False,
) -> None:
    """Open a page in the browser: ask models, and see why they say it.

    Reachable from this machine only, unless --host says otherwise.

    \b
    Examples:
      whyformer serve
      whyformer serve --model my-bert/ --model my-vit/ --port 9000
      whyformer serve --host 0.0.0.0 --store results.sqlite
    """
    require("fastapi", "uvicorn", *(() if model else SHIPPED), why="whyformer serve")
    from whyformer.serve.app import Served, run
    from whyformer.serve.jobs import Jobs
    from whyformer.serve.models import Models
    from whyformer.serve.safety import token_for
    from whyformer.serve.store import Store

    logging.basicConfig(format="%(name)s: %(message)s")  # what went wrong, beside what clients are told
    asked = token_for(host, token)
    results = Store(store)
    typer.echo("loading models …", err=True)
    models = Models([served_model(name) for name in model or []] or _shipped(), hub_model if allow_models else None)
    typer.echo(f"{', '.join(models.by_name)}; results in {store}; Ctrl-C ends it.", err=True)
    run(Served(models, results, Jobs(), host, asked), port, typer.echo)


def served_model(name: str) -> ServedModel:
    """A model that the user named: a folder, a name on the hub, or a function that returns model and Table."""
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    if _is_table(name):
        return ServedModel(_short(name), "table", Explainer(*load_table(name)))
    if (Path(name) / "1_Pooling").is_dir():  # a SentenceTransformer, which may read its tokens in a way of its own
        return ServedModel(_short(name), "similarity", Explainer(*load("encoder", name)))
    model, processor, kind = load_any(name)
    explainer = Explainer(model, processor)
    return ServedModel(_short(name), kind_of(explainer, kind), explainer)


def hub_model(name: str) -> ServedModel:
    """A model that a client named: from the hub only, its weights as safetensors only, none of its code."""
    from whyformer.errors import BadInput
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    if Path(name).exists():  # which transformers would take for the model
        raise BadInput(f"{name!r} cannot be loaded from here: name it with --model when the server is started.")
    model, processor, kind = load_any(name, pickles=False)
    explainer = Explainer(model, processor)
    return ServedModel(name, kind_of(explainer, kind), explainer)


def _shipped() -> list[ServedModel]:
    from whyformer.files.paths import quiet
    from whyformer.serve.models import shipped_models

    with quiet():
        return shipped_models()


def _short(name: str) -> str:
    """A folder by its last part: where it lies is nobody's business."""
    return Path(name).name or name
