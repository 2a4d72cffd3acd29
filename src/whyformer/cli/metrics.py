"""whyformer metrics: by what explanations are judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._catalogue import listed, needs_of

if TYPE_CHECKING:
    from whyformer.registry import Metric


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
    listed(chosen, bool(name), json, plain=_plain, facts=_facts, table=_table)


def _plain(m: Metric) -> dict[str, Any]:
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


def _table(chosen: Sequence[Metric]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.terminal.page import put

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


def _facts(m: Metric) -> list[str]:
    return [
        f"kind   {m.kind}; {'high' if m.higher_is_better else 'low'} is good",
        f"cost   {m.cost_text} per input",
        f"needs  {needs_of(m)}",
        f"paper  {m.paper}",
    ]
