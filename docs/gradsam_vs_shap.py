"""Grad-SAM beside |SHAP| for the five demo sentences: ``python -m docs.gradsam_vs_shap`` prints the table, draws it.

Shares of each method's total over all tokens, [CLS] and [SEP] included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import whyformer as wf
from whyformer.cli.demo import SENTENCES
from whyformer.demo import load_sentiment

OUT = Path(__file__).parent / "images" / "gradsam_vs_shap.png"
COLUMNS = {
    "Grad-SAM": {"method": "grad_sam"},
    'Grad-SAM, reduce="key"': {"method": "grad_sam", "reduce": "key"},
    "|SHAP|": {"method": "shap"},
    "|SHAP|, keep_special=False": {"method": "shap", "keep_special": False},
}
DRAWN = {"Grad-SAM": "#2166ac", "|SHAP|": "#e08214"}


def shares() -> tuple[dict[str, list[Any]], dict[str, list[wf.Explanation]]]:
    """Per column, the share of every token of every sentence; and the explanations themselves."""
    explainer = wf.Explainer(*load_sentiment())
    found = {name: explainer.explain(list(SENTENCES), progress=False, **how) for name, how in COLUMNS.items()}
    return {n: [abs(e.scores) / abs(e.scores).sum() for e in es] for n, es in found.items()}, found


def top_layer() -> list[float]:
    """Of Grad-SAM's mass in the top layer, the part in the [CLS] row, per sentence."""
    explainer = wf.Explainer(*load_sentiment())
    found = explainer.explain(list(SENTENCES), method="grad_sam", keep_layers=True, progress=False)
    return [float(e.layers[-1][0].sum() / e.layers[-1].sum()) for e in found]


def table(share: dict[str, list[Any]], found: dict[str, list[wf.Explanation]]) -> str:
    lines = ["| sentence | " + " | ".join(COLUMNS) + " | first word: Grad-SAM | first word: \\|SHAP\\| |"]
    lines[0] = lines[0].replace("|SHAP|,", "\\|SHAP\\|,").replace("| |SHAP| |", "| \\|SHAP\\| |")
    lines.append("|---" * (len(COLUMNS) + 3) + "|")
    for i, sentence in enumerate(SENTENCES):
        cls = [f"{share[name][i][0]:.0%}" for name in COLUMNS]
        words = [_first_word(found[name][i]) for name in ("Grad-SAM", "|SHAP|")]
        lines.append(f"| {sentence} | {' | '.join([*cls, *words])} |")
    return "\n".join(lines)


def _first_word(explanation: wf.Explanation) -> str:
    order = np.argsort(-abs(explanation.scores))
    return next(explanation.units.labels[i] for i in order if not explanation.units.special[i])


def draw(share: dict[str, list[Any]], found: dict[str, list[wf.Explanation]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 7.4), layout="constrained")
    for i, (axes, sentence) in enumerate(zip(figure.subplots(len(SENTENCES), 1), SENTENCES, strict=True)):
        labels = found["Grad-SAM"][i].units.labels
        for side, (name, colour) in zip((-0.2, 0.2), DRAWN.items(), strict=True):
            axes.bar(np.arange(len(labels)) + side, share[name][i], 0.4, color=colour, label=name)
        axes.set_xticks(range(len(labels)), labels, fontsize=9)
        axes.set_title(sentence, fontsize=9, loc="left")
        axes.set_ylim(0, 1)
        axes.tick_params(axis="y", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if not i:
            axes.legend(fontsize=8, frameon=False, loc="upper right")
    figure.supylabel("share of the method's total", fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> None:
    share, found = shares()
    print("Share of [CLS]:\n")
    print(table(share, found))
    print(f"\nGrad-SAM, top layer, part of the mass in the [CLS] row: {', '.join(f'{p:.0%}' for p in top_layer())}")
    draw(share, found, OUT)
    print(f"drew {OUT.name}")


if __name__ == "__main__":
    main()
