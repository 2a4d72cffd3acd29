"""Run every bench of this folder that has a ``main()`` and is not asked for by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

# Asked for by name: they need data or another device, write or take long.
BY_NAME = {
    "coverage",
    "device_agreement",
    "frontier",
    "job_soak",
    "known_truth",
    "mutations",
    "smollm2",
    "soak",
    "strain",
}


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem.startswith("_") or path.stem in {"timing", *BY_NAME}:
            continue
        module = importlib.import_module(f"bench.{path.stem}")
        if not hasattr(module, "main"):
            continue
        print(f"\n== bench.{path.stem}: {(inspect.getdoc(module) or '').splitlines()[0]}", flush=True)
        sys.argv = [path.stem]
        module.main()


if __name__ == "__main__":
    main()
