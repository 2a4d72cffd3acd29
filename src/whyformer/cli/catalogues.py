"""whyformer methods and metrics: what is registered, what it looks at, what it costs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from whyformer.cli._options import CommandArguments, takes
from whyformer.cli._results import print_json

if TYPE_CHECKING:
    from whyformer.registry import Method, Metric

SCOPE = "local"  # what is registered explains one prediction; what looks at many inputs is a verb of its own
LOOKS_AT = """
looks at  attention maps, gradients of the input, or inputs and outputs only (black box)
scope     local: one prediction, not the model over many inputs
signed    says what spoke against the target too
class     the scores depend on the class that is explained
cost      passes through the model per input

Papers
"""
KINDS = """
faithfulness  do the scores say what the model depends on?
plausibility  do they agree with what people marked?
localisation  do they lie on the object?
robustness    do they stay when the input hardly changes?
complexity    are a few parts named, or all a little?

One metric with its formula: whyformer metrics comprehensiveness"""


@takes("name json")
def methods(asked: CommandArguments) -> None:
    """List the methods: what they look at, what they cost.

    \b
    Examples:
      whyformer methods
      whyformer methods generic_attention
      whyformer methods --json
    """
    from whyformer.registry import get_method, list_methods

    chosen = [get_method(asked.name)] if asked.name else list(list_methods().values())
    if asked.json:
        print_json([_plain(m) for m in chosen])
    elif asked.name:
        _sheet(chosen[0], _facts(chosen[0]))
    else:
        from rich.text import Text

        cells = [(m.name, m.specificity, SCOPE, _yes(m.signed), _yes(m.class_specific), m.cost_text) for m in chosen]
        _table(
            ("method", "looks at", "scope", "signed", "class", "cost"),
            cells,
            before=[Text("Post-hoc methods: they explain a trained model as it is."), Text("")],
            after=[
                Text(LOOKS_AT.rstrip("\n")),
                *(Text(f"{m.name}: {m.paper}", style="dim") for m in chosen),
                Text("\nOne method with its options: whyformer methods generic_attention"),
            ],
        )


@takes("name/metric json")
def metrics(asked: CommandArguments) -> None:
    """List the metrics: what they ask, what they cost.

    \b
    Examples:
      whyformer metrics
      whyformer metrics comprehensiveness
      whyformer metrics --json
    """
    from whyformer.registry import get_metric, list_metrics

    chosen = [get_metric(asked.name)] if asked.name else list(list_metrics().values())
    if asked.json:
        print_json([_plain_metric(m) for m in chosen])
    elif asked.name:
        _sheet(chosen[0], _metric_facts(chosen[0]))
    else:
        from rich.text import Text

        ordered = sorted(chosen, key=lambda m: (m.kind, m.name))
        cells = [(m.name, m.kind, "high" if m.higher_is_better else "low", m.cost_text) for m in ordered]
        _table(("metric", "kind", "good", "cost per input"), cells, after=[Text(KINDS)])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _needs(entry: Method | Metric) -> str:
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


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], before: Sequence[Any] = (), after: Sequence[Any] = ()
) -> None:
    """One row per entry: its name in bold first, and last what it costs, which may wrap."""
    from rich.console import Group
    from rich.table import Table

    from whyformer.views.terminal.terminal_page import put

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True, style="bold" if heading == headings[0] else "")
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    put(Group(*before, table, *after))


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


def _facts(m: Method) -> list[str]:
    says = "signed (for and against)" if m.signed else "unsigned (how much)"
    depends = "depends on the class" if m.class_specific else "the same for every class"
    return [
        f"looks at  {m.specificity}; post-hoc, {SCOPE}",
        f"scores    {says}; {depends}",
        f"cost      {m.cost_text} per input",
        f"needs     {_needs(m)}",
        f"paper     {m.paper}",
    ]


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


def _metric_facts(m: Metric) -> list[str]:
    return [
        f"kind   {m.kind}; {'high' if m.higher_is_better else 'low'} is good",
        f"cost   {m.cost_text} per input",
        f"needs  {_needs(m)}",
        f"paper  {m.paper}",
    ]
