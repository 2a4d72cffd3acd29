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

DRAWN = (
    "This is a drawing made by the demo: photos are not shipped. The model was trained on photos, so this shows what "
    "an explanation looks like, not how accurate the model is."
)
CENSUS = (
    "A small FT-Transformer predicts from census data of 1994 whether a person earned more than 50,000 dollars. It is "
    "an example of explanations of a table, and must not be used for decisions about people."
)
ROW = 1
FEW = 6  # entries of a list, so that all of it fits on a screen
TOLD = ("method", "cost", "not validated")  # of the details, in the terminal
SENTENCE = SENTENCES[3]


def screens() -> Iterator[tuple[str, Any, str]]:
    """Yield a heading, a view and what is to be known about it, for a text, an image and a row of a table."""
    from whyformer.demo.census import adult_rows
    from whyformer.demo.pictures import face
    from whyformer.verbs import Explainer
    from whyformer.views import view_of

    cat, row = face("cat"), adult_rows()[ROW]
    for heading, name, raw, note, more in (
        ("A text, and a sentiment model", "sentiment", SENTENCE, "", {}),
        ("An image, and a model of cats and dogs", "pets", cat, DRAWN, {"image": cat, "title": "a drawn cat"}),
        (
            "A table row, and a model of incomes",
            "adult",
            row,
            CENSUS,
            {"title": f"a person of {row['age']} in a census"},
        ),
    ):
        yield heading, view_of(Explainer(*_loaded(name)).explain(raw, progress=False), most=FEW, **more), note


def _loaded(name: str) -> tuple[Any, Any]:
    from whyformer import demo as shipped

    with quiet():
        return getattr(shipped, f"load_{name}")()


METHODS = ("raw_attention", "attention_rollout", "generic_attention", "grad_sam")
QUICK_CHECKS = ("capture_audit", "class_dependence", "invariance", "sinks")  # one or two seconds in total
LEAD = (
    "A sentence, an image and a row of a table, explained by the default method; then five sentences by four methods. "
    "A higher score means a larger contribution."
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

    The page has more sentences and methods; a report compares and checks the methods.
    Uses three small shipped models, without downloads.

    \b
    Examples:
      whyformer demo
      whyformer demo --out demo.html
    """
    if asked.out.suffix != ".html":
        raise typer.BadParameter(f"{asked.out.name!r}: the page is HTML, name it something.html", param_hint="--out")
    require(*SHIPPED, why="whyformer demo")
    check_out(asked.out)
    report_out = asked.out.with_name(f"{asked.out.stem}-report.html")
    check_out(report_out)
    announced()
    views = []
    for number, (heading, view, note) in enumerate(screens(), start=1):
        typer.secho(f"{number}. {heading}", bold=True)
        replace(view, details=tuple(fact for fact in view.details if fact.name in TOLD)).show()
        views.append(replace(view, caption=f"{view.caption} {note}".strip()))
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
    each = zip(*(explained[name] for name in METHODS), strict=True)
    views += [replace(side_by_side(list(maps)), folded=True) for maps in each]
    outro = (Terms(tuple(Fact(name, meaning_of(name)) for name in METHODS), "Methods"), SPECIAL, *_next(asked.out))
    page(views, "Why did your transformer say that?", lead=(LEAD,), outro=outro).save(asked.out)
    methods = [*METHODS, "occlusion"]
    settings: dict[str, Any] = {"shown": len(methods), "checks": QUICK_CHECKS, "progress": False}
    trust = report(model, list(SENTENCES), processor=tokenizer, method=methods, **settings)
    trust.save(report_out)
    lines = [
        Text(f"The page    {asked.out}: a text, an image and a table, and five sentences by several methods"),
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
