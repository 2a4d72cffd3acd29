"""whyformer explain text|prompt|image|table|pair|similar|sound, and whyformer ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from whyformer.cli import _input as read
from whyformer.cli._options import ANSWER_LENGTH, CommandArguments, takes
from whyformer.cli._results import deliver, deliver_report, next_classes, per_input, repeated, seen_by, written
from whyformer.errors import BadInput, NotOffered

MODEL = "model/required trust_remote_code"
ENDS = "out/explain json/explain"


@takes(f"image/pair texts/pair {MODEL} answer method target/explain scalar option batch_size seed {ENDS}")
def pair(asked: CommandArguments) -> None:
    """Explain a prediction for an image with a text.

    \b
    Examples:
      whyformer explain pair cat.jpg "a photo of a cat" --model my-clip/
      whyformer explain pair cat.jpg "what is this?" --model my-blip/ \\
          --out why.html
      whyformer explain pair cat.jpg "a cat" "a dog" --model my-clip/ \\
          --scalar cosine
    """
    from whyformer.files import open_image
    from whyformer.inputs.image import SIZES

    for text in asked.texts:
        read.refuse_file(text, "explain pair", piped=False)
    opened = open_image(asked.image)
    explainer = asked.explainer("pair")
    raw = [(opened, text) if asked.answer is None else ((opened, text), asked.answer) for text in asked.texts]
    explained = asked.explain(explainer, raw)
    results = per_input(explained)
    titles = [
        f"{asked.image.name}: {text} → {row[0].target.label}" if row[0].target.label else f"{asked.image.name}: {text}"
        for text, row in zip(repeated(explained, asked.texts), results, strict=True)
    ]
    modality, batch, _ = explainer.prepare(raw)
    image: str | None = getattr(modality.read, "image", None)
    if image is None:  # a language model: results hold what it saw
        deliver(results, asked, titles=titles)
        return
    if SIZES in batch.tensors or batch.tensors[image].ndim != 4:  # packed patches are no picture
        seen = [opened] * len(raw)
    else:
        seen = seen_by(explainer, raw, image)
    deliver(results, asked, images=repeated(explained, seen), titles=titles)


@takes(f"first others {MODEL} method option batch_size seed {ENDS}")
def similar(asked: CommandArguments) -> None:
    """Explain the similarity of texts: which words contribute.

    Compares the vectors of the texts (the mean over their tokens).

    \b
    Examples:
      whyformer explain similar "A cat sleeps" "A kitten naps" \\
          --model my-encoder/
      whyformer explain similar "A cat sleeps" "A kitten naps" "Rain" \\
          --model my-encoder/ --out similar.html
    """
    from whyformer.views.several import similarity_view

    for text in (asked.first, *asked.others):
        read.refuse_file(text, "explain similar", piped=False)
    results = per_input(asked.explain(asked.explainer("encoder"), [(asked.first, other) for other in asked.others]))
    deliver(results, asked, views=[similarity_view(e) for row in results for e in row])


@takes(f"clips {MODEL} method target/explain scalar option batch_size seed {ENDS}")
def sound(asked: CommandArguments) -> None:
    """Explain a prediction for sound: which moments contribute.

    \b
    Examples:
      whyformer explain sound hello.wav --model my-whisper/ --out words.html
      whyformer explain sound dog.wav --model my-wav2vec2/ -t bark
    """
    explained = asked.explain(asked.explainer("sound"), list(asked.clips))
    titles = repeated(explained, [path.name for path in asked.clips])
    deliver(per_input(explained), asked, titles=titles, views=written(explained))


@takes(
    "text/prompt image/prompt model/language trust_remote_code answer/prompt generate span through hops units choices "
    f"method target/token versus/token option memory seed {ENDS}"
)
def prompt(asked: CommandArguments) -> None:
    """Explain the next token, or the answer, of a language model.

    Without --answer and --generate: the next token. --through thoughts: the
    answer, back through what the model wrote between <think> and </think>.

    \b
    Examples:
      whyformer explain prompt "The capital of France is" --model my-llm/
      whyformer explain prompt "The capital of France is" --model my-llm/ \\
          --target " Paris" --versus " London"
      whyformer explain prompt "Q: 2+2? A:" --model my-llm/ --generate 8
      whyformer explain prompt "Is fire cold?" --model my-llm/ \\
          --choices yes,no
      whyformer explain prompt "Where is Anna?" --model my-llm/ \\
          --generate 200 --through thoughts
      whyformer explain prompt "What is this?" --image cat.jpg \\
          --model my-vlm/ --generate 8 --out why.html
    """
    _refuse_both(asked)
    if (asked.span or asked.through is not None) and asked.generate is None and asked.answer is None:
        option = "--span" if asked.span else "--through"
        raise typer.BadParameter(f"{option} is for an answer: give --answer or --generate", param_hint=option)
    if asked.choices is not None:
        asked.settings["choices"] = [choice.strip() for choice in asked.choices.split(",")]
    read.refuse_file(asked.text, "explain prompt")
    text = read.text_of_stdin().rstrip("\n") if asked.text == "-" else asked.text
    raw: Any = {"text": text, "images": list(asked.image)} if asked.image else text
    explained = asked.explain(asked.explainer("language"), raw if asked.answer is None else (raw, asked.answer))
    results = list(explained.values()) if isinstance(explained, dict) else [explained]
    if len(results) == 1:
        deliver(results[0], asked)
    else:
        rows, views = [[result] for result in results], [result.view() for result in results]
        deliver(rows, asked, views=views, names=[result.method for result in results])


def _refuse_both(asked: CommandArguments) -> None:
    if asked.generate is not None and asked.answer is not None:
        words = "--generate lets the model answer, and --answer gives the answer: choose one"
        raise typer.BadParameter(words, param_hint="--answer")


@takes(
    "texts pair file model trust_remote_code method target/explain versus scalar option units batch_size memory "
    "seed passes one_scale specials out/explain report json/explain"
)
def text(asked: CommandArguments) -> None:
    """Explain a prediction for texts.

    \b
    Examples:
      whyformer explain text "I like the movie"
      whyformer explain text "So boring" -m grad_sam -m occlusion
      whyformer explain text "Not bad" --target negative --out why.html
      whyformer explain text "Not bad" "So boring" --report report.html
      cat reviews.txt | whyformer explain text - --json
      whyformer explain text --file reviews.txt --model my-bert/
      whyformer explain text "Who wrote it?" --pair "Ann Lee wrote it." \\
          --model my-cross-encoder/
    """
    raw: list[Any] = read.texts_from(asked.texts or [], asked.file)
    if asked.pair:
        raw = [(first, second) for first in raw for second in asked.pair]
    explainer = asked.explainer("text")
    explained = asked.explain(explainer, raw)
    _finish(explainer, raw, explained, asked, views=written(explained))


@takes(
    "images model/image trust_remote_code method target/explain versus scalar option batch_size seed one_scale "
    "specials passes detail out/explain report json/explain"
)
def image(asked: CommandArguments) -> None:
    """Explain a prediction for images.

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
    from whyformer.files import open_image

    if asked.model is not None and not asked.images:
        raise typer.BadParameter("give image files; only the shipped model has example images", param_hint="IMAGE")
    for path in asked.images or []:
        read.refuse_address(str(path))
    faces = {} if asked.images else read.drawn_faces()
    names = [path.name for path in asked.images or []] or [*faces]
    opened = [open_image(path) for path in asked.images or []] or [*faces.values()]
    explainer = asked.explainer("image")
    if explainer.prepare(opened[:1])[0].mean.outcome == "objects" and asked.versus is None:
        asked.settings["target"] = read.object_from(asked.target)
    explained = asked.explain(explainer, opened)
    seen = repeated(explained, seen_by(explainer, opened))
    titles = []
    for name, row in zip(repeated(explained, names), per_input(explained), strict=True):
        target = row[0].target  # of a detector, one of its objects
        query = "" if target.position is None else f": {target.label or target.index}, query {target.position}"
        titles.append(f"{name}{query}")
    _finish(explainer, opened, explained, asked, images=seen, titles=titles, detail=asked.detail)


