"""whyformer metrics: by what explanations are judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from whyformer.cli._explaining import print_json

if TYPE_CHECKING:
    from whyformer.registry import Method, Metric


# What there is in a registry, as ``whyformer methods`` and ``whyformer metrics`` print it.

Entry = TypeVar("Entry", "Method", "Metric")


def listed(
    entries: Sequence[Entry],
    single: bool,
    json: bool,
    *,
    plain: Callable[[Entry], dict[str, Any]],
    facts: Callable[[Entry], list[str]],
    table: Callable[[Sequence[Entry]], None],
) -> None:
    """All entries as JSON, a single one on a sheet of its own, or several in a table."""
    if json:
        print_json([plain(e) for e in entries])
    elif single:
        _sheet(entries[0], facts(entries[0]))
    else:
        table(entries)


def needs_of(entry: Method | Metric) -> str:
    return ", ".join(sorted(entry.needs)).replace("_", " ") or "nothing"


def _sheet(entry: Method | Metric, facts: list[str]) -> None:
    """Its docstring, free to wrap at the terminal's width, then the facts and the options."""
    from rich.console import Group
    from rich.text import Text

    from whyformer.views.terminal.terminal_page import put

    paragraphs = (inspect.getdoc(entry.run) or "").split("\n\n")
    options = [f"  {k}={v!r}" for k, v in entry.defaults.items()] or ["  (none)"]
    put(
        Group(
            Text(entry.name, style="bold"),
            *(Text(" ".join(part.split()).replace("``", "") + "\n") for part in paragraphs),
            *(Text(line) for line in [*facts, "options", *options]),
        )
    )


# whyformer methods: what there is, what it looks at, what it costs.

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

    from whyformer.views.terminal.terminal_page import put

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


def metrics(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one metric with its options.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the metrics: what they ask, what they cost.

    \b
    Examples:
      whyformer metrics
      whyformer metrics comprehensiveness
      whyformer metrics --json
    """
    from whyformer.registry import get_metric, list_metrics

    chosen = [get_metric(name)] if name else list(list_metrics().values())
    listed(chosen, bool(name), json, plain=_plain_metric, facts=_metric_facts, table=_metric_table)


def _plain_metric(m: Metric) -> dict[str, Any]:
    return {
        "name": m.name,
        "idea": m.idea,
        "kind": m.kind,
        "higher_is_better": m.higher_is_better,
        "needs": sorted(m.needs),
        "cost": m.cost_text,
        "options": {k: list(v) if isinstance(v, tuple) else v for k, v in m.defaults.items()},
        "paper": m.paper,
    }


def _metric_table(chosen: Sequence[Metric]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.terminal.terminal_page import put

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("metric", "kind", "good"):
        table.add_column(heading, no_wrap=True, style="bold" if heading == "metric" else "")
    table.add_column("cost per input", overflow="fold")
    for m in sorted(chosen, key=lambda m: (m.kind, m.name)):
        table.add_row(m.name, m.kind, "high" if m.higher_is_better else "low", m.cost_text)
    put(
        Group(
            table,
            Text(""),
            Text("faithfulness  do the scores say what the model depends on?"),
            Text("plausibility  do they agree with what people marked?"),
            Text("localisation  do they lie on the object?"),
            Text("robustness    do they stay when the input hardly changes?"),
            Text("complexity    are a few parts named, or all a little?"),
            Text(""),
            Text("One metric with its formula: whyformer metrics comprehensiveness"),
        )
    )


def _metric_facts(m: Metric) -> list[str]:
    return [
        f"kind   {m.kind}; {'high' if m.higher_is_better else 'low'} is good",
        f"cost   {m.cost_text} per input",
        f"needs  {needs_of(m)}",
        f"paper  {m.paper}",
    ]
