"""whyformer methods: what there is, what it looks at, what it costs."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from whyformer.registry import Method


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one method with its options.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods: what they look at, what they cost.

    \b
    Examples:
      whyformer methods
      whyformer methods generic_attention
      whyformer methods --json
    """
    from whyformer.registry import get_method
    from whyformer.registry import methods as registered

    chosen = [get_method(name)] if name else list(registered().values())
    if json:
        typer.echo(json_text.dumps([_plain(m) for m in chosen], ensure_ascii=False, indent=1))
    elif name:
        _one(chosen[0])
    else:
        _table(chosen)


def _plain(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "idea": m.idea,
        "family": "post-hoc",
        "specificity": m.specificity,
        "scope": m.scope,
        "signed": m.signed,
        "class_specific": m.class_specific,
        "needs": sorted(m.needs),
        "cost": m.cost_text,
        "options": {
            k: v if isinstance(v, (str, int, float, bool, type(None))) else repr(v) for k, v in m.defaults().items()
        },
        "paper": m.paper,
    }


def _table(chosen: list[Method]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.backends.terminal import put

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=False)
    for heading in ("method", "looks at", "scope", "signed", "class"):
        table.add_column(heading, no_wrap=True, style="bold" if heading == "method" else "")
    table.add_column("cost", overflow="fold")
    for m in chosen:
        sides = "yes" if m.signed else "no"
        table.add_row(m.name, m.specificity, m.scope, sides, "yes" if m.class_specific else "no", m.cost_text)
    papers = [Text(f"{m.name}: {m.paper}", style="dim") for m in chosen]
    put(
        Group(
            Text("Post-hoc methods: they explain a trained model as it is."),
            Text(""),
            table,
            Text(""),
            Text("looks at  attention maps, gradients of the input, or inputs and outputs only (black box)"),
            Text("scope     local: one prediction; global: the model over many inputs"),
            Text("signed    says what spoke against the target too"),
            Text("class     the scores depend on the class that is explained"),
            Text("cost      passes through the model per input"),
            Text(""),
            Text("Papers"),
            *papers,
            Text(""),
            Text("One method with its options: whyformer methods generic_attention"),
        )
    )


def _paragraphs(doc: str) -> list[Text]:
    """A docstring's paragraphs, free to wrap at the terminal's width."""
    from rich.text import Text

    return [Text(" ".join(part.split()).replace("``", "") + "\n") for part in doc.split("\n\n")]


def _one(m: Method) -> None:
    import inspect

    from rich.console import Group
    from rich.text import Text

    from whyformer.views.backends.terminal import put

    options = [f"  {k}={v!r}" for k, v in m.defaults().items()] or ["  (none)"]
    says = "signed (for and against)" if m.signed else "unsigned (how much)"
    depends = "depends on the class" if m.class_specific else "the same for every class"
    put(
        Group(
            Text(m.name, style="bold"),
            *_paragraphs(inspect.getdoc(m.run) or ""),
            Text(f"looks at  {m.specificity}; post-hoc, {m.scope}"),
            Text(f"scores    {says}; {depends}"),
            Text(f"cost      {m.cost_text} per input"),
            Text(f"needs     {', '.join(sorted(m.needs)).replace('_', ' ') or 'nothing'}"),
            Text(f"paper     {m.paper}"),
            Text("options"),
            *(Text(o) for o in options),
        )
    )
