"""On which kinds of models do value and scores agree with a formula that knows nothing of whyformer?

    python -m bench.model_kinds [--write] [name …]

For every kind of ``tests/models/kinds.py`` (tiny, seeded) and a method of each specificity, both inputs of a batch are
explained, padding and all, and compared with ``tests/references/kinds.py``: the value with the model's plain forward on
that batch (1e-5 of the largest value; on each input alone, where the model mixes them and the result says so), the
scores with the formula on each input alone (1e-4 of the largest score).
Prints a table: "works" (scores compared), "works, value" (value compared; formulas for several streams and for windows
are in tests/study and tests/methods), "works, not compared" (the explained number is not a row of the output: a
detection, a pair, a generated token, or a position of a text, which tests/inputs/test_token_heads.py compares),
"refused" with the reason, or "differs", which is a bug. ``--write`` puts the table into docs/reports/model_kinds.json;
``make docs`` then renders docs/supported.md from it. About four minutes on one core for all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import whyformer as wf
from tests.models.case import BATCH, run
from tests.models.kinds import KINDS, Kind
from tests.references import kinds as formulas
from tests.references.kinds import FILLER, TARGET
from whyformer.errors import WhyformerError
from whyformer.study.interference import SINGLY

METHODS = ("generic_attention", "input_x_gradient", "occlusion")
VALUES, SCORES, ROUNDING = 1e-5, 1e-4, 1e-6  # the last of the terms that a score is a sum of
DATA = Path(__file__).parent.parent / "docs" / "reports" / "model_kinds.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for kind in [KINDS[name] for name in asked.names] or KINDS.values():
        rows.append(row(kind))
        print(line(rows[-1]), flush=True)
    if asked.write:
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in rows)
        DATA.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return int(any("differs" in cell for each in rows for cell in each))


Row = tuple[str, str, str, str, str, str]  # kind, group, class, a cell per method


def row(kind: Kind) -> Row:
    implementation = kind.case.implementations
    model = kind.case.build(implementation[0])
    twin = model if implementation[0] == implementation[-1] else kind.case.build(implementation[-1])
    cells = [cell(kind, model, twin, method) for method in METHODS]
    return kind.name, kind.group, type(model).__name__, cells[0], cells[1], cells[2]


def cell(kind: Kind, model: nn.Module, twin: nn.Module, method: str) -> str:
    """What this method does on this kind of model, in a few words."""
    inputs = kind.case.inputs()
    options: dict[str, Any] = {"replace": FILLER} if method == "occlusion" and _has_ids(inputs) else {}
    target = TARGET if kind.rowwise else None
    try:
        explained = wf.explain(model, inputs, method=method, target=target, progress=False, **options)
    except WhyformerError as refusal:
        return f"refused: {_short(str(refusal))}"
    except Exception as error:  # of torch, transformers or Python: it should have been one of ours
        return f"differs: {type(error).__name__} of another library: {_short(str(error))}"
    if not kind.rowwise:
        return "works, not compared"
    values = [e.value for e in explained]
    singly = any(SINGLY in e.warnings for e in explained)
    error = _relative(np.array(values), plain_values(kind, model, singly))
    if error > VALUES:
        return f"differs: value off by {error:.1e}"
    if kind.group == "several streams":
        return "works, value"
    for number, explanation in enumerate(explained):
        try:
            want, terms = expected(kind, twin, method, number, explanation)
        except NotImplementedError:
            return "works, value"
        if want.shape != explanation.scores.shape:
            return f"differs: {len(explanation.scores)} scores where {len(want)} units are"
        error = np.abs(explanation.scores - want).max()
        if error > SCORES * np.abs(want).max() + ROUNDING * terms:
            return f"differs: scores of input {number} off by {error / np.abs(want).max():.1e}"
    return "works"


def expected(
    kind: Kind, twin: nn.Module, method: str, number: int, explanation: Any
) -> tuple[np.ndarray[Any, Any], float]:
    """Scores of one input by formula, and how large the terms are that each of them is a sum of."""
    labels, special = explanation.units.labels, explanation.units.special
    terms = 0.0
    if method == "generic_attention":
        scores = formulas.generic_attention(kind.case, kind.rows, twin, number, len(labels))
    elif method == "input_x_gradient":
        scores, terms = formulas.input_x_gradient(kind.case, twin, number, kind.entrance, special, kind.cut)
    else:
        scores = formulas.occlusion(kind.case, twin, number, labels, special, kind.group, kind.cut)
        terms = abs(explanation.value)
    return scores.detach().double().numpy(), terms


@torch.no_grad()
def plain_values(kind: Kind, model: nn.Module, singly: bool) -> np.ndarray[Any, Any]:
    """The target's logit of every input, as the model says it by itself; ``singly``: without the other."""
    assert kind.case.logits is not None
    inputs = kind.case.inputs()
    parts = [formulas.alone(inputs, row, cut=False) for row in range(BATCH)] if singly else [inputs]
    logits = torch.cat([kind.case.logits(run(model, part)) for part in parts])
    return logits[:, TARGET].double().numpy()


def _relative(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


def _has_ids(inputs: Any) -> bool:
    if isinstance(inputs, dict):
        return "input_ids" in inputs
    return len(inputs) == 1 and not inputs[0].is_floating_point()


def _short(message: str) -> str:
    """The first sentence, without line breaks."""
    sentence = " ".join(message.split()).replace("|", "/")
    for end in (": ", ". ", "; "):
        sentence = sentence.split(end)[0] if len(sentence.split(end)[0]) > 30 else sentence
    return sentence[:110].rstrip(".")


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
