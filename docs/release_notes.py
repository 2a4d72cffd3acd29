"""The notes of a release, from CHANGELOG.md: ``python -m docs.release_notes`` prints those of the version of today.

The changelog is written by hand, a line with each change; nothing is written twice. What would be wrong in a release
is refused: another version in CITATION.cff, models of another minor version, a section that is missing or empty.
``--final`` wants the date beside the version, which is set when it is released.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def section(changelog: str, version: str) -> tuple[str, str]:
    """The heading of a version, and what stands below it."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        if version in re.findall(r"\d+\.\d+\.\d+", heading):
            return heading, text.strip()
    return "", ""


def versions(root: Path) -> dict[str, str]:
    """As the files of the repository have them."""
    where = {
        "src/whyformer/version.py": r'__version__ = "(.+)"',
        "models/src/whyformer_models/__init__.py": r'__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)$",
    }
    texts = {path: (root / path).read_text(encoding="utf-8") for path in where}
    return {path: "".join(re.findall(pattern, texts[path], re.MULTILINE)) for path, pattern in where.items()}


def faults(root: Path, final: bool = False) -> list[str]:
    """What stands in the way of a release."""
    version, models, citation = versions(root).values()
    heading, notes = section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    wrong = []
    if citation != version:
        wrong.append(f"CITATION.cff has version {citation}, and version.py {version}")
    if models.split(".")[:2] != version.split(".")[:2]:
        wrong.append(f"the models are of version {models}, and whyformer is {version}: the first two numbers differ")
    if not notes:
        wrong.append(f"CHANGELOG.md has nothing about {version}")
    if final and not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        wrong.append(f"CHANGELOG.md is headed {heading!r}: write '## {version} (YYYY-MM-DD)'")
    return wrong


def main() -> int:
    wrong = faults(ROOT, "--final" in sys.argv)
    for line in wrong:
        print(line, file=sys.stderr)
    version = versions(ROOT)["src/whyformer/version.py"]
    print(f"# whyformer {version}\n\n{section((ROOT / 'CHANGELOG.md').read_text(encoding='utf-8'), version)[1]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
