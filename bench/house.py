"""Count the size and the structure of the package, beside the limits that it is held to.

    python -m bench.house [--circles] [--repeated]

Everything is counted from the source, except for the walk of a warm call, which explains the tiny BERT of the tests.
An import counts wherever it stands: inside functions and under ``TYPE_CHECKING`` too. A floor is a folder or module at
the top of the package; the number of floors is the longest chain of imports between them.
``--circles`` lists the files of each import circle, ``--repeated`` the names that are used twice.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "whyformer"
Edges = dict[str, set[str]]
SHORT = 6  # lines of a function that is called once and could stand where it is called

LIMITS = {
    "files": 250,
    "lines": 56_000,
    "modules at the top": 20,
    "floors": 17,
    "import circles": 0,
    "class names used twice": 0,
    "file names used twice": 0,
    "functions used once, of 6 lines or fewer": 60,
    "declarations of Array": 1,
    "parameters named how": 0,
    "functions of a warm explain": 110,
    "files of a warm explain": 25,
    "lines of tests": 40_000,
}


@cache
def trees(folder: Path = PACKAGE) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Return the modules of the package that a file imports: the submodule where a name is one, else the module."""
    imported = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                imported.add(below if below in known else node.module)
    return imported & known - {module_name(path)}


def graph() -> Edges:
    known = {module_name(path) for path in trees()}
    return {module_name(path): imports_of(path, known) for path in trees()}


def strong_components(edges: Edges) -> list[list[str]]:
    names = sorted(edges)
    place = {name: index for index, name in enumerate(names)}
    rows, columns = np.array([(place[a], place[b]) for a in names for b in edges[a]]).T
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    members = defaultdict(list)
    for name, label in zip(names, labels, strict=True):
        members[label].append(name)
    return list(members.values())


def circles() -> list[list[str]]:
    return [members for members in strong_components(graph()) if len(members) > 1]


def floors() -> int:
    """Return the length of the longest chain of imports between folders; a circle of folders counts as one floor."""
    rooms: Edges = defaultdict(set)
    for name, imported in graph().items():
        own = [*name.split("."), ""][1]
        rooms[own] |= {other.split(".")[1] for other in imported if "." in other} - {own}
    group = {room: number for number, members in enumerate(strong_components(rooms)) for room in members}
    below: dict[int, set[int]] = defaultdict(set)
    for room, others in rooms.items():
        below[group[room]] |= {group[other] for other in others} - {group[room]}

    @cache
    def floor(number: int) -> int:
        return 1 + max((floor(other) for other in below[number]), default=0)

    return max(floor(number) for number in set(group.values()))


def repeated(names: Iterator[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def class_names() -> Iterator[str]:
    for tree in trees().values():
        yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def file_names() -> Iterator[str]:
    yield from (path.name for path in trees() if path.name != "__init__.py")


def short_functions() -> list[str]:
    """Return undecorated module functions of at most six lines whose name occurs once besides the definition."""
    words = Counter(re.findall(r"\w+", "\n".join(path.read_text() for path in trees())))
    found = []
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and words[node.name] == 2:
                if (node.end_lineno or 0) - node.lineno + 1 <= SHORT:
                    found.append(f"{module_name(path)}.{node.name}")
    return found


def parameters_named(name: str) -> int:
    arguments = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.arg))
    return sum(argument.arg == name for argument in arguments)


def lines_of(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def warm_walk() -> tuple[int, int]:
    """Return functions and files of the package that a second explanation enters, counted in a process of its own."""
    command = [sys.executable, "-m", "bench.call_path"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    warm = next(line for line in printed.splitlines() if line.startswith("warm"))
    functions, files = (int(number) for number in re.findall(r"(?:functions|files) (\d+)", warm))
    return functions, files


def counts() -> dict[str, int]:
    functions, files = warm_walk()
    source = "\n".join(path.read_text() for path in trees())
    return {
        "files": len(trees()),
        "lines": lines_of(PACKAGE),
        "modules at the top": len(list(PACKAGE.glob("*.py"))),
        "floors": floors(),
        "import circles": len(circles()),
        "class names used twice": len(repeated(class_names())),
        "file names used twice": len(repeated(file_names())),
        "functions used once, of 6 lines or fewer": len(short_functions()),
        "declarations of Array": len(re.findall(r"^Array\b.*=", source, re.MULTILINE)),
        "parameters named how": parameters_named("how"),
        "functions of a warm explain": functions,
        "files of a warm explain": files,
        "lines of tests": lines_of(ROOT / "tests"),
    }


def comment_share() -> float:
    lines = [line.strip() for path in trees() for line in path.read_text().splitlines()]
    return sum(line.startswith("#") for line in lines) / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circles", action="store_true", help="list the files of each import circle")
    parser.add_argument("--repeated", action="store_true", help="list names that are used twice, and short functions")
    options = parser.parse_args()
    if options.circles:
        for circle in circles():
            print(len(circle), "files:", *circle)
    if options.repeated:
        print("classes:", *repeated(class_names()))
        print("files:", *repeated(file_names()))
        print("short functions:", *short_functions())
    for name, count in counts().items():
        mark = "" if count <= LIMITS[name] else "  above the limit"
        print(f"{name:45} {count:7,} {LIMITS[name]:7,}{mark}")
    print(f"{'comment lines':45} {comment_share():7.1%}")


if __name__ == "__main__":
    main()
