"""whyformer methods: what there is, what it looks at, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._catalogue import listed, needs_of

if TYPE_CHECKING:
    from whyformer.registry import Method

SCOPE = "local"  # what is registered explains one prediction; what looks at many inputs is a verb of its own


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
    from whyformer.registry import get_method, list_methods

    chosen = [get_method(name)] if name else list(list_methods().values())
    listed(chosen, bool(name), json, plain=_plain, facts=_facts, table=_table)


def _plain(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "idea": m.idea,
        "family": "post-hoc",
        "specificity": m.specificity,
        "scope": SCOPE,
        "signed": m.signed,
        "class_specific": m.class_specific,
        "needs": sorted(m.needs),
        "cost": m.cost_text,
        "options": {
            k: v if isinstance(v, (str, int, float, bool, type(None))) else repr(v) for k, v in m.defaults.items()
        },
        "paper": m.paper,
    }


def _table(chosen: Sequence[Method]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.terminal.page import put

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=False)
    for heading in ("method", "looks at", "scope", "signed", "class"):
        table.add_column(heading, no_wrap=True, style="bold" if heading == "method" else "")
    table.add_column("cost", overflow="fold")
    for m in chosen:
        sides = "yes" if m.signed else "no"
        table.add_row(m.name, m.specificity, SCOPE, sides, "yes" if m.class_specific else "no", m.cost_text)
    papers = [Text(f"{m.name}: {m.paper}", style="dim") for m in chosen]
    put(
        Group(
            Text("Post-hoc methods: they explain a trained model as it is."),
            Text(""),
            table,
            Text(""),
            Text("looks at  attention maps, gradients of the input, or inputs and outputs only (black box)"),
            Text("scope     local: one prediction, not the model over many inputs"),
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


def _facts(m: Method) -> list[str]:
    says = "signed (for and against)" if m.signed else "unsigned (how much)"
    depends = "depends on the class" if m.class_specific else "the same for every class"
    return [
        f"looks at  {m.specificity}; post-hoc, {SCOPE}",
        f"scores    {says}; {depends}",
        f"cost      {m.cost_text} per input",
        f"needs     {needs_of(m)}",
        f"paper     {m.paper}",
    ]
