"""whyformer demo: five sentences, three pictures and a table, one page; and a report on the sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.demo import SENTENCES
from whyformer.extras import SHIPPED, require
from whyformer.symbols import as_symbols

# The part of the demo with pictures: drawn faces for the model of pets, and stripes for the model of textures.


FACE_METHODS = ("attention_rollout", "generic_attention", "grad_cam", "saliency")
HORSE_METHODS = ("generic_attention", "saliency", "integrated_gradients", "occlusion")
ABOUT_PICTURES = {
    "attention_rollout": "where all layers look, whatever the class",
    "generic_attention": "the attention that raised the score",
    "grad_cam": "features that raise the score",
    "saliency": "where a nudge would change it most",
    "integrated_gradients": "slopes added up on the way from a grey picture",
    "occlusion": "what the score loses without a patch",
}
DRAWN = (
    "This is a drawing made by the demo: photos are not shipped. The model learned from photos, so take this for "
    "what an explanation looks like, not for how well the model sees."
)
HORSE = "Its stripes make this horse a zebra. The sharpest maps point at a few of them only."
STRIPES = (
    "The model calls a horse with stripes zebra-like, any other horse horse-like. Concepts are sets of pictures; a "
    "bar is the share of striped horses that become more zebra-like with more of the first concept and less of the "
    "second; 0.5 is what chance gives."
)


def picture_views() -> list[Any]:
    """A cat, a dog, a striped horse, and whether stripes make the zebra."""
    from whyformer.demo.faces import face
    from whyformer.demo.pictures import picture

    views = []
    pets = _explained("pets", [face("cat"), face("dog")], FACE_METHODS)
    for name, (image, explanations) in zip(("A drawn cat", "A drawn dog"), pets, strict=True):
        views.append(_beside(f"{name}, and a model of cats and dogs", image, explanations, DRAWN))
    ((image, explanations),) = _explained("textures", [picture("horse", "striped", seed=2)], HORSE_METHODS)
    views.append(_beside("A striped horse, and a model of shapes and textures", image, explanations, HORSE))
    return [*views, _stripes()]


def _explained(name: str, images: list[Any], methods: tuple[str, ...]) -> list[tuple[Any, list[Any]]]:
    """Per image: its pixels, and one explanation per method."""
    require("PIL", why="pictures")
    from PIL import Image

    from whyformer import demo
    from whyformer.explainer import Explainer
    from whyformer.files.loading import quiet

    with quiet():
        model, processor = demo.load_pets() if name == "pets" else demo.load_textures()
    explanations = Explainer(model, processor).explain(
        [Image.fromarray(pixels) for pixels in images], method=list(methods), progress=False
    )
    return [(pixels, [explanations[method][i] for method in methods]) for i, pixels in enumerate(images)]


def _beside(title: str, image: Any, explanations: list[Any], note: str) -> Any:
    """The picture first, then one map per method, each on its own scale."""
    from whyformer.views import side_by_side
    from whyformer.views.marks import Picture
    from whyformer.views.view import Panel

    view = side_by_side(explanations, image=image, shared=False, notes=ABOUT_PICTURES, title=title)
    panels = (Panel((Picture(image),), "input"), *view.panels)
    return replace(view, panels=panels, columns=len(panels), caption=f"{view.caption} {note}")


def _stripes() -> Any:
    from whyformer.cli.tcav import shipped_concepts
    from whyformer.concepts.tcav import tcav
    from whyformer.files.loading import quiet
    from whyformer.views.concepts import scores_view

    with quiet():
        arguments = shipped_concepts(0, sets=12, size=10)
    pairs = [("striped", "dotted"), ("striped", "bubbly"), ("bubbly", "striped"), ("dotted", "bubbly")]
    result = tcav(arguments.pop("model"), **arguments, relative=pairs, pooling="mean", progress=False)
    return replace(scores_view(result, title="Do zebras need stripes? (TCAV)"), caption=STRIPES)


# The part of the demo with a table: one row of census data, and all of them together.


TABLE_METHODS = ("raw_attention", "generic_attention", "integrated_gradients", "occlusion")
ABOUT_TABLE = {
    "raw_attention": "how much the last layer looks at each column",
    "generic_attention": "the attention that raised the score",
    "integrated_gradients": "slopes added up on the way from a typical row",
    "occlusion": "what the score loses with a typical value in place of the column's own",
}
CENSUS = (
    "A small FT-Transformer guesses from census data of 1994 whether somebody earned more than 50,000 dollars. It is "
    "here to show what an explanation of a table looks like: it must not be used to judge people."
)


def table_views(row: int = 1) -> list[Any]:
    """One row by several methods, and the columns over all rows that are shipped."""
    try:
        from whyformer.demo.census import adult_rows, load_adult
        from whyformer.explainer import Explainer
        from whyformer.tables.global_explanation import explain_global
        from whyformer.views import side_by_side
        from whyformer.views.table import global_view

        model, table = load_adult()
    except ImportError:  # the library of the model is an extra: the rest of the demo does without
        return []
    rows = adult_rows()
    explainer = Explainer(model, table)
    explained = explainer.explain(rows[row], method=list(TABLE_METHODS), progress=False)
    one = side_by_side(explained, notes=ABOUT_TABLE, title="A row of a table")
    everything = explain_global(explainer, rows, method="integrated_gradients", target=">50K", progress=False)
    return [
        replace(one, caption=f"{CENSUS} {one.caption}"),
        replace(global_view(everything), title="The same model, over forty rows"),
    ]


# whyformer demo: five sentences, three pictures and a table, one page.


METHODS = ("raw_attention", "attention_rollout", "generic_attention", "grad_sam")
LEAD = (
    "A small sentiment model reads five sentences and calls each one positive or negative. Four methods say which "
    "tokens that came from; the higher a token's score, the more it counted. Then two small vision transformers look "
    "at a drawn cat, a drawn dog and a striped horse, and are asked about the idea of stripes; and a table transformer "
    "says of people in a census who earns more."
)
ABOUT = {
    "raw_attention": "how much the last layer looks at each token",
    "attention_rollout": "the same, followed down through all layers",
    "generic_attention": "as rollout, keeping the attention that raised the score",
    "grad_sam": "attention weighed by how much more of it would help",
}
SPECIAL = (
    "[CLS] and [SEP] are tokens that the model adds itself. It collects at [CLS] what it decides by, so [CLS] often "
    "comes first; that is no word's doing. Its bar may go on beyond the scale of the words (» or stripes). Where "
    "methods disagree, they cannot all be right: read them as hints, not as proof."
)


def demo(
    out: Annotated[
        Path, typer.Option("--out", dir_okay=False, metavar="FILE", help="Where the page is written.")
    ] = Path("whyformer-demo.html"),
) -> None:
    """Explain sentences, pictures and a table, and write one page.

    Then a report on the sentences: which of the methods can be trusted.
    Four small models are part of the package; nothing is downloaded.

    \b
    Examples:
      whyformer demo
      whyformer demo --out demo.html
    """
    if out.suffix != ".html":
        raise typer.BadParameter(f"{out.name!r}: the page is HTML, name it something.html", param_hint="--out")
    from whyformer.cli._input import check_out

    require(*SHIPPED, "sklearn", why="whyformer demo")
    check_out(out)
    report_out = out.with_name(f"{out.stem}-report.html")
    check_out(report_out)
    page = demo_page(out)
    page.show()
    page.save(out)
    report = demo_report()
    typer.echo(f"\n{' '.join(report.view().lead)}")
    report.save(report_out)
    typer.echo(as_symbols(f"The report, with how far each map can be trusted, is in {report_out}."))


def demo_page(out: Path) -> Any:
    from whyformer.cli._model import load_text
    from whyformer.explainer import Explainer
    from whyformer.views import page, side_by_side
    from whyformer.views.view import Fact, Terms

    model, tokenizer = load_text(None)
    explained = Explainer(model, tokenizer).explain(list(SENTENCES), method=list(METHODS), progress=False)
    views = [side_by_side([explained[name][i] for name in METHODS]) for i in range(len(SENTENCES))]
    lead = (LEAD, Terms(tuple(Fact(name, ABOUT[name]) for name in METHODS)), SPECIAL)
    views += picture_views()
    views += table_views()
    return page(views, "Why did your transformer say that?", lead=lead, outro=_next(out))


# Checks that take a second or two together.
QUICK_CHECKS = ("capture_audit", "class_dependence", "invariance", "sinks")


def demo_report() -> Any:
    """The methods of the page, and taking words away, compared on the same sentences."""
    from whyformer.cli._model import load_text
    from whyformer.reports.report import report

    model, tokenizer = load_text(None)
    return report(
        model,
        list(SENTENCES),
        processor=tokenizer,
        methods=[*METHODS, "occlusion"],
        shown=len(METHODS) + 1,
        checks=QUICK_CHECKS,
        progress=False,
    )


def _next(out: Path) -> tuple[Any, ...]:
    from whyformer.views.view import Fact, Terms

    commands = (
        Fact('whyformer explain text "your own sentence"', "your words"),
        Fact('whyformer explain text "Not bad" -m occlusion', "another method"),
        Fact('whyformer explain text "Not bad" -t negative', "another class"),
        Fact("whyformer tcav --relative", "does the model need stripes?"),
        Fact("whyformer explain table --row 0", "a row of a table"),
        Fact("whyformer methods", "all methods and their cost"),
        Fact("whyformer capture", "what was seen in the model"),
    )
    return (f"This page is in {out}: open it in a browser.", Terms(commands, "What to try next", code=True))
