"""whyformer explain text|prompt|image|table|pair|similar|sound: why did the model say that?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._explaining import (
    BatchSize,
    Json,
    MemoryWay,
    Methods,
    Options,
    Out,
    OwnScale,
    ReportFile,
    Scalar,
    Seed,
    TargetName,
    Versus,
    asked,
    deliver,
    deliver_report,
    deliver_results,
    next_classes,
    per_input,
    repeated,
    seen_by,
    written,
)
from whyformer.cli._input import (
    Explaining,
    object_from,
    refuse_address,
    target_from,
    text_of_stdin,
    texts_from,
    units_from,
)
from whyformer.cli._options import LanguageModel, TextUnits, Trusted

if TYPE_CHECKING:
    from whyformer.results.types import Explanation


# whyformer explain pair|similar|sound: an image with a text, two texts, a clip.


Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Folder or hub name.")]


def pair(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Questions, captions or prompts about it.")],
    model: Model,
    trust_remote_code: Trusted = False,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TEXT", help="Explain this answer.", show_default="what the model answers"),
    ] = None,
    method: Methods = None,
    target: TargetName = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
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
    options = asked(
        out, option, method, target=target_from(target, None), scalar=scalar, batch_size=batch_size, seed=seed
    )
    from whyformer.cli._options import load_pair
    from whyformer.files.image_file import open_image
    from whyformer.verbs import Explainer

    opened = open_image(image)
    explainer = Explainer(*load_pair(model, trust_remote_code))
    raw = [(opened, text) if answer is None else ((opened, text), answer) for text in texts]
    explained = explainer.explain(raw, method=method or None, **options)
    results = per_input(explained)
    titles = [
        f"{image.name}: {text} → {row[0].target.label}" if row[0].target.label else f"{image.name}: {text}"
        for text, row in zip(repeated(explained, texts), results, strict=True)
    ]
    seen = _pictures(explainer, raw, opened)
    deliver(results, out, json, images=repeated(explained, seen), titles=titles)


def similar(
    first: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    others: Annotated[list[str], typer.Argument(metavar="OTHER", help="Texts to compare it with.")],
    model: Model,
    trust_remote_code: Trusted = False,
    method: Methods = None,
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
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
    options = asked(out, option, method, batch_size=batch_size, seed=seed)
    from whyformer.cli._options import load_encoder
    from whyformer.verbs import Explainer
    from whyformer.views.several import similarity_view

    explained = Explainer(*load_encoder(model, trust_remote_code)).explain(
        [(first, other) for other in others], method=method or None, **options
    )
    results = per_input(explained)
    views = [similarity_view(e) for row in results for e in row]
    deliver(results, out, json, views=views)


def sound(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP.WAV", help="16-bit .wav files at the model's rate.")],
    model: Model,
    trust_remote_code: Trusted = False,
    method: Methods = None,
    target: TargetName = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model hears in a clip: which moments it came from.

    \b
    Examples:
      whyformer explain sound hello.wav --model my-whisper/ --out words.html
      whyformer explain sound dog.wav --model my-wav2vec2/ -t bark
    """
    options = asked(
        out, option, method, target=target_from(target, None), scalar=scalar, batch_size=batch_size, seed=seed
    )
    from whyformer.cli._options import load_sound
    from whyformer.verbs import Explainer

    explained = Explainer(*load_sound(model, trust_remote_code)).explain(list(clips), method=method or None, **options)
    titles = repeated(explained, [path.name for path in clips])
    deliver(per_input(explained), out, json, titles=titles, views=written(explained))


def _pictures(explainer: Any, raw: list[Any], opened: Any) -> list[Any]:
    """The image as the model saw it; packed patches (Qwen2-VL) are no picture, so the file itself is shown."""
    from whyformer.inputs.image_tokens import SIZES

    modality, batch, _ = explainer.prepare(raw)
    if SIZES in batch.tensors or batch.tensors[modality.image].ndim != 4:
        return [opened] * len(raw)
    return seen_by(explainer, raw, modality.image)


# whyformer explain prompt: what a language model says next, or its answer.


def prompt(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The prompt; '-' reads it from stdin.")],
    model: LanguageModel,
    trust_remote_code: Trusted = False,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="TEXT", help="Explain this answer, token by token.")
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option("--generate", "-g", min=1, metavar="N", help="Explain what the model writes, N tokens at most."),
    ] = None,
    span: Annotated[bool, typer.Option("--span", help="The answer as a whole instead of token by token.")] = False,
    units: TextUnits = "token",
    choices: Annotated[
        str | None, typer.Option("--choices", metavar="A,B", help="Which of these comes next: yes,no")
    ] = None,
    method: Methods = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="TOKEN", help="Token to explain.", show_default="the prediction"),
    ] = None,
    versus: Annotated[
        str | None, typer.Option("--versus", metavar="TOKEN", help="Explain the target rather than this token.")
    ] = None,
    option: Options = None,
    memory: MemoryWay = "auto",
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
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
    wanted = {"target": target_from(target, versus), "units": units_from(units), "memory": memory}
    options = asked(out, option, method, seed=seed, **wanted)
    if generate is not None and answer is not None:
        raise typer.BadParameter(
            "--generate is for what the model writes, and --answer gives it", param_hint="--answer"
        )
    if span and generate is None and answer is None:
        raise typer.BadParameter("--span is for an answer: give --answer or --generate", param_hint="--span")
    options |= {"generate": generate, "span": span}
    options |= {"choices": [choice.strip() for choice in choices.split(",")]} if choices is not None else {}
    text = text_of_stdin().rstrip("\n") if text == "-" else text
    from whyformer.cli._options import load_language
    from whyformer.verbs import explain

    lm, tokenizer = load_language(model, trust_remote_code)
    raw = text if answer is None else (text, answer)
    explained = explain(lm, raw, processor=tokenizer, method=method or None, **options)
    results = list(explained.values()) if isinstance(explained, dict) else [explained]
    deliver_results(results, out, json)


