"""whyformer demo: five sentences, three pictures and a table, one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.demo import SENTENCES

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

    Four small models are part of the package; nothing is downloaded.

    \b
    Examples:
      whyformer demo
      whyformer demo --out demo.html
    """
    if out.suffix != ".html":
        raise typer.BadParameter(f"{out.name!r}: the page is HTML, name it something.html", param_hint="--out")
    from whyformer.cli._input import check_out

    check_out(out)
    page = demo_page(out)
    page.show()
    page.save(out)


def demo_page(out: Path) -> Any:
    from whyformer.cli._demo_pictures import picture_views
    from whyformer.cli._demo_table import table_views
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
