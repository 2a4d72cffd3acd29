"""A picture for every method: the same sentence and the same drawing, explained by models that are shipped.

python -m docs.method_pictures            draws those that are missing or stale
python -m docs.method_pictures --all      draws all of them
python -m docs.method_pictures --check    names those that are missing or stale

Every file carries the numbers that it shows. A picture is stale when its method gives other numbers now, by more than
machines differ, or when this file is not the one that drew it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

import whyformer as wf
from whyformer.demo.pictures import picture

FOLDER = Path(__file__).parent / "images" / "methods"
SENTENCE = "The plot is thin but the cast is great"  # nine words: few enough for exact Shapley values
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {("shap", "image"): {"by": "superpixel", "superpixels": 9}}
TOLERANCE = 0.01  # of the largest score
LARGEST = 40_000  # bytes
FOR, AGAINST, GREY = "#2b7bb9", "#d9781a", "#767676"  # as everywhere: blue raises, orange lowers
Numbers = dict[str, dict[str, list[Any]]]  # by kind of input: labels and scores


@cache
def drawing() -> Image.Image:
    return Image.fromarray(picture("horse", "striped", seed=3))


@cache
def explainers() -> dict[str, tuple[wf.Explainer, Any]]:
    return {
        "text": (wf.Explainer(*wf.demo.load_sentiment()), SENTENCE),
        "image": (wf.Explainer(*wf.demo.load_textures()), drawing()),
    }


def explained(name: str) -> dict[str, wf.Explanation]:
    """What the method says about the sentence and about the drawing, where it takes them."""
    made = {}
    for kind, (explainer, shown) in explainers().items():
        try:
            made[kind] = explainer.explain(shown, method=name, **OPTIONS.get((name, kind), {}))
        except wf.errors.NotOffered:
            continue
    return made


def numbers(made: dict[str, wf.Explanation]) -> Numbers:
    return {
        kind: {"labels": list(e.units.labels), "scores": [float(f"{score:.4g}") for score in e.scores]}
        for kind, e in made.items()
    }


def drawn(name: str, made: dict[str, wf.Explanation]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6 if "text" in made else 4.6, 2.5), layout="constrained", facecolor="white")
    shares = [2.1] * ("text" in made) + [1.0, 1.0] * ("image" in made)
    axes = list(np.atleast_1d(figure.subplots(1, len(shares), width_ratios=shares)))
    if "text" in made:
        _bars(axes.pop(0), made["text"])
    if "image" in made:
        axes[0].imshow(drawing())
        axes[0].set_title("the picture", fontsize=9, loc="left")
        _heat(axes[1], made["image"])
        for each in axes:
            each.set_axis_off()
    file = BytesIO()
    figure.savefig(file, dpi=100)
    page = Image.open(file).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    told = PngImagePlugin.PngInfo()
    told.add_text("numbers", json.dumps(numbers(made)))
    told.add_text("drawn by", drawer())
    out = BytesIO()
    page.save(out, "PNG", optimize=True, pnginfo=told)
    return out.getvalue()


def _bars(axes: Any, explanation: wf.Explanation) -> None:
    labels, scores = explanation.units.labels, explanation.scores
    special = explanation.units.special
    colours = [GREY if s else FOR if value >= 0 else AGAINST for s, value in zip(special, scores, strict=True)]
    axes.bar(range(len(labels)), scores, color=colours, width=0.7)
    axes.axhline(0, color="black", linewidth=0.6)
    words = [value for s, value in zip(special, scores, strict=True) if not s]
    room = 0.15 * (max(*words, 0) - min(*words, 0))
    axes.set_ylim(min(*words, 0) - room * (min(words) < 0), max(*words, 0) + room)
    for place, (s, value) in enumerate(zip(special, scores, strict=True)):
        if s and value > max(words) + room:  # it would leave no room for words
            how = {"ha": "center", "va": "top", "rotation": 90, "fontsize": 8, "color": "white"}
            axes.text(place, max(words) + 0.8 * room, f"{value:.2g} →", **how)
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=9)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(f"why {explanation.target.label}?", fontsize=9, loc="left")


def _heat(axes: Any, explanation: wf.Explanation) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    heat = explanation.heatmap()
    most = float(np.abs(heat).max()) or 1.0
    axes.imshow(np.asarray(drawing().convert("L")), cmap="gray", alpha=0.45, extent=(0, 1, 0, 1))
    signed = bool((heat < 0).any())
    if signed:
        colours = {"cmap": LinearSegmentedColormap.from_list("", [AGAINST, "white", FOR]), "vmin": -most, "vmax": most}
    else:
        colours = {"cmap": "Blues", "vmin": heat.min()}
    axes.imshow(heat, alpha=0.75, extent=(0, 1, 0, 1), interpolation="nearest", **colours)
    axes.set_title(f"why {explanation.target.label}?", fontsize=9, loc="left")


def drawer() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def complaint(name: str) -> str | None:
    """What is wrong with the stored picture of a method, if anything."""
    path = FOLDER / f"{name}.png"
    if not path.exists():
        return "no picture"
    if path.stat().st_size > LARGEST:
        return f"{path.stat().st_size} bytes, more than {LARGEST}"
    with Image.open(path) as stored:
        told = dict(stored.info)
    if told.get("drawn by") != drawer():
        return "drawn by another docs/method_pictures.py"
    return difference(json.loads(told["numbers"]), numbers(explained(name)))


def difference(before: Numbers, now: Numbers) -> str | None:
    if before.keys() != now.keys():
        return f"shows {', '.join(before)}, the method takes {', '.join(now)}"
    for kind in now:
        if before[kind]["labels"] != now[kind]["labels"]:
            return f"other parts of the {kind}"
        old, new = (np.array(each[kind]["scores"]) for each in (before, now))
        if np.abs(old - new).max() > TOLERANCE * np.abs(old).max():
            return f"other scores for the {kind}"
    return None


def complaints() -> dict[str, str]:
    methods = wf.list_methods()
    wrong = {name: said for name in methods if (said := complaint(name))}
    wrong |= {path.stem: "a picture of no method" for path in FOLDER.glob("*.png") if path.stem not in methods}
    return wrong


def main() -> int:
    if "--check" in sys.argv:
        wrong = complaints()
        for name, said in wrong.items():
            print(f"docs/images/methods/{name}.png: {said}. Run `make docs`.")
        return 1 if wrong else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in wf.list_methods():
        if "--all" in sys.argv or complaint(name):
            (FOLDER / f"{name}.png").write_bytes(drawn(name, explained(name)))
            print(f"drew {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
