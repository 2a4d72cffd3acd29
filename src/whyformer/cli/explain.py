"""whyformer explain text|prompt|image|table|pair|similar|sound: why did the model say that?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._input import Explaining, drawn_faces, object_from, refuse_address, text_of_stdin, texts_from
from whyformer.cli._options import CommandArguments, takes
from whyformer.cli._results import deliver, deliver_report, next_classes, per_input, repeated, seen_by, written

if TYPE_CHECKING:
    from whyformer.results.types import Explanation

MODEL = "model/given trust_remote_code"
ENDS = "out/explain json/explain"


@takes(f"{MODEL} answer method target/explain scalar option batch_size seed/explain {ENDS}")
def pair(
    asked: CommandArguments,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Questions, captions or prompts about it.")],
) -> None:
    """Explain what a model says about an image with a text.

    \b
    Examples:
      whyformer explain pair cat.jpg "a photo of a cat" --model my-clip/
      whyformer explain pair cat.jpg "what is this?" --model my-blip/ \\
          --out why.html
      whyformer explain pair cat.jpg "a cat" "a dog" --model my-clip/ \\
          --scalar cosine
    """
    from whyformer.files.image_file import open_image

    opened = open_image(image)
    explainer = asked.explainer("pair")
    raw = [(opened, text) if asked.answer is None else ((opened, text), asked.answer) for text in texts]
    explained = asked.explain(explainer, raw)
    results = per_input(explained)
    titles = [
        f"{image.name}: {text} → {row[0].target.label}" if row[0].target.label else f"{image.name}: {text}"
        for text, row in zip(repeated(explained, texts), results, strict=True)
    ]
    seen = _pictures(explainer, raw, opened)
    deliver(results, asked, images=repeated(explained, seen), titles=titles)


@takes(f"{MODEL} method option batch_size seed/explain {ENDS}")
def similar(
    asked: CommandArguments,
    first: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    others: Annotated[list[str], typer.Argument(metavar="OTHER", help="Texts to compare it with.")],
) -> None:
    """Explain how close texts are: which words bring them together.

    Compares the model's vectors of the texts (the mean over their tokens).

    \b
    Examples:
      whyformer explain similar "A cat sleeps" "A kitten naps" \\
          --model my-encoder/
      whyformer explain similar "A cat sleeps" "A kitten naps" "Rain" \\
          --model my-encoder/ --out similar.html
    """
    from whyformer.views.several import similarity_view

    results = per_input(asked.explain(asked.explainer("encoder"), [(first, other) for other in others]))
    deliver(results, asked, views=[similarity_view(e) for row in results for e in row])


@takes(f"{MODEL} method target/explain scalar option batch_size seed/explain {ENDS}")
def sound(
    asked: CommandArguments,
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP.WAV", help="16-bit .wav files at the model's rate.")],
) -> None:
    """Explain what a model hears in a clip: which moments it came from.

    \b
    Examples:
      whyformer explain sound hello.wav --model my-whisper/ --out words.html
      whyformer explain sound dog.wav --model my-wav2vec2/ -t bark
    """
    explained = asked.explain(asked.explainer("sound"), list(clips))
    titles = repeated(explained, [path.name for path in clips])
    deliver(per_input(explained), asked, titles=titles, views=written(explained))


def _pictures(explainer: Any, raw: list[Any], opened: Any) -> list[Any]:
    """The image as the model saw it; packed patches (Qwen2-VL) are no picture, so the file itself is shown."""
    from whyformer.inputs.image_tokens import SIZES

    modality, batch, _ = explainer.prepare(raw)
    if SIZES in batch.tensors or batch.tensors[modality.image].ndim != 4:
        return [opened] * len(raw)
    return seen_by(explainer, raw, modality.image)


@takes(
    "model/language trust_remote_code answer generate span units choices method target/token versus/token option "
    f"memory seed/explain {ENDS}"
)
def prompt(
    asked: CommandArguments,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The prompt; '-' reads it from stdin.")],
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="TEXT", help="Explain this answer, token by token.")
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option("--generate", "-g", min=1, metavar="N", help="Explain what the model writes, N tokens at most."),
    ] = None,
    span: Annotated[bool, typer.Option("--span", help="The answer as a whole instead of token by token.")] = False,
    choices: Annotated[
        str | None, typer.Option("--choices", metavar="A,B", help="Which of these comes next: yes,no")
    ] = None,
) -> None:
    """Explain what a language model says after a prompt.

    Without --answer and --generate: its next token.

    \b
    Examples:
      whyformer explain prompt "The capital of France is" --model my-llm/
      whyformer explain prompt "The capital of France is" --model my-llm/ \\
          --target " Paris" --versus " London"
      whyformer explain prompt "Q: 2+2? A:" --model my-llm/ --generate 8
      whyformer explain prompt "Is fire cold?" --model my-llm/ \\
          --choices yes,no
    """
    refuse_both(generate, answer)
    if span and generate is None and answer is None:
        raise typer.BadParameter("--span is for an answer: give --answer or --generate", param_hint="--span")
    asked.settings |= {"generate": generate, "span": span}
    if choices is not None:
        asked.settings["choices"] = [choice.strip() for choice in choices.split(",")]
    text = text_of_stdin().rstrip("\n") if text == "-" else text
    explained = asked.explain(asked.explainer("language"), text if answer is None else (text, answer))
    results = list(explained.values()) if isinstance(explained, dict) else [explained]
    if len(results) == 1:
        deliver(results[0], asked)
    else:
        rows, views = [[result] for result in results], [result.view() for result in results]
        deliver(rows, asked, views=views, names=[result.method for result in results])


def refuse_both(generate: int | None, answer: str | None) -> None:
    if generate is not None and answer is not None:
        raise typer.BadParameter(
            "--generate is for what the model writes, and --answer gives it", param_hint="--answer"
        )


@takes(
    "file model trust_remote_code method target/explain versus scalar option by batch_size memory seed/explain "
    "own_scale out/explain report json/explain"
)
def text(
    asked: CommandArguments,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; '-' reads one per line from stdin.")
    ] = None,
    by: Annotated[str, typer.Option("--by", metavar="UNIT", help="Highlight by token or by word.")] = "token",
) -> None:
    """Explain what a model says about texts.

    \b
    Examples:
      whyformer explain text "I like the movie"
      whyformer explain text "So boring" -m grad_sam -m occlusion
      whyformer explain text "Not bad" --target negative --out why.html
      whyformer explain text "Not bad" "So boring" --report report.html
      cat reviews.txt | whyformer explain text - --json
      whyformer explain text --file reviews.txt --model my-bert/
    """
    if by not in ("token", "word"):
        raise typer.BadParameter(f"{by!r} is neither token nor word", param_hint="--by")
    raw = texts_from(texts or [], asked.file)
    explainer = asked.explainer("text")
    explained = asked.explain(explainer, raw)
    _finish(explainer, raw, explained, asked, by=by, views=written(explained))


@takes(
    "model/image trust_remote_code method target/explain versus scalar option batch_size seed/explain own_scale "
    "detail out/explain report json/explain"
)
def image(
    asked: CommandArguments,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Image files.", show_default="a drawn cat and a drawn dog"),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Scores of single pixels, too, of methods that have them.")
    ] = False,
) -> None:
    """Explain what a model says about images.

    \b
    Examples:
      whyformer explain image cat.jpg
      whyformer explain image --out faces.html
      whyformer explain image cat.jpg -m saliency --detail --out cat.png
      whyformer explain image cat.jpg --model my-vit/ --out cat.png
      whyformer explain image a.png b.png --model my-vit/ \\
          -m grad_sam -m attention_rollout --out both.html
      whyformer explain image cat.jpg --model my-detr/ --target 7:cat
    """
    from whyformer.files.image_file import open_image

    if asked.model is not None and not images:
        raise typer.BadParameter("give image files; only the shipped model has pictures of its own", param_hint="IMAGE")
    for path in images or []:
        refuse_address(str(path))
    faces = {} if images else drawn_faces()
    names = [path.name for path in images or []] or [*faces]
    opened = [open_image(path) for path in images or []] or [*faces.values()]
    explainer = asked.explainer("image")
    if explainer.prepare(opened[:1])[0].objects and asked.versus is None:
        asked.settings["target"] = object_from(asked.target)
    explained = asked.explain(explainer, opened)
    seen = repeated(explained, seen_by(explainer, opened))
    rows = zip(repeated(explained, names), per_input(explained), strict=True)
    titles = [_titled(name, row) for name, row in rows]
    _finish(explainer, opened, explained, asked, images=seen, titles=titles, detail=detail)


@takes(
    "model/table row overall context method target/explain versus scalar option batch_size seed/explain own_scale "
    "out/explain report json/explain"
)
def table(
    asked: CommandArguments,
    rows: Annotated[
        Path | None,
        typer.Argument(metavar="ROWS.CSV", help="A CSV file with a header.", show_default="40 rows of census data"),
    ] = None,
    row: Annotated[
        list[int] | None, typer.Option("--row", "-r", min=0, metavar="N", help="Row to explain, from 0; repeatable.")
    ] = None,
    overall: Annotated[bool, typer.Option("--overall", help="Average over all rows instead.")] = False,
    context: Annotated[
        Path | None,
        typer.Option(
            "--context",
            metavar="TRAINING.CSV",
            help="Training rows, with the table's target column, of a model that learns in context.",
        ),
    ] = None,
) -> None:
    """Explain what a model says about the rows of a table.

    \b
    Examples:
      whyformer explain table --row 0
      whyformer explain table --overall --out columns.html
      whyformer explain table rows.csv --model my-model/ --row 3
      whyformer explain table rows.csv --model mine.py:load \\
          --overall -m integrated_gradients -t 1
      whyformer explain table rows.csv --model mine.py:load \\
          --context training.csv --row 3
    """
    from whyformer.cli._table import chosen_rows, in_context_pictures, overall_picture

    if context is not None and (overall or asked.report is not None):
        raise typer.BadParameter("explains single rows: leave out --overall and --report", param_hint="--context")
    if overall and asked.report is not None:
        raise typer.BadParameter("a report is of single rows: leave out --overall", param_hint="--report")
    if context is not None:
        in_context_pictures(rows, context, row or [], asked)
    elif overall:
        overall_picture(rows, asked)
    else:
        explainer, raw, titles = chosen_rows(rows, asked.model, row or [])
        _finish(explainer, raw, asked.explain(explainer, raw), asked, titles=titles)


def _finish(explainer: Any, raw: list[Any], explained: Any, asked: CommandArguments, **drawn: Any) -> None:
    """Deliver explanations, and the report if there is to be one."""
    others = next_classes(explainer, raw, explained, asked)
    deliver(per_input(explained), asked, shared=not asked.own_scale, others=others, **drawn)
    deliver_report(explainer, raw, asked)


def _titled(name: str, row: list[Explanation]) -> str:
    """The file; of a detector, which of its objects."""
    target = row[0].target
    return name if target.position is None else f"{name}: {target.label or target.index}, query {target.position}"


app = typer.Typer(
    cls=Explaining,
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="TEXT or FILE... | COMMAND ...",
    help="""Explain a prediction: which words, patches or columns.

    A text in quotation marks, '-' for lines from stdin, or a file: the kind is told from its name, and the
    shipped models answer unless --model names another.

    \b
    Examples:
      whyformer explain "A dull plot, but the acting is wonderful"
      whyformer explain photo.jpg --out why.html
      whyformer explain rows.csv --row 0
      cat reviews.txt | whyformer explain -
    """,
    short_help="Explain a prediction: which words, patches or columns.",
)
for command in (text, prompt, image, table, pair, similar, sound):
    app.command(command.__name__)(command)
