"""The default at four budgets, beside every method that takes no more passes: where is it surely behind?"""

from __future__ import annotations

from bench.frontier.claims import difference, said, verdict
from bench.frontier.contenders import AVERAGED, Contenders, of_one_pass
from bench.frontier.subject import FALLS, Row

BUDGETS = (3, 24, 128, 512)
SLACK = 1.05  # budgets are counted in whole passes, and decompx takes a part of one
DEFAULT = "auto, {} passes"


def contenders(masking: dict[str, object]) -> Contenders:
    """The default at each budget; every method of one pass, averaged where that can be; and those that mask."""
    made: Contenders = {DEFAULT.format(passes): ("auto", {"passes": passes}) for passes in BUDGETS}
    for name, (method, options) in of_one_pass().items():
        made[name] = (method, options)
        if name in AVERAGED:
            made[f"{name}(maskings=7)"] = (method, {"maskings": 7} | options)
    made |= {"occlusion": ("occlusion", dict(masking)), "two_ended": ("two_ended", dict(masking))}
    for passes in BUDGETS[2:]:
        made[f"shap {passes}"] = ("shap", {"evaluations": passes} | masking)
        made[f"shap {passes}, guided"] = ("shap", {"evaluations": passes - 6, "guide": "auto"} | masking)
    return made


def passes(row: Row) -> float:
    """As budgets count them."""
    return row.forwards + 2 * row.backwards


def cells(done: dict[str, Row]) -> list[str]:
    """Per budget: what the default reaches, how far it is above itself within fewer passes, and what is surely ahead.

    Every figure after the first two is a paired difference with its 95 % interval; above zero favours the default.
    """
    heads = ["budget", "passes", *FALLS, "over fewer passes", "surely ahead of the default"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    fewer: Row | None = None
    for budget in BUDGETS:
        default = done.get(DEFAULT.format(budget))
        if default is None:
            continue
        ahead = []
        for row in done.values():
            judged = verdict(*difference(default, row)[1:])
            if passes(row) <= budget * SLACK and not row.name.startswith("auto") and "behind" in judged:
                ahead.append(f"{row.name} {', '.join(said(default, row))}: {judged}")
        means = [f"{value:.3f}" for value in default.values_IM.mean(0)[: len(FALLS)]]
        more = "" if fewer is None else ", ".join(said(default, fewer))
        columns = [str(budget), f"{passes(default):.3g}", *means, more, "; ".join(ahead) or "none"]
        lines.append(f"| {' | '.join(columns)} |")
        fewer = default
    return lines
