"""Two texts, and options that make every check quick on them."""

from __future__ import annotations

from typing import Any

from whyformer.checks.check import CHECKS

TEXTS = ["the movie was so good", "i hate the boring book"]
QUICK: dict[str, Any] = {
    "jain_wallace": {"permutations": 6, "candidates": 2, "steps": 6},
    "randomisation": {"copies": 2},
    "stability": {"draws": 2},
}
EVERYTHING = {name: QUICK.get(name, {}) for name in CHECKS}
