"""Did a restructuring change a number? Scores of every method on every test model, before and after, bit by bit.

    OMP_NUM_THREADS=1 python -m bench.frozen_scores save before.npz      # at the old commit
    OMP_NUM_THREADS=1 python -m bench.frozen_scores compare before.npz   # at the new one

What is kept, with scalar="logit": scores, explained values, relevance maps and counted passes of each case, the kind
of each refusal, and the numbers of the larger verbs on the shipped models. ``compare`` prints what differs and fails if
anything does.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.device_agreement import QUICK, VERBS, numbers
from tests.models import CASES, UNUSUAL, Case
from whyformer.errors import WhyformerError
from whyformer.registry import list_methods

TARGETS: dict[str, Any] = {"detr": (2, 1), "clip": 0, "siglip": 0}


def explained(case: Case, method: str) -> dict[str, np.ndarray]:
    """Everything that an explanation of the case's inputs says in numbers, or the kind of its refusal."""
    torch.manual_seed(0)
    model = case.build(case.implementations[0])
    target = TARGETS.get(case.name, 1)
    try:
        how = {"method": method, "target": target, "scalar": "logit", **QUICK.get(method, {})}
        explanations = wf.explain(model, case.inputs(), **how)
    except WhyformerError as refusal:
        return {"refused": np.array(type(refusal).__name__)}
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        return {"raised": np.array(type(error).__name__)}
    numbers: dict[str, np.ndarray] = {
        "scores": np.concatenate([e.scores for e in explanations]),
        "values": np.array([e.value for e in explanations]),
        "passes": np.array([(e.cost.forwards, e.cost.backwards, e.cost.setup_forwards) for e in explanations]),
        "warnings": np.array([len(e.warnings) for e in explanations]),
    }
    for row, explanation in enumerate(explanations):
        maps = explanation.matrix if isinstance(explanation.matrix, dict) else {"": explanation.matrix}
        for streams, matrix in maps.items():
            if matrix is not None:
                numbers[f"matrix {row} {streams}"] = np.asarray(matrix)
    return numbers


def every_number() -> dict[str, np.ndarray]:
    frozen: dict[str, np.ndarray] = {}
    for name, case in (CASES | UNUSUAL).items():
        for method in list_methods():
            frozen |= {f"{name}/{method}/{what}": value for what, value in explained(case, method).items()}
        print(name, flush=True)
    for verb, run in VERBS.items():
        frozen[f"{verb}/verb/numbers"] = np.array(numbers(run("cpu", scalar="logit")))
        print(verb, flush=True)
    return frozen


def differences(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> list[str]:
    told = [f"{key}: only {'before' if key in before else 'after'}" for key in sorted(before.keys() ^ after.keys())]
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        if old.shape != new.shape:
            told.append(f"{key}: shape {old.shape}, now {new.shape}")
        elif old.tobytes() != new.tobytes():
            apart = "" if old.dtype.kind not in "fi" else f", {np.nanmax(np.abs(old - new)):.3g} apart"
            told.append(f"{key}: another value{apart}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "compare"])
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    after = every_number()
    if asked.what == "save":
        np.savez_compressed(asked.file, **after)  # type: ignore[arg-type]
        print(f"{len(after)} arrays in {asked.file}")
        return
    with np.load(asked.file) as archive:
        told = differences(dict(archive), after)
    print("\n".join(told) or f"{len(after)} arrays, all of them equal to the last bit")
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
