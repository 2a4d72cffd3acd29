"""Maps of the house: every room says what it holds, and what maps name is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import whyformer

SOURCE = Path(whyformer.__file__).parent
ROOT = SOURCE.parent.parent
ROOMS = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
MAPS = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md", *sorted(SOURCE.rglob("README.md"))]
MAPPED = ["capture", "inputs", "engines/attention", "engines/gradient", "engines/perturbation", "views/terminal", "run"]


def said(room: Path) -> str:
    """What a room says of itself."""
    readme = room / "README.md"
    own = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return f"{own}\n" + (readme.read_text(encoding="utf-8") if readme.is_file() else "")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(SOURCE).as_posix())
def test_a_room_says_what_it_holds(room: Path) -> None:
    words = said(room)
    assert words.partition("\n")[0].endswith((".", "?")), words[:80]


@pytest.mark.parametrize("room", MAPPED)
def test_a_map_of_a_room_names_every_file(room: str) -> None:
    words = said(SOURCE / room)
    files = {path.name for path in (SOURCE / room).glob("*.py")} - {"__init__.py"}
    assert {name for name in files if not re.search(rf"\b{re.escape(name)}", words)} == set()


def test_architecture_names_every_file_at_the_top_and_every_room() -> None:
    words = MAPS[0].read_text(encoding="utf-8")
    files = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py", "version.py"}
    rooms = {f"{path.name}/" for path in ROOMS if path.parent == SOURCE}
    assert {name for name in files | rooms if f"`{name}" not in words} == set()


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_are_there(page: Path) -> None:
    """A path from the package, the room or the root; in a paragraph or row, also from a room that it names."""
    here = [SOURCE, page.parent, ROOT]
    missing = []
    for part in page.read_text(encoding="utf-8").replace("|\n|", "|\n\n|").split("\n\n"):
        rooms = [SOURCE / name for name in re.findall(r"`([a-z_/]+)/`", part)]
        for name in re.findall(r"`([\w/]+\.py)`", part):
            if "x.py" not in name and not any((place / name).is_file() for place in [*here, *rooms, *beside(part)]):
                missing.append(name)
    assert missing == []


def beside(part: str) -> list[Path]:
    """Rooms of files that a paragraph names by their paths: what stands beside them is named without."""
    return [SOURCE / path.rpartition("/")[0] for path in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", part)]
