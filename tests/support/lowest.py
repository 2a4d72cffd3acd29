"""Print the lowest versions that ``pyproject.toml`` accepts, as constraints of pip.

    python -m tests.support.lowest > lowest.txt && pip install -c lowest.txt 'whyformer[all]'

``make test-lowest`` tests with them.
"""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
BOUND = re.compile(r'"([\w-]+)>=([\d.]+)')


def lowest(text: str) -> list[str]:
    """Return a constraint per library that is required with a lower bound, by the package or one of its extras."""
    required = text.partition("\n[project]\n")[2].partition("\n[project.scripts]\n")[0]
    return sorted(f"{name}=={least}" for name, least in BOUND.findall(required) if name != "whyformer-models")


if __name__ == "__main__":
    print("\n".join(lowest(PYPROJECT.read_text(encoding="utf-8"))))
