"""The pages' scripts, from modules of ``frontend/src``, in the package. Needs nothing but Python.

What draws results is one file, whyformer.js. After it comes what a page begins with: saved.js, which finds the data on
a saved page, or serve.js, which asks a server for them. widget.js holds a saved page in a notebook.

python frontend/build.py            # write them
python frontend/build.py --check    # are they what the sources give?
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
PACKAGE = Path(__file__).parents[1] / "src" / "whyformer"
HTML = PACKAGE / "views" / "html"
BEGINNINGS = {"saved.js": HTML / "saved.js", "serve.js": PACKAGE / "serve" / "serve.js"}  # by their first module
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*(?:/\*\*.*?\*/|//[^\n]*)[ \t]*\n", re.MULTILINE | re.DOTALL)
TYPE = re.compile(r"/\*\* @type [^\n]*?\*/ ?")
NAMED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+|[\[{])", re.MULTILINE)


def ordered(entry: str, before: tuple[str, ...] = ()) -> list[str]:
    """Modules, each after those that it imports."""
    if entry in before:
        raise SystemExit(f"frontend/src: {' → '.join((*before, entry))} go in a circle.")
    needed = IMPORT.findall((SOURCES / entry).read_text(encoding="utf-8"))
    modules = [name for part in needed for name in ordered(part, (*before, entry))]
    return list(dict.fromkeys([*modules, entry]))


def bundles() -> dict[Path, str]:
    """What each file holds: modules that several beginnings need are in the common one."""
    needed = {entry: ordered(entry) for entry in BEGINNINGS}
    first, *others = needed.values()
    common = [module for module in first if all(module in modules for modules in others)]
    texts = {HTML / "whyformer.js": bundle(common)}
    for entry, path in BEGINNINGS.items():
        require_names_apart(needed[entry])
        texts[path] = bundle([module for module in needed[entry] if module not in common])
    texts[HTML / "widget.js"] = bundle(["widget.js"]) + "\nexport default { render };\n"  # a module, to be imported
    return texts


def require_names_apart(modules: list[str]) -> None:
    """They end in one scope."""
    owners: dict[str, str] = {}
    for module in modules:
        for name in NAMED.findall((SOURCES / module).read_text(encoding="utf-8")):
            if name in "[{":
                raise SystemExit(f"frontend/src: {module} takes names apart at its top: give each a line of its own.")
            if name in owners:
                raise SystemExit(f"frontend/src: {name} stands in {owners[name]} and in {module}: rename one.")
            owners[name] = module


def bundle(modules: list[str]) -> str:
    """Modules one after the other, without comments, imports and exports."""
    parts = ["// Made by frontend/build.py from frontend/src: change those.\n"]
    for module in modules:
        source = (SOURCES / module).read_text(encoding="utf-8")
        plain = TYPE.sub("", COMMENT.sub("", IMPORT.sub("", source)))
        parts.append(re.sub(r"^export ", "", plain, flags=re.MULTILINE).strip() + "\n")
    text = "\n".join(parts)
    if "</script" in text.lower():
        raise SystemExit("frontend/src: '</script' would end the page's script.")
    return text


def main() -> None:
    for path, text in bundles().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path} is not what frontend/src gives: run python frontend/build.py")


if __name__ == "__main__":
    main()
