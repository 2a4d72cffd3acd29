"""Run every bench of this folder that has a ``main()`` and needs no arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

NEEDS_DATA = {"heads_pruning"}  # asked for by name: python -m bench.heads_pruning --data FOLDER


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem.startswith("_") or path.stem in {"timing", *NEEDS_DATA}:
            continue
        module = importlib.import_module(f"bench.{path.stem}")
        if not hasattr(module, "main"):
            continue
        print(f"\n== bench.{path.stem}: {(inspect.getdoc(module) or '').splitlines()[0]}", flush=True)
        sys.argv = [path.stem]
        module.main()


if __name__ == "__main__":
    main()
