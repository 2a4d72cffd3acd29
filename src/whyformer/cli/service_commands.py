"""whyformer serve: models behind a page in the browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._explaining import Methods, Options, Scalar, Seed, TargetName, Versus, asked
from whyformer.cli._input import target_from
from whyformer.cli._options import Trusted
from whyformer.extras import SHIPPED, require

if TYPE_CHECKING:
    from whyformer.serve.models import ServedModel


# whyformer batch: a whole dataset explained into a folder, resumed where it stopped.


def batch(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A .csv, .tsv, .jsonl, .parquet or .txt file, or a folder of images.")
    ],
    out: Annotated[
        Path, typer.Option("--out", file_okay=False, metavar="DIR", help="A new folder, or one to go on in.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Folder or hub name; of a table, also file.py:function that returns model and Table.",
            show_default="the shipped sentiment model",
        ),
    ] = None,
    trust_remote_code: Trusted = False,
    method: Methods = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", metavar="NAME", help="Column that holds the input; twice for a pair of texts."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="NAME", help="Column that names the rows.")] = None,
    target: TargetName = None,
    versus: Versus = None,
    target_column: Annotated[
        str | None, typer.Option("--target-column", metavar="NAME", help="Column that says what to explain of a row.")
    ] = None,
    scalar: Scalar = "logit",
    option: Options = None,
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
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, metavar="N", help="Rows per pass.", show_default="32, 256 on a GPU"),
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
    seed: Seed = 0,
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
    options = asked(
        None, option, method, target=target_from(target, versus), scalar=scalar, seed=seed, too_long=too_long
    )
    if quiet and log:
        raise typer.BadParameter("--quiet says nothing, and --log writes lines: choose one", param_hint="--quiet")
    sizes = {"part_rows": part_rows, "batch_tokens": batch_tokens, "batch_size": batch_size}
    options |= {"engine": engine, "workers": workers, "address": address}
    options |= sizes | {"column": column or None, "key": key, "method": method or None, "target_column": target_column}
    require("pyarrow", *(["ray"] if engine == "ray" else []), why="whyformer batch")
    from whyformer.jobs import explain_dataset
    from whyformer.jobs.source import rows_of

    rows_of(source)  # what cannot be read is refused before a model is loaded
    loaded, processor = _loaded(model, trust_remote_code)
    shown: Any = "json" if log else False if quiet else None
    dataset = explain_dataset(loaded, source, out=out, processor=processor, progress=shown, **options)
    if not quiet and not log:
        dataset.summary.overview().show()
        typer.echo(f"wrote {out}", err=True)


def _loaded(name: str | None, trusted: bool) -> tuple[Any, Any]:
    """Model and processor: of texts, images or sound, or of a table where the name or folder says so."""
    from whyformer.cli._options import load_any, load_text
    from whyformer.cli._table import load_table
    from whyformer.tables.saved import TABLE

    if name is None:
        return load_text(None)
    if (Path(name) / TABLE).is_file() or (":" in name and not Path(name).exists()):
        return load_table(name)
    model, processor, _ = load_any(name, trusted)
    return model, processor


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
    from whyformer.serve.app import Served
    from whyformer.serve.jobs import Jobs
    from whyformer.serve.models import Models
    from whyformer.serve.safety import token_for
    from whyformer.serve.server import run
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
    from whyformer.cli._options import load_any, load_encoder
    from whyformer.cli._table import load_table
    from whyformer.serve.models import ServedModel, kind_of
    from whyformer.verbs import Explainer

    folder = Path(name)
    if (folder / "table.json").is_file() or (":" in name and not folder.is_dir()):
        return ServedModel(_short(name), "table", Explainer(*load_table(name)))
    if (folder / "1_Pooling").is_dir():  # a SentenceTransformer, which may read its tokens in a way of its own
        return ServedModel(_short(name), "similarity", Explainer(*load_encoder(name)))
    model, processor, kind = load_any(name)
    explainer = Explainer(model, processor)
    return ServedModel(_short(name), kind_of(explainer, kind), explainer)


def hub_model(name: str) -> ServedModel:
    """A model that a client named: from the hub only, its weights as safetensors only, none of its code."""
    from whyformer.cli._options import load_any
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
