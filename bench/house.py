"""Count the size and the structure of the package, beside the limits that it is held to.

    python -m bench.house [--circles] [--repeated] [--largest]

Everything is counted from the source, except for the functions that warm calls enter (bench.call_path).
An import counts wherever it stands: inside functions and under ``TYPE_CHECKING`` too. A floor is a folder or module at
the top of the package; the number of floors is the longest chain of imports between them.
``--circles`` lists the files of each import circle, ``--repeated`` the names that are used twice, ``--largest`` the
longest functions, the largest classes and where names of ``FORBIDDEN`` are.
"""

from __future__ import annotations

import argparse
import ast
import json
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
FORBIDDEN = {"found", "own", "kept", "given"}
PUBLIC = {
    ("whyformer.heads.pruning", "kept"),
    ("whyformer.study.facts", "found"),
}  # fields of results, for users
SHORT = 6  # lines of a function that is called once and could stand where it is called

LIMITS = {
    "files": 235,
    "lines": 62_500,
    "modules at the top": 20,
    "floors": 17,
    "import circles": 0,
    "import circles with names in strings": 0,
    "longest function": 60,
    "methods of the largest class": 25,
    "class names used twice": 0,
    "file names used twice": 0,
    "names found, own, kept, given": 0,
    "functions used once, of 6 lines or fewer": 60,
    "declarations of Array": 1,
    "parameters named how": 0,
    "functions of generic_attention, text": 70,
    "files of generic_attention, text": 14,
    "functions of attn_lrp, text": 95,
    "files of attn_lrp, text": 20,
    "functions of default, photo": 110,
    "files of default, photo": 22,
    "lines of tests": 40_000,
    "lines of bench": 9_000,
    "words of CHANGELOG.md": 900,
    "words of CONTRIBUTING.md": 1_500,
}
# Where a limit is not reached yet, no more than this: lower it with the count, and take the row out at the limit.
SO_FAR: dict[str, int] = {
    "files": 240,
    "lines": 68_506,
    "functions of generic_attention, text": 187,
    "files of generic_attention, text": 41,
    "functions of attn_lrp, text": 215,
    "files of attn_lrp, text": 42,
    "functions of default, photo": 304,
    "files of default, photo": 46,
    "lines of tests": 51_927,
    "lines of bench": 10_904,
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


def named_by(path: Path, known: set[str]) -> set[str]:
    """Return the modules that a file with import_module names in strings; a word without a dot is no module."""
    nodes = list(ast.walk(trees()[path]))
    if not any(isinstance(n, ast.Call) and getattr(n.func, "id", "") == "import_module" for n in nodes):
        return set()
    loggers = {id(n.args[0]) for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "getLogger"}
    words = {
        n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in loggers
    }
    dotted = {word if word.startswith(PACKAGE.name) else f"{PACKAGE.name}.{word}" for word in words if "." in word}
    return dotted & known - {module_name(path)}


def graph(by_name: bool = False) -> Edges:
    """Return what every module imports; by_name: also modules that it names to import them later."""
    known = {module_name(path) for path in trees()}
    edges = {module_name(path): imports_of(path, known) for path in trees()}
    return (
        {module_name(path): edges[module_name(path)] | named_by(path, known) for path in trees()} if by_name else edges
    )


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


def circles(by_name: bool = False) -> list[list[str]]:
    return [members for members in strong_components(graph(by_name)) if len(members) > 1]


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


def code_lines(node: ast.AST, lines: list[str]) -> int:
    """Return the lines of a function without its docstring, comments and blank lines."""
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    code = {number for number in range(first, last + 1) if lines[number - 1].strip()[:1] not in ("", "#")}
    told = node.body[0]  # type: ignore[attr-defined]
    if isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant) and isinstance(told.value.value, str):
        code -= set(range(told.lineno, (told.end_lineno or 0) + 1))
    return len(code)


def functions_by_size() -> list[tuple[int, str]]:
    """Return the lines of code of every function, the longest first."""
    sizes = []
    for path, tree in trees().items():
        lines = path.read_text().splitlines()
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        sizes += [(code_lines(node, lines), f"{module_name(path)}.{node.name}") for node in nodes]
    return sorted(sizes, reverse=True)


def classes_by_size() -> list[tuple[int, str]]:
    """Return the number of methods of every class, the largest first."""
    classes = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    sizes = [(sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in c.body), c.name) for c in classes]
    return sorted(sizes, reverse=True)


def forbidden_names() -> list[str]:
    """Return where a variable, parameter, attribute or function is given a name that says only that it is there."""
    places = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            name = getattr(node, "arg", None) if isinstance(node, ast.arg) else getattr(node, "name", None)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            if name in FORBIDDEN and (module_name(path), name) not in PUBLIC:
                places.append(f"{module_name(path)}:{getattr(node, 'lineno', 0)} {name}")
    return places


def warm_walks() -> dict[str, int]:
    """Return functions and files of the package that second explanations enter, counted in a process of its own."""
    command = [sys.executable, "-m", "bench.call_path", "--limited"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    walks = json.loads(printed.splitlines()[-1])
    return {f"{what} of {call}": walk[what] for call, walk in walks.items() for what in ("functions", "files")}


def words_of(name: str) -> int:
    return len((ROOT / name).read_text(encoding="utf-8").split())


def counts() -> dict[str, int]:
    source = "\n".join(path.read_text() for path in trees())
    return {
        "files": len(trees()),
        "lines": lines_of(PACKAGE),
        "modules at the top": len(list(PACKAGE.glob("*.py"))),
        "floors": floors(),
        "import circles": len(circles()),
        "import circles with names in strings": len(circles(by_name=True)),
        "longest function": functions_by_size()[0][0],
        "methods of the largest class": classes_by_size()[0][0],
        "class names used twice": len(repeated(class_names())),
        "file names used twice": len(repeated(file_names())),
        "names found, own, kept, given": len(forbidden_names()),
        "functions used once, of 6 lines or fewer": len(short_functions()),
        "declarations of Array": len(re.findall(r"^Array\b.*=", source, re.MULTILINE)),
        "parameters named how": parameters_named("how"),
        **warm_walks(),
        "lines of tests": lines_of(ROOT / "tests"),
        "lines of bench": lines_of(ROOT / "bench") + len((ROOT / "bench/mutations.txt").read_text().splitlines()),
        **{f"words of {name}": words_of(name) for name in ("CHANGELOG.md", "CONTRIBUTING.md")},
    }


def comment_share() -> float:
    lines = [line.strip() for path in trees() for line in path.read_text().splitlines()]
    return sum(line.startswith("#") for line in lines) / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circles", action="store_true", help="list the files of each import circle")
    parser.add_argument("--repeated", action="store_true", help="list names that are used twice, and short functions")
    parser.add_argument("--largest", action="store_true", help="list what is longest, largest and forbidden")
    options = parser.parse_args()
    if options.circles:
        for circle in circles(by_name=True):
            print(len(circle), "files:", *circle)
    if options.repeated:
        print("classes:", *repeated(class_names()))
        print("files:", *repeated(file_names()))
        print("short functions:", *short_functions())
    if options.largest:
        for size, name in [*functions_by_size()[:15], *classes_by_size()[:8]]:
            print(f"{size:4} {name}")
        print(*forbidden_names(), sep="\n")
    for name, count in counts().items():
        mark = "" if count <= LIMITS[name] else "  above the limit"
        print(f"{name:45} {count:7,} {LIMITS[name]:7,}{mark}")
    print(f"{'comment lines':45} {comment_share():7.1%}")


if __name__ == "__main__":
    main()
