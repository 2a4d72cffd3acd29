"""whyformer explain text|image|table: why did the model say that?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._input import check_out, options_from, target_from, texts_from

if TYPE_CHECKING:
    from whyformer.types import Explanation

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Explain a prediction: which words, patches or columns.",
)

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="A method; repeat for several. See: whyformer methods",
        show_default="the modality's own",
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="CLASS", help="Class to explain, by name or index.", show_default="the prediction"
    ),
]
Versus = Annotated[
    str | None, typer.Option("--versus", metavar="CLASS", help="Explain the target rather than this class.")
]
Scalar = Annotated[
    str, typer.Option("--scalar", metavar="NAME", help="What is explained: logit, log_odds or probability.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the method, e.g. heads=max; repeatable."),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, metavar="N", help="Inputs per pass.", show_default="16")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of methods that draw at random.")]
OwnScale = Annotated[bool, typer.Option("--own-scale", help="With several methods: a colour scale for each.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", dir_okay=False, metavar="FILE", help="Write a file too: .html, .png, .svg, .json or .npz."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of pictures.")]


@app.command("text")
def text(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; '-' reads one per line from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="Read one text per line."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped sentiment model"),
    ] = None,
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    by: Annotated[str, typer.Option("--by", metavar="UNIT", help="Highlight by token or by word.")] = "token",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    own_scale: OwnScale = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model says about texts.

    \b
    Examples:
      whyformer explain text "I like the movie"
      whyformer explain text "So boring" -m grad_sam -m occlusion
      whyformer explain text "Not bad" --target negative --out why.html
      cat reviews.txt | whyformer explain text - --json
      whyformer explain text --file reviews.txt --model my-bert/
    """
    check_out(out)
    if by not in ("token", "word"):
        raise typer.BadParameter(f"{by!r} is neither token nor word", param_hint="--by")
    settings = options_from(option or [])
    found = texts_from(texts or [], file)
    known_methods(method)
    from whyformer.cli._model import load_text
    from whyformer.explainer import Explainer

    explained = Explainer(*load_text(model)).explain(
        found,
        method=method or None,
        target=target_from(target, versus),
        scalar=scalar,
        batch_size=batch_size,
        seed=seed,
        **settings,
    )
    deliver(per_input(explained), out, json, by=by, shared=not own_scale, views=written(explained))


@app.command("image")
def image(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Image files.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Folder or hub name of an image classifier.")],
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    own_scale: OwnScale = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model says about images.

    \b
    Examples:
      whyformer explain image cat.jpg --model my-vit/
      whyformer explain image cat.jpg --model my-vit/ --out cat.png
      whyformer explain image a.png b.png --model my-vit/ \\
          -m grad_sam -m attention_rollout --out both.html
    """
    check_out(out)
    settings = options_from(option or [])
    known_methods(method)
    from whyformer.cli._model import load_image
    from whyformer.explainer import Explainer
    from whyformer.subjects.image import open_image

    opened = [open_image(path) for path in images]
    explainer = Explainer(*load_image(model))
    explained = explainer.explain(
        opened,
        method=method or None,
        target=target_from(target, versus),
        scalar=scalar,
        batch_size=batch_size,
        seed=seed,
        **settings,
    )
    names = [path.name for path in images]
    results, seen = per_input(explained), repeated(explained, seen_by(explainer, opened))
    titles = [_titled(name, row) for name, row in zip(repeated(explained, names), results, strict=True)]
    deliver(results, out, json, images=seen, titles=titles, shared=not own_scale)


@app.command("table")
def table(
    rows: Annotated[
        Path | None,
        typer.Argument(metavar="ROWS.CSV", help="A CSV file with a header.", show_default="40 rows of census data"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A folder (tables.save_model), or module:function (or file.py:function) that returns model and Table.",
            show_default="the shipped census model",
        ),
    ] = None,
    row: Annotated[
        list[int] | None, typer.Option("--row", "-r", min=0, metavar="N", help="Row to explain, from 0; repeatable.")
    ] = None,
    overall: Annotated[bool, typer.Option("--overall", help="Average over all rows instead.")] = False,
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    own_scale: OwnScale = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model says about the rows of a table.

    \b
    Examples:
      whyformer explain table --row 0
      whyformer explain table --overall --out columns.html
      whyformer explain table rows.csv --model my-model/ --row 3
      whyformer explain table rows.csv --model mine.py:load \\
          --overall -m integrated_gradients -t 1
    """
    check_out(out)
    settings = options_from(option or [])
    known_methods(method)
    from whyformer.cli._table import explain_rows, overall_picture

    how: dict[str, Any] = {
        "target": target_from(target, versus), "scalar": scalar, "batch_size": batch_size, "seed": seed, **settings
    }  # fmt: skip
    if overall:
        overall_picture(rows, model, method or [], out, json, how)
        return
    found, titles = explain_rows(rows, model, row or [], method or [], how)
    deliver(per_input(found), out, json, titles=titles, shared=not own_scale)


def _titled(name: str, row: list[Explanation]) -> str:
    """The file; of a detector, which of its objects."""
    target = row[0].target
    return name if target.position is None else f"{name}: {target.label or target.index}, query {target.position}"


def written(explained: Any) -> list[Any] | None:
    """For one method on an encoder-decoder: one source × target picture per input, in place of one per token."""
    if isinstance(explained, dict) or not explained or not isinstance(explained[0], list):
        return None
    from whyformer.views.seq2seq import steps_view

    return [steps_view(steps) for steps in explained]


def known_methods(names: list[str] | None) -> None:
    """Unknown methods are refused before a model is loaded."""
    from whyformer.registry import get_method

    for name in names or []:
        get_method(name)


def per_input(explained: Any) -> list[list[Explanation]]:
    """What Explainer gave for a list of inputs → per input, one explanation per method."""
    per_method = list(explained.values()) if isinstance(explained, dict) else [explained]
    rows: list[list[Explanation]] = []
    for row in zip(*per_method, strict=True):
        # An input can give several: one per written token, or per detected object.
        rows += [list(r) for r in zip(*row, strict=True)] if isinstance(row[0], list) else [list(row)]
    return rows


def repeated(explained: Any, values: list[Any]) -> list[Any]:
    """One value per input → one per explanation."""
    found = next(iter(explained.values())) if isinstance(explained, dict) else explained
    counts = [len(one) if isinstance(one, list) else 1 for one in found]
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def deliver(
    results: list[list[Explanation]], out: Path | None, json: bool, views: list[Any] | None = None, **how: Any
) -> None:
    """Print, and write the file that was asked for. ``views``: pictures to show in place of one per input."""
    from whyformer.cli._output import as_json, say_written, views_of, write

    if json:
        typer.echo(as_json(results))
        if out is None:
            return
    views = views_of(results, **how) if views is None else views
    if not json:
        for view in views:
            view.show()
    if out is not None:
        say_written(write(results, views, out, "Why did the model say that?"))


def seen_by(explainer: Any, images: list[Any], main: str = "") -> list[Any]:
    """The images as the model saw them (resized, cropped), so that patches lie where they belong."""
    from whyformer.views.pixels import unnormalized

    subject, batch, _ = explainer.prepare(images)
    processor = getattr(explainer.processor, "image_processor", explainer.processor)
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if not getattr(processor, "do_normalize", True):
        mean = std = None
    return [unnormalized(pixels.float().cpu().numpy(), mean, std) for pixels in batch.tensors[main or subject.main]]


from whyformer.cli import _explain_streams  # noqa: E402, F401  its commands use the options above
