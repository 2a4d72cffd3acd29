"""whyformer metrics: by what explanations are judged."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    from whyformer.registry import get_metric
    from whyformer.registry import metrics as registered

    chosen = [get_metric(name)] if name else list(registered().values())
    if json:
        typer.echo(json_text.dumps([_plain(m) for m in chosen], ensure_ascii=False, indent=1))
    elif name:
        _one(chosen[0])
    else:
        _table(chosen)


def _plain(m: Metric) -> dict[str, Any]:
    return {
        "name": m.name,
        "idea": m.idea,
        "kind": m.kind,
        "higher_is_better": m.higher_is_better,
        "needs": sorted(m.needs),
        "cost": m.cost_text,
        "options": {k: list(v) if isinstance(v, tuple) else v for k, v in m.defaults().items()},
        "paper": m.paper,
    }


def _table(chosen: list[Metric]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.backends.terminal import put

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


def _one(m: Metric) -> None:
    import inspect

    from rich.console import Group
    from rich.text import Text

    from whyformer.views.backends.terminal import put

    paragraphs = (inspect.getdoc(m.run) or "").split("\n\n")
    words = [Text(" ".join(part.split()).replace("``", "") + "\n") for part in paragraphs]
    options = [f"  {k}={v!r}" for k, v in m.defaults().items()] or ["  (none)"]
    put(
        Group(
            Text(m.name, style="bold"),
            *words,
            Text(f"kind   {m.kind}; {'high' if m.higher_is_better else 'low'} is good"),
            Text(f"cost   {m.cost_text} per input"),
            Text(f"needs  {', '.join(sorted(m.needs)).replace('_', ' ') or 'nothing'}"),
            Text(f"paper  {m.paper}"),
            Text("options"),
            *(Text(o) for o in options),
        )
    )