# whyformer explain text|image|table|pair|similar|sound: why did the model say that?


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
    trust_remote_code: Trusted = False,
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    by: Annotated[str, typer.Option("--by", metavar="UNIT", help="Highlight by token or by word.")] = "token",
    batch_size: BatchSize = None,
    memory: MemoryWay = "auto",
    seed: Seed = 0,
    own_scale: OwnScale = False,
    out: Out = None,
    report: ReportFile = None,
    json: Json = False,
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
    runs = {"scalar": scalar, "batch_size": batch_size, "memory": memory, "seed": seed}
    options = asked(out, option, method, report, target=target_from(target, versus), **runs)
    if by not in ("token", "word"):
        raise typer.BadParameter(f"{by!r} is neither token nor word", param_hint="--by")
    raw = texts_from(texts or [], file)
    from whyformer.cli._options import load_text
    from whyformer.verbs import Explainer

    explainer = Explainer(*load_text(model, trust_remote_code))
    explained = explainer.explain(raw, method=method or None, **options)
    others = next_classes(explainer, raw, explained, out, options)
    deliver(per_input(explained), out, json, by=by, shared=not own_scale, views=written(explained), others=others)
    deliver_report(explainer, raw, report, method, option, options)


def image(
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Image files.", show_default="a drawn cat and a drawn dog"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Folder or hub name of an image classifier or detector.",
            show_default="the shipped model of cats and dogs",
        ),
    ] = None,
    trust_remote_code: Trusted = False,
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    own_scale: OwnScale = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="Scores of single pixels, too, of methods that have them.")
    ] = False,
    out: Out = None,
    report: ReportFile = None,
    json: Json = False,
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
    runs = {"scalar": scalar, "batch_size": batch_size, "seed": seed}
    options = asked(out, option, method, report, target=target_from(target, versus), **runs)
    from whyformer.cli._input import drawn_faces
    from whyformer.cli._options import load_image
    from whyformer.files.image_file import open_image
    from whyformer.verbs import Explainer

    if model is not None and not images:
        raise typer.BadParameter("give image files; only the shipped model has pictures of its own", param_hint="IMAGE")
    for path in images or []:
        refuse_address(str(path))
    faces = drawn_faces() if not images else {}
    opened = [*faces.values()] if faces else [open_image(path) for path in images or []]
    explainer = Explainer(*load_image(model, trust_remote_code))
    if explainer.prepare(opened[:1])[0].objects and versus is None:
        options["target"] = object_from(target)
    explained = explainer.explain(opened, method=method or None, **options)
    names = [*faces] if faces else [path.name for path in images or []]
    results, seen = per_input(explained), repeated(explained, seen_by(explainer, opened))
    titles = [_titled(name, row) for name, row in zip(repeated(explained, names), results, strict=True)]
    drawn: dict[str, Any] = {"images": seen, "titles": titles, "shared": not own_scale, "detail": detail}
    deliver(results, out, json, others=next_classes(explainer, opened, explained, out, options), **drawn)
    deliver_report(explainer, opened, report, method, option, options)


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
    context: Annotated[
        Path | None,
        typer.Option(
            "--context",
            metavar="TRAINING.CSV",
            help="Training rows, with the table's target column, of a model that learns in context.",
        ),
    ] = None,
    method: Methods = None,
    target: TargetName = None,
    versus: Versus = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    own_scale: OwnScale = False,
    out: Out = None,
    report: ReportFile = None,
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
      whyformer explain table rows.csv --model mine.py:load \\
          --context training.csv --row 3
    """
    runs = {"scalar": scalar, "batch_size": batch_size, "seed": seed}
    options = asked(out, option, method, report, target=target_from(target, versus), **runs)
    from whyformer.cli._table import chosen_rows, in_context_pictures, overall_picture

    if context is not None:
        if overall or report is not None:
            raise typer.BadParameter("explains single rows: leave out --overall and --report", param_hint="--context")
        in_context_pictures(rows, model, context, row or [], method or [], out, json, options)
        return
    if overall:
        if report is not None:
            raise typer.BadParameter("a report is of single rows: leave out --overall", param_hint="--report")
        overall_picture(rows, model, method or [], out, json, options)
        return
    explainer, raw, titles = chosen_rows(rows, model, row or [])
    explained = explainer.explain(raw, method=method or None, **options)
    others = next_classes(explainer, raw, explained, out, options)
    deliver(per_input(explained), out, json, titles=titles, shared=not own_scale, others=others)
    deliver_report(explainer, raw, report, method, option, options)


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
