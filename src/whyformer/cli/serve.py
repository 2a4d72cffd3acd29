"""whyformer serve: models behind a page in the browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whyformer.extras import SHIPPED, require

if TYPE_CHECKING:
    from whyformer.serve.models import ServedModel

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
    from whyformer.cli._model import load_any, load_encoder
    from whyformer.cli._table import load_table
    from whyformer.explainer import Explainer
    from whyformer.serve.models import ServedModel
    from whyformer.serve.samples import kind_of

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
    from whyformer.cli._model import load_any
    from whyformer.errors import BadInput
    from whyformer.explainer import Explainer
    from whyformer.serve.models import ServedModel
    from whyformer.serve.samples import kind_of

    if Path(name).exists():  # which transformers would take for the model
        raise BadInput(f"{name!r} cannot be loaded from here: name it with --model when the server is started.")
    model, processor, kind = load_any(name, pickles=False)
    explainer = Explainer(model, processor)
    return ServedModel(name, kind_of(explainer, kind), explainer)


def _shipped() -> list[ServedModel]:
    from whyformer.files.loading import quiet
    from whyformer.serve.models import shipped_models

    with quiet():
        return shipped_models()


def _short(name: str) -> str:
    """A folder by its last part: where it lies is nobody's business."""
    return Path(name).name or name
