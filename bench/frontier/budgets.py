"""The default at four budgets, beside every method that takes no more passes: where is it surely behind?"""

from __future__ import annotations

from bench.frontier.claims import difference, not_below
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
    """Per budget: what the default reaches, the best rivals in each measure, and which rivals are surely ahead."""
    heads = ["budget", "passes", *FALLS, *(f"best other {measure}" for measure in FALLS), "surely ahead of the default"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for budget in BUDGETS:
        default = done.get(DEFAULT.format(budget))
        if default is None:
            continue
        others = [r for r in done.values() if not r.name.startswith("auto") and passes(r) <= budget * SLACK]
        best = []
        for column, sign in enumerate((-1, 1)):
            row = min(others, key=lambda r: sign * r.values_IM[:, column].mean())
            best.append(f"{row.values_IM[:, column].mean():.3f} {row.name}")
        ahead = []
        for row in others:
            mean, low, high = difference(default, row)
            behind = [
                f"{m} {d:+.3f}" for m, d, level in zip(FALLS, mean, not_below(low, high), strict=True) if not level
            ]
            ahead += [f"{row.name} ({', '.join(behind)})"] if behind else []
        means = [f"{value:.3f}" for value in default.values_IM.mean(0)[: len(FALLS)]]
        spent = f"{passes(default):.3g}"
        lines.append(f"| {budget} | {spent} | {' | '.join([*means, *best])} | {'; '.join(ahead) or 'none'} |")
    return lines