@takes(
    "rows model/table row overall context units/table method target/explain versus scalar option batch_size "
    "seed one_scale specials passes out/explain report json/explain"
)
def table(asked: CommandArguments) -> None:
    """Explain a prediction for rows of a table.

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
    if asked.context is not None and (asked.overall or asked.report is not None):
        raise typer.BadParameter("explains single rows: omit --overall and --report", param_hint="--context")
    if asked.overall and asked.report is not None:
        raise typer.BadParameter("a report is about single rows: omit --overall", param_hint="--report")
    together = "--overall" if asked.overall else "--context" if asked.context is not None else ""
    if together and len(asked.method or []) > 1:
        raise typer.BadParameter(f"{together} takes one method at a time", param_hint="--method")
    method = {"method": asked.method[0]} if asked.method else {}
    if asked.overall:
        from whyformer.tables.global_explanation import BATCH_SIZE, explain_global

        loaded, schema = read.load_table(asked.model)
        rows = read.rows_of(asked.rows, schema, asked.batch_size or BATCH_SIZE)
        deliver(explain_global(loaded, rows, processor=schema, **method, **asked.settings), asked)
        return
    explainer, raw, titles = read.chosen_rows(asked.rows, asked.model, asked.row or [])
    if asked.context is not None:
        _explain_in_context(explainer, raw, titles, method, asked)
    else:
        _finish(explainer, raw, asked.explain(explainer, raw), asked, titles=titles)


def _finish(explainer: Any, raw: list[Any], explained: Any, asked: CommandArguments, **drawn: Any) -> None:
    """Deliver explanations, and the report if --report is given."""
    others = next_classes(explainer, raw, explained, asked)
    deliver(per_input(explained), asked, shared=asked.one_scale, specials=asked.specials, others=others, **drawn)
    deliver_report(explainer, raw, asked)


def _explain_in_context(
    explainer: Any, raw: list[Any], titles: list[str], method: dict[str, Any], asked: CommandArguments
) -> None:
    """Explain rows with training rows as context; the labels are in the table's target column."""
    from dataclasses import replace

    from whyformer.tables.in_context import explain_in_context

    table = explainer.processor
    if not table.target:
        raise BadInput("the table does not name the target column of the training rows: Table(…, target='…').")
    if asked.out is not None and len(raw) > 1:
        raise typer.BadParameter("one file is written for one row: choose it with --row N", param_hint="--out")
    (columns,) = list(read.rows_of(asked.context, table, 2**31 - 1))  # all rows at once
    if table.target not in columns:
        raise BadInput(f"{str(asked.context)!r} has no column {table.target!r}, the target of the training rows.")
    answers = [str(v) if str(v) in table.classes else _number(table.target, v) for v in columns.pop(table.target)]
    options = {k: v for k, v in asked.settings.items() if k not in {"batch_size", "seed", "units"}} | method
    results = explain_in_context(explainer.model, raw, context=columns, answers=answers, processor=table, **options)
    assert isinstance(results, list)
    views = [result.view() for result in results]
    titled = [replace(view, title=f"{title}: {view.title}") for title, view in zip(titles, views, strict=True)]
    deliver([[result] for result in results], asked, views=titled, names=titles)


