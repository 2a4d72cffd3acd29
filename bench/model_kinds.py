"""Which models work, measured: kinds compared with formulas, and every class of the installed transformers.

    python -m bench.model_kinds [--write] [--part I/N] [name …]

Names are kinds of ``tests/models/kinds.py``, classes of transformers ("BertModel"), "kinds" or "classes"; without
names, both. ``--part 1/4``: the first quarter of the classes.

Kinds (tiny, seeded models): of each, both inputs of a batch are explained by a method of each specificity, padding and
all, and compared with ``tests/references/kinds.py``: the value with the model's plain forward on that batch (1e-5 of
the largest value; on each input alone, where the model mixes them and the result says so), the scores with the formula
on each input alone (1e-4 of the largest score). Cells: "works" (scores compared), "works, value" (value compared;
formulas for several streams and for windows are in tests/study and tests/methods), "works, not compared" (the explained
number is not a row of the output: a detection, a pair, a generated token, or a position of a text, which
tests/inputs/test_token_heads.py compares), "refused" with the reason, or "differs", which is a bug.

Classes: every one of transformers' auto-mappings that has attention, built tiny by ``bench/tiny_models.py`` and
measured by ``bench/model_classes.py``; a newly released one is this command with its name. The share of classes that
work, are refused with a reason, and fail is printed; a failure is a bug.

``--write`` puts the rows into docs/reports/model_kinds.json (other rows stay); ``make docs`` then renders
docs/supported.md from it. About four minutes on one core for the kinds, half an hour for the classes.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

import whyformer as wf
from bench.model_classes import class_row, short, verdict
from bench.tiny_models import listed_classes
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--part", default="1/1", help="of the classes: I/N")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    kinds, classes = chosen(asked.names or ["kinds", "classes"], asked.part)
    measured: dict[str, list[Any]] = {"kinds": [], "classes": []}
    for kind in kinds:
        measured["kinds"].append(list(row(kind)))
        print(line(measured["kinds"][-1]), flush=True)
    for name in classes:
        measured["classes"].append(class_row(name))
        print(line(measured["classes"][-1]), flush=True)
    if classes:
        print(line(f"{count} {which}" for which, count in tally(measured["classes"]).items()))
    if asked.write:
        write(measured)
    cells = [cell for rows in measured.values() for each in rows for cell in each[3:]]
    return int(any(cell.startswith(("differs", "fails")) for cell in cells))


def chosen(names: Sequence[str], part: str) -> tuple[list[Kind], list[str]]:
    """Kinds and classes by name; of all classes one part of several."""
    number, parts = map(int, part.split("/"))
    kinds = [kind for name, kind in KINDS.items() if name in names or "kinds" in names]
    every = sorted(listed_classes())
    classes = every[number - 1 :: parts] if "classes" in names else [name for name in every if name in names]
    unknown = set(names) - {"kinds", "classes", *KINDS, *every}
    if unknown:
        raise SystemExit(f"neither a kind nor a class of transformers: {', '.join(sorted(unknown))}")
    return kinds, classes


def tally(rows: Sequence[Sequence[str]]) -> Counter[str]:
    """How many classes work with all methods, with some, are refused, fail, were not built, or have no attention."""
    return Counter(verdict(each) for each in rows)


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def write(measured: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Put rows into the file, in the order of the kinds and of the alphabet; rows of what is gone are left out."""
    known, blocks = read(), []
    order = {"kinds": list(KINDS), "classes": sorted(listed_classes())}
    for part, names in order.items():
        rows = {each[0]: list(each) for each in (*known[part], *measured[part])}
        lines = ",\n".join(json.dumps(rows[name], ensure_ascii=False) for name in names if name in rows)
        blocks.append(f'"{part}": [\n{lines}\n]')
    blocks.insert(0, f'"transformers": "{transformers.__version__}"')
    DATA.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


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
    options: dict[str, Any] = {"replace": baseline} if method == "occlusion" and (baseline := _baseline(kind)) else {}
    target = TARGET if kind.rowwise else None
    try:
        explained = wf.explain(model, inputs, method=method, target=target, scalar="logit", progress=False, **options)
    except WhyformerError as refusal:
        return f"refused: {short(str(refusal))}"
    except Exception as error:  # of torch, transformers or Python: it should have been one of ours
        return f"differs: {type(error).__name__} of another library: {short(str(error))}"
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
        scores, terms = formulas.input_x_gradient(kind.case, twin, number, kind.entrance, labels, special, kind.cut)
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


def _baseline(kind: Kind) -> str | int | None:
    """What the formula puts in the place of a unit, where that is not the default."""
    if kind.group == "columns":
        return "zero"
    inputs = kind.case.inputs()
    if isinstance(inputs, dict):
        return FILLER if "input_ids" in inputs else None
    return FILLER if len(inputs) == 1 and not inputs[0].is_floating_point() else None


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
