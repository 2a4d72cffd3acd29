"""How long is the way of an input from ``explain`` to the formula?

    python -m bench.call_path [--method generic_attention]

Explains the tiny BERT of the tests, once cold and once warm, and prints how many distinct functions of whyformer ran
(those with a name: no lambdas or comprehensions), in how many files, how many of its frames stood on top of each
other at most, and how many of them stood between the caller and the model.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import whyformer as wf
from tests.models import CASES

PACKAGE = str(Path(wf.__file__).parent)


def walked(call: Callable[[], object], model: str) -> dict[str, int]:
    """Functions, files, the deepest stack of ours, and how deep it was where the model's own ``forward`` began."""
    functions: set[tuple[str, str]] = set()
    deepest = before_model = 0

    def depth(frame: FrameType | None) -> int:
        count = 0
        while frame is not None:
            count += frame.f_code.co_filename.startswith(PACKAGE)
            frame = frame.f_back
        return count

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal deepest, before_model
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(PACKAGE):
            deepest = max(deepest, depth(frame))
            if not code.co_name.startswith("<"):
                functions.add((code.co_filename, code.co_qualname))
        elif code.co_qualname == f"{model}.forward":
            before_model = max(before_model, depth(frame))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = len({file for file, _ in functions})
    return {"functions": len(functions), "files": files, "deepest": deepest, "frames to the model": before_model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method")
    method = parser.parse_args().method
    warnings.simplefilter("ignore")
    case = CASES["bert"]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    wf.list_methods()  # imported once per process, whatever is explained
    for name in ("cold", "warm"):
        counts = walked(lambda: wf.explain(model, inputs, method=method), type(model).__name__)
        print(name, ", ".join(f"{what} {count}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