def _number(column: str, value: Any) -> float | int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(
            f"column {column!r} of the training rows has {value!r}, which is neither a class of the table nor a number."
        ) from None
    return int(number) if number.is_integer() else number


explain = typer.Typer(
    cls=read.ExplainGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    subcommand_metavar="TEXT or FILE... | COMMAND ...",
    help="""Explain a prediction: which words, patches or columns.

    Give a text in quotation marks, '-' for lines from stdin, or a file: its ending selects the kind.
    Without --model, the shipped models are used.

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
    explain.command(command.__name__)(command)


DOCUMENTS = (".txt", ".md")  # files of --docs


@takes(
    "question model/language trust_remote_code docs generate/ask answer system method/ask units option seed "
    "out/explain json/explain"
)
def ask(asked: CommandArguments) -> None:
    """Ask a language model a question, and explain its answer.

    The question is formatted with the tokenizer's chat template.

    \b
    Examples:
      whyformer ask "Where does Tom live?" --model my-llm/
      whyformer ask "Is it safe?" --model my-llm/ --units sentence
      whyformer ask "Who signed?" --model my-llm/ --docs contracts/ \\
          --out cited.html
    """
    _refuse_both(asked)
    read.refuse_file(asked.question, "ask")
    question = (read.text_of_stdin() if asked.question == "-" else asked.question).strip()
    if not question:
        raise typer.BadParameter("the question is empty", param_hint="QUESTION")
    documents = None if asked.docs is None else _documents(asked.docs)
    if documents is not None and (asked.system is not None or asked.units != "token"):
        raise typer.BadParameter(
            "--system and --units are for questions without --docs: documents are cited by sentence",
            param_hint="--docs",
        )
    lm, tokenizer = asked.load("language")
    options = asked.settings | {"method": asked.method, "processor": tokenizer}
    options["generate"] = asked.generate or ANSWER_LENGTH
    if documents is not None:
        from whyformer.language.citations import cite

        del options["units"]
        deliver(cite(lm, question, documents, answer=asked.answer, **options), asked)
        return
    from whyformer.verbs import explain

    if asked.answer is not None:
        del options["generate"]
    deliver(explain(lm, _prompt(tokenizer, question, asked.system, asked.answer), **options), asked)


@takes(
    "run model/language trust_remote_code method/ask units/trace option top batch_size memory seed out/explain "
    "json/explain"
)
def trace(asked: CommandArguments) -> None:
    """Explain an agent's run: what drove each of its steps.

    RUN.JSON: messages in the usual chat format, with tool_calls, messages of the role tool, and reasoning_content.

    \b
    Examples:
      whyformer trace run.json --model my-llm/
      whyformer trace run.json --model my-llm/ --out run.html
      whyformer trace run.json --model my-llm/ --units document --top 3
    """
    from whyformer.language.agent_runs import read_run

    read_run(asked.run)  # errors of the file come before the model is loaded
    lm, tokenizer = asked.load("language")
    from whyformer.language.tracing import trace

    chosen = {"method": asked.method, "top": asked.top}
    deliver(trace(lm, asked.run, processor=tokenizer, **chosen, **asked.settings), asked)


def _prompt(tokenizer: Any, question: str, system: str | None, answer: str | None) -> Any:
    """Return a chat if the tokenizer has a template, else the question itself."""
    if getattr(tokenizer, "chat_template", None):
        roles = (("system", system), ("user", question), ("assistant", answer))
        return [{"role": role, "content": words} for role, words in roles if words is not None]
    if system is not None:
        raise NotOffered(
            "--system needs a chat template, and this tokenizer has none: omit it, or write the whole "
            "prompt yourself: whyformer explain prompt."
        )
    typer.echo("The tokenizer has no chat template: the question is used as the prompt.", err=True)
    return question if answer is None else (question, answer)


def _documents(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise BadInput(f"--docs: there is no folder {str(folder)!r}.")
    texts = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in DOCUMENTS and p.is_file()):
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--docs: {str(path)!r} is not a UTF-8 text file.") from error
        if text:
            texts[path.relative_to(folder).as_posix()] = text
    if not texts:
        raise BadInput(f"--docs: {str(folder)!r} has no {' or '.join(DOCUMENTS)} file with a word in it.")
    return texts
