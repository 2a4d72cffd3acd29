"""How far attention moves for how much change of the output: the curves of bench.attention_debate.

python -m bench.attention_debate_plot debate.json curve.png
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

COLOURS = {"BiLSTM": "#d55e00", "transformer": "#2166ac"}
MARKS = {"other seeds": "s", "uniform": "^", "per sentence": "*"}


def draw(summary: dict[str, Any], path: Path) -> None:
    """TVD upwards, JSD to the right; bars are 95 % limits over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name, found in summary.items():
        colour = COLOURS.get(name, "0.4")
        curve = found["curve"]
        x, y = ([point[key]["mean"] for point in curve] for key in ("jsd", "tvd"))
        bars = [
            [[p[k]["mean"] - p[k]["low"] for p in curve], [p[k]["high"] - p[k]["mean"] for p in curve]]
            for k in ("jsd", "tvd")
        ]
        axes.errorbar(
            x,
            y,
            xerr=bars[0],
            yerr=bars[1],
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.3,
            elinewidth=0.6,
            label=f"{name}: adversary, λ from 0 to {curve[-1]['lambda']:g}",
        )
        for kind, point in found["points"].items():
            if point:
                place = point["jsd"]["mean"], point["tvd"]["mean"]
                axes.plot(
                    *place,
                    MARKS[kind],
                    color=colour,
                    markersize=9,
                    markeredgecolor="k",
                    markeredgewidth=0.5,
                    linestyle="none",
                    label=f"{name}: {kind}",
                )
    axes.axvline(math.log(2), color="0.7", linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.02, 0.72)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("JSD of attention from the base model's, nats (dotted: the largest possible)", fontsize=9)
    axes.set_ylabel("TVD of the output", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7.5, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["summary"], Path(sys.argv[2]))
