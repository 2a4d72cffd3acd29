"""whyformer demo: a text, an image and a table in the terminal, more on a page, and a report on the texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from whyformer.cli._input import check_out
from whyformer.cli._options import CommandArguments, announced, takes
from whyformer.demo import SENTENCES
from whyformer.extras import SHIPPED, require
from whyformer.files import quiet

FACE_METHODS = ("attention_rollout", "generic_attention", "grad_cam", "saliency")
HORSE_METHODS = ("generic_attention", "saliency", "integrated_gradients", "occlusion")
DRAWN = (
    "This is a drawing made by the demo: photos are not shipped. The model was trained on photos, so this shows what "
    "an explanation looks like, not how accurate the model is."
)
HORSE = "The model predicts a zebra because of the stripes. The sharpest maps mark only a few of them."
STRIPES = (
    "The model predicts zebra-like for a horse with stripes, horse-like for any other. Concepts are sets of images. A "
    "bar is the share of striped horses that become more zebra-like with more of the first concept and less of the "
    "second; 0.5 is chance level."
)


def picture_views() -> list[Any]:
    """Return views of a cat, a dog and a striped horse, and the TCAV scores of stripes."""
    from whyformer.cli.analysis_commands import shipped_concepts
    from whyformer.concepts.concept_vectors import tcav
    from whyformer.demo.pictures import face, picture
    from whyformer.verbs import Explainer
    from whyformer.views import side_by_side
    from whyformer.views.concepts import scores_view
    from whyformer.views.marks import Picture
    from whyformer.views.view import Panel

    pets = {f"A drawn {animal}, and a model of cats and dogs": face(animal) for animal in ("cat", "dog")}
    horse = {"A striped horse, and a model of shapes and textures": picture("horse", "striped", seed=2)}
    views = []
    for name, images, methods, note in (
        ("pets", pets, FACE_METHODS, DRAWN),
        ("textures", horse, HORSE_METHODS, HORSE),
    ):
        explained = Explainer(*_loaded(name)).explain([*images.values()], method=list(methods), progress=False)
        for number, (title, image) in enumerate(images.items()):
            maps = [explained[method][number] for method in methods]
            view = side_by_side(maps, image=image, shared=False, title=title)
            panels = (Panel((Picture(image),), "input"), *view.panels)
            views.append(replace(view, panels=panels, columns=len(panels), caption=f"{view.caption} {note}"))
    with quiet():
        arguments = shipped_concepts(0, sets=12, size=10)
    pairs = [("striped", "dotted"), ("striped", "bubbly"), ("bubbly", "striped"), ("dotted", "bubbly")]
    result = tcav(arguments.pop("model"), **arguments, relative=pairs, pooling="mean", progress=False)
    return [*views, replace(scores_view(result, title="Do zebras need stripes? (TCAV)"), caption=STRIPES)]


TABLE_METHODS = ("raw_attention", "generic_attention", "integrated_gradients", "occlusion")
CENSUS = (
    "A small FT-Transformer predicts from census data of 1994 whether a person earned more than 50,000 dollars. It is "
    "an example of explanations of a table, and must not be used for decisions about people."
)
ROW = 1


def table_views() -> list[Any]:
    """Return one row by several methods, and the columns over all shipped rows."""
    from whyformer.demo.census import adult_rows
    from whyformer.tables.global_explanation import explain_global
    from whyformer.verbs import Explainer
    from whyformer.views import side_by_side
    from whyformer.views.table_marks import global_view

    model, table = _loaded("adult")
    rows = adult_rows()
    explainer = Explainer(model, table)
    explained = explainer.explain(rows[ROW], method=list(TABLE_METHODS), progress=False)
    one = side_by_side(explained, title="A row of a table")
    everything = explain_global(explainer, rows, method="integrated_gradients", target=">50K", progress=False)
    return [
        replace(one, caption=f"{CENSUS} {one.caption}"),
        replace(global_view(everything), title="The same model, over forty rows"),
    ]


FEW = 6  # entries of a list, so that all of it fits on a screen
TOLD = ("method", "cost", "not validated")  # of the details; the page has all of them
SENTENCE = SENTENCES[3]


def screens() -> Iterator[tuple[str, Any]]:
    """Yield a heading and a view for a text, an image and a row of a table."""
    from whyformer.demo.census import adult_rows
    from whyformer.demo.pictures import face
    from whyformer.verbs import Explainer
    from whyformer.views import view_of

    cat, row = face("cat"), adult_rows()[ROW]
    for heading, name, raw, more in (
        ("A text, and a sentiment model", "sentiment", SENTENCE, {}),
        ("An image, and a model of cats and dogs", "pets", cat, {"image": cat, "title": "a drawn cat"}),
        ("A table row, and a model of incomes", "adult", row, {"title": f"a person of {row['age']} in a census"}),
    ):
        view = view_of(Explainer(*_loaded(name)).explain(raw, progress=False), most=FEW, **more)
        yield heading, replace(view, details=tuple(fact for fact in view.details if fact.name in TOLD))


def _loaded(name: str) -> tuple[Any, Any]:
    from whyformer import demo as shipped

    with quiet():
        return getattr(shipped, f"load_{name}")()


METHODS = ("raw_attention", "attention_rollout", "generic_attention", "grad_sam")
QUICK_CHECKS = ("capture_audit", "class_dependence", "invariance", "sinks")  # one or two seconds in total
LEAD = (
    "A small sentiment model classifies five sentences as positive or negative. Four methods score the words; a higher "
    "score means a larger contribution. Two small vision transformers classify a drawn cat, a drawn dog and a striped "
    "horse, and are tested for the concept of stripes. A table transformer predicts the income of people in a census."
)
SPECIAL = (
    "[CLS] and [SEP] are special tokens that the tokenizer adds. The output is read at [CLS], so this token often "
    "receives a large share of the score. Special tokens are hidden, and a line below the bars shows their share. "
    "Where methods disagree, they cannot all be right: the report compares them."
)
TRY = (  # a command, and what it is for
    ('whyformer explain "your own sentence"', "your own text"),
    ("whyformer explain photo.jpg --out why.html", "your own image, on a page"),
    ("whyformer doctor", "check this installation"),
)


@takes("out/demo")
def demo(asked: CommandArguments) -> None:
    """Explain a text, an image and a table, and write a page.

    The page has more sentences, images and methods; a report compares and checks the methods.
    Uses four small shipped models, without downloads.

    \b
    Examples:
      whyformer demo
      whyformer demo --out demo.html
    """
    if asked.out.suffix != ".html":
        raise typer.BadParameter(f"{asked.out.name!r}: the page is HTML, name it something.html", param_hint="--out")
    require(*SHIPPED, "sklearn", why="whyformer demo")
    check_out(asked.out)
    report_out = asked.out.with_name(f"{asked.out.stem}-report.html")
    check_out(report_out)
    announced()
    for number, (heading, view) in enumerate(screens(), start=1):
        typer.secho(f"{number}. {heading}", bold=True)
        view.show()
    typer.echo("Comparing and checking several methods (about half a minute) …", err=True)
    from rich.console import Group
    from rich.text import Text

    from whyformer.registry import meaning_of
    from whyformer.reports.report import report
    from whyformer.verbs import Explainer
    from whyformer.views import page, side_by_side
    from whyformer.views.terminal.terminal_page import put
    from whyformer.views.view import Fact, Terms

    model, tokenizer = _loaded("sentiment")
    explained = Explainer(model, tokenizer).explain(list(SENTENCES), method=list(METHODS), progress=False)
    views = [side_by_side([explained[name][i] for name in METHODS]) for i in range(len(SENTENCES))]
    views += [*picture_views(), *table_views()]
    lead = (LEAD, Terms(tuple(Fact(name, meaning_of(name)) for name in METHODS)), SPECIAL)
    page(views, "Why did your transformer say that?", lead=lead, outro=_next(asked.out)).save(asked.out)
    methods = [*METHODS, "occlusion"]
    settings: dict[str, Any] = {"shown": len(methods), "checks": QUICK_CHECKS, "progress": False}
    trust = report(model, list(SENTENCES), processor=tokenizer, method=methods, **settings)
    trust.save(report_out)
    lines = [
        Text(f"The page    {asked.out}: five sentences, three images and a table, by several methods"),
        Text(f"The report  {report_out}: methods compared and checked"),
        Text(),
        Text(" ".join(trust.view().lead)),
        Text(),
        Text("Three things to try", style="bold"),
    ]
    longest = max(len(command) for command, _ in TRY)
    lines += [Text(f"  {command:<{longest}}").append(f"   {words}", style="dim") for command, words in TRY]
    put(Group(*lines))


def _next(out: Path) -> tuple[Any, ...]:
    from whyformer.views.view import Fact, Terms

    more = (
        ('whyformer explain "Not bad" -m occlusion', "another method"),
        ('whyformer explain "Not bad" -t negative', "another class"),
        ("whyformer tcav --relative", "test the concept of stripes"),
        ("whyformer explain table --row 0", "a row of a table"),
        ("whyformer methods", "list methods and their cost"),
        ("whyformer capture", "list captured attention layers"),
    )
    commands = tuple(Fact(command, words) for command, words in (*TRY, *more))
    return (f"This page is {out}.", Terms(commands, "What to try next", code=True))
