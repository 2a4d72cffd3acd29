"""whyformer explain text|prompt|image|table|pair|similar|sound: why did the model say that?"""

from __future__ import annotations

from typing import Any

import typer

from whyformer.cli._input import Explaining, drawn_faces, object_from, refuse_address, text_of_stdin, texts_from
from whyformer.cli._options import CommandArguments, takes
from whyformer.cli._results import deliver, deliver_report, next_classes, per_input, repeated, seen_by, written

MODEL = "model/given trust_remote_code"
ENDS = "out/explain json/explain"


@takes(f"image/pair texts/pair {MODEL} answer method target/explain scalar option batch_size seed/explain {ENDS}")
def pair(asked: CommandArguments) -> None:
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

    opened = open_image(asked.image)
    explainer = asked.explainer("pair")
    raw = [(opened, text) if asked.answer is None else ((opened, text), asked.answer) for text in asked.texts]
    explained = asked.explain(explainer, raw)
    results = per_input(explained)
    titles = [
        f"{asked.image.name}: {text} → {row[0].target.label}" if row[0].target.label else f"{asked.image.name}: {text}"
        for text, row in zip(repeated(explained, asked.texts), results, strict=True)
    ]
    seen = _pictures(explainer, raw, opened)
    deliver(results, asked, images=repeated(explained, seen), titles=titles)


@takes(f"first others {MODEL} method option batch_size seed/explain {ENDS}")
def similar(asked: CommandArguments) -> None:
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

    results = per_input(asked.explain(asked.explainer("encoder"), [(asked.first, other) for other in asked.others]))
    deliver(results, asked, views=[similarity_view(e) for row in results for e in row])


@takes(f"clips {MODEL} method target/explain scalar option batch_size seed/explain {ENDS}")
def sound(asked: CommandArguments) -> None:
    """Explain what a model hears in a clip: which moments it came from.

    \b
    Examples:
      whyformer explain sound hello.wav --model my-whisper/ --out words.html
      whyformer explain sound dog.wav --model my-wav2vec2/ -t bark
    """
    explained = asked.explain(asked.explainer("sound"), list(asked.clips))
    titles = repeated(explained, [path.name for path in asked.clips])
    deliver(per_input(explained), asked, titles=titles, views=written(explained))


def _pictures(explainer: Any, raw: list[Any], opened: Any) -> list[Any]:
    """The image as the model saw it; packed patches (Qwen2-VL) are no picture, so the file itself is shown."""
    from whyformer.inputs.image_tokens import SIZES

    modality, batch, _ = explainer.prepare(raw)
    if SIZES in batch.tensors or batch.tensors[modality.image].ndim != 4:
        return [opened] * len(raw)
    return seen_by(explainer, raw, modality.image)


@takes(
    "text/prompt model/language trust_remote_code answer/prompt generate span units choices method target/token "
    f"versus/token option memory seed/explain {ENDS}"
)
def prompt(asked: CommandArguments) -> None:
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
    refuse_both(asked.generate, asked.answer)
    if asked.span and asked.generate is None and asked.answer is None:
        raise typer.BadParameter("--span is for an answer: give --answer or --generate", param_hint="--span")
    if asked.choices is not None:
        asked.settings["choices"] = [choice.strip() for choice in asked.choices.split(",")]
    text = text_of_stdin().rstrip("\n") if asked.text == "-" else asked.text
    explained = asked.explain(asked.explainer("language"), text if asked.answer is None else (text, asked.answer))
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
    "texts file model trust_remote_code method target/explain versus scalar option by batch_size memory seed/explain "
    "own_scale out/explain report json/explain"
)
def text(asked: CommandArguments) -> None:
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
    if asked.by not in ("token", "word"):
        raise typer.BadParameter(f"{asked.by!r} is neither token nor word", param_hint="--by")
    raw = texts_from(asked.texts or [], asked.file)
    explainer = asked.explainer("text")
    explained = asked.explain(explainer, raw)
    _finish(explainer, raw, explained, asked, by=asked.by, views=written(explained))


@takes(
    "images model/image trust_remote_code method target/explain versus scalar option batch_size seed/explain own_scale "
    "detail out/explain report json/explain"
)
def image(asked: CommandArguments) -> None:
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

    if asked.model is not None and not asked.images:
        raise typer.BadParameter("give image files; only the shipped model has pictures of its own", param_hint="IMAGE")
    for path in asked.images or []:
        refuse_address(str(path))
    faces = {} if asked.images else drawn_faces()
    names = [path.name for path in asked.images or []] or [*faces]
    opened = [open_image(path) for path in asked.images or []] or [*faces.values()]
    explainer = asked.explainer("image")
    if explainer.prepare(opened[:1])[0].objects and asked.versus is None:
        asked.settings["target"] = object_from(asked.target)
    explained = asked.explain(explainer, opened)
    seen = repeated(explained, seen_by(explainer, opened))
    titles = []
    for name, row in zip(repeated(explained, names), per_input(explained), strict=True):
        target = row[0].target  # of a detector, one of its objects
        found = "" if target.position is None else f": {target.label or target.index}, query {target.position}"
        titles.append(f"{name}{found}")
    _finish(explainer, opened, explained, asked, images=seen, titles=titles, detail=asked.detail)


@takes(
    "rows model/table row overall context method target/explain versus scalar option batch_size seed/explain own_scale "
    "out/explain report json/explain"
)
def table(asked: CommandArguments) -> None:
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

    if asked.context is not None and (asked.overall or asked.report is not None):
        raise typer.BadParameter("explains single rows: leave out --overall and --report", param_hint="--context")
    if asked.overall and asked.report is not None:
        raise typer.BadParameter("a report is of single rows: leave out --overall", param_hint="--report")
    if asked.context is not None:
        in_context_pictures(asked.rows, asked.context, asked.row or [], asked)
    elif asked.overall:
        overall_picture(asked.rows, asked)
    else:
        explainer, raw, titles = chosen_rows(asked.rows, asked.model, asked.row or [])
        _finish(explainer, raw, asked.explain(explainer, raw), asked, titles=titles)


def _finish(explainer: Any, raw: list[Any], explained: Any, asked: CommandArguments, **drawn: Any) -> None:
    """Deliver explanations, and the report if there is to be one."""
    others = next_classes(explainer, raw, explained, asked)
    deliver(per_input(explained), asked, shared=not asked.own_scale, others=others, **drawn)
    deliver_report(explainer, raw, asked)


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
