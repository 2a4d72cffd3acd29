"""whyformer batch: a whole dataset explained into a folder, resumed where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._explaining import Methods, Options, Scalar, Seed, TargetName, Versus, asked
from whyformer.cli._input import target_from
from whyformer.cli._options import Trusted
from whyformer.extras import require


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
    how = asked(None, option, method, target=target_from(target, versus), scalar=scalar, seed=seed, too_long=too_long)
    if quiet and log:
        raise typer.BadParameter("--quiet says nothing, and --log writes lines: choose one", param_hint="--quiet")
    sizes = {"part_rows": part_rows, "batch_tokens": batch_tokens, "batch_size": batch_size}
    how |= {"engine": engine, "workers": workers, "address": address}
    how |= sizes | {"column": column or None, "key": key, "method": method or None, "target_column": target_column}
    require("pyarrow", *(["ray"] if engine == "ray" else []), why="whyformer batch")
    from whyformer.jobs import explain_dataset
    from whyformer.jobs.source import rows_of

    rows_of(source)  # what cannot be read is refused before a model is loaded
    loaded, processor = _loaded(model, trust_remote_code)
    shown: Any = "json" if log else False if quiet else None
    dataset = explain_dataset(loaded, source, out=out, processor=processor, progress=shown, **how)
    if not quiet and not log:
        dataset.summary.overview().show()
        typer.echo(f"wrote {out}", err=True)


def _loaded(name: str | None, trusted: bool) -> tuple[Any, Any]:
    """Model and processor: of texts, images or sound, or of a table where the name or folder says so."""
    from whyformer.cli._model import load_any, load_text
    from whyformer.cli._table import load_table
    from whyformer.tables.saved import TABLE

    if name is None:
        return load_text(None)
    if (Path(name) / TABLE).is_file() or (":" in name and not Path(name).exists()):
        return load_table(name)
    model, processor, _ = load_any(name, trusted)
    return model, processor
