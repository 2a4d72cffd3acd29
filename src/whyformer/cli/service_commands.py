"""whyformer batch, learn, serve and proxy: datasets, learned methods, a page in the browser, citations for chats."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._options import CommandArguments, load, load_any, takes
from whyformer.cli._results import deliver, say_written
from whyformer.errors import SHIPPED, BadInput, require
from whyformer.files import quiet

if TYPE_CHECKING:
    from whyformer.serve.models import ServedModel


@takes(
    "source out/batch model/batch trust_remote_code method column key target/explain versus target_column scalar "
    "passes option too_long part_rows batch_tokens batch_size/rows engine workers address seed quiet log"
)
def batch(asked: CommandArguments) -> None:
    """Explain every row of a dataset, and write Parquet files.

    Run the same command again to resume a stopped job. Rows that cannot be
    explained are listed with their reason in DIR/errors. DIR/summary.html
    shows overall importance, outliers, and rows where methods disagree.

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
        raise typer.BadParameter("--quiet hides progress and --log writes it: choose one", param_hint="--quiet")
    options = asked.settings | {"column": asked.column or None, "method": asked.method or None}
    require("pyarrow", *(["ray"] if asked.engine == "ray" else []), why="whyformer batch")
    from whyformer.jobs import explain_dataset
    from whyformer.jobs.source import rows_of

    rows_of(asked.source)  # raises for unreadable files before a model is loaded
    model, processor, _ = asked.load_any(tables=True)
    shown: Any = "json" if asked.log else False if asked.quiet else None
    try:
        dataset = explain_dataset(model, asked.source, out=asked.out, processor=processor, progress=shown, **options)
    except KeyboardInterrupt:
        typer.echo("Finished rows are kept: run the same command again to resume.", err=True)
        raise
    if not asked.quiet and not asked.log:
        dataset.summary.overview().show()
        say_written(asked.out)


@takes(
    "source out/learn model/batch trust_remote_code column forwards units replace hold linear"
    " batch_size cache seed json"
)
def learn(asked: CommandArguments) -> None:
    """Learn to explain a model in one pass, from unlabelled inputs.

    Masked variants of the inputs are run once; a small network then predicts
    Shapley values from a single pass. Some inputs are held out, and the result
    is compared with other methods on them. The file is a method of its own:
    explain, compare, recommend and batch take it as --method FILE.

    \b
    Examples:
      whyformer learn reviews.csv --column text --out mine.learned
      whyformer explain "I like the movie" --method mine.learned
      whyformer learn reviews.txt --model my-bert/ --forwards 100000 \\
          --cache work/ --out mine.learned
      whyformer learn photos/ --model my-vit/ --out mine.learned
      whyformer learn reviews.txt --linear --out heads.learned
    """
    from whyformer.jobs.source import RowFields, Unreadable, rows_of
    from whyformer.learned.learning import learn as run

    rows = rows_of(asked.source)  # what cannot be read is refused before a model is loaded
    model, processor, _ = asked.load_any(tables=True)
    columns = RowFields(rows, asked.column or None, None, processor)
    contents = map(columns.content, rows.read())
    readable = [content for content in contents if not isinstance(content, Unreadable)]
    options = asked.settings | {"forwards": asked.forwards, "linear": asked.linear}
    options["hold"] = next(iter(options["hold"] or [None]))
    deliver(run(model, readable, processor=processor, **options), asked)


@takes("model/serve learned port host store token allow_models")
def serve(asked: CommandArguments) -> None:
    """Serve a page in the browser that explains predictions.

    Reachable from this machine only, unless --host is given.

    \b
    Examples:
      whyformer serve
      whyformer serve --model my-bert/ --model my-vit/ --port 9000
      whyformer serve --model my-bert/ --learned mine.learned
      whyformer serve --host 0.0.0.0 --store results.sqlite
    """
    require("fastapi", "uvicorn", *(() if asked.model else SHIPPED), why="whyformer serve")
    from whyformer.serve.app import Served, run
    from whyformer.serve.jobs import Jobs
    from whyformer.serve.models import Models, shipped_models
    from whyformer.serve.safety import token_for
    from whyformer.serve.store import Store

    logging.basicConfig(format="%(name)s: %(message)s")  # errors in full; clients receive a short message
    token = token_for(asked.host, asked.token)
    results = Store(asked.store)
    served = [served_model(name) for name in asked.model or []]
    if not served:
        with quiet():
            served = shipped_models()
    models = Models(served, hub_model if asked.allow_models else None)
    typer.echo(f"{', '.join(models.by_name)}; results in {asked.store}; press Ctrl-C to stop.", err=True)
    run(Served(models, results, Jobs(), asked.host, token), asked.port, typer.echo)


@takes(
    "server model/proxy trust_remote_code all method/ask time_limit waiting longest key/server trace trace_content "
    "port/proxy host token"
)
def proxy(asked: CommandArguments) -> None:
    """Pass chat completions on to a server, and add citations.

    An endpoint with OpenAI's API. Replies are those of the server; the field
    "whyformer" is added if the request has "whyformer": {"cite": true}.
    Reachable from this machine only, unless --host is given.

    \b
    Examples:
      whyformer proxy --server http://localhost:8000
      whyformer proxy --server http://localhost:8000 --model my-llm/ --all
    """
    require("fastapi", "uvicorn", "httpx", *(["opentelemetry"] if asked.trace else []), why="whyformer proxy")
    from whyformer.proxy.chat import NOT_SET_UP, Telemetry
    from whyformer.proxy.relay import Citing, Proxy, run
    from whyformer.serve.safety import token_for

    if asked.trace_content and not asked.trace:
        raise typer.BadParameter("it is for spans: add --trace", param_hint="--trace-content")
    logging.basicConfig(format="%(name)s: %(message)s")
    limits = {"method": asked.method, "seconds": asked.time_limit, "waiting": asked.waiting, "longest": asked.longest}
    citing = Citing(asked.server, **limits)
    token = token_for(asked.host, asked.token)
    made = Proxy(asked.server, citing, asked.all, asked.host, token, asked.key)
    if asked.trace:
        made.telemetry = Telemetry(made.server, asked.trace_content)
        if made.telemetry.discarded:
            typer.echo(NOT_SET_UP, err=True)
    if asked.model is not None:
        citing.model, citing.processor = asked.load("language")
        citing.name = Path(asked.model).name or asked.model  # clients do not see the path of a folder
    run(made, asked.port, typer.echo)


def served_model(name: str) -> ServedModel:
    """Load a model of --model: a folder, a name on the hub, or a function that returns model and processor."""
    short = Path(name).name or name  # clients do not see the path of a folder
    if (Path(name) / "1_Pooling").is_dir():  # a SentenceTransformer, which has its own pooling
        return _served(short, *load("encoder", name), "similarity")
    return _served(short, *load_any(name, tables=True))


def hub_model(name: str) -> ServedModel:
    """Load a model by name for a client: from the hub only, safetensors only, without running its code."""
    if Path(name).exists():  # transformers would load this folder
        raise BadInput(f"{name!r} cannot be loaded from here: name it with --model when the server is started.")
    return _served(name, *load_any(name, pickles=False))


def _served(name: str, model: Any, processor: Any, kind: str) -> ServedModel:
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    explainer = Explainer(model, processor)
    return ServedModel(name, kind_of(explainer, kind), explainer)
